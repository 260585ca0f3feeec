"""Statistics of a judge against scikit-learn, the krippendorff package, and numbers worked out by hand."""

from __future__ import annotations

import math

import krippendorff
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, cohen_kappa_score

from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.report import agreement
from mmrubric.report.agreement import ALWAYS_FIRST

NAN = math.nan
A, B, TIE, FAILED = PairVerdict.WIN_A, PairVerdict.WIN_B, PairVerdict.TIE, PairVerdict.FAILED
INCONSISTENT = PairVerdict.INCONSISTENT

levels = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=40)
shares = st.floats(0, 1)


def holes(values: np.ndarray, seed: int, share: float = 0.2) -> np.ndarray:
    """The values with some made unknown."""
    return np.where(np.random.default_rng(seed).random(values.shape) < share, NAN, values)


@settings(deadline=None, max_examples=30)
@given(levels)
@pytest.mark.filterwarnings("ignore")
def test_accuracy_and_kappa_equal_scikit_learn(pairs: list[tuple[int, int]]):
    first, second = np.array(pairs, float).T
    assert agreement.accuracy(first, second) == pytest.approx(accuracy_score(first, second))
    for ours, theirs in (("none", None), ("linear", "linear"), ("quadratic", "quadratic")):
        wanted = cohen_kappa_score(first.astype(int), second.astype(int), labels=range(5), weights=theirs)
        mine = agreement.cohen_kappa(first, second, ours, levels=range(5))
        assert mine == pytest.approx(wanted, nan_ok=True)


def test_kappa_of_a_published_table():
    # Two readers, 50 grants: both yes 20, both no 15, 5 and 10 apart. Observed .7; by chance .5 * .6 + .5 * .4 = .5;
    # kappa = (.7 - .5) / (1 - .5) = .4.
    first = [1] * 25 + [0] * 25
    second = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert agreement.cohen_kappa(first, second) == pytest.approx(0.4)


def test_unknown_entries_are_left_out_on_both_sides():
    first, second = [1, 0, NAN, 1, 1], [1, 1, 1, NAN, 1]
    assert agreement.accuracy(first, second) == pytest.approx(2 / 3)  # of entries 0, 1 and 4
    assert agreement.coverage(first) == pytest.approx(4 / 5)
    assert agreement.brier(first, second) == pytest.approx(1 / 3)
    assert agreement.ece(first, second) == pytest.approx(1 / 3)


def test_jf13_an_unreadable_grade_is_unscored_and_shows_as_coverage():
    # Garbage on 1 of 4: two of the three known answers are right, and the fourth is no answer, not a wrong one.
    judge, truth = [1.0, 0.0, 1.0, NAN], [1.0, 0.0, 0.0, 1.0]
    assert agreement.accuracy(judge, truth) == pytest.approx(2 / 3)
    assert agreement.coverage(judge) == 0.75


def test_order_of_levels_is_the_scale_not_the_number():
    # Distances 0-1-2 over the scale (2, 0, 1): answers 2 and 1 are two steps apart, 2 and 0 one.
    first, second = [2, 2, 0, 1], [1, 0, 0, 1]
    renamed = [{2: 0, 0: 1, 1: 2}[v] for v in first], [{2: 0, 0: 1, 1: 2}[v] for v in second]
    ours = agreement.cohen_kappa(first, second, "linear", levels=[2, 0, 1])
    assert ours == pytest.approx(cohen_kappa_score(*renamed, weights="linear"))
    with pytest.raises(InputError, match=r"values \[1\.0\] are none of the levels"):
        agreement.cohen_kappa(first, second, levels=[0, 2])


# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011): four observers, twelve units, missing answers.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
    [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
]


@pytest.mark.parametrize(("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(level: agreement.Level, published: float):
    assert agreement.krippendorff_alpha(OBSERVERS, level) == pytest.approx(published, abs=5e-4)


@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 4), st.integers(2, 12)), elements=st.integers(0, 3)), st.integers())
@pytest.mark.filterwarnings("ignore")
def test_alpha_equals_the_krippendorff_package(ratings: np.ndarray, seed: int):
    ratings = holes(ratings, abs(seed))
    paired = ratings[:, (~np.isnan(ratings)).sum(axis=0) > 1]
    assume(len(np.unique(paired[~np.isnan(paired)])) > 1)
    for level in ("nominal", "ordinal", "interval"):
        wanted = krippendorff.alpha(reliability_data=ratings, level_of_measurement=level)
        assert agreement.krippendorff_alpha(ratings, level) == pytest.approx(wanted, abs=1e-9)


@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 3), st.integers(2, 10)), elements=shares), st.integers(0, 99))
def test_interval_alpha_does_not_change_under_shift_and_scale(ratings: np.ndarray, seed: int):
    assume(np.ptp(ratings) > 1e-3)
    wanted = agreement.krippendorff_alpha(ratings, "interval")
    assert agreement.krippendorff_alpha(1e6 + 3 * ratings, "interval") == pytest.approx(wanted, abs=1e-5)
    order = np.random.default_rng(seed).permutation(ratings.shape[1])
    assert agreement.krippendorff_alpha(ratings[:, order], "interval") == pytest.approx(wanted)


