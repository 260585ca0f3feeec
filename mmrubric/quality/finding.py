"""What a check of a rubric says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Severity = Literal["error", "warning", "note"]
"""`error`: a judge cannot answer fairly; `warning`: the score is likely to be wrong; `note`: worth a look."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """One problem of a rubric."""

    rule: str
    """Name of the rule, a key of `RULES`."""
    severity: Severity
    criteria: tuple[str, ...]
    """Ids of the criteria concerned, sorted; empty when it is the rubric as a whole."""
    message: str
    """What is wrong and what to do."""
