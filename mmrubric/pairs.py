"""Labelled pairs: two candidates for one prompt, of which people preferred one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmrubric.errors import InputError
from mmrubric.judging import Candidate
from mmrubric.prompt import Media, checked_sources


@dataclass(frozen=True)
class PreferencePair:
    """What generators learn from, and what verification holds a rubric against.

    Raises:
        InputError: not exactly two candidates, `sources` is no sequence of images, or `preferred` is neither 0 nor 1
            nor None.
    """

    prompt: str
    candidates: tuple[Candidate, Candidate]
    """In the order in which they are shown."""
    preferred: int | None = None
    """Index of the preferred candidate: 0 or 1. Both should occur in a data set, or a model learns the position.
    None = nobody has said."""
    sources: tuple[Media, ...] = ()
    """Source images of an edit, in order, the one that is edited first."""
    id: str = ""
    rationale: str = ""
    """Why, in a person's words."""

    def __post_init__(self) -> None:
        if len(self.candidates) != 2:
            raise InputError(f"pair {self.id!r}: needs two candidates, got {len(self.candidates)}")
        object.__setattr__(self, "sources", checked_sources(self.sources, f"pair {self.id!r}"))
        if self.preferred not in (None, 0, 1) or isinstance(self.preferred, bool):
            raise InputError(f"pair {self.id!r}: preferred must be 0 or 1, got {self.preferred!r}")

    @property
    def label(self) -> int:
        """`preferred`, where somebody has said; `InputError` otherwise."""
        if self.preferred is None:
            raise InputError(f"pair {self.id!r}: field preferred is missing; say 0 or 1")
        return self.preferred

    @property
    def better(self) -> Candidate:
        """The preferred candidate."""
        return self.candidates[self.label]

    @property
    def worse(self) -> Candidate:
        """The other one."""
        return self.candidates[1 - self.label]

    def swapped(self) -> PreferencePair:
        """The same pair, shown in the other order."""
        preferred = None if self.preferred is None else 1 - self.preferred
        return replace(self, candidates=self.candidates[::-1], preferred=preferred)
