"""Numbers of the method pages that these modules must reproduce, printed with 4 digits: atol 1e-4."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mmrubric import (
    Criterion,
    Group,
    InputError,
    PairVerdict,
    Rubric,
    ScoreTable,
    advantage,
    aggregate,
    preference,
)

NAN = float("nan")


def table(met: Any, weights: Any, categories: Any = None) -> ScoreTable:
    criteria = [
        Criterion(id=f"c{k}", text=f"text {k}", weight=w, category="x" if categories is None else categories[k])
        for k, w in enumerate(weights)
    ]
    return ScoreTable(Rubric(prompt="p", criteria=criteria), met)


def grpo(rewards: Any, **options: Any) -> np.ndarray:
    return advantage.build("grpo", eps=0, **options)([rewards])[0]


# methods/README.md


def test_rule_9_rpo_bridge() -> None:
    t = table([[1, 0, NAN], [0, 1, 1]], weights=[2, 1, 1])
    # S = 2/3 and 1/3 on the first two criteria.
    assert preference.compare(t, 0, 1) == PairVerdict.WIN_A
    assert preference.compare(t, 0, 1, margin=0.3333) == PairVerdict.WIN_A
    assert preference.compare(t, 0, 1, margin=0.3334) == PairVerdict.TIE


def test_rule_9_margins_below_one_criterion_are_all_the_same() -> None:
    # M = 4 equal binary criteria: every margin in [0, 1/4) means "differs by one criterion".
    t = table([[1, 1, 0, 0], [1, 0, 0, 0]], weights=[1] * 4)
    assert {preference.compare(t, 0, 1, margin=m) for m in (0.0, 1e-6, 0.1, 0.2499)} == {PairVerdict.WIN_A}
    assert preference.compare(t, 0, 1, margin=0.25) == PairVerdict.TIE


def test_identity_a_a_criterion_constant_in_the_group_adds_nothing() -> None:
    rng = np.random.default_rng(0)
    met = rng.random((6, 4))
    met[:, 3] = 0.7
    weights = np.array([1.0, 2.0, 0.5, 50.0])
    # r = sum w_k r_k, A_agg = sum_k (w_k std_k / std_agg) A_k, where the constant column has std 0.
    total = met @ weights
    parts = np.stack([grpo(met[:, k]) for k in range(4)])
    shares = weights * met.std(axis=0, ddof=1) / total.std(ddof=1)
    np.testing.assert_allclose(grpo(total), shares @ parts, atol=1e-12)
    np.testing.assert_allclose(grpo(total), grpo(met[:, :3] @ weights[:3]), atol=1e-12)


@pytest.mark.parametrize(
    ("p", "size", "expected"),
    [(0.9, 4, 0.656), (0.9, 8, 0.430), (0.7, 4, 0.248), (0.7, 8, 0.058), (0.5, 4, 0.125), (0.5, 8, 0.008)],
)
def test_identity_b_probability_of_a_group_without_signal(p: float, size: int, expected: float) -> None:
    groups = [np.array(bits, dtype=np.float64) for bits in product([0, 1], repeat=size)]
    outs = advantage.build("grpo").compute(groups)
    chance = sum(
        p ** group.sum() * (1 - p) ** (size - group.sum()) for group, out in zip(groups, outs, strict=True) if out.tied
    )
    assert chance == pytest.approx(p**size + (1 - p) ** size) == pytest.approx(expected, abs=5e-4)


# methods/arr_rpo.md


def test_rpo_constants() -> None:
    group = Group(pairs=((0, 1, PairVerdict.WIN_A),))
    out = advantage.build("rpo")([group])[0]
    assert tuple(out) == (1.0, -0.1)
    # At ratio 1 the clipped loss is -mean(A).
    assert -out.mean() == -0.45
    assert tuple(advantage.build("rpo", centered=True)([group])[0]) == (0.55, -0.55)
    assert preference.advantages(PairVerdict.WIN_A) == (1.0, -0.1)


def test_list_map_of_four() -> None:
    np.testing.assert_allclose(preference.list_map([1, 2, 3, 4])[0], [1, 0.6333, 0.2667, -0.1], atol=1e-4)


# methods/rubricrl.md


def test_rubricrl_mean_and_advantages() -> None:
    np.testing.assert_allclose(aggregate.build("mean")(table([[1, 1, 0, 1, 0]], [1] * 5)), [0.6])
    np.testing.assert_allclose(grpo([1, 0.8, 0.8, 0.4]), [0.9934, 0.1987, 0.1987, -1.3908], atol=1e-4)


def test_rubricrl_selected_and_all_advantages() -> None:
    rewards = np.array([0.6, 1, 0.2, 0.8, 0.8, 0.4, 0, 1])
    keep = [1, 7, 6, 3]
    np.testing.assert_allclose(grpo(rewards[keep]), [0.6301, 0.6301, -1.4703, 0.2100], atol=1e-4)
    np.testing.assert_allclose(grpo(rewards)[keep], [1.0801, 1.0801, -1.6202, 0.5401], atol=1e-4)


def test_rubricrl_implicit_weights_are_shares_of_criteria() -> None:
    # 3 object + 1 OCR + 1 realism: dropping one dimension costs .6, .2, .2.
    met = [[0, 0, 0, 1, 1], [1, 1, 1, 0, 1], [1, 1, 1, 1, 0]]
    np.testing.assert_allclose(1 - aggregate.build("mean")(table(met, [1] * 5)), [0.6, 0.2, 0.2])


# methods/atlas.md


ATLAS_W = [10, 10, 9, 9, 8, 7, 8, 8, 6, 7, 5, 6]
ATLAS_C = ["TF"] * 5 + ["TA"] * 3 + ["TG"] * 2 + ["PA"] * 2
ATLAS_D = [1, 0.5, 1, 1, 0, 1, 1, 0, 0.5, 0.5, 0, 1]


def atlas(weights: Any = ATLAS_W, met: Any = ATLAS_D, categories: Any = ATLAS_C, **options: Any) -> float:
    options.setdefault("alpha", "atlas")
    return float(aggregate.build("category", **options)(table([met], weights, categories))[0])


def test_atlas_reward() -> None:
    assert atlas() == pytest.approx(0.631818, abs=1e-6)
    assert atlas(alpha={"TF": 0.4, "TA": 0.25, "TG": 0.2, "PA": 0.15}) == atlas()
    for category, expected in [("TF", 0.7174), ("TA", 0.6522), ("TG", 0.5), ("PA", 0.5455)]:
        alpha = {name: float(name == category) for name in ("TF", "TA", "TG", "PA")}
        assert atlas(alpha=alpha) == pytest.approx(expected, abs=1e-4)
    # Without alpha all categories weigh the same.
    assert atlas(alpha=None) == pytest.approx((0.717391 + 0.652174 + 0.5 + 0.545455) / 4, abs=1e-6)


def test_atlas_invariances() -> None:
    scaled = [3 * w if c == "TA" else w for w, c in zip(ATLAS_W, ATLAS_C, strict=True)]
    assert atlas(scaled) == pytest.approx(atlas(), abs=1e-12)
    twice = [k for k in range(12) for _ in range(2 if ATLAS_C[k] == "TF" else 1)]
    once = [*range(12), 0]
    doubled = [[values[k] for k in twice] for values in (ATLAS_W, ATLAS_D, ATLAS_C)]
    one_more = [[values[k] for k in once] for values in (ATLAS_W, ATLAS_D, ATLAS_C)]
    assert atlas(*doubled) == pytest.approx(atlas(), abs=1e-12)
    assert atlas(*one_more) != pytest.approx(atlas(), abs=1e-6)


def test_atlas_alias_and_list_length() -> None:
    long_names = ["Task Fulfillment and Quality" if c == "TF" else c for c in ATLAS_C]
    assert atlas(categories=long_names) == atlas()
    for met in (ATLAS_D[:11], [*ATLAS_D, 1]):
        with pytest.raises(InputError, match="expected \\[samples, 12\\]"):
            table([met], ATLAS_W, ATLAS_C)


# methods/pow3r.md (static rewards) and methods/papo.md (group-decoupled sum)


def test_pow3r_static_rewards() -> None:
    met = [[1, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 1]]
    t = table(met, [2, 1, 1, 3], ["a", "a", "a", "b"])
    np.testing.assert_allclose(aggregate.build("category")(t), [0.875, 0.5, 0.75, 0.875])
    np.testing.assert_allclose(aggregate.build("weighted")(t), [0.857143, 0.571429, 0.714286, 0.857143], atol=1e-6)


def test_papo_outcome_and_quality_are_standardised_apart() -> None:
    # The wrong response has no quality: NaN, neutral in the sum.
    rewards = np.array([[1, 1], [1, 0.5], [1, 1], [0, NAN]])
    np.testing.assert_allclose(grpo(rewards[:, 0]), [0.5, 0.5, 0.5, -1.5])
    np.testing.assert_allclose(grpo(rewards, combine="normalize_then_sum"), [1.077, -0.655, 1.077, -1.5], atol=1e-3)


# field/trainers.md 1.16 and field/judging.md section 2


@pytest.mark.parametrize(("p", "size", "expected"), [(0.9, 16, 0.19), (0.9, 24, 0.08), (0.8, 8, 0.17)])
def test_tied_share_of_larger_groups(p: float, size: int, expected: float) -> None:
    # Two of the 2^G groups are tied, by the same rule as above.
    tied = advantage.build("grpo").compute([np.ones(size), np.zeros(size), np.eye(size)[0]])
    assert [out.tied for out in tied] == [True, True, False]
    assert p**size + (1 - p) ** size == pytest.approx(expected, abs=6e-3)


def test_points_and_weighted_of_the_rubric_library() -> None:
    t = table([[1, 1]], [3, -2])
    assert aggregate.build("points")(t)[0] == pytest.approx(0.333, abs=1e-3)
    negative = table([[0, 0], [1, 0], [1, 1]], [-1, -3])
    np.testing.assert_allclose(aggregate.build("weighted")(negative), [1, 0.75, 0])
