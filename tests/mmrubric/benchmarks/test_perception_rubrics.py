"""PerceptionRubrics, on records written by the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmrubric import InputError, benchmarks

RECORD = {
    "id": 12,
    "image": "images/12.jpg",
    "category": "indoor",
    "golden_caption": "A red cup on a table.",
    "must_right": ["The cup is red."],
    "easy_wrong": ["The cup has no handle.", "The table is wooden."],
    "source": "x",
}


@pytest.mark.parametrize("name", ["p.jsonl", "p.json"])
def test_gates_and_plain_criteria_come_back(tmp_path: Path, name: str) -> None:
    records = [RECORD, {**RECORD, "id": "a", "easy_wrong": []}]
    path = tmp_path / name
    path.write_text("\n".join(map(json.dumps, records)) if name.endswith("l") else json.dumps(records))
    rubrics = list(benchmarks.load("perception_rubrics", path))
    assert rubrics[0].prompt == "A red cup on a table."
    assert [(c.id, c.hard, c.weight) for c in rubrics[0].criteria] == [
        ("must_right_1", True, 1.0),
        ("easy_wrong_1", False, 1.0),
        ("easy_wrong_2", False, 1.0),
    ]
    assert [benchmarks.item_id("perception_rubrics", rubric) for rubric in rubrics] == ["12", "a"]
    assert [benchmarks.to_record("perception_rubrics", rubric) for rubric in rubrics] == records


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"must_right": [], "easy_wrong": []}, r"item 12: .*at least one criterion"),
        ({"must_right": [" "]}, r"item 12: criterion 'must_right_1' .*'text': must not be blank"),
        ({"must_right": "red"}, r"item 12: field 'must_right': .*list"),
        ({"easy_wrong": None}, r"item 12: field 'easy_wrong' is null; give it a value or leave it out"),
    ],
)
def test_broken_records(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({**RECORD, **changes}))
    with pytest.raises(InputError, match=rf"p\.jsonl:1: {message}"):
        list(benchmarks.load("perception_rubrics", path))


def test_a_gate_that_was_opened_has_no_place() -> None:
    rubric = benchmarks.from_record("perception_rubrics", RECORD)
    with pytest.raises(InputError, match="criterion 'must_right_1': field 'hard': a record cannot hold False"):
        benchmarks.to_record("perception_rubrics", rubric.with_changed("must_right_1", hard=False))
