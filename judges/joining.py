"""What judges made of other judges share: a part of a rubric, and answers that fit what was asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from mmrubric import preference
from mmrubric.errors import RunError
from mmrubric.group import PairVerdict
from mmrubric.judging import Judge, JudgeRequest, PairRequest
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable
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


async def compare_by_scores(
    score: Callable[[list[JudgeRequest]], Awaitable[list[list[Verdict]]]],
    requests: Sequence[PairRequest],
    **options: Any,
) -> list[PairVerdict]:
    """Scores what pairs compare, each candidate once, and applies `preference.compare`; equal candidates are a TIE.

    Candidates are one by their objects, beside the same rubric, sources and grounding.

    Args:
        score: as `Judge.score`.
        requests: the pairs.
        options: of `preference.compare`.
    """
    found: dict[tuple[int, ...], int] = {}
    singles: list[JudgeRequest] = []

    def place(pair: PairRequest, candidate: Any) -> int:
        key = (id(candidate), id(pair.rubric), id(pair.grounding), *map(id, pair.sources))
        if key not in found:
            found[key] = len(singles)
            name = str(len(singles))
            singles.append(JudgeRequest(pair.rubric, candidate, pair.source, pair.grounding, sample_id=name))
        return found[key]

    places = [None if pair.identical else (place(pair, pair.a), place(pair, pair.b)) for pair in requests]
    verdicts = await score(singles)

    def prefer(pair: PairRequest, a: int, b: int) -> PairVerdict:
        if a == b:
            return PairVerdict.TIE
        table = ScoreTable.from_verdicts(pair.rubric, [str(a), str(b)], [verdicts[a], verdicts[b]])
        return preference.compare(table, 0, 1, **options)

    return [
        PairVerdict.TIE if rows is None else prefer(pair, *rows) for pair, rows in zip(requests, places, strict=True)
    ]
