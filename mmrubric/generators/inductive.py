"""Induces a rubric with level anchors from exemplars: recover, open code, cluster, select, describe levels, validate.

Source: Writer-R1 / IRG, arXiv 2603.15061; the operations are the paper's, the procedure is ours after Grounded Theory.
"""

from __future__ import annotations

import random
import string
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.inductive_replies import (
    Clusters,
    Levels,
    Observations,
    Order,
    Requirements,
    Traits,
    check_quotes,
)
from mmrubric.generators.inductive_themes import (
    Exemplar,
    Theme,
    exemplars_of,
    fault,
    merged,
    ring,
    strongest,
    without_conflicts,
)
from mmrubric.generators.items import slug, with_unique_ids
from mmrubric.generators.leaks import shared_run
from mmrubric.generators.llm import Asked, Draft, GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import Part, display, part_of
from mmrubric.judging import Judge, JudgeRequest, candidate_id, run_all
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Anchor, Criterion, Rubric
from mmrubric.scores import ScoreTable
from mmrubric.similar import Encoder
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

T = TypeVar("T")
_TAGS = Tags(Construction.response_grounded, Optimisation.verify, Signal.output_level, Loop.none)
_COPIED_WORDS = 6
"""A criterion that has so many words in a row from an exemplar, and not from the prompt, speaks of that exemplar."""


@dataclass(frozen=True)
class _Finding:
    """A requirement or an observation, by id."""

    text: str
    quote: str = ""
    separates: bool = False


