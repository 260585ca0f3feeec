"""UniGenBench (arXiv 2508.20751) and UniGenBench++ (arXiv 2510.18701), English and Chinese.

One row of `test_prompts_{en,zh}[_long].csv` gives one rubric, with a criterion per testpoint. Its category is the
primary dimension, the part of the testpoint before the dash, in the language of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import StrictStr, create_model

from mmrubric.benchmarks import files, mapping
from mmrubric.errors import InputError
from mmrubric.rubric import Rubric

NAME = "unigenbench"


@dataclass(frozen=True)
class _Language:
    """Names of the columns and keys of one language, and the statement for the judge."""

    prompt: str
    details: str
    testpoints: str
    descriptions: str
    wording: str
    colon: str
    stop: str

    @cached_property
    def row_model(self) -> type[mapping.Record]:
        """What a row must have."""
        fields: Any = dict.fromkeys(("index", self.prompt, self.details), (StrictStr, ...))
        return create_model("Row", __base__=mapping.Record, **fields)

    @cached_property
    def details_model(self) -> type[mapping.Record]:
        """What the JSON column must have."""
        fields: Any = dict.fromkeys((self.testpoints, self.descriptions), (list[StrictStr], ...))
        return create_model("Details", __base__=mapping.Record, **fields)

    def statement(self, testpoint: str, description: str) -> str:
        """A testpoint as the judge reads it."""
        start = self.wording.replace("{testpoint}", testpoint)
        return f"{start}{self.colon}{description}" if description.strip() else start + self.stop


_LANGUAGES = (
    _Language(
        "prompt_en",
        "sub_dims_en",
        "Testpoints",
        "Testpoint Description",
        'The image does what the prompt asks for in "{testpoint}"',
        ": ",
        ".",
    ),
    _Language("prompt_zh", "sub_dims_zh", "考点", "考点对应描述", "画面在“{testpoint}”上符合提示词的要求", "：", "。"),
)


def load(path: Path) -> Iterator[Rubric]:
    """The rubrics of a CSV, in file order."""
    seen: set[str] = set()
    for row in files.csv_rows(path, required=("index",)):
        mapping.check_new(row.data["index"], seen, row.where)
        yield from_record(row.data, row.where)


def from_record(record: Mapping[str, Any], where: str = "record") -> Rubric:
    """One row as a rubric; the columns tell the language."""
    language = _language(record, where)
    where = mapping.labelled(where, record, "index")
    row = mapping.parse(language.row_model, record, where).model_dump()
    testpoints, descriptions = _testpoints(row[language.details], language, f"{where}: field {language.details!r}")
    notes = [
        f"testpoint {number} ({point}) has no description; the judge is asked about the testpoint alone"
        for number, (point, text) in enumerate(zip(testpoints, descriptions, strict=True), start=1)
        if not text.strip()
    ]
    criteria = [
        {
            "id": str(number),
            "text": language.statement(testpoint, description),
            "category": testpoint.split("-")[0].strip(),
            "extra": {NAME: {"testpoint": testpoint, "description": description}},
        }
        for number, (testpoint, description) in enumerate(zip(testpoints, descriptions, strict=True), start=1)
    ]
    prompt, index = row.pop(language.prompt), row.pop("index")
    return mapping.build(NAME, where, prompt, criteria, {"id": index, "prompt": language.prompt, "rest": row}, notes)


def to_record(rubric: Rubric) -> dict[str, str]:
    """The row that `rubric` came from, field by field.

    Raises:
        InputError: the rubric is of other origin, or was edited in a way that a row cannot hold.
    """
    extra = mapping.kept(NAME, rubric)
    record = {"index": extra["id"], extra["prompt"]: rubric.prompt, **extra["rest"]}
    language = _language(record, NAME)
    points = [mapping.kept_of(NAME, criterion) for criterion in rubric.criteria]
    details = {
        **files.decode(record[language.details], NAME),
        language.testpoints: [point["testpoint"] for point in points],
        language.descriptions: [point["description"] for point in points],
    }
    record[language.details] = files.recode(details, record[language.details])
    mapping.check_way_back(NAME, rubric, lambda where: from_record(record, where))
    return record


def _language(record: Any, where: str) -> _Language:
    found = [language for language in _LANGUAGES if isinstance(record, Mapping) and language.prompt in record]
    if len(found) != 1:
        names = " or ".join(language.prompt for language in _LANGUAGES)
        raise InputError(f"{where}: expected one prompt column, {names}; give one language per file")
    return found[0]


def _testpoints(text: str, language: _Language, where: str) -> tuple[list[str], list[str]]:
    """Testpoints and descriptions out of the JSON column."""
    details = mapping.parse(language.details_model, files.decode(text, where), where).model_dump()
    testpoints, descriptions = details[language.testpoints], details[language.descriptions]
    if len(testpoints) != len(descriptions):
        raise InputError(
            f"{where}: {len(testpoints)} under {language.testpoints!r} but {len(descriptions)} under "
            f"{language.descriptions!r}; give each testpoint one description"
        )
    return testpoints, descriptions
