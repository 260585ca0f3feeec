"""The text that a picture is to show, and how well a reading matches it. Pure functions."""

from __future__ import annotations

import unicodedata
from collections import Counter

_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "‐": "-", "−": "-"})


def normalized(text: str, case_sensitive: bool = False) -> str:
    """One form of a text for comparison: Unicode NFKC, plain quotes and dashes, single blanks, case folded."""
    plain = " ".join(unicodedata.normalize("NFKC", text).translate(_PLAIN).split())
    return plain if case_sensitive else plain.casefold()


def levenshtein(a: str, b: str) -> int:
    """Fewest insertions, deletions and replacements of single characters that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def edit_similarity(a: str, b: str) -> float:
    """1 - levenshtein / length of the longer text, in [0, 1]; two empty texts are equal."""
    longest = max(len(a), len(b))
    return 1.0 if longest == 0 else 1.0 - levenshtein(a, b) / longest


def word_accuracy(asked: str, read: str) -> float:
    """Share of the words of `asked` that `read` holds, in [0, 1], each as often as it is asked for.

    Order does not count: OCR finds the lines of a picture in no certain order. `asked` must hold a word.
    """
    wanted, found = Counter(asked.split()), Counter(read.split())
    return (wanted & found).total() / wanted.total()


def contains(asked: str, read: str) -> bool:
    """Whether `read` holds `asked` as whole words: 'cat' is not in 'concatenate'."""
    start = read.find(asked)
    while start >= 0:
        end = start + len(asked)
        before, after = read[start - 1 : start] + asked[0], asked[-1] + read[end : end + 1]
        if not _one_word(before) and not _one_word(after):
            return True
        start = read.find(asked, start + 1)
    return False


def _one_word(two: str) -> bool:
    """Whether two neighbours belong to one word; scripts without case and blanks between words never do."""
    return len(two) == 2 and all(c.isdigit() or c.lower() != c.upper() for c in two)
