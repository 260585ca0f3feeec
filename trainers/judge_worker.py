"""Judging beside sampling: one background event loop per process, and a limit on failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType

from mmrubric.errors import InputError, RunError
from mmrubric.judging import Judge, JudgeRequest, background_loop
from mmrubric.verdict import Verdict

Verdicts = list[list[Verdict]]


class JudgeWorker:
    """Runs `judge.score` on the process's background loop, so that the next micro-batch samples meanwhile.

    Use as a context manager: leaving it cancels what is under way, also on Ctrl-C.
    """

    def __init__(self, judge: Judge, background: bool = True) -> None:
        self.judge = judge
        self.background = background
        self._under_way: list[Future[Verdicts]] = []

    def submit(self, requests: Sequence[JudgeRequest]) -> Future[Verdicts]:
        """Start judging; the future holds one list of verdicts per request, one per criterion of its rubric.

        With `background=False` the call returns only when the verdicts are there (the plain way, for timing).
        """
        future = asyncio.run_coroutine_threadsafe(self._score(list(requests)), background_loop())
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
    share = failure_share(verdicts)
    if share > limit:
        kinds: dict[str, int] = {}
        for verdict in verdicts:
            if verdict.failure is not None:
                kinds[str(verdict.failure.value)] = kinds.get(str(verdict.failure.value), 0) + 1
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
        raise RunError(
            f"{where}: the judge failed on {share:.0%} of {len(verdicts)} verdicts ({listed}), more than "
            f"max_failure_share={limit}. See to the judge, then continue with run.resume=auto."
        )
    return share


def refuse_same_judge(train: str, evaluation: str, allowed: bool) -> None:
    """The judge that trains is not the judge that evaluates.

    Raises:
        InputError: equal ids without `allow_same_judge`.
    """
    if train == evaluation and not allowed:
        raise InputError(
            f"eval.judge: the evaluation judge {evaluation!r} is the training judge, "
            f"so gains by fooling it would count. "
            "Choose another judge for eval.judge, or set eval.allow_same_judge=true; the report then says so."
        )
