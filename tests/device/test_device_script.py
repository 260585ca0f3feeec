"""The device script on the CPU with small models: every part of it runs and says what it should."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from tests.device import check
from tests.device.models import build, sampler_of


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    assert check.main(["--tiny", "--out", str(folder)]) == 0
    return folder


def test_every_part_is_measured(written: Path) -> None:
    result = json.loads((written / "device.json").read_text())
    assert list(result["models"]) == ["sd3.5-medium", "flux.1-dev"] and result["tiny"]
    for name, model in result["models"].items():
        assert model["first_pass"]["absdiff_max"] <= 1e-6
        assert model["update"]["moved"] > 0 and model["update"]["updates"] == 1
        # bf16 keeps 8 bits: arithmetic in it cannot equal float32
        assert 0 < model["bf16_against_fp32"]["absdiff_max"] < 0.1
        assert set(model["attention"]) == {*check.KERNELS, "xformers"}
        assert model["attention"]["math"]["forward_ms"] > 0
        assert "no time for" not in model and model["blocks"] == {"sd3.5-medium": 2, "flux.1-dev": 3}[name]


def test_the_table_has_a_row_per_model_and_kernel(written: Path) -> None:
    lines = (written / "device.md").read_text().splitlines()
    assert sum(line.startswith(("| sd3.5-medium |", "| flux.1-dev |")) for line in lines) == 2
    assert sum("| flux.1-dev |" in line for line in lines) == 1 + len(check.KERNELS) + 1
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {10, 6}


def test_a_gpu_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert check.main(["--out", str(tmp_path)]) == 2 and "no GPU here" in capsys.readouterr().err


def test_no_time_and_a_model_that_does_not_fit_are_said() -> None:
    clock = check.Clock(limit=0.0)
    assert not clock.allows(1)
    models = {"a": {"out of memory": "everywhere"}, "b": {"no time for": "all of it"}}
    text = check.table({"device": "d", "torch": "t", "diffusers": "f", "seconds": 1.0, "tiny": True, "models": models})
    assert "| a | out of memory: everywhere |" in text and "| b | no time for: all of it |" in text


def test_fewer_blocks_where_asked() -> None:
    _, half = build("flux.1-dev", torch.device("cpu"), tiny=True, share=0.5)
    assert half["blocks"] == 2
    assert sampler_of("flux.1-dev", False).steps == 8


def test_the_shell_script_parses() -> None:
    subprocess.run(["bash", "-n", str(Path(check.__file__).with_name("run.sh"))], check=True)
