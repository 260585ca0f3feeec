"""What importing the package costs, and the names that users import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mmrubric

HEAVY = {"torch", "transformers", "diffusers", "accelerate"}


def imported(code: str) -> set[str]:
    """Top-level names in sys.modules after `code` ran in a fresh interpreter."""
    code += "\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_mmrubric_never_imports_torch() -> None:
    modules = imported("import sys, mmrubric")
    assert "mmrubric" in modules and not (HEAVY | {"matplotlib", "openai", "typer"}) & modules


@pytest.mark.slow
def test_no_module_of_mmrubric_imports_torch() -> None:
    walk = (
        "import importlib, pkgutil, sys, mmrubric\n"
        "for module in pkgutil.walk_packages(mmrubric.__path__, 'mmrubric.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)"
    )
    assert not HEAVY & imported(walk)


def test_public_names() -> None:
    types = "Criterion Rubric Verdict Failure ScoreTable PairVerdict Group Prompt Task"
    rooms = "aggregate advantage generators preference"
    for name in f"{types} {rooms}".split():
        assert hasattr(mmrubric, name) and name in mmrubric.__all__
    for room in (mmrubric.aggregate, mmrubric.advantage, mmrubric.generators):
        assert room.names()
