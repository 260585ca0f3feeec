"""What judges made of other judges share: a part of a rubric, and answers that fit what was asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mmrubric.errors import RunError
from mmrubric.judging import Judge, JudgeRequest
from mmrubric.rubric import Rubric
from mmrubric.verdict import Verdict


def part_of(rubric: Rubric, ids: Collection[str]) -> Rubric:
    """The criteria `ids`, without dependencies on others; scores apply dependencies to the whole rubric."""
    kept = [
        criterion.model_copy(update={"depends_on": tuple(parent for parent in criterion.depends_on if parent in ids)})
        for criterion in rubric.criteria
        if criterion.id in ids
    ]
    return rubric.model_copy(update={"criteria": tuple(kept)})


async def answers_of(judge: Judge, requests: Sequence[JudgeRequest]) -> list[dict[str, Verdict]]:
    """Verdicts of one judge by criterion id, one dict per request.

    Raises:
        RunError: the judge answered other requests or criteria than it was asked.
    """
    answers = await judge.score(requests)
    if len(answers) != len(requests):
        raise RunError(f"judge {judge.id}: {len(requests)} requests, {len(answers)} answers")
    for request, verdicts in zip(requests, answers, strict=True):
        given = sorted(verdict.criterion_id for verdict in verdicts)
        if given != sorted(request.rubric.ids):
            raise RunError(f"judge {judge.id}: asked about {sorted(request.rubric.ids)}, answered {given}")
    return [{verdict.criterion_id: verdict for verdict in verdicts} for verdicts in answers]
