"""The 9-column CSV that DSG introduced and DPG-Bench shares: one row per question, an item's rows together.

DSG, arXiv 2310.18235; DPG-Bench, arXiv 2403.05135.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr

from mmrubric.benchmarks import dependencies, files, mapping
from mmrubric.errors import InputError
from mmrubric.rubric import Rubric

COLUMNS: tuple[str, ...] = (
    "item_id",
    "text",
    "keywords",
    "proposition_id",
    "dependency",
    "category_broad",
    "category_detailed",
    "tuple",
    "question_natural_language",
)
_MAPPED = ("item_id", "text", "proposition_id", "category_broad", "question_natural_language")


class _Row(mapping.Record):
    item_id: Annotated[StrictStr, Field(min_length=1)]
    text: Annotated[StrictStr, Field(min_length=1)]
    keywords: StrictStr
    proposition_id: Annotated[StrictStr, Field(pattern="^[1-9][0-9]*$")]
    dependency: StrictStr
    category_broad: StrictStr
    category_detailed: StrictStr
    tuple: StrictStr
    question_natural_language: StrictStr


def load(name: str, path: Path) -> Iterator[Rubric]:
    """The rubrics of a CSV, in file order; one item is held at a time.

    Raises:
        InputError: a row is wrong, or the rows of an item do not stand together.
    """
    seen: set[str] = set()
    for item, group in groupby(files.csv_rows(path, required=COLUMNS), key=lambda row: row.data["item_id"]):
        rows = list(group)
        mapping.check_new(item, seen, rows[0].where)
        yield from_rows(name, rows)


def from_rows(name: str, rows: Sequence[files.Row]) -> Rubric:
    """The rows of one item as a rubric. Dirty dependencies are cleaned; `provenance.notes` says how."""
    parsed = mapping.parse_rows(_Row, rows, "item_id")
    where = mapping.labelled(rows[0].where, rows[0].data, "item_id")
    item, prompt = mapping.shared("item_id", parsed, rows), mapping.shared("text", parsed, rows)
    ids = [row.proposition_id for row in parsed]
    twice = sorted({id for id in ids if ids.count(id) > 1})
    if twice:
        raise InputError(f"{where}: field 'proposition_id': {', '.join(twice)} is given twice; number the rows anew")
    parents, notes = dependencies.clean({row.proposition_id: row.dependency.split(",") for row in parsed}, where)
    criteria = [_criterion(name, row, parents[row.proposition_id]) for row in parsed]
    return mapping.build(name, where, prompt, criteria, {"id": item}, (*_gaps(ids), *notes))


def to_rows(name: str, rubric: Rubric) -> list[dict[str, str]]:
    """The rows that `rubric` came from, field by field; edited questions and categories are written.

    Raises:
        InputError: the rubric is of other origin, or was edited in a way that rows cannot hold.
    """
    item = mapping.kept(name, rubric)["id"]
    rows = [
        {
            "item_id": item,
            "text": rubric.prompt,
            "proposition_id": criterion.id,
            "category_broad": criterion.category,
            "question_natural_language": criterion.text,
            **mapping.kept_of(name, criterion),
        }
        for criterion in rubric.criteria
    ]
    mapping.check_way_back(name, rubric, lambda where: from_rows(name, mapping.rows_of(rows, where)))
    return rows


def _criterion(name: str, row: _Row, parents: Sequence[str]) -> dict[str, Any]:
    return {
        "id": row.proposition_id,
        "text": row.question_natural_language,
        "category": row.category_broad,
        "depends_on": tuple(parents),
        "extra": {name: row.model_dump(exclude=set(_MAPPED))},
    }


def _gaps(ids: Sequence[str]) -> list[str]:
    missing = sorted(set(range(1, max(map(int, ids)) + 1)) - set(map(int, ids)))
    return [f"no question {', '.join(map(str, missing))}; kept as it is"] if missing else []
