"""GenEval and Flow-GRPO files: counts of the official files, facts, texts and the way back."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import InputError, benchmarks
from mmrubric.benchmarks.geneval import Fact, facts

POSITION = {
    "tag": "position",
    "include": [{"class": "bear", "count": 1}, {"class": "tv", "count": 1, "position": ["right of", 0]}],
    "prompt": "a photo of a tv right of a bear",
}
COUNTING = {
    "tag": "counting",
    "include": [{"class": "bear", "count": 3}],
    "exclude": [{"class": "bear", "count": 4}],
    "prompt": "a photo of three bears",
}
Official = Callable[[str], Path]


def records_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


TAGS = ["single_object", "two_object", "counting", "colors", "position", "color_attr"]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("geneval/evaluation_metadata.jsonl", [80, 99, 80, 94, 100, 100]),
        ("geneval_flow_grpo/test_metadata.jsonl.gz", [320, 396, 320, 376, 400, 400]),
        ("geneval_flow_grpo/unseen_objects_test_metadata.jsonl.gz", [80, 192, 188, 188, 188, 188]),
    ],
)
def test_official_files(official: Official, name: str, lines: list[int]) -> None:
    path, tags = official(name), dict(zip(TAGS, lines, strict=True))
    rubrics = list(benchmarks.load("geneval", path))
    # 553, 2,212 and 1,024 lines; the last has no line end in Flow-GRPO's files.
    assert len(rubrics) == sum(tags.values())
    assert Counter(rubric.provenance.extra["geneval"]["tag"] for rubric in rubrics) == tags  # type: ignore[index,call-overload]
    kinds = Counter(criterion.arguments["fact"] for rubric in rubrics for criterion in rubric.criteria)
    two = tags["two_object"] + tags["position"] + tags["color_attr"]
    assert kinds == {
        "object": sum(tags.values()) + two,
        "count": tags["counting"],
        "colour": tags["colors"] + 2 * tags["color_attr"],
        "position": tags["position"],
    }
    records = records_of(path)
    assert [benchmarks.to_record("geneval", rubric) for rubric in rubrics] == records
    assert sum(len(facts(record)) for record in records) == kinds.total()


def test_relations_and_numbers_of_the_official_553(official: Official) -> None:
    found = [f for r in records_of(official("geneval/evaluation_metadata.jsonl")) for f in facts(r)]
    assert Counter(f.value[0] for f in found if isinstance(f.value, tuple)) == {
        "below": 28,
        "right of": 27,
        "above": 26,
        "left of": 19,
    }
    assert Counter(f.value for f in found if f.kind == "count") == {2: 26, 3: 28, 4: 26}


def test_prompts_have_the_ids_of_the_rubrics(official: Official) -> None:
    rubrics = benchmarks.load("geneval", official("geneval/evaluation_metadata.jsonl"))
    prompts = benchmarks.prompts("geneval", official("geneval/generation_prompts.txt"))
    assert [(p.id, p.text) for p in prompts] == [(benchmarks.item_id("geneval", r), r.prompt) for r in rubrics]


def test_position_depends_on_its_two_objects() -> None:
    rubric = benchmarks.from_record("geneval", POSITION, item="00007")
    assert rubric.ids == ("object:bear", "object:tv", "position:tv")
    place = rubric.criterion("position:tv")
    assert place.text == "In the image, the tv is to the right of the bear."
    assert place.depends_on == ("object:tv", "object:bear")
    assert place.arguments == {"fact": "position", "class": "tv", "relation": "right of", "other": "bear"}
    assert benchmarks.item_id("geneval", rubric) == "00007"


def test_counting_means_exactly() -> None:
    rubric = benchmarks.from_record("geneval", COUNTING)
    count = rubric.criterion("count:bear")
    assert count.text == "Counting every bear in the image gives exactly 3."
    assert (count.depends_on, count.category) == (("object:bear",), "count")
    assert count.arguments == {"fact": "count", "class": "bear", "count": 3}


def test_colour_and_words_without_article() -> None:
    include = [{"class": "skis", "count": 1, "color": "red"}, {"class": "orange", "count": 1, "color": "blue"}]
    record = {"tag": "color_attr", "include": include, "prompt": "p"}
    texts = [criterion.text for criterion in benchmarks.from_record("geneval", record).criteria]
    assert texts == ["Skis are visible.", "The skis are red.", "An orange is visible.", "The orange is blue."]


def test_facts_are_typed() -> None:
    assert facts(POSITION) == [
        Fact("object", "bear"),
        Fact("object", "tv"),
        Fact("position", "tv", ("right of", "bear")),
    ]
    assert facts(COUNTING) == [Fact("object", "bear"), Fact("count", "bear", 3)]
    # One dog is no count to check: the tag is not counting.
    assert facts({"tag": "single_object", "include": [{"class": "dog", "count": 1}], "prompt": "p"}) == [
        Fact("object", "dog")
    ]


def change(record: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(record))
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    target = copy
    for part in path:
        target = target[part]
    target[last] = value
    return copy


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (change(COUNTING, "include.0.count", "3"), r"field 'include\.0\.count': .*integer \(got '3'\)"),
        (change(COUNTING, "include.0.count", True), r"field 'include\.0\.count': .*integer"),
        (change(COUNTING, "include.0.color", "teal"), r"field 'include\.0\.color': .*'red'.*\(got 'teal'\)"),
        (change(COUNTING, "include.0.color", None), r"field 'include\.0': field 'color' is null"),
        (
            change(COUNTING, "exclude.0.count", 5),
            r"'exclude': tag counting needs \[\('bear', 4\)\], got",
        ),
        (change(COUNTING, "tag", "two_object"), r"field 'include\.0\.count': must be 1 unless the tag is counting"),
        (change(POSITION, "include.1.position", ["right of", 1]), r"'include\.1\.position': 1 is not the index"),
        (change(POSITION, "include.1.position", ["behind", 0]), r"field 'include\.1\.position\.0': .*'below'"),
        (change(POSITION, "include.1.class", "bear"), r"field 'include': a class stands twice"),
        (change(POSITION, "exclude", []), r"field 'exclude': tag position needs no exclude"),
        ({"tag": "position", "include": []}, r"field 'prompt': is missing; add it"),
    ],
)
def test_wrong_fields_are_named(record: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        benchmarks.from_record("geneval", record)


def test_errors_name_file_line_and_item(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(COUNTING) + "\n" + json.dumps(change(COUNTING, "include.0.count", 0)) + "\n")
    rubrics = benchmarks.load("geneval", path)
    next(rubrics)
    with pytest.raises(InputError, match=r"m\.jsonl:2: item '00001': field 'include\.0\.count'"):
        next(rubrics)


def test_an_edited_fact_is_written_and_an_edit_without_a_place_is_refused() -> None:
    rubric = benchmarks.from_record("geneval", COUNTING)
    changed = rubric.with_changed(
        "count:bear",
        text="Counting every bear in the image gives exactly 2.",
        arguments={"fact": "count", "class": "bear", "count": 2},
    )
    record = benchmarks.to_record("geneval", changed)
    assert (record["include"][0]["count"], record["exclude"][0]["count"]) == (2, 3)
    with pytest.raises(InputError, match=r"criterion 'count:bear': field 'weight': a record cannot hold 2"):
        benchmarks.to_record("geneval", rubric.with_changed("count:bear", weight=2.0))
    with pytest.raises(InputError, match=r"criterion 'count:bear': field 'text'.*exactly 3"):
        benchmarks.to_record("geneval", rubric.with_changed("count:bear", text="Bears."))
    with pytest.raises(InputError, match=r"criterion 'count:bear': field arguments: .* is no GenEval fact"):
        benchmarks.to_record("geneval", rubric.with_changed("count:bear", arguments={"fact": "age"}))


words = st.text(st.characters(categories=["Ll", "Lu", "Nd"]), min_size=1, max_size=6)
colours = st.sampled_from(["red", "black", "white"])
relations = st.sampled_from(["left of", "right of", "above", "below"])


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """Records of the schema, with fields that nobody has declared yet."""
    classes = draw(st.lists(words, min_size=1, max_size=4, unique_by=str.casefold))
    counting = draw(st.booleans())
    include: list[dict[str, Any]] = []
    for number, cls in enumerate(classes):
        entry: dict[str, Any] = {"class": cls, "count": draw(st.integers(1, 9)) if counting else 1}
        if draw(st.booleans()):
            entry["color"] = draw(colours)
        if number and draw(st.booleans()):
            entry["position"] = [draw(relations), draw(st.integers(0, number - 1))]
        if draw(st.booleans()):
            entry["x_size"] = draw(words)
        include.append(entry)
    record: dict[str, Any] = {"tag": "counting" if counting else "colors", "include": include, "prompt": draw(words)}
    if counting:
        record["exclude"] = [{"class": entry["class"], "count": entry["count"] + 1} for entry in include]
    return record | draw(st.dictionaries(st.just("x_source"), words))


@settings(deadline=None)
@given(records())
def test_any_record_comes_back(record: dict[str, Any]) -> None:
    rubric = benchmarks.from_record("geneval", record)
    assert benchmarks.to_record("geneval", rubric) == record
    assert len(rubric.criteria) == len(facts(record))
