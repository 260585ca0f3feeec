"""What the benchmarks share: checked records, rubrics with their left-over fields, and the check of the way back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from mmrubric.benchmarks.files import Row
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric


class Record(BaseModel, extra="allow"):
    """A record of a file. Fields that are not declared are kept; a declared one may be left out, never null."""

    @model_validator(mode="before")
    @classmethod
    def _no_nulls(cls, data: Any) -> Any:
        # Null and absent mean the same, so the way back could not tell which it was.
        nulls = [name for name in cls.model_fields if isinstance(data, dict) and data.get(name, "") is None]
        if nulls:
            raise ValueError(f"field {', '.join(map(repr, nulls))} is null; give it a value or leave it out")
        return data


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], data: Any, where: str) -> Model:
    """Check a record; an `InputError` names each wrong field, what it holds and what it should hold."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: expected a record with named fields, got {type(data).__name__}")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise InputError("\n".join(f"{where}: {_problem(problem)}" for problem in error.errors())) from error


def rows_of(records: Any, where: str) -> list[Row]:
    """The records of one item, each with its number as its place."""
    if isinstance(records, (Mapping, str)) or not isinstance(records, Sequence) or not records:
        raise InputError(f"{where}: expected the list of all records of one item")
    return [Row(f"{where}: record {number}", record) for number, record in enumerate(records, start=1)]


def parse_rows(model: type[Model], rows: Sequence[Row], id_field: str) -> list[Model]:
    """Check the records of one item; messages name place and item."""
    return [parse(model, row.data, labelled(row.where, row.data, id_field)) for row in rows]


def labelled(where: str, record: Any, id_field: str) -> str:
    """`where` with the id of the item that the record belongs to, as far as it has one."""
    id = record.get(id_field, "") if isinstance(record, Mapping) else ""
    return where if id == "" else f"{where}: item {id!r}"


def check_new(id: str, seen: set[str], where: str) -> None:
    """Add the id of an item to those seen; verdicts are joined by it, so it may come only once."""
    if id in seen:
        raise InputError(f"{where}: item {id!r} has come before; put its records together, or give it its own id")
    seen.add(id)


def shared(field: str, records: Sequence[BaseModel], rows: Sequence[Row]) -> str:
    """The one value of a field that all records of an item share."""
    value = getattr(records[0], field)
    for record, row in zip(records, rows, strict=True):
        if getattr(record, field) != value:
            raise InputError(
                f"{row.where}: field {field!r} is {getattr(record, field)!r}, but the item's first record has "
                f"{value!r}; the records of one item must agree"
            )
    return value


def build(
    name: str,
    where: str,
    prompt: str,
    criteria: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any],
    notes: Iterable[str] = (),
) -> Rubric:
    """A rubric of the benchmark `name`; `extra` is what the way back needs, kept in `provenance.extra[name]`."""
    data = {
        "prompt": prompt,
        "criteria": [dict(criterion) for criterion in criteria],
        "provenance": {
            "generator": f"benchmark:{name}",
            "notes": (*notes, *_repeats(criteria)),
            "extra": {name: dict(extra)},
        },
    }
    with warnings.catch_warnings():
        # Users cannot change an official file. The notes say it, and the official scores count both.
        warnings.filterwarnings("ignore", message=".*repeat each other's text")
        return Rubric.parse(data, where)


def kept(name: str, rubric: Rubric) -> dict[str, Any]:
    """`provenance.extra[name]`, which only rubrics of that benchmark have."""
    extra = rubric.provenance.extra.get(name)
    if not isinstance(extra, dict):
        raise InputError(
            f"rubric of prompt {rubric.prompt!r}: field provenance.extra.{name} is missing; only a rubric from "
            f"benchmarks.load or from_record goes back to a {name} record"
        )
    return extra


def kept_of(name: str, criterion: Criterion) -> dict[str, Any]:
    """`extra[name]` of a criterion, which only criteria of that benchmark have."""
    extra = criterion.extra.get(name)
    if not isinstance(extra, dict):
        raise InputError(
            f"criterion {criterion.id!r}: field extra.{name} is missing, so it has no place in a {name} record; "
            "remove the criterion"
        )
    return extra


def check_way_back(name: str, rubric: Rubric, read: Callable[[str], Rubric]) -> None:
    """Refuse an edit that a record cannot hold.

    Args:
        read: reads the new record, given where it comes from; it must give `rubric` again.
    """
    where = f"{name} rubric of prompt {rubric.prompt!r}"
    with warnings.catch_warnings():
        # What reading warns of, the user was told on the way in.
        warnings.simplefilter("ignore")
        again = read(where)
    if again.ids != rubric.ids:
        raise InputError(
            f"{where}: a record would give the criteria {list(again.ids)}, the rubric has {list(rubric.ids)}; "
            "undo what was added, removed or renamed"
        )
    for old, new in zip(rubric.criteria, again.criteria, strict=True):
        for field in Criterion.model_fields:
            if getattr(old, field) != getattr(new, field):
                raise InputError(
                    f"{where}: criterion {old.id!r}: field {field!r}: a record cannot hold {getattr(old, field)!r}, "
                    f"it would come back as {getattr(new, field)!r}; undo this edit"
                )


def _problem(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    start = f"field {field!r}: " if field else ""
    if problem["type"] == "missing":
        return f"{start}is missing; add it"
    text = problem["msg"].removeprefix("Value error, ")
    shown = problem.get("input")
    return start + text + (f" (got {shown!r})" if shown is None or isinstance(shown, (str, int, float)) else "")


def _repeats(criteria: Sequence[Mapping[str, Any]]) -> list[str]:
    ids: dict[str, list[str]] = {}
    for criterion in criteria:
        ids.setdefault(str(criterion["text"]).strip().casefold(), []).append(str(criterion["id"]))
    return [f"criteria {', '.join(same)} repeat each other's text; all are kept" for same in ids.values() if same[1:]]
