"""Where evidence comes from: the `Retriever` protocol, and BM25 over a file of passages.

Source: BM25 (Robertson et al., 1994), in Lucene's form, by the library bm25s (arXiv 2407.03618).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mmrubric.errors import InputError
from mmrubric.similar import content

_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Passage:
    """A piece of text that a criterion can point at."""

    id: str
    text: str

    def __post_init__(self) -> None:
        for name in ("id", "text"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"passage {self.id!r}: field {name} must be text that is not blank, got {value!r}")


@runtime_checkable
class Retriever(Protocol):
    """Finds passages. A frozen corpus makes runs repeatable; a live one is the user's choice."""

    async def search(self, query: str, most: int) -> Sequence[Passage]:
        """At most `most` passages, best first; none if nothing fits. Equal ids mean equal passages."""
        ...


class BM25:
    """A `Retriever` over passages in memory.

    Words are compared by their stems; function words do not count. The order of the passages does not matter: equal
    scores are ordered by id.

    Args:
        passages: the corpus; passages as long as a paragraph serve best.
        k1: how fast repeats of a word stop to count, at least 0.
        b: how much long passages are discounted, in [0, 1].

    Raises:
        InputError: no passage, one with nothing to find in any of them, an id given twice, or k1 or b out of range.
    """

    def __init__(self, passages: Sequence[Passage], k1: float = 1.5, b: float = 0.75) -> None:
        # The import takes a second, and only those who search need it.
        import bm25s

        if not k1 >= 0 or not 0 <= b <= 1:
            raise InputError(f"bm25: needs k1 >= 0 and 0 <= b <= 1, got {k1!r} and {b!r}")
        ids = [passage.id for passage in passages]
        twice = sorted({id for id in ids if ids.count(id) > 1}) if len(set(ids)) < len(ids) else []
        if twice:
            raise InputError(f"corpus: passage ids are given twice: {', '.join(twice[:5])}")
        words = [content(passage.text) for passage in passages]
        if not any(words):
            raise InputError("corpus: no passage with a word to find; give at least one")
        self.passages = tuple(passages)
        self._known = {word for passage in words for word in passage}
        self._index = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
        self._index.index(words, show_progress=False)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The corpus of a file.

        Args:
            path: .jsonl with one {"id": text, "text": text} per line (further fields are ignored), or .txt with
                passages between blank lines, whose ids are the name of the file and their number.

        Raises:
            InputError: no such file, another kind of file, or a line that is not of this form; names file and line.
        """
        source = Path(path)
        if source.suffix not in (".jsonl", ".txt") or not source.is_file():
            raise InputError(f"{source}: a corpus is a .jsonl or .txt file that exists")
        try:
            text = source.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{source}: not UTF-8: {error}") from error
        if source.suffix == ".txt":
            parts = [part.strip() for part in _BLANK_LINES.split(text) if part.strip()]
            return cls([Passage(f"{source.stem}:{number}", part) for number, part in enumerate(parts, 1)])
        lines = enumerate(text.split("\n"), 1)
        return cls([_passage(line, f"{source}: line {number}") for number, line in lines if line.strip()])

    def scores(self, query: str) -> NDArray[np.float64]:
        """Score per passage, at least 0; 0 = no word in common."""
        words = [word for word in content(query) if word in self._known]
        return self._index.get_scores(words) if words else np.zeros(len(self.passages))

    async def search(self, query: str, most: int) -> list[Passage]:
        """See `Retriever`. Passages without a common word are never returned."""
        scores = self.scores(query)
        ranked = sorted(np.flatnonzero(scores > 0), key=lambda index: (-scores[index], self.passages[index].id))
        return [self.passages[index] for index in ranked[:most]]


def _passage(line: str, where: str) -> Passage:
    try:
        data: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict) or not {"id", "text"} <= set(data):
        raise InputError(f'{where}: expected an object with "id" and "text"')
    try:
        return Passage(data["id"], data["text"])
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