@settings(deadline=None)
@given(levels)
def test_kappa_and_alpha_are_symmetric_and_at_most_one(pairs: list[tuple[int, int]]):
    first, second = np.array(pairs, float).T
    for weights in ("none", "linear", "quadratic"):
        kappa = agreement.cohen_kappa(first, second, weights)
        assert kappa == pytest.approx(agreement.cohen_kappa(second, first, weights), nan_ok=True)
        assert math.isnan(kappa) or kappa <= 1 + 1e-12
    alpha = agreement.krippendorff_alpha([first, second])
    assert alpha == pytest.approx(agreement.krippendorff_alpha([second, first]), nan_ok=True)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=30))
def test_full_agreement_is_one_unless_there_is_only_one_class(values: list[int]):
    expected = 1.0 if len(set(values)) > 1 else NAN
    for weights in ("none", "linear", "quadratic"):
        assert agreement.cohen_kappa(values, values, weights) == pytest.approx(expected, nan_ok=True)
    for level in ("nominal", "ordinal", "interval"):
        assert agreement.krippendorff_alpha([values, values], level) == pytest.approx(expected, nan_ok=True)


def test_nothing_to_decide_on_is_nan_and_never_zero():
    nothing = [NAN, NAN]
    assert all(
        math.isnan(value)
        for value in (
            agreement.accuracy(nothing, [1, 0]),
            agreement.cohen_kappa(nothing, [1, 0]),
            agreement.cohen_kappa([1, 1], [1, 1]),
            agreement.krippendorff_alpha([[1, NAN], [NAN, 0]]),  # no unit with two answers
            agreement.krippendorff_alpha([[0.1] * 3, [0.1] * 3], "interval"),
            agreement.ece(nothing, [1, 0]),
            agreement.brier(nothing, [1, 0]),
            agreement.coverage([]),
            agreement.orders([], []).consistency,
            agreement.orders([FAILED], [A]).bias,
            agreement.orders([A], [B]).accuracy,  # no label
            agreement.repeat_spread([[1, NAN], [NAN, 0]]).std,
        )
    )
    # A judge that says yes to everything, on labels of both kinds, does no better than chance: 0, and known.
    assert agreement.cohen_kappa([1, 1, 1, 1], [1, 1, 0, 0]) == 0.0


def test_ece_and_the_diagram_by_hand():
    # Bins of width 1/2: .1 and .3 say .2 on average and are true in 1 of 2; .5, .9 and 1 say .8 and are true in 2 of 3.
    # ECE = 2/5 * |.2 - .5| + 3/5 * |.8 - 2/3| = .12 + .08
    said, true = [0.1, 0.3, 0.5, 0.9, 1.0], [0, 1, 0, 1, 1]
    drawn = agreement.diagram(said, true, bins=2)
    assert drawn.counts.tolist() == [2, 3]
    assert drawn.said.tolist() == pytest.approx([0.2, 0.8]) and drawn.true.tolist() == pytest.approx([0.5, 2 / 3])
    assert agreement.ece(said, true, bins=2) == pytest.approx(0.2)


def test_a_bin_holds_its_lower_edge_and_the_last_one_also_1():
    drawn = agreement.diagram([k / 10 for k in range(11)], [1] * 11, bins=10)
    assert drawn.counts.tolist() == [1] * 9 + [2]
    assert drawn.edges.tolist() == [k / 10 for k in range(11)]
    assert np.isnan(agreement.diagram([0.95], [1]).said[:9]).all()  # empty bins say nothing


@settings(deadline=None)
@given(st.lists(st.tuples(shares, st.integers(0, 1)), min_size=1, max_size=60), st.integers(1, 12))
def test_diagram_and_brier_equal_scikit_learn(items: list[tuple[float, int]], bins: int):
    said, true = np.array(items).T
    # Away from edges: scikit-learn's bins hold the upper edge, ours the lower one.
    said = (np.minimum(np.floor(said * bins), bins - 1) + 0.1 + 0.8 * said) / bins
    theirs_true, theirs_said = calibration_curve(true, said, n_bins=bins)
    ours = agreement.diagram(said, true, bins)
    full = ours.counts > 0
    assert ours.said[full] == pytest.approx(theirs_said) and ours.true[full] == pytest.approx(theirs_true)
    assert agreement.brier(said, true) == pytest.approx(brier_score_loss(true, said, labels=[0, 1]))
    share = ours.counts[full] / len(said)
    assert agreement.ece(said, true, bins) == pytest.approx((share * np.abs(theirs_said - theirs_true)).sum())


@settings(deadline=None)
@given(st.lists(st.tuples(shares, st.integers(0, 1)), min_size=1, max_size=60))
def test_calibration_error_never_exceeds_what_single_answers_miss(items: list[tuple[float, int]]):
    said, true = np.array(items).T
    assert 0 <= agreement.ece(said, true) <= np.abs(said - true).mean() + 1e-12
    assert agreement.ece(true, true) == 0 and agreement.brier(true, true) == 0


