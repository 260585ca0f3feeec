"""From scores to preferences, and from preferences to RPO's constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import Criterion, InputError, PairVerdict, Rubric, ScoreTable, preference

NAN = float("nan")
WIN_A, WIN_B, TIE, INCONSISTENT, FAILED = PairVerdict
WIN_RATE_CASES = [(WIN_A, WIN_B), (WIN_B, WIN_A), (TIE, TIE), (INCONSISTENT, INCONSISTENT), (FAILED, FAILED)]


def table(met: Any, weights: Any = None, hard: Any = (), parents: Any = None) -> ScoreTable:
    criteria = [
        Criterion(
            id=f"c{k}",
            text=f"text {k}",
            weight=1 if weights is None else weights[k],
            hard=k in hard,
            depends_on=() if parents is None else parents.get(k, ()),
        )
        for k in range(len(met[0]))
    ]
    return ScoreTable(Rubric(prompt="p", criteria=criteria), met)


def test_good_is_taken_as_passed_before_summing() -> None:
    # .51 and .99 both pass, .49 does not: token probabilities are never exact.
    t = table([[0.51, 0.99], [0.99, 0.51], [0.99, 0.49]])
    assert preference.compare(t, 0, 1) == TIE
    assert preference.compare(t, 0, 2) == WIN_A


def test_soft_comparison_needs_a_margin() -> None:
    t = table([[0.51, 0.99], [0.99, 0.49]])
    with pytest.raises(InputError, match="margin: give one when binarize is false"):
        preference.compare(t, 0, 1, binarize=False)
    # Means .75 and .74.
    assert preference.compare(t, 0, 1, binarize=False, margin=0.005) == WIN_A
    assert preference.compare(t, 0, 1, binarize=False, margin=0.05) == TIE
    assert preference.compare(t, 1, 0, binarize=False, margin=0.005) == WIN_B


def test_negative_criteria_count_when_absent() -> None:
    assert preference.compare(table([[1, 0], [1, 1]], weights=[1, -1]), 0, 1) == WIN_A


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([0, 1, 1], [1, 0, 0], WIN_B),  # failed on one side only decides outright
        ([0, 1, 1], [0, 0, 0], TIE),  # failed on both sides
        ([NAN, 1, 1], [1, 0, 0], FAILED),
        ([NAN, 1, 1], [0, 0, 0], FAILED),
        ([1, 1, 0], [1, 0, 0], WIN_A),  # both pass: the weights decide
    ],
)
def test_hard_criterion_decides(a: Any, b: Any, expected: PairVerdict) -> None:
    t = table([a, b], hard={0})
    assert preference.compare(t, 0, 1) == expected
    assert preference.compare(t, 1, 0) == expected.flipped()


def test_gates_can_be_switched_off() -> None:
    assert preference.compare(table([[0, 1, 1], [1, 0, 0]], hard={0}), 0, 1, gates=False) == WIN_A


def test_gates_come_before_coverage() -> None:
    assert preference.compare(table([[0, NAN, NAN], [1, NAN, NAN]], hard={0}), 0, 1) == WIN_B


def test_common_coverage_below_the_limit_is_failed() -> None:
    t = table([[1, 1, NAN, NAN], [NAN, 0, 0, 0], [0, 0, NAN, 0]])
    # Rows 0 and 1 share c1 only (1/4); rows 0 and 2 share c0 and c1 (2/4).
    assert preference.compare(t, 0, 1) == FAILED
    assert preference.compare(t, 0, 1, min_coverage=0.25) == WIN_A
    assert preference.compare(t, 0, 2) == WIN_A
    assert preference.compare(table([[1, NAN], [NAN, 1]]), 0, 1, min_coverage=0.0) == FAILED


def test_dependencies_come_first() -> None:
    t = table([[0, 1, 1], [1, 0, 0]], parents={1: ["c0"], 2: ["c0"]})
    assert preference.compare(t, 0, 1) == WIN_A
    assert preference.compare(t, 0, 1, dependencies="direct") == WIN_B


def test_samples_by_row_or_id() -> None:
    t = ScoreTable(table([[1], [0]]).rubric, [[1], [0]], ["good", "bad"])
    assert preference.compare(t, "good", "bad") == preference.compare(t, 0, 1) == WIN_A
    with pytest.raises(InputError, match="two different samples"):
        preference.compare(t, "good", 0)
    with pytest.raises(InputError, match="unknown sample 'best'"):
        preference.compare(t, "best", 0)


@pytest.mark.parametrize("options", [{"margin": -1.0}, {"margin": NAN}, {"min_coverage": 2.0}, {"dependencies": "x"}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        preference.compare(table([[1], [0]]), 0, 1, **options)


def test_tf33_always_first_judge_nets_to_nothing() -> None:
    # Always "first": the forward order says A, the swapped order says B's side, and the two disagree.
    verdict = preference.both_orders(WIN_A, WIN_A)
    assert verdict == INCONSISTENT and preference.advantages(verdict) == (0.0, 0.0)


def test_both_orders_agree_disagree_or_fail() -> None:
    assert preference.both_orders(WIN_A, WIN_B) == WIN_A
    assert preference.both_orders(WIN_B, WIN_A) == WIN_B
    assert preference.both_orders(TIE, TIE) == TIE
    assert preference.both_orders(WIN_A, TIE) == INCONSISTENT
    assert preference.both_orders(FAILED, WIN_A) == preference.both_orders(WIN_A, FAILED) == FAILED


def test_advantages_per_verdict() -> None:
    assert preference.advantages(WIN_A) == (1.0, -0.1)
    assert preference.advantages(WIN_B) == (-0.1, 1.0)
    assert preference.advantages(WIN_B, win=1, loss=-1) == (-1, 1)
    for verdict in (TIE, INCONSISTENT, FAILED):
        assert preference.advantages(verdict) == preference.advantages(verdict, centered=True) == (0.0, 0.0)


@pytest.mark.parametrize(("verdict", "other"), WIN_RATE_CASES)
def test_flipped(verdict: PairVerdict, other: PairVerdict) -> None:
    assert verdict.flipped() == other


def test_disjoint_pairs_cover_every_sample_once_and_depend_on_the_seed_only() -> None:
    pairs = preference.pairing(8, "disjoint", "run 1 step 2")
    assert sorted(row for pair in pairs for row in pair) == list(range(8))
    assert pairs == preference.pairing(8, "disjoint", "run 1 step 2")
    assert len({tuple(preference.pairing(8, "disjoint", str(seed))) for seed in range(20)}) > 10
    assert preference.pairing(3, "round_robin") == [(0, 1), (0, 2), (1, 2)]
    with pytest.raises(InputError, match="even group, got 5"):
        preference.pairing(5, "disjoint")
    with pytest.raises(InputError, match="at least 2 samples, got 1"):
        preference.pairing(1, "round_robin")


def test_tie_policy_drop_or_ask() -> None:
    t = table([[1, 1], [1, 1], [0, 0]])
    which = [(0, 1), (0, 2), (1, 2)]
    assert preference.compare_pairs(t, which) == ((0, 1, TIE), (0, 2, WIN_A), (1, 2, WIN_A))
    asked = []

    def ask(ties: Any) -> list[PairVerdict]:
        asked.append(list(ties))
        return [WIN_B]

    resolved = preference.compare_pairs(t, which, tie_policy="ask_joint", ask=ask)
    assert resolved == ((0, 1, WIN_B), (0, 2, WIN_A), (1, 2, WIN_A)) and asked == [[(0, 1)]]
    for options in ({"tie_policy": "ask_joint"}, {"ask": ask}, {"tie_policy": "coin"}):
        with pytest.raises(InputError):
            preference.compare_pairs(t, which, **options)  # type: ignore[arg-type]


def test_advantage_is_the_mean_over_a_samples_pairs() -> None:
    pairs = [(0, 1, WIN_A), (0, 2, WIN_A), (1, 2, TIE), (0, 3, FAILED)]
    advantage, weight = preference.pair_advantages(pairs, 5)
    # 0: (1 + 1) / 2; 1 and 2: (-.1 + 0) / 2; 3: failed only; 4: in no pair.
    np.testing.assert_allclose(advantage, [1, -0.05, -0.05, 0, 0])
    np.testing.assert_array_equal(weight, [1, 1, 1, 0, 0])


def test_list_map_ties_unknowns_and_bad_ranks() -> None:
    advantage, weight = preference.list_map([1, 1, 1])
    assert not advantage.any() and weight.all()
    advantage, weight = preference.list_map([1, NAN, 3])
    np.testing.assert_allclose(advantage, [1, 0, -0.1])
    np.testing.assert_array_equal(weight, [1, 0, 1])
    np.testing.assert_allclose(preference.list_map([1, 2], centered=True)[0], [0.55, -0.55])
    with pytest.raises(InputError, match="1 = best"):
        preference.list_map([0, 1])


def test_ranks_count_the_samples_that_are_better() -> None:
    pairs = [(0, 1, WIN_A), (0, 2, WIN_A), (1, 2, TIE)]
    np.testing.assert_array_equal(preference.ranks_of(pairs, 3), [1, 2, 2])
    # Sample 2 failed against both: it is left out instead of ranking first for want of losses.
    pairs = [(0, 1, WIN_B), (0, 2, FAILED), (1, 2, FAILED)]
    np.testing.assert_array_equal(preference.ranks_of(pairs, 3), [2, 1, NAN])
    assert np.isnan(preference.ranks_of([(0, 1, FAILED)], 2)).all()


cells = st.one_of(st.just(NAN), st.floats(0, 1))
two_rows = st.lists(st.lists(cells, min_size=3, max_size=3), min_size=2, max_size=2)
weights = st.lists(st.sampled_from([1.0, 2.0, -1.5]), min_size=3, max_size=3)


@settings(max_examples=50, deadline=None)
@given(two_rows, weights, st.sets(st.integers(0, 2)), st.sampled_from(["none", "direct", "cascade"]))
def test_comparison_is_antisymmetric(met: Any, w: list[float], hard: set[int], dependencies: str) -> None:
    t = table(met, weights=w, hard=hard, parents={2: ["c0"]})
    forward = preference.compare(t, 0, 1, dependencies=dependencies)
    assert preference.compare(t, 1, 0, dependencies=dependencies) == forward.flipped()
    scaled = table(met, weights=[4 * x for x in w], hard=hard, parents={2: ["c0"]})
    assert preference.compare(scaled, 0, 1, dependencies=dependencies) == forward


@settings(max_examples=50, deadline=None)
@given(two_rows, weights, st.sets(st.integers(0, 2)))
def test_a_sample_that_passes_everything_never_loses(met: Any, w: list[float], hard: set[int]) -> None:
    best = [1.0 if x > 0 else 0.0 for x in w]
    assert preference.compare(table([best, met[1]], weights=w, hard=hard), 0, 1) in (WIN_A, TIE, FAILED)
