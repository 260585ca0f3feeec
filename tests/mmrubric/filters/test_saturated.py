"""Prompts that the policy has mastered are left out for a while."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import InputError, filters
from mmrubric.aggregate import Context
from mmrubric.group import Group
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import ScoreTable

NAN = float("nan")
RUBRIC = Rubric(prompt="a cat", criteria=(Criterion(id="a", text="A cat."), Criterion(id="b", text="A hat.")))
SOLVED = [[1.0, 1.0], [1.0, 1.0]]
ALMOST = [[1.0, 1.0], [1.0, 0.0]]
UNKNOWN = [[NAN, NAN], [NAN, NAN]]


def group(met: list[list[float]]) -> Group:
    return Group(table=ScoreTable(RUBRIC, np.array(met, dtype=float)))


def visits(one: filters.Filter, *tables: list[list[float]], name: str = "p", epoch: int = 0) -> float:
    """First epoch in which the prompt may come again, after these visits in a row."""
    for met in tables:
        one.observe([group(met)], [Context(epoch=epoch, prompt_id=name)])
    return one.bans().get(name, 0)


def test_patience_counts_visits_in_a_row() -> None:
    one = filters.build("saturated", patience=2)
    assert visits(one, SOLVED) == 0
    assert visits(one, ALMOST, SOLVED) == 0  # a pass rate of 3/4 starts the count anew
    assert visits(one, SOLVED) == math.inf and set(one.bans()) == {"p"}
    assert one.keep([group(SOLVED)]).tolist() == [True]  # what was drawn is trained on all the same


def test_unknown_counts_neither_way() -> None:
    one = filters.build("saturated", patience=2)
    assert visits(one, UNKNOWN, UNKNOWN, UNKNOWN) == 0
    assert visits(one, SOLVED, UNKNOWN) == 0
    # half known: 1 of 1 and 1 of 1 passed, the third sample is left out
    assert visits(one, [[1, NAN], [1, NAN], [NAN, NAN]]) == math.inf


def test_threshold_is_the_mean_pass_rate_of_the_samples() -> None:
    # 2/2 and 1/2: mean 3/4
    assert visits(filters.build("saturated", threshold=0.75, patience=1), ALMOST) == math.inf
    assert visits(filters.build("saturated", threshold=0.76, patience=1), ALMOST) == 0
    # met is a probability; passed from 1/2 on
    assert visits(filters.build("saturated", patience=1), [[0.5, 0.6], [0.9, 1.0]]) == math.inf


def test_a_cooldown_leaves_whole_epochs_out_and_then_counts_anew() -> None:
    one = filters.build("saturated", patience=2, cooldown=1)
    assert visits(one, SOLVED, SOLVED, epoch=3) == 5  # epoch 4 is left out
    assert visits(one, SOLVED, epoch=5) == 5
    assert visits(one, SOLVED, epoch=6) == 8


def test_state_goes_on() -> None:
    one = filters.build("saturated", patience=2)
    visits(one, SOLVED, SOLVED, name="gone")
    visits(one, SOLVED, name="half")
    other = filters.build("saturated", patience=2)
    other.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    assert other.bans() == {"gone": math.inf}
    assert visits(other, SOLVED, name="half") == math.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [({"threshold": 1.5}, "threshold"), ({"patience": 0}, "patience"), ({"cooldown": 0}, "cooldown")],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=f"saturated: {message}"):
        filters.build("saturated", **options)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=2, max_size=2), min_size=2, max_size=6),
    st.permutations(range(6)),
    st.sampled_from([0.5, 0.75, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_samples_does_not_matter(met: list, order: list[int], threshold: float) -> None:
    shuffled = [met[i] for i in order if i < len(met)]
    first, second = (filters.build("saturated", threshold=threshold, patience=1) for _ in range(2))
    assert visits(first, met) == visits(second, shuffled)
