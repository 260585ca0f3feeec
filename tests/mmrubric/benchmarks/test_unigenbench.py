"""UniGenBench: counts of the official files, texts in two languages, and the way back."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mmrubric import InputError, benchmarks

Official = Callable[[str], Path]


def record(points: list[str], descriptions: list[str], language: str = "en") -> dict[str, str]:
    names = {"en": ("Testpoints", "Testpoint Description"), "zh": ("考点", "考点对应描述")}[language]
    # A blank after the bracket, as other writers of JSON leave it: the text must come back as it was.
    details = json.dumps({"Subjects": "Animal", names[0]: points, names[1]: descriptions}).replace("{", "{ ", 1)
    return {"index": "7", f"prompt_{language}": "two pandas", f"sub_dims_{language}": details}


@pytest.mark.parametrize(("language", "dash"), [("en", " - "), ("zh", "-")])
def test_official_files(official: Official, language: str, dash: str) -> None:
    path = official(f"unigenbench/test_prompts_{language}.csv.gz")
    rubrics = list(benchmarks.load("unigenbench", path))
    criteria = [criterion for rubric in rubrics for criterion in rubric.criteria]
    assert (len(rubrics), len(criteria)) == (600, 1813)
    points = {c.extra["unigenbench"]["testpoint"] for c in criteria}  # type: ignore[index,call-overload]
    assert len(points) == 27
    assert {c.category for c in criteria} == {str(point).split(dash)[0] for point in points}
    assert len({c.category for c in criteria}) == 10
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [benchmarks.to_record("unigenbench", rubric) for rubric in rubrics] == rows
    assert [benchmarks.item_id("unigenbench", rubric) for rubric in rubrics] == [str(k) for k in range(600)]


def test_the_one_testpoint_without_description_is_noted(official: Official) -> None:
    path = official("unigenbench/test_prompts_en.csv.gz")
    noted = [r for r in benchmarks.load("unigenbench", path) if r.provenance.notes]
    assert [benchmarks.item_id("unigenbench", rubric) for rubric in noted] == ["383"]
    assert "(Grammar - Pronoun Reference) has no description" in noted[0].provenance.notes[0]


@pytest.mark.parametrize(
    ("language", "point", "text", "category"),
    [
        (
            "en",
            "Attribute - Quantity",
            'The image does what the prompt asks for in "Attribute - Quantity": two pandas',
            "Attribute",
        ),
        ("zh", "属性-数量", "画面在“属性-数量”上符合提示词的要求：two pandas", "属性"),
    ],
)
def test_testpoints_become_statements(language: str, point: str, text: str, category: str) -> None:
    made = record([point], ["two pandas"], language)
    rubric = benchmarks.from_record("unigenbench", made)
    assert (rubric.criteria[0].text, rubric.criteria[0].category) == (text, category)
    assert benchmarks.to_record("unigenbench", rubric) == made


def test_a_removed_testpoint_leaves_the_json_column() -> None:
    rubric = benchmarks.from_record("unigenbench", record(["Style", "Grammar"], ["ink", "him"]))
    again = benchmarks.to_record("unigenbench", rubric.without("2"))
    assert json.loads(again["sub_dims_en"])["Testpoints"] == ["Style"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sub_dims_en": "{"}, r"r: item '7': field 'sub_dims_en': not valid JSON"),
        ({"sub_dims_en": "{}"}, r"item '7': field 'sub_dims_en': field 'Testpoints': is missing"),
        ({"sub_dims_en": '{"Testpoints": ["a"], "Testpoint Description": []}'}, r"1 under 'Testpoints' but 0 under"),
        ({"sub_dims_en": '{"Testpoints": [], "Testpoint Description": []}'}, r"item '7'.*at least one criterion"),
        ({"prompt_zh": "p"}, r"r: expected one prompt column, prompt_en or prompt_zh"),
    ],
)
def test_broken_rows(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        benchmarks.from_record("unigenbench", record(["Style"], ["ink"]) | changes, "r")


def test_an_index_comes_once(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    made = record(["Style"], ["ink"])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made))
        writer.writeheader()
        writer.writerows([made, made])
    with pytest.raises(InputError, match=r"f\.csv:3: item '7' has come before"):
        list(benchmarks.load("unigenbench", path))
