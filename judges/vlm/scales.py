"""What may be answered to a criterion, on the wire and in one token, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from judges.vlm.readers import Shares, expected_value
from mmrubric.errors import InputError
from mmrubric.llm_json import BadAnswer
from mmrubric.rubric import Criterion
from mmrubric.verdict import Failure

FIELDS = {"binary": "met", "ordinal": "level", "nominal": "label"}
"""Field of a JSON reply that holds the answer, by scale."""
_DIGITS = 9
"""A scale of more levels is answered by letters: "10" is two tokens, so P("1") would absorb it."""


@dataclass(frozen=True)
class Judged:
    """The meaning of an answer: what goes into a `Verdict`."""

    met: float | None
    """In [0, 1]; None = the question does not apply."""
    reason: str = ""


def possible(criterion: Criterion) -> list[str | int]:
    """Answers on the wire: yes, no, unknown; levels from 1; or labels."""
    if criterion.scale == "ordinal":
        return list(range(1, len(criterion.anchors) + 1))
    if criterion.scale == "nominal":
        return [option.label for option in criterion.options]
    return ["yes", "no", "unknown"]


def codes(criterion: Criterion) -> dict[str, str | int]:
    """One-token code of each answer: yes and no, digits for up to 9 levels, else capital letters.

    Raises:
        InputError: more answers than letters.
    """
    if criterion.scale == "binary":
        return {"yes": "yes", "no": "no"}
    answers = possible(criterion)
    if criterion.scale == "ordinal" and len(answers) <= _DIGITS:
        return {str(answer): answer for answer in answers}
    if len(answers) > len(ascii_uppercase):
        raise InputError(
            f"criterion {criterion.id!r} has {len(answers)} answers, and read='logprob' takes at most "
            f"{len(ascii_uppercase)}; use read='json'"
        )
    return dict(zip(ascii_uppercase, answers, strict=False))


def judged_shares(criterion: Criterion, shares: Shares) -> Judged:
    """`met` from the shares of the codes: P(yes) on a binary scale, else the expected value of the answers.

    Answers that mean 'does not apply' decide when they hold at least half of the probability; else they are
    left out.
    """
    reason = ", ".join(f"P({code}) {share:.3g}" for code, share in shares.of.items())
    reason += f", elsewhere {shares.off_mass:.2g}"
    if criterion.scale == "binary":
        return Judged(criterion.met_of_probability(shares.of["yes"]), reason)
    worth = {code: criterion.met_of(answer) for code, answer in codes(criterion).items()}
    values = {code: value for code, value in worth.items() if value is not None}
    if sum(shares.of[code] for code in values) <= 0.5:
        return Judged(None, reason)
    return Judged(expected_value(shares.of, values), reason)


def judged_answer(criterion: Criterion, entry: Mapping[str, Any]) -> Judged:
    """The meaning of a JSON object that answers one criterion.

    Fields beside the answer and the reason do not count. Case does not matter in yes, no and unknown.

    Raises:
        BadAnswer: the answer is missing, of the wrong type, or none of the scale.
    """
    field = FIELDS[criterion.scale]
    if field not in entry:
        raise BadAnswer(f"field {field!r} is missing")
    answer = entry[field]
    known = possible(criterion)
    listed = ", ".join(map(str, known))
    if type(answer) is not type(known[0]):
        raise BadAnswer(f"{field} {answer!r} is none of {listed}")
    if isinstance(answer, str) and criterion.scale == "binary":
        answer = answer.strip().lower()
    if answer not in known:
        failure = Failure.out_of_range if criterion.scale == "ordinal" else Failure.unparsable
        raise BadAnswer(f"{field} {answer!r} is none of {listed}", failure)
    return Judged(criterion.met_of(answer), reason_of(entry))


def schema_of(criterion: Criterion) -> dict[str, Any]:
    """JSON schema of the answer field. Enums only: back ends enforce them, bounds not all of them do."""
    known = possible(criterion)
    return {"type": "integer" if criterion.scale == "ordinal" else "string", "enum": known}


def reason_of(entry: Mapping[str, Any]) -> str:
    """The reason in a JSON reply; an answer without one still counts."""
    reason = entry.get("reason", "")
    return reason if isinstance(reason, str) else ""
