"""Every architecture through the training loop: each loss makes a step or is refused, and a resume goes on bitwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrubric import Prompt
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Verdict
from pipelines import load_policy
from pipelines.policy import Policy
from tests.pipelines.cases import CASES, HEIGHT, WIDTH, Case, pictured
from tests.trainers.toys import PROMPTS, RedJudge, settings
from trainers import parts, prompts
from trainers.config import TrainConfig
from trainers.evaluate import evaluate
from trainers.judge_worker import JudgeWorker
from trainers.loop import Trainer
from trainers.parts import Parts

FLOWS = [name for name, case in CASES.items() if "ddim" not in case.noises]
DDIM = [name for name in CASES if name not in FLOWS]
NFT = {"loss": {"name": "nft", "levels": 2}}


@dataclass
class Made:
    """A case with its directory, prompts, and one policy for all tests, with its first weights."""

    case: Case
    folder: Path
    accelerator: Any
    policy: Policy
    state: dict[str, torch.Tensor]

    def config(self, directory: Path, **changes: Any) -> TrainConfig:
        """Two prompts, each twice, a step; without noise unless said."""
        return configuration(self.case, self.folder, directory, **changes)

    def trainer(self, config: TrainConfig, judge: RedJudge | None = None) -> Trainer:
        """A run with the policy set back to its first weights."""
        self.policy.load_state_dict(self.state)
        inputs = parts.read_inputs(config, judge=judge or RedJudge())
        return Trainer(config, Parts(**vars(inputs), accelerator=self.accelerator, policy=self.policy))


def configuration(case: Case, folder: Path, directory: Path, **changes: Any) -> TrainConfig:
    changes = {**NFT, **changes}
    sampler = {"height": HEIGHT, "width": WIDTH, "max_sequence_length": case.tokens, "guidance": 1.0}
    changes["rollout__sampler"] = {"steps": 3, **sampler, **changes.get("rollout__sampler", {})}
    return settings(
        directory, folder / "model", data__prompts=str(folder / "prompts.jsonl"),
        rubric={"file": str(folder / "rubrics.jsonl")}, advantage__name="grpo",
        ema__decay=0.9, **changes,
    )  # fmt: skip


def noisy(case: Case, loss: str) -> dict[str, Any]:
    """Settings of a loss on sampled steps."""
    clip = {"name": loss, "options": {"clip": 0.01}}
    return {"loss": clip, "rollout__sampler": {"noise": case.noises[0], "level": 0.7, "guidance": 2.0}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Cases by name; each is made once."""
    known: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in known:
            case, folder = CASES[name], tmp_path_factory.mktemp(name)
            case.build(folder / "model")
            write_inputs(case, folder)
            policy = load_policy(folder / "model", device="cpu", ema=True, old=True)
            state = {key: value.clone() for key, value in policy.state_dict().items()}
            accelerator = parts.make_accelerator(configuration(case, folder, folder, **noisy(case, "clip")))
            known[name] = Made(case, folder, accelerator, policy, state)
        return known[name]

    return get


def write_inputs(case: Case, folder: Path) -> None:
    """Prompts with their source images, and a rubric for each."""
    lines = []
    for prompt in pictured(case, [Prompt(id=f"p{i}", text=text) for i, text in enumerate(PROMPTS)]):
        files = [f"{prompt.id}-{number}.png" for number in range(len(prompt.sources))]
        for file, picture in zip(files, prompt.sources, strict=True):
            Image.fromarray(np.asarray(picture)).save(folder / file)
        lines.append(json.dumps({"id": prompt.id, "text": prompt.text, "sources": files}))
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    criteria = (Criterion(id="left", text="The left is red."), Criterion(id="right", text="The right is red."))
    Rubric.save_many([Rubric(prompt=text, criteria=criteria) for text in PROMPTS], folder / "rubrics.jsonl")


def step(trainer: Trainer) -> dict[str, Any]:
    """One step, which must move the weights."""
    before = [p.detach().clone() for p in trainer.updater.parameters]
    metrics = trainer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, trainer.updater.parameters, strict=True)]
    assert any(moved) and np.isfinite(metrics["optim/grad_norm"]) and metrics["reward/missing_share"] == 0
    return metrics


