"""The loop on a tiny pipeline: every combination steps, invariants are metrics, bad input ends before
weights load."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrubric import aggregate
from mmrubric.bootstrap import Interval, paired_bootstrap
from mmrubric.errors import InputError, RunError
from mmrubric.judging import JudgeRequest
from mmrubric.record_reader import RecordReader
from mmrubric.verdict import Verdict
from tests.trainers.toys import SDE, RedJudge, settings
from trainers import parts
from trainers.config import TrainConfig
from trainers.loop import Trainer
from trainers.parts import Parts

LOSSES: dict[str, dict[str, Any]] = {
    "clip": {"loss": {"name": "clip", "options": {"clip": 0.01}}, "rollout__sampler": SDE},
    "guard": {"loss": {"name": "guard"}, "rollout__sampler": SDE},
    "nft": {"loss": {"name": "nft", "levels": 2}},
}


@pytest.fixture(scope="module")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One policy with all copies and its first weights: loading one for each test would take longer than the
    tests."""
    config = settings(tmp_path_factory.mktemp("made"), tiny_model, ema__decay=0.9, loss__kl_coefficient=0.1)
    built = parts.build(config, judge=RedJudge())
    return {"parts": built, "state": {k: v.clone() for k, v in built.policy.state_dict().items()}}


def _parts(made: dict[str, Any], config: TrainConfig, judge: Any = None) -> Parts:
    """Parts for `config` around the shared policy, set back to its first weights."""
    made["parts"].policy.load_state_dict(made["state"])
    inputs = parts.read_inputs(config, judge=judge or RedJudge())
    return Parts(**vars(inputs), accelerator=made["parts"].accelerator, policy=made["parts"].policy)


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trainer.updater.parameters])


