"""Advantages: the normaliser, GRPO's scales and sums, and the failures they guard against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import Criterion, Group, InputError, PairVerdict, Rubric, ScoreTable, advantage
from mmrubric.advantage import masked_standardize

NAN = float("nan")
WIN_A, WIN_B = PairVerdict.WIN_A, PairVerdict.WIN_B


def grpo(groups: Any, **options: Any) -> list[np.ndarray]:
    return advantage.build("grpo", eps=0, **options)(groups)


def table(met: Any) -> ScoreTable:
    criteria = [Criterion(id=f"c{k}", text=f"text {k}") for k in range(len(met[0]))]
    return ScoreTable(Rubric(prompt="p", criteria=criteria), met)


def test_names_tags_and_errors() -> None:
    assert {"grpo", "rpo"} <= set(advantage.names())
    assert advantage.tags("rpo").construction == "contrastive_pairs"
    with pytest.raises(InputError, match=r"unknown advantage 'ppo'; known: .*grpo.*rpo"):
        advantage.build("ppo")
    with pytest.raises(InputError, match="unknown option epsilon; known: scale, ddof, eps"):
        advantage.build("grpo", epsilon=1e-4)


# The normaliser


def test_masked_standardize_by_hand() -> None:
    # [1, 3] : mean 2, sample std sqrt(2), population std 1.
    np.testing.assert_allclose(masked_standardize([1, 3], eps=0), [-math.sqrt(0.5), math.sqrt(0.5)])
    np.testing.assert_allclose(masked_standardize([1, 3], ddof=0, eps=0), [-1, 1])
    np.testing.assert_allclose(masked_standardize([1, 3], ddof=0, eps=1), [-0.5, 0.5])
    # Masked and unknown values change nothing and get 0.
    np.testing.assert_allclose(masked_standardize([1, 9, 3, NAN], [1, 0, 1, 1], ddof=0, eps=0), [-1, 0, 1, 0])


def test_masked_standardize_over_axes() -> None:
    x = [[1.0, 3.0], [5.0, 5.0], [NAN, 2.0]]
    np.testing.assert_allclose(masked_standardize(x, axes=1, ddof=0, eps=0), [[-1, 1], [0, 0], [0, 0]])
    np.testing.assert_allclose(masked_standardize(x, axes=0, ddof=0, eps=0)[:, 0], [-1, 1, 0])
    whole = masked_standardize(x, axes=(0, 1), eps=0)
    # 1, 3, 5, 5, 2: mean 3.2.
    assert whole[2, 0] == 0 and whole.sum() == pytest.approx(0) and whole[0, 1] < 0 < whole[1, 0]


def test_fewer_than_two_known_values_carry_no_signal() -> None:
    assert not masked_standardize([7.0, NAN]).any() and not masked_standardize([NAN, NAN]).any()


@pytest.mark.parametrize("options", [{"ddof": 2}, {"eps": -1.0}, {"tol": NAN}])
def test_masked_standardize_refuses_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        masked_standardize([1, 2], **options)


# GRPO and the known failures of field/trainers.md, section 7


def test_tf23_scale_options_are_not_swapped() -> None:
    groups = [[0.0, 2.0], [0.0, 4.0]]
    # Group: deviations +-1 and +-2 over their own population stds 1 and 2.
    np.testing.assert_allclose(grpo(groups, scale="group", ddof=0), [[-1, 1], [-1, 1]])
    # Batch: 0, 2, 0, 4 has mean 1.5 and population variance (2.25 + .25 + 2.25 + 6.25) / 4 = 2.75.
    std = math.sqrt(2.75)
    np.testing.assert_allclose(grpo(groups, scale="batch", ddof=0), [[-1 / std, 1 / std], [-2 / std, 2 / std]])
    # None: the group mean is subtracted and nothing divides.
    np.testing.assert_allclose(grpo(groups, scale="none"), [[-1, 1], [-2, 2]])
    with pytest.raises(InputError, match="scale: unknown value 'global'; known: batch, group, none"):
        grpo(groups, scale="global")


def test_tf31_ties_are_exactly_zero() -> None:
    # Twelve float32 rewards of .3 give false advantages up to .9 when a tiny eps is all that guards.
    for scale in ("group", "batch", "none"):
        out = grpo([np.full(12, 0.3, dtype=np.float32), [0.1, 0.9]], scale=scale)
        assert (out[0] == 0).all() and out[1].any()
    nearly = 0.3 + 1e-8 * np.arange(12)
    assert (grpo([nearly])[0] == 0).all()
    assert advantage.build("grpo").compute([np.full(12, 0.3)])[0].tied


def test_tf32_groups_of_one_are_refused() -> None:
    for name in ("grpo", "rpo"):
        with pytest.raises(InputError, match="at least 2 samples, got 1"):
            advantage.build(name)([[0.7]])
        with pytest.raises(InputError, match="at least 2"):
            advantage.build(name).check_size(1)


def test_tf34_group_std_is_the_default_and_batch_an_option() -> None:
    groups = [[0.0, 1.0], [0.0, 0.5]]
    default = advantage.build("grpo")(groups)
    np.testing.assert_array_equal(default, advantage.build("grpo", scale="group", ddof=1, eps=1e-6)(groups))
    # Sample std of [0, 1] is sqrt(.5): +-.5 / .7071; the second group is the first at half the unit.
    np.testing.assert_allclose(default, [[-math.sqrt(0.5), math.sqrt(0.5)]] * 2, atol=1e-5)
    # Batch: 0, 1, 0, .5 has mean .375, squares .140625 * 2 + .390625 + .015625 = .6875, over 3.
    std = math.sqrt(0.6875 / 3)
    np.testing.assert_allclose(grpo(groups, scale="batch"), [[-0.5 / std, 0.5 / std], [-0.25 / std, 0.25 / std]])


def test_tf36_rows_nobody_scored_are_masked_not_zero() -> None:
    out = advantage.build("grpo", eps=0).compute([[1.0, NAN, 3.0], [None, None, None]])
    # Mean 2 over the two known rewards; a 0 in place of the NaN would give mean 4/3.
    np.testing.assert_allclose(out[0].advantage, [-math.sqrt(0.5), 0, math.sqrt(0.5)])
    np.testing.assert_array_equal(out[0].weight, [1, 0, 1])
    assert not out[1].advantage.any() and not out[1].weight.any() and not out[1].tied
    # A row of None in the batch std as well: the std of 1, 3, 0, 4 alone.
    std = np.std([1, 3, 0, 4], ddof=1)
    batch = advantage.build("grpo", eps=0, scale="batch")([[1.0, NAN, 3.0], [0.0, 4.0, NAN]])
    np.testing.assert_allclose(batch, [[-1 / std, 0, 1 / std], [-2 / std, 2 / std, 0]])


def test_tf39_a_hard_small_reward_is_heard_beside_an_easy_big_one() -> None:
    # The easy reward spans 100, the hard one 0.1, and they disagree about samples 1 and 2.
    rewards = np.array([[0.0, 0.1], [0.0, 0.0], [100.0, 0.0], [100.0, 0.1]])
    summed = grpo([rewards])[0]
    apart = grpo([rewards], combine="normalize_then_sum")[0]
    # Sum: the easy reward decides alone, samples 0 and 1 differ by a thousandth of the spread.
    assert abs(summed[0] - summed[1]) < 0.01
    # Apart: z-scores +-.8660 each (deviation .5 of the span, sample std 1/sqrt(3)); they add to 0, -1.732, 0,
    # 1.732.
    np.testing.assert_allclose(apart, [0, -math.sqrt(3), 0, math.sqrt(3)], atol=1e-12)


def test_normalize_then_sum_with_weights_and_batch_scale() -> None:
    a, b = np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[5.0, 5.0], [5.0, 7.0]])
    weighted = grpo([a, b], combine="normalize_then_sum", weights=[2, -1], ddof=0)
    # z-scores +-1; a: 2*-1 - 1 = -3, 2*1 + 1 = 3; b: the first reward is tied, 0 +- 1.
    np.testing.assert_allclose(weighted, [[-3, 3], [1, -1]])
    batch = grpo([a, b], combine="normalize_then_sum", weights=[2, -1], ddof=0, scale="batch")
    std = math.sqrt((9 + 9 + 1 + 1) / 4)
    np.testing.assert_allclose(batch, [[-3 / std, 3 / std], [1 / std, -1 / std]])
    with pytest.raises(InputError, match="scale none forbids"):
        advantage.build("grpo", combine="normalize_then_sum", scale="none")


def test_a_missing_reward_is_neutral_in_both_sums() -> None:
    rewards = np.array([[1.0, 10.0], [0.0, NAN], [0.5, 30.0], [NAN, NAN]])
    out = advantage.build("grpo", scale="none").compute([rewards])[0]
    # Sample 1 lacks the second reward and counts its mean 20: sums 11, 20, 30.5, mean 20.5; sample 3 has
    # nothing.
    np.testing.assert_allclose(out.advantage, [-9.5, -0.5, 10, 0])
    np.testing.assert_array_equal(out.weight, [1, 1, 1, 0])
    apart = grpo([rewards], combine="normalize_then_sum", ddof=0)[0]
    first = masked_standardize([1, 0, 0.5], ddof=0, eps=0)
    np.testing.assert_allclose(apart, [first[0] - 1, first[1], first[2] + 1, 0])


def graded(categories: str, met: Any, **options: Any) -> ScoreTable:
    """A table whose criteria are of the categories of these letters; the first one is a gate with `hard=True`."""
    hard = options.pop("hard", False)
    criteria = [
        Criterion(id=f"c{k}", text=f"text {k}", category=name, hard=hard and k == 0)
        for k, name in enumerate(categories)
    ]
    return ScoreTable(Rubric(prompt="p", criteria=criteria), met)


def test_each_category_has_an_advantage_of_its_own() -> None:
    by_category = advantage.build("grpo_by_category", eps=0, ddof=0)
    # Category a (two criteria): means 1, 0, .5: +-.5 of the mean .5, std sqrt(1/6): z = sqrt(1.5), -sqrt(1.5), 0.
    # Category b (one): .1, .2, .3: the same z, other order: -sqrt(1.5), 0, sqrt(1.5). A tenth of the spread is heard.
    group = Group(table=graded("aab", [[1, 1, 0.1], [0, 0, 0.2], [1, 0, 0.3]]))
    z = math.sqrt(1.5)
    np.testing.assert_allclose(by_category([group])[0], [0, -z, z], atol=1e-12)
    # The weighted sum: 2 z_a + z_b.
    heavy = advantage.build("grpo_by_category", eps=0, ddof=0, weights={"a": 2, "b": 1})
    np.testing.assert_allclose(heavy([group])[0], [z, -2 * z, z], atol=1e-12)
    # Another rubric beside it, with a category that the first one lacks and none of b: z of 0, 0, 1 in c alone.
    other = Group(table=graded("c", [[0], [0], [1]]))
    both = by_category([group, other])
    np.testing.assert_allclose(both[0], [0, -z, z], atol=1e-12)
    np.testing.assert_allclose(both[1], np.array([-1, -1, 2]) / math.sqrt(2), atol=1e-12)
    # One category is GRPO of its mean.
    np.testing.assert_allclose(both[1], grpo([[0, 0, 1]], ddof=0)[0], atol=1e-12)


def test_unknown_tied_and_gated_categories() -> None:
    by_category = advantage.build("grpo_by_category", eps=0, ddof=0, min_coverage=0)
    # a ties: 0. b is known of samples 0 and 1 only: +-1, and 0 for sample 2, which is scored by a. Nothing of sample 3.
    out = by_category.compute([Group(table=graded("ab", [[1, 1], [1, 0], [1, NAN], [NAN, NAN]]))])[0]
    np.testing.assert_allclose(out.advantage, [1, -1, 0, 0], atol=1e-12)
    np.testing.assert_array_equal(out.weight, [1, 1, 1, 0])
    # The gate of sample 1 failed: it has 0 in b as well, where it had 1. a: 1, 0; b: .5, 0: z = +-1 each.
    gated = Group(table=graded("ab", [[1, 0.5], [0, 1]], hard=True))
    np.testing.assert_allclose(by_category([gated])[0], [2, -2], atol=1e-12)
    free = advantage.build("grpo_by_category", eps=0, ddof=0, gates=False)
    np.testing.assert_allclose(free([gated])[0], [0, 0], atol=1e-12)


def test_weights_of_categories_are_checked() -> None:
    group = Group(table=graded("ab", [[1, 0], [0, 1]]))
    for options, message in (
        ({"weights": {"a": 1}}, "none for category b; known: a"),
        ({"weights": {"a": 0, "b": 0, "c": 1}}, "0 for every category of a rubric: a, b"),
        ({"weights": {"a": 0, "b": 0}}, "at least one category"),
        ({"weights": {"a": -1}}, "weights"),
        ({"scale": "none"}, "scale none forbids"),
        ({"min_coverage": 2}, "min_coverage"),
    ):
        with pytest.raises(InputError, match=message):
            advantage.build("grpo_by_category", **options)([group])
    with pytest.raises(InputError, match=r"grpo_by_category needs Group\.table"):
        advantage.build("grpo_by_category")([[0.0, 1.0]])
    with pytest.raises(InputError, match="at least 2 samples, got 1"):
        advantage.build("grpo_by_category").check_size(1)


def test_a_reward_of_weight_zero_takes_no_part() -> None:
    rewards = np.array([[1.0, NAN], [0.0, 5.0], [NAN, 9.0]])
    for combine in ("sum_then_normalize", "normalize_then_sum"):
        out = advantage.build("grpo", weights=[1, 0], combine=combine, eps=0).compute([rewards])[0]
        np.testing.assert_allclose(out.advantage, [math.sqrt(0.5), -math.sqrt(0.5), 0])
        np.testing.assert_array_equal(out.weight, [1, 1, 0])


def test_min_group_std_and_clamp() -> None:
    groups = [[0.50, 0.52], [0.0, 1.0]]
    for combine in ("sum_then_normalize", "normalize_then_sum"):
        out = grpo(groups, min_group_std=0.05, combine=combine)
        assert not out[0].any() and out[1].any()
    spike = [0.0] * 63 + [1.0]
    # The z-score of one outlier among n is (n - 1) / sqrt(n) = 63 / 8.
    assert grpo([spike])[0][-1] == pytest.approx(63 / 8)
    assert grpo([spike], clamp=5.0)[0][-1] == 5.0


def test_one_verdict_of_one_sample_has_the_published_std() -> None:
    # M = 12 binary criteria, G = 8: std = 1 / (M sqrt(G)) = .0295, so min_group_std must be 0 for means of
    # binaries.
    rewards = np.array([1.0] * 7 + [11 / 12])
    assert rewards.std(ddof=1) == pytest.approx(1 / (12 * math.sqrt(8)))
    assert grpo([rewards])[0].any() and not grpo([rewards], min_group_std=0.05)[0].any()


@pytest.mark.parametrize(
    "options",
    [
        {"combine": "sum"},
        {"clamp": 0.0},
        {"clamp": -1.0},
        {"weights": [0, 0]},
        {"weights": [NAN]},
        {"eps": NAN},
    ],
)
def test_bad_grpo_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        advantage.build("grpo", **options)


def test_bad_groups_are_refused() -> None:
    with pytest.raises(InputError, match=r"grpo needs Group\.rewards, which group 'p3' does not have"):
        grpo([Group(table=table([[1], [0]]), key="p3")])
    with pytest.raises(InputError, match="infinite"):
        grpo([[1.0, math.inf]])
    with pytest.raises(InputError, match="3 weights for 2 rewards"):
        grpo([np.zeros((2, 2))], weights=[1, 1, 1])
    with pytest.raises(InputError, match="agree on the number of samples"):
        Group(rewards=np.zeros(3), table=table([[1], [0]]))
    with pytest.raises(InputError, match=r"pair \(1, 0\) is given twice"):
        Group(rewards=np.zeros(2), pairs=((0, 1, WIN_A), (1, 0, WIN_B)))
    with pytest.raises(InputError, match="does not name two different samples"):
        Group(rewards=np.zeros(2), pairs=((0, 2, WIN_A),))


rewards_in_cents = st.lists(st.integers(-500, 500).map(lambda c: c / 100), min_size=2, max_size=8)
with_gaps = st.lists(st.one_of(st.just(NAN), st.integers(-500, 500).map(lambda c: c / 100)), min_size=2, max_size=8)
scales = st.sampled_from(["group", "batch", "none"])


@settings(max_examples=50, deadline=None)
@given(rewards_in_cents, scales)
def test_order_of_rewards_is_the_order_of_advantages(rewards: list[float], scale: str) -> None:
    out = advantage.build("grpo", scale=scale)([rewards])[0]
    for i in range(len(rewards)):
        for j in range(len(rewards)):
            if rewards[i] > rewards[j]:
                assert out[i] > out[j]
            elif rewards[i] == rewards[j]:
                assert out[i] == out[j]
    assert out.sum() == pytest.approx(0, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(with_gaps, st.floats(0.5, 50), st.floats(-50, 50))
def test_unit_and_offset_of_the_reward_do_not_matter(rewards: list[float], unit: float, offset: float) -> None:
    moved = np.array(rewards) * unit + offset
    np.testing.assert_allclose(grpo([moved])[0], grpo([rewards])[0], atol=1e-7)
    np.testing.assert_allclose(grpo([moved], scale="batch")[0], grpo([rewards], scale="batch")[0], atol=1e-7)


@settings(max_examples=50, deadline=None)
@given(with_gaps, scales, st.randoms(use_true_random=False))
def test_advantages_follow_their_samples(rewards: list[float], scale: str, random: Any) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)
    other = [3.0, 1.0]
    out = advantage.build("grpo", scale=scale)([rewards, other])
    moved = advantage.build("grpo", scale=scale)([other, np.array(rewards)[order]])
    np.testing.assert_allclose(moved[1], out[0][order], atol=1e-12)
    np.testing.assert_allclose(moved[0], out[1], atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(with_gaps, min_size=1, max_size=4), scales, st.floats(-1e6, 1e6))
def test_ties_are_zero_and_nan_is_no_prize(groups: list[list[float]], scale: str, value: float) -> None:
    tied = [NAN, value, value, value]
    results = advantage.build("grpo", scale=scale).compute([*groups, tied])
    assert (results[-1].advantage == 0).all()
    np.testing.assert_array_equal(results[-1].weight, [0, 1, 1, 1])
    for rewards, out in zip(groups, results, strict=False):
        unknown = np.isnan(rewards)
        assert (out.advantage[unknown] == 0).all() and (out.weight == ~unknown).all()
        assert np.isfinite(out.advantage).all() and out.advantage.dtype == np.float64


@settings(max_examples=50, deadline=None)
@given(with_gaps, st.sampled_from(["group", "batch"]))
def test_the_two_sums_agree_on_a_single_reward(rewards: list[float], scale: str) -> None:
    column = np.array(rewards)[:, None]
    one = grpo([rewards])[0]
    np.testing.assert_array_equal(grpo([column])[0], one)
    np.testing.assert_allclose(grpo([column], combine="normalize_then_sum")[0], one, atol=1e-12)
