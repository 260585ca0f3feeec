"""Metrics: weighted, NaN-aware, the same over ranks; limits that warn or end the run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import preference
from mmrubric.errors import InputError, RunError
from mmrubric.group import PairVerdict
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import ScoreTable
from pipelines.policy import StepOut
from pipelines.samplers import Sampler
from trainers import losses
from trainers.losses import Batch
from trainers.metrics import (
    Invariants,
    Limit,
    Means,
    add_replay,
    default_limits,
    describe_sampler,
    group_metrics,
    pair_metrics,
    table_metrics,
)

NAN = math.nan


def test_mean_is_weighted_and_masked_rows_are_outside():
    # (1 * 1 + 2 * 3) / 4 = 1.75; the row of weight 0 holds NaN
    means = Means()
    means.add("x", torch.tensor([1.0, 2.0, NAN], requires_grad=True), torch.tensor([1.0, 3.0, 0.0]))
    means.add_max("m", [1.0, 9.0], [1.0, 0.0])
    means.add("low", [3.0, 2.0], reduction="min")
    means.add("n", [2.0, 2.0], reduction="sum")
    assert means.result() == {"low": 2.0, "m": 1.0, "n": 4.0, "x": 1.75}


def test_unknown_is_skipped_or_kept_and_never_zero():
    means = Means()
    means.add("reward", [1.0, NAN, 0.5], unknown="skip")  # .75, not .5
    means.add("nothing", [NAN, NAN], unknown="skip")
    means.add("loss", [1.0, NAN])
    assert means.get("reward") == 0.75 and means.get("nothing") is None and means.get("absent") is None
    result = means.result()
    assert math.isnan(result["nothing"]) and math.isnan(result["loss"])


@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([0.0, 1.0, 0.5])), max_size=12), st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_ranks_with_unequal_counts_join_by_counts(rows, cut):
    def log(part):
        means = Means()
        for name, reduction in (("mean", "mean"), ("max", "max"), ("min", "min"), ("sum", "sum")):
            means.add(name, [v for v, _ in part], [w for _, w in part], reduction)
        return means

    one = log(rows).result()
    two = Means.merged([log(rows[:cut]).cells(), log(rows[cut:]).cells()]).result()
    for name in one:
        assert two[name] == pytest.approx(one[name], abs=1e-9, nan_ok=True)


def test_tf37_uneven_ranks_reduce_to_the_trained_mean():
    # rank 0 trains rewards (1, 1, 1), rank 1 trains (0): mean .75. A mean of rank means would log .5.
    ranks = []
    for values in ([1.0, 1.0, 1.0], [0.0]):
        means = Means()
        means.add("reward/mean", values)
        ranks.append(means.cells())
    assert Means.merged(ranks).result() == {"reward/mean": 0.75}


def test_kept_nan_survives_the_join_of_extremes():
    a, b = Means(), Means()
    a.add_max("m", [NAN])
    b.add_max("m", [1.0])
    assert math.isnan(Means.merged([a.cells(), b.cells()]).result()["m"])


def test_bad_use_is_an_error():
    means = Means()
    means.add("x", 1.0)
    for bad in (
        lambda: means.add_max("x", 1.0),
        lambda: means.add("y", [1, 2], [1, 1, 1]),
        lambda: means.add("y", 1, -1),
    ):
        with pytest.raises(InputError, match="metric"):
            bad()


def test_replay_metrics_by_hand():
    # differences (0, .1, -.3, 5 masked): mean |d| .4 / 3, max .3; step 2 holds .1 and .3
    means = Means()
    add_replay(means, torch.tensor([1.0, 1.1, 0.7, 6.0]), torch.ones(4), torch.tensor([0, 2, 2, 0]), [1, 1, 1, 0])
    result = means.result()
    assert result["replay/logprob_absdiff_mean"] == pytest.approx(0.4 / 3, rel=1e-6)
    assert result["replay/logprob_absdiff_max"] == pytest.approx(0.3, rel=1e-6)
    assert result["replay/ratio_max"] == pytest.approx(math.exp(0.1), rel=1e-6)
    assert result["replay/ratio_mean"] == pytest.approx((1 + math.exp(0.1) + math.exp(-0.3)) / 3, rel=1e-6)
    assert result["replay/logprob_absdiff_mean/step_02"] == pytest.approx(0.2, rel=1e-6)
    assert result["replay/logprob_absdiff_max/step_00"] == 0


def test_tf05_replay_mismatch_is_reported_and_breaks_the_limit():
    means = Means()
    add_replay(means, [0.0, 5e-3], [0.0, 0.0], [0, 1])
    (mean, largest) = Invariants(default_limits()).check(0, means.result())
    assert mean.name == "replay/logprob_absdiff_mean" and largest.value == pytest.approx(5e-3)


def test_group_metrics_by_hand():
    # three groups: tied, one unknown of three, nothing known. Known pairs: 3 tied + 1 apart -> tie share .75
    result = group_metrics([[0.5, 0.5, 0.5], [1.0, NAN, 0.0], [NAN, NAN]], ["a", "b", "b"])
    assert result["group/size_min"] == 2 and result["group/size_max"] == 3 and result["group/unique_prompts"] == 2
    assert result["group/zero_std_share"] == pytest.approx(2 / 3)
    assert result["group/tie_share"] == pytest.approx(0.75)
    assert result["reward/missing_share"] == pytest.approx(3 / 8)
    assert result["reward/mean"] == pytest.approx(2.5 / 5)
    with pytest.raises(InputError, match="2 prompt ids"):
        group_metrics([[1.0]], ["a", "b"])
    assert all(math.isnan(v) for k, v in group_metrics([], []).items() if k != "group/unique_prompts")


def test_table_metrics_name_criteria_and_leave_unknown_out():
    rubric = Rubric(prompt="p", criteria=[
        Criterion(id="cat", text="a cat", category="object"),
        Criterion(id="dog", text="a dog", category="object"),
        Criterion(id="blur", text="it is blurred", category="realism", weight=-1.0),
    ])  # fmt: skip
    table = ScoreTable(rubric, [[1, 0, 0], [1, NAN, 1]])
    # object: (1 + 0 + 1) / 3; realism flips: (1 + 0) / 2; pass rates 2/3 and 1/2; nobody completes
    result = table_metrics([table])
    assert result["reward/object_mean"] == pytest.approx(2 / 3) and result["reward/realism_mean"] == 0.5
    assert result["reward/mean_pass_rate"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert result["reward/strict_completion"] == 0 and result["reward/coverage"] == pytest.approx((1 + 2 / 3) / 2)
    assert table_metrics([table], by="id")["reward/dog_mean"] == 0


def test_a_judge_that_always_says_first_is_inconsistent_and_teaches_nothing():
    # Image 1 wins in both orders: INCONSISTENT, advantages 0, zero gradient. One order alone would teach.
    verdict = preference.both_orders(PairVerdict.WIN_A, PairVerdict.WIN_A)
    assert pair_metrics([verdict] * 3)["judge/inconsistent_share"] == 1
    for given_verdict, moves in ((verdict, False), (PairVerdict.WIN_A, True)):
        log_prob = torch.zeros(2, requires_grad=True)
        advantage = torch.tensor(preference.advantages(given_verdict))
        out = losses.build("clip", clip=0.2)(
            StepOut(log_prob=log_prob), Batch(advantage=advantage, old_log_prob=torch.zeros(2))
        )
        (gradient,) = torch.autograd.grad(out.loss.sum(), log_prob)
        assert bool((gradient != 0).any()) is moves


def test_pair_metrics_by_hand():
    verdicts = [PairVerdict.WIN_A, PairVerdict.TIE, PairVerdict.INCONSISTENT, PairVerdict.FAILED]
    result = pair_metrics(verdicts)
    assert result["judge/inconsistent_share"] == result["judge/tie_share"] == pytest.approx(1 / 3)
    assert result["judge/pair_failed_share"] == 0.25
    assert math.isnan(pair_metrics([])["judge/inconsistent_share"])


def test_invariants_warn_once_and_strict_ends_the_run(caplog):
    limits = default_limits(group_size=4, unique_prompts=2, old_moves=True)
    good = {
        "group/size_min": 4.0,
        "group/size_max": 4.0,
        "group/unique_prompts": 2.0,
        "dist/param_checksum_spread": 0.0,
    }
    assert Invariants(limits, strict=True).check(0, good | {"reward/mean": NAN, "group/tie_share": NAN}) == []
    bad = good | {"group/size_min": 3.0, "dist/param_checksum_spread": 1e-9}
    invariants = Invariants(limits)
    assert [v.name for v in invariants.check(0, bad)] == ["dist/param_checksum_spread", "group/size_min"]
    invariants.check(1, bad)
    assert len(caplog.records) == 2 and "ranks hold different weights" in caplog.text
    with pytest.raises(RunError, match=r"step 5: .*group/size_min = 3, limit min 4, max 4.*strict: true"):
        Invariants(limits, strict=True).check(5, bad)


def test_old_deviate_of_zero_breaks_only_after_the_first_update():
    invariants = Invariants(default_limits(old_moves=True))
    still = {"nft/old_deviate": 0.0}
    assert [len(invariants.check(step, still)) for step in range(4)] == [0, 0, 1, 1]
    assert not Invariants(default_limits()).check(9, still)


def test_half_precision_allows_more():
    metrics = {"replay/logprob_absdiff_mean": 5e-6}
    assert len(Invariants(default_limits()).check(0, metrics)) == 1
    assert not Invariants(default_limits(precision="bf16")).check(0, metrics)
    assert Limit(min=1, max=2).broken(np.nextafter(2, 3)) and not Limit(above=0).broken(1e-300)


def test_sampler_text_names_steps_and_guidance():
    assert describe_sampler(Sampler(steps=8, guidance=4.5)) == "ode, 8 steps, guidance 4.5, shift 1"
    assert describe_sampler(Sampler(noise="sde", level=0.7, shift=3)) == "sde 0.7, 10 steps, guidance 1, shift 3"
    assert describe_sampler(Sampler(solver="dpmsolver++")) == "ode, dpmsolver++, 10 steps, guidance 1, shift 1"
