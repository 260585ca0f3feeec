"""PerceptionRubrics: what a golden caption says, as criteria that must hold and criteria that are easy to miss.

One rubric per record of a .jsonl file or a JSON list. Its prompt is the golden caption; `must_right` are gates
(`hard`), `easy_wrong` have weight 1. The exact penalty for a failed `must_right` is not published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import StrictInt, StrictStr

from mmrubric.benchmarks import files, mapping
from mmrubric.rubric import Rubric

NAME = "perception_rubrics"
_LISTS = ("must_right", "easy_wrong")


class _Record(mapping.Record):
    id: StrictStr | StrictInt
    image: StrictStr
    category: StrictStr
    golden_caption: StrictStr
    must_right: list[StrictStr]
    easy_wrong: list[StrictStr]


def load(path: Path) -> Iterator[Rubric]:
    """The rubrics of a .jsonl file or, under another name, a JSON list, in file order."""
    read = files.jsonl if path.name.removesuffix(".gz").endswith(".jsonl") else files.json_list
    seen: set[str] = set()
    for row in read(path):
        rubric = from_record(row.data, row.where)
        mapping.check_new(str(mapping.kept(NAME, rubric)["id"]), seen, row.where)
        yield rubric


def from_record(record: Mapping[str, Any], where: str = "record") -> Rubric:
    """One record as a rubric."""
    where = mapping.labelled(where, record, "id")
    parsed = mapping.parse(_Record, record, where)
    criteria = [
        {"id": f"{name}_{number}", "text": text, "category": name, "hard": name == "must_right"}
        for name in _LISTS
        for number, text in enumerate(getattr(parsed, name), start=1)
    ]
    extra = parsed.model_dump(exclude={"golden_caption", *_LISTS})
    return mapping.build(NAME, where, parsed.golden_caption, criteria, extra)


def to_record(rubric: Rubric) -> dict[str, Any]:
    """The record that `rubric` came from; edited texts are written.

    Raises:
        InputError: the rubric is of other origin, or was edited in a way that a record cannot hold.
    """
    record = {
        **mapping.kept(NAME, rubric),
        "golden_caption": rubric.prompt,
        **{name: [c.text for c in rubric.criteria if c.category == name] for name in _LISTS},
    }
    mapping.check_way_back(NAME, rubric, lambda where: from_record(record, where))
    return record
