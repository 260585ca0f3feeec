"""Literals in quotes, and how well a reading matches: numbers by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.literal import contains, edit_similarity, levenshtein, normalized, word_accuracy
from mmrubric.similar import quoted

WORDS = st.text(alphabet="abc ", max_size=8)


@pytest.mark.parametrize(
    ("text", "literals"),
    [
        ('a sign that says "OPEN LATE" at night', ["OPEN LATE"]),
        ("a sign that says 'OPEN LATE'", ["OPEN LATE"]),
        ("a neon sign “Bar”, and „Café“ below", ["Bar", "Café"]),
        ("un panneau « Fermé »", ["Fermé"]),
        ("招牌写着「你好」和『再见』", ["你好", "再见"]),
        ("a shirt with 'don't panic' on it", ["don't panic"]),
        ("a shirt with ‘don’t panic’ on it", ["don't panic".replace("'", "’")]),
        ('("SALE"), then "SALE" again', ["SALE"]),
        ("the dog's bowl and the cats' toys", []),
        ('a 5" pipe beside a 7" pipe', []),
        ("nothing is quoted here", []),
        ('"" and " "', []),
    ],
)
def test_quoted(text: str, literals: list[str]):
    assert quoted(text) == literals


def test_normalized():
    assert normalized("  Open\n LATE ") == "open late"
    assert normalized("Open", case_sensitive=True) == "Open"
    # NFKC: full-width letters and the ligature fi; typographic quotes and dashes become plain ones
    assert normalized("ＡＢ ﬁne — ‘it’s’", case_sensitive=True) == "AB fine - 'it's'"
    assert normalized("STRASSE") == normalized("straße")


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("OPEN", "OPFN", 1), ("flaw", "lawn", 2), ("ab", "ba", 2)],
)
def test_levenshtein(a: str, b: str, edits: int):
    assert levenshtein(a, b) == levenshtein(b, a) == edits


@settings(deadline=None, max_examples=50)
@given(WORDS, WORDS, WORDS)
def test_levenshtein_is_a_distance(a: str, b: str, c: str):
    assert (levenshtein(a, b) == 0) == (a == b)
    assert abs(len(a) - len(b)) <= levenshtein(a, b) <= max(len(a), len(b))
    assert levenshtein(a, c) <= levenshtein(a, b) + levenshtein(b, c)


def test_edit_similarity_and_word_accuracy():
    assert edit_similarity("kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert edit_similarity("", "") == 1.0 and edit_similarity("abc", "") == 0.0
    assert word_accuracy("fresh bread daily", "daily fresh braed") == pytest.approx(2 / 3)
    # 'ha ha ha' asks for three; two are there, and more of another word do not help
    assert word_accuracy("ha ha ha", "ha ho ho ha") == pytest.approx(2 / 3)
    assert word_accuracy("open", "") == 0.0


@pytest.mark.parametrize(
    ("asked", "read", "expected"),
    [
        ("cat", "the cat sat", True),
        ("cat", "concatenate", False),
        ("cat", "concatenate cat", True),
        ("cat", "cats", False),
        ("5", "50% off", False),
        ("50%", "now 50% off!", True),
        ("open late", "we are open late.", True),
        ("open late", "open at night, late", False),
        ("你好", "欢迎你好吗", True),
        ("open", "", False),
    ],
)
def test_contains_whole_words(asked: str, read: str, expected: bool):
    assert contains(asked, read) is expected
