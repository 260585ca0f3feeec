"""Judging beside sampling: one background event loop per process, and a limit on failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from judges.pictures import Checks
from judges.vlm.judge import VLMJudge
from mmrubric.errors import InputError, RunError
from mmrubric.group import PairVerdict
from mmrubric.judging import Judge, JudgeRequest, PairJudge, PairRequest, background_loop
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric
from mmrubric.verdict import Verdict

Verdicts = list[list[Verdict]]
T = TypeVar("T")


class JudgeWorker:
    """Runs `judge.score` on the process's background loop, so that the next micro-batch samples meanwhile.

    Use as a context manager: leaving it cancels what is under way, also on Ctrl-C.
    """

    def __init__(self, judge: Judge, background: bool = True) -> None:
        self.judge = judge
        self.background = background
        self._under_way: list[Future[Any]] = []

    def submit(self, requests: Sequence[JudgeRequest]) -> Future[Verdicts]:
        """Start judging; the future holds one list of verdicts per request, one per criterion of its rubric.

        With `background=False` the call returns only when the verdicts are there (the plain way, for timing).
        """
        return self._start(self._score(list(requests)))

    def submit_pairs(self, requests: Sequence[PairRequest]) -> Future[list[PairVerdict]]:
        """Start comparing, as `submit`; the future holds one verdict per pair.

        Raises:
            InputError: the judge scores only.
        """
        if not isinstance(self.judge, PairJudge):
            raise InputError(f"judge {self.judge.id!r} compares no pairs")
        return self._start(self._compare(self.judge, list(requests)))

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        future = asyncio.run_coroutine_threadsafe(work, background_loop())
        if not self.background:
            future.exception()
        self._under_way = [other for other in self._under_way if not other.done()] + [future]
        return future

    async def _score(self, requests: list[JudgeRequest]) -> Verdicts:
        verdicts = await self.judge.score(requests)
        if len(verdicts) != len(requests):
            raise RunError(f"judge {self.judge.id}: {len(requests)} requests, {len(verdicts)} answers")
        for request, answer in zip(requests, verdicts, strict=True):
            asked = {criterion.id for criterion in request.rubric.criteria}
            given = [verdict.criterion_id for verdict in answer]
            if set(given) != asked or len(given) != len(asked):
                raise RunError(f"judge {self.judge.id}: asked about {sorted(asked)}, answered {sorted(given)}")
        return verdicts

    async def _compare(self, judge: PairJudge, requests: list[PairRequest]) -> list[PairVerdict]:
        verdicts = await judge.compare(requests)
        if len(verdicts) != len(requests):
            raise RunError(f"judge {judge.id}: {len(requests)} pairs, {len(verdicts)} answers")
        return verdicts

    def close(self) -> None:
        """Cancel what is under way. Safe to call twice."""
        for future in self._under_way:
            future.cancel()
        self._under_way = []

    def __enter__(self) -> JudgeWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def failure_share(verdicts: Sequence[Verdict]) -> float:
    """Share of verdicts that are judge failures, in [0, 1]; a question that does not apply is none."""
    return sum(v.failure is not None for v in verdicts) / len(verdicts) if verdicts else 0.0


def check_failures(verdicts: Sequence[Verdict], limit: float, where: str) -> float:
    """The failure share of `verdicts`, all ranks together.

    Raises:
        RunError: the share is above `limit`; the message counts the kinds of failure.
    """
    kinds = Counter(str(verdict.failure.value) for verdict in verdicts if verdict.failure is not None)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return _stop_above(limit, failure_share(verdicts), f"{len(verdicts)} verdicts ({listed})", where)


def check_failed_pairs(verdicts: Sequence[PairVerdict], limit: float, where: str) -> float:
    """The share of FAILED pairs, all ranks together. Errors: as `check_failures`."""
    share = sum(verdict is PairVerdict.FAILED for verdict in verdicts) / len(verdicts) if verdicts else 0.0
    return _stop_above(limit, share, f"{len(verdicts)} comparisons", where)


def _stop_above(limit: float, share: float, what: str, where: str) -> float:
    if share > limit:
        raise RunError(
            f"{where}: the judge failed on {share:.0%} of {what}, more than "
            f"max_failure_share={limit}. See to the judge, then continue with run.resume=auto."
        )
    return share


def refuse_unfit(
    judge: Judge | PairJudge, prompts: Sequence[Prompt], rubrics: Sequence[Rubric], compare: bool, key: str
) -> None:
    """A judge can answer what a run will ask; found before any weights load.

    Args:
        judge: of the section `key`.
        prompts: [P]; rubrics: [P].
        compare: whether it is to compare pairs.

    Raises:
        InputError: it compares no pairs, or only pairs, or cannot take a criterion.
    """
    if compare and not isinstance(judge, PairJudge):
        raise InputError(f"{key}.compare=true, but judge {judge.id!r} compares no pairs: use vlm, local or routed")
    picture = np.zeros((64, 64, 3), np.uint8)
    try:
        if not compare and isinstance(judge, Checks):
            judge.check(
                [JudgeRequest.of_sample(p, rubric, picture) for p, rubric in zip(prompts, rubrics, strict=True)]
            )
        elif compare and isinstance(judge, VLMJudge):
            judge.check(
                [PairRequest(rubric, picture, picture, p.sources) for p, rubric in zip(prompts, rubrics, strict=True)]
            )
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def same_judge(train: Judge, evaluation: Judge) -> bool:
    """Whether what fools one judge in training may fool the other: equal ids, or one model asked in two ways."""
    models = [judge.model for judge in (train, evaluation) if isinstance(judge, VLMJudge)]
    return train.id == evaluation.id or (len(models) == 2 and models[0] == models[1])


def refuse_same_judge(train: Judge, evaluation: Judge, allowed: bool) -> None:
    """The judge that trains is not the judge that evaluates.

    Raises:
        InputError: the same judge (see `same_judge`) without `allow_same_judge`.
    """
    if same_judge(train, evaluation) and not allowed:
        raise InputError(
            f"eval.judge: the evaluation judge {evaluation.id!r} is the training judge, or asks its model, "
            f"so gains by fooling it would count. "
            "Choose another judge for eval.judge, or set eval.allow_same_judge=true; the report then says so."
        )
