"""TIIF-Bench, on records written by the page: two files with the same line order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmrubric import InputError, benchmarks

PROMPT = {"type": "2d_spatial", "short_description": "a cup left of a book", "long_description": "A cup stands left."}
QUESTIONS = {
    "type": "2d_spatial",
    "yn_question_list": ["Is the cup left of the book?", "Is the book left of the cup?"],
    "yn_answer_list": ["Yes", "no"],
}
RECORD = {"prompt": PROMPT, "questions": QUESTIONS}


def write(folder: Path, prompts: list[Any], questions: list[Any]) -> Path:
    paths = [
        folder / "testmini_prompts" / "relation_prompts.jsonl",
        folder / "testmini_eval_prompts" / "relation_eval_prompts.jsonl",
    ]
    for path, records in zip(paths, (prompts, questions), strict=True):
        path.parent.mkdir()
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return paths[0]


@pytest.mark.parametrize(("length", "text"), [("short", "a cup left of a book"), ("long", "A cup stands left.")])
def test_both_files_make_a_rubric_and_come_back(tmp_path: Path, length: str, text: str) -> None:
    path = write(tmp_path, [PROMPT, PROMPT], [QUESTIONS, {**QUESTIONS, "note": 1}])
    rubrics = list(benchmarks.load("tiif", path, length=length))
    assert [benchmarks.item_id("tiif", rubric) for rubric in rubrics] == ["0", "1"]
    assert rubrics[0].prompt == text
    assert [c.expected for c in rubrics[0].criteria] == ["yes", "no"]
    # The answer no counts as met.
    assert rubrics[0].criteria[1].met_of("no") == 1.0
    assert [benchmarks.to_record("tiif", r) for r in rubrics] == [
        RECORD,
        {"prompt": PROMPT, "questions": {**QUESTIONS, "note": 1}},
    ]


def test_the_question_file_can_be_named(tmp_path: Path) -> None:
    prompts, questions = tmp_path / "p.jsonl", tmp_path / "q.jsonl"
    prompts.write_text(json.dumps(PROMPT))
    questions.write_text(json.dumps(QUESTIONS))
    assert len(list(benchmarks.load("tiif", prompts, questions=questions))) == 1
    with pytest.raises(InputError, match=r"p\.jsonl: is not named .*give questions="):
        list(benchmarks.load("tiif", prompts))


def test_files_of_different_lengths_do_not_belong_together(tmp_path: Path) -> None:
    path = write(tmp_path, [PROMPT], [QUESTIONS, QUESTIONS])
    with pytest.raises(InputError, match=r"relation_prompts\.jsonl: has 1 records, but .*eval_prompts\.jsonl has more"):
        list(benchmarks.load("tiif", path))


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({"type": "color"}, r"field 'type' is '2d_spatial' for the prompt and 'color' for its questions"),
        ({"yn_answer_list": ["yes"]}, r"2 in 'yn_question_list' but 1 in 'yn_answer_list'"),
        ({"yn_answer_list": ["yes", "maybe"]}, r"criterion '2' .*expected: 'maybe' is no answer"),
        ({"yn_question_list": "Is it?"}, r"field 'questions\.yn_question_list': .*list"),
    ],
)
def test_broken_records(tmp_path: Path, questions: dict[str, Any], message: str) -> None:
    path = write(tmp_path, [PROMPT], [{**QUESTIONS, **questions}])
    pattern = rf"relation_prompts\.jsonl:1 with .*relation_eval_prompts\.jsonl:1: item '0': .*{message}"
    with pytest.raises(InputError, match=pattern):
        list(benchmarks.load("tiif", path))


def test_unknown_lengths_and_options() -> None:
    with pytest.raises(InputError, match="length: unknown value 'medium'; known: long, short"):
        benchmarks.from_record("tiif", RECORD, length="medium")
    with pytest.raises(InputError, match="benchmark 'tiif': unknown option size; known: item, length"):
        benchmarks.from_record("tiif", RECORD, size="long")


def test_an_edited_question_is_written_and_an_edited_answer_is_refused() -> None:
    rubric = benchmarks.from_record("tiif", RECORD)
    again = benchmarks.to_record("tiif", rubric.with_changed("1", text="Is the cup there?"))
    assert again["questions"]["yn_question_list"][0] == "Is the cup there?"
    with pytest.raises(InputError, match="criterion '2': field 'expected': a record cannot hold 'yes'"):
        benchmarks.to_record("tiif", rubric.with_changed("2", expected="yes"))
