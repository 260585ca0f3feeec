"""Ranks two candidates in one call by the whole rubric (Auto-Rubric as Reward, arXiv 2605.08354)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Any

from judges.vlm.questions import Questions
from judges.vlm.replies import read_rank
from judges.vlm.scales import reason_of
from judges.vlm.settings import Settings
from judges.vlm.showing import Shown, prepare
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.judging import PairRequest, run_all
from mmrubric.llm_asking import Asker, Reading
from mmrubric.preference import both_orders, seeded_rng
from mmrubric.verdict import FREE, Cost, Failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranking:
    """Answer to one order of a pair."""

    verdict: PairVerdict
    """WIN_A = the candidate shown first is better; WIN_B, TIE or FAILED."""
    reason: str = ""
    failure: Failure | None = None
    """Why the verdict is FAILED."""
    cost: Cost = FREE


class Ranker:
    """Compares candidates with the questions and the options of one judge."""

    def __init__(self, asker: Asker, questions: Questions, settings: Settings) -> None:
        self._asker = asker
        self._questions = questions
        self._settings = settings
        self._told: set[Failure] = set()

    async def rank(self, request: PairRequest) -> Ranking:
        """The answer to the pair in its own order."""
        try:
            shown = await asyncio.to_thread(prepare, request, self._settings.images)
        except InputError as error:
            return Ranking(PairVerdict.FAILED, str(error), Failure.bad_image)
        return await self._ask(shown, request)

    async def compare(self, request: PairRequest) -> PairVerdict:
        """The verdict on a pair, in the orders that the setting `position` says."""
        try:
            shown = await asyncio.to_thread(prepare, request, self._settings.images)
        except InputError as error:
            self._tell(Ranking(PairVerdict.FAILED, str(error), Failure.bad_image))
            return PairVerdict.FAILED
        if shown.hashes[0] == shown.hashes[1]:
            return PairVerdict.TIE
        swapped = replace(shown, candidates=shown.candidates[::-1])
        if self._settings.position == "both":
            forward, back = await run_all([self._ask(shown, request), self._ask(swapped, request)])
            return both_orders(forward.verdict, back.verdict)
        if self._settings.position == "random" and self._first_is_b(shown):
            return (await self._ask(swapped, request)).verdict.flipped()
        return (await self._ask(shown, request)).verdict

    def _first_is_b(self, shown: Shown) -> bool:
        """A coin that falls the same way whichever candidate is called a, so that no caller can tilt it."""
        low_first = bool(seeded_rng("position", self._settings.seed, shown.route, shown.prompt).integers(2))
        return (shown.hashes[0] < shown.hashes[1]) != low_first

    async def _ask(self, shown: Shown, request: PairRequest) -> Ranking:
        question = self._questions.rank(shown, request.rubric.criteria)
        answer = await self._asker.json(question, _read, shown.route, self._settings.re_asks)
        if answer.value is None:
            failed = Ranking(PairVerdict.FAILED, answer.detail, answer.failure, answer.cost)
            self._tell(failed)
            return failed
        return replace(answer.value, cost=answer.cost)

    def _tell(self, failed: Ranking) -> None:
        """Logs the first failure of each kind: a verdict on a pair has no place for a reason."""
        if failed.failure is not None and failed.failure not in self._told:
            self._told.add(failed.failure)
            logger.warning("a comparison failed (%s): %s", failed.failure.value, failed.reason)


def _read(reply: Any) -> Reading[Ranking]:
    return Reading(Ranking(read_rank(reply), reason_of(reply)), reply)
