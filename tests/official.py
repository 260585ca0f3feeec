"""Official benchmark files, which lie beside the project and are not part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


def official(name: str) -> Path:
    """Path of a file in `../shared/data`; the test is skipped where the folder is absent."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no official data here: {path} is not there")
    return path
