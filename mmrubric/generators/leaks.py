"""What must not be said where it can be read: runs of words of a hidden text, and hidden facts."""

from __future__ import annotations

from collections.abc import Sequence

from mmrubric.similar import NUMBERS, tokens


def shared_run(text: str, hidden: str, length: int, allowed: str = "") -> str:
    """The first `length` words in a row that `text` and `hidden` share and `allowed` does not have; "" = none."""
    mine, theirs, known = _words(text), _runs(_words(hidden), length), _runs(_words(allowed), length)
    runs = (tuple(mine[start : start + length]) for start in range(len(mine) - length + 1))
    return next((" ".join(run) for run in runs if run in theirs and run not in known), "")


def states(text: str, fact: str) -> bool:
    """Whether all words of `fact` stand in `text`, in a row; number words count as digits."""
    words = _words(fact)
    return bool(words) and tuple(words) in _runs(_words(text), len(words))


def _words(text: str) -> list[str]:
    return [NUMBERS.get(word, word) for word in tokens(text)]


def _runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
