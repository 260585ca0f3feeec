"""The parts of an induction that need no model: exemplars, pairs, themes, and what exemplars say of a criterion.

Source: Writer-R1 / IRG, arXiv 2603.15061; the operations are the paper's, the procedure is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Literal

from mmrubric.errors import InputError
from mmrubric.judging import Candidate
from mmrubric.scores import Floats
from mmrubric.similar import Encoder, groups

TOL = 1e-6
"""Two values of a judge that are closer than this are equal."""


@dataclass(frozen=True)
class Exemplar:
    """A candidate to learn from, and how good it is where that is known.

    Raises:
        InputError: no candidate, a blank text, or a score that is not finite.
    """

    candidate: Candidate
    score: float | None = None
    """On any scale, more is better; never shown to the model that writes."""

    def __post_init__(self) -> None:
        if self.candidate is None or (isinstance(self.candidate, str) and not self.candidate.strip()):
            raise InputError("exemplar: field candidate is missing or blank; give an image or a text")
        if self.score is not None and (isinstance(self.score, bool) or not math.isfinite(self.score)):
            raise InputError(f"exemplar: field score must be a finite number or None, got {self.score!r}")


def exemplars_of(given: Sequence[Any], where: str) -> tuple[Exemplar, ...]:
    """Exemplars from candidates with and without a score, all images or all texts.

    Raises:
        InputError: none, or both kinds; the message begins with `where`.
    """
    made = tuple(item if isinstance(item, Exemplar) else Exemplar(item) for item in given)
    if not made:
        raise InputError(f"{where}: exemplars: give at least one image or text, best 4 to 8 of mixed quality")
    if len({isinstance(exemplar.candidate, str) for exemplar in made}) > 1:
        raise InputError(f"{where}: exemplars: give images or texts, not both")
    return made


def ring(count: int) -> list[tuple[int, int]]:
    """Pairs of neighbours, the last one with the first: each item is once the first and once the second of a pair."""
    pairs = [(index, (index + 1) % count) for index in range(count)]
    return pairs if count > 2 else pairs[: count - 1]


@dataclass(frozen=True)
class Theme:
    """What becomes a criterion."""

    text: str
    category: str
    members: tuple[str, ...]
    """Ids of requirements (e1 explicit, i1 implicit) and observations (o1) that it unites."""
    support: int
    """How much speaks for it; becomes the weight."""

    @property
    def explicit(self) -> bool:
        """Whether the prompt asks for it in words."""
        return any(id.startswith("e") for id in self.members)

    @property
    def tied(self) -> bool:
        """Whether it goes back to a requirement."""
        return any(id.startswith(("e", "i")) for id in self.members)


def without_conflicts(themes: Sequence[Theme], conflicts: Sequence[tuple[int, int]]) -> tuple[list[Theme], list[str]]:
    """Of two themes (by index) that no candidate can satisfy together, the explicit one stays; else the one with more
    support; else the earlier.

    Returns:
        The themes that are left, in order, and what was dropped, in words.
    """
    gone: set[int] = set()
    notes = []
    for pair in conflicts:
        if not gone.isdisjoint(pair):
            continue
        winner, loser = sorted(pair, key=lambda index: (not themes[index].explicit, -themes[index].support, index))
        gone.add(loser)
        notes.append(f"dropped: {themes[loser].text!r} contradicts {themes[winner].text!r}")
    return [theme for index, theme in enumerate(themes) if index not in gone], notes


def merged(
    themes: Sequence[Theme], support: Literal["sum", "max"], encoder: Encoder | None = None
) -> tuple[list[Theme], list[str]]:
    """Themes that say the same become the earliest of them, with all members and the sum or the largest support.

    Returns:
        The themes that are left, in order, and what was united, in words.
    """
    made = dict(enumerate(themes))
    notes = []
    for group in groups([theme.text for theme in themes], encoder=encoder):
        first, *others = group
        parts = [themes[index] for index in group]
        supports = [part.support for part in parts]
        members = tuple(dict.fromkeys(id for part in parts for id in part.members))
        total = sum(supports) if support == "sum" else max(supports)
        made[first] = replace(parts[0], members=members, support=total)
        for index in others:
            del made[index]
            notes.append(f"merged: {themes[index].text!r} into {parts[0].text!r}")
    return list(made.values()), notes


def strongest(themes: Sequence[Theme], most: int, separating: frozenset[str]) -> list[Theme]:
    """The `most` themes with the most support, then tied to a requirement, then with more `separating` observations;
    in their order."""

    def rank(index: int) -> tuple[int, bool, int, int]:
        theme = themes[index]
        return -theme.support, not theme.tied, -len(separating.intersection(theme.members)), index

    kept = set(sorted(range(len(themes)), key=rank)[:most])
    return [theme for index, theme in enumerate(themes) if index in kept]


def fault(values: Floats, scores: Sequence[float | None]) -> str:
    """Why a criterion says nothing about exemplars or contradicts what is known of them; "" if it does neither.

    Args:
        values: [N] a judge's values of the exemplars in [0, 1], NaN = unknown.
        scores: N known scores of the exemplars, more is better.
    """
    known = [index for index, value in enumerate(values) if not math.isnan(value)]
    if len(known) < 2:
        return ""
    if max(values[known]) - min(values[known]) <= TOL:
        return "all exemplars score the same"
    for better, worse in permutations(known, 2):
        high, low = scores[better], scores[worse]
        if high is not None and low is not None and high > low and values[better] < values[worse] - TOL:
            return f"the better exemplar {better + 1} scores lower than exemplar {worse + 1}"
    return ""
