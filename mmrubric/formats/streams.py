"""Reading and writing rubric files of any format, one record at a time."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrubric.errors import InputError
from mmrubric.formats import detection, files
from mmrubric.formats.base import Place
from mmrubric.formats.fields import decoded
from mmrubric.formats.pairs import RankedCandidates
from mmrubric.formats.registry import FORMATS, HINT, PAIR_FORMATS, find, too_much, written
from mmrubric.rubric import Rubric

_MATCHES = {**{name: format.matches for name, format in FORMATS.items()}, "arr_pairs": detection.arr_pairs}


@dataclass(frozen=True)
class Written:
    """What `write` did."""

    rubrics: int
    dropped: dict[str, int]
    """How often each field was left out; only with `lossy`."""


def detect(path: str | Path) -> str:
    """The format of a file, by the content of its first record; `arr_pairs` for preference data.

    Raises:
        InputError: no format fits, or more than one; the message lists the known names.
    """
    path = Path(path)
    first = next(files.documents(path), None)
    if first is None:
        raise InputError(f"{path}: holds no record")
    document = decoded(first[1])
    found = _matching(document) or (_matching(document[0]) if isinstance(document, list) and document else [])
    if len(found) == 1:
        return found[0]
    fits = f"fits several formats ({', '.join(found)})" if found else "fits no known format"
    raise InputError(f"{path}: its first record {fits}; pass format= (or --from), one of {', '.join(sorted(_MATCHES))}")


def _matching(record: Any) -> list[str]:
    return [name for name, matches in _MATCHES.items() if matches(record)]


def _records(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Places and records; a document that is a list of records is taken apart."""
    for where, document in files.documents(path):
        if not isinstance(document, list) or _is_one(document, name):
            yield where, document
        else:
            yield from ((f"{where}: record {index}", record) for index, record in enumerate(document, start=1))


def _is_one(document: list[Any], name: str) -> bool:
    """Whether a list is one rubric, a list of criteria, rather than many records."""
    return name in FORMATS and FORMATS[name].lists and not (document and _MATCHES[name](document[0]))


def read(path: str | Path, format: str | None = None, counts: Counter[str] | None = None) -> Iterator[Rubric]:
    """Read a file rubric by rubric, in memory that does not grow with the file (JSONL and parquet).

    Args:
        path: .jsonl, .json, .yaml, .toml, .parquet or text.
        format: one of `names()`; None = `detect(path)`.
        counts: is filled with how many rows were left out, or were odd, for each reason.

    Raises:
        InputError: names file and line (or row), record, criterion and field; a file without a rubric is one.
    """
    path = Path(path)
    name = format or detect(path)
    find(name)  # a wrong name is an error here, not at the first rubric
    return _read(path, name, Counter() if counts is None else counts)


def _read(path: Path, name: str, counts: Counter[str]) -> Iterator[Rubric]:
    rubrics = 0
    for where, record in _records(path, name):
        found = FORMATS[name].read(record, Place(where, counts))
        rubrics += len(found)
        yield from found
    for kind, number in counts.items():
        if number > 1:  # the first one was shown with its place
            warnings.warn(f"{path}: {number} times: {kind}", stacklevel=2)
    if not rubrics:
        odd = "".join(f"; {number} times: {kind}" for kind, number in counts.items())
        raise InputError(f"{path}: holds no rubric of format {name}{odd}")


def read_pairs(path: str | Path, format: str | None = None) -> Iterator[RankedCandidates]:
    """Read preference data (`pair_names()`) record by record; for arguments and errors see `read`."""
    path = Path(path)
    name = format or detect(path)
    if name not in PAIR_FORMATS:
        raise InputError(f"{path}: format {name!r} holds no preference pairs; known: {', '.join(PAIR_FORMATS)}")
    return (PAIR_FORMATS[name](record, Place(where)) for where, record in _records(path, name))


def write(rubrics: Iterable[Rubric], path: str | Path, format: str, lossy: bool = False) -> Written:
    """Write rubrics one at a time; the file is written whole or not at all.

    Args:
        rubrics: any iterable, such as `read(...)` of another file.
        path: .jsonl; .json (one record, or a list); .yaml (one rubric).
        format: one of `names(export=True)`.
        lossy: leave out what the format cannot hold; the first loss of each field is shown as a warning, all are
            counted.

    Raises:
        InputError: names the rubric (from 1), the criterion and the field that the format cannot hold.
    """
    path = Path(path)
    counts: Counter[str] = Counter()
    total = 0

    def records() -> Iterator[Any]:
        nonlocal total
        for total, rubric in enumerate(rubrics, start=1):
            place = Place(f"{path}: rubric {total}", counts)
            try:
                record, loss = written(format, rubric)
            except InputError as error:
                raise place.error(str(error)) from error
            if loss.dropped and not lossy:
                raise place.error(f"{too_much(format)}: {'; '.join(loss.described())}. {HINT}")
            for id, name in loss.dropped:
                place.warn(name, f"criterion {id!r}: field {name!r} is left out: {too_much(format)} it")
            yield record

    find(format)
    files.write(records(), path)
    return Written(total, dict(counts))
