"""Files: detection, streams, places in errors, and writing whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmrubric import Criterion, InputError, Rubric, formats
from tests.mmrubric.formats.golden import AUTORUBRIC, HEALTHBENCH, IMPORT_ONLY, PRBENCH, RAR, ROUND_TRIP


def jsonl(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.filterwarnings("ignore:.*no criterion in the line 'Objects")
@pytest.mark.parametrize(("format", "record"), ROUND_TRIP + IMPORT_ONLY)
def test_every_golden_row_is_recognised_and_read(tmp_path: Path, format: str, record: Any) -> None:
    if isinstance(record, str):
        path = tmp_path / "rubric.txt"
        path.write_text(record)
    else:
        path = jsonl(tmp_path / "rows.jsonl", [record])
    assert formats.detect(path) == format
    assert list(formats.read(path)) == formats.from_record(format, record)
    if isinstance(record, str):
        return
    whole = tmp_path / "rows.json"  # one record, then a list of two
    for content, times in ((record, 1), ([record, record], 2)):
        whole.write_text(json.dumps(content, indent=1))
        assert formats.detect(whole) == format
        assert len(list(formats.read(whole, format))) == times * len(formats.from_record(format, record))


def test_pairs_are_recognised(tmp_path: Path) -> None:
    row = {"query": "a red bus", "response": ["a.png", "b.png"], "label_rank": [1, 2]}
    path = jsonl(tmp_path / "pairs.jsonl", [row, row])
    assert formats.detect(path) == "arr_pairs" and len(list(formats.read_pairs(path))) == 2
    with pytest.raises(InputError, match=r"use formats\.read_pairs"):
        formats.read(path)
    with pytest.raises(InputError, match="holds no preference pairs; known: arr_pairs, openrubrics"):
        formats.read_pairs(path, "rar")
    both = {**dict(IMPORT_ONLY)["openrubrics"], "response_a": "A", "response_b": "B", "winner": "A"}
    path = jsonl(tmp_path / "both.jsonl", [both])
    assert len(list(formats.read(path))) == len(list(formats.read_pairs(path))) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"caption": "x"},
            r"fits no known format; pass format= \(or --from\), one of advancedif, arr_pairs, auto_rubric",
        ),
        ([{"requirement": "a"}], "fits no known format"),
        ({**HEALTHBENCH, **RAR}, r"fits several formats \(healthbench, rar\); pass format="),
    ],
)
def test_an_unsure_guess_is_an_error_that_lists_the_names(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        formats.read(jsonl(tmp_path / "rows.jsonl", [record]))


def test_names() -> None:
    assert set(formats.names(export=True)) < set(formats.names())
    assert formats.names(export=True) == sorted({name for name, _ in ROUND_TRIP})
    assert formats.pair_names() == ["arr_pairs", "openrubrics"]


def test_other_containers(tmp_path: Path) -> None:
    path = tmp_path / "rubric.yaml"
    path.write_text(yaml.safe_dump(AUTORUBRIC))
    assert list(formats.read(path)) == formats.from_record("autorubric", AUTORUBRIC)
    path = tmp_path / "rubric.toml"
    path.write_text('[[criteria]]\nname = "red"\ntext = "The bus is red"\nchoices = ["no", "yes"]\n')
    (rubric,) = formats.read(path)
    assert formats.detect(path) == "verifiers" and rubric.criterion("red").scale == "binary"
    path = jsonl(tmp_path / "rows.json", [HEALTHBENCH, HEALTHBENCH])  # a record per line under the wrong suffix
    assert len(list(formats.read(path))) == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.jsonl", '\n\n{"a"', r"r\.jsonl:3: not valid JSON"),
        ("r.jsonl", '{"a": 1, "a": 2}', r"r\.jsonl:1: .*key a is given twice"),
        ("r.jsonl", "", "holds no rubric"),
        ("r.json", "{", r"r\.json: not valid JSON"),
        ("r.yaml", "a: [", r"r\.yaml: not valid YAML"),
        ("r.toml", "a = ", r"r\.toml: not valid TOML"),
        ("r.csv", "a", "unknown file type '.csv'; known: .jsonl, .json"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        list(formats.read(path, "healthbench"))
    with pytest.raises(InputError, match=message.replace("holds no rubric", "holds no record")):
        formats.detect(path)


def test_bytes_that_are_no_utf8_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(HEALTHBENCH).encode() + b'\n{"a": "\xff"}\n')
    stream = formats.read(path)
    assert next(stream).criteria and formats.detect(path) == "healthbench"
    with pytest.raises(InputError, match=r"r\.jsonl:2: is not UTF-8 text"):
        next(stream)
    with pytest.raises(InputError, match=r"absent\.jsonl: cannot be read: No such file"):
        formats.detect(tmp_path / "absent.jsonl")


def test_an_error_names_line_record_criterion_and_field(tmp_path: Path) -> None:
    bad = {**HEALTHBENCH, "prompt_id": "p3", "rubrics": [{"criterion": "A", "points": 0, "id": "mark"}]}
    path = jsonl(tmp_path / "r.jsonl", [HEALTHBENCH, HEALTHBENCH, bad])
    stream = formats.read(path)
    assert next(stream) == next(stream)
    with pytest.raises(InputError) as error:
        next(stream)
    assert str(error.value).startswith(f"{path}:3: record 'p3': criterion 'mark' (rubrics[0]): field 'points': ")
    path.with_suffix(".json").write_text(json.dumps([HEALTHBENCH, bad]))
    with pytest.raises(InputError, match=r"r\.json: record 2: record 'p3': criterion 'mark'"):
        list(formats.read(path.with_suffix(".json")))


def test_rows_left_out_are_counted(tmp_path: Path) -> None:
    row = dict(IMPORT_ONLY)["auto_rubric"]
    rows = [{**row, "rubric_valid": valid} for valid in ("True", "False", "", "False")]
    path = jsonl(tmp_path / "r.jsonl", [*rows, {**row, "rubrics": None}])
    counts: Counter[str] = Counter()
    with pytest.warns(UserWarning) as caught:
        assert len(list(formats.read(path, counts=counts))) == 1
    assert counts == {"rubric_valid is not True": 3, "no rubric: rubrics is absent": 1}
    # the first of each kind with its line, then one sum
    assert [str(w.message).removeprefix(str(path)).partition(" ")[0] for w in caught] == [":2:", ":5:", ":"]
    assert "3 times: rubric_valid is not True" in str(caught[-1].message)
    with (
        pytest.warns(UserWarning),
        pytest.raises(InputError, match="holds no rubric of format auto_rubric; 1 times: rubric_valid"),
    ):
        list(formats.read(jsonl(tmp_path / "none.jsonl", rows[1:2])))


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("format", formats.names(export=True))
def test_written_files_are_read_again(tmp_path: Path, format: str, suffix: str) -> None:
    rubrics = [
        Rubric(prompt=f"p{k}", criteria=(Criterion(id="a", text=f"text {k}", weight=k + 0.5),)) for k in range(3)
    ]
    path = tmp_path / f"r{suffix}"
    for many in (rubrics, rubrics[:1]):
        assert formats.write(iter(many), path, format) == formats.Written(len(many), {})
        assert [r.hash for r in formats.read(path, format)] == [r.hash for r in many]
        assert [r.hash for r in formats.read(path)] == [r.hash for r in many]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_yaml_is_written_for_one_rubric(tmp_path: Path) -> None:
    (rubric,) = formats.from_record("autorubric", AUTORUBRIC)
    path = tmp_path / "r.yaml"
    formats.write([rubric], path, "autorubric")
    assert yaml.safe_load(path.read_text()) == AUTORUBRIC
    with pytest.raises(InputError, match=r"a YAML file holds one rubric; write several to \.jsonl"):
        formats.write([rubric, rubric], path, "autorubric")
    assert yaml.safe_load(path.read_text()) == AUTORUBRIC


def test_losses_of_a_file_are_refused_or_counted(tmp_path: Path) -> None:
    hard = Criterion(id="bus", text="A bus is visible", hard=True)
    rubrics = [Rubric(prompt="p", criteria=(hard, Criterion(id="b", text=str(k)))) for k in range(3)]
    path = tmp_path / "r.jsonl"
    path.write_text("old")
    with pytest.raises(InputError, match=r"r\.jsonl: rubric 1: .*healthbench.* criterion 'bus': field 'hard'.*lossy"):
        formats.write(rubrics, path, "healthbench")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with pytest.warns(UserWarning, match="rubric 1: criterion 'bus': field 'hard' is left out") as caught:
        done = formats.write(rubrics, path, "healthbench", lossy=True)
    assert done == formats.Written(3, {"hard": 3}) and len(caught) == 1


def test_what_cannot_be_written(tmp_path: Path) -> None:
    rubric = Rubric(prompt="p", criteria=(Criterion(id="a", text="t"),))
    for name, format, rubrics, message in [
        ("r.parquet", "verl", [rubric], "cannot write file type '.parquet'; known: .jsonl"),
        ("r.jsonl", "verl", [], "there is no rubric to write"),
        ("r.jsonl", "vertex", [rubric], "import-only"),
        ("r.jsonl", "unheard", [rubric], "known: advancedif"),
    ]:
        with pytest.raises(InputError, match=message):
            formats.write(rubrics, tmp_path / name, format)
    assert not list(tmp_path.iterdir())


def test_one_file_is_converted_to_another_as_a_stream(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", [PRBENCH, PRBENCH])
    formats.write(formats.read(source), tmp_path / "b.jsonl", "healthbench")
    formats.write(formats.read(tmp_path / "b.jsonl"), tmp_path / "c.jsonl", "rar")
    first, last = (next(formats.read(tmp_path / name)) for name in ("a.jsonl", "c.jsonl"))
    assert last.prompt == first.prompt
    assert [(c.id, c.text, c.weight, c.category) for c in last.criteria] == [
        (c.id, c.text, c.weight, c.category) for c in first.criteria
    ]


def test_the_first_rubric_comes_before_the_file_is_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "r.jsonl", [HEALTHBENCH] * 5)
    with open(path, "a") as file:
        file.write("broken\n")
    stream = formats.read(path)
    assert next(stream).prompt.startswith("user: Draw")


@pytest.mark.slow
def test_a_hundred_thousand_rows_need_little_memory(tmp_path: Path) -> None:
    path, copied = tmp_path / "r.jsonl", tmp_path / "copy.jsonl"
    row = {**HEALTHBENCH, "rubrics": HEALTHBENCH["rubrics"][:1]}
    with open(path, "w") as file:
        for number in range(100_000):
            file.write(json.dumps({**row, "prompt_id": f"p{number}"}) + "\n")
    size = path.stat().st_size
    # Tracing slows reading down, so the peak is taken over 2 % of the rows: a reader that takes the file whole
    # needs more than its 30 MB for the first row, and one that keeps what it has read more than 2 MB for 2,000.
    tracemalloc.start()
    try:
        stream = formats.read(path)
        first = next(stream)
        done = formats.write(islice(stream, 2_000), copied, "healthbench")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert first.provenance.extra["healthbench"] and done.rubrics == 2_000
    assert size > 30_000_000 and peak < 1_500_000


def test_importing_formats_imports_neither_pyarrow_nor_tomllib() -> None:
    code = "import sys, mmrubric.formats; print(*sorted({'pyarrow', 'tomllib', 'pandas', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == ""


def test_parquet_needs_pyarrow_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"r\.parquet: reading parquet needs pyarrow; pip install pyarrow"):
        formats.detect(tmp_path / "r.parquet")


def test_parquet_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "r.parquet"
    rows = [PRBENCH, {**PRBENCH, "task": "t2", "rubric": None}, {**PRBENCH, "task": "t3"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1)
    with pytest.warns(UserWarning, match=r"r\.parquet: row 2: field 'rubric' is null"):
        found = list(formats.read(path))
    # columns that a row does not have are null there
    assert [c.weight for c in found[0].criteria] == [9, -6] and len(found) == 2
    assert found[0].criteria[0].id == "c1" and found[0].prompt == found[1].prompt
    bad = {**PRBENCH, "rubric": [{**PRBENCH["rubric"][0], "annotations": {"weight_class": "important"}}]}
    parquet.write_table(pyarrow.Table.from_pylist([PRBENCH, bad]), path)
    with pytest.raises(InputError, match=r"r\.parquet: row 2: criterion 'c1' \(rubric\[0\]\): field 'annotations"):
        list(formats.read(path))
    path.write_bytes(b"no parquet at all")
    with pytest.raises(InputError, match=r"r\.parquet: not valid parquet"):
        formats.detect(path)
