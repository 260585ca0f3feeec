"""Files as streams of records, and files that are written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import yaml

from mmrubric import rubric_io
from mmrubric.atomic import replacing
from mmrubric.errors import InputError

TEXT_SUFFIXES = (".txt", ".md")
_READ = (".jsonl", ".json", ".yaml", ".yml", ".toml", ".parquet", *TEXT_SUFFIXES)
_WRITE = (".jsonl", ".json", ".yaml", ".yml")
_BATCH = 256


def documents(path: Path) -> Iterator[tuple[str, Any]]:
    """The records of a file with their places (`file:line` or `file: row n`).

    JSONL, and JSON files that hold a record per line, are read line by line; parquet by row group, in batches;
    all others give one document, which may be a list of records.

    Raises:
        InputError: the file cannot be read, or what it holds is not what its suffix says.
    """
    suffix = path.suffix.lower()
    if suffix not in _READ:
        raise InputError(f"{path}: unknown file type {path.suffix!r}; known: {', '.join(_READ)}")
    try:
        if suffix == ".jsonl":
            yield from _lines(path)
        elif suffix == ".json":
            yield from _json(path)
        elif suffix == ".parquet":
            yield from _parquet(path)
        else:
            yield str(path), _whole(path, suffix)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}:{number}"
            text = _decoded(raw, where)
            if text.strip():
                yield where, rubric_io.parse_json(text, where)


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8 text: {error}") from error


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """One document, or, as hubs often name them, a record per line: then the first line is whole JSON."""
    with open(path, "rb") as file:
        first = _first(file)
        more = any(line.strip() for line in file)
    if more and _is_record(first):
        yield from _lines(path)
    else:
        yield str(path), rubric_io.parse_json(_decoded(path.read_bytes(), str(path)), str(path))


def _first(file: IO[bytes]) -> bytes:
    return next((line for line in file if line.strip()), b"")


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _whole(path: Path, suffix: str) -> Any:
    text = _decoded(path.read_bytes(), str(path))
    try:
        if suffix in (".yaml", ".yml"):
            return yaml.load(text, Loader=rubric_io.Loader)
        if suffix == ".toml":
            import tomllib

            return tomllib.loads(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: not valid {suffix.removeprefix('.').upper()}: {error}") from error
    return text


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(f"{path}: reading parquet needs pyarrow; pip install pyarrow, or convert to .jsonl") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: not valid parquet: {error}") from error


def write(records: Iterable[Any], path: Path) -> None:
    """Write records one at a time, through a temporary file beside the target.

    A .jsonl file has one per line. A .json file has the record, or a list of them when there are several. A .yaml
    file has exactly one.

    Raises:
        InputError: unknown suffix, no record, several for YAML, or a value that is not JSON.
    """
    suffix = path.suffix.lower()
    if suffix not in _WRITE:
        raise InputError(f"{path}: cannot write file type {path.suffix!r}; known: {', '.join(_WRITE)}")
    stream = iter(records)
    try:
        first = next(stream)
    except StopIteration:
        raise InputError(f"{path}: there is no rubric to write") from None
    with replacing(path) as file:
        if suffix == ".jsonl":
            for record in chain([first], stream):
                file.write(_text(record, path) + "\n")
        elif suffix == ".json":
            _write_json(first, stream, file, path)
        else:
            if next(stream, None) is not None:
                raise InputError(f"{path}: a YAML file holds one rubric; write several to .jsonl")
            yaml.dump(first, file, Dumper=rubric_io.Dumper, sort_keys=False, allow_unicode=True, width=100)


def _write_json(first: Any, rest: Iterator[Any], file: IO[str], path: Path) -> None:
    second = next(rest, None)
    if second is None:
        file.write(_text(first, path, indent=2) + "\n")
        return
    file.write("[\n" + _text(first, path))
    for record in chain([second], rest):
        file.write(",\n" + _text(record, path))
    file.write("\n]\n")


def _text(record: Any, path: Path, indent: int | None = None) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, indent=indent, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: a record holds a value that is not JSON: {error}") from error
