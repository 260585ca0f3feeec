"""TIFA v1.0 (arXiv 2303.11897): multiple-choice questions, one rubric per caption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr

from mmrubric.benchmarks import files, mapping
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric

NAME = "tifa"
_MAPPED = {"id", "caption", "question", "answer", "element_type", "choices"}


class _Caption(mapping.Record):
    id: Annotated[StrictStr, Field(min_length=1)]
    caption: StrictStr


class _Question(_Caption):
    question: StrictStr
    choices: list[StrictStr]
    answer: StrictStr
    element_type: StrictStr
    element: StrictStr


def load(path: Path) -> Iterator[Rubric]:
    """The rubrics of a question file, in file order.

    Raises:
        InputError: a record is wrong, or the questions of a caption do not stand together.
    """
    seen: set[str] = set()
    for id, group in groupby(files.json_list(path), key=_id):
        rows = list(group)
        mapping.check_new(id, seen, rows[0].where)
        yield _rubric(rows)


def prompts(path: Path) -> Iterator[Prompt]:
    """The captions of `tifa_v1.0_text_inputs.json`, which has no questions."""
    for row in files.json_list(path):
        caption = mapping.parse(_Caption, row.data, row.where)
        yield Prompt(id=caption.id, text=caption.caption)


def from_record(records: Sequence[Any], where: str = "record") -> Rubric:
    """The questions of one caption as a rubric of nominal criteria; the expected label is the answer."""
    return _rubric(mapping.rows_of(records, where))


def to_record(rubric: Rubric) -> list[dict[str, Any]]:
    """The question records that `rubric` came from; edited questions, answers and types are written.

    Raises:
        InputError: the rubric is of other origin, or was edited in a way that the records cannot hold.
    """
    id = mapping.kept(NAME, rubric)["id"]
    records = [
        {
            "id": id,
            "caption": rubric.prompt,
            "question": criterion.text,
            "choices": [option.label for option in criterion.options],
            "answer": criterion.expected,
            "element_type": criterion.category,
            **mapping.kept_of(NAME, criterion),
        }
        for criterion in rubric.criteria
    ]
    mapping.check_way_back(NAME, rubric, lambda where: from_record(records, where))
    return records


def _id(row: files.Row) -> str:
    return mapping.parse(_Caption, row.data, row.where).id


def _rubric(rows: Sequence[files.Row]) -> Rubric:
    questions = mapping.parse_rows(_Question, rows, "id")
    id, caption = mapping.shared("id", questions, rows), mapping.shared("caption", questions, rows)
    criteria = [_criterion(number, question) for number, question in enumerate(questions, start=1)]
    notes = [
        f"question {number}: a choice is given twice; asked once"
        for number, question in enumerate(questions, start=1)
        if len(set(question.choices)) < len(question.choices)
    ]
    where = mapping.labelled(rows[0].where, rows[0].data, "id")
    return mapping.build(NAME, where, caption, criteria, {"id": id}, notes)


def _criterion(number: int, question: _Question) -> dict[str, Any]:
    extra = question.model_dump(exclude=_MAPPED)
    labels = list(dict.fromkeys(question.choices))
    if labels != question.choices:
        extra["choices"] = question.choices
    return {
        "id": str(number),
        "text": question.question,
        "category": question.element_type,
        "scale": "nominal",
        "options": labels,
        "expected": question.answer,
        "extra": {NAME: extra},
    }
