"""What every format is made of: the place that an error names, the losses of an export, the `Format` row."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric

_PLAIN = Criterion(id="plain", text="plain")
_FEATURES = ("hard", "depends_on", "scale", "anchors", "options", "expected", "verifier", "arguments")
"""Fields that change what a score means, so that a format that cannot hold them must say so."""


@dataclass(frozen=True)
class Place:
    """Where a value stands: file and line or row, record, criterion. Counts what was odd on the way."""

    text: str
    counts: Counter[str] = field(default_factory=Counter)
    """How often each kind of oddity was met; shared by all places of one file."""

    def inside(self, part: str) -> Place:
        """The place of a part of this one."""
        return Place(f"{self.text}: {part}", self.counts)

    def error(self, message: str) -> InputError:
        """An error that begins with this place."""
        return InputError(f"{self.text}: {message}")

    def warn(self, kind: str, message: str) -> None:
        """Count a thing of this kind; only the first one of a file is shown, with its place."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            warnings.warn(f"{self.text}: {message}", stacklevel=3)


@dataclass
class Loss:
    """What the target of an export could not hold."""

    dropped: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of criterion id and field."""

    def check(self, criterion: Criterion, holds: frozenset[str] = frozenset()) -> None:
        """Note every feature of the criterion that the target, which holds `holds`, would lose.

        Raises:
            InputError: the answer "no" is the good one. Without `expected` the criterion would mean its
                opposite, which is no loss of detail, so it is refused even when losses are allowed.
        """
        if criterion.scale == "binary" and criterion.expected == "no" and "expected" not in holds:
            raise InputError(
                f"criterion {criterion.id!r}: field 'expected': 'no' cannot be exported, and without it the "
                "criterion would mean its opposite; word the text so that yes is good"
            )
        for name in _FEATURES:
            value = getattr(criterion, name)
            plain = value == getattr(_PLAIN, name) or (name == "expected" and value == "yes")
            if name not in holds and not plain:
                self.dropped.append((criterion.id, name))

    def described(self) -> list[str]:
        """One line per loss."""
        return [f"criterion {id!r}: field {name!r}" for id, name in self.dropped]


@dataclass(frozen=True)
class Format:
    """One rubric format of others."""

    read: Callable[[Any, Place], list[Rubric]]
    """One record to its rubrics; none when the record has no rubric, which is counted."""
    matches: Callable[[Any], bool]
    """Whether a record looks like this format and like no other."""
    write: Callable[[Rubric, Loss], Any] | None = None
    """One rubric to one record; None = import only."""
    lists: bool = False
    """Whether a record may be a bare list of criteria."""
