"""The parts of an induction that need no model (Writer-R1 / IRG, arXiv 2603.15061)."""

from __future__ import annotations

import numpy as np
import pytest

from mmrubric.generators.inductive_themes import Theme, fault, merged, ring, strongest, without_conflicts


def test_pairs_form_a_ring():
    assert ring(2) == [(0, 1)] and ring(3) == [(0, 1), (1, 2), (2, 0)]
    assert [sum(index in pair for pair in ring(5)) for index in range(5)] == [2] * 5


def test_the_strongest_have_support_then_a_requirement_then_separate():
    themes = [
        Theme("a", "g", ("o1", "o2"), 2),
        Theme("b", "g", ("o3", "e1"), 2),
        Theme("c", "g", ("o4", "o5"), 2),
        Theme("d", "g", ("o6", "o7", "o8"), 3),
    ]
    kept = [[theme.text for theme in strongest(themes, most, frozenset({"o4"}))] for most in (1, 2, 3, 4)]
    assert kept == [["d"], ["b", "d"], ["b", "c", "d"], ["a", "b", "c", "d"]]


def test_conflicts_and_merges_of_nothing():
    themes = [Theme("a cat", "g", ("o1",), 1), Theme("a dog", "g", ("o2",), 2)]
    assert without_conflicts(themes, []) == (themes, []) and merged(themes, "sum") == (themes, [])
    # No requirement on either side: more support stays.
    assert without_conflicts(themes, [(0, 1), (1, 0)])[0] == themes[1:]


@pytest.mark.parametrize(
    ("values", "scores", "expected"),
    [
        ([0.0, 1.0], [1, 2], ""),
        ([1.0, 0.0], [1, 2], "the better exemplar 2 scores lower than exemplar 1"),
        ([1.0, 0.0], [1, None], ""),
        ([1.0, 0.0], [2, 2], ""),
        ([0.5, 0.5], [1, 2], "all exemplars score the same"),
        ([0.5, 0.5 + 1e-9], [1, 2], "all exemplars score the same"),
        ([0.5, np.nan], [1, 2], ""),
        ([1.0, np.nan, 0.5], [1, 2, 0], ""),
        ([0.0, 0.5, 0.5], [0, 1, 2], ""),
    ],
)
def test_what_exemplars_say_of_a_criterion(values, scores, expected):
    assert fault(np.array(values), scores) == expected
