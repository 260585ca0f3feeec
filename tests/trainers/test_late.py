"""Late judging: one step is judged while the next samples, and nothing but the age of the samples changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from mmrubric.config import save_config
from mmrubric.errors import RunError
from mmrubric.judging import JudgeRequest
from mmrubric.record_reader import RecordReader
from mmrubric.verdict import Failure, Verdict
from tests.trainers import test_ranks as ranks
from tests.trainers.toys import SDE, RedJudge, settings, train
from trainers import checks, parts
from trainers.checkpoint import CheckpointStore, pack
from trainers.config import TrainConfig
from trainers.loop import Trainer

CLIP: dict[str, Any] = {
    "advantage__name": "grpo", "loss": {"name": "clip", "options": {"clip": 0.01}}, "rollout__sampler": SDE,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "clip": {**CLIP, "ema__decay": 0.9},
    "nft": {
        "loss": {"name": "nft", "levels": 2, "old_schedule": "constant", "old_decay": 0.5},
        "advantage__options": {"binarize": False, "margin": 1e-6},
    },
}  # fmt: skip


def _config(directory: Path, model: Path, kind: str, /, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {**KINDS[kind], "data__prompts_per_step": 3, "rollout__late": True, **changes}
    return settings(directory, model, **values)


def _trainer(config: TrainConfig, judge: Any = None) -> Trainer:
    return Trainer(config, parts.build(config, judge=judge or RedJudge()))


def _state(trainer: Trainer) -> tuple[dict[str, torch.Tensor], Any]:
    return pack({k: v for k, v in trainer.snapshot().items() if k != "metrics_position"})


def _same(a: tuple[dict[str, torch.Tensor], Any], b: tuple[dict[str, torch.Tensor], Any]) -> bool:
    return a[1] == b[1] and all(torch.equal(a[0][k], b[0][k]) for k in a[0])


def _metrics(trainer: Trainer) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (trainer.directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_bitwise(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    # prompts come 3 of 4 a step, so that steps drawn ahead lie in other epochs
    straight = _config(tmp_path, tiny_model, kind, run__name="straight", run__steps=4)
    with _trainer(straight) as trainer:
        trainer.run()
        expected, logged = _state(trainer), _metrics(trainer)
    assert [row["rollout/staleness"] for row in logged] == [0, 1, 1, 1]
    versions = {row.step: row.policy_version for row in RecordReader(trainer.directory / "record.jsonl").rows()}
    assert versions == {0: 0, 1: 0, 2: 1, 3: 2}

    # ended after 2 of 2 steps, where nothing was drawn ahead, and extended; and broken off with samples under way
    for name, steps in (("extended", 2), ("broken", 4)):
        with _trainer(_config(tmp_path, tiny_model, kind, run__name=name, run__steps=steps)) as trainer:
            trainer.step()
            trainer.step()
            trainer.save()
            half = _state(trainer)
            assert len(trainer.worker.judge.calls) == 6 * (2 if name == "extended" else 3)  # type: ignore[attr-defined]
        torch.manual_seed(99)
        again = _config(tmp_path, tiny_model, kind, run__name=name, run__steps=4, run__resume="auto")
        with _trainer(again) as trainer:
            assert trainer.done == 2 and _same(_state(trainer), half)
            trainer.run()
            assert _same(_state(trainer), expected)
            assert _metrics(trainer) == logged


def test_a_run_in_pieces_is_the_run_in_one(tmp_path: Path, tiny_model: Path) -> None:
    states = []
    for name, pieces in (("one", [4]), ("pieces", [1, 2, 1])):
        config = _config(
            tmp_path, tiny_model, "clip", run__name=name, run__steps=4,
            eval={"prompts": "shapes:heldout", "limit": 2, "every": 2, "allow_same_judge": True},
        )  # fmt: skip
        with _trainer(config) as trainer:
            for count in pieces:
                trainer.run(count)
            states.append(_state(trainer))
    assert _same(*states)


class _Gated(RedJudge):
    """Gives a step's verdicts only after the next step was sampled, and counts how often that did not happen."""

    sampled = 0
    """Steps sampled; set by the test."""
    asked = 0
    last = 0
    missed = 0

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        self.asked += 1
        mine, deadline = self.asked, time.monotonic() + 20
        while self.sampled <= mine and mine < self.last and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.missed += mine < self.last and self.sampled <= mine
        return await super().score(requests)


