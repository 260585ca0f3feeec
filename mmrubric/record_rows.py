"""What one line of a run record holds (the file itself: `mmrubric.record`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.judging import Candidate, candidate_id
from mmrubric.rubric import Rubric
from mmrubric.verdict import Verdict

FORMAT = 1
TRAIN = "train"


@dataclass(frozen=True)
class SampleRow:
    """One judged sample, as one line of the record."""

    step: int
    """Training: index of the step. Other phases: number of finished steps. At least 0."""
    prompt_id: str
    rubric_hash: str
    sample_id: str
    """Unique within its group (two equal pictures have different ids)."""
    sample_hash: str
    """`judging.candidate_id` of what the judge was given."""
    judge_id: str
    verdicts: tuple[Verdict, ...]
    """Every verdict, failures included; none where the judge compares."""
    compared: tuple[tuple[str, PairVerdict], ...] = ()
    """(sample id of b, verdict) of every pair of the group whose a is this sample."""
    phase: str = TRAIN
    """`train`, or a name such as `eval`."""
    prompt_row: int | None = None
    """Row of the prompt in its step; tells two groups of one prompt apart."""
    epoch: int | None = None
    """Pass over the prompts, for aggregators that do something at its end."""
    policy_version: int | None = None
    reward: float | None = None
    """Reward as it was used; None = not scorable."""
    attempt: int = 0
    """Which writer wrote it; set by the record."""
    line: int = 0
    """1-based line in the file; set by the reader."""

    def __post_init__(self) -> None:
        where = f"sample {self.sample_id!r} of step {self.step!r}"
        for name in ("step", "attempt", "line", "prompt_row", "epoch", "policy_version"):
            value = getattr(self, name)
            optional = name in ("prompt_row", "epoch", "policy_version")
            if not (value is None and optional) and (type(value) is not int or value < 0):
                raise InputError(f"{where}: {name} must be an integer of at least 0, got {value!r}")
        for name in ("prompt_id", "rubric_hash", "sample_id", "sample_hash", "judge_id", "phase"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InputError(f"{where}: {name} must be text that is not empty, got {value!r}")
        object.__setattr__(self, "verdicts", tuple(self.verdicts))
        for verdict in self.verdicts:
            if not isinstance(verdict, Verdict) or verdict.sample_id != self.sample_id:
                raise InputError(f"{where}: verdicts must be Verdict objects of this sample, got {verdict!r}")
        object.__setattr__(self, "compared", tuple((other, PairVerdict(verdict)) for other, verdict in self.compared))
        if self.reward is not None:
            reward = float(self.reward)
            if math.isinf(reward):
                raise InputError(f"{where}: reward is {reward}; use None or NaN for not scorable")
            object.__setattr__(self, "reward", None if math.isnan(reward) else reward)

    def to_dict(self) -> dict[str, Any]:
        """JSON form: the sample id once, not in every verdict, and without the fields that are None."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("verdicts", "compared", "line")}
        rows = [{k: v for k, v in verdict.to_dict().items() if k != "sample_id"} for verdict in self.verdicts]
        pairs = {"compared": [[other, verdict.value] for other, verdict in self.compared]} if self.compared else {}
        return {k: v for k, v in plain.items() if v is not None} | {"verdicts": rows} | pairs

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], line: int = 0) -> SampleRow:
        """Inverse of `to_dict`. Unknown or missing fields: `InputError`."""
        known = {f.name for f in fields(cls)} - {"line"}
        required = {"step", "prompt_id", "rubric_hash", "sample_id", "sample_hash", "judge_id", "verdicts"}
        unknown, missing = sorted(set(data) - known), sorted(required - set(data))
        if unknown or missing:
            raise InputError(f"sample row: unknown fields {unknown}, missing fields {missing}")
        if not isinstance(data["verdicts"], list) or not all(isinstance(v, dict) for v in data["verdicts"]):
            raise InputError("sample row: verdicts must be a list of objects")
        verdicts = tuple(Verdict.from_dict({"sample_id": data["sample_id"], **v}) for v in data["verdicts"])
        return cls(**{**data, "verdicts": verdicts, "line": line})

    @property
    def group_key(self) -> tuple[str, int, str, int, str, str]:
        """Rows with the same key form one group."""
        row = -1 if self.prompt_row is None else self.prompt_row
        return (self.phase, self.step, self.judge_id, row, self.prompt_id, self.rubric_hash)


@dataclass(frozen=True)
class Attempt:
    """One process that wrote to the record."""

    attempt: int
    from_step: int
    config_hash: str = ""
    started: float = 0.0
    """Unix time in seconds."""


def rows_of(
    verdicts: Sequence[Sequence[Verdict]], *, samples: Sequence[Candidate], rubric: Rubric, **shared: Any
) -> list[SampleRow]:
    """Rows of one group from what `Judge.score` returned.

    Args:
        verdicts: one list per sample, none empty.
        samples: the S candidates, for their hashes.
        rubric: the one rubric of the group.
        shared: the other fields of `SampleRow` (step, prompt_id, judge_id, phase, ...); `reward` is a
            sequence [S].
    """
    rewards = shared.pop("reward", None)
    rewards = [None] * len(samples) if rewards is None else list(rewards)
    if not len(verdicts) == len(samples) == len(rewards):
        raise InputError(f"rows_of: {len(verdicts)} verdict lists, {len(samples)} samples, {len(rewards)} rewards")
    key = rubric.hash
    return [
        SampleRow(
            sample_id=row[0].sample_id, sample_hash=candidate_id(sample), rubric_hash=key,
            verdicts=tuple(row), reward=reward, **shared,
        )
        for row, sample, reward in zip(verdicts, samples, rewards, strict=True)
    ]  # fmt: skip
