"""Where the official files lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


@pytest.fixture(scope="session")
def official() -> Callable[[str], Path]:
    """Path of an official file; skips the test where it is absent."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"the shared benchmark data are not here: {name}")
        return DATA / name

    return find
