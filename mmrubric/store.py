"""The verdict store: what a judge has answered once is not asked again.

One SQLite file in WAL mode, keyed by the content of the request that was really sent. JSON only, never
pickle. Threads and processes of one machine may share the file; keep it off network file systems, where WAL
is not safe.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from mmrubric.errors import InputError, RunError
from mmrubric.verdict import Cost, Verdict

_VERSION = 1
_APPLICATION = 0x4D4D5253
"""SQLite application id ('MMRS'): tells our file from any other database."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, kind TEXT NOT NULL, value TEXT NOT NULL, created REAL NOT NULL
) WITHOUT ROWID
"""
_WAIT_SECONDS = 60.0


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: keys sorted, no blanks, ASCII escapes.

    1, 1.0, true and "1" differ, as they do on the wire. Tuples are written as lists.

    Raises:
        InputError: NaN, infinity, a key that is not text, or anything that is not JSON; the message gives the
            place.
    """
    _check_json(value, "request")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def request_key(request: Any, repeat: int = 0) -> str:
    """sha256 hex of the request that was really sent plus `repeat`.

    Args:
        request: JSON value with everything that decides the answer: endpoint, model, messages (images by
            their content hash), sampling parameters, schema. A judge of pixels puts its id and the image hash
            here.
        repeat: 0 for the first asking; higher numbers ask the same thing again to measure judge noise.
    """
    if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 0:
        raise InputError(f"repeat must be an integer of at least 0, got {repeat!r}")
    return hashlib.sha256(canonical_json({"repeat": repeat, "request": request}).encode("ascii")).hexdigest()


