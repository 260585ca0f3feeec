"""Criteria and rubrics: what is refused, what the errors say, files and hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mmrubric import Criterion, InputError, Prompt, Provenance, Rubric, Task
from mmrubric.dag import topological_order


def rubric(*criteria: dict[str, Any], prompt: str = "a red bus") -> Rubric:
    return Rubric(prompt=prompt, criteria=[Criterion(**c) for c in criteria])


BUS = {"id": "bus", "text": "A bus is visible"}
RED = {"id": "red", "text": "The bus is red", "depends_on": ["bus"]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("weight", 0),
        ("weight", "3"),
        ("weight", True),
        ("text", "  "),
        ("id", ""),
        ("id", 7),
        ("verifier", "magic"),
        ("grain", "huge"),
        ("colour", "red"),
        ("hard", 1),
        ("extra", {"a": float("nan")}),
        ("expected", "maybe"),
        ("scale", "ordinal"),
        ("scale", "nominal"),
        ("anchors", ["low", "high"]),
    ],
)
def test_bad_criterion_is_refused_and_the_error_names_file_criterion_and_field(field: str, value: Any) -> None:
    data = {"prompt": "p", "criteria": [BUS, {"id": "x", "text": "t", field: value}]}
    with pytest.raises(ValidationError):
        Criterion(**data["criteria"][1])
    with pytest.raises(InputError) as error:
        Rubric.parse(data, "rubrics/bus.yaml")
    message = str(error.value)
    assert message.startswith("rubrics/bus.yaml: criterion ") and "criteria[1]" in message
    assert field in message or "ordinal" in message or "nominal" in message


def test_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"field 'wieght': unknown field; known: id, text, category, weight"):
        Rubric.parse({"prompt": "p", "criteria": [{**BUS, "wieght": 2}]}, "f.json")
    with pytest.raises(InputError, match=r"f.json: field 'criterions': unknown field; known: prompt, criteria"):
        Rubric.parse({"prompt": "p", "criteria": [BUS], "criterions": []}, "f.json")


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ([], "at least one criterion"),
        ([BUS, BUS], "used more than once: 'bus'"),
        ([{**BUS, "depends_on": ["tree"]}], r"criterion 'bus': depends_on names \['tree'\]"),
        ([{**BUS, "depends_on": ["bus"]}], "a cycle: bus -> bus"),
        ([{**BUS, "depends_on": ["red"]}, RED], "a cycle: bus -> red -> bus"),
    ],
)
def test_inconsistent_criteria_are_refused(criteria: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        rubric(*criteria)
    with pytest.raises(InputError, match=f"f.yaml: field 'criteria': .*{message}"):
        Rubric.parse({"prompt": "p", "criteria": criteria}, "f.yaml")


def test_parents_stand_before_children_in_any_file_order() -> None:
    assert topological_order({"c": ["b", "a"], "b": ["a"], "a": []}) == ["a", "b", "c"]
    chain = {str(k): [str(k + 1)] for k in range(3000)} | {"3000": []}
    assert topological_order(chain)[0] == "3000"


def test_equal_texts_warn() -> None:
    with pytest.warns(UserWarning, match="doubles its weight"):
        rubric(BUS, {**BUS, "id": "bus2"})


def test_hash_covers_prompt_and_criteria_but_not_provenance() -> None:
    base = rubric(BUS, RED)
    assert base.hash == rubric(BUS, RED).hash and len(base.hash) == 64
    assert base.hash == Rubric(prompt=base.prompt, criteria=base.criteria, provenance=Provenance(model="m")).hash
    assert (
        rubric({**BUS, "weight": 2, "extra": {"n": 1}}).hash == rubric({**BUS, "weight": 2.0, "extra": {"n": 1.0}}).hash
    )
    others = [
        rubric(BUS, RED, prompt="a blue bus"),
        rubric(RED, BUS),
        rubric({**BUS, "weight": 2}, RED),
        rubric({**BUS, "hard": True}, RED),
        rubric({**BUS, "extra": {"a": True}}, RED),
        rubric({**BUS, "extra": {"a": 1}}, RED),
    ]
    assert len({base.hash, *(other.hash for other in others)}) == 1 + len(others)


def test_a_default_written_out_has_the_same_hash() -> None:
    written = {**BUS, "weight": 1, "category": "general", "scale": "binary", "depends_on": [], "extra": {}}
    assert rubric(BUS).hash == rubric(written).hash


def test_an_edit_makes_a_new_version_that_names_its_parent() -> None:
    base = rubric(BUS, RED)
    heavier = base.with_changed("red", weight=3)
    assert heavier.criterion("red").weight == 3 and base.criterion("red").weight == 1
    assert heavier.hash != base.hash
    assert (heavier.provenance.version, heavier.provenance.parent) == (2, base.hash)
    assert heavier.without("red").ids == ("bus",) and heavier.without("red").provenance.version == 3
    assert base.with_added(Criterion(id="sky", text="The sky is visible")).ids == ("bus", "red", "sky")
    with pytest.raises(InputError, match="no criterion 'tree'; known: bus, red"):
        base.without("tree")
    with pytest.raises(InputError, match="depends_on names"):
        base.without("bus")
    with pytest.raises(InputError, match="criterion 'red': field 'weight'"):
        base.with_changed("red", weight=float("nan"))


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_file_round_trip(tmp_path: Path, suffix: str) -> None:
    scale = {
        "id": "style",
        "text": "Style",
        "scale": "ordinal",
        "anchors": ["far", {"text": "close", "value": 0.6}],
    }
    choice = {
        "id": "bg",
        "text": "Background",
        "scale": "nominal",
        "expected": "no",
        "options": ["yes", "no"],
    }
    base = rubric(BUS, {**RED, "weight": -2.5, "hard": True, "extra": {"ü": [1, None, "no"]}}, scale, choice)
    path = tmp_path / f"rubric{suffix}"
    base.save(path)
    loaded = Rubric.load(path)
    assert loaded == base and loaded.hash == base.hash
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_yaml_words_are_read_as_meant(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "prompt: p\ncriteria:\n"
        "- {id: a, text: t, expected: no}\n"
        "- {id: b, text: u, scale: nominal, options: [yes, no], expected: yes}\n"
    )
    loaded = Rubric.load(path)
    assert loaded.criterion("a").expected == "no"
    assert [option.label for option in loaded.criterion("b").options] == ["yes", "no"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.json", '{"prompt": "p", "criteria": [', "r.json: not valid JSON"),
        ("r.json", '{"prompt": "p", "prompt": "q"}', "key prompt is given twice"),
        ("r.yaml", "prompt: [", "r.yaml: not valid YAML"),
        ("r.yaml", "prompt: p\nprompt: q\n", "key prompt is given twice"),
        ("r.yaml", "- 1\n", "expected a mapping"),
        ("r.yaml", "prompt: p\ncriteria: [{id: a, text: t, weight: .nan}]", "criterion 'a' .*field 'weight'"),
        ("r.toml", "", "unknown file type '.toml'"),
        ("r.jsonl", "", "use Rubric.load_many"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        Rubric.load(path)
    assert str(path) in str(error.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml: cannot be read"):
        Rubric.load(tmp_path / "absent.yaml")


def test_many_rubrics_and_the_number_of_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    rubrics = [rubric({"id": "c", "text": f"text {k}"}, prompt=f"p{k}") for k in range(20)]
    Rubric.save_many(rubrics, path)
    assert Rubric.load_many(path) == rubrics
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:16], lines[16][:-5], *lines[17:]]))
    with pytest.raises(InputError, match=r"many\.jsonl:17: not valid JSON"):
        Rubric.load_many(path)
    bad = json.dumps({"prompt": "p", "criteria": [{"id": "c", "text": "t", "weight": 0}]})
    path.write_text("\n".join([*lines[:16], bad, *lines[17:]]))
    with pytest.raises(
        InputError, match=r"many\.jsonl:17: criterion 'c' \(criteria\[0\]\): field 'weight': must not be 0"
    ):
        Rubric.load_many(path)
    path.write_text("\n\n")
    with pytest.raises(InputError, match="holds no rubric"):
        Rubric.load_many(path)


def test_a_failed_save_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    rubric(BUS).save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        rubric(BUS, RED).save(path)
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_answers_become_met() -> None:
    binary = Criterion(**BUS)
    assert [binary.met_of(answer) for answer in ("yes", "no", True, "unknown")] == [1.0, 0.0, 1.0, None]
    assert binary.met_of_probability(0.9) == 0.9
    absent = Criterion(**BUS, expected="no")
    assert absent.met_of("no") == 1.0 and absent.met_of_probability(0.25) == 0.75
    # Levels 1..3 are (level - 1) / 2 unless the anchor carries its own value.
    level = Criterion(id="s", text="t", scale="ordinal", anchors=["far", {"text": "close", "value": 0.6}, "exact"])
    assert [level.met_of(answer) for answer in (1, 2, 3)] == [0.0, 0.6, 1.0]
    options = [{"label": "oil", "value": 0.25}, {"label": "ink"}, {"label": "none", "na": True}]
    choice = Criterion(id="m", text="t", scale="nominal", options=options, expected="ink")
    assert [choice.met_of(answer) for answer in ("oil", "ink", "none")] == [0.25, 1.0, None]
    for criterion, answer in [(binary, "maybe"), (level, 0), (level, 4), (level, True), (choice, "chalk")]:
        with pytest.raises(InputError, match="answer"):
            criterion.met_of(answer)


def test_criteria_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Criterion(**BUS).weight = 2  # type: ignore[misc]


def test_a_task_is_no_prompt() -> None:
    prompt = Prompt("p1", "a red bus")
    task = Task(prompt, Rubric(prompt=prompt, criteria=[Criterion(**BUS)]))
    assert task.rubric.prompt == "a red bus" and not isinstance(task, Prompt)
    with pytest.raises(InputError, match="field prompt must be a Prompt"):
        Task("a red bus", task.rubric)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="field id"):
        Prompt(" ", "a red bus")


@settings(max_examples=50, deadline=None)
@example([("line\x85break", 1.0, False), ("\u2028\u2029\r", 1.0, False)])
@given(
    st.lists(
        st.tuples(st.text(min_size=1).filter(str.strip), st.floats(-10, 10).filter(bool), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_random_rubrics_survive_json_and_yaml(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    base = rubric(
        *({"id": f"c{k}", "text": f"{k} {text}", "weight": w, "hard": h} for k, (text, w, h) in enumerate(rows))
    )
    folder = tmp_path_factory.mktemp("rubrics")
    for name in ("r.json", "r.yaml"):
        try:
            base.save(folder / name)
        except UnicodeEncodeError:  # lone surrogates are no text
            return
        assert Rubric.load(folder / name).hash == base.hash
