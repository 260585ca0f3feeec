"""DSG-1k (arXiv 2310.18235): questions with dependencies, one rubric per item of `dsg-1k-anns.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmrubric.benchmarks import mapping, propositions
from mmrubric.rubric import Rubric

NAME = "dsg"


def load(path: Path) -> Iterator[Rubric]:
    """The rubrics of the CSV, in file order."""
    return propositions.load(NAME, path)


def from_record(rows: Sequence[Any], where: str = "record") -> Rubric:
    """The rows of one item as a rubric. Dirty dependencies are cleaned; `provenance.notes` says how."""
    return propositions.from_rows(NAME, mapping.rows_of(rows, where))


def to_record(rubric: Rubric) -> list[dict[str, str]]:
    """The rows of one item; each criterion's `extra["dsg"]` holds its dependency column as it was."""
    return propositions.to_rows(NAME, rubric)
