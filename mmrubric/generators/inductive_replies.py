"""What the model answers at each step of an induction, and what is wrong with an answer, in words for the model.

A check raises ValueError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import BaseModel

from mmrubric.generators.showing import Part, check_wording
from mmrubric.similar import normalise


class Explicit(BaseModel):
    """A requirement that the prompt states."""

    requirement: str
    quote: str


class Requirements(BaseModel):
    """What the prompt asks for."""

    explicit: list[Explicit]
    implicit: list[str]

    def check(self, prompt: str) -> None:
        """Explicit requirements are quoted from the prompt, and there is at least one requirement."""
        for need in self.explicit:
            if not normalise(need.quote) or normalise(need.quote) not in normalise(prompt):
                raise ValueError(f"quote {need.quote!r} does not stand in the prompt; quote it, or call it implicit")
        if not self.explicit and not self.implicit:
            raise ValueError("there is no requirement; give at least one")


class Observation(BaseModel):
    """What tells two exemplars apart."""

    observation: str
    better: Literal["A", "B", "same"]
    quote: str


class Observations(BaseModel):
    """Of one pair."""

    observations: list[Observation]


class Trait(BaseModel):
    """What makes one exemplar good or bad."""

    observation: str
    effect: Literal["good", "bad"]
    quote: str


class Traits(BaseModel):
    """Of one exemplar."""

    observations: list[Trait]


class Cluster(BaseModel):
    """Requirements and observations that speak of the same thing."""

    criterion: str
    category: str = "general"
    members: list[str]
    conflicts_with: list[int] = []


class Clusters(BaseModel):
    """All of them."""

    clusters: list[Cluster]

    def check(self, known: Collection[str], prompt: str) -> None:
        """Members are known and belong to one cluster each; criteria can be judged on one candidate."""
        check_wording([one.criterion for one in self.clusters], prompt)
        members = Counter(id for one in self.clusters for id in one.members)
        unknown = sorted(set(members) - set(known))
        if unknown:
            raise ValueError(f"members {', '.join(unknown)} are no ids of the list")
        twice = sorted(id for id, times in members.items() if times > 1)
        if twice:
            raise ValueError(f"{', '.join(twice)} stand in more than one place; each belongs to one cluster")
        for number, one in enumerate(self.clusters, 1):
            if not one.members:
                raise ValueError(f"cluster {number} has no members")
            wrong = [other for other in one.conflicts_with if other == number or not 1 <= other <= len(self.clusters)]
            if wrong:
                raise ValueError(f"conflicts_with of cluster {number}: {wrong[0]} is no number of another cluster")


class Levels(BaseModel):
    """Anchors of one criterion, lowest first."""

    levels: list[str]

    def check(self, count: int) -> None:
        """As many as asked for, no two alike."""
        if len(self.levels) != count:
            raise ValueError(f"{len(self.levels)} levels; give exactly {count}")
        plain = [normalise(level) for level in self.levels]
        if not all(plain) or len(set(plain)) < len(plain):
            raise ValueError("every level needs words of its own")


class Order(BaseModel):
    """Letters of shuffled anchors, lowest first."""

    order: list[str]

    def check(self, letters: str) -> None:
        """Each letter once."""
        if sorted(self.order) != sorted(letters):
            raise ValueError(f"order must hold each of {', '.join(letters)} once")


def check_quotes(quotes: Sequence[str], parts: Sequence[Part]) -> None:
    """There is an observation, and what is quoted from texts stands there; of pictures a quote says where to look."""
    if not quotes:
        raise ValueError("there is no observation; give at least one")
    texts = [normalise(part) for part in parts if isinstance(part, str)]
    for quote in quotes:
        if texts and not any(normalise(quote) in text for text in texts):
            raise ValueError(f"quote {quote!r} does not stand in the text; copy it letter by letter")
