"""Reading the benchmarks' files, plain or .gz, one record at a time; every record knows its file and line."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mmrubric.errors import InputError


@dataclass(frozen=True)
class Row:
    """A record as it stands in its file."""

    where: str
    """`file:line`, counted from 1."""
    data: Any


def whole(path: Path) -> str:
    """The text of a file."""
    with _opened(path) as file:
        return file.read()


def lines(path: Path) -> Iterator[Row]:
    """The lines of a text file without their ends; blank lines are skipped."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield Row(f"{path}:{number}", line.rstrip("\r\n"))


def jsonl(path: Path) -> Iterator[Row]:
    """The records of a .jsonl file."""
    for row in lines(path):
        yield Row(row.where, decode(row.data, row.where))


def csv_rows(path: Path, required: tuple[str, ...] = ()) -> Iterator[Row]:
    """The rows of a CSV file as {column: text}. A row may span lines; it is named by its first.

    Raises:
        InputError: a required column is missing, or a row has more or fewer fields than the header.
    """
    with _opened(path) as file:
        reader = csv.reader(file, strict=True)
        header = _next_fields(reader, path) or []
        missing = [name for name in required if name not in header]
        if missing:
            raise InputError(f"{path}:1: column {', '.join(missing)} is missing; the header has: {', '.join(header)}")
        if len(set(header)) < len(header):
            raise InputError(f"{path}:1: a column is given twice; the header has: {', '.join(header)}")
        while True:
            where = f"{path}:{reader.line_num + 1}"
            fields = _next_fields(reader, path)
            if fields is None:
                return
            if fields and len(fields) != len(header):
                raise InputError(f"{where}: {len(fields)} fields, the header has {len(header)}; correct the row")
            if fields:
                yield Row(where, dict(zip(header, fields, strict=True)))


def json_list(path: Path) -> Iterator[Row]:
    """The records of a JSON list. The text is read at once, because JSON has no lines; records are decoded in turn."""
    text = whole(path)
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
    at, line, counted = _skip(text, 0), 1, 0
    if text[at : at + 1] != "[":
        raise InputError(f"{path}: expected a JSON list of records")
    at = _skip(text, at + 1)
    closed = text[at : at + 1] == "]"
    while not closed:
        line, counted = line + text.count("\n", counted, at), at
        where = f"{path}:{line}"
        try:
            data, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON: {error}") from error
        yield Row(where, data)
        at = _skip(text, at)
        closed = text[at : at + 1] == "]"
        if not closed and text[at : at + 1] != ",":
            raise InputError(f"{where}: after the record that begins here, expected ',' or ']'; is the file cut off?")
        at = at if closed else _skip(text, at + 1)


def json_object(path: Path) -> dict[str, Any]:
    """A JSON object, read at once."""
    data = decode(whole(path), str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data


def decode(text: str, where: str) -> Any:
    """JSON text to data; a key given twice is an error, because one of its values would vanish."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {error}") from error


def recode(data: Any, original: str) -> str:
    """JSON text of `data`: `original`, with its blanks and escapes, where it says the same."""
    return original if json.loads(original) == data else json.dumps(data, ensure_ascii=False)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        # newline="": the csv module wants line ends as they are, also those inside quotes.
        opener = gzip.open if path.name.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file  # pyright: ignore[reportReturnType]
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}; check the path, or download the file again") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text: {error}") from error


def _next_fields(reader: Any, path: Path) -> list[str] | None:
    line = reader.line_num + 1
    try:
        return next(reader, None)
    except csv.Error as error:
        raise InputError(f"{path}:{line}: not valid CSV: {error}; check the quotes of this row") from error


def _skip(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {', '.join(sorted({key for key in keys if keys.count(key) > 1}))} is given twice")
    return data
