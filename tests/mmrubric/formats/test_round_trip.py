"""Import and export again: nothing is lost, and what a format cannot hold is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmrubric import Criterion, InputError, Rubric, formats
from tests.mmrubric.formats.golden import (
    AUTORUBRIC,
    AUTORUBRIC_SECTIONS,
    HEALTHBENCH,
    PRBENCH,
    RAR,
    ROUND_TRIP,
    RUBRICHUB,
    VERL,
)

EXPORTS = formats.names(export=True)


def one(format: str, record: Any) -> Rubric:
    (rubric,) = formats.from_record(format, record)
    return rubric


def texts(rubric: Rubric) -> list[tuple[str, float]]:
    return [(criterion.text, criterion.weight) for criterion in rubric.criteria]


@pytest.mark.parametrize(("format", "record"), ROUND_TRIP)
def test_golden_row_comes_back_as_it_was(format: str, record: Any) -> None:
    before = copy.deepcopy(record)
    rubric = one(format, record)
    assert formats.to_record(format, rubric) == (record, []) and record == before
    # also through our own format, which keeps the provenance
    ours, _ = formats.to_record("mmrubric", rubric)
    again = one("mmrubric", json.loads(json.dumps(ours)))
    assert again == rubric and formats.to_record(format, again)[0] == record


# Our own format refuses unknown keys.
@pytest.mark.parametrize(("format", "record"), [row for row in ROUND_TRIP if row[0] != "mmrubric"])
def test_unknown_keys_and_nulls_come_back(format: str, record: Any) -> None:
    odd = copy.deepcopy(record)
    if isinstance(odd, dict):
        odd |= {"x_note": {"deep": [1, None]}, "x_null": None}
    place = {"rar": "rubric", "prbench": "rubric", "healthbench_professional": "rubric_items"}.get(format, "rubrics")
    for holder in (odd, *(odd.get("sections", []) if isinstance(odd, dict) else [])):
        items = holder if isinstance(holder, list) else holder.get(place, holder.get("criteria", []))
        for item in items:
            item |= {"x_key": ["kept"], "id": 7} if format == "healthbench" and item is items[0] else {"x_key": "kept"}
    assert formats.to_record(format, one(format, odd)) == (odd, [])


def test_the_same_rubric_from_five_formats_has_equal_texts_and_weights() -> None:
    items = [{"criterion": "The bus is red", "points": 5}, {"criterion": "A watermark is visible", "points": -2}]
    messages = [{"role": "user", "content": "Draw a red bus"}]
    described = [
        {"title": "Red", "description": "Essential Criteria: The bus is red", "weight": 5},
        {"title": "Mark", "description": "Pitfall Criteria: A watermark is visible", "weight": -2},
    ]
    noted = [
        {"title": "The bus is red", "annotations": {"weight_class": "important", "important_weight": 5}},
        {"title": "A watermark is visible", "annotations": {"weight_class": "detrimental", "detrimental_weight": -2}},
    ]
    required = [{"requirement": "The bus is red", "weight": 5}, {"requirement": "A watermark is visible", "weight": -2}]
    rubrics = [
        one("healthbench", {"prompt": messages, "rubrics": items}),
        one("rar", {"question": "Draw a red bus", "rubric": described}),
        one("verl", {"prompt": messages, "reward_model": {"rubrics": items}}),
        one("prbench", {"prompt_0": "Draw a red bus", "rubric": noted}),
        one("autorubric", {"prompt": "Draw a red bus", "criteria": required}),
    ]
    assert all(texts(rubric) == [("The bus is red", 5.0), ("A watermark is visible", -2.0)] for rubric in rubrics)
    assert {rubric.prompt for rubric in rubrics} == {"Draw a red bus"}


def test_names_and_weights_of_each_golden_row() -> None:
    bus = one("healthbench", HEALTHBENCH)
    assert bus.prompt == "user: Draw a red bus\n\nassistant: In which style?\n\nuser: Watercolor"
    assert bus.ids == ("c1", "c2") and bus.criteria[0].extra == {"tags": ["level:example", "axis:accuracy"]}
    rar = one("rar", RAR)
    assert [c.category for c in rar.criteria] == ["Essential", "Important", "Pitfall", "general"]
    assert texts(rar)[2] == ("A watermark is visible", -2.0) and rar.criteria[0].extra == {"title": "Red bus"}
    for record in (VERL, RUBRICHUB):
        rule = one("rubrichub" if "Rubrics" in record else "verl", record).criteria[1]
        assert (rule.verifier, rule.arguments) == ("rule:max_words", {"count": 8})
    bench = one("prbench", PRBENCH)
    assert bench.ids == ("c1", "mark") and [c.weight for c in bench.criteria] == [9, -6]
    assert bench.prompt == "user: Draw a bus\n\nassistant: Which colour?\n\nuser: Red"
    assert bench.criteria[0].category == "Content"


def test_autorubric_default_weight_and_scales() -> None:
    rubric = one("autorubric", AUTORUBRIC)
    assert [c.weight for c in rubric.criteria] == [10, 10, -5, 4, 10]
    style, place = rubric.criterion("style"), rubric.criterion("place")
    # 'cannot tell' is no level; its value 0 would be a wrong score
    assert [anchor.text for anchor in style.anchors] == ["far", "close", "exact"]
    assert [style.met_of(level) for level in (1, 2, 3)] == [0.0, 0.6, 1.0]
    assert place.met_of("no bus") is None and place.met_of("field") == 0.5
    # the default of 10 is autorubric's alone
    assert one("rubric_2_2", [{"requirement": "a"}]).criteria[0].weight == 1


def test_options_given_best_first_become_anchors_lowest_first_and_come_back_as_they_were() -> None:
    options = [{"label": "exact", "value": 1}, {"label": "far", "value": 0}, {"label": True, "value": 0.5}]
    record = [{"name": "style", "requirement": "Style?", "options": options}]
    rubric = one("autorubric", record)
    assert [anchor.text for anchor in rubric.criteria[0].anchors] == ["far", "yes", "exact"]
    assert formats.to_record("autorubric", rubric)[0] == record
    changed = rubric.with_changed("style", anchors=["bad", "good"])
    assert formats.to_record("autorubric", changed)[0][0]["options"] == [
        {"label": "bad", "value": 0.0},
        {"label": "good", "value": 1.0},
    ]


def test_an_edited_rubric_is_exported_with_its_edits() -> None:
    rar = one("rar", RAR).with_changed("c2", weight=-2.0, category="Pitfall", text="The sky is grey").without("c4")
    record, _ = formats.to_record("rar", rar)
    assert record["rubric"][1] == {"title": "Sky", "description": "Pitfall Criteria: The sky is grey", "weight": -2}
    assert record["rubric_count"] == 3 and record["rubric_list"][1] == "Pitfall Criteria: The sky is grey"
    hub = one("rubrichub", RUBRICHUB).with_changed("c1", weight=4.0).with_changed("c2", arguments={"count": 9})
    record, _ = formats.to_record("rubrichub", hub)
    copies = [record["Rubrics"], record["reward_model"]["rubrics"], record["extra_info"]["reward_model"]["rubrics"]]
    assert [copy[0]["points"] for copy in copies] == [4, 4, 4] and "tags" not in copies[0][1]
    assert copies[2][1]["tags"] == ["verifier:rule", "function:max_words", 'parameters:{"count": 9}']
    bench = one("prbench", PRBENCH).with_changed("c1", weight=-7.0)
    annotations = formats.to_record("prbench", bench)[0]["rubric"][0]["annotations"]
    assert annotations == {
        "weight_class": "detrimental",
        "detrimental_weight": -7,
        "criteria_category": "Content",
    }
    other = one("prbench", PRBENCH).model_copy(update={"prompt": "Draw a cat"})
    record, _ = formats.to_record("prbench", other)
    assert record["prompt_0"] == "Draw a cat" and "prompt_1" not in record and "response_0" not in record


def test_a_new_category_makes_a_new_section() -> None:
    rubric = one("autorubric", AUTORUBRIC_SECTIONS).with_changed("sky", category="light").without("watermark")
    record, _ = formats.to_record("autorubric", rubric)
    assert record == {
        "guidelines": "Look twice.",
        "sections": [
            {"name": "object", "criteria": AUTORUBRIC[:1]},
            {"name": "light", "criteria": AUTORUBRIC[1:2]},
        ],
    }


@pytest.mark.parametrize("format", [name for name in EXPORTS if name != "mmrubric"])
@pytest.mark.parametrize(
    ("feature", "value"),
    [
        ("hard", True),
        ("depends_on", ("a",)),
        ("verifier", "ocr"),
        ("anchors", [{"text": "far"}, {"text": "close"}]),
        ("options", [{"label": "x", "value": 0}, {"label": "y", "value": 1}]),
    ],
)
def test_a_feature_that_the_target_cannot_hold_is_refused_or_listed(format: str, feature: str, value: Any) -> None:
    scale = {"anchors": {"scale": "ordinal"}, "options": {"scale": "nominal"}}.get(feature, {})
    odd = Criterion.model_validate({"id": "odd", "text": "The bus is red", feature: value, **scale})
    rubric = Rubric(prompt="p", criteria=(Criterion(id="a", text="A bus is visible"), odd))
    if format == "autorubric" and scale:
        back = one(format, formats.to_record(format, rubric)[0])
        assert back.criteria == rubric.criteria
        return
    with pytest.raises(InputError, match=f"format '{format}' cannot hold: criterion 'odd': .*'{feature}'.*lossy=True"):
        formats.to_record(format, rubric)
    record, dropped = formats.to_record(format, rubric, lossy=True)
    assert f"criterion 'odd': field {feature!r}" in dropped
    assert texts(one(format, record)) == texts(rubric)


def test_a_criterion_is_never_turned_into_its_opposite() -> None:
    rubric = Rubric(prompt="p", criteria=(Criterion(id="mark", text="A watermark is visible", expected="no"),))
    with pytest.raises(InputError, match=r"criterion 'mark': field 'expected'.*opposite.*so that yes is good"):
        formats.to_record("healthbench", rubric, lossy=True)


def test_an_extra_key_that_would_be_overwritten_is_a_loss() -> None:
    rubric = Rubric(prompt="p", criteria=(Criterion(id="a", text="t", extra={"criterion": "u", "theme": "x"}),))
    with pytest.raises(InputError, match=r"field 'extra.criterion'"):
        formats.to_record("healthbench", rubric)
    assert one("rar", formats.to_record("rar", rubric)[0]).criteria == rubric.criteria


def test_import_only_formats_say_so() -> None:
    rubric = Rubric(prompt="p", criteria=(Criterion(id="a", text="t"),))
    with pytest.raises(InputError, match="format 'vertex' is import-only; formats that can be written: autorubric"):
        formats.to_record("vertex", rubric)


_words = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
_weights = st.one_of(st.integers(-10, 10), st.floats(-1e6, 1e6)).filter(bool).map(float)
_criteria = st.fixed_dictionaries(
    {"text": _words, "weight": _weights},
    optional={
        "id": _words,
        "category": st.one_of(_words, st.sampled_from(["Essential", "Pitfall", "general"])),
        "grain": st.sampled_from(["coarse", "mid", "fine"]),
        "extra": st.dictionaries(_words.map("x_".__add__), st.one_of(st.none(), st.booleans(), _words), max_size=2),
    },
)


@pytest.mark.parametrize("format", EXPORTS)
@settings(max_examples=40, deadline=None)
@example([{"text": "Essential Criteria: x", "weight": 1.0}], "")
@example([{"text": " x", "weight": -0.5, "category": "Pitfall", "id": "c2"}], "[")
@example([{"text": "t", "weight": 8.0, "id": "a title that is long"}], '[{"role": "user", "content": "p"}]')
@given(
    st.lists(_criteria, min_size=1, max_size=4, unique_by=lambda c: c["text"].strip().casefold()), st.text(max_size=9)
)
def test_random_rubrics_survive_every_full_round_trip(format: str, rows: list[dict[str, Any]], prompt: str) -> None:
    taken: set[str] = set()
    criteria = []
    for index, row in enumerate(rows):
        id = row.get("id", f"c{index + 1}")
        criteria.append(Criterion.model_validate({**row, "id": id if id not in taken else f"{id}-{index}"}))
        taken.add(criteria[-1].id)
    try:
        rubric = Rubric(prompt=prompt, criteria=tuple(criteria))
        record, dropped = formats.to_record(format, rubric)
        wire = json.dumps(record)
    except ValueError as error:  # two random ids may still clash
        assert "ids must be unique" in str(error)
        return
    back = one(format, json.loads(wire))
    assert not dropped and back.criteria == rubric.criteria and back.prompt == rubric.prompt
    assert back.hash == rubric.hash
    assert formats.to_record(format, back)[0] == json.loads(wire)
