"""The rubric of one pair: written from the contrast of its candidates, verified, refined, kept or discarded.

Source: Auto-Rubric as Reward, arXiv 2605.08354.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from mmrubric.errors import InputError
from mmrubric.generators.auto_rubric_verify import LABELS, ShownPair, Verifier
from mmrubric.generators.llm import GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import check_wording, numbered
from mmrubric.pairs import PreferencePair
from mmrubric.prompt_file import fenced

FEW = 20
"""Pairs below which a data set is too small to be left unread."""


class Statements(BaseModel):
    """A model's list; the reason comes first, so that the list follows from it."""

    reason: str = ""
    criteria: list[str]


@dataclass(frozen=True)
class Outcome:
    """What became of one pair."""

    pair: str
    statements: tuple[str, ...] = ()
    """Empty unless verified."""
    refinements: int = 0
    why: str = ""
    """Why nothing was kept."""
    failed: bool = False
    """The model failed, so that nothing is known about the pair."""


@dataclass(frozen=True)
class PairWriter:
    """Writes and verifies rubrics of single pairs.

    Args:
        writer: generator whose steps `contrast` and `refine` are asked.
        verifier: says whether a rubric passes.
        most: statements of a rubric, at most.
        max_refinements: after the first writing; so there is one more verification than refinements.
        empty_tries: how often a list that comes back empty is asked for.
        heat: temperature of all tries but the first.
    """

    writer: LLMGenerator
    verifier: Verifier
    most: int
    max_refinements: int
    empty_tries: int
    heat: float

    async def outcome(self, pair: ShownPair) -> Outcome:
        """Generate, verify, refine; discard what is still wrong at the end."""
        if pair.identical:
            return Outcome(pair.id, why="both candidates are the same")
        try:
            return await self._refined(pair, await self._contrast(pair))
        except GenerationFailed as error:
            return Outcome(pair.id, why=str(error), failed=True)

    async def _refined(self, pair: ShownPair, statements: Sequence[str]) -> Outcome:
        if not statements:
            return Outcome(pair.id, why=f"no statement was written in {self.empty_tries} tries")
        for refinements in range(self.max_refinements + 1):
            check = await self.verifier.check(pair, statements)
            if check.passed:
                return Outcome(pair.id, tuple(statements), refinements)
            if refinements < self.max_refinements:
                statements = await self._refine(pair, statements, check.critique, refinements)
        return Outcome(pair.id, refinements=self.max_refinements, why="not verified after the last refinement")

    async def _contrast(self, pair: ShownPair) -> list[str]:
        seen = pair.shown()
        for attempt in range(self.empty_tries):
            reply = await self.writer.ask(
                "contrast",
                Statements,
                pictures=seen.pictures,
                check=lambda reply: self._check(reply, pair, least=0),
                temperature=self.heat if attempt else None,
                repeat=attempt,
                prompt=fenced_prompt(pair.prompt),
                candidates=seen.text,
                preference=self._preference(pair),
                most=str(self.most),
            )
            if reply.criteria:
                return reply.criteria
        return []

    async def _refine(self, pair: ShownPair, statements: Sequence[str], critique: str, number: int) -> list[str]:
        seen = pair.shown()
        reply = await self.writer.ask(
            "refine",
            Statements,
            pictures=seen.pictures,
            check=lambda reply: self._check(reply, pair, least=1),
            repeat=number,
            prompt=fenced_prompt(pair.prompt),
            candidates=seen.text,
            preference=self._preference(pair),
            statements=numbered(statements),
            critique=fenced("critique", critique),
            most=str(self.most),
        )
        return reply.criteria

    def _preference(self, pair: ShownPair) -> str:
        if pair.preferred is None:
            return "Nobody has said which one is better."
        told = f"People preferred {LABELS[pair.preferred]}."
        return f"{told} Their reason:\n{fenced('reason', pair.rationale)}" if pair.rationale else told

    def _check(self, reply: Statements, pair: ShownPair, least: int) -> None:
        if not least <= len(reply.criteria) <= self.most:
            raise ValueError(f"{len(reply.criteria)} criteria; give {max(least, 1)} to {self.most}")
        check_wording(reply.criteria, pair.prompt)


def named(examples: Sequence[Any], field: str) -> list[PreferencePair]:
    """Pairs that all have an id of their own; those without get their place in the list.

    Raises:
        InputError: something that is no PreferencePair, or an id given twice.
    """
    wrong = [type(example).__name__ for example in examples if not isinstance(example, PreferencePair)]
    if wrong:
        raise InputError(f"{field}: takes mmrubric.pairs.PreferencePair, got {wrong[0]}")
    pairs = [pair if pair.id else replace(pair, id=f"pair {number}") for number, pair in enumerate(examples, 1)]
    ids = [pair.id for pair in pairs]
    twice = sorted({id for id in ids if ids.count(id) > 1})
    if twice:
        raise InputError(f"{field}: pair id {twice[0]!r} is given twice; ids must be unique")
    return pairs


def warn_of(pairs: Sequence[PreferencePair], labelled: bool) -> None:
    """Warns of a data set from which a rubric is hard to learn."""
    if len(pairs) < FEW:
        warnings.warn(f"{len(pairs)} pairs are few: pick them by hand, or give {FEW} or more", stacklevel=2)
    places = {pair.label for pair in pairs} if labelled else set()
    if len(pairs) > 1 and len(places) == 1:
        place = places.pop() + 1
        warnings.warn(
            f"the preferred candidate is always number {place}, so that a model may learn the position; "
            "exchange some pairs (PreferencePair.swapped)",
            stacklevel=2,
        )