@pytest.mark.parametrize("advantage", ["grpo", "rpo"])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_advantage_combines_with_every_loss(
    advantage: str, loss: str, made: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    options = {"binarize": False, "margin": 1e-6} if advantage == "rpo" else {}
    config = settings(
        tmp_path, tiny_model, advantage__name=advantage, advantage__options=options, rollout__group_size=4,
        **LOSSES[loss],
    )  # fmt: skip
    with Trainer(config, _parts(made, config)) as trainer:
        before = _weights(trainer)
        metrics = trainer.step()
        assert not torch.equal(before, _weights(trainer))
    assert (metrics["group/size_min"], metrics["group/size_max"], metrics["group/unique_prompts"]) == (
        4,
        4,
        2,
    )
    assert metrics["loss/updates_per_rollout"] == 1 and metrics["reward/missing_share"] == 0
    assert np.isfinite(metrics["optim/grad_norm"])


def test_the_rate_falls_at_the_end_of_the_run(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(
        tmp_path, tiny_model, run__steps=4, optim={"lr": 1e-3, "decay": 0.5}, advantage__name="grpo",
        rollout__group_size=4, **LOSSES["nft"],
    )  # fmt: skip
    with Trainer(config, _parts(made, config)) as trainer:
        rates = [trainer.step()["optim/lr"] for _ in range(4)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3, 5e-4])  # 4, 3, 2, 1 rollouts left, of the last 2


def test_tf05_first_pass_mismatch_is_a_metric(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, rollout__batch_size=2, optim__batch_size=2, **LOSSES["clip"])
    with Trainer(config, _parts(made, config)) as trainer:
        metrics = trainer.step()
    for name in ("replay/logprob_absdiff_mean", "replay/logprob_absdiff_max"):
        assert 0 <= metrics[name] <= 1e-6
    assert metrics["replay/ratio_max"] == pytest.approx(1, abs=1e-6)
    assert metrics["replay/logprob_absdiff_max/step_02"] <= 1e-6


def test_tf59_one_live_graph_at_a_time(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    peaks = {}
    for micro_batches, size in ((1, 4), (3, 4)):
        # 4 rows of 1 or 3 trained steps in forwards of 4 items
        sampler = {**SDE, "window": {"size": micro_batches}}
        config = settings(
            tmp_path, tiny_model, run__name=str(micro_batches), optim__batch_size=size,
            loss=LOSSES["clip"]["loss"],
            rollout__sampler=sampler, advantage__name="grpo",
        )  # fmt: skip
        saved: weakref.WeakSet[_Saved] = weakref.WeakSet()
        peak = [0]

        def pack(tensor: torch.Tensor, saved: Any = saved, peak: list[int] = peak) -> _Saved:
            holder = _Saved(tensor)
            saved.add(holder)
            peak[0] = max(peak[0], len(saved))
            return holder

        with (
            Trainer(config, _parts(made, config)) as trainer,
            torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor),
        ):
            trainer.step()
        assert not saved
        peaks[micro_batches] = peak[0]
    assert 0 < peaks[3] <= peaks[1]  # three micro-batches hold no more activations than one


class _Saved:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_overlap_and_skipping_change_no_number(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    weights = []
    for name, overlap, skip in (("plain", False, False), ("fast", True, True)):
        config = settings(
            tmp_path, tiny_model, run__name=name, rollout__overlap=overlap, rollout__batch_size=2,
            loss__skip_zero=skip, loss__name="clip", loss__levels=4, rollout__sampler=SDE,
        )  # fmt: skip
        with Trainer(config, _parts(made, config)) as trainer:
            trainer.run()
            weights.append(_weights(trainer))
    assert (weights[0] - weights[1]).abs().max() <= 1e-6


def test_judge_failures_are_masked_and_logged(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, advantage__name="grpo", rollout__group_size=8, judge__max_failure_share=0.9)
    with Trainer(config, _parts(made, config, RedJudge(fails=3))) as trainer:
        metrics = trainer.step()
    assert 0 < metrics["judge/fail_rate"] < 0.9
    calls = trainer.worker.judge.calls  # type: ignore[attr-defined]
    failed = [hashlib.sha256(name.encode()).digest()[0] % 3 == 0 for name in calls]
    assert metrics["reward/missing_share"] == pytest.approx(np.mean(failed))
    assert metrics["reward/mean"] > 0.2  # of the known ones: zeros for the failed would pull it down


def test_failure_share_above_the_limit_stops(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, rollout__group_size=4)
    with (
        Trainer(config, _parts(made, config, RedJudge(fails=1))) as trainer,
        pytest.raises(RunError, match=r"step 0: the judge failed on 100% .*timeout"),
    ):
        trainer.run()


class _Broken(RedJudge):
    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        raise ConnectionError("no such host")


def test_a_judge_that_raises_ends_the_run_with_its_reason(
    made: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    config = settings(tmp_path, tiny_model)
    with (
        Trainer(config, _parts(made, config, _Broken())) as trainer,
        pytest.raises(RunError, match="judging broke off on 4 of 4 images: ConnectionError: no such host"),
    ):
        trainer.run()


def test_the_record_rebuilds_the_rewards(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, rollout__group_size=4)
    with Trainer(config, _parts(made, config)) as trainer:
        trainer.run()
        logged = [json.loads(line) for line in (trainer.directory / "metrics.jsonl").read_text().splitlines()]
    groups = list(RecordReader(trainer.directory / "record.jsonl").groups())
    assert len(groups) == 4 and all(len(group.rows) == 4 for group in groups)
    again = aggregate.build("mean")
    for step in (0, 1):
        rewards = np.concatenate([again(g.table) for g in groups if g.step == step])
        assert rewards.mean() == pytest.approx(logged[step]["reward/mean"])
    assert {row.policy_version for row in groups[0].rows} == {0} and groups[0].rows[0].judge_id == "red/1"
    assert logged[0]["reward/strict_completion"] is not None and logged[1]["step"] == 1


def test_a_guard_that_stops_ends_the_run(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, run__steps=5, guards={"high_freq": {"limit": 1e-3, "action": "stop"}})
    with Trainer(config, _parts(made, config)) as trainer:
        assert trainer.run() == 1
        assert "high_freq" in trainer.stopped
        assert trainer.checkpoints.latest().step == 1  # type: ignore[union-attr]
    strict = settings(tmp_path, tiny_model, run__name="strict", run__strict=True, guards={"high_freq": {"limit": 1e-3}})
    with Trainer(strict, _parts(made, strict)) as trainer, pytest.raises(RunError, match="strict: true"):
        trainer.run()


def test_old_policy_and_average_follow(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(
        tmp_path, tiny_model, loss={"name": "nft", "levels": 2, "old_schedule": "constant", "old_decay": 0.5},
        ema={"decay": 0.75, "every": 2}, run__steps=2, advantage__name="grpo",
    )  # fmt: skip
    with Trainer(config, _parts(made, config)) as trainer:
        name = trainer.policy.trainable_parameters()[0][0]

        def copy(kind: str) -> torch.Tensor:
            return trainer.policy.state_dict()[f"{kind}/{name}"].detach().clone()

        start = copy("trainable")
        trainer.step()
        first = copy("trainable")
        assert torch.allclose(copy("old"), (start + first) / 2)
        assert torch.equal(copy("ema"), start)  # every = 2: not yet
        metrics = trainer.step()
        second = copy("trainable")
        assert torch.allclose(copy("old"), (start + first) / 4 + second / 2)
        assert torch.allclose(copy("ema"), 0.75 * start + 0.25 * second)
        assert metrics["nft/old_deviate"] > 0 and metrics["guard/ema_distance"] > 0


def test_oversampling_trains_on_the_selection(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(
        tmp_path, tiny_model, advantage__name="grpo", rollout__group_size=2, rollout__oversample=6,
        rollout__best=1,
        optim__batch_size=64,
    )  # fmt: skip
    with Trainer(config, _parts(made, config)) as trainer:
        metrics = trainer.step()
        assert metrics["group/size_max"] == 6 and metrics["time/images_per_second"] > 0
    assert len(trainer.worker.judge.calls) == 12  # type: ignore[attr-defined]


def test_pictures_are_saved(made: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    from PIL import Image

    config = settings(tmp_path, tiny_model, run__steps=1, tracking={"images_every": 1, "images": 3, "progress": False})
    with Trainer(config, _parts(made, config)) as trainer:
        trainer.run()
    sheet = Image.open(trainer.directory / "images" / "rollout-000000.png")
    assert sheet.size == (2 * 16 + 2, 2 * 16 + 2)  # three pictures of 16 pixels in two rows, 2 pixels apart


def test_bad_input_ends_before_weights_load_and_writes_nothing(tmp_path: Path, tiny_model: Path) -> None:
    prompts, rubrics = tmp_path / "bad.jsonl", tmp_path / "rubrics.jsonl"
    good = json.dumps({"text": "two green triangles on a black background"})
    lines = [json.dumps({"id": f"p{i}", "text": f"two green triangles {i}"}) for i in range(16)]

    def refused(message: str, **changes: Any) -> None:
        config = settings(tmp_path, tiny_model, run__name="refused", **changes)
        with pytest.raises(InputError, match=message):
            Trainer(config, None) if "judge" not in changes else None
        assert not config.run.directory.exists()

    prompts.write_text("\n".join([*lines, '{"text": ', good]))
    refused(r"bad\.jsonl, line 17: not valid JSON", data__prompts=str(prompts))
    prompts.write_text("")
    refused("the file is empty", data__prompts=str(prompts))
    refused("no such file", data__prompts=str(tmp_path / "none.txt"))
    refused("outside the world of shapes", data__prompts=_text(tmp_path, "a cat\na dog\n"))
    refused(r"weights directory .* does not exist", model__path=str(tmp_path / "nowhere"))

    text = "two green triangles on a black background"
    other = "three blue squares on a black background"
    only = _text(tmp_path, f"{text}\n{other}\n")

    def rubric(prompt: str, *criteria: dict[str, Any]) -> str:
        return json.dumps({"prompt": prompt, "criteria": list(criteria)})

    plain = {"id": "a", "text": "There is a triangle."}
    for criteria, message in (
        ([plain, plain], "ids must be unique"),
        ([{**plain, "depends_on": ["b"]}, {"id": "b", "text": "Two.", "depends_on": ["a"]}], "cycl"),
        ([{**plain, "weight": float("inf")}], "weight"),
    ):
        rubrics.write_text(rubric(text, *criteria) + "\n")
        refused(message, data__prompts=only, rubric={"file": str(rubrics)})
    rubrics.write_text(rubric(text, plain) + "\n")
    refused("holds no rubric for the prompt 'three blue", data__prompts=only, rubric={"file": str(rubrics)})
    negative = {**plain, "weight": -1.0}
    rubrics.write_text(rubric(text, negative) + "\n" + rubric(other, negative) + "\n")
    refused(
        "points needs a criterion with a positive weight",
        data__prompts=only, rubric={"file": str(rubrics)}, reward={"aggregate": "points"},
    )  # fmt: skip


def _text(directory: Path, content: str) -> str:
    path = directory / "only.txt"
    path.write_text(content)
    return str(path)


def test_prompt_longer_than_the_encoder_takes_is_named(tmp_path: Path, tiny_model: Path) -> None:
    long = "two green triangles on a black background"
    prompts = tmp_path / "long.jsonl"
    words = "a red circle left of a blue square " * 8
    rubrics = tmp_path / "rubrics.jsonl"
    rows = [(f"p{i}", text) for i, text in enumerate((long, words.strip()))]
    prompts.write_text("\n".join(json.dumps({"id": i, "text": t}) for i, t in rows))
    rubrics.write_text(
        "\n".join(json.dumps({"prompt": t, "criteria": [{"id": "a", "text": "It is good."}]}) for _, t in rows)
    )
    config = settings(tmp_path, tiny_model, data__prompts=str(prompts), rubric={"file": str(rubrics)})
    with pytest.raises(InputError, match="prompt 'p1'"):
        Trainer(config, parts.build(config, judge=RedJudge()))
    assert not config.run.directory.exists()


@pytest.mark.slow
def test_it_learns_what_the_judge_pays_for_and_nothing_when_rewards_are_permuted(
    made: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    """Held-out prompts before and after. The runs are what is resampled: within one run all prompts drift together, so
    that an interval over prompts alone is above 0 for many a run that learned nothing."""
    values: dict[bool, list[list[np.ndarray]]] = {False: [], True: []}
    for seed in range(3):
        for permute in (False, True):
            config = settings(
                tmp_path, tiny_model, run__name=f"{seed}-{permute}", run__seed=seed, run__steps=15,
                data__prompts_per_step=4, rollout__group_size=8, rollout__sampler=SDE,
                loss={"name": "clip", "options": {"clip": 0.01}}, advantage__name="grpo",
                advantage__permute_within_groups=permute, optim={"lr": 3e-3, "batch_size": 96},
                eval={"prompts": "shapes:heldout", "limit": 16, "every": 100, "allow_same_judge": True},
            )  # fmt: skip
            with Trainer(config, _parts(made, config)) as trainer:
                before = trainer.evaluate()
                trainer.run()
                after = trainer.evaluate()
            values[permute].append([np.array([t.met.mean() for t in r.tables]) for r in (before, after)])
    true, control = (_gain(values[permute]) for permute in (False, True))
    assert true.low > 0 and not control.low > 0, (true, control)
    assert true.low > control.high, (true, control)


def _gain(runs: list[list[np.ndarray]]) -> Interval:
    """95 % interval of the gain over runs, each with its prompts."""
    before, after = (np.stack(side) for side in zip(*runs, strict=True))
    return paired_bootstrap(before, after, seed=0)