def test_values_outside_0_and_1_and_odd_shapes_are_refused():
    with pytest.raises(InputError, match=r"probability must lie in \[0, 1\]"):
        agreement.ece([1.2], [1])
    with pytest.raises(InputError, match="one length"):
        agreement.accuracy([1, 0], [1])
    with pytest.raises(InputError, match="bins must be at least 1"):
        agreement.ece([0.5], [1], bins=0)
    with pytest.raises(InputError, match="known: interval, nominal, ordinal"):
        agreement.krippendorff_alpha([[1], [1]], "ratio")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\[raters, units\]"):
        agreement.krippendorff_alpha([1, 0])


def test_yes_starts_at_one_half_and_grades_are_the_nearest_step():
    assert agreement.decided([0.5, 0.49, NAN]).tolist()[:2] == [1, 0]
    assert agreement.graded([0, 0.12, 0.125, 0.6, 1]).tolist() == [0, 0, 1, 2, 4]
    assert np.isnan([agreement.decided([NAN])[0], agreement.graded([NAN])[0]]).all()


@settings(deadline=None)
@given(st.lists(st.sampled_from([A, B]), min_size=1, max_size=20))
def test_jf61_always_first_has_consistency_0_and_bias_1(preferred: list[PairVerdict]):
    pairs = len(preferred)
    found = agreement.orders([A] * pairs, [A] * pairs, preferred)
    assert {"consistency": found.consistency, "bias": found.bias, "accuracy": found.accuracy} == ALWAYS_FIRST
    # One order alone hides it: with the better image first such a judge is always right.
    assert (found.accuracy_first, found.accuracy_second) == (1, 0)
    assert found.outcomes[INCONSISTENT] == pairs


def test_jf60_agreed_win_agreed_tie_and_disagreement_are_three_outcomes():
    forward, swapped = [A, B, TIE, A, TIE, FAILED], [B, A, TIE, A, A, B]
    found = agreement.orders(forward, swapped)
    assert found.outcomes == {A: 1, B: 1, TIE: 1, INCONSISTENT: 2, FAILED: 1}
    # Five known pairs, three agree. The image shown first wins 2 forward and 3 swapped answers, the other one 1 and 1:
    # bias = (5 - 2) / 10.
    assert found.known == 5
    assert found.consistency == pytest.approx(3 / 5)
    assert found.bias == pytest.approx(0.3)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from([A, B])] * 3), min_size=1, max_size=30))
def test_without_ties_the_bias_is_the_gap_of_the_accuracies(pairs: list[tuple[PairVerdict, ...]]):
    forward, swapped, preferred = zip(*pairs, strict=True)
    found = agreement.orders(forward, swapped, preferred)
    assert found.bias == pytest.approx(found.accuracy_first - found.accuracy_second)
    # Named the other way round, the pairs say the same of the judge.
    turned = agreement.orders(swapped, forward, [v.flipped() for v in preferred])
    assert (turned.consistency, turned.bias, turned.accuracy) == pytest.approx(
        (found.consistency, found.bias, found.accuracy)
    )


def test_one_order_cannot_be_inconsistent():
    with pytest.raises(InputError, match="two orders apart"):
        agreement.orders([INCONSISTENT], [A])
    with pytest.raises(InputError, match="1 forward, 2 swapped"):
        agreement.orders([A], [A, B])


def test_jf59_run_to_run_spread_by_hand():
    # Question 1: .4, .6 -> variance .02 and the decision changes; question 2: .9, .8, .7 -> .01, it does not;
    # question 3 has one answer and says nothing.
    found = agreement.repeat_spread([[0.4, 0.9, 1.0], [0.6, 0.8, NAN], [NAN, 0.7, NAN]])
    assert found.cells == 2
    assert found.std == pytest.approx(math.sqrt(0.015))
    assert found.changed == pytest.approx(1 / 2)


@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 5), st.integers(1, 20)), elements=shares), st.integers(0, 99))
def test_spread_is_the_pooled_deviation_and_does_not_know_the_order_of_runs(runs: np.ndarray, seed: int):
    found = agreement.repeat_spread(runs)
    assert found.std == pytest.approx(math.sqrt(runs.var(axis=0, ddof=1).mean()), abs=1e-12)
    shuffled = agreement.repeat_spread(runs[np.random.default_rng(seed).permutation(len(runs))])
    assert (shuffled.std, shuffled.changed) == pytest.approx((found.std, found.changed))
    assert agreement.repeat_spread(np.repeat(runs[:1], 3, axis=0)).std == pytest.approx(0, abs=1e-12)


def test_noise_that_is_put_in_is_found():
    rng = np.random.default_rng(0)
    runs = np.clip(0.5 + rng.normal(0, 0.05, (6, 4000)), 0, 1)
    assert agreement.repeat_spread(runs).std == pytest.approx(0.05, rel=0.03)
