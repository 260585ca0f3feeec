"""Aggregators: one reward per sample, NaN where nothing can be said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import Criterion, InputError, Rubric, ScoreTable, aggregate

NAN = float("nan")


def table(met: Any, weights: Any = None, categories: Any = None, hard: Any = (), parents: Any = None) -> ScoreTable:
    criteria = [
        Criterion(
            id=f"c{k}",
            text=f"text {k}",
            weight=1 if weights is None else weights[k],
            category="general" if categories is None else categories[k],
            hard=k in hard,
            depends_on=() if parents is None else parents.get(k, ()),
        )
        for k in range(len(met[0]))
    ]
    return ScoreTable(Rubric(prompt="p", criteria=criteria), met)


def score(name: str, t: ScoreTable, **options: Any) -> np.ndarray:
    return aggregate.build(name, **options)(t)


def test_names_and_tags() -> None:
    assert aggregate.names() == ["all_or_nothing", "category", "l1_rules", "mean", "points", "weighted"]
    assert aggregate.filter(construction="human_expert") == ["points"]


def test_unknown_names_and_options_list_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown aggregator 'median'; known: all_or_nothing, category, l1_rules"):
        aggregate.build("median")
    with pytest.raises(InputError, match="unknown option alhpa; known: dependencies, gates, min_coverage, alpha"):
        aggregate.build("category", alhpa={})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mean", {"dependencies": "both"}),
        ("mean", {"min_coverage": 1.5}),
        ("mean", {"min_coverage": NAN}),
        ("mean", {"gates": "yes"}),
        ("points", {"clamp": 1}),
        ("category", {"alpha": "horace"}),
        ("category", {"alpha": {"a": -1.0}}),
        ("category", {"alpha": {"a": 0.0}}),
    ],
)
def test_bad_option_values_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        aggregate.build(name, **options)


def test_mean_ignores_weights_and_weighted_uses_magnitudes() -> None:
    t = table([[1, 0.5, 0], [1, 0.5, NAN]], weights=[4, 1, -1])
    # good = [1, .5, 1] and [1, .5, NaN].
    np.testing.assert_allclose(score("mean", t), [2.5 / 3, 0.75])
    np.testing.assert_allclose(score("weighted", t), [5.5 / 6, 4.5 / 5])


def test_weighted_lies_in_the_unit_interval_even_when_all_weights_are_negative() -> None:
    # Weights -1, -3: none met 1.0, the first only 3/4, both 0.0.
    t = table([[0, 0], [1, 0], [1, 1]], weights=[-1, -3])
    np.testing.assert_allclose(score("weighted", t), [1.0, 0.75, 0.0])


def test_points_reads_signs() -> None:
    # +3 met, -2 met: (3 - 2) / 3; only the penalty met: -2/3, or 0 with clamp.
    t = table([[1, 1], [0, 1], [1, 0]], weights=[3, -2])
    np.testing.assert_allclose(score("points", t), [1 / 3, -2 / 3, 1.0])
    np.testing.assert_allclose(score("points", t, clamp=True), [1 / 3, 0.0, 1.0])
    # Unknown positive points leave numerator and denominator; without any known one there is no score.
    t = table([[1, NAN, 1], [NAN, NAN, 1]], weights=[3, 1, -2])
    np.testing.assert_allclose(score("points", t, min_coverage=0), [1 / 3, NAN])


def test_points_refuses_a_rubric_without_a_positive_weight() -> None:
    t = table([[0, 0]], weights=[-1, -3])
    aggregator = aggregate.build("points")
    with pytest.raises(InputError, match="'c0', 'c1' are negative"):
        aggregator.check(t.rubric)
    with pytest.raises(InputError, match="positive weight"):
        aggregator(t)


def test_all_or_nothing_uses_passed_and_leaves_open_what_hangs_on_an_unknown() -> None:
    t = table([[0.5, 0.9], [0.4, 1], [0, NAN], [1, NAN]])
    np.testing.assert_array_equal(score("all_or_nothing", t), [1, 0, 0, NAN])


def test_a_judge_failure_is_neither_zero_nor_a_prize() -> None:
    # One of four verdicts missing: the score is over three; three of four missing: no score.
    t = table([[1, 1, 0, NAN], [1, NAN, NAN, NAN], [NAN] * 4])
    np.testing.assert_allclose(score("mean", t), [2 / 3, NAN, NAN])
    np.testing.assert_allclose(score("mean", t, min_coverage=0.25), [2 / 3, 1, NAN])


@pytest.mark.parametrize("name", ["mean", "weighted", "points", "all_or_nothing", "category"])
def test_gates_close_before_coverage_and_weights(name: str) -> None:
    met = [[0, 1, 1, 1], [NAN, 1, 1, 1], [0, NAN, NAN, NAN], [1, 1, 1, 1]]
    t = table(met, hard={0})
    np.testing.assert_array_equal(score(name, t), [0, NAN, 0, 1])
    if name != "all_or_nothing":
        np.testing.assert_allclose(score(name, t, gates=False), [0.75, 1, NAN, 1])


def test_dependencies_come_before_gates() -> None:
    t = table([[0, 1, 1]], hard={1}, parents={1: ["c0"]})
    np.testing.assert_allclose(score("mean", t), [2 / 3])
    np.testing.assert_array_equal(score("mean", t, dependencies="direct"), [0])


def test_masked_negative_criterion_costs_points() -> None:
    # c1 (-2) depends on c0 (+4), which failed: good 0 means met 1, so -2 of 4 points.
    t = table([[0, 0]], weights=[4, -2], parents={1: ["c0"]})
    np.testing.assert_allclose(score("points", t, dependencies="direct"), [-0.5])


def test_category_counts_every_category_once() -> None:
    # object: (1 + 1 + 0) / 3, text: 0 -> uniform mean 1/3; alpha 1:3 -> (2/3 + 0) / 4.
    t = table([[1, 1, 0, 0]], categories=["object", "object", "object", "text"])
    np.testing.assert_allclose(score("category", t), [1 / 3])
    np.testing.assert_allclose(score("category", t, alpha={"object": 1.0, "text": 3.0, "style": 9.0}), [1 / 6])


def test_category_without_known_verdict_is_dropped_and_alpha_renormalised() -> None:
    t = table([[1, 0, NAN, 1]], categories=["a", "b", "b", "c"])
    np.testing.assert_allclose(score("category", t, alpha={"a": 0.5, "b": 0.25, "c": 0.25}), [0.75])
    t = table([[1, NAN, NAN, 0]], categories=["a", "b", "b", "c"])
    np.testing.assert_allclose(score("category", t, alpha={"a": 0.5, "b": 0.25, "c": 0.25}), [0.5 / 0.75])
    # Only a category of weight 0 is known: nothing to score.
    t = table([[1, NAN]], categories=["a", "b"])
    np.testing.assert_array_equal(score("category", t, alpha={"a": 0.0, "b": 1.0}), [NAN])


def test_category_refuses_a_rubric_that_alpha_does_not_cover() -> None:
    aggregator = aggregate.build("category", alpha={"object": 1.0})
    with pytest.raises(InputError, match="no weight for category text; known: object"):
        aggregator.check(table([[0, 0]], categories=["object", "text"]).rubric)
    with pytest.raises(InputError, match="alpha is 0 for every category"):
        aggregate.build("category", alpha={"object": 0.0, "text": 1.0}).check(
            table([[0]], categories=["object"]).rubric
        )


def test_stateless_aggregators_have_an_empty_state() -> None:
    aggregator = aggregate.build("mean")
    aggregator.observe([], [])
    aggregator.end_epoch()
    assert aggregator.state_dict() == {}
    aggregator.load_state_dict({})
    with pytest.raises(InputError, match="Mean keeps no state"):
        aggregator.load_state_dict({"alpha": 1})


cells = st.one_of(st.just(NAN), st.floats(0, 1))
rows = st.lists(st.lists(cells, min_size=4, max_size=4), min_size=2, max_size=5)
signed = st.lists(st.floats(0.1, 10).map(lambda w: round(w, 3)), min_size=4, max_size=4)
NAMES = ["mean", "weighted", "points", "all_or_nothing", "category"]


@settings(max_examples=50, deadline=None)
@given(rows, st.floats(0.1, 10))
def test_equal_weights_equal_the_mean_bit_for_bit(met: list[list[float]], weight: float) -> None:
    t = table(met, weights=[weight] * 4)
    np.testing.assert_array_equal(score("weighted", t), score("mean", t))


@settings(max_examples=50, deadline=None)
@given(rows, signed, st.sampled_from(NAMES), st.permutations(range(4)))
def test_reward_follows_its_sample_and_forgets_the_order_of_criteria(
    met: list[list[float]], weights: list[float], name: str, order: list[int]
) -> None:
    t = table(met, weights=weights, categories=["a", "a", "b", "b"])
    expected = score(name, t)
    back = np.arange(len(met))[::-1]
    np.testing.assert_array_equal(score(name, t.take(back)), expected[back])
    shuffled = ScoreTable(
        Rubric(prompt="p", criteria=[t.rubric.criteria[k] for k in order]), t.met[:, order], t.sample_ids
    )
    np.testing.assert_allclose(score(name, shuffled), expected, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(rows, signed, st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 3))
def test_a_better_verdict_never_lowers_and_a_bigger_unit_never_changes_the_reward(
    met: list[list[float]], weights: list[float], name: str, column: int, negative: int
) -> None:
    weights = [-w if k == negative else w for k, w in enumerate(weights)]
    t = table(met, weights=weights)
    better = np.array(met)
    if not np.isnan(better[0, column]):
        better[0, column] = 0.0 if column == negative else 1.0
    before, after = score(name, t), score(name, ScoreTable(t.rubric, better))
    # all_or_nothing: with its known failure gone, the answer may hang on an unknown criterion.
    freed = name == "all_or_nothing" and before[0] == 0 and np.isnan(after[0])
    assert freed or np.isnan(before[0]) == np.isnan(after[0])
    assert freed or np.isnan(before[0]) or after[0] >= before[0] - 1e-12
    np.testing.assert_allclose(score(name, table(met, weights=[8 * w for w in weights])), before, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(rows, signed, st.sampled_from(["mean", "weighted", "all_or_nothing", "category"]))
def test_a_lost_verdict_never_beats_a_pass(met: list[list[float]], weights: list[float], name: str) -> None:
    # An unknown in place of a passed criterion (met = 1) is never worth more: NaN is not a prize.
    passed = np.where(np.isnan(met), 1.0, met)
    lost, kept = score(name, table(met, weights=weights)), score(name, table(passed, weights=weights))
    known = ~np.isnan(lost)
    assert (lost[known] <= kept[known] + 1e-12).all()
