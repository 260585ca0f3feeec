"""Reading files: lines, gzip, CSV, JSON, and what is said about broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import InputError
from mmrubric.benchmarks import files


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_plain_and_gzip_read_alike(tmp_path: Path) -> None:
    text = '﻿{"a": 1}\r\n\n{"a": "x\u2028y"}'
    packed = tmp_path / "f.jsonl.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (write(tmp_path / "f.jsonl", text), packed):
        # A blank line counts, a line separator inside a text does not.
        assert list(files.jsonl(path)) == [
            files.Row(f"{path}:1", {"a": 1}),
            files.Row(f"{path}:3", {"a": "x\u2028y"}),
        ]


def test_reading_is_lazy(tmp_path: Path) -> None:
    rows = files.jsonl(write(tmp_path / "f.jsonl", '{"a": 1}\n{broken\n'))
    assert next(rows).data == {"a": 1}
    with pytest.raises(InputError, match=r"f\.jsonl:2: not valid JSON"):
        next(rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', r"f:1: not valid JSON: key a is given twice"),
        ('{"a": NaN}', r"f:1: not valid JSON: NaN is no JSON number"),
        ("[" * 100_000, r"f:1: not valid JSON"),
    ],
)
def test_broken_json_lines(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(files.jsonl(write(tmp_path / "f", text)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is not UTF-8 text"),
        (None, "cannot be read: No such file or directory; check the path"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        files.whole(path)


@pytest.mark.parametrize(
    "content",
    [b"not packed", gzip.compress(b"x" * 99)[:-9], gzip.compress(b"x")[:10] + b"\7\7"],
    # A packed file holds the time, and all workers of a test run must know a test by one name.
    ids=["not packed", "cut off", "broken"],
)
def test_broken_gzip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"f\.gz: cannot be read: .*download the file again"):
        files.whole(path)


def test_csv_rows_are_named_by_their_first_line(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", 'a,b\r\n1,"x\r\ny"\r\n\r\n2,""\r\n')
    assert list(files.csv_rows(path)) == [
        files.Row(f"{path}:2", {"a": "1", "b": "x\r\ny"}),
        files.Row(f"{path}:5", {"a": "2", "b": ""}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", r"f:1: column b is missing; the header has: a, c"),
        ("", r"f:1: column a, b is missing"),
        ("a,b,a\n", r"f:1: a column is given twice"),
        ("a,b\n1\n", r"f:2: 1 fields, the header has 2"),
        ('a,b\n1,2\n3,"4\n', r"f:3: not valid CSV: .*check the quotes"),
    ],
)
def test_broken_csv(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(files.csv_rows(write(tmp_path / "f", text), required=("a", "b")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', r"f: expected a JSON list"),
        ("", r"f: expected a JSON list"),
        ("[", r"f:1: not valid JSON"),
        ("[1,\n2", r"f:2: after the record that begins here.*cut off"),
        ("[1,\n\n{2}]", r"f:3: not valid JSON"),
        ("[1,]", r"f:1: not valid JSON"),
    ],
)
def test_broken_json_lists(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(files.json_list(write(tmp_path / "f", text)))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(values, max_size=5), st.sampled_from([None, 0, 2]))
def test_a_json_list_reads_as_json_does(tmp_path_factory: pytest.TempPathFactory, data: list[Any], indent: Any) -> None:
    path = write(tmp_path_factory.mktemp("json") / "f.json", json.dumps(data, indent=indent) + "\n")
    assert [row.data for row in files.json_list(path)] == data


def test_lines_of_a_json_list(tmp_path: Path) -> None:
    path = write(tmp_path / "f", '[\n {"a":\n 1},\n {"a": 2}]')
    assert [row.where for row in files.json_list(path)] == [f"{path}:2", f"{path}:4"]


def test_recode_keeps_the_original_where_it_can() -> None:
    original = '{"a":  "\\u00e9"}'
    assert files.recode({"a": "é"}, original) == original
    assert files.recode({"a": "e"}, original) == '{"a": "e"}'
