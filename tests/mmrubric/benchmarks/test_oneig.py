"""OneIG-Bench, on records written by the page: a CSV of prompts and a JSON file of questions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mmrubric import InputError, benchmarks

ROW = {"category": "anime", "id": "000", "prompt_en": "A girl", "type": "T", "prompt_length": "short", "class": "None"}
ENTRY = {
    "question": json.dumps({"1": "Is there a girl?", "2": "Is it anime?", "3": "Does she smile?"}),
    "dependency": json.dumps({"1": [0], "2": [2], "3": [1]}),
}
RECORD = {"prompt": ROW, "questions": ENTRY}


def write(folder: Path, rows: list[dict[str, str]], entries: dict[str, Any]) -> tuple[Path, Path]:
    prompts, questions = folder / "OneIG-Bench.csv", folder / "anime.json"
    with prompts.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    questions.write_text(json.dumps(entries))
    return prompts, questions


def test_both_parts_make_a_rubric_and_come_back(tmp_path: Path) -> None:
    # Ids are counted anew in each category.
    rows = [ROW, {**ROW, "category": "object"}, {**ROW, "category": "text", "id": "001"}]
    prompts, questions = write(tmp_path, rows, {"000": ENTRY})
    (rubric,) = benchmarks.load("oneig", prompts, questions=questions, category="anime")
    assert (rubric.prompt, benchmarks.item_id("oneig", rubric)) == ("A girl", "000")
    assert [criterion.depends_on for criterion in rubric.criteria] == [(), (), ("1",)]
    assert rubric.provenance.notes == ("question 2: it depends on itself; dropped",)
    assert benchmarks.to_record("oneig", rubric) == RECORD


def test_without_a_category_ids_must_be_unique(tmp_path: Path) -> None:
    prompts, questions = write(tmp_path, [ROW, {**ROW, "category": "text", "id": "001"}], {"000": ENTRY})
    assert len(list(benchmarks.load("oneig", prompts, questions=questions))) == 1
    prompts, questions = write(tmp_path, [ROW, {**ROW, "category": "object"}], {"000": ENTRY})
    with pytest.raises(InputError, match=r"anime\.json: item '000': .*2 rows with this id.*name the category"):
        list(benchmarks.load("oneig", prompts, questions=questions))


@pytest.mark.parametrize(
    ("rows", "entries", "category", "message"),
    [
        ([ROW, {**ROW, "id": "001"}], {"000": ENTRY}, "anime", r"no questions for 001 of category 'anime'"),
        ([ROW], {"000": ENTRY, "9": ENTRY}, "anime", r"item '9': .*has 0 rows with this id"),
        ([ROW], {"000": ENTRY}, "food", r"category: unknown value 'food'; known: anime"),
        (
            [ROW],
            {"000": {**ENTRY, "question": "{"}},
            None,
            r"csv:2 with .*item '000': field 'question': not valid",
        ),
        (
            [ROW],
            {"000": {**ENTRY, "question": "[]"}},
            None,
            r"item '000': field 'question': expected JSON text",
        ),
        ([ROW], {"000": {**ENTRY, "question": '{"1": 2}'}}, None, r"field 'question': question 1: expected a str"),
        ([ROW], {"000": {**ENTRY, "dependency": '{"1": 0}'}}, None, r"field 'dependency': question 1: expected a list"),
        ([ROW], {"000": {"question": "{}"}}, None, r"field 'questions\.dependency': is missing"),
    ],
)
def test_broken_files(tmp_path: Path, rows: list[Any], entries: Any, category: str | None, message: str) -> None:
    prompts, questions = write(tmp_path, rows, entries)
    with pytest.raises(InputError, match=message):
        list(benchmarks.load("oneig", prompts, questions=questions, category=category))


def test_a_record_needs_one_prompt_column() -> None:
    with pytest.raises(InputError, match=r"item '000': expected one text column prompt_<language>, found \[\]"):
        row = {name: value for name, value in ROW.items() if name != "prompt_en"}
        benchmarks.from_record("oneig", {"prompt": row, "questions": ENTRY})
    row = {**ROW, "prompt_cn": "女孩"}
    del row["prompt_en"]
    record = {"prompt": row, "questions": ENTRY}
    assert benchmarks.to_record("oneig", benchmarks.from_record("oneig", record)) == record


def test_stray_dependencies_are_noted_and_come_back() -> None:
    entry = {"question": '{"1": "Is it?"}', "dependency": '{"1": [0],  "7": [1]}'}
    rubric = benchmarks.from_record("oneig", {"prompt": ROW, "questions": entry})
    assert rubric.provenance.notes == ("question 7 has a dependency but is not asked; left out",)
    assert benchmarks.to_record("oneig", rubric)["questions"] == entry


def test_edits_are_written() -> None:
    rubric = benchmarks.from_record("oneig", RECORD).with_changed("1", text="A girl?").without("3")
    again = benchmarks.to_record("oneig", rubric)["questions"]
    assert json.loads(again["question"]) == {"1": "A girl?", "2": "Is it anime?"}
    assert json.loads(again["dependency"]) == {"1": [0], "2": [2]}


def test_the_question_file_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="benchmark 'oneig': option questions is missing; known: questions, category"):
        benchmarks.load("oneig", tmp_path)
