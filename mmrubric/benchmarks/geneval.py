"""GenEval (arXiv 2310.11513) and files of its schema, such as Flow-GRPO's (arXiv 2505.05470).

One line of `evaluation_metadata.jsonl` gives one rubric. Each checkable `Fact` of the line becomes a criterion,
with the fact in its `arguments` for a detector. The id of an item is its place in the file, counted from 0, as five
digits: the name of its folder in the official layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, StrictStr, model_validator

from mmrubric.benchmarks import files, mapping
from mmrubric.errors import InputError
from mmrubric.prompt import Prompt
from mmrubric.rubric import Criterion, Rubric

NAME = "geneval"
Tag = Literal["single_object", "two_object", "counting", "colors", "position", "color_attr"]
Colour = Literal["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white"]
Relation = Literal["left of", "right of", "above", "below"]
Kind = Literal["object", "count", "colour", "position"]

_CATEGORIES: dict[Kind, str] = {"object": "object", "count": "count", "colour": "attribute", "position": "relation"}
_SIDES = {"left of": "to the left of", "right of": "to the right of", "above": "above", "below": "below"}
_PLURAL = {"scissors", "skis"}
_NO_ARTICLE = _PLURAL | {"broccoli"}


@dataclass(frozen=True)
class Fact:
    """One thing that a GenEval prompt asks for."""

    kind: Kind
    cls: str
    """Class of the object, such as `wine glass`."""
    value: int | str | tuple[str, str] | None = None
    """None (object), exact number (count), colour, or (relation, other class): `cls` is right of the other."""


class _Entry(mapping.Record):
    cls: Annotated[StrictStr, Field(alias="class", min_length=1)]
    count: Annotated[StrictInt, Field(ge=1)]


class _Include(_Entry):
    color: Colour | None = None
    position: tuple[Relation, StrictInt] | None = None


class _Exclude(_Entry, extra="forbid"):
    pass


class _Record(mapping.Record):
    tag: Tag
    prompt: StrictStr
    include: Annotated[list[_Include], Field(min_length=1)]
    exclude: list[_Exclude] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        classes = [entry.cls for entry in self.include]
        if len(set(classes)) < len(classes):
            raise ValueError(f"field 'include': a class stands twice in {classes}; give each class one entry")
        for number, entry in enumerate(self.include):
            if entry.position is not None and not 0 <= entry.position[1] < number:
                raise ValueError(
                    f"field 'include.{number}.position': {entry.position[1]} is not the index of an earlier entry"
                )
            if self.tag != "counting" and entry.count != 1:
                raise ValueError(f"field 'include.{number}.count': must be 1 unless the tag is counting")
        # Counting means exactly n: at least n by include, not n + 1 by exclude.
        limits = [(e.cls, e.count) for e in self.exclude or ()]
        expected = [(e.cls, e.count + 1) for e in self.include] if self.tag == "counting" else []
        if limits != expected or (self.exclude is not None) != bool(expected):
            raise ValueError(f"field 'exclude': tag {self.tag} needs {expected or 'no exclude'}, got {limits}")
        return self


def facts(record: Mapping[str, Any], where: str = "record") -> list[Fact]:
    """What the prompt of a record asks for, object by object.

    Each class; its exact count where the tag is counting; its colour; its position as (relation, other class).

    Raises:
        InputError: a field is missing or wrong.
    """
    return _facts(mapping.parse(_Record, record, where))


def load(path: Path) -> Iterator[Rubric]:
    """The rubrics of a .jsonl file, in file order."""
    for number, row in enumerate(files.jsonl(path)):
        yield from_record(row.data, row.where, item=f"{number:05d}")


def prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of `generation_prompts.txt`, with the ids that `load` gives to the same lines."""
    for number, row in enumerate(files.lines(path)):
        yield Prompt(id=f"{number:05d}", text=row.data)


def from_record(record: Mapping[str, Any], where: str = "record", item: str = "") -> Rubric:
    """One line as a rubric. `item` is its id, which the line itself does not hold."""
    where = mapping.labelled(where, {"item": item}, "item")
    parsed = mapping.parse(_Record, record, where)
    more = {entry.cls: {NAME: entry.model_extra} for entry in parsed.include if entry.model_extra}
    return mapping.build(
        NAME,
        where,
        parsed.prompt,
        [_criterion(fact, more) for fact in _facts(parsed)],
        {"id": item, "tag": parsed.tag, "rest": parsed.model_extra or {}},
    )


