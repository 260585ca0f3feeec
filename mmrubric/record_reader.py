"""Reads a run record: live rows, groups as score tables, and rewards under another aggregator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrubric import rubric_io
from mmrubric.aggregate.base import Aggregator, Context
from mmrubric.errors import InputError
from mmrubric.group import Pair, check_pairs
from mmrubric.record_rows import FORMAT, TRAIN, Attempt, SampleRow
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable


@dataclass(frozen=True)
class TornLine:
    """A line that was cut off when its writer was killed. At most one write is lost per kill."""

    line: int
    """1-based."""
    size: int
    """Bytes of the fragment."""


@dataclass(frozen=True)
class RecordedGroup:
    """The rows of one group: one prompt of one step under one judge."""

    rows: tuple[SampleRow, ...]
    """In file order."""
    rubric: Rubric

    @cached_property
    def table(self) -> ScoreTable:
        """[S, C] joined by ids; failed and missing verdicts are unknown.

        Raises:
            InputError: the judge compared the samples and scored none.
        """
        if any(row.compared for row in self.rows):
            raise InputError(
                f"{self.phase} step {self.step}: judge {self.judge_id!r} compared samples and scored none, so there "
                "are no scores; take another phase, such as eval"
            )
        return ScoreTable.from_verdicts(
            self.rubric, [row.sample_id for row in self.rows], [row.verdicts for row in self.rows]
        )

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """(row of a, row of b, verdict) of what the judge compared; empty where it scored.

        Raises:
            InputError: a pair names a sample that the group does not hold.
        """
        at = {row.sample_id: number for number, row in enumerate(self.rows)}
        try:
            named = [(n, at[other], verdict) for n, row in enumerate(self.rows) for other, verdict in row.compared]
        except KeyError as error:
            raise InputError(f"step {self.step}, prompt {self.prompt_id!r}: compared with {error}, not there") from None
        return check_pairs(named, len(self.rows))

    @property
    def rewards(self) -> NDArray[np.float64]:
        """[S] rewards as they were used in the run; NaN = not scorable or not written."""
        return np.array([np.nan if row.reward is None else row.reward for row in self.rows], dtype=np.float64)

    @property
    def phase(self) -> str:
        """`train`, or another phase."""
        return self.rows[0].phase

    @property
    def step(self) -> int:
        """Step of the rows (see `mmrubric.record`)."""
        return self.rows[0].step

    @property
    def prompt_id(self) -> str:
        """Id of the prompt."""
        return self.rows[0].prompt_id

    @property
    def judge_id(self) -> str:
        """Id of the judge."""
        return self.rows[0].judge_id


class RecordReader:
    """A run record on disk. Opening reads it once, to find broken lines and which rows count.

    Attributes:
        attempts: the writers, in order.
        rubrics: rubric by hash; each checked against its hash.
        torn: lines cut off by a kill.

    Raises:
        InputError: with file and line: no such file, not a run record, a broken line, an edited rubric, a row
            whose rubric is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError(f"{self.path}: no such run record")
        # A run may be writing: all passes see the file as it was when it was opened.
        self._size = self.path.stat().st_size
        self.attempts: list[Attempt] = []
        self.rubrics: dict[str, Rubric] = {}
        self.torn: list[TornLine] = []
        self._latest: dict[tuple[str, int], int] = {}
        for number, data in self._objects(self.torn):
            self._scan(number, data)
        if not self.attempts:
            raise InputError(f"{self.path}: holds no attempt line, so it is not a run record")

    def rows(self, phase: str | None = None, *, superseded: bool = False) -> Iterator[SampleRow]:
        """Streams the rows that count, in file order.

        Args:
            phase: only this phase; None = all.
            superseded: True streams only the rows that a later attempt made void.
        """
        for number, data in self._objects([]):
            if data["kind"] == "sample" and (phase is None or data.get("phase", TRAIN) == phase):
                row = self._row(number, data)
                if self._counts(row) != superseded:
                    yield row

    def groups(self, phase: str | None = None, judge_id: str | None = None) -> Iterator[RecordedGroup]:
        """Streams groups step by step, within a step in the order of their first rows; holds one step.

        Raises:
            InputError: two rows of one sample in a group, or a group whose rows are not together.
        """
        for block in self._blocks(phase, judge_id):
            yield from block

    def rebuild(
        self, aggregator: Aggregator, phase: str | None = None, judge_id: str | None = None
    ) -> Iterator[tuple[RecordedGroup, NDArray[np.float64]]]:
        """Rewards under another aggregator, from the recorded verdicts, without judging.

        A stateful aggregator goes through the steps as in training: it scores all groups of a step, then
        observes them; an epoch ends before the first step of the next one. It learns from train rows only.

        Yields:
            (group, rewards [S]); NaN = not scorable.

        Raises:
            InputError: the judge of a group compared its samples, so that there is nothing to aggregate.
        """
        epoch: int | None = None
        for block in self._blocks(phase, judge_id):
            places = [Context(step=g.step, epoch=g.rows[0].epoch or 0, prompt_id=g.prompt_id) for g in block]
            training = block[0].phase == TRAIN
            if training:
                if epoch is not None and places[0].epoch > epoch:
                    aggregator.end_epoch()
                epoch = places[0].epoch
            yield from [(group, aggregator(group.table, ctx)) for group, ctx in zip(block, places, strict=True)]
            if training:
                aggregator.observe([group.table for group in block], places)

    def _blocks(self, phase: str | None, judge_id: str | None) -> Iterator[list[RecordedGroup]]:
        block: dict[tuple[Any, ...], list[SampleRow]] = {}
        done: dict[tuple[Any, ...], int] = {}
        place: tuple[Any, ...] | None = None
        for row in self.rows(phase):
            if judge_id is not None and row.judge_id != judge_id:
                continue
            if place is not None and (row.phase, row.step) != place:
                yield self._close(block, done)
                block = {}
            place = (row.phase, row.step)
            if row.group_key in done:
                raise InputError(f"{self.path}:{row.line}: a row of a group that ended on line {done[row.group_key]}")
            mates = block.setdefault(row.group_key, [])
            twin = next((mate for mate in mates if mate.sample_id == row.sample_id), None)
            if twin is not None:
                raise InputError(f"{self.path}:{row.line}: sample {row.sample_id!r} is on line {twin.line} already")
            mates.append(row)
        if block:
            yield self._close(block, done)

    def _close(
        self, block: dict[tuple[Any, ...], list[SampleRow]], done: dict[tuple[Any, ...], int]
    ) -> list[RecordedGroup]:
        groups = []
        for key, rows in block.items():
            done[key] = rows[-1].line
            groups.append(RecordedGroup(tuple(rows), self.rubrics[rows[0].rubric_hash]))
        return groups

    def _counts(self, row: SampleRow) -> bool:
        later = [a for a in self.attempts if a.attempt > row.attempt]
        if row.phase == TRAIN:
            return all(row.step < a.from_step for a in later)
        if self._latest[row.phase, row.step] != row.attempt:
            return False
        return all(row.step <= a.from_step for a in later)

    def _objects(self, torn: list[TornLine]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, object) of every whole line; fragments go to `torn`, other broken lines raise."""
        broken: tuple[int, bytes, str] | None = None
        with self.path.open("rb") as file:
            left = self._size
            for number, raw in enumerate(file, start=1):
                raw = raw[:left]
                left -= len(raw)
                if not raw:
                    break
                data, why = _parse(raw)
                if broken is not None:
                    if data is None or data["kind"] != "torn":
                        raise InputError(f"{self.path}:{broken[0]}: {broken[2]}")
                    torn.append(TornLine(broken[0], len(broken[1].rstrip(b"\n"))))
                    broken = None
                if data is None:
                    broken = (number, raw, why)
                elif data["kind"] != "torn":
                    yield number, data
        if broken is not None:
            if broken[1].endswith(b"\n"):
                raise InputError(f"{self.path}:{broken[0]}: {broken[2]}")
            torn.append(TornLine(broken[0], len(broken[1])))

    def _scan(self, number: int, data: dict[str, Any]) -> None:
        kind = data["kind"]
        if not self.attempts and kind != "attempt":
            raise InputError(f"{self.path}:{number}: the first line must be an attempt; this is not a run record")
        if kind == "attempt":
            if data.get("format") != FORMAT:
                raise InputError(f"{self.path}:{number}: format {data.get('format')!r}; this program reads {FORMAT}")
            try:
                attempt = Attempt(**{f.name: data[f.name] for f in fields(Attempt)})
            except KeyError as error:
                raise InputError(f"{self.path}:{number}: attempt line without {error}") from error
            if attempt.attempt != len(self.attempts):
                raise InputError(f"{self.path}:{number}: attempt {attempt.attempt}, expected {len(self.attempts)}")
            self.attempts.append(attempt)
        elif kind == "rubric":
            rubric = rubric_io.parse(data.get("rubric"), f"{self.path}:{number}")
            if rubric.hash != data.get("hash"):
                raise InputError(f"{self.path}:{number}: the rubric does not have the hash it is filed under; edited?")
            self.rubrics[rubric.hash] = rubric
        elif kind == "sample":
            row = self._row(number, data)
            if row.rubric_hash not in self.rubrics:
                raise InputError(f"{self.path}:{number}: rubric {row.rubric_hash} is not in the record")
            key = (row.phase, row.step)
            self._latest[key] = max(row.attempt, self._latest.get(key, 0))
        else:
            raise InputError(f"{self.path}:{number}: unknown kind {kind!r}; known: attempt, rubric, sample, torn")

    def _row(self, number: int, data: dict[str, Any]) -> SampleRow:
        try:
            row = SampleRow.from_dict({k: v for k, v in data.items() if k != "kind"}, line=number)
        except (InputError, TypeError, ValueError) as error:
            raise InputError(f"{self.path}:{number}: {error}") from error
        if row.attempt >= len(self.attempts):
            raise InputError(f"{self.path}:{number}: attempt {row.attempt} was never opened")
        return row


def _parse(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return None, f"broken JSON: {error}"
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return None, "not an object with a kind, so not a line of a run record"
    return data, ""
