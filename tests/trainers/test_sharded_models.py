"""Each architecture on two ranks that hold its weights in shards (FSDP2, ZeRO-3): samples, gradients and a step of
one rank."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.pipelines.cases import CASES
from tests.trainers.ranks import SCRIPT, finish, launch, needs_deepspeed

MODELS = [name for name in CASES if name != "sd3"]
"""`test_sharding` trains sd3."""


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with what `sharded.compare` found, `<model>/gap-<how>-<rank>.json`. One launch: imports take long."""
    directory = tmp_path_factory.mktemp("models")
    built = [str(CASES[name].build(directory / name)) for name in MODELS]
    ways = ["fsdp2", "zero3"] if importlib.util.find_spec("deepspeed") else ["fsdp2"]
    finish(launch(2, str(SCRIPT), *(f"{how}:{model}" for how in ways for model in built)))
    return directory


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("how", ["fsdp2", pytest.param("zero3", marks=needs_deepspeed)])
@pytest.mark.parametrize("model", MODELS)
def test_other_models_in_shards_equal_the_whole(model: str, how: str, gaps: Path) -> None:
    # measured: samples 5e-7, gradients 5e-6, weights 3e-8, either way
    # of models that read sources, rank 1 has sources of two shapes and calls its module twice, rank 0 once
    for rank in range(2):
        gap = json.loads((gaps / model / f"gap-{how}-{rank}.json").read_text())
        print(model, how, gap)
        assert gap["samples"] <= 1e-5
        # gradients add up in another order; in bf16 (sd15) that is worth 2^-8 a time: 0.015 measured, and 0.04 on one
        # process from another scale of the loss
        assert gap["gradients"] <= (0.05 if model == "sd15" else 1e-5)
        # of a fresh adapter (sd15) one half has no gradient yet
        assert gap["share_with_gradient"] > (0.4 if model == "sd15" else 0.8)
        assert gap["weights"] <= (1e-3 if model == "sd15" else 1e-6)
        assert gap["samples_after"] <= 1e-5 and gap["moved"] > 0.01
