"""TIIF-Bench (arXiv 2506.02161): yes/no questions, one rubric per line of a dimension and prompt length.

Prompts and questions lie in two files with the same line order, so a record has two parts:
`{"prompt": line of the prompt file, "questions": line of the question file}`. The id of an item is its line,
counted from 0, within the dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import StrictStr

from mmrubric.benchmarks import files, mapping
from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.rubric import Rubric

NAME = "tiif"
Length = Literal["short", "long"]


class _Prompt(mapping.Record):
    type: StrictStr
    short_description: StrictStr
    long_description: StrictStr


class _Questions(mapping.Record):
    type: StrictStr
    yn_question_list: list[StrictStr]
    yn_answer_list: list[StrictStr]


class _Parts(mapping.Record, extra="forbid"):
    prompt: _Prompt
    questions: _Questions


def load(path: Path, questions: str | Path | None = None, length: Length = "short") -> Iterator[Rubric]:
    """The rubrics of `<set>prompts/<dim>_prompts.jsonl`, in file order.

    Args:
        questions: its question file; None = `<set>eval_prompts/<dim>_eval_prompts.jsonl` beside its folder.
        length: which description is the prompt.

    Raises:
        InputError: a line is wrong, or the two files differ in their number of lines.
    """
    other = _question_file(path) if questions is None else Path(questions)
    for number, (row, asked) in enumerate(zip_longest(files.jsonl(path), files.jsonl(other))):
        if row is None or asked is None:
            short, long = (path, other) if row is None else (other, path)
            raise InputError(f"{short}: has {number} records, but {long} has more; their lines must match")
        where = f"{row.where} with {asked.where}"
        yield from_record({"prompt": row.data, "questions": asked.data}, where, item=str(number), length=length)


def from_record(record: Mapping[str, Any], where: str = "record", item: str = "", length: Length = "short") -> Rubric:
    """Both parts of an item as a rubric. `item` is its id, which the parts do not hold."""
    one_of("length", length, ("short", "long"))
    where = mapping.labelled(where, {"item": item}, "item")
    parts = mapping.parse(_Parts, record, where)
    prompt, asked = parts.prompt, parts.questions
    if prompt.type != asked.type:
        raise InputError(
            f"{where}: field 'type' is {prompt.type!r} for the prompt and {asked.type!r} for its questions; "
            "give two files with the same line order"
        )
    if len(asked.yn_question_list) != len(asked.yn_answer_list):
        raise InputError(
            f"{where}: {len(asked.yn_question_list)} in 'yn_question_list' but {len(asked.yn_answer_list)} in "
            "'yn_answer_list'; give each question one answer"
        )
    pairs = zip(asked.yn_question_list, asked.yn_answer_list, strict=True)
    criteria = [
        {
            "id": str(number),
            "text": question,
            "category": prompt.type,
            # Answers are written Yes, yes and YES.
            "expected": answer.strip().lower(),
            "extra": {NAME: {"answer": answer}},
        }
        for number, (question, answer) in enumerate(pairs, start=1)
    ]
    extra = {
        "id": item,
        "length": length,
        "prompt": prompt.model_dump(exclude={f"{length}_description"}),
        "questions": asked.model_dump(exclude={"yn_question_list", "yn_answer_list"}),
    }
    return mapping.build(NAME, where, getattr(prompt, f"{length}_description"), criteria, extra)


def to_record(rubric: Rubric) -> dict[str, Any]:
    """Both parts of the item that `rubric` came from; an edited prompt or question is written.

    Raises:
        InputError: the rubric is of other origin, or was edited in a way that the parts cannot hold.
    """
    extra = mapping.kept(NAME, rubric)
    record = {
        "prompt": {**extra["prompt"], f"{extra['length']}_description": rubric.prompt},
        "questions": {
            **extra["questions"],
            "yn_question_list": [criterion.text for criterion in rubric.criteria],
            "yn_answer_list": [mapping.kept_of(NAME, criterion)["answer"] for criterion in rubric.criteria],
        },
    }
    options = {"item": extra["id"], "length": extra["length"]}
    mapping.check_way_back(NAME, rubric, lambda where: from_record(record, where, **options))
    return record


def _question_file(path: Path) -> Path:
    folder, name = path.parent.name, path.name
    if not folder.endswith("prompts") or "_prompts.jsonl" not in name:
        raise InputError(
            f"{path}: is not named <set>prompts/<dim>_prompts.jsonl, so its question file is unknown; give questions="
        )
    folder = folder.removesuffix("prompts") + "eval_prompts"
    return path.parent.with_name(folder) / name.replace("_prompts.jsonl", "_eval_prompts.jsonl")