@pytest.mark.parametrize(("name", "loss"), [*((n, "clip") for n in CASES), *((n, "guard") for n in FLOWS)])
def test_a_loss_on_sampled_steps_trains(made: Callable[[str], Made], tmp_path: Path, name: str, loss: str) -> None:
    model = made(name)
    with model.trainer(model.config(tmp_path, **noisy(model.case, loss))) as trainer:
        metrics = step(trainer)
    assert metrics["replay/ratio_max"] == pytest.approx(1, abs=1e-5)


class Looking(RedJudge):
    """Keeps its requests."""

    asked: list[JudgeRequest]

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        self.asked = [*getattr(self, "asked", []), *requests]
        return await super().score(requests)


def test_the_judge_is_shown_all_sources_that_the_model_reads(made: Callable[[str], Made], tmp_path: Path) -> None:
    model = made("qwen-image-edit-plus")
    judge, again = Looking(), Looking("other/1")
    with model.trainer(model.config(tmp_path), judge) as trainer:
        step(trainer)
    shown = prompts.load(str(model.folder / "prompts.jsonl")).prompts
    rubrics = Rubric.load_many(model.folder / "rubrics.jsonl")
    with JudgeWorker(again) as worker:
        evaluate(model.policy, shown, rubrics, worker, sampler=model.config(tmp_path).rollout.sampler)
    expected = {p.text: tuple(model.folder / f"{p.id}-{number}.png" for number in (0, 1)) for p in shown}
    assert len(judge.asked) == 4 and len(again.asked) == len(PROMPTS)
    assert all(request.sources == expected[request.rubric.prompt] for request in [*judge.asked, *again.asked])


@pytest.mark.parametrize("name", FLOWS)
def test_a_loss_on_noised_samples_trains(made: Callable[[str], Made], tmp_path: Path, name: str) -> None:
    model = made(name)
    with model.trainer(model.config(tmp_path, **NFT)) as trainer:
        step(trainer)


@pytest.mark.parametrize("loss", ["guard", "nft", "kl_mu_no_dt"])
@pytest.mark.parametrize("name", DDIM)
def test_losses_of_flow_models_are_refused(tmp_path: Path, name: str, loss: str) -> None:
    case = CASES[name]
    write_inputs(case, tmp_path)
    # the index is enough: nothing is loaded
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_index.json").write_text(json.dumps({"_class_name": case.pipeline}))
    changes = NFT if loss == "nft" else noisy(case, "clip" if loss == "kl_mu_no_dt" else loss)
    if loss == "kl_mu_no_dt":
        changes["loss"] |= {"kl": "mu_no_dt", "kl_coefficient": 0.1}
    config = configuration(case, tmp_path, tmp_path, **changes)
    with pytest.raises(InputError, match=f"needs (dt|velocity), which a {case.pipeline} does not provide"):
        parts.read_inputs(config, judge=RedJudge())
    config = configuration(case, tmp_path, tmp_path, loss={"name": "clip"}, rollout__sampler={"noise": "sde"})
    with pytest.raises(InputError, match="noise 'sde' is for flow models"):
        parts.read_inputs(config, judge=RedJudge())


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_goes_on_bitwise(made: Callable[[str], Made], tmp_path: Path, name: str) -> None:
    model = made(name)
    clip = noisy(model.case, "clip")
    with model.trainer(model.config(tmp_path, run__name="straight", **clip)) as trainer:
        trainer.run()
        expected = {key: value.clone() for key, value in trainer.policy.state_dict().items()}
    with model.trainer(model.config(tmp_path, run__name="halved", run__steps=1, **clip)) as trainer:
        trainer.run()
    with model.trainer(model.config(tmp_path, run__name="halved", run__resume="auto", **clip)) as trainer:
        assert trainer.done == 1
        trainer.run()
        state = trainer.policy.state_dict()
    assert state.keys() == expected.keys() and all(torch.equal(state[key], expected[key]) for key in expected)
