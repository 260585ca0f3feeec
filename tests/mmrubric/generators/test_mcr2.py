"""Selection by coding rate (Auto-Rubric as Reward, arXiv 2605.08354), numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError
from mmrubric.generators.mcr2 import Selection, coding_rate, grown, reduced

VECTORS = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=(12, 5)))


def letters(texts):
    """Texts as counts of a to h, so that equal letters are equal directions."""
    return np.array([[text.count(letter) for letter in "abcdefgh"] for text in texts], dtype=float)


def test_the_rate_of_orthogonal_vectors():
    # D = N = 2, eps = .1: scale = 2 / (2 * .01) = 100, both singular values 1: 1/2 * 2 * ln 101
    assert coding_rate(np.eye(2)) == pytest.approx(math.log(101))
    # The same vector twice: one singular value sqrt 2: 1/2 * ln(1 + 100 * 2)
    assert coding_rate(np.array([[1.0, 0], [1, 0]])) == pytest.approx(0.5 * math.log(201))
    assert coding_rate(np.zeros((0, 3))) == 0 and coding_rate(np.zeros((3, 0))) == 0


def test_only_the_top_singular_values_count():
    # Squares 9 and .25: 9 / 9.25 = .973 >= .95, so the second is cut. scale = 2 / (2 * .01) = 100.
    assert coding_rate(np.diag([3.0, 0.5])) == pytest.approx(0.5 * math.log(901))
    assert coding_rate(np.diag([3.0, 0.5]), energy=1.0) == pytest.approx(0.5 * (math.log(901) + math.log(26)))
    # 20 equal ones: 19 of them are exactly 95 %. scale = 20 / (20 * .01) = 100.
    assert coding_rate(np.eye(20)) == pytest.approx(19 * 0.5 * math.log(101))


@given(VECTORS, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_rate_does_not_depend_on_the_order_of_the_vectors(vectors, random):
    order = list(range(len(vectors)))
    random.shuffle(order)
    assert coding_rate(vectors[order]) == pytest.approx(coding_rate(vectors))
    assert coding_rate(reduced(vectors[order])) == pytest.approx(coding_rate(reduced(vectors)))


@given(VECTORS, st.lists(st.floats(1e-3, 1e3), min_size=12, max_size=12))
@settings(max_examples=30, deadline=None)
def test_the_lengths_of_the_vectors_do_not_matter(vectors, lengths):
    scaled = vectors * np.array(lengths)[:, None]
    assert coding_rate(reduced(scaled)) == pytest.approx(coding_rate(reduced(vectors)))


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=12, unique=True), st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_chosen_does_not_depend_on_order_or_lengths(texts, data):
    first, second = Selection(letters), Selection(lambda found: letters(found) * 4.0)
    first.offer(texts)
    second.offer(data.draw(st.permutations(texts)))
    assert first.chosen == second.chosen and first.gains == second.gains


def test_vectors_are_reduced_to_unit_rows_in_few_axes():
    made = reduced(np.random.default_rng(0).normal(size=(300, 150)))
    assert made.shape == (300, 100) and np.linalg.norm(made, axis=1) == pytest.approx(1)
    # Three equal directions have no axis: what is left of them is rounding, not a direction.
    assert reduced(np.array([[1.0, 2], [2, 4], [3, 6]])).shape == (3, 0)


def test_growing_takes_new_directions_before_repeats():
    rows = np.array([[1.0, 0], [1, 0], [0, 1]])
    # All gains are equal at first: the first row. Then the other direction; a repeat only lowers the rate:
    # N = 2: 1/2 * 2 ln(1 + 100) = 4.615; N = 3: scale 66.7, squares 2 and 1: 1/2 (ln 134.3 + ln 67.7) = 4.558.
    assert grown(rows, [], 10, 0.002, 0.1) == [0, 2]
    assert grown(rows, [0], 2, 0.002, 0.1) == [2]


def test_repeats_are_left_out_and_two_poor_rounds_end_it():
    selection = Selection(letters)
    selection.offer(["a", "b", "c", "aa"])
    assert {text.strip("a") or "a" for text in selection.chosen} == {"a", "b", "c"} and len(selection.chosen) == 3
    assert selection.offer(["bb", "ccc"]) == 0 and selection.stopped == ""
    assert selection.offer(["bbb"]) == 0 and selection.stopped == "gain below 0.002 in 2 rounds"


def test_a_rich_round_between_two_poor_ones_goes_on():
    selection = Selection(letters)
    for texts in (["a", "b", "c"], ["aa"], ["d"], ["bb"]):
        selection.offer(texts)
    assert selection.gains[2] > 0.002 > max(selection.gains[1], selection.gains[3]) and not selection.stopped


def test_rounds_and_texts_are_bounded():
    selection = Selection(letters, max_texts=2)
    selection.offer(["a", "b", "c", "d"])
    assert len(selection.chosen) == 2 and selection.stopped == "2 texts"
    selection = Selection(letters, max_rounds=1)
    selection.offer([])
    assert selection.stopped == "1 rounds"


def test_a_single_text_is_taken():
    selection = Selection(letters)
    selection.offer(["a"])
    assert selection.chosen == ["a"]
    selection.offer(["b", "c"])
    assert sorted(selection.chosen) == ["a", "b", "c"]


def test_bad_vectors_are_refused():
    with pytest.raises(InputError, match="finite"):
        Selection(lambda texts: np.full((len(texts), 2), np.nan)).offer(["a", "b"])
    with pytest.raises(InputError, match="1 vectors for 2 texts"):
        Selection(lambda texts: np.ones((1, 2))).offer(["a", "b"])
    with pytest.raises(InputError, match="eps"):
        coding_rate(np.eye(2), eps=0.0)