class Store:
    """Answers by request key. Use it as a context manager or call `close`.

    The first answer written under a key stays: a process that asked the same thing at the same time reads it
    back and goes on with the same value as all others. Only an answer that cannot be used any more, because it
    is checked more strictly now, may be replaced.

    Raises:
        InputError: the file is no database, belongs to another program, or is of a newer version.
        RunError: the disk is full or the file stays locked for a minute.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise InputError(f"{self.path}: the folder {self.path.parent} does not exist; create it first")
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[tuple[int, sqlite3.Connection]] = []
        self._closed = False
        self._connection()

    def get(self, key: str, sample_id: str, criterion_ids: Sequence[str] | None = None) -> list[Verdict] | None:
        """Verdicts stored under `key`, or None.

        The key knows pictures and texts, not the names given to them; so the verdicts come back under the
        names of the caller.

        Args:
            key: from `request_key`.
            sample_id: id of the sample that is asked about now.
            criterion_ids: ids to give to the verdicts, in the order in which they were stored; None keeps the
                stored ids.

        Returns:
            Verdicts with cost `Cost(cached=True)`: a stored answer costs nothing again.
        """
        rows = self.get_json(key, kind="verdicts")
        if rows is None:
            return None
        verdicts = [Verdict.from_dict(row) for row in rows]
        ids = [v.criterion_id for v in verdicts] if criterion_ids is None else list(criterion_ids)
        if len(ids) != len(verdicts):
            raise InputError(f"{self.path}: key {key} holds {len(verdicts)} verdicts, but {len(ids)} ids were given")
        cost = Cost(cached=True)
        return [replace(v, sample_id=sample_id, criterion_id=i, cost=cost) for v, i in zip(verdicts, ids, strict=True)]

    def put(self, key: str, verdicts: Sequence[Verdict]) -> bool:
        """Stores the verdicts of one request, if all of them are valid.

        Valid means that the judge answered: `met` is known, or the question does not apply. One failure among
        them and nothing is stored, so the request is asked again next time.

        Returns:
            True when the answer is in the store now (this one, or an earlier one under the same key).
        """
        if not verdicts or not all(is_valid(v) for v in verdicts):
            return False
        self.put_json(key, [v.to_dict() for v in verdicts], kind="verdicts")
        return True

    def get_json(self, key: str, kind: str) -> Any | None:
        """The JSON value under `key`, or None. A value of another kind under the key is an `InputError`."""
        with self._guard():
            row = self._connection().execute("SELECT kind, value FROM entries WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if row[0] != kind:
            raise InputError(f"{self.path}: key {key} holds {row[0]!r}, not {kind!r}")
        try:
            return json.loads(row[1])
        except json.JSONDecodeError as error:
            raise InputError(f"{self.path}: key {key} holds broken JSON ({error}); delete the file") from error

    def put_json(self, key: str, value: Any, kind: str) -> None:
        """Stores any valid answer that is not a list of verdicts, such as a joint rank. Failures stay out."""
        self.put_many_json([(key, value)], kind)

    def put_many_json(self, items: Iterable[tuple[str, Any]], kind: str, replace: bool = False) -> None:
        """Stores several answers in one transaction: all of them or none.

        Args:
            items: pairs of key and answer.
            kind: of the answers.
            replace: they take the place of earlier ones of their kind, which could not be used; False = the first
                answer under a key stays.
        """
        instead = "DO UPDATE SET value = excluded.value, created = excluded.created WHERE kind = excluded.kind"
        now = time.time()
        rows = [(key, kind, canonical_json(_not_none(value)), now) for key, value in items]
        with self._guard():
            connection = self._connection()
            # Immediate: take the write lock first, so that the busy timeout applies instead of an upgrade
            # conflict.
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany(
                    f"INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT (key) {instead if replace else 'DO NOTHING'}",
                    rows,
                )
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def __contains__(self, key: str) -> bool:
        with self._guard():
            return self._connection().execute("SELECT 1 FROM entries WHERE key = ?", (key,)).fetchone() is not None

    def __len__(self) -> int:
        with self._guard():
            return self._connection().execute("SELECT COUNT(*) FROM entries").fetchone()[0]

    def close(self) -> None:
        """Closes the connections of all threads of this process. The store cannot be used afterwards."""
        with self._lock:
            self._closed = True
            for pid, connection in self._open:
                if pid == os.getpid():
                    connection.close()
            self._open.clear()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> Mapping[str, Path]:
        # Sent to a worker process: only the path travels, the worker opens its own connection.
        return {"path": self.path}

    def __setstate__(self, state: Mapping[str, Path]) -> None:
        self.__init__(state["path"])

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise RunError(f"{self.path}: the verdict store is closed")
        # A connection must not cross threads or forks, so each thread of each process has its own.
        if getattr(self._local, "pid", None) != os.getpid():
            with self._guard():
                self._local.connection = self._connect()
            self._local.pid = os.getpid()
            with self._lock:
                self._open.append((os.getpid(), self._local.connection))
        return self._local.connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=_WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=16,
        )
        try:
            # Switching to WAL does not wait on the busy timeout when several processes start together.
            for attempt in Retrying(
                retry=retry_if_exception(_is_busy),
                stop=stop_after_delay(_WAIT_SECONDS),
                wait=wait_random(0.005, 0.05),
                reraise=True,
            ):
                with attempt:
                    self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # One lock around looking and making: another process may be making the file at the same moment.
        connection.execute("BEGIN IMMEDIATE")
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
            if application != _APPLICATION and (application or version or tables):
                raise InputError(f"{self.path}: an SQLite file of another program, not a verdict store")
            if version > _VERSION:
                raise InputError(
                    f"{self.path}: version {version} is newer than this program's {_VERSION}; update mmrubric"
                )
            if application != _APPLICATION:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise InputError(f"{self.path}: this file system cannot hold a shared store (journal mode {mode})")
        # NORMAL with WAL: a killed process loses nothing, a power cut at most the last answers, never the
        # file.
        connection.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RunError(f"{self.path}: the verdict store failed: {error}") from error
        except sqlite3.DatabaseError as error:
            raise InputError(f"{self.path}: not a verdict store or damaged ({error}); move it away") from error


def is_valid(verdict: Verdict) -> bool:
    """True when the judge answered: the verdict is known, or the question does not apply."""
    return verdict.failure is None and (verdict.known or not verdict.applicable)


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))


def _not_none(value: Any) -> Any:
    if value is None:
        raise InputError("the verdict store keeps answers; None is not an answer")
    return value


def _check_json(value: Any, where: str) -> None:
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InputError(f"{where}: {value!r} is not JSON; use null for unknown")
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputError(f"{where}: key {key!r} is not text")
            _check_json(item, f"{where}.{key}")
        return
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_json(item, f"{where}[{index}]")
        return
    raise InputError(f"{where}: {type(value).__name__} is not JSON; convert it to text, numbers, lists and objects")
