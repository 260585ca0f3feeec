"""What a rubric report reads: rubric files, verdict rows of `mmrubric judge --out`, and preferred samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrubric.errors import InputError
from mmrubric.record_reader import RecordedGroup
from mmrubric.report.judge_report_inputs import check_ids, json_objects
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable
from mmrubric.verdict import Verdict

_SUFFIXES = (".yaml", ".yml", ".json", ".jsonl")


@dataclass(frozen=True)
class Source:
    """A rubric and where it was read."""

    rubric: Rubric
    where: str
    """File, and for a .jsonl file the number of the rubric in it: 'rubrics.jsonl:3'."""


@dataclass(frozen=True)
class Judged:
    """Verdicts of one judge on one group."""

    judge: str
    table: ScoreTable


def load_rubrics(paths: Iterable[Path]) -> list[Source]:
    """All rubrics of some files (.yaml, .yml, .json with one rubric; .jsonl with one per line).

    Raises:
        InputError: no file, an unknown type, or a bad rubric, with file, line, criterion and field.
    """
    found: list[Source] = []
    for path in paths:
        if path.suffix not in _SUFFIXES:
            raise InputError(f"{path}: unknown file type {path.suffix!r}; known: {', '.join(_SUFFIXES)}")
        if path.suffix == ".jsonl":
            found += [Source(rubric, f"{path}:{k}") for k, rubric in enumerate(Rubric.load_many(path), start=1)]
        else:
            found.append(Source(Rubric.load(path), str(path)))
    return found


def of_groups(groups: Iterable[RecordedGroup]) -> list[Judged]:
    """The verdicts of a run record."""
    return [Judged(group.judge_id, group.table) for group in groups]


def load_verdicts(path: Path, rubrics: Mapping[str, Rubric]) -> list[Judged]:
    """Read the rows that `mmrubric judge --out` writes: one picture per line with its verdicts.

    Args:
        path: JSONL of {rubric_hash, judge, image, verdicts: [{criterion, met, ...}, ...], ...}.
        rubrics: by hash; a row on another rubric is an error, because its criteria would be unknown.

    Returns:
        One group per judge and rubric, pictures in file order.

    Raises:
        InputError: with file and line: broken JSON, a missing field, a bad verdict, an unknown rubric, or one picture
            twice.
    """
    rows: dict[tuple[str, str], dict[str, list[Verdict]]] = {}
    for number, data in json_objects(path):
        where = f"{path}:{number}"
        missing = [name for name in ("rubric_hash", "judge", "image", "verdicts") if name not in data]
        if missing:
            raise InputError(f"{where}: missing fields {missing}; give the rows that `mmrubric judge --out` writes")
        if data["rubric_hash"] not in rubrics:
            raise InputError(
                f"{where}: rubric_hash {data['rubric_hash']!r} is none of the {len(rubrics)} rubrics; "
                "give the rubric file that was judged"
            )
        check_ids(where, data["judge"], data["image"])
        group = rows.setdefault((data["judge"], data["rubric_hash"]), {})
        if data["image"] in group:
            raise InputError(f"{where}: picture {data['image']!r} has verdicts of judge {data['judge']!r} already")
        group[data["image"]] = _verdicts(data["image"], data["verdicts"], where)
    return [
        Judged(judge, ScoreTable.from_verdicts(rubrics[hash], list(group), group.values()))
        for (judge, hash), group in rows.items()
    ]


def _verdicts(sample: str, data: Any, where: str) -> list[Verdict]:
    if not isinstance(data, list) or not all(
        isinstance(item, dict) and {"criterion", "met"} <= set(item) for item in data
    ):
        raise InputError(f"{where}: field verdicts must be a list of objects with criterion and met")
    try:
        return [Verdict(sample, item["criterion"], item["met"]) for item in data]
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def load_preferred(path: Path) -> dict[str, bool]:
    """Read which samples are preferred: JSONL of {sample_id, preferred}, true or false.

    Raises:
        InputError: with file and line: broken JSON, a wrong field or value, or a sample twice.
    """
    labels: dict[str, bool] = {}
    for number, data in json_objects(path):
        where = f"{path}:{number}"
        if set(data) != {"sample_id", "preferred"}:
            raise InputError(f"{where}: fields {sorted(data)}; give sample_id and preferred")
        check_ids(where, data["sample_id"])
        if not isinstance(data["preferred"], bool):
            raise InputError(f"{where}: field preferred is {data['preferred']!r}; give true or false")
        if data["sample_id"] in labels:
            raise InputError(f"{where}: sample {data['sample_id']!r} is labelled twice")
        labels[data["sample_id"]] = data["preferred"]
    return labels


def known_tables(judged: Sequence[Judged], rubrics: Mapping[str, Rubric]) -> tuple[list[Judged], int]:
    """The verdicts on the rubrics of the report, and how many groups are on others.

    Raises:
        InputError: there are verdicts, and none is on one of the rubrics.
    """
    mine = [item for item in judged if item.table.rubric.hash in rubrics]
    if judged and not mine:
        raise InputError(
            f"none of the {len(judged)} groups of verdicts is on one of the {len(rubrics)} rubrics; "
            "give the rubric files that were judged (an edited rubric is another rubric)"
        )
    return mine, len(judged) - len(mine)