def _watch_sampling(trainer: Trainer, seen: Any) -> None:
    """Call `seen` after each sampling of the trainer's policy."""
    sample = trainer.policy.sample

    def watched(*arguments: Any, **options: Any) -> Any:
        rollout = sample(*arguments, **options)
        seen()
        return rollout

    trainer.policy.sample = watched  # type: ignore[method-assign]


def test_the_next_step_samples_while_a_step_is_judged(tmp_path: Path, tiny_model: Path) -> None:
    judge = _Gated()
    judge.last = 3
    with _trainer(_config(tmp_path, tiny_model, "clip", run__steps=3), judge) as trainer:

        def seen() -> None:
            judge.sampled += 1

        _watch_sampling(trainer, seen)
        trainer.run()
    assert judge.sampled == 3 and judge.missed == 0 and len(judge.calls) == 3 * 6


def test_stale_samples_are_weighed_and_the_ratio_starts_at_1(tmp_path: Path, tiny_model: Path) -> None:
    changes = {"run__steps": 3, "optim__lr": 1e-2, "optim__batch_size": 2, "rollout__importance_cap": 1.0001}
    with _trainer(_config(tmp_path, tiny_model, "clip", **changes)) as trainer:
        fresh, *stale = [trainer.step() for _ in range(3)]
    assert "loss/importance" not in fresh
    for metrics in stale:
        assert 0 < metrics["loss/importance"] <= 1.0001 and metrics["loss/importance"] != 1
        assert (
            metrics["replay/logprob_absdiff_max"] <= 1e-6
        )  # against the weights before the update, not the older ones
        assert metrics["replay/ratio_mean"] == pytest.approx(1, abs=1e-6)


class _FailsLater(RedJudge):
    """Is well for the first step's samples, then raises, or answers with failures."""

    raises = True

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        if len(self.calls) < 6:
            return await super().score(requests)
        if self.raises:
            raise ConnectionError("gone")
        timeout = Failure.timeout
        return [[Verdict(str(r.sample_id), c.id, None, failure=timeout) for c in r.rubric.criteria] for r in requests]


@pytest.mark.parametrize(
    ("raises", "message"),
    [
        (True, "step 1: judging broke off on 6 of 6 images: ConnectionError: gone"),
        (False, "step 1: the judge failed on 100%"),
    ],
)
def test_errors_of_the_judge_surface_in_their_step(
    raises: bool, message: str, tmp_path: Path, tiny_model: Path
) -> None:
    judge = _FailsLater()
    judge.raises = raises
    with _trainer(_config(tmp_path, tiny_model, "clip", run__steps=3, run__save_every=1), judge) as trainer:
        with pytest.raises(RunError, match=message):
            trainer.run()
        assert trainer.done == 1
    # the checkpoint of the step before is good, and another judge goes on from it
    again = _config(tmp_path, tiny_model, "clip", run__steps=3, run__resume="auto")
    with _trainer(again) as trainer:
        assert trainer.done == 1 and trainer.run() == 3


class _Endless(RedJudge):
    cancelled = 0

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return []


def test_an_interrupt_cancels_both_steps_that_are_judged(tmp_path: Path, tiny_model: Path) -> None:
    judge = _Endless()
    config = _config(tmp_path, tiny_model, "clip", run__steps=3)
    with pytest.raises(KeyboardInterrupt), _trainer(config, judge) as trainer:
        calls: list[None] = []

        def seen() -> None:
            calls.append(None)
            if len(calls) == 3:
                raise KeyboardInterrupt

        # the first two draws are judged without end; the third is broken off
        _watch_sampling(trainer, seen)
        trainer.drawer.next(0, 3, trainer.worker)
        trainer.drawer.next(1, 3, trainer.worker)
    deadline = time.monotonic() + 20
    while judge.cancelled < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert judge.cancelled == 2