@registry.register("inductive", _TAGS)
@dataclass
class InductiveGenerator(LLMGenerator):
    """Writes ordinal criteria from what tells exemplars apart. Needs exemplars: `Exemplar`, images or texts.

    Exemplars are compared in neighbouring pairs, without author or score. A criterion stays when its shuffled anchors
    can be put in order again, and, with a judge, when the exemplars do not all score the same and none scores higher
    than one that is known to be better.

    Args:
        levels: anchors per criterion, from 2 to 10.
        max_criteria: more than this is cut: least support first.
        support: "sum" or "max" of two criteria that become one.
        judge: a `Judge` that scores the exemplars; None = only the order of the anchors is checked.
        encoder: finds criteria that say the same by meaning; None = by words.
        fallback: as for all generators, but an error by default: no other generator sees the exemplars.

    Raises:
        InputError: see `LLMGenerator`, and a bad value.
    """

    NAME: ClassVar[str] = "inductive/1"
    PROMPTS: ClassVar[str] = "inductive_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "recover": ("prompt",),
        "compare": ("prompt", "candidates"),
        "describe": ("prompt", "candidates"),
        "cluster": ("prompt", "findings"),
        "levels": ("prompt", "criterion", "quotes", "count"),
        "order": ("prompt", "criterion", "levels"),
    }
    TAKES: ClassVar[frozenset[str]] = frozenset({"exemplars"})

    _: KW_ONLY
    levels: int = 5
    max_criteria: int = 8
    support: Literal["sum", "max"] = "sum"
    judge: Judge | None = None
    encoder: Encoder | None = None
    fallback: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(f"{self._where}: support", self.support, ("sum", "max"))
        if not 2 <= self.levels <= 10 or self.max_criteria < 1:
            raise InputError(
                f"{self._where}: needs levels from 2 to 10 and max_criteria of at least 1, got {self.levels} and "
                f"{self.max_criteria}"
            )
        if self.judge is not None and not isinstance(self.judge, Judge):
            raise InputError(f"{self._where}: judge must be a Judge, got {type(self.judge).__name__}")

    async def write(self, asked: Asked) -> Draft:
        exemplars = exemplars_of(asked.exemplars, self._where)
        parts = [
            await part_of(exemplar.candidate, f"{self._where}: exemplar {number}")
            for number, exemplar in enumerate(exemplars, 1)
        ]
        findings, missed = await self._findings(asked.prompt, parts)
        themes, dropped = await self._themes(asked.prompt, findings, parts)
        made, unusable = await _usable(self._criterion(asked.prompt, theme, findings) for theme in themes)
        criteria, judged, proven = await self._validated(asked.prompt, made, exemplars)
        notes = (*missed, *dropped, *unusable, *judged)
        if not criteria:
            raise GenerationFailed(f"no criterion was left: {'; '.join(notes)}")
        total = sum(criterion.weight for criterion in criteria)
        return Draft(
            [criterion.model_copy(update={"weight": criterion.weight / total}) for criterion in criteria],
            notes,
            {"verified_by": "label" if proven else "", "extra": {"exemplars": [_hash(part) for part in parts]}},
        )

    async def _findings(self, prompt: str, parts: Sequence[Part]) -> tuple[dict[str, _Finding], list[str]]:
        """Requirements and observations by id, and which pairs gave nothing."""
        needs = await self.ask(
            "recover", Requirements, check=lambda found: found.check(prompt), prompt=fenced_prompt(prompt)
        )
        seen, missed = await self._observed(prompt, parts)
        found = {f"e{number}": _Finding(need.requirement, need.quote) for number, need in enumerate(needs.explicit, 1)}
        found |= {f"i{number}": _Finding(need) for number, need in enumerate(needs.implicit, 1)}
        found |= {f"o{number}": one for number, one in enumerate(seen, 1)}
        return found, missed

    async def _observed(self, prompt: str, parts: Sequence[Part]) -> tuple[list[_Finding], list[str]]:
        if len(parts) == 1:
            return await self._described(prompt, parts[0]), []
        answers, missed = await _usable(self._compared(prompt, parts[i], parts[j]) for i, j in ring(len(parts)))
        if not answers:
            raise GenerationFailed(f"no pair of exemplars could be compared: {missed[0]}")
        return [found for answer in answers for found in answer], missed

    async def _compared(self, prompt: str, a: Part, b: Part) -> list[_Finding]:
        shown = display([("A", a), ("B", b)])
        answer = await self.ask(
            "compare",
            Observations,
            pictures=shown.pictures,
            check=lambda found: check_quotes([seen.quote for seen in found.observations], (a, b)),
            prompt=fenced_prompt(prompt),
            candidates=shown.text,
        )
        return [_Finding(seen.observation, seen.quote, seen.better != "same") for seen in answer.observations]

    async def _described(self, prompt: str, part: Part) -> list[_Finding]:
        shown = display([("A", part)])
        answer = await self.ask(
            "describe",
            Traits,
            pictures=shown.pictures,
            check=lambda found: check_quotes([seen.quote for seen in found.observations], (part,)),
            prompt=fenced_prompt(prompt),
            candidates=shown.text,
        )
        return [_Finding(f"{seen.effect}: {seen.observation}", seen.quote) for seen in answer.observations]

    async def _themes(
        self, prompt: str, findings: Mapping[str, _Finding], parts: Sequence[Part]
    ) -> tuple[list[Theme], list[str]]:
        """What becomes a criterion, and what was dropped or united on the way."""
        lines = [f"[{id}] {' '.join(found.text.split())}" for id, found in findings.items()]
        answer = await self.ask(
            "cluster",
            Clusters,
            check=lambda found: found.check(findings, prompt),
            prompt=fenced_prompt(prompt),
            findings=fenced("findings", "\n".join(lines)),
        )
        themes = [
            Theme(one.criterion.strip(), one.category.strip() or "general", tuple(one.members), len(one.members))
            for one in answer.clusters
        ]
        conflicts = [(index, other - 1) for index, one in enumerate(answer.clusters) for other in one.conflicts_with]
        themes, dropped = without_conflicts(themes, conflicts)
        themes, united = merged(themes, self.support, self.encoder)
        texts = [part for part in parts if isinstance(part, str)]
        copied = {theme: run for theme in themes if (run := _copied(theme.text, texts, prompt))}
        told = [f"dropped: {theme.text!r} repeats an exemplar: {run!r}" for theme, run in copied.items()]
        themes = [theme for theme in themes if theme not in copied]
        separating = frozenset(id for id, found in findings.items() if found.separates)
        kept = strongest(themes, self.max_criteria, separating)
        cut = [f"dropped: {theme.text!r}, least support" for theme in themes if theme not in kept]
        return kept, [*dropped, *united, *told, *cut]

    async def _criterion(self, prompt: str, theme: Theme, findings: Mapping[str, _Finding]) -> Criterion:
        """The criterion of a theme with its anchors.

        Raises:
            GenerationFailed: no anchors, or none that can be told apart.
        """
        quotes = [f"- {findings[id].text}: {findings[id].quote or 'inferred'}" for id in theme.members]
        try:
            answer = await self.ask(
                "levels",
                Levels,
                check=lambda found: found.check(self.levels),
                prompt=fenced_prompt(prompt),
                criterion=fenced("criterion", theme.text),
                quotes=fenced("quotes", "\n".join(quotes)),
                count=str(self.levels),
            )
            anchors = [" ".join(level.split()) for level in answer.levels]
            ordered = await self._can_be_ordered(prompt, theme.text, anchors)
        except GenerationFailed as error:
            raise GenerationFailed(f"dropped: {theme.text!r}, {error}") from error
        if not ordered:
            raise GenerationFailed(f"dropped: {theme.text!r}, its levels cannot be put in order by their words")
        return Criterion(
            id=slug(theme.text),
            text=theme.text,
            category=theme.category,
            weight=float(theme.support),
            scale="ordinal",
            anchors=tuple(Anchor(text=anchor) for anchor in anchors),
            extra={"support": theme.support},
        )

    async def _can_be_ordered(self, prompt: str, criterion: str, anchors: Sequence[str]) -> bool:
        """Whether the model finds the order of shuffled anchors again."""
        letters = string.ascii_lowercase[: len(anchors)]
        places = _shuffled(len(anchors), criterion)
        lines = [f"{letter}: {anchors[place]}" for letter, place in zip(letters, places, strict=True)]
        answer = await self.ask(
            "order",
            Order,
            check=lambda found: found.check(letters),
            prompt=fenced_prompt(prompt),
            criterion=fenced("criterion", criterion),
            levels=fenced("levels", "\n".join(lines)),
        )
        found = [places[letters.index(letter)] for letter in answer.order]
        return found == sorted(found)

    async def _validated(
        self, prompt: str, criteria: Sequence[Criterion], exemplars: Sequence[Exemplar]
    ) -> tuple[list[Criterion], list[str], bool]:
        """Criteria that no exemplar speaks against, what was found, and whether all were held against scores."""
        made = with_unique_ids(criteria)
        if len(exemplars) == 1 or self.judge is None or not made:
            why = "one exemplar" if len(exemplars) == 1 else "no judge"
            return made, [f"not validated: {why}; only the order of the levels was checked, by their words"], False
        rubric = Rubric(prompt=prompt, criteria=tuple(made))
        names = [str(number) for number in range(1, len(exemplars) + 1)]
        requests = [
            JudgeRequest(rubric, exemplar.candidate, sample_id=name)
            for name, exemplar in zip(names, exemplars, strict=True)
        ]
        table = ScoreTable.from_verdicts(rubric, names, await self.judge.score(requests))
        scores = [exemplar.score for exemplar in exemplars]
        scored = np.array([score is not None for score in scores])
        kept, notes, proven = [], [f"validated on {len(exemplars)} exemplars by {self.judge.id}"], True
        for criterion, values in zip(made, table.good.T, strict=True):
            if why := fault(values, scores):
                notes.append(f"dropped: {criterion.text!r}, {why}")
                continue
            known = np.isfinite(values)
            if known.sum() < 2:
                notes.append(f"not validated: {criterion.text!r}, the judge knows fewer than 2 exemplars")
            proven &= bool((known & scored).sum() >= 2)
            kept.append(criterion)
        return kept, notes, proven


async def _usable(work: Iterable[Coroutine[Any, Any, T]]) -> tuple[list[T], list[str]]:
    """Results of coroutines in their order, and why others failed."""
    failures: list[str] = []

    async def tried(one: Coroutine[Any, Any, T]) -> T | None:
        try:
            return await one
        except GenerationFailed as error:
            failures.append(str(error))
            return None

    results = await run_all(tried(one) for one in work)
    return [result for result in results if result is not None], sorted(failures)


def _hash(part: Part) -> str:
    return candidate_id(part) if isinstance(part, str) else part.sha256


def _copied(text: str, exemplars: Sequence[str], prompt: str) -> str:
    """Words in a row that a text shares with an exemplar and not with the prompt; "" = none."""
    runs = (shared_run(text, exemplar, _COPIED_WORDS, prompt) for exemplar in exemplars)
    return next(filter(None, runs), "")


def _shuffled(count: int, seed: str) -> list[int]:
    """0 .. count-1 in an order that depends on the seed alone and is never the sorted one."""
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return places if places != sorted(places) else [*places[1:], places[0]]
