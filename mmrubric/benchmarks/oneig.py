"""OneIG-Bench (arXiv 2506.07977), prompt alignment: questions with dependencies, one rubric per item.

Prompts lie in a CSV, questions in a JSON file of one category, so a record has two parts:
`{"prompt": row of the CSV, "questions": entry of the JSON file}`. Rows of the categories without questions (text,
reasoning) have no rubric.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr

from mmrubric.benchmarks import dependencies, files, mapping
from mmrubric.errors import InputError
from mmrubric.rubric import Rubric

NAME = "oneig"
_COLUMNS = ("category", "id")


class _Questions(mapping.Record):
    question: StrictStr
    dependency: StrictStr


class _Row(mapping.Record):
    category: Annotated[StrictStr, Field(min_length=1)]
    id: Annotated[StrictStr, Field(min_length=1)]


class _Parts(mapping.Record, extra="forbid"):
    prompt: _Row
    questions: _Questions


def load(path: Path, questions: str | Path, category: str | None = None) -> Iterator[Rubric]:
    """The rubrics of a question file, in its order; their prompts come from the CSV `path`.

    Args:
        questions: the JSON file {id: {question, dependency}}.
        category: the CSV's category that the questions belong to; None = any, if ids are unique in the CSV.

    Raises:
        InputError: a record is wrong, an entry has no row or more than one, or a row of `category` has no entry.
    """
    rows = _rows_by_id(path, category)
    entries = files.json_object(Path(questions))
    unasked = [id for id in rows if id not in entries] if category is not None else []
    if unasked:
        raise InputError(f"{questions}: no questions for {', '.join(unasked)} of category {category!r} in {path}")
    for id, entry in entries.items():
        where = f"{questions}: item {id!r}"
        found = rows.get(id, [])
        if len(found) != 1:
            of = f" of category {category!r}" if category is not None else "; name the category of the questions"
            raise InputError(f"{where}: field 'id': {path} has {len(found)} rows with this id, expected 1{of}")
        yield from_record({"prompt": found[0].data, "questions": entry}, f"{found[0].where} with {questions}")


def from_record(record: Mapping[str, Any], where: str = "record") -> Rubric:
    """Both parts of an item as a rubric. Dirty dependencies are cleaned; `provenance.notes` says how."""
    parts = mapping.parse(_Parts, record, where)
    row = parts.prompt.model_dump()
    where = mapping.labelled(where, row, "id")
    asked = _decoded(parts.questions.question, str, f"{where}: field 'question'")
    needs = _decoded(parts.questions.dependency, list, f"{where}: field 'dependency'")
    parents, notes = dependencies.clean({number: needs.get(number, []) for number in asked}, where)
    notes += [f"question {n} has a dependency but is not asked; left out" for n in needs if n not in asked]
    column = _prompt_column(row, where)
    criteria = [
        {"id": number, "text": question, "category": row["category"], "depends_on": parents[number]}
        for number, question in asked.items()
    ]
    prompt = row.pop(column)
    extra = {"id": row["id"], "column": column, "row": row, "questions": parts.questions.model_dump()}
    return mapping.build(NAME, where, prompt, criteria, extra, notes)


def to_record(rubric: Rubric) -> dict[str, Any]:
    """Both parts of the item that `rubric` came from; edited questions are written.

    Raises:
        InputError: the rubric is of other origin, or was edited in a way that the parts cannot hold.
    """
    extra = mapping.kept(NAME, rubric)
    old = extra["questions"]
    dropped = set(json.loads(old["question"])) - set(rubric.ids)
    asked = {criterion.id: criterion.text for criterion in rubric.criteria}
    needs = {number: parents for number, parents in json.loads(old["dependency"]).items() if number not in dropped}
    record = {
        "prompt": {**extra["row"], extra["column"]: rubric.prompt},
        "questions": {
            **old,
            "question": files.recode(asked, old["question"]),
            "dependency": files.recode(needs, old["dependency"]),
        },
    }
    mapping.check_way_back(NAME, rubric, lambda where: from_record(record, where))
    return record


def _rows_by_id(path: Path, category: str | None) -> dict[str, list[files.Row]]:
    rows: dict[str, list[files.Row]] = {}
    categories: set[str] = set()
    for row in files.csv_rows(path, required=_COLUMNS):
        categories.add(row.data["category"])
        if category in (None, row.data["category"]):
            rows.setdefault(row.data["id"], []).append(row)
    if category is not None and category not in categories:
        raise InputError(f"{path}: category: unknown value {category!r}; known: {', '.join(sorted(categories))}")
    return rows


def _decoded(text: str, kind: type, where: str) -> dict[str, Any]:
    """The JSON object inside a text field; its values are of one kind."""
    data = files.decode(text, where)
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected JSON text of an object with question numbers as keys")
    wrong = [number for number, value in data.items() if not isinstance(value, kind)]
    if wrong:
        raise InputError(f"{where}: question {', '.join(wrong)}: expected a {kind.__name__} for each number")
    return data


def _prompt_column(row: Mapping[str, Any], where: str) -> str:
    """`prompt_en`, or the column of another language."""
    found = [name for name in row if name.startswith("prompt_") and name != "prompt_length"]
    if len(found) != 1 or not isinstance(row[found[0]], str):
        raise InputError(
            f"{where}: expected one text column prompt_<language>, found {found}; give one language per file"
        )
    return found[0]