def to_record(rubric: Rubric) -> dict[str, Any]:
    """The line that `rubric` came from, rebuilt from the facts in its criteria's `arguments`.

    Raises:
        InputError: the rubric is of other origin, or was edited in a way that a line cannot hold.
    """
    extra = mapping.kept(NAME, rubric)
    found = [fact_of(criterion) for criterion in rubric.criteria]
    include: dict[str, dict[str, Any]] = {fact.cls: {"class": fact.cls, "count": 1} for fact in found}
    for criterion, fact in zip(rubric.criteria, found, strict=True):
        more: Any = criterion.extra.get(NAME, {})
        include[fact.cls].update(_fields(fact, list(include)), **more)
    record: dict[str, Any] = {"tag": extra["tag"], "include": list(include.values())}
    if extra["tag"] == "counting":
        record["exclude"] = [{"class": entry["class"], "count": entry["count"] + 1} for entry in include.values()]
    record |= {"prompt": rubric.prompt, **extra["rest"]}
    mapping.check_way_back(NAME, rubric, lambda where: from_record(record, where, item=extra["id"]))
    return record


def fact_of(criterion: Criterion) -> Fact:
    """The fact in a criterion's `arguments`.

    Raises:
        InputError: they hold none.
    """
    arguments: dict[str, Any] = criterion.arguments
    match arguments:
        case {"fact": "object", "class": str(cls)}:
            return Fact("object", cls)
        case {"fact": "count", "class": str(cls), "count": int(count)}:
            return Fact("count", cls, count)
        case {"fact": "colour", "class": str(cls), "colour": str(colour)}:
            return Fact("colour", cls, colour)
        case {"fact": "position", "class": str(cls), "relation": str(relation), "other": str(other)}:
            return Fact("position", cls, (relation, other))
    raise InputError(
        f"criterion {criterion.id!r}: field arguments: {arguments} is no GenEval fact, so it has no place in a "
        "geneval record; remove the criterion"
    )


def _facts(record: _Record) -> list[Fact]:
    found: list[Fact] = []
    for entry in record.include:
        found.append(Fact("object", entry.cls))
        if record.tag == "counting":
            found.append(Fact("count", entry.cls, entry.count))
        if entry.color is not None:
            found.append(Fact("colour", entry.cls, entry.color))
        if entry.position is not None:
            relation, other = entry.position
            found.append(Fact("position", entry.cls, (relation, record.include[other].cls)))
    return found


def _criterion(fact: Fact, more: Mapping[str, Any]) -> dict[str, Any]:
    text, parents, arguments = _wording(fact)
    return {
        "id": f"{fact.kind}:{fact.cls}",
        "text": text,
        "category": _CATEGORIES[fact.kind],
        "depends_on": tuple(f"object:{cls}" for cls in parents),
        "arguments": {"fact": fact.kind, "class": fact.cls, **arguments},
        "extra": more.get(fact.cls, {}) if fact.kind == "object" else {},
    }


def _wording(fact: Fact) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Statement for the judge, classes that it presumes, and arguments for a detector."""
    cls, verb = fact.cls, "are" if fact.cls in _PLURAL else "is"
    if fact.kind == "object":
        return f"{_with_article(cls)} {verb} visible.", (), {}
    if fact.kind == "count":
        # Not 'exactly three wine glasses': the plural of a class is not in the data.
        one = f"pair of {cls}" if cls in _PLURAL else cls
        return f"Counting every {one} in the image gives exactly {fact.value}.", (cls,), {"count": fact.value}
    if isinstance(fact.value, tuple):
        relation, other = fact.value
        text = f"In the image, the {cls} {verb} {_SIDES[relation]} the {other}."
        return text, (cls, other), {"relation": relation, "other": other}
    return f"The {cls} {verb} {fact.value}.", (cls,), {"colour": fact.value}


def _with_article(cls: str) -> str:
    if cls in _NO_ARTICLE:
        return cls.capitalize()
    return f"{'An' if cls[0] in 'aeiou' else 'A'} {cls}"


def _fields(fact: Fact, order: list[str]) -> dict[str, Any]:
    """The fact as fields of an include entry."""
    if fact.kind == "object":
        return {}
    if isinstance(fact.value, tuple):
        relation, other = fact.value
        if other not in order:
            raise InputError(f"position of {fact.cls!r}: no criterion asks for the other object {other!r}; add it")
        return {"position": [relation, order.index(other)]}
    return {"color" if fact.kind == "colour" else "count": fact.value}
