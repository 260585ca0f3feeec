"""TIFA: questions with choices as nominal criteria, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrubric import InputError, benchmarks


def question(id: str = "coco_1", **changes: Any) -> dict[str, Any]:
    record = {"id": id, "caption": "Two dogs on grass.", "question": "how many dogs are there?", "answer": "2"}
    kind = {"choices": ["1", "2", "3"], "element_type": "counting", "element": "two", "coco_val_id": "38"}
    return {**record, **kind, **changes}


YES_NO = question(question="is there grass?", choices=["yes", "no"], answer="yes", element_type="object")


def test_captions_of_the_official_file(official: Callable[[str], Path]) -> None:
    prompts = list(benchmarks.prompts("tifa", official("tifa/tifa_v1.0_text_inputs.json.gz")))
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 4081


def test_questions_become_nominal_criteria(tmp_path: Path) -> None:
    records = [question(), YES_NO, question("drawbench_2", caption="A cat.")]
    path = tmp_path / "qa.json"
    path.write_text(json.dumps(records, indent=4))
    rubrics = list(benchmarks.load("tifa", path))
    assert [benchmarks.item_id("tifa", rubric) for rubric in rubrics] == ["coco_1", "drawbench_2"]
    first, second = rubrics[0].criteria
    assert (first.scale, first.expected, first.category) == ("nominal", "2", "counting")
    assert (first.met_of("2"), first.met_of("3"), second.met_of("yes"), second.met_of("no")) == (1.0, 0.0, 1.0, 0.0)
    assert [record for rubric in rubrics for record in benchmarks.to_record("tifa", rubric)] == records


def test_a_choice_given_twice_is_asked_once_and_comes_back() -> None:
    records = [question(choices=["1", "2", "1"])]
    rubric = benchmarks.from_record("tifa", records)
    assert [option.label for option in rubric.criteria[0].options] == ["1", "2"]
    assert rubric.provenance.notes == ("question 1: a choice is given twice; asked once",)
    assert benchmarks.to_record("tifa", rubric) == records


@pytest.mark.filterwarnings("error")
def test_repeated_questions_are_kept_and_noted_without_a_warning() -> None:
    rubric = benchmarks.from_record("tifa", [question(), question()])
    assert rubric.provenance.notes == ("criteria 1, 2 repeat each other's text; all are kept",)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([question(answer="4")], r"qa\.json:1: item 'coco_1': criterion '1' .*expected: '4' is no answer"),
        ([question(choices=["2"])], r"item 'coco_1': .*at least 2 options"),
        ([question(choices="1 or 2")], r"item 'coco_1': field 'choices': .*list"),
        ([question(answer=2)], r"item 'coco_1': field 'answer': .*string \(got 2\)"),
        ([question(element=None)], r"item 'coco_1': field 'element' is null"),
        ([question(), question(caption="x")], r"field 'caption' is 'x', but"),
        ([question(), question("b"), question()], r"item 'coco_1' has come before"),
        ([{"id": "a", "caption": "b"}], r"item 'a': field 'question': is missing"),
        (["text"], r"qa\.json:1: expected a record with named fields, got str"),
    ],
)
def test_broken_records(tmp_path: Path, records: list[Any], message: str) -> None:
    path = tmp_path / "qa.json"
    path.write_text(json.dumps(records))
    with pytest.raises(InputError, match=message):
        list(benchmarks.load("tifa", path))


@pytest.mark.parametrize("record", [question(), [], "text", None])
def test_one_item_is_a_list_of_records(record: Any) -> None:
    with pytest.raises(InputError, match="expected the list of all records of one item"):
        benchmarks.from_record("tifa", record)
