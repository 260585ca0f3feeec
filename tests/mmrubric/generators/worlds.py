"""Judges for tests of learning generators: one by a function, and the pixel judge of shapes asked in plain words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import judges
from mmrubric.judging import JudgeRequest, SyncMixin
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure, Verdict

Said = float | Failure | None
"""A score, a failure, or None = does not apply."""


class ScriptedJudge(SyncMixin):
    """Scores by a function of candidate and criterion text; keeps its requests in `asked`."""

    def __init__(self, say: Callable[[Any, str], Said]) -> None:
        self._say = say
        self.asked: list[JudgeRequest] = []

    @property
    def id(self) -> str:
        return "scripted/1"

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        self.asked += requests
        return [[self._verdict(request, criterion) for criterion in request.rubric.criteria] for request in requests]

    def _verdict(self, request: JudgeRequest, criterion: Criterion) -> Verdict:
        said, sample = self._say(request.candidate, criterion.text), request.sample_id or ""
        if isinstance(said, Failure):
            return Verdict(sample, criterion.id, None, failure=said)
        return Verdict(sample, criterion.id, said, applicable=said is not None)


class WordsToPixels(SyncMixin):
    """The pixel judge of shapes for criteria in plain words, by a table from text to check."""

    def __init__(self, checks: Mapping[str, dict[str, Any]]) -> None:
        self._checks = checks
        self._pixels = judges.build("shapes")

    @property
    def id(self) -> str:
        return f"words of {self._pixels.id}"

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        rubrics: dict[int, Rubric] = {}
        for request in requests:
            rubrics.setdefault(id(request.rubric), self._translated(request.rubric))
        return await self._pixels.score([replace(request, rubric=rubrics[id(request.rubric)]) for request in requests])

    def _translated(self, rubric: Rubric) -> Rubric:
        criteria = [
            criterion.model_copy(update={"verifier": "rule:shapes", "arguments": self._checks[criterion.text]})
            for criterion in rubric.criteria
        ]
        return Rubric(prompt=rubric.prompt, criteria=tuple(criteria))
