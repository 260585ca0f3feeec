"""Reads written answers about several criteria, and ranks: by id, never by position, and checked here again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from judges.vlm.scales import Judged, judged_answer
from mmrubric.group import PairVerdict
from mmrubric.llm_json import BadAnswer
from mmrubric.rubric import Criterion
from mmrubric.verdict import Failure

_RANKS = {(1, 2): PairVerdict.WIN_A, (2, 1): PairVerdict.WIN_B, (1, 1): PairVerdict.TIE}


@dataclass(frozen=True)
class Batch:
    """What a reply about several criteria holds."""

    judged: dict[str, Judged] = field(default_factory=dict)
    """By id: the criteria that are answered exactly once, and well."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The entries of those answers as they came."""
    problems: dict[str, BadAnswer] = field(default_factory=dict)
    """By id: what is wrong with each of the others."""
    invented: tuple[str, ...] = ()
    """Ids that nobody asked about."""


def read_batch(criteria: Sequence[Criterion], known: set[str], reply: Any) -> Batch:
    """The answers of a reply to the criteria; an entry without a readable id is left out.

    Args:
        criteria: what was asked.
        known: ids that are not made up: those asked about now, or earlier of the same candidate.
        reply: decoded JSON.

    Raises:
        BadAnswer: the reply is no object with a list `verdicts`.
    """
    if not isinstance(reply, dict) or not isinstance(reply.get("verdicts"), list):
        raise BadAnswer("expected an object with a list 'verdicts'")
    entries = [entry for entry in reply["verdicts"] if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    times = Counter(entry["id"] for entry in entries)
    by_id = {entry["id"]: entry for entry in entries}
    batch = Batch(invented=tuple(sorted(set(times) - known)))
    for criterion in criteria:
        id = criterion.id
        if times[id] != 1:
            what = f"answered {times[id]} times" if times[id] else "not answered"
            batch.problems[id] = BadAnswer(f"id {id!r} is {what}", Failure.missing)
            continue
        try:
            batch.judged[id] = judged_answer(criterion, by_id[id])
        except BadAnswer as problem:
            batch.problems[id] = problem
        else:
            batch.entries.append(by_id[id])
    return batch


def read_rank(reply: Any) -> PairVerdict:
    """The verdict behind {"rank": [first, second]}: [1, 2], [2, 1], or [1, 1] for a tie.

    Raises:
        BadAnswer: anything else.
    """
    rank = reply.get("rank") if isinstance(reply, dict) else None
    if not isinstance(rank, list) or any(type(place) is not int for place in rank) or tuple(rank) not in _RANKS:
        raise BadAnswer(f"rank {rank!r} is none of [1, 2], [2, 1], [1, 1]")
    return _RANKS[tuple(rank)]
