"""ScoreTable: polarity, the join by ids, dependencies, gates, and the two metrics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import Criterion, Failure, InputError, Rubric, ScoreTable, Verdict
from mmrubric.scores import (
    Rules,
    mean_pass_rate,
    sample_completion,
    sample_pass_rate,
    strict_completion,
    summarize,
    weighted_mean,
)

NAN = float("nan")


def table(met: Any, weights: Any = None, **fields: dict[int, Any]) -> ScoreTable:
    """Table with criteria c0, c1, ...; `fields` gives values by column, such as hard={0: True}."""
    count = len(met[0])
    criteria = [
        Criterion(
            id=f"c{k}",
            text=f"text {k}",
            weight=1 if weights is None else weights[k],
            **{name: values[k] for name, values in fields.items() if k in values},
        )
        for k in range(count)
    ]
    return ScoreTable(Rubric(prompt="p", criteria=criteria), met)


def test_polarity_flips_once_and_nan_stays() -> None:
    t = table([[0.9, 0.9, NAN], [0.5, 0.5, 0.4]], weights=[2, -3, 1])
    np.testing.assert_allclose(t.good, [[0.9, 0.1, NAN], [0.5, 0.5, 0.4]])
    # passed is good >= 0.5, never == 1; both polarities pass at exactly one half.
    np.testing.assert_array_equal(t.passed, [[1, 0, NAN], [1, 1, 0]])
    np.testing.assert_array_equal(t.weights, [2, 3, 1])
    np.testing.assert_array_equal(t.points, [2, -3, 1])
    # Known weight 5 of 6.
    np.testing.assert_allclose(t.coverage, [5 / 6, 1])
    assert all(a.dtype == np.float64 for a in (t.met, t.good, t.passed, t.weights, t.coverage))


def test_arrays_are_read_only() -> None:
    t = table([[1.0, 0.0]])
    for values in (t.met, t.good, t.passed, t.weights, t.coverage):
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0


@pytest.mark.parametrize(
    ("met", "message"),
    [
        ([[1.0]], r"shape \[1, 1\]; expected \[samples, 2\]"),
        ([1.0, 0.0], r"shape \[2\]"),
        ([[1.0, 1.5]], "criterion 'c1' is 1.5, outside"),
        ([[1.0, math.inf]], "criterion 'c1' is inf"),
        ([["a", 1]], "must be numbers"),
    ],
)
def test_bad_tables_are_refused(met: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScoreTable(table([[0, 0]]).rubric, met)


def test_sample_ids_must_fit() -> None:
    rubric = table([[0, 0]]).rubric
    for ids in (["a"], ["a", "a"], [1, 2]):
        with pytest.raises(InputError, match="2 unique texts"):
            ScoreTable(rubric, [[0, 1], [1, 0]], ids)  # type: ignore[arg-type]
    t = ScoreTable(rubric, [[0, None], [1, 0]], ["a", "b"])
    assert t.row("b") == 1 and np.isnan(t.met[0, 1])
    np.testing.assert_array_equal(t.take([1]).met, [[1, 0]])
    with pytest.raises(InputError, match="unknown sample 'c'; known: a, b"):
        t.row("c")
    with pytest.raises(InputError, match=r"outside 0\.\.1"):
        t.row(2)


def test_verdicts_are_joined_by_id_in_any_order() -> None:
    rubric = table([[0, 0]]).rubric
    verdicts = [
        Verdict("b", "c1", 0.25),
        Verdict("a", "c0", 1.0),
        Verdict("b", "c0", None, failure=Failure.timeout),
        Verdict("a", "c1", None, applicable=False),
    ]
    for given_ in (verdicts, [verdicts[:2], verdicts[2:]]):
        t = ScoreTable.from_verdicts(rubric, ["a", "b"], given_)
        np.testing.assert_array_equal(t.met, [[1, NAN], [NAN, 0.25]])
    # A criterion that nobody answered is unknown, not failed.
    np.testing.assert_array_equal(ScoreTable.from_verdicts(rubric, ["a"], verdicts[1:2]).met, [[1, NAN]])


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (Verdict("z", "c0", 1.0), "unknown sample 'z'"),
        (Verdict("a", "c9", 1.0), "unknown criterion 'c9'"),
        (Verdict("a", "c0", 0.0), "two verdicts on sample 'a', criterion 'c0'"),
    ],
)
def test_the_join_refuses_foreign_and_repeated_ids(verdict: Verdict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScoreTable.from_verdicts(table([[0, 0]]).rubric, ["a"], [Verdict("a", "c0", 1.0), verdict])


def test_direct_looks_at_parents_as_judged_and_cascade_after_masking() -> None:
    # c0 <- c1 <- c2, c0 fails, c1 and c2 hold as judged.
    t = table([[0, 1, 1]], depends_on={1: ["c0"], 2: ["c1"]})
    np.testing.assert_array_equal(t.with_dependencies("none").good, [[0, 1, 1]])
    np.testing.assert_array_equal(t.with_dependencies("direct").good, [[0, 0, 1]])
    np.testing.assert_array_equal(t.with_dependencies("cascade").good, [[0, 0, 0]])
    with pytest.raises(InputError, match="unknown value 'all'; known: cascade, direct, none"):
        t.with_dependencies("all")


def test_the_child_of_an_unknown_parent_is_unknown_and_of_a_failed_one_known() -> None:
    t = table([[NAN, 1, 1], [0, NAN, NAN]], depends_on={1: ["c0"], 2: ["c1"]})
    np.testing.assert_array_equal(t.with_dependencies("direct").good, [[NAN, NAN, 1], [0, 0, NAN]])
    np.testing.assert_array_equal(t.with_dependencies("cascade").good, [[NAN, NAN, NAN], [0, 0, 0]])


def test_a_failed_parent_outranks_an_unknown_one() -> None:
    t = table([[NAN, 0, 1]], depends_on={2: ["c0", "c1"]})
    np.testing.assert_array_equal(t.with_dependencies("direct").good, [[NAN, 0, 0]])


def test_masking_fails_a_negative_child_and_its_children_too() -> None:
    # c1 is negative: a failed parent makes good 0, that is met 1. Its child c2 still counts it as failed.
    t = table([[0, 0, 1]], weights=[1, -2, 1], depends_on={1: ["c0"], 2: ["c1"]})
    masked = t.with_dependencies("cascade")
    np.testing.assert_array_equal(masked.good, [[0, 0, 0]])
    np.testing.assert_array_equal(masked.met, [[0, 1, 0]])


def test_parents_hold_by_met_at_one_half() -> None:
    t = table([[0.5, 1], [0.49, 1]], depends_on={1: ["c0"]})
    np.testing.assert_array_equal(t.with_dependencies("direct").good, [[0.5, 1], [0.49, 0]])


def test_gate_states() -> None:
    t = table([[1, 1, 0], [0, 1, 1], [NAN, 1, 1], [NAN, 0.4, 1], [0.5, 0.6, NAN]], hard={0: True, 1: True})
    np.testing.assert_array_equal(t.gate, [1, 0, NAN, 0, 1])
    np.testing.assert_array_equal(table([[0, NAN]]).gate, [1])


def test_the_order_is_dependencies_gates_coverage() -> None:
    # c1 is hard and depends on c0. As judged it holds; after masking it fails, so the gate closes.
    t = table([[0, 1, NAN, NAN], [1, 1, NAN, NAN], [1, 1, 1, NAN]], depends_on={1: ["c0"]}, hard={1: True})
    settled = Rules("direct", True, 0.75).settle(t)
    # Row 0: a failed gate is 0 although coverage (.5) is low; row 1: coverage .5 < .75; row 2: coverage .75.
    np.testing.assert_array_equal(settled.decided, [0, NAN, NAN])
    np.testing.assert_array_equal(settled.to_weigh, [False, False, True])


def test_coverage_at_the_limit_is_enough_and_nothing_known_never_is() -> None:
    assert list(Rules(min_coverage=0.5).covered(np.array([0.5, 0.49]))) == [True, False]
    # .1 + .2 of .6 is 0.49999999999999994 in floating point.
    t = table([[1, 1, NAN]], weights=[0.1, 0.2, 0.3])
    assert Rules().settle(t).to_weigh.all()
    assert not Rules(min_coverage=0.0).settle(table([[NAN, NAN]])).to_weigh.any()


def test_unknown_counts_as_not_completed_but_leaves_the_pass_rate() -> None:
    t = table([[1, 1, 1, 1], [1, 0.6, NAN, 1], [1, 0, 0, NAN], [NAN] * 4])
    np.testing.assert_array_equal(sample_completion(t), [1, 0, 0, 0])
    # passed / known: 4/4, 3/3, 1/3, nothing known.
    np.testing.assert_allclose(sample_pass_rate(t), [1, 1, 1 / 3, NAN])
    assert strict_completion(t) == 0.25
    assert mean_pass_rate(t) == pytest.approx((1 + 1 + 1 / 3) / 3)
    s = summarize(t)
    # 6 of 16 verdicts are unknown; coverage is (1 + 3/4 + 3/4 + 0) / 4.
    assert (s.samples, s.scored, s.unknown_share, s.coverage) == (4, 3, 6 / 16, 0.625)


def test_metrics_over_many_tables_weigh_samples_not_tables() -> None:
    tables = [table([[1.0]]), table([[0, 0], [1, 1], [1, 0]])]
    assert strict_completion(tables) == 0.5
    assert mean_pass_rate(tables) == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert math.isnan(mean_pass_rate([])) and math.isnan(strict_completion([]))


def test_weights_near_the_float_limit_do_not_overflow() -> None:
    assert weighted_mean(np.array([1.0, 0.0]), np.array([1e308, 1e308])) == 0.5


cells = st.one_of(st.just(NAN), st.floats(0, 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=5), st.data())
def test_masking_never_makes_a_criterion_better(rows: list[list[float]], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.sampled_from([1.0, -2.0]), min_size=3, max_size=3))
    t = table(rows, weights=weights, depends_on={1: ["c0"], 2: ["c0", "c1"]})
    direct, cascade = t.with_dependencies("direct").good, t.with_dependencies("cascade").good
    for better, worse in ((t.good, direct), (direct, cascade)):
        both = ~np.isnan(better) & ~np.isnan(worse)
        assert (worse[both] <= better[both]).all()
    np.testing.assert_array_equal(
        t.with_dependencies("cascade").with_dependencies("cascade").passed >= 0.5,
        t.with_dependencies("cascade").passed >= 0.5,
    )
