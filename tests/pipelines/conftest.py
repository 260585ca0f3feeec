"""Tiny pipeline directories, written once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmrubric import Prompt
from pipelines import load_policy
from pipelines.diffusion import FlowPolicy
from pipelines.testing import PROMPTS, tiny_sd3_directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_sd3_directory(tmp_path_factory.mktemp("tiny") / "sd3", shift=3.0)


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_sd3_directory(tmp_path_factory.mktemp("tiny") / "sd3-t5", t5=True)


@pytest.fixture(scope="session")
def policy(tiny: Path) -> FlowPolicy:
    """Shared by tests that leave its weights alone."""
    return load_policy(tiny, device="cpu")


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    return [Prompt(id=f"p{i}", text=text) for i, text in enumerate(PROMPTS)]


@pytest.fixture(autouse=True)
def global_generator_untouched():
    """Nothing in the pipelines draws from torch's global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())
