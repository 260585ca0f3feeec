"""DPG-Bench (arXiv 2403.05135): dense prompts with questions, one rubric per item of `dpg_bench.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr

from mmrubric.benchmarks import files, mapping, propositions
from mmrubric.errors import InputError
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric

NAME = "dpg"


class _PromptLine(mapping.Record):
    item_id: Annotated[StrictStr, Field(min_length=1)]
    text: StrictStr


def load(path: Path) -> Iterator[Rubric]:
    """The rubrics of the CSV, in file order."""
    return propositions.load(NAME, path)


def prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of the official folder (`<item_id>.txt` each, sorted by name), or of {item_id, text} lines."""
    if not path.is_dir():
        for row in files.jsonl(path):
            line = mapping.parse(_PromptLine, row.data, row.where)
            yield Prompt(id=line.item_id, text=line.text)
        return
    names = sorted(path.glob("*.txt"))
    if not names:
        raise InputError(f"{path}: holds no <item_id>.txt; give the folder 'prompts' of DPG-Bench")
    for name in names:
        yield Prompt(id=name.stem, text=files.whole(name))


def from_record(rows: Sequence[Any], where: str = "record") -> Rubric:
    """The rows of one item as a rubric. Dirty dependencies are cleaned; `provenance.notes` says how."""
    return propositions.from_rows(NAME, mapping.rows_of(rows, where))


def to_record(rubric: Rubric) -> list[dict[str, str]]:
    """The rows of one item; each criterion's `extra["dpg"]` holds its dependency column as it was."""
    return propositions.to_rows(NAME, rubric)
