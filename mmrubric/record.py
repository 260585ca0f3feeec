"""The run record: every verdict of a run, so that rewards can be rebuilt without judging again.

An append-only JSONL file. Each line is one object whose `kind` says what it is:

- `attempt`: a process began to write; `attempt` counts them from 0, `from_step` is the step it starts with.
- `rubric`: a rubric, once per hash.
- `sample`: one judged sample: step, prompt id, rubric hash, sample id and hash, judge id, all its verdicts.
- `torn`: the line before it was cut off when a writer was killed; it is skipped and reported.

Which rows count. `step` of a `train` row is the 0-based index of the step that judged it; `step` of any other
phase is the number of steps finished at that time. A run that resumes after N finished steps opens the record
with `from_step=N`. Nothing is deleted: readers leave out rows that a later attempt superseded, which are

- train rows with `step >= from_step` of a later attempt (they are done again), and
- other rows with `step > from_step` of a later attempt, or whose phase and step a later attempt has as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from mmrubric import rubric_io
from mmrubric.errors import InputError, RunError
from mmrubric.record_reader import RecordedGroup, RecordReader, TornLine
from mmrubric.record_rows import FORMAT, TRAIN, Attempt, SampleRow, rows_of
from mmrubric.rubric import Rubric

__all__ = [
    "TRAIN",
    "Attempt",
    "RecordReader",
    "RecordedGroup",
    "RunRecord",
    "SampleRow",
    "TornLine",
    "rows_of",
]


class RunRecord:
    """Appends to a run record. One writer per run (rank 0); threads may share it.

    Every `append` is one write under a file lock, so a line is there whole or, after a kill in the middle of
    the write, cut off at the end of the file; the next writer marks such a line as torn.

    Args:
        path: the JSONL file; made when missing, continued when there.
        from_step: number of steps that were finished when this attempt started (0 for a fresh run).
        config_hash: written into the attempt line.

    Raises:
        InputError: the file is not a run record, or has a broken line that no kill explains.
        RunError: the disk is full; lines written before stay whole.
    """

    def __init__(self, path: str | Path, from_step: int = 0, config_hash: str = "") -> None:
        self.path = Path(path)
        if type(from_step) is not int or from_step < 0:
            raise InputError(f"{self.path}: from_step must be an integer of at least 0, got {from_step!r}")
        self._lock = threading.Lock()
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._file: int | None = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be opened for writing: {error.strerror}") from error
        try:
            with self._locked() as file:
                # Read under the lock, so that two writers cannot take the same attempt number.
                seen = RecordReader(self.path) if os.fstat(file).st_size else None
                self._rubrics = set(seen.rubrics) if seen else set()
                self.attempt = Attempt(len(seen.attempts) if seen else 0, from_step, config_hash, round(time.time(), 3))
                header = {"kind": "attempt", "format": FORMAT} | {
                    f.name: getattr(self.attempt, f.name) for f in fields(Attempt)
                }
                self._write(file, _line(header))
        except BaseException:
            self.close()
            raise

    def append(self, rows: Iterable[SampleRow], rubrics: Iterable[Rubric] = ()) -> None:
        """Appends judged samples, and before them the rubrics that the record does not hold yet.

        Give the rows of one step together: then the step is in the file as a whole.

        Raises:
            InputError: a row names a rubric that was never given, or a train row lies before `from_step`.
            RunError: the disk is full; the record is as it was before the call.
        """
        new = {rubric.hash: rubric for rubric in rubrics}
        parts = []
        with self._lock:
            fresh = {key: rubric for key, rubric in new.items() if key not in self._rubrics}
            for key, rubric in fresh.items():
                parts.append(_line({"kind": "rubric", "hash": key, "rubric": rubric_io.dump(rubric)}))
            for row in rows:
                if row.rubric_hash not in self._rubrics and row.rubric_hash not in fresh:
                    raise InputError(f"{self.path}: sample {row.sample_id!r} names rubric {row.rubric_hash}, not given")
                if row.phase == TRAIN and row.step < self.attempt.from_step:
                    raise InputError(
                        f"{self.path}: train row of step {row.step}, but this attempt starts at step "
                        f"{self.attempt.from_step}"
                    )
                parts.append(_line({"kind": "sample"} | replace(row, attempt=self.attempt.attempt).to_dict()))
            if not parts:
                return
            with self._locked() as file:
                self._write(file, b"".join(parts))
            self._rubrics.update(fresh)

    def sync(self) -> None:
        """Forces the lines onto the disk, against power cuts (a kill loses nothing); for checkpoints."""
        os.fsync(self._handle())

    def close(self) -> None:
        """Closes the file; further appends are errors."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _handle(self) -> int:
        if self._file is None:
            raise RunError(f"{self.path}: the run record is closed")
        return self._file

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = self._handle()
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _write(self, file: int, data: bytes) -> None:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            # A writer was killed in the middle of a line. The cut stays visible as a line of its own.
            data = b"\n" + _line({"kind": "torn"}) + data
        done = 0
        try:
            while done < len(data):
                done += os.write(file, data[done:])
        except OSError as error:
            os.ftruncate(file, size)
            raise RunError(f"{self.path}: cannot be written: {error.strerror}; free space and resume") from error


def _line(value: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            # Half an emoji in a judge's reason is no UTF-8; as an escape it is kept and reads back the same.
            text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(f"run record: a field of {value.get('kind')} is not JSON: {error}") from error
    return text.encode() + b"\n"
