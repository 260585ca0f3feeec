"""DSG-1k and DPG-Bench: the 9-column CSV, its dirty dependencies and the way back."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import InputError, Rubric, benchmarks
from mmrubric.benchmarks import dependencies
from mmrubric.benchmarks.propositions import COLUMNS
from mmrubric.dag import topological_order

Official = Callable[[str], Path]


def row(id: int | str, dependency: str = "0", **changes: str) -> dict[str, str]:
    texts = {"item_id": "whoops_5", "text": "a cube", "keywords": "cube", "category_broad": "entity"}
    rest = {"category_detailed": "whole", "tuple": f"entity ({id})", "question_natural_language": f"Is there {id}?"}
    return {**texts, "proposition_id": str(id), "dependency": dependency, **rest, **changes}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def dsg1k(official: Official) -> tuple[list[dict[str, str]], list[Rubric]]:
    path = official("dsg1k/dsg-1k-anns.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with pytest.warns(UserWarning, match=r"'tifa160_134': no question 1; as a parent it counts as satisfied") as seen:
        rubrics = list(benchmarks.load("dsg", path))
    # What other tests left unclosed is collected, and warned of, at any time.
    assert [warning.category for warning in seen if warning.category is not ResourceWarning] == [UserWarning]
    return rows, rubrics


def test_dsg_1k_totals(dsg1k: tuple[list[dict[str, str]], list[Rubric]]) -> None:
    _, rubrics = dsg1k
    assert len(rubrics) == 1060
    categories = Counter(criterion.category for rubric in rubrics for criterion in rubric.criteria)
    assert categories == {"entity": 3395, "relation": 2069, "attribute": 1950, "global": 475, "other": 293}
    assert categories.total() == 8182


def test_dsg_1k_comes_back_field_by_field(dsg1k: tuple[list[dict[str, str]], list[Rubric]]) -> None:
    rows, rubrics = dsg1k
    assert [again for rubric in rubrics for again in benchmarks.to_record("dsg", rubric)] == rows


def test_every_dirty_dependency_of_dsg_1k_is_noted(dsg1k: tuple[list[dict[str, str]], list[Rubric]]) -> None:
    _, rubrics = dsg1k
    noted = [(benchmarks.item_id("dsg", r), note) for r in rubrics for note in r.provenance.notes]

    def matching(pattern: str) -> list[str]:
        return [item for item, note in noted if re.search(pattern, note)]

    words = matching("is no number; dropped")
    assert (len(words), len(set(words))) == (10, 8)
    assert len(matching("depends on itself; dropped")) == 44
    later, cyclic = matching("stands later; kept"), matching("closes a cycle; dropped")
    # 48 forward references, 4 of them in the cycles of 3 items.
    assert len(later) + len(cyclic) == 48
    assert (len(cyclic), set(cyclic)) == (4, {"drawtext_45", "diffusiondb_16", "localized_narratives_50"})
    assert matching("^no question 1;") == ["tifa160_134"]
    assert len(matching("beside other parents")) == 8


def test_clean_rows_have_no_notes(dsg1k: tuple[list[dict[str, str]], list[Rubric]]) -> None:
    rubric = next(r for r in dsg1k[1] if benchmarks.item_id("dsg", r) == "whoops_5")
    assert rubric.provenance.notes == ()
    assert [criterion.depends_on for criterion in rubric.criteria] == [(), ("1",), ("1",)]
    assert rubric.criterion("2").text == "Is the rubix cube purple?"
    assert rubric.criterion("2").extra["dsg"]["category_detailed"] == "color"  # type: ignore[index,call-overload]


def test_dpg_reads_the_same_columns_under_its_own_name(tmp_path: Path) -> None:
    rows = [row(1), row(2, "1"), row(1, item_id="b"), row(2, "1", item_id="b")]
    rubrics = list(benchmarks.load("dpg", write(tmp_path / "dpg.csv", rows)))
    assert [benchmarks.item_id("dpg", rubric) for rubric in rubrics] == ["whoops_5", "b"]
    assert [again for rubric in rubrics for again in benchmarks.to_record("dpg", rubric)] == rows
    with pytest.raises(InputError, match=r"only a rubric from benchmarks\.load"):
        benchmarks.to_record("dsg", rubrics[0])


def test_dpg_bench_csv_totals(official: Official) -> None:
    # Not bundled; the page gives 1,065 prompts and 14,391 questions.
    rubrics = list(benchmarks.load("dpg", official("dpg_bench/dpg_bench.csv")))
    assert (len(rubrics), sum(len(rubric.criteria) for rubric in rubrics)) == (1065, 14391)


def test_dpg_prompts(official: Official) -> None:
    prompts = {p.id: p.text for p in benchmarks.prompts("dpg", official("dpg_bench/prompts_all.jsonl.gz"))}
    groups = Counter(re.sub(r"\d+$", "", id) or "digits" for id in prompts)
    forty = dict.fromkeys(["countbench", "diffusiondb", "drawtext", "midjourney", "posescript"], 40)
    forty |= dict.fromkeys(["stanford", "vrd", "whoops"], 40)
    assert groups == {"partiprompts": 324, "digits": 299, "COCOval": 100, "localized": 22, **forty}
    sample = list(benchmarks.prompts("dpg", official("dpg_bench/prompts_sample")))
    assert len(sample) == 15 and all(prompts[p.id] == p.text for p in sample)


def test_dpg_prompt_folder_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no <item_id>\.txt"):
        list(benchmarks.prompts("dpg", tmp_path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1), row(1)], r"f\.csv:2: item 'whoops_5': field 'proposition_id': 1 is given twice"),
        ([row("one")], r"f\.csv:2: item 'whoops_5': field 'proposition_id': .*\(got 'one'\)"),
        ([row(1), row(2, text="a ball")], r"f\.csv:3: field 'text' is 'a ball', but .*'a cube'"),
        ([row(1), row(1, item_id="b"), row(2)], r"f\.csv:4: item 'whoops_5' has come before; put its records together"),
        (
            [row(1, question_natural_language=" ")],
            r"f\.csv:2: item 'whoops_5': .*'text': must not be blank",
        ),
        ([row(1, category_broad="")], r"f\.csv:2: item 'whoops_5': criterion '1' .*'category': must not be blank"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, rows: list[dict[str, str]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(benchmarks.load("dsg", write(tmp_path / "f.csv", rows)))


def test_edits_that_have_a_column_are_written() -> None:
    rubric = benchmarks.from_record("dsg", [row(1), row(2, "1")])
    again = benchmarks.to_record("dsg", rubric.with_changed("2", text="Is it red?", category="attribute"))
    assert again[1] == row(2, "1", question_natural_language="Is it red?", category_broad="attribute")
    assert benchmarks.to_record("dsg", rubric.without("2")) == [row(1)]
    with pytest.raises(InputError, match=r"criterion '2': field 'depends_on': a record cannot hold \(\)"):
        benchmarks.to_record("dsg", rubric.with_changed("2", depends_on=()))


@pytest.mark.filterwarnings("ignore:.*no question 9")
def test_what_cleaning_keeps_and_drops() -> None:
    raw = {"1": ["2"], "2": ["1", " 1", "red"], "3": ["3", "0", "9", "02"]}
    parents, notes = dependencies.clean(raw, "f")
    assert parents == {"1": (), "2": ("1",), "3": ("2",)}
    assert notes == [
        "question 2: parent 1 is given twice; dropped",
        "question 2: parent 'red' is no number; dropped",
        "question 3: it depends on itself; dropped",
        "question 3: 0 beside other parents means nothing; dropped",
        "question 3: the item has no question 9, which counts as satisfied; dropped",
        "question 1: its later parent 2 closes a cycle; dropped",
    ]


tokens = st.lists(st.sampled_from(["0", "1", "2", "3", "4", "5", "6", " 2", "red", ""]), min_size=1, max_size=4)


@pytest.mark.filterwarnings("ignore:.*no question")
@settings(deadline=None)
@given(st.lists(tokens, min_size=1, max_size=6))
def test_cleaned_dependencies_form_a_dag_of_what_was_given(raw: list[list[str]]) -> None:
    named = {str(number): parents for number, parents in enumerate(raw, start=1)}
    parents, notes = dependencies.clean(named, "f")
    assert sorted(topological_order(parents)) == sorted(named)
    for id, given_parents in named.items():
        assert set(parents[id]) <= {token.strip() for token in given_parents} & set(named) - {id}
        # Each token is kept, or it is 0 alone, or a note tells of it.
        told = sum(note.startswith(f"question {id}: ") and note.endswith("dropped") for note in notes)
        assert len(parents[id]) + told == (0 if given_parents == ["0"] else len(given_parents))


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
shown = text.filter(lambda value: value.strip())


@st.composite
def items(draw: st.DrawFn) -> list[dict[str, str]]:
    item, prompt = draw(shown), draw(shown)
    ids = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True))
    fields: dict[str, Any] = {"keywords": text, "dependency": text, "category_broad": shown}
    fields |= {"category_detailed": text, "tuple": text, "question_natural_language": shown}
    return [row(id, item_id=item, text=prompt, **draw(st.fixed_dictionaries(fields))) for id in ids]


@pytest.mark.filterwarnings("ignore:.*no question", "ignore:.*repeat each other's text")
@settings(deadline=None)
@given(items())
def test_any_rows_come_back_through_csv_and_json(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    rubrics = list(benchmarks.load("dsg", write(folder / "f.csv", rows)))
    rubrics[0].save(folder / "r.json")
    assert benchmarks.to_record("dsg", Rubric.load(folder / "r.json")) == rows
    assert json.loads((folder / "r.json").read_text())["prompt"] == rows[0]["text"]
