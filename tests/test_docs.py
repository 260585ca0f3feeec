"""The documents tell the truth: named tests and files exist, the list of failures is complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mmrubric import generators

ROOT = Path(__file__).resolve().parent.parent
KNOWN_FAILURES = ROOT / "docs" / "known_failures.md"
ROW = re.compile(r"^\| ([TJ]F\d\d) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED_FILE = re.compile(r"\b((?:configs|docs|scripts|tests|pipelines|trainers|judges)/[\w./-]+\.\w+)")
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
]


def rows() -> list[tuple[str, str]]:
    """(id, guard) of each row of the list of known failures."""
    return [(m[1], m[3]) for m in ROW.finditer(KNOWN_FAILURES.read_text(encoding="utf-8"))]


def defined_tests(path: Path) -> set[str]:
    """Names of the module-level test functions of a file, read without importing it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_known_failure_is_listed_once():
    # field/trainers.md and field/judging.md, each in section 7, number their rows 01 to 61
    assert [name for name, _ in rows()] == [f"{kind}{n:02d}" for kind in ("TF", "JF") for n in range(1, 62)]


@pytest.mark.parametrize(("name", "guard"), rows(), ids=[name for name, _ in rows()])
def test_the_guard_of_a_known_failure_exists(name: str, guard: str):
    if guard.startswith("later: "):
        assert re.search(r"issues? \d", guard), f"{name}: name the issue that brings the guard"
        return
    match = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", guard)
    assert match, f"{name}: expected `tests/<package>/test_x.py::test_name` or 'later: ...', got {guard}"
    path = ROOT / match[1]
    assert path.is_file(), f"{name}: {match[1]} does not exist"
    assert match[2] in defined_tests(path), f"{name}: {match[1]} has no test {match[2]}"
    assert name.lower() in match[2], f"{name}: the test's name carries the row's id"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_named_in_documents_exist(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(NAMED_FILE.findall(text))
    named |= set(re.findall(r"\]\((?!https?://|#)([^)#]+)", text))
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, f"{document} names files that do not exist: {missing}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_are_finished(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert "{{FILL:" not in text, f"{document} has an open placeholder"


@pytest.mark.slow
def test_the_python_of_the_readme_runs():
    (code,) = re.findall(r"```python\n(.+?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_constraints_name_no_host_and_no_folder():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    wrong = [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert not wrong, f"only name==version belongs here: {wrong}"


def test_every_generator_is_in_the_table():
    table = (ROOT / "docs" / "generators.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == generators.names()
