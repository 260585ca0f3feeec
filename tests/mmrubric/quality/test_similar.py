"""What counts as saying the same: by words, by vectors, and not across differing facts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError
from mmrubric.similar import (
    content,
    cosines,
    duplicates,
    facts,
    groups,
    ngram_encoder,
    normalise,
    quoted,
    similar_pairs,
    stem,
    token_jaccard,
    tokens,
    without_quoted,
    word_set,
)

WORDS = sorted(word_set("the a cat dog is red blue two three not left right of big on small table"))
texts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(" ".join), max_size=8)


def meaning(texts: Sequence[str]) -> np.ndarray:
    """A stand-in for a sentence encoder: every text means the same."""
    return np.ones((len(texts), 2))


def test_normalised_text():
    assert normalise("  Is the DOG’s ball  red?\n") == "is the dogs ball red"
    assert normalise("ﬁne, “OPEN”") == "fine open"
    assert normalise("?!") == "?!"  # never empty: two different marks must not become equal
    assert tokens("红色 cat, 2") == ["红", "色", "cat", "2"]


@pytest.mark.parametrize(
    ("text", "literals"),
    [
        ("The sign reads 'OPEN LATE'.", ["OPEN LATE"]),
        ("The dog's sign reads ‘it’s open’ and “now”", ["it’s open", "now"]),
        ("The cats' bowl isn't the dogs' bowl", []),
        ('A 5" nail', []),
        ("'A' and 'A'", ["A"]),
    ],
)
def test_quoted_strings(text: str, literals: list[str]):
    assert quoted(text) == literals
    assert not any(f"'{literal}'" in without_quoted(text) for literal in literals)


def test_stems_join_the_forms_of_a_word():
    for forms in ("cup cups", "sit sitting", "ride rides riding", "place placed", "city cities", "dish dishes"):
        assert len({stem(word) for word in forms.split()}) == 1, forms
    assert stem("string") == "string" and stem("glass") == "glass" and stem("red") == "red"
    assert stem("men") == "man" and stem("gray") == "grey"
    assert content("Are there two cups in the picture?") == ["2", "cup"]


def test_jaccard_by_hand():
    # {there, is, a, red, cube} against {there, is, a, big, red, cube}: 5 of 6.
    assert token_jaccard("There is a red cube.", "There is a big red cube") == pytest.approx(5 / 6)
    assert token_jaccard("two cats", "2 cats!") == 1.0


def test_duplicates_name_the_earliest_text_that_is_kept():
    statements = ["There is a red cube.", "A dog sleeps.", "Is there a red cube?", "there is a big red cube"]
    assert duplicates(statements) == [(2, 0)]  # the last one says more
    assert duplicates(statements[::-1]) == [(1, 0), (3, 0)]
    assert groups(statements) == [(0, 2, 3)]
    assert similar_pairs(statements) == [(0, 2), (0, 3), (2, 3)]
    assert duplicates(statements[::-1], jaccard=0.9) == [(3, 1)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("There are exactly two cats on the wooden table", "There are exactly three cats on the wooden table"),
        ("The car on the street near the tree is red", "The car on the street near the tree is blue"),
        ("The cat is left of the dog", "The dog is left of the cat"),
        ("The cat is left of the dog in the grass", "The cat is right of the dog in the grass"),
        ("The cup is standing on the box", "The box is standing on the cup"),
        ("The small sign on the old wall is not lit", "The small sign on the old wall is lit"),
        ("The sign on the door reads 'A'", "The sign on the door reads 'B'"),
        ("Exactly thirteen candles are lit", "Exactly fourteen candles are lit"),
        ("There are ninety chairs in the big white hall", "There are thirty chairs in the big white hall"),
        ("The second cup from the left side is red", "The third cup from the left side is red"),
        ("The 2nd cup from the left side is red", "The 3rd cup from the left side is red"),
        ("The old windows of the house face east", "The old windows of the house face west"),
        ("The old windows of the house face north", "The old windows of the house face south"),
        # Equal but for punctuation, which carries the fact.
        ("The thermometer shows 5 °C", "The thermometer shows -5 °C"),
        ("The thermometer shows 5 °C", "The thermometer shows −5 °C"),
        ("The bar is 2.5 cm long", "The bar is 2 5 cm long"),
        ("The text '!' is visible", "The text '?' is visible"),
        ("The sign reads 'OPEN!'", "The sign reads 'OPEN?'"),
    ],
)
def test_close_texts_with_other_facts_are_no_duplicates(first: str, second: str):
    assert duplicates([first, second]) == []
    if facts(first) != facts(second) or "left" in first:
        assert duplicates([first, second], encoder=meaning) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("twenty-five candles", {"25"}),
        ("25 candles", {"25"}),
        ("twenty-two cats, five dogs", {"22", "5"}),
        ("two hundred and a hundred", {"200", "100"}),
        ("the second of two", {"2nd", "2"}),
        ("the 2nd", {"2nd"}),
        ("the twelfth of twelve, heading north-west", {"12th", "12", "north", "west"}),
        ("-5 to 5 °C, 5°C", {"-5", "5"}),
        ("5-10 apples, 1.5 cm", {"5", "10", "1.5"}),
        ("from -2 to two", {"-2", "2"}),
        ("“It’s Loud.” in red", {'"its loud"', "red"}),
        ("'?' without 'STOP!'", {'"?"', '"stop!"', "not"}),
    ],
)
def test_facts(text: str, found: set[str]):
    assert facts(text) == found


def test_the_same_facts_in_another_spelling_are_duplicates():
    assert duplicates(["There are twenty-five cups", "There are 25 cups"]) == [(1, 0)]
    assert duplicates(["The second cup is red", "The 2nd cup is red."]) == [(1, 0)]
    assert duplicates(["The sign reads 'OPEN.'", "the sign reads “Open”.", "The sign reads OPEN"]) == [(1, 0), (2, 0)]
    assert facts("It is -5 °C") == facts("It is −5 °C.")


def test_another_noun_in_a_long_sentence_is_no_duplicate_by_words():
    pair = ["A cat lies on the left side of the big old table", "A dog lies on the left side of the big old table"]
    assert token_jaccard(*pair) >= 0.8
    assert duplicates(pair) == []


def test_an_encoder_finds_other_wording():
    pair = ["A mug stands on the desk.", "On the table there is a cup."]
    assert duplicates(pair) == []
    assert duplicates(pair, encoder=meaning) == [(1, 0)]
    assert duplicates(pair, encoder=lambda texts: np.eye(len(texts))) == []


def test_cosines_by_hand():
    # (3, 4) and (4, 3): 24 / 25; the zero vector is close to nothing.
    found = cosines(np.array([[3, 4], [4, 3], [0, 0]]))
    assert found[0, 1] == pytest.approx(0.96)
    assert found[2].tolist() == [0, 0, 0]


def test_the_built_in_encoder_sees_spelling():
    vectors = ngram_encoder(["A coloured ball", "a colored ball.", "a coloured ball!", "Rain"])
    similar = cosines(vectors)
    assert vectors.shape == (4, 4096) and vectors.dtype == np.float32
    assert similar[0, 2] == pytest.approx(1) and similar[0, 1] > 0.8 and similar[0, 3] < 0.3
    assert np.array_equal(vectors, ngram_encoder(["A coloured ball", "a colored ball.", "a coloured ball!", "Rain"]))


@settings(deadline=None, max_examples=60)
@given(texts, st.randoms(use_true_random=False))
def test_similarity_is_symmetric_and_grouping_ignores_the_order(statements: list[str], random):
    order = list(range(len(statements)))
    random.shuffle(order)
    mixed = [statements[index] for index in order]
    for encoder in (None, ngram_encoder):
        pairs = {frozenset(pair) for pair in similar_pairs(statements, encoder=encoder)}
        again = {frozenset((order[i], order[j])) for i, j in similar_pairs(mixed, encoder=encoder)}
        assert pairs == again
        grouped = {frozenset(group) for group in groups(statements, encoder=encoder)}
        assert grouped == {frozenset(order[i] for i in group) for group in groups(mixed, encoder=encoder)}


@settings(deadline=None, max_examples=60)
@given(texts)
def test_dropping_duplicates_leaves_none(statements: list[str]):
    found = duplicates(statements)
    dropped = {later for later, _ in found}
    assert len(dropped) == len(found) and all(earlier < later and earlier not in dropped for later, earlier in found)
    assert duplicates([text for index, text in enumerate(statements) if index not in dropped]) == []


def test_bad_input_is_named():
    with pytest.raises(InputError, match=r"jaccard: 1\.5 is outside \[0, 1\]"):
        duplicates(["a", "b"], jaccard=1.5)
    with pytest.raises(InputError, match="encoder: gave 1 vectors for 2 texts"):
        duplicates(["a", "b"], encoder=lambda texts: np.ones((1, 3)))
    with pytest.raises(InputError, match=r"encoder: vectors must be finite numbers .* got shape \[2\]"):
        duplicates(["a", "b"], encoder=lambda texts: np.ones(2))
    assert duplicates([], encoder=ngram_encoder) == []


def test_importing_the_module_loads_neither_scikit_learn_nor_matplotlib():
    code = (
        "import sys, mmrubric.similar, mmrubric.quality\nprint({'sklearn', 'matplotlib', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "set()"