def test_settings_are_checked(tmp_path: Path, tiny_model: Path) -> None:
    for kind, changes, message in (
        ("clip", {"rollout__overlap": False}, r"rollout\.overlap=false forbids it"),
        ("clip", {"loss": {"name": "clip", "old_log_prob": "recorded"}}, "one update older"),
        ("clip", {"rollout__late": False, "rollout__importance_cap": 2.0}, r"importance_cap is set but acts only with"),
        ("nft", {"rollout__importance_cap": 2.0}, r"importance_cap is set but acts only with"),
    ):
        with pytest.raises(ValidationError, match=message):
            _config(tmp_path, tiny_model, kind, **changes)
    assert any("nothing corrects for it" in text for text in checks.warnings(_config(tmp_path, tiny_model, "nft")))
    assert not checks.warnings(_config(tmp_path, tiny_model, "clip"))


class _Sleepy(RedJudge):
    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        await asyncio.sleep(0.5)
        return await super().score(requests)


@pytest.mark.slow
def test_a_step_takes_sampling_or_judging_not_their_sum(tmp_path: Path, tiny_model: Path) -> None:
    """Judging takes as long as sampling, half a second each; the first and the last step have nothing to overlap."""
    medians = {}
    for late in (False, True):
        config = _config(tmp_path, tiny_model, "clip", run__name=str(late), run__steps=6, rollout__late=late)
        with _trainer(config, _Sleepy()) as trainer:
            _watch_sampling(trainer, lambda: time.sleep(0.5))
            medians[late] = float(np.median([trainer.step()["time/step"] for _ in range(6)][1:-1]))
    assert medians[True] < 0.75 * medians[False], medians


RANKS: dict[str, dict[str, Any]] = {
    "late": {"rollout__late": True},
    "filters": {
        "rollout__late": True,
        "filter__use": {"low_std": {"min_std": 0.004}, "saturated": {"threshold": 0.05, "patience": 1, "cooldown": 1}},
    },
}


@pytest.mark.slow
@pytest.mark.processes
def test_one_and_two_processes_agree(tmp_path: Path, tiny_model: Path) -> None:
    runs: dict[tuple[str, int], Path] = {}
    for kind, changes in RANKS.items():
        for processes in (1, 2):
            # 3 prompts x 2 samples over 2 ranks: a group lies on both
            config = _config(
                tmp_path, tiny_model, "clip", run__name=f"{kind}-{processes}", run__processes=processes,
                run__threads=1, run__steps=5, optim__lr=3e-4, optim__batch_size=1, **changes,
            )  # fmt: skip
            runs[kind, processes] = config.run.directory
            save_config(config, tmp_path / f"{kind}-{processes}.yaml")
            if processes == 1:
                train(config)
    ranks._finish(ranks._start(2, *(str(tmp_path / f"{kind}-2.yaml") for kind in RANKS)))
    for kind in RANKS:
        weights, logged, drawn = [], [], []
        for processes in (1, 2):
            run = runs[kind, processes]
            latest = CheckpointStore(run / "checkpoints").latest()
            assert latest is not None
            state = latest.load()
            weights.append(state["policy"])
            drawn.append([(row.step, row.prompt_id, row.sample_id, row.policy_version)
                          for row in RecordReader(run / "record.jsonl").rows()])  # fmt: skip
            logged.append([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
        assert drawn[0] == drawn[1] and len(drawn[0]) == 5 * 6
        assert max(float((weights[0][k].double() - weights[1][k].double()).abs().max()) for k in weights[0]) <= 1e-5
        for a, b in zip(*logged, strict=True):
            for name in ("filter/dropped_groups", "filter/banned_prompts", "rollout/staleness"):
                assert a[name] == b[name]
            assert b["dist/param_checksum_spread"] == 0
        if kind == "filters":
            assert {row["filter/dropped_groups"] for row in logged[0]} - {0.0, 3.0}  # some groups, not all
            assert any(row["filter/banned_prompts"] for row in logged[0])
