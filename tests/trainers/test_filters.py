"""Filters at work: bans in the order of the prompts, groups left out of the update, and their state."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from pydantic import ValidationError

from mmrubric import advantage
from mmrubric.errors import RunError
from mmrubric.group import Group
from mmrubric.judging import JudgeRequest
from mmrubric.prompt import Prompt
from mmrubric.record_reader import RecordReader
from mmrubric.verdict import Verdict
from tests.trainers.toys import PROMPTS, SDE, RedJudge, settings
from trainers import parts
from trainers.checkpoint import pack
from trainers.config import RolloutSection, TrainConfig
from trainers.loop import Trainer
from trainers.prompts import PromptSampler, PromptSet
from trainers.rollouts import deserve


def _sampler(total: int, per_step: int, seed: int = 0, shuffle: bool = True) -> PromptSampler:
    return PromptSampler(PromptSet.of([Prompt(str(i), f"text {i}") for i in range(total)]), per_step, seed, shuffle)


def _take(sampler: PromptSampler, bans: dict[int, float] | None = None) -> list[int]:
    return [int(prompt.id) for prompt in sampler.take({str(index): epoch for index, epoch in (bans or {}).items()})]


@given(st.integers(1, 17), st.integers(1, 17), st.integers(0, 3), st.booleans())
@limits(max_examples=40, deadline=None)
def test_without_bans_nothing_changes(total: int, per_step: int, seed: int, shuffle: bool) -> None:
    sampler = _sampler(total, min(per_step, total), seed, shuffle)
    for step in range(3 * total // sampler.per_step + 2):
        expected = sampler.at(step)
        assert sampler.epoch == step * sampler.per_step // total
        assert _take(sampler) == expected


def test_banned_prompts_are_passed_over() -> None:
    sampler = _sampler(5, 2, shuffle=False)
    assert [_take(sampler, {1: math.inf, 3: math.inf}) for _ in range(4)] == [[0, 2], [4, 0], [2, 4], [0, 2]]
    assert sampler.epoch == 2 and sampler.banned({"1": 3.0, "2": 2.0}) == 1


def test_bans_that_end_are_waited_for_by_passing_over_epochs() -> None:
    sampler = _sampler(4, 2, shuffle=False)
    bans = {1: 2.0, 2: 5.0, 3: math.inf}
    # 0 comes in epoch 0 and waits in 1 and 2, until 1 comes in epoch 2; then 0 again
    assert _take(sampler, bans) == [0, 1] and sampler.epoch == 2
    assert _take(sampler, bans) == [0, 1] and sampler.epoch == 3


def test_too_few_prompts_are_an_error_not_a_loop() -> None:
    sampler = _sampler(4, 2)
    with pytest.raises(RunError, match="all but 1 prompts are banned, a step needs 2"):
        _take(sampler, dict.fromkeys(range(3), math.inf))
    assert sampler.step == 0 and sampler.left({"0": math.inf, "1": 9.0}) == 3


@given(st.integers(2, 13), st.data(), st.integers(0, 3), st.booleans())
@limits(max_examples=60, deadline=None)
def test_all_others_come_equally_often_and_none_twice_in_a_step(
    total: int, data: st.DataObject, seed: int, shuffle: bool
) -> None:
    per_step = data.draw(st.integers(1, total))
    banned = data.draw(st.sets(st.integers(0, total - 1), max_size=total - per_step))
    bans = dict.fromkeys(banned, math.inf)
    sampler = _sampler(total, per_step, seed, shuffle)
    steps = [_take(sampler, bans) for _ in range(9)]
    assert all(len(set(step)) == per_step and not banned & set(step) for step in steps)
    counts = Counter(index for step in steps for index in step)
    often = [counts[index] for index in range(total) if index not in banned]
    assert max(often) - min(often) <= 1
    # a resumed run goes on with what waits
    resumed = _sampler(total, per_step, seed, shuffle)
    for _ in range(3):
        _take(resumed, bans)
    state = json.loads(json.dumps(resumed.state_dict()))
    resumed = _sampler(total, per_step, seed, shuffle)
    resumed.load_state_dict(state)
    assert [_take(resumed, bans) for _ in range(6)] == steps[3:]


def test_dropped_groups_have_weight_0_and_are_in_no_statistic() -> None:
    groups = [Group(rewards=np.array(r), key=str(i)) for i, r in enumerate(([0.0, 1.0], [0.5, 0.501], [1.0, 3.0]))]
    options = RolloutSection(group_size=2)
    batch = advantage.build("grpo", scale="batch")
    out = deserve(groups, batch, options, run_seed=0, trained=np.array([True, False, True]))
    alone = deserve([groups[0], groups[2]], batch, options, run_seed=0)
    assert out.weight.tolist() == [[1, 1], [0, 0], [1, 1]] and out.advantage[1].tolist() == [0, 0]
    assert np.array_equal(out.advantage[[0, 2]], alone.advantage)
    none = deserve(groups, batch, options, run_seed=0, trained=np.zeros(3, dtype=bool))
    assert not none.weight.any() and not none.advantage.any()


def test_worst_of_the_drawn_are_trained_on() -> None:
    rewards = np.array([0.6, 1, 0.2, 0.8, 0.7, 0.4, 0, 0.9])
    options = RolloutSection(group_size=4, oversample=8, best=2, worst=2)
    out = deserve([Group(rewards=rewards, key="0")], advantage.build("grpo"), options, run_seed=0)
    assert np.flatnonzero(out.weight[0]).tolist() == [1, 2, 6, 7]
    # of 1, .2, 0, .9: mean .525, deviation (ddof 1) .4992
    assert out.advantage[0, [1, 2, 6, 7]] == pytest.approx([0.9515, -0.6510, -1.0516, 0.7511], abs=1e-3)


class _Solved(RedJudge):
    """Everything is met for the first prompt, or for all."""

    everywhere = False

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        def one(request: JudgeRequest) -> list[Verdict]:
            if not self.everywhere and request.rubric.prompt != PROMPTS[0]:
                return self._one(request)
            return [Verdict(str(request.sample_id), c.id, 1.0) for c in request.rubric.criteria]

        return [one(request) for request in requests]


def _config(directory: Path, model: Path, **changes: Any) -> TrainConfig:
    values = {"loss": {"name": "clip"}, "rollout__sampler": SDE, "advantage__name": "grpo", **changes}
    return settings(directory, model, **values)


def _trainer(config: TrainConfig, judge: Any = None) -> Trainer:
    return Trainer(config, parts.build(config, judge=judge or RedJudge()))


def _state(trainer: Trainer) -> tuple[dict[str, torch.Tensor], Any]:
    return pack({k: v for k, v in trainer.snapshot().items() if k != "metrics_position"})


def test_a_step_whose_groups_are_all_dropped_moves_nothing(tmp_path: Path, tiny_model: Path) -> None:
    config = _config(tmp_path, tiny_model, filter__use={"low_std": {"min_std": 10.0}})
    with _trainer(config) as trainer:
        before = [p.detach().clone() for p in trainer.updater.parameters]
        metrics = trainer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, trainer.updater.parameters, strict=True))
    assert metrics["filter/dropped_groups"] == 2 and metrics["loss/updates_per_rollout"] == 0


@pytest.mark.parametrize("late", [False, True])
def test_a_mastered_prompt_is_left_out_and_bans_survive_a_resume(late: bool, tmp_path: Path, tiny_model: Path) -> None:
    def config(name: str, **changes: Any) -> TrainConfig:
        use = {"saturated": {"patience": 1, "cooldown": 2}, "low_std": {"min_std": 0.002}}
        return _config(tmp_path, tiny_model, run__name=name, filter__use=use, rollout__late=late, **changes)

    with _trainer(config("straight", run__steps=7), _Solved()) as trainer:
        trainer.run()
        expected = _state(trainer)
        logged = [json.loads(line) for line in (trainer.directory / "metrics.jsonl").read_text().splitlines()]
    rows = list(RecordReader(trainer.directory / "record.jsonl").rows())
    solved = trainer.prompts.prompts.prompts[0].id
    seen = sorted({row.step for row in rows if row.prompt_id == solved})
    # each epoch of 4 prompts is 2 steps: met in epoch e, left out in e + 1 and e + 2, where an epoch has 3 prompts
    assert seen == [0, 5] or seen == [1, 5], seen
    assert {row["filter/banned_prompts"] for row in logged} == {0.0, 1.0}

    with _trainer(config("halved", run__steps=3), _Solved()) as trainer:
        trainer.run()
    with _trainer(config("halved", run__steps=7, run__resume="auto"), _Solved()) as trainer:
        trainer.run()
        again = _state(trainer)
    assert again[1] == expected[1] and all(torch.equal(again[0][k], expected[0][k]) for k in expected[0])


@pytest.mark.parametrize("late", [False, True])
def test_a_run_without_prompts_left_ends_with_its_reason(late: bool, tmp_path: Path, tiny_model: Path) -> None:
    judge = _Solved()
    judge.everywhere = True
    config = _config(
        tmp_path, tiny_model, run__steps=9, filter__use={"saturated": {"patience": 1}}, rollout__late=late
    )  # fmt: skip
    with _trainer(config, judge) as trainer:
        assert trainer.run() == 2
        assert trainer.stopped == "the filters banned all but 0 prompts, a step needs 2"
        latest = trainer.checkpoints.latest()
        assert latest is not None and latest.step == 2


def test_settings_are_checked(tmp_path: Path, tiny_model: Path) -> None:
    for changes, message in (
        ({"filter__use": {"best": {}}}, r"filter\.use: unknown filter 'best'; known: low_std, saturated"),
        ({"filter__use": {"low_std": {"min_std": -1}}}, r"filter\.use: low_std: min_std"),
        ({"rollout__oversample": 4, "rollout__best": 1, "rollout__worst": 2}, "worst is 2"),
        ({"rollout__worst": 1}, r"rollout\.worst is set but acts only with rollout\.oversample"),
    ):
        with pytest.raises(ValidationError, match=message):
            _config(tmp_path, tiny_model, **changes)


def test_samples_that_cannot_differ_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    nft: dict[str, Any] = {"loss": {"name": "nft", "levels": 1}, "rollout__oversample": 6, "rollout__best": 1}
    for sampler in ({"steps": 4}, {"steps": 4, "noise": "sde", "level": 0.0}):
        with pytest.raises(ValidationError, match="same_noise"):
            _config(tmp_path, tiny_model, **nft, rollout__sampler={**sampler, "same_noise": True})
    one = {"steps": 1, "noise": "sde", "same_noise": True}
    with pytest.raises(ValidationError, match=r"same_noise with steps=1 leaves no step that draws noise"):
        _config(tmp_path, tiny_model, **nft, rollout__sampler=one)
    # the initial noise makes samples of a deterministic sampler differ
    _config(tmp_path, tiny_model, **nft, rollout__sampler={"steps": 4})
    tokens: dict[str, Any] = {"rollout__oversample": 6, "rollout__best": 2, "rollout__worst": 0}
    _config(tmp_path, tiny_model, **tokens, rollout__sampler={"kind": "tokens"})
    with pytest.raises(ValidationError, match=r"top_k=1 leaves one token to draw"):
        _config(tmp_path, tiny_model, **tokens, rollout__sampler={"kind": "tokens", "top_k": 1})
    with pytest.raises(ValidationError, match="same_noise"):
        _config(tmp_path, tiny_model, **tokens, rollout__sampler={"kind": "tokens", "same_noise": True})
