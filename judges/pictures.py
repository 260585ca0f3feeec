"""What the judges of pictures share: checks before any work, worker threads, typed failures per picture."""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest, SyncMixin, run_all
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure, Verdict

Plan = TypeVar("Plan")
A = TypeVar("A", bound="Arguments")


class Arguments(BaseModel):
    """Typed `arguments` of a criterion; unknown ones and wrong types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def parse(kind: type[A], criterion: Criterion) -> A:
    """Build the typed arguments of a criterion.

    Raises:
        InputError: an unknown argument (the known ones are listed), a missing or a wrong one.
    """
    try:
        # Through JSON, which arguments are: strict JSON takes a list where a tuple is declared, and no "3" for 3.
        return kind.model_validate_json(json.dumps(criterion.arguments))
    except ValidationError as error:
        lines = "; ".join(_explain(kind, dict(problem)) for problem in error.errors())
        raise InputError(f"criterion {criterion.id!r}, arguments of {criterion.verifier!r}: {lines}") from None


def _explain(kind: type[Arguments], problem: dict[str, Any]) -> str:
    name = ".".join(map(str, problem["loc"]))
    known = ", ".join(kind.model_fields) or "none"
    if problem["type"] == "extra_forbidden":
        return f"unknown argument {name!r}; known: {known}"
    if problem["type"] == "missing":
        return f"argument {name!r} is missing; known: {known}"
    text = problem["msg"].removeprefix("Value error, ")
    shown = problem.get("input")
    got = f" (got {shown!r})" if isinstance(shown, (str, int, float, bool)) else ""
    return f"argument {name!r}: {text}{got}" if name else text


@dataclass(frozen=True)
class Answer:
    """What a judge found out about one criterion of one picture."""

    met: float | None
    """In [0, 1]: does the statement hold? None = the question does not apply, or `failure`."""
    reason: str
    failure: Failure | None = None


@runtime_checkable
class Checks(Protocol):
    """A judge that can refuse requests before it starts to work on any."""

    def check(self, requests: Sequence[JudgeRequest]) -> None:
        """`InputError` if a request cannot be judged: a text candidate, a foreign criterion, bad arguments."""
        ...


class PictureJudge(SyncMixin, ABC, Generic[Plan]):
    """What every `Judge` of yes-or-no criteria about pictures needs before and after it looks.

    Args:
        id: name, version and everything that changes an answer.
        read: how its verdicts are read (`Verdict.read`).
    """

    def __init__(self, id: str, read: str) -> None:
        self._id = id
        self._read_mode = read

    @property
    def id(self) -> str:
        """Name, version and options; equal ids mean equal answers to equal requests."""
        return self._id

    @abstractmethod
    def plan(self, criterion: Criterion, rubric: Rubric) -> Plan:
        """What is to be measured for a criterion.

        Raises:
            InputError: the criterion is not for this judge, or its arguments are wrong.
        """

    @abstractmethod
    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """One verdict per criterion of each request, in rubric order.

        A picture that cannot be opened gives verdicts with the failure `bad_image`; the others are judged.

        Raises:
            InputError: see `check`.
        """

    def check(self, requests: Sequence[JudgeRequest]) -> None:
        """Refuse what cannot be judged, before any picture is opened.

        Raises:
            InputError: a candidate is a text, a scale is not binary, or see `plan`.
        """
        self.plans(requests)

    def plans(self, requests: Sequence[JudgeRequest]) -> list[list[Plan]]:
        """Plans of every request's criteria, in rubric order; made once per rubric object. Errors: `check`."""
        known: dict[int, list[Plan]] = {}
        for request in requests:
            if isinstance(request.candidate, str):
                raise InputError(
                    f"judge {self.id!r} looks at pictures, and the candidate is a text; give a picture file as "
                    "pathlib.Path, or use a judge of texts"
                )
            if id(request.rubric) not in known:
                known[id(request.rubric)] = [self._plan(c, request.rubric) for c in request.rubric.criteria]
        return [known[id(request.rubric)] for request in requests]

    def _plan(self, criterion: Criterion, rubric: Rubric) -> Plan:
        if criterion.scale != "binary":
            raise InputError(
                f"criterion {criterion.id!r} has the scale {criterion.scale!r}; judge {self.id!r} answers yes or no"
            )
        return self.plan(criterion, rubric)

    def verdicts(self, request: JudgeRequest, answers: Sequence[Answer] | InputError) -> list[Verdict]:
        """Verdicts from one answer per criterion, or from the reason why the picture cannot be opened."""
        if isinstance(answers, InputError):
            answers = [Answer(None, str(answers), Failure.bad_image)] * len(request.rubric.criteria)
        return [
            Verdict(
                str(request.sample_id),
                criterion.id,
                None if answer.met is None else criterion.met_of_probability(answer.met),
                applicable=answer.met is not None or answer.failure is not None,
                failure=answer.failure,
                reason=answer.reason,
                read=self._read_mode,
            )
            for criterion, answer in zip(request.rubric.criteria, answers, strict=True)
        ]


class ThreadedJudge(PictureJudge[Plan]):
    """A `PictureJudge` that judges each picture by itself, several at a time on worker threads.

    Args:
        id, read: see `PictureJudge`.
        threads: pictures judged at the same time; by default the number of processors, at most 4.
    """

    def __init__(self, id: str, read: str, threads: int | None = None) -> None:
        super().__init__(id, read)
        self._threads = min(4, os.cpu_count() or 1) if threads is None else count("threads", threads)

    @abstractmethod
    def answers(self, request: JudgeRequest, plans: Sequence[Plan]) -> Iterable[Answer]:
        """One answer per plan; runs on a worker thread.

        Raises:
            InputError: the picture cannot be used; every criterion then fails with `bad_image`.
        """

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """See `PictureJudge`."""
        plans = await asyncio.to_thread(self.plans, requests)
        slots = asyncio.Semaphore(self._threads)

        async def one(request: JudgeRequest, plan: Sequence[Plan]) -> list[Verdict]:
            async with slots:
                return await asyncio.to_thread(self._judge, request, plan)

        return await run_all(one(*pair) for pair in zip(requests, plans, strict=True))

    def _judge(self, request: JudgeRequest, plans: Sequence[Plan]) -> list[Verdict]:
        try:
            answers = list(self.answers(request, plans))
        except InputError as error:
            return self.verdicts(request, error)
        return self.verdicts(request, answers)


def count(name: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 1; raise `InputError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}: {value!r} is not a whole number of at least 1")
    return value


def foreign(criterion: Criterion, judge: str, verifiers: str) -> InputError:
    """The error of a criterion that another judge must answer."""
    return InputError(
        f"criterion {criterion.id!r} asks for verifier {criterion.verifier!r}; judge {judge!r} answers only "
        f"{verifiers} (judge 'routed' sends each criterion to its verifier)"
    )
