"""What learning generators share: scoring candidates, failures that may be survived, one rubric for all prompts."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from mmrubric.chat import ChatReply, Usage
from mmrubric.chat_client import Call, ChatClient
from mmrubric.chat_format import FormatMemory
from mmrubric.errors import InputError
from mmrubric.generators.llm import Asked, Draft, GenerationFailed, LLMGenerator
from mmrubric.judging import Candidate, Judge, JudgeRequest, run_all
from mmrubric.prompt import Grounding, Media, Prompt, Sources
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import Floats
from mmrubric.verdict import Verdict

T = TypeVar("T")
MOST_FAILED = 0.2
"""Share of its questions that a model may leave without a usable answer while a generator learns."""


@dataclass(frozen=True)
class Sample:
    """One candidate to judge."""

    prompt: str
    candidate: Candidate
    sources: tuple[Media, ...] = ()


@dataclass(frozen=True)
class Scores:
    """What a judge said of S samples by K criteria. Unknown without a failure = the question does not apply."""

    met: Floats
    """[S, K] in [0, 1], NaN = unknown."""
    failed: NDArray[np.bool_]
    """[S, K] True where the judge failed."""

    @property
    def inapplicable(self) -> NDArray[np.bool_]:
        """[S, K] True where the judge said that the question does not apply."""
        return np.isnan(self.met) & ~self.failed


def needs_judge(judge: Any, where: str) -> Judge:
    """The judge, if it is one that scores; `InputError` otherwise."""
    if not isinstance(judge, Judge):
        raise InputError(f"{where}: fit needs a judge that scores criteria, got {type(judge).__name__}")
    return judge


async def scores_of(judge: Judge, samples: Sequence[Sample], criteria: Sequence[Criterion], again: int = 1) -> Scores:
    """Score every sample by every criterion, all criteria of a sample in one request.

    Args:
        judge: scores the requests.
        samples, criteria: S and K of them; the ids of the criteria are unique.
        again: how often what failed is asked again.
    """
    met = np.full((len(samples), len(criteria)), np.nan)
    failed = np.ones(met.shape, dtype=bool)
    columns = {criterion.id: column for column, criterion in enumerate(criteria)}
    for _ in range(again + 1):
        rows = [row for row in range(len(samples)) if failed[row].any()]
        if not rows:
            break
        requests = _requests(samples, rows, criteria, failed)
        for row, verdicts in zip(rows, await judge.score(requests), strict=True):
            for verdict in verdicts:
                column = columns[verdict.criterion_id]
                met[row, column] = np.nan if verdict.met is None else verdict.met
                failed[row, column] = _failed(verdict)
    return Scores(met, failed)


async def answers_of(questions: Iterable[Awaitable[T]], where: str) -> list[T | GenerationFailed]:
    """The answers, in their order, with a failure in place of each that failed.

    Raises:
        GenerationFailed: more than `MOST_FAILED` of them failed.
    """
    answers = await run_all(or_failure(question) for question in questions)
    failed = [answer for answer in answers if isinstance(answer, GenerationFailed)]
    if len(failed) > MOST_FAILED * len(answers):
        raise GenerationFailed(f"{where}: {len(failed)} of {len(answers)} questions have no usable answer: {failed[0]}")
    return answers


async def or_failure(question: Awaitable[T]) -> T | GenerationFailed:
    """The answer, or the failure as a value: one question less is no reason to stop."""
    try:
        return await question
    except GenerationFailed as failure:
        return failure


def _failed(verdict: Verdict) -> bool:
    return verdict.failure is not None or (verdict.met is None and verdict.applicable)


def _requests(
    samples: Sequence[Sample], rows: Sequence[int], criteria: Sequence[Criterion], asked: NDArray[np.bool_]
) -> list[JudgeRequest]:
    """One request for each row, with the criteria that `asked` [S, K] names; one rubric object where they agree."""
    rubrics: dict[tuple[str, bytes], Rubric] = {}
    requests = []
    for row in rows:
        sample, key = samples[row], (samples[row].prompt, asked[row].tobytes())
        if key not in rubrics:
            chosen = tuple(criterion for criterion, ask in zip(criteria, asked[row], strict=True) if ask)
            rubrics[key] = Rubric(prompt=sample.prompt, criteria=chosen)
        requests.append(JudgeRequest(rubrics[key], sample.candidate, sample.sources, sample_id=str(row)))
    return requests


@dataclass
class GlobalGenerator(LLMGenerator):
    """A generator whose `fit` learns one rubric for a whole data set, which `generate` gives to every prompt.

    A subclass gives `SAVED`, the name of its option that holds a saved rubric. Whoever only loads one needs no model.

    Args:
        fallback: "none" only: there is nothing that could stand in for what was not learned.

    Raises:
        InputError: see `LLMGenerator`, and a fallback.
    """

    SAVED: ClassVar[str]

    _: KW_ONLY
    fallback: str = "none"

    def __post_init__(self) -> None:
        if getattr(self, self.SAVED) and self.client is None and not self.base_url and not self.model:
            self.client = _NoModel("", "none:", Usage(), FormatMemory())
        super().__post_init__()
        if self.fallback != "none":
            raise InputError(f"{self._where}: fallback {self.fallback!r}: a learned rubric has none; use 'none'")
        given: Rubric | str | Path = getattr(self, self.SAVED)
        self.kept: Rubric | None = None
        if given:
            self.kept = given if isinstance(given, Rubric) else Rubric.load(given)
            self.check(self.kept)

    def check(self, rubric: Rubric) -> None:
        """Raise `InputError` if a loaded rubric is none of this generator's."""

    def save(self, path: str | Path) -> None:
        """Write what was learned to a .yaml or .json file, for the option `SAVED`.

        Raises:
            InputError: nothing was learned yet.
        """
        self.learned().save(path)

    def learned(self) -> Rubric:
        """The rubric of the data set; its prompt is empty.

        Raises:
            InputError: nothing was learned yet.
        """
        if self.kept is None:
            raise InputError(f"{self._where}: nothing is learned yet; call fit, or give {self.SAVED}= a saved file")
        return self.kept

    async def generate(
        self,
        prompt: Prompt | str,
        source: Sources = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        made = await super().generate(prompt, source, grounding, exemplars)
        return made.model_copy(update={"provenance": self.learned().provenance})

    async def write(self, asked: Asked) -> Draft:
        return Draft(self.learned().criteria)

    def _needs_model(self) -> None:
        if isinstance(self.chat, _NoModel):
            raise InputError(f"{self._where}: fit asks a model; give base_url and model, or a client")


class _NoModel(ChatClient):
    """Stands where a model is not needed."""

    async def _answer(self, call: Call) -> ChatReply:
        raise InputError("no model is there to ask; give base_url and model, or a client")

    async def aclose(self) -> None:
        """Nothing is open."""
