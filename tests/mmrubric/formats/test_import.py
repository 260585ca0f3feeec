"""The importer rules: names, signs, ids, decoding, and what the errors say."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrubric import InputError, PairVerdict, Rubric, formats
from mmrubric.pairs import PreferencePair
from tests.mmrubric.formats.golden import HEALTHBENCH, IMPORT_ONLY, PRBENCH, RAR, RUBRICHUB, VERL

GOLDEN = dict(IMPORT_ONLY)
RULE = [{"criterion": "A", "tags": ["verifier:rule"]}]


def one(format: str, record: Any) -> Rubric:
    (rubric,) = formats.from_record(format, record)
    return rubric


def bench(*criteria: Any) -> dict[str, Any]:
    return {"prompt_id": "p1", "prompt": [{"role": "user", "content": "Draw"}], "rubrics": list(criteria)}


@pytest.mark.parametrize(("format", "record"), IMPORT_ONLY)
def test_import_only_rows_keep_what_is_not_read(format: str, record: Any) -> None:
    odd = {**record, "x_note": [1]} if isinstance(record, dict) else record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rubric = formats.from_record(format, odd, "f.jsonl:1")[0]
    assert rubric.criteria
    kept = rubric.provenance.extra[format]
    assert isinstance(kept, dict) and kept.get("x_note") == (odd.get("x_note") if isinstance(odd, dict) else None)


def test_openrubrics_tags_decide_what_is_a_gate() -> None:
    rubric = one("openrubrics", GOLDEN["openrubrics"])
    assert [(c.text, c.hard, c.weight) for c in rubric.criteria] == [
        ("The bus is red", True, 1.0),
        ("Balanced composition", False, 1.0),
    ]
    first = one("openrubrics", {"instruction": "p", "rubric": "- [hard rule] A\n  of two lines\n- [PRINCIPLE] B\n- C"})
    assert [(c.text, c.hard) for c in first.criteria] == [("A of two lines", True), ("B", False), ("C", False)]


def test_sections_become_categories() -> None:
    assert one("rubric_2_2", GOLDEN["rubric_2_2"]).criteria[0].category == "object"
    for flat in ([{"weight": 2, "requirement": "a"}], {"rubric": [{"weight": 2, "requirement": "a"}]}):
        assert one("rubric_2_2", flat).criteria[0].category == "general"


def test_verifiers_choices() -> None:
    rubric = one("verifiers", GOLDEN["verifiers"])
    assert rubric.ids == ("red", "style") and rubric.criterion("red").scale == "binary"
    # index / (K - 1) with K = 3
    assert [rubric.criterion("style").met_of(level) for level in (1, 2, 3)] == [0.0, 0.5, 1.0]
    by_name = {"criteria": {"red": {"text": "Red"}, "mark": {"text": "Mark", "choices": ["yes", "no"]}}}
    rubric = one("verifiers", by_name)
    # worst first: yes is the bad answer
    assert rubric.ids == ("red", "mark") and rubric.criterion("mark").met_of("no") == 1.0
    with pytest.raises(InputError, match=r"criterion 'a' \(criteria\[0\]\): field 'choices': expected two or more"):
        one("verifiers", {"criteria": [{"name": "a", "text": "A", "choices": ["one"]}]})


def test_polarity_importance_and_axis() -> None:
    assert one("rubric_reward_lens", GOLDEN["rubric_reward_lens"]).criteria[0].weight == -3
    levels = [{**GOLDEN["vertex"][0], "rubricId": name, "importance": name} for name in ("HIGH", "MEDIUM", "LOW")]
    for level, text in zip(levels, "abc", strict=True):
        level["content"] = {"property": {"description": text}}
    rubric = one("vertex", {"prompt": "p", "rubrics": levels})
    assert [(c.id, c.text, c.weight) for c in rubric.criteria] == [
        ("HIGH", "a", 3),
        ("MEDIUM", "b", 2),
        ("LOW", "c", 1),
    ]
    with pytest.raises(InputError, match="field 'importance': unknown value 'TOP'; known: HIGH, MEDIUM, LOW"):
        one("vertex", [{**levels[0], "importance": "TOP"}])
    research = one("researchrubrics", GOLDEN["researchrubrics"]).criteria[0]
    assert (research.category, research.weight) == ("Explicit", -4)


def test_prometheus_is_one_ordinal_criterion() -> None:
    rubric = one("prometheus", {"prompt": "Draw", "rubric": GOLDEN["prometheus"]})
    (criterion,) = rubric.criteria
    assert criterion.text == "Is the bus drawn well?" and criterion.anchors[4].text == "level 5"
    # (k - 1) / 4
    assert [criterion.met_of(level) for level in range(1, 6)] == [0, 0.25, 0.5, 0.75, 1]
    for broken, message in [("Score 1: a\nScore 3: b", r"found \[1, 3\]"), ("Score 1: a\nScore 1: b", "given twice")]:
        with pytest.raises(InputError, match=message):
            one("prometheus", broken)


def test_lines_with_marks_become_criteria() -> None:
    text = "Objects:\n1. A bus\n2) 1.5 metres\n   of road\n\nnot this\n(3) - third\n* [x] A tick\n- Two:\n• End"
    with pytest.warns(UserWarning, match=r"t\.txt: field 'rubric': no criterion in the line 'Objects:'"):
        (rubric,) = formats.from_record("text", text, "t.txt")
    assert [c.text for c in rubric.criteria] == ["A bus", "1.5 metres of road", "- third", "A tick", "Two:", "End"]
    assert rubric.provenance.extra["form"] == {"other_lines": ["Objects:", "not this"]}
    with pytest.raises(InputError, match="no numbered or bulleted line"):
        one("text", "A bus is visible")
    assert [c.text for c in one("wildchecklists", GOLDEN["wildchecklists"]).criteria][1] == "A road is visible?"


def test_invalid_auto_rubric_rows_are_left_out_and_warned_about() -> None:
    row = GOLDEN["auto_rubric"]
    assert one("auto_rubric", row).prompt == "Draw a red bus"
    assert one("auto_rubric", {**row, "rubric_valid": True}).criteria[0].weight == 1
    with pytest.warns(UserWarning, match="a:3: record 'u1': field 'rubric_valid' is 'False': row left out"):
        assert formats.from_record("auto_rubric", {**row, "rubric_valid": "False"}, "a:3") == []


def test_a_data_set_gives_its_rubric_and_those_of_its_items() -> None:
    first, second = formats.from_record("autorubric_dataset", GOLDEN["autorubric_dataset"])
    assert (first.criteria[0].text, second.criteria[0].text) == ("The bus is red", "Blue")
    assert first.prompt == second.prompt == "Draw a red bus"
    assert second.provenance.extra["autorubric_dataset"] == {"submission": "b.png"}


def test_arrays_json_text_and_columns_are_decoded() -> None:
    plain = one("healthbench", HEALTHBENCH)
    items = np.array([{**item, "tags": np.array(item["tags"], dtype=object)} for item in HEALTHBENCH["rubrics"]])
    items[0]["points"] = np.int64(5)
    columns = {key: [item[key] for item in HEALTHBENCH["rubrics"]] for key in ("criterion", "points", "tags")}
    by_id = dict(enumerate(HEALTHBENCH["rubrics"]))
    turns = HEALTHBENCH["prompt"]
    for rubrics, prompt in [
        (items, np.array(turns)),
        (json.dumps(HEALTHBENCH["rubrics"]), json.dumps(turns)),
        (columns, tuple(turns)),
    ]:
        assert one("healthbench", {**HEALTHBENCH, "rubrics": rubrics, "prompt": prompt}) == plain
    named = one("healthbench", {**HEALTHBENCH, "rubrics": {f"k{key}": item for key, item in by_id.items()}})
    assert named.ids == ("k0", "k1")
    assert len(one("rar", {**RAR, "rubric": RAR["rubric"][0]}).criteria) == 1
    hub = {
        **RUBRICHUB,
        "reward_model": json.dumps(RUBRICHUB["reward_model"]),
        "Rubrics": np.array(RUBRICHUB["Rubrics"]),
    }
    assert one("rubrichub", hub) == one("rubrichub", RUBRICHUB)


def test_null_is_absent_and_not_an_empty_rubric() -> None:
    for absent in ({**HEALTHBENCH, "rubrics": None}, {**HEALTHBENCH, "rubrics": float("nan")}):
        with pytest.warns(UserWarning, match="f:2: record 'p1': field 'rubrics' is null or missing.*left out"):
            assert formats.from_record("healthbench", absent, "f:2") == []
    with pytest.raises(InputError, match="record 'p1': field 'rubrics': is an empty list"):
        one("healthbench", {**HEALTHBENCH, "rubrics": []})
    # a null copy is no copy
    assert one("rubrichub", {**RUBRICHUB, "Rubrics": None}).ids == ("c1", "c2")
    nulls = bench({"criterion": "A bus", "points": None, "tags": None, "id": None, "category": None})
    rubric = one("healthbench", nulls)
    assert (rubric.criteria[0].id, rubric.criteria[0].weight) == ("c1", 1.0)
    assert formats.to_record("healthbench", rubric)[0] == nulls


def test_missing_ids_and_weights_and_other_names() -> None:
    odd = bench(
        {"requirement": "A", "weight": -2}, {"id": "b", "description": "long one", "title": "short"}, {"text": "C"}
    )
    rubric = one("healthbench", odd)
    assert [(c.id, c.text, c.weight) for c in rubric.criteria] == [
        ("c1", "A", -2),
        ("b", "long one", 1),
        ("c3", "C", 1),
    ]
    assert rubric.criterion("b").extra["title"] == "short"
    longer = one("rar", {"question": "q", "rubric": [{"title": "The longer one", "description": "Short"}]})
    assert longer.criteria[0].text == "The longer one" and longer.criteria[0].extra == {"description": "Short"}


def test_numeric_text_is_read_with_a_warning() -> None:
    with pytest.warns(
        UserWarning, match=r"f:1: record 'p1': criterion 'c1' \(rubrics\[0\]\): field 'points': text '-2'"
    ):
        (rubric,) = formats.from_record("healthbench", bench({"criterion": "A", "points": "-2"}), "f:1")
    assert rubric.criteria[0].weight == -2
    with pytest.raises(InputError, match=r"field 'weight'"):
        one("mmrubric", {"prompt": "p", "criteria": [{"id": "a", "text": "t", "weight": "3"}]})


def test_copies_that_disagree_give_a_warning_and_reward_model_wins() -> None:
    row = copy.deepcopy(VERL)
    row["extra_info"]["reward_model"]["rubrics"] = [{"criterion": "Other", "points": 1, "tags": []}]
    with pytest.warns(UserWarning, match=r"reward_model\.rubrics and extra_info\.reward_model\.rubrics disagree"):
        rubric = one("verl", row)
    assert rubric.criteria == one("verl", VERL).criteria
    # the winner is written to both, so the disagreement ends here
    assert formats.to_record("verl", rubric)[0] == VERL


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (0, "must not be 0"),
        ("many", "'many' is no number"),
        (float("nan"), "nan is not a finite number"),
        (True, "True is not a finite number"),
        ([1], r"\[1\] is not a finite number"),
    ],
)
def test_a_bad_weight_is_refused_with_file_record_criterion_and_field(points: Any, message: str) -> None:
    record = bench({"criterion": "A", "points": 1}, {"id": "mark", "criterion": "B", "points": points})
    with pytest.raises(InputError) as error:
        formats.from_record("healthbench", record, "rows.jsonl:7")
    assert str(error.value).startswith("rows.jsonl:7: record 'p1': criterion 'mark' (rubrics[1]): field 'points': ")
    with pytest.raises(InputError, match=message):
        formats.from_record("healthbench", record)


@pytest.mark.parametrize(
    ("format", "record", "message"),
    [
        ("healthbench", [], "expected a record .* got list"),
        ("healthbench", bench({"points": 1}), r"'c1' \(rubrics\[0\]\): field 'criterion': is missing"),
        ("healthbench", bench({"criterion": " ", "points": 1}), "field 'criterion': must be text that is not blank"),
        ("healthbench", bench("A"), r"\(rubrics\[0\]\): expected an object with text and weight, got str"),
        ("healthbench", {**HEALTHBENCH, "rubrics": "1. a"}, "field 'rubrics': text that is not JSON"),
        ("healthbench", {**HEALTHBENCH, "rubrics": {"a": [1], "b": []}}, "differ in length"),
        ("healthbench", {**HEALTHBENCH, "rubrics": 3}, "expected a list of criteria, got int"),
        ("healthbench", {**HEALTHBENCH, "prompt": None}, "field 'prompt': is missing"),
        ("healthbench", {**HEALTHBENCH, "prompt": [{"role": "user"}]}, "field 'prompt': expected text or a list"),
        ("healthbench", bench({"id": "a", "criterion": "A"}, {"id": "a", "criterion": "B"}), "ids must be unique"),
        ("healthbench", bench({"criterion": "A", "x": float("inf")}), r"criteria\[0\]\): field 'extra'"),
        ("rar", {"rubric": RAR["rubric"]}, "field 'question': is missing"),
        ("prbench", {**PRBENCH, "prompt_0": None, "prompt_1": None, "response_0": None}, "field 'prompt_0'"),
        (
            "prbench",
            {**PRBENCH, "rubric": [{"title": "A", "annotations": {"weight_class": "important"}}]},
            "missing, but",
        ),
        (
            "verl",
            {**VERL, "extra_info": None, "reward_model": {"rubrics": RULE}},
            "function:<name>",
        ),
        ("autorubric", {"title": "x"}, "expected a list of criteria, or one under sections, criteria, rubric"),
        (
            "autorubric",
            [{"requirement": "A", "options": [{"label": "x", "value": "1"}]}],
            "value of 'x' must be a number",
        ),
        ("autorubric", [{"name": "s", "requirement": "A", "options": [{"label": "x"}]}], "'s' .*at least 2 anchors"),
        ("mmrubric", {"prompt": "p", "criterions": []}, "unknown field; known: prompt, criteria"),
        ("unheard", {}, "unknown value 'unheard'; known: advancedif, auto_rubric, autorubric"),
        ("arr_pairs", {}, "holds preference pairs, not rubrics; use formats.read_pairs"),
    ],
)
def test_what_is_wrong_is_named(format: str, record: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        formats.from_record(format, record, "f:1")


def pair(**record: Any) -> formats.RankedCandidates:
    return formats.pair_from_record("arr_pairs", {"query": "a red bus", **record}, "f:1")


def test_pairs_lists_and_scores() -> None:
    row = pair(response=["a.png", "b.png"], label_rank=[2, 1], id=4)
    assert row.candidates == ("a.png", "b.png") and row.label is PairVerdict.WIN_B and row.id == "4"
    assert pair(response=["a.jpg", "b.JPG"], label_rank=[1, 1]).label is PairVerdict.TIE
    edit = pair(
        source_image="s", edited_images=[{"bytes": b"x", "path": "p"}, {"bytes": None, "path": "q"}], label_rank=[1, 2]
    )
    assert (edit.source, edit.candidates, edit.label) == ("s", (b"x", "q"), PairVerdict.WIN_A)
    scored = pair(response=["0.png", "a.png"], label_score=4)
    assert (scored.source, scored.candidates, scored.score) == ("0.png", ("a.png",), 4)
    three = ["0.png", "a.png", "b.png"]
    assert pair(response=three, label_rank=[1, 2]).source == "0.png"
    assert pair(images=["0", "a", "b"]).source == "0" and pair(images=["a", "b"]).source is None
    assert pair(response=three, response_includes_base=True).candidates == ("a.png", "b.png")
    listed = pair(response=three, label_rank=[3, 1, 2])
    assert listed.ranks == (3, 1, 2) and listed.source is None
    with pytest.raises(InputError, match="two ranked candidates"):
        _ = listed.label
    text = formats.pair_from_record(
        "openrubrics", {**GOLDEN["openrubrics"], "response_a": "A", "response_b": "B", "winner": "B", "pair_id": "k"}
    )
    assert (text.candidates, text.label, text.kind, text.id) == (("A", "B"), PairVerdict.WIN_B, "text", "k")


def test_responses_that_are_no_image_names_are_texts() -> None:
    row = formats.pair_from_record(
        "arr_pairs", {"prompt": "Name a bird.", "response": ["A kea.", "Data: a wren."], "label_rank": [2, 1]}
    )
    assert row.kind == "text" and row.pair().candidates == ("A kea.", "Data: a wren.") and row.pair().preferred == 1
    # Of texts none is a source image.
    assert pair(response=["one", "two", "three"]).candidates == ("one", "two", "three")
    assert pair(response=[b"png", "a.webp"], label_rank=[1, 2]).kind == "image"
    assert pair(edited_images=["one", "two"], label_rank=[1, 2]).kind == "image", "its key says so"
    with pytest.raises(InputError, match=r"f:1: .*field 'response': image names and texts together"):
        pair(response=["a.png", "A kea."], label_rank=[1, 2])


@pytest.mark.parametrize("url", ["https://host/a.png", "s3://bucket/a.png", "data:image/png;base64,AA=="])
def test_a_url_is_no_path(url: str) -> None:
    for row in (
        pair(response=["b.png", url], label_rank=[1, 2]),
        pair(source_image=url, edited_images=["a.png", "b.png"], label_rank=[1, 2]),
    ):
        with pytest.raises(InputError, match="is a URL; download it first"):
            row.pair()


def test_image_paths_are_those_of_the_folder_of_the_file() -> None:
    row = pair(source_image="in/s.png", edited_images=["a.png", "/data/b.png"], label_rank=[1, 2])
    made = row.pair("/rows")
    assert made.candidates == (Path("/rows/a.png"), Path("/data/b.png")) and made.sources == (Path("/rows/in/s.png"),)
    assert row.pair().candidates[0] == Path("a.png")
    assert pair(response=["a", "b"], label_rank=[1, 2]).pair("/rows").candidates == ("a", "b")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "no candidates; one of these keys"),
        ({"response": ["a", "b"], "label_rank": [0, 1]}, "whole ranks from 1"),
        ({"response": ["a", "b"], "label_rank": [1]}, "1 ranks for 2 candidates|1 ranks"),
        ({"response": ["a", 3], "label_rank": [1, 2]}, "field 'response': expected an image"),
        ({"response": ["a"], "label_score": "4"}, "field 'label_score': expected an integer"),
        ({"query": None, "response": ["a"]}, "field 'query': is missing"),
    ],
)
def test_broken_pairs_are_named(record: dict[str, Any], message: str) -> None:
    if record.get("label_rank") == [1]:
        record = {"edited_images": record["response"], "label_rank": [1]}
    with pytest.raises(InputError, match=f"f:1: .*({message})"):
        pair(**record)
    with pytest.raises(InputError, match="field 'winner': expected 'A' or 'B', got None"):
        formats.pair_from_record("openrubrics", {"instruction": "p", "response_a": "A", "response_b": "B"})


def test_a_ranked_row_becomes_a_pair_to_learn_from() -> None:
    made = formats.pair_from_record(
        "arr_pairs", {"query": "a red bus", "response": ["a.png", "b.png"], "label_rank": [2, 1]}
    )
    assert made.pair() == PreferencePair("a red bus", (Path("a.png"), Path("b.png")), 1, id=made.id)
    tied = formats.pair_from_record(
        "arr_pairs", {"query": "a red bus", "response": ["a.png", "b.png"], "label_rank": [1, 1]}
    )
    assert tied.pair().preferred is None
    three = formats.pair_from_record(
        "arr_pairs", {"query": "a red bus", "response": ["a.png", "b.png", "c.png"], "label_rank": [1, 2, 3]}
    )
    with pytest.raises(InputError, match="needs two candidates, got 3"):
        three.pair()
    text = formats.pair_from_record(
        "openrubrics", {"instruction": "p", "rubric": "1. x", "response_a": "A", "response_b": "B", "winner": "A"}
    )
    assert text.pair().candidates == ("A", "B") and text.pair().preferred == 0
