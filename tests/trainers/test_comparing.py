"""A judge that compares the samples of a prompt in pairs, in the loop: as ARR-RPO ranks two pictures in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import judges
from mmrubric import aggregate
from mmrubric.config import load_config
from mmrubric.errors import InputError, RunError
from mmrubric.group import PairVerdict
from mmrubric.judging import JudgeRequest, PairRequest
from mmrubric.preference import both_orders
from mmrubric.record_reader import RecordReader
from mmrubric.verdict import Verdict
from tests.trainers.toys import SDE, RedJudge, RedPairs, redness, settings
from trainers import outlook, parts
from trainers.card import write_card
from trainers.checkpoint import pack
from trainers.config import TrainConfig
from trainers.distributed import split_rows
from trainers.loop import Trainer
from trainers.rollouts import Judged, compared_groups

CLIP: dict[str, Any] = {
    "loss": {"name": "clip", "options": {"clip": 0.01}}, "rollout__sampler": SDE, "judge__compare": True,
}  # fmt: skip
WIN_A, WIN_B, TIE, FAILED = PairVerdict.WIN_A, PairVerdict.WIN_B, PairVerdict.TIE, PairVerdict.FAILED


def _trainer(config: TrainConfig, judge: Any) -> Trainer:
    return Trainer(config, parts.build(config, judge=judge))


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trainer.updater.parameters])


class _Redness(RedJudge):
    """One soft score, the same for all criteria: what `RedPairs` compares by."""

    def _one(self, request: JudgeRequest) -> list[Verdict]:
        assert request.sample_id is not None
        met = 0.5 + redness(request.candidate) / 2
        return [Verdict(request.sample_id, criterion.id, met) for criterion in request.rubric.criteria]


@pytest.mark.parametrize("batch", [None, 3])
def test_it_trains_as_scores_of_the_same_order_do(batch: int | None, tmp_path: Path, tiny_model: Path) -> None:
    # In batches of 3 a group is whole only with the batch after.
    scored = {"judge__compare": False, "advantage__options": {"binarize": False, "margin": 1e-9}}
    ends = []
    for name, judge, changes in (("scores", _Redness(), scored), ("pairs", RedPairs(), {})):
        settled = {**CLIP, "rollout__batch_size": batch, "optim__batch_size": 3, **changes}
        config = settings(tmp_path, tiny_model, run__name=name, **settled)
        with _trainer(config, judge) as trainer:
            start = _weights(trainer)
            trainer.run()
            ends.append(_weights(trainer))
    assert not torch.equal(start, ends[0]) and torch.equal(*ends)


def test_the_record_keeps_every_comparison(tmp_path: Path, tiny_model: Path) -> None:
    judge = RedPairs()
    config = settings(
        tmp_path, tiny_model, rollout__group_size=4, advantage__options={"pairing": "round_robin"}, **CLIP
    )
    with _trainer(config, judge) as trainer:
        metrics = trainer.step()
    assert len(judge.calls) == 2 * 6 and not any(request.identical for request in judge.calls)
    assert metrics["reward/mean"] == pytest.approx(0.5) and metrics["judge/pair_failed_share"] == 0
    assert "reward/strict_completion" not in metrics  # nobody asked
    record = RecordReader(config.run.directory / "record.jsonl")
    groups = list(record.groups())
    assert [len(group.pairs) for group in groups] == [6, 6]
    for group in groups:
        won = np.zeros(4)
        for a, b, verdict in group.pairs:
            won[a if verdict is WIN_A else b] += 1
        assert group.rewards == pytest.approx(won / 3) and sorted(won) == [0, 1, 2, 3]  # redness orders them
    with pytest.raises(InputError, match=r"train step 0: judge 'red-pairs/1' compared samples and scored none"):
        list(record.rebuild(aggregate.build("mean")))
    assert np.isnan(metrics["guard/reward_drop"])  # the mean share of won comparisons is always one half
    model = tmp_path / "model"
    trainer.policy.save_pretrained(model)
    card = write_card(config.run.directory, model).read_text()
    assert "ranks two pictures of a prompt" in card and "reward.aggregate |" not in card and "Mean reward" not in card


def test_win_rates_are_a_reward_for_grpo(tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, rollout__group_size=3, advantage__name="grpo", **CLIP)
    judge = RedPairs()
    with _trainer(config, judge) as trainer:
        start = _weights(trainer)
        metrics = trainer.step()
        assert not torch.equal(start, _weights(trainer))
    assert len(judge.calls) == 2 * 3 and metrics["judge/tie_share"] == 0
    assert metrics["reward/std"] == pytest.approx(np.std([0, 0.5, 1] * 2, ddof=1))


def test_the_plan_counts_comparisons(tmp_path: Path, tiny_model: Path) -> None:
    config = settings(
        tmp_path, tiny_model, rollout__group_size=4, advantage__options={"pairing": "round_robin"},
        **{**CLIP, "judge": {"compare": True, "price_per_call": 0.5}},
    )  # fmt: skip
    planned = outlook.of(config, parts.read_inputs(config, judge=RedPairs()))
    assert planned["judge_calls_per_step"] == planned["verdicts_in_first_step"] == 2 * 6
    assert planned["judge_cost_per_step"] == 6.0


@dataclass
class _FirstIsBetter(RedPairs):
    """Says that the picture shown first is better, in both orders."""

    both: bool = True

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        return [both_orders(WIN_A, WIN_A) if self.both else WIN_A for _ in requests]


@pytest.mark.parametrize("both", [True, False])
def test_position_bias_teaches_nothing_where_both_orders_are_asked(
    both: bool, tmp_path: Path, tiny_model: Path
) -> None:
    with _trainer(settings(tmp_path, tiny_model, **CLIP), _FirstIsBetter(both=both)) as trainer:
        start = _weights(trainer)
        metrics = trainer.step()
        assert torch.equal(start, _weights(trainer)) == both
    assert metrics["judge/inconsistent_share"] == float(both)


class _Fails(RedPairs):
    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        return [FAILED for _ in requests]


class _Breaks(RedPairs):
    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        raise ConnectionError("gone")


def test_failures_stop_the_run(tmp_path: Path, tiny_model: Path) -> None:
    for name, judge, message in (
        ("fails", _Fails(), r"step 0: the judge failed on 100% of 2 comparisons, more than"),
        ("breaks", _Breaks(), r"step 0: judging broke off on 4 of 4 images: ConnectionError: gone"),
    ):
        config = settings(tmp_path, tiny_model, run__name=name, **CLIP)
        with _trainer(config, judge) as trainer, pytest.raises(RunError, match=message):
            trainer.step()


def test_failed_pairs_below_the_limit_are_masked(tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, judge__max_failure_share=1.0, **CLIP)
    with _trainer(config, _Fails()) as trainer:
        start = _weights(trainer)
        metrics = trainer.step()
        assert torch.equal(start, _weights(trainer))
    assert metrics["judge/fail_rate"] == 1 and metrics["reward/missing_share"] == 1


def test_rewards_by_hand_and_the_control_experiment() -> None:
    said = {0: ((1, WIN_A), (2, TIE)), 1: ((2, PairVerdict.INCONSISTENT), (3, FAILED)), 2: (), 3: ()}
    rows = [Judged(0, sample, f"s{sample}", "h", compared=pairs) for sample, pairs in said.items()]
    (group,) = compared_groups(rows, ["p"], 7)
    # 0: a win and a tie; 1: a loss and a disagreement; 2: two draws; 3: nothing is known
    assert group.rewards == pytest.approx([0.75, 0.25, 0.5, np.nan], nan_ok=True) and group.key == "7/0/p"
    (mixed,) = compared_groups(rows, ["p"], 7, permute=(1, 7))
    assert mixed.rewards is not None and sorted(mixed.rewards[~np.isnan(mixed.rewards)]) == [0.25, 0.5, 0.75]
    assert mixed.pairs != group.pairs


@pytest.mark.parametrize("late", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(late: bool, tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, run__steps=4, rollout__late=late, **CLIP)
    states = []
    for name, stops in (("whole", (4,)), ("halves", (2, 4))):
        for stop in stops:
            again = {"resume": "auto"} if stop != stops[0] else {}
            tree = config.model_dump()
            tree["run"] |= {"name": name, **again}
            with _trainer(TrainConfig.model_validate(tree), RedPairs()) as trainer:
                trainer.run(stop - trainer.done)
                state = {k: v for k, v in trainer.snapshot().items() if k not in ("metrics_position", "rng")}
        states.append(pack(state))
    assert states[0][1] == states[1][1]
    assert all(torch.equal(states[0][0][key], states[1][0][key]) for key in states[0][0])


def test_every_rank_has_whole_groups_of_every_update() -> None:
    # 5 prompts, 2 updates: {0, 2, 4} and {1, 3}; dealt in turn to 2 ranks
    a, b = split_rows(5, 2, 2, "whole", updates=2)
    assert a.prompt_rows[a.real].tolist() == [0, 0, 3, 3, 4, 4] and b.prompt_rows[b.real].tolist() == [1, 1, 2, 2]
    assert a.samples[a.real].tolist() == [0, 1] * 3


@pytest.mark.slow
def test_the_tiny_vlm_ranks_what_the_tiny_generator_draws(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "configs" / "shapes" / "vlm_pairs.yaml"
    changes = ["run.steps=1", f"run.output_dir={tmp_path}", "data.prompts_per_step=3", "rollout.group_size=4"]
    config = load_config(TrainConfig, recipe, [*changes, "optim.batch_size=12", "eval.every=0", "eval.limit=1"])
    with Trainer(config) as trainer:
        start = _weights(trainer)
        metrics = trainer.step()
        assert metrics["judge/fail_rate"] == 0 and metrics["judge/tie_share"] < 1
        assert not torch.equal(start, _weights(trainer))
    groups = list(RecordReader(config.run.directory / "record.jsonl").groups())
    assert [len(group.pairs) for group in groups] == [2, 2, 2]
    assert groups[0].judge_id.startswith("vlm/1:") and ":joint_rank:" in groups[0].judge_id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval__judge": {"compare": True}}, r"eval\.judge\.compare=true: an evaluation scores each picture alone"),
        ({"judge__compare": False, "advantage__options": {"source": "pairs"}}, "only judge.compare=true gives"),
        ({"advantage__options": {"source": "table"}}, "source=table with judge.compare=true: there are no scores"),
        ({"advantage__options": {"margin": 0.1}}, r"options\.margin acts on scores"),
        ({"rollout__group_size": 1, "advantage__name": "grpo"}, "group_size=1"),
        ({"run__processes": 3}, r"run\.processes=3, but a step has 2 prompts .* stay on one rank"),
        ({"guards": {"reward_drop": {"action": "stop"}}}, r"guards\.reward_drop is set but acts only with judge\.comp"),
        ({"rollout__oversample": 4}, r"rollout\.oversample chooses by scores"),
        ({"filter__use": {"saturated": {}}}, r"filter\.use\.saturated looks at scores"),
        ({"reward__aggregate": "weighted"}, r"reward\.aggregate is set but acts only with judge\.compare=false"),
        ({"eval__every": 1, "eval__prompts": "x", "eval__allow_same_judge": True}, "scores no picture alone; name one"),
    ],
)  # fmt: skip
def test_settings_that_contradict_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, tiny_model: Path
) -> None:
    with pytest.raises((InputError, ValidationError), match=message):
        settings(tmp_path, tiny_model, **{**CLIP, **changes})


@pytest.mark.parametrize(
    ("judge", "changes", "message"),
    [
        (RedJudge(), {}, r"judge\.compare=true, but judge 'red/1' compares no pairs"),
        (
            judges.build("local", mode="joint_rank", read="json"),
            {"judge__compare": False},
            r"judge: judge 'vlm/1.*joint_rank.* ranks two candidates; call compare \(in training judge\.compare=true\)",
        ),
        (
            judges.build("local"), {"judge__compare": False},
            r"judge: criterion 'object_circle' asks for verifier 'rule:shapes', and this judge is 'vlm'",
        ),
    ],
)  # fmt: skip
def test_a_judge_that_cannot_is_refused_before_weights_load(
    judge: Any, changes: dict[str, Any], message: str, tmp_path: Path, tiny_model: Path
) -> None:
    with pytest.raises(InputError, match=message):
        parts.read_inputs(settings(tmp_path, tiny_model, **{**CLIP, **changes}), judge=judge)
