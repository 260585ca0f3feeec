"""Scores one candidate: a call per criterion, or one call for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from judges.vlm.questions import Questions
from judges.vlm.readers import read_shares
from judges.vlm.replies import Batch, read_batch
from judges.vlm.scales import Judged, codes, judged_answer, judged_shares
from judges.vlm.settings import Settings
from judges.vlm.showing import Shown, prepare
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest, run_all
from mmrubric.llm_asking import Answer, Asker, Reading, TopTokens
from mmrubric.llm_json import BadAnswer
from mmrubric.rubric import Criterion
from mmrubric.verdict import Cost, Failure, Verdict


class Scorer:
    """Scores candidates with the questions and the options of one judge."""

    def __init__(self, asker: Asker, questions: Questions, settings: Settings) -> None:
        self._asker = asker
        self._questions = questions
        self._settings = settings

    async def score(self, request: JudgeRequest) -> list[Verdict]:
        """One verdict per criterion, in rubric order; a picture that cannot be read makes all of them failures."""
        criteria = request.rubric.criteria
        try:
            shown = await asyncio.to_thread(prepare, request, self._settings.images)
        except InputError as error:
            answers = {c.id: Answer[Judged](None, Failure.bad_image, str(error)) for c in criteria}
        else:
            answers = await (self._batch if self._settings.mode == "batched" else self._each)(shown, criteria)
        return [self._verdict(str(request.sample_id), c.id, answers[c.id]) for c in criteria]

    async def _each(self, shown: Shown, criteria: Sequence[Criterion]) -> dict[str, Answer[Judged]]:
        answers = await run_all(self._one(shown, criterion) for criterion in criteria)
        return {criterion.id: answer for criterion, answer in zip(criteria, answers, strict=True)}

    async def _one(self, shown: Shown, criterion: Criterion) -> Answer[Judged]:
        question, route = self._questions.one(shown, criterion), shown.route
        if self._settings.read == "logprob":
            return await self._asker.first_token(question, partial(self._read_token, criterion), route)
        return await self._asker.json(question, partial(_read_one, criterion), route, self._settings.re_asks)

    def _read_token(self, criterion: Criterion, top: TopTokens) -> Reading[Judged]:
        shares = read_shares(top, list(codes(criterion)), self._settings.off_mass)
        return Reading(judged_shares(criterion, shares), [list(item) for item in top])

    async def _batch(self, shown: Shown, criteria: Sequence[Criterion]) -> dict[str, Answer[Judged]]:
        """One call for all; then, `re_asks` times at most, one for those that are missing or answered badly."""
        answers: dict[str, Answer[Judged]] = {}
        costs: list[Cost] = []
        ids = {criterion.id for criterion in criteria}
        left, re_asks = list(criteria), self._settings.re_asks
        for round in range(1 + re_asks):
            read = partial(_read_all, left, ids)
            # A second chance within the second round would multiply the calls.
            chances = re_asks if round == 0 else 0
            reply = await self._asker.json(self._questions.batch(shown, left), read, shown.route, chances)
            costs.append(reply.cost)
            batch = reply.value or _usable_part(left, ids, reply)
            answers |= {id: Answer(judged) for id, judged in batch.judged.items()}
            answers |= {id: Answer(None, problem.failure, str(problem)) for id, problem in batch.problems.items()}
            left = [criterion for criterion in left if criterion.id in batch.problems]
            if not left or not batch.judged:
                break
        return _with_cost(answers, criteria[0].id, costs)

    def _verdict(self, sample_id: str, criterion_id: str, answer: Answer[Judged]) -> Verdict:
        common: dict[str, Any] = {"read": self._settings.read, "cost": answer.cost}
        if answer.value is None:
            return Verdict(sample_id, criterion_id, None, failure=answer.failure, reason=answer.detail, **common)
        met, reason = answer.value.met, answer.value.reason
        return Verdict(sample_id, criterion_id, met, applicable=met is not None, reason=reason, **common)


def _read_one(criterion: Criterion, reply: Any) -> Reading[Judged]:
    return Reading(judged_answer(criterion, reply), reply)


def _read_all(asked: Sequence[Criterion], known: set[str], reply: Any) -> Reading[Batch]:
    """A batch of which at least a part is usable.

    Raises:
        BadAnswer: nothing is, or everything is but ids were made up, so that the model may have mixed them up.
    """
    batch = read_batch(asked, known, reply)
    if not batch.judged:
        problems = list(batch.problems.values())
        raise BadAnswer("; ".join(map(str, problems)), problems[0].failure)
    if batch.invented and not batch.problems:
        raise BadAnswer(f"nobody asked about these ids: {', '.join(map(repr, batch.invented))}")
    return Reading(batch, {"verdicts": batch.entries})


def _usable_part(asked: Sequence[Criterion], known: set[str], reply: Answer[Batch]) -> Batch:
    """What can be used of an answer that failed as a whole."""
    try:
        return read_batch(asked, known, reply.found)
    except BadAnswer:
        failure = BadAnswer(reply.detail, reply.failure or Failure.unparsable)
        return Batch(problems={criterion.id: failure for criterion in asked})


def _with_cost(answers: dict[str, Answer[Judged]], first: str, costs: list[Cost]) -> dict[str, Answer[Judged]]:
    """The whole cost goes to the first criterion, so that a sum over verdicts is right."""
    total = sum(costs[1:], costs[0])
    others = Cost(cached=total.cached)
    return {id: replace(answer, cost=total if id == first else others) for id, answer in answers.items()}
