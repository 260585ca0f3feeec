"""The fit and the reward of rules from pairs: golden table of methods/rules_from_pairs.md, and invariants."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mmrubric import Criterion, InputError, Rubric, ScoreTable, aggregate
from mmrubric.aggregate import l1_rules

NAN = float("nan")


def golden() -> np.ndarray:
    """The synthetic differences of the page, [256, 4]."""
    rng, n = np.random.default_rng(0), 256
    informative, noise = 0.4 + 0.1 * rng.standard_normal(n), 0.05 * rng.standard_normal(n)
    against, weak = -0.3 + 0.1 * rng.standard_normal(n), 0.2 + 0.3 * rng.standard_normal(n)
    return np.stack([informative, noise, against, weak], axis=1)


TABLE = [
    (0.2, [0.002223, 0, 0, 0], [0.991393, 0, -0.361886, 0]),
    (0.1, [2.619596, 0, 0, 0], [1.505675, 0, -0.713411, 0]),
    (0.05, [4.756883, 0, 0, 0], [2.001312, 0, -1.044481, 0]),
    (0.01, [9.546558, 0, 0, 0], [3.141266, 0, -1.838452, 0]),
]


@pytest.mark.parametrize(("lam", "raw", "scaled"), TABLE)
def test_golden_weights(lam, raw, scaled):
    d = golden()
    np.testing.assert_allclose(d[0], [0.412573, -0.033384, -0.354396, -0.026701], atol=1e-6)
    np.testing.assert_allclose(l1_rules.fit_l1(d, lam, scale=False).weights, raw, atol=1e-4)
    fit = l1_rules.fit_l1(d, lam)
    np.testing.assert_allclose(fit.scaled, scaled, atol=1e-4)
    # The weights are those of the scores as judged: w / root mean square.
    np.testing.assert_allclose(fit.weights * np.sqrt((d**2).mean(axis=0)), scaled, atol=1e-4)


# scikit-learn 1.8 wants l1_ratio instead, which 1.4 does not take here.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_liblinear_agrees():
    linear_model = pytest.importorskip("sklearn.linear_model")
    d = golden()
    z = d / np.sqrt((d**2).mean(axis=0))
    x, y = np.vstack([z, -z]), np.repeat([1, 0], len(z))
    for lam in (0.2, 0.05, 0.01):
        model = linear_model.LogisticRegression(
            C=1 / (2 * len(z) * lam),
            penalty="l1",
            solver="liblinear",
            fit_intercept=False,
            tol=1e-9,
            max_iter=10_000,
        )
        np.testing.assert_allclose(model.fit(x, y).coef_[0], l1_rules.fit_l1(d, lam).scaled, atol=1e-4)


def test_the_largest_penalty_that_leaves_a_weight():
    d = golden()
    edge = np.abs(d.mean(axis=0)).max() / 2
    assert edge == pytest.approx(0.200095, abs=1e-6)
    assert not l1_rules.fit_l1(d, edge, scale=False).weights.any()
    assert l1_rules.fit_l1(d, edge - 1e-3, scale=False).weights.any()


def test_nonneg_leaves_the_anti_correlated_rule_at_zero():
    fit = l1_rules.fit_l1(golden(), 0.05, nonneg=True)
    assert fit.weights[0] > 0 and not fit.weights[2] and (fit.weights >= 0).all()


def test_select_keeps_the_heaviest_positive_rules_and_fits_again():
    d = np.stack([golden()[:, 0], -golden()[:, 2], golden()[:, 3], golden()[:, 1] * 0], axis=1)
    one = l1_rules.select(d, 0.01, top=1)
    # Alone, the first column is what fit_l1 gives for it alone.
    assert one.kept.tolist() == [0] and one.weights[0] == pytest.approx(l1_rules.fit_l1(d[:, :1], 0.01).weights[0])
    first = l1_rules.select(d, 0.01, top=1, refit=False)
    assert first.weights[0] == pytest.approx(l1_rules.fit_l1(d, 0.01).weights[0]) and first.weights[0] < one.weights[0]
    assert l1_rules.select(golden(), 0.01, top=20).kept.tolist() == [0], "the negative one is dropped"


differences = arrays(np.float64, (12, 3), elements=st.floats(-1, 1, width=16))


@given(differences, st.sampled_from([0.03, 0.1, 0.2]))
@settings(max_examples=25, deadline=None)
def test_negated_differences_negate_the_weights(d, lam):
    # atol: nearly collinear columns leave the minimum flat.
    a, b = l1_rules.fit_l1(d, lam), l1_rules.fit_l1(-d, lam)
    np.testing.assert_allclose(a.scaled, -b.scaled, atol=1e-6)


@given(differences)
@settings(max_examples=20, deadline=None)
def test_a_larger_penalty_leaves_a_smaller_norm(d):
    norms = [np.abs(l1_rules.fit_l1(d, lam).scaled).sum() for lam in (0.03, 0.1, 0.2, 0.5)]
    assert all(small >= large - 1e-6 for small, large in itertools.pairwise(norms))
    assert norms[-1] == pytest.approx(0, abs=1e-9), "|mean z| / 2 is at most 1/2"


def test_sparsity_is_monotone_on_the_golden_table():
    counts = [len(l1_rules.fit_l1(golden(), lam).kept) for lam in (0.001, 0.01, 0.1, 0.4, 0.5)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] == 0


@given(
    arrays(np.float64, (2, 9, 3), elements=st.floats(0, 1, width=16)),
    st.lists(st.integers(0, 1), min_size=9, max_size=9),
    st.lists(st.booleans(), min_size=9, max_size=9),
    arrays(np.float64, 3, elements=st.floats(-3, 3, width=16)),
)
@settings(max_examples=25, deadline=None)
def test_the_order_of_a_pair_changes_nothing(scores, preferred, swap, weights):
    first, second = scores
    d = l1_rules.differences(first, second, preferred)
    turn = np.array(swap)[:, None]
    swapped = l1_rules.differences(
        np.where(turn, second, first),
        np.where(turn, first, second),
        [index ^ flag for index, flag in zip(preferred, swap, strict=True)],
    )
    np.testing.assert_array_equal(d, swapped)
    assert l1_rules.accuracy(weights, d) == l1_rules.accuracy(weights, swapped)


def test_an_unknown_score_is_an_unknown_difference_and_is_refused_by_the_fit():
    d = l1_rules.differences([[1, NAN]], [[0, 1]], [1])
    np.testing.assert_array_equal(d, [[-1, NAN]])
    with pytest.raises(InputError, match="unknown score"):
        l1_rules.fit_l1(d, 0.1)


def test_the_hard_miner_returns_exactly_the_misranked_pairs_worst_first():
    d = np.array([[0.5, 0], [-0.2, 0], [0.1, 0], [0, 9], [-0.4, 0], [0.3, 0]])
    found = l1_rules.hard_pairs([1.0, 0.0], d, low=0.4)
    assert found.misranked.tolist() == [4, 1, 3], "a tie is a mistake"
    # |margins| sorted: 0, .1, .2, .3, .4, .5; the quantile .4 is .2; of the right ones only .1 is below.
    assert found.low_margin.tolist() == [2]
    # 3 of 6 right, one tie.
    assert l1_rules.accuracy([1.0, 0.0], d) == pytest.approx(3.5 / 6)


def test_collinear_rules_are_one_and_the_one_that_speaks_for_the_preferred_stands_for_them():
    a, b = np.array([1.0, 1, 0, -1]), np.array([0.0, 1, 1, 1])
    d = np.stack([-b, a, b * 0.5, np.zeros(4), np.zeros(4), a * 2], axis=1)
    assert l1_rules.collinear(d, 0.98) == [(1, 5), (2, 0), (3,), (4,)]


def test_the_split_parts_prompts_not_pairs():
    prompts = [f"p{n % 5}" for n in range(20)]
    held = l1_rules.split_by_prompt(prompts, 0.2, seed=3)
    assert held.sum() == 4 and len({p for p, h in zip(prompts, held, strict=True) if h}) == 1
    np.testing.assert_array_equal(held, l1_rules.split_by_prompt(prompts, 0.2, seed=3))
    with pytest.raises(InputError, match="1 prompt"):
        l1_rules.split_by_prompt(["a", "a"], 0.2, seed=0)


def test_of_equally_good_fits_the_sparser_is_taken():
    d = golden()
    fit, reached = l1_rules.best_of([l1_rules.fit_l1(d, lam) for lam in l1_rules.LAMS], d)
    assert reached == 1.0 and fit.lam == 0.2


@pytest.mark.parametrize("lam", [0.0, -1.0, math.inf, True])
def test_a_penalty_that_is_none_is_refused(lam):
    with pytest.raises(InputError, match="lam"):
        l1_rules.fit_l1(golden(), lam)


def rules(*weights: float) -> Rubric:
    return Rubric(
        prompt="", criteria=tuple(Criterion(id=f"r{k}", text=f"rule {k}", weight=w) for k, w in enumerate(weights))
    )


def test_the_reward_is_divided_by_the_known_share_of_the_weight():
    # 2 x .5 + 1 x 1 = 2; without the second rule 1 / (2/3) = 1.5; without the first coverage 1/3 < .5: none.
    table = ScoreTable(rules(2.0, 1.0), [[0.5, 1.0], [0.5, NAN], [NAN, 1.0]])
    np.testing.assert_allclose(aggregate.build("l1_rules")(table), [2.0, 1.5, NAN])
    np.testing.assert_allclose(aggregate.build("l1_rules", min_coverage=0.1)(table), [2.0, 1.5, 3.0])


@given(
    arrays(np.float64, (3, 4), elements=st.floats(0, 1, width=16)), st.lists(st.floats(0.1, 5), min_size=4, max_size=4)
)
@settings(max_examples=20, deadline=None)
def test_the_reward_is_affine_in_the_rule_scores(met, weights):
    signed = np.array(weights) * [1, -1, 1, -1]
    reward = aggregate.build("l1_rules")(ScoreTable(rules(*signed), met))
    # Equal to sum w s but for a constant: the weight of the negative rules.
    np.testing.assert_allclose(reward, met @ signed - signed[signed < 0].sum(), atol=1e-9)
