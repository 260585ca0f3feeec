"""What a judge said about one criterion of one sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from mmrubric.errors import InputError


class Failure(StrEnum):
    """Why a verdict is missing. A failure is a type, never a number."""

    refused = "refused"
    truncated = "truncated"
    unparsable = "unparsable"
    out_of_range = "out_of_range"
    missing = "missing"
    timeout = "timeout"
    rate_limited = "rate_limited"
    bad_image = "bad_image"
    server_error = "server_error"


@dataclass(frozen=True)
class Cost:
    """What a verdict cost. Failed calls cost as well, so their cost is kept."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cached: bool = False

    def __add__(self, other: Cost) -> Cost:
        """Sum of two costs; cached only if both were."""
        return Cost(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.seconds + other.seconds,
            self.cached and other.cached,
        )


FREE = Cost()


@dataclass(frozen=True)
class Verdict:
    """Answer of a judge: does the described thing hold for this sample?

    Raises:
        InputError: `met` outside [0, 1] or not finite, or given beside a failure or `applicable=False`.
    """

    sample_id: str
    criterion_id: str
    met: float | None
    """In [0, 1]; None = unknown. Not flipped: a negative criterion that shows has met = 1."""
    applicable: bool = True
    """False when the question does not apply to the sample; the verdict is then unknown."""
    failure: Failure | None = None
    """Set when the judge failed; the verdict is then unknown."""
    reason: str = ""
    read: str = "rule"
    """How the answer was read: rule, json, logprob, ..."""
    cost: Cost = FREE

    def __post_init__(self) -> None:
        where = f"verdict of sample {self.sample_id!r} on criterion {self.criterion_id!r}"
        if not isinstance(self.sample_id, str) or not isinstance(self.criterion_id, str):
            raise InputError(f"{where}: sample_id and criterion_id must be text")
        if self.failure is not None:
            try:
                object.__setattr__(self, "failure", Failure(self.failure))
            except ValueError:
                raise InputError(f"{where}: unknown failure {self.failure!r}; known: {', '.join(Failure)}") from None
        if self.met is None:
            return
        if self.failure is not None or not self.applicable:
            raise InputError(f"{where}: met must be None when the judge failed or the question does not apply")
        try:
            met = float(self.met)
        except (TypeError, ValueError):
            raise InputError(f"{where}: met {self.met!r} is not a number; use None for unknown") from None
        if not math.isfinite(met) or not 0.0 <= met <= 1.0:
            raise InputError(f"{where}: met {met!r} is outside [0, 1]; use None for unknown")
        object.__setattr__(self, "met", met)

    @property
    def known(self) -> bool:
        """True when the judge answered."""
        return self.met is not None

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as the run record and the store keep it; defaults are left out."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        kept = {"sample_id", "criterion_id", "met"}
        plain = {f.name: data[f.name] for f in fields(self) if f.name in kept or data[f.name] != f.default}
        if "failure" in plain:
            plain["failure"] = str(self.failure)
        if "cost" in plain:
            plain["cost"] = asdict(self.cost)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of `to_dict`. Unknown or missing fields: `InputError`."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        missing = sorted({"sample_id", "criterion_id", "met"} - set(data))
        if unknown or missing:
            raise InputError(f"verdict: unknown fields {unknown}, missing fields {missing}; known: {sorted(known)}")
        values = dict(data)
        if "cost" in values:
            try:
                values["cost"] = Cost(**values["cost"])
            except TypeError as error:
                raise InputError(f"verdict: field cost: {error}") from None
        return cls(**values)
