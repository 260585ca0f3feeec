"""The registry: names, options, and rubrics of other origin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmrubric import Criterion, InputError, Rubric, benchmarks
from mmrubric.benchmarks.propositions import COLUMNS

RECORD = {"tag": "single_object", "include": [{"class": "dog", "count": 1}], "prompt": "a photo of a dog"}


def test_names() -> None:
    assert benchmarks.names() == [
        "dpg",
        "dsg",
        "geneval",
        "oneig",
        "perception_rubrics",
        "tifa",
        "tiif",
        "unigenbench",
    ]


def test_unknown_names_and_options_are_said_before_anything_is_read() -> None:
    with pytest.raises(InputError, match="benchmark: unknown value 'genval'; known: dpg, dsg, geneval"):
        benchmarks.load("genval", "nowhere.jsonl")
    with pytest.raises(InputError, match="benchmark 'geneval': unknown option split; known: none"):
        benchmarks.load("geneval", "nowhere.jsonl", split="test")
    with pytest.raises(InputError, match=r"has no file of prompts alone; use load.*: dpg, geneval, tifa"):
        benchmarks.prompts("dsg", "nowhere.csv")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl: cannot be read: No such file"):
        next(benchmarks.load("geneval", Path("nowhere.jsonl")))


@pytest.mark.parametrize("name", benchmarks.names())
def test_a_rubric_of_other_origin_has_no_record(name: str) -> None:
    rubric = Rubric(prompt="p", criteria=(Criterion(id="a", text="A dog."),))
    with pytest.raises(InputError, match=rf"field provenance\.extra\.{name} is missing"):
        benchmarks.to_record(name, rubric)


def test_an_added_criterion_has_no_place() -> None:
    row = dict.fromkeys(COLUMNS, "x") | {"proposition_id": "1", "dependency": "0"}
    rubric = benchmarks.from_record("dsg", [row])
    with pytest.raises(InputError, match=r"criterion 'a': field extra\.dsg is missing.*remove the criterion"):
        benchmarks.to_record("dsg", rubric.with_added(Criterion(id="a", text="A dog.")))


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_the_way_back_survives_a_rubric_file(tmp_path: Path, suffix: str) -> None:
    benchmarks.from_record("geneval", RECORD, item="00003").save(tmp_path / f"r.{suffix}")
    rubric = Rubric.load(tmp_path / f"r.{suffix}")
    assert benchmarks.to_record("geneval", rubric) == RECORD
    assert benchmarks.item_id("geneval", rubric) == "00003"


def test_importing_needs_no_deep_learning_library() -> None:
    code = "import sys, mmrubric.benchmarks; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
