"""Whether a rubric decides a labelled pair: by the label, by consistency, or by another model.

Sources: Auto-Rubric as Reward, arXiv 2605.08354 (label; a tie fails); Proxy-GRM, arXiv 2603.16600 (another model, both
orders). Consistency, for pairs without labels, is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from mmrubric.chat import ImagePart
from mmrubric.errors import InputError
from mmrubric.generators.llm import GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import Display, Part, display, numbered, part_of, sources_shown
from mmrubric.judging import run_all
from mmrubric.pairs import PreferencePair

LABELS = ("Candidate 1", "Candidate 2")


@dataclass(frozen=True)
class ShownPair:
    """A pair that is ready to be shown."""

    id: str
    prompt: str
    candidates: tuple[Part, Part]
    preferred: int | None
    """None where labels are not looked at."""
    sources: tuple[ImagePart, ...] = ()
    rationale: str = ""

    @classmethod
    async def of(cls, pair: PreferencePair, labelled: bool) -> ShownPair:
        """Normalises and encodes the pictures of a pair. A bad picture or, where `labelled`, a missing label is an
        `InputError` with the pair's id."""
        where = f"pair {pair.id!r}"
        sources: list[ImagePart] = []
        for given in pair.sources:
            source = await part_of(given, f"{where}: source")
            if isinstance(source, str):
                raise InputError(f"{where}: source must be a picture, got a text")
            sources.append(source)
        first, second = [await part_of(candidate, where) for candidate in pair.candidates]
        label = pair.label if labelled else None
        return cls(pair.id, pair.prompt, (first, second), label, tuple(sources), pair.rationale)

    @property
    def identical(self) -> bool:
        """True when both candidates are the same: no rubric can tell them apart."""
        return self.candidates[0] == self.candidates[1]

    def shown(self, swapped: bool = False, labels: Sequence[str] = LABELS) -> Display:
        """The sources and both candidates, in their order or in the other one. Neither label nor rationale."""
        parts = self.candidates[::-1] if swapped else self.candidates
        seen = display(list(zip(labels, parts, strict=True)))
        return Display((*sources_shown(self.sources), *seen.pictures), seen.text)


class Ranked(BaseModel):
    """A model's ranks of two candidates; the reason comes first, so that the ranks follow from it."""

    reason: str = ""
    rank: tuple[int, int]

    def check(self) -> None:
        """Raises ValueError for ranks that say nothing."""
        if self.rank not in ((1, 2), (2, 1), (1, 1)):
            raise ValueError(f"rank {list(self.rank)} is none of [1, 2], [2, 1] and, for a tie, [1, 1]")


@dataclass(frozen=True)
class Decision:
    """What a rubric says of a pair in one order."""

    winner: int | None
    """Index in the pair, whatever the order; None = tie."""
    report: str
    """What was shown first, the ranks and the reason, in words."""


@dataclass(frozen=True)
class Check:
    """Whether a rubric passed, and if not, why."""

    passed: bool
    critique: str = ""


@dataclass(frozen=True)
class Verifier:
    """Applies rubrics to pairs.

    Args:
        asker: generator whose step `apply` is asked; for `proxy` one that asks another model.
        mode: label, consistency or proxy.
        both: both orders must name the preferred candidate; False = the order of the pair alone (label only).
        samples: further askings for self-agreement (consistency only), half of them in each order.
        heat: temperature of these.
    """

    asker: LLMGenerator
    mode: Literal["label", "consistency", "proxy"]
    both: bool
    samples: int
    heat: float

    async def check(self, pair: ShownPair, statements: Sequence[str]) -> Check:
        """Whether the rubric decides the pair.

        Raises:
            GenerationFailed: the model gave no usable answer: nothing is known about the rubric.
        """
        if self.mode == "consistency":
            return await self._consistent(pair, statements)
        for swapped in (False, True) if self.both else (False,):
            # One after the other: a rubric that fails in one order need not be asked in the other.
            decision = await self._decide(pair, statements, swapped)
            if decision.winner != pair.preferred:
                return Check(False, f"{_expected(pair, swapped)} {decision.report}")
        return Check(True)

    async def _consistent(self, pair: ShownPair, statements: Sequence[str]) -> Check:
        """The verdict follows the candidates when they are swapped, and most samples repeat it."""
        orders = (False, True)
        first, second = await run_all(self._decide(pair, statements, swapped) for swapped in orders)
        if first.winner is None or first.winner != second.winner:
            return Check(
                False, f"The verdict must name the same candidate in both orders. {first.report} {second.report}"
            )
        votes = await run_all(self._vote(pair, statements, number) for number in range(1, self.samples + 1))
        agreeing = sum(vote is not None and vote.winner == first.winner for vote in votes)
        if 2 * agreeing > self.samples:
            return Check(True)
        against = next((vote.report for vote in votes if vote is not None and vote.winner != first.winner), "")
        return Check(False, f"Only {agreeing} of {self.samples} repeated judgements agreed with the first. {against}")

    async def _vote(self, pair: ShownPair, statements: Sequence[str], number: int) -> Decision | None:
        """A further sample; None when the model fails, which is no agreement."""
        try:
            return await self._decide(pair, statements, number % 2 == 0, number, self.heat)
        except GenerationFailed:
            return None

    async def _decide(
        self,
        pair: ShownPair,
        statements: Sequence[str],
        swapped: bool,
        repeat: int = 0,
        heat: float | None = None,
    ) -> Decision:
        seen = pair.shown(swapped)
        reply = await self.asker.ask(
            "apply",
            Ranked,
            pictures=seen.pictures,
            check=Ranked.check,
            temperature=heat,
            repeat=repeat,
            prompt=fenced_prompt(pair.prompt),
            candidates=seen.text,
            statements=numbered(statements),
        )
        place = {(1, 2): 0, (2, 1): 1}.get(reply.rank)
        winner = None if place is None else (1 - place if swapped else place)
        order = "exchanged" if swapped else "as shown above"
        return Decision(winner, f"With the candidates {order} the ranks were {list(reply.rank)}: {reply.reason}")


def _expected(pair: ShownPair, swapped: bool) -> str:
    first = pair.preferred == int(swapped)
    return f"Expected were the ranks {[1, 2] if first else [2, 1]}."


async def shown_pairs(pairs: Sequence[PreferencePair], labelled: bool = True) -> list[ShownPair]:
    """All pairs, ready to be shown, with or without their labels; encoded a few at a time."""
    limit = asyncio.Semaphore(8)

    async def one(pair: PreferencePair) -> ShownPair:
        async with limit:
            return await ShownPair.of(pair, labelled)

    return await run_all(one(pair) for pair in pairs)
