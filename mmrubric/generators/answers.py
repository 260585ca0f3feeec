"""Answers to a prompt, with or without scores, and the two best of them (RubricHub's A_ref, arXiv 2601.08430)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mmrubric import aggregate
from mmrubric.chat import ImagePart
from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.generators.llm import Asked, GenerationFailed
from mmrubric.judging import Candidate, Judge, JudgeRequest, candidate_id, run_all
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable


@dataclass(frozen=True)
class ScoredAnswer:
    """A picture or a text that answers a prompt.

    Raises:
        InputError: the score is not a finite number.
    """

    candidate: Candidate
    score: float | None = None
    """Higher is better, on any scale; None = not scored."""

    def __post_init__(self) -> None:
        if self.score is not None:
            number("exemplars: score", self.score)

    @property
    def id(self) -> str:
        """Content hash of the candidate."""
        return candidate_id(self.candidate)


def ranked_answers(exemplars: Sequence[Any], judged: bool) -> tuple[ScoredAnswer, ...]:
    """Exemplars as answers that have scores or can get them; none for none.

    Raises:
        InputError: a single one, some with a score and some without, or no scores and no judge.
    """
    answers = tuple(one if isinstance(one, ScoredAnswer) else ScoredAnswer(one) for one in exemplars)
    if len(answers) == 1:
        raise InputError("exemplars: one answer has nothing to differ from; give two or more, or none")
    scored = [answer.score is not None for answer in answers]
    if any(scored) and not all(scored):
        raise InputError("exemplars: some have a score and some have none; give all of them one, or none")
    if answers and not any(scored) and not judged:
        raise InputError("exemplars: give each a score (ScoredAnswer), or give the option judges")
    return answers


async def two_best(
    answers: Sequence[ScoredAnswer], judges: Sequence[Judge], rubric: Rubric, asked: Asked
) -> tuple[ScoredAnswer, ScoredAnswer]:
    """The two answers with the highest scores, the better one first; ties go to the earlier one.

    Raises:
        GenerationFailed: fewer than two have a known score.
    """
    known = [answer for answer in answers if answer.score is not None]
    if not known:
        known = await _by_consensus(answers, judges, rubric, asked)
    if len(known) < 2:
        raise GenerationFailed(f"the judges could score {len(known)} of {len(answers)} answers")
    best = np.argsort([-float(answer.score) for answer in known if answer.score is not None], kind="stable")
    first, second = (known[index] for index in best[:2])
    return first, second


async def _by_consensus(
    answers: Sequence[ScoredAnswer], judges: Sequence[Judge], rubric: Rubric, asked: Asked
) -> list[ScoredAnswer]:
    """Answers with the mean of the judges' weighted scores; those that no judge could score are left out."""
    sources = tuple(_bytes_of(source) for source in asked.sources)
    requests = [
        JudgeRequest(rubric, answer.candidate, sources, asked.grounding, sample_id=str(index))
        for index, answer in enumerate(answers)
    ]
    verdicts = await run_all(judge.score(requests) for judge in judges)
    ids = [str(index) for index in range(len(answers))]
    score = aggregate.build("weighted")
    rows = np.array([score(ScoreTable.from_verdicts(rubric, ids, one)) for one in verdicts])
    return [
        replace(answer, score=float(column[~np.isnan(column)].mean()))
        for answer, column in zip(answers, rows.T, strict=True)
        if not np.isnan(column).all()
    ]


def _bytes_of(picture: ImagePart) -> bytes:
    return base64.b64decode(picture.url.partition(",")[2])
