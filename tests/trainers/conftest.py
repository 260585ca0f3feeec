"""Shared by the tests of the loop: one tiny model directory for the whole session."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `StableDiffusion3Pipeline` directory with random weights: 16 x 16 pixels, 23 thousand weights."""
    from pipelines.testing import tiny_sd3_directory

    return tiny_sd3_directory(tmp_path_factory.mktemp("model") / "tiny")
