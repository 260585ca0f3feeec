"""Rewards of a finished run under another aggregator: from its record, without judging again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrubric.aggregate import Aggregator
from mmrubric.errors import InputError
from mmrubric.record_reader import RecordReader
from mmrubric.report.console import RebuiltStep
from mmrubric.report.numbers import finite

RECORD = "record.jsonl"
"""Name of the record in a run's directory."""


@dataclass(frozen=True)
class Rebuilt:
    """The rewards and where they were written."""

    aggregate: str
    record: Path
    file: Path
    steps: list[RebuiltStep]
    groups: int
    samples: int
    not_scorable: int
    torn: int
    """Lines of the record that a kill cut off."""

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "aggregate": self.aggregate,
            "record": str(self.record),
            "rewards": str(self.file),
            "groups": self.groups,
            "samples": self.samples,
            "not_scorable": self.not_scorable,
            "torn_lines": self.torn,
            "steps": [step.as_json() for step in self.steps],
        }


def find_record(run: Path) -> Path:
    """The record of a run directory, or the file itself.

    Raises:
        InputError: there is none.
    """
    if run.is_file():
        return run
    if not run.is_dir():
        raise InputError(f"{run}: no such run directory")
    record = run / RECORD
    if not record.is_file():
        raise InputError(f"{run}: holds no {RECORD}; give the directory of a run, or its record file")
    return record


def rebuild(
    run: Path,
    aggregator: Aggregator,
    name: str,
    *,
    phase: str | None = None,
    judge_id: str | None = None,
    out: Path | None = None,
) -> Rebuilt:
    """Score all recorded groups again and write one JSON line per sample.

    Args:
        run: a run's directory or its record.
        aggregator: scores the tables.
        name: of the aggregator, for the file name and the summary.
        phase: only this phase.
        judge_id: only verdicts of this judge.
        out: file to write; default `rewards-<name>.jsonl` beside the record.

    Raises:
        InputError: no record, a broken one, a rubric that the aggregator refuses, or nothing that fits.
    """
    record = find_record(run)
    reader = RecordReader(record)
    for rubric in reader.rubrics.values():
        aggregator.check(rubric)
    file = out or record.parent / f"rewards-{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    parts: dict[tuple[str, int], list[tuple[np.ndarray, np.ndarray]]] = {}
    groups = samples = missing = 0
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as lines:
            for group, rewards in reader.rebuild(aggregator, phase, judge_id):
                groups += 1
                samples += len(rewards)
                missing += int(np.isnan(rewards).sum())
                parts.setdefault((group.phase, group.step), []).append((group.rewards, rewards))
                for row, reward in zip(group.rows, rewards, strict=True):
                    line = {
                        "phase": row.phase,
                        "step": row.step,
                        "prompt_id": row.prompt_id,
                        "sample_id": row.sample_id,
                        "judge_id": row.judge_id,
                        "rubric_hash": row.rubric_hash,
                        "recorded": row.reward,
                        "reward": finite(float(reward)),
                    }
                    lines.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        if not groups:
            raise InputError(f"{record}: nothing to rebuild for phase={phase or 'any'}, judge_id={judge_id or 'any'}")
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    steps = [
        RebuiltStep(key[0], key[1], np.concatenate([a for a, _ in group]), np.concatenate([b for _, b in group]))
        for key, group in parts.items()
    ]
    return Rebuilt(name, record, file, steps, groups, samples, missing, len(reader.torn))
