"""Evaluation: fixed noise, the deployed sampler, both numbers as the design defines them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipelines
from mmrubric.errors import InputError, RunError
from mmrubric.prompt import Prompt
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure, Verdict
from pipelines.samplers import Sampler
from tests.trainers.toys import PROMPTS, RedJudge, settings
from trainers import parts
from trainers.evaluate import EvalItem, EvalResult, evaluate
from trainers.judge_worker import JudgeWorker
from trainers.loop import Trainer

RUBRICS = [
    Rubric(prompt=text, criteria=tuple(Criterion(id=f"c{k}", text=f"Strip {k} is red.") for k in range(3)))
    for text in PROMPTS
]
SHOWN = [Prompt(id=f"p{i}", text=text) for i, text in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def policy(tiny_model: Path) -> Any:
    from accelerate import PartialState

    PartialState()
    made = pipelines.load_policy(tiny_model, ema=True)
    made.deployed = made.deployed.model_copy(update={"steps": 2})
    return made


def _evaluate(policy: Any, judge: Any = None, **options: Any) -> EvalResult:
    with JudgeWorker(judge or RedJudge()) as worker:
        return evaluate(policy, SHOWN, RUBRICS, worker, **options)


def test_numbers_follow_the_definitions() -> None:
    def item(row: int, sample: int, *met: float | None) -> EvalItem:
        name = f"eval-{row}-{sample}"
        failure = Failure.timeout
        verdicts = [Verdict(name, f"c{k}", m, failure=failure if m is None else None) for k, m in enumerate(met)]
        return EvalItem(row, sample, name, "hash", tuple(verdicts))

    items = (
        item(0, 0, 1.0, 0.6, 0.5),
        item(0, 1, 1.0, 1.0, None),
        item(1, 0, 0.0, 0.4, 1.0),
        item(1, 1, None, None, None),
    )
    result = EvalResult(tuple(SHOWN[:2]), tuple(RUBRICS[:2]), items, "judge", Sampler(), "raw", 0, 1.0)
    # passed / known: 3/3, 2/2, 1/3, nothing known -> mean over the three known (1 + 1 + 1/3) / 3
    assert result.mean_pass_rate == pytest.approx(7 / 9)
    assert result.strict_completion == 0.25  # unknown is not completed
    assert result.unknown_share == pytest.approx(4 / 12)
    assert result.pass_rate_by_prompt() == pytest.approx([1.0, 1 / 3])
    assert result.completion_by_prompt() == pytest.approx([0.5, 0.0])
    assert result.metrics()["eval/strict_completion"] == 0.25


def test_the_noise_is_fixed_and_the_batch_size_changes_nothing(policy: Any) -> None:
    first = _evaluate(policy, samples=2, batch=8, seed=3)
    again = _evaluate(policy, samples=2, batch=3, seed=3)
    assert [(item.row, item.sample) for item in first.items] == [(r, s) for r in range(4) for s in range(2)]
    for a, b in zip(first.items, again.items, strict=True):
        assert a.image is not None and b.image is not None
        assert np.abs(a.image.astype(int) - b.image.astype(int)).max() <= 1
    other = _evaluate(policy, samples=2, batch=8, seed=4)
    assert first.items[0].image_hash != other.items[0].image_hash
    # a function of the prompt's id, not of its place: fewer prompts, same pictures
    with JudgeWorker(RedJudge()) as worker:
        part = evaluate(policy, SHOWN[2:3], RUBRICS[2:3], worker, samples=2, batch=8, seed=3)
    assert np.abs(part.items[1].image.astype(int) - first.items[5].image.astype(int)).max() <= 1  # type: ignore[union-attr]


def test_named_weights_are_evaluated_and_put_back(policy: Any) -> None:
    raw = _evaluate(policy)
    saved = {k: v.clone() for k, v in policy.state_dict().items()}
    for _, parameter in policy.trainable_parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    moved, average = _evaluate(policy), _evaluate(policy, weights="ema")
    policy.load_state_dict(saved)
    hashes = [[item.image_hash for item in result.items] for result in (raw, moved, average)]
    assert hashes[0] == hashes[2] != hashes[1] and average.weights == "ema"


def test_tf60_report_names_the_deployed_sampler(policy: Any) -> None:
    result = _evaluate(policy)
    assert result.sampler == policy.deployed
    assert result.metrics()["eval/sampler"] == "ode, 2 steps, guidance 1, shift 1"
    other = _evaluate(policy, sampler=Sampler(steps=3, guidance=2.0), same_judge=True)
    assert (
        "3 steps, guidance 2" in str(other.metrics()["eval/sampler"]) and other.metrics()["eval/same_judge"] == "true"
    )


def test_judge_failures_above_the_limit_are_an_error(policy: Any) -> None:
    with pytest.raises(RunError, match="evaluation at step 0: the judge failed"):
        _evaluate(policy, RedJudge(fails=2))
    result = _evaluate(policy, RedJudge(fails=2), max_failure_share=1.0)
    assert 0 < result.unknown_share < 1


def test_pictures_are_written(policy: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    result = _evaluate(policy, batch=3, progress=lambda done, total: seen.append((done, total)))
    assert [path.name for path in result.save_images(tmp_path)] == [f"p{i}-00.png" for i in range(4)]
    assert seen == [(3, 4), (4, 4)]
    assert all(item.image is None for item in _evaluate(policy, keep_images=False).items)


def test_one_rubric_per_prompt(policy: Any) -> None:
    with JudgeWorker(RedJudge()) as worker, pytest.raises(InputError, match="one rubric per prompt"):
        evaluate(policy, SHOWN, RUBRICS[:2], worker)


def test_the_loop_evaluates_before_between_and_after(tmp_path: Path, tiny_model: Path) -> None:
    config = settings(
        tmp_path, tiny_model, run__steps=3, ema__decay=0.5,
        eval={"prompts": str(tmp_path / "prompts.txt"), "limit": 3, "every": 2, "sampler": {"steps": 2}},
        **{"eval__judge": {"name": "shapes"}},
    )  # fmt: skip
    judge, other = RedJudge(), RedJudge(name="red/2")
    with pytest.raises(InputError, match="allow_same_judge"):
        parts.build(config, judge=judge, eval_judge=RedJudge())
    made = parts.build(config, judge=judge, eval_judge=other)
    with Trainer(config, made) as trainer:
        weights = torch.cat([p.detach().flatten() for p in trainer.updater.parameters])
        trainer.evaluate()
        assert torch.equal(weights, torch.cat([p.detach().flatten() for p in trainer.updater.parameters]))
        trainer.run()
    import json

    rows = [json.loads(line) for line in (trainer.directory / "metrics.jsonl").read_text().splitlines()]
    done = [(row["step"], row["eval/judge"], row["eval/weights"]) for row in rows if row["kind"] == "eval"]
    assert done == [(0, "red/2", "ema"), (0, "red/2", "ema"), (2, "red/2", "ema"), (3, "red/2", "ema")]
    assert len(judge.calls) == 3 * 4 and len(other.calls) == 4 * 3
