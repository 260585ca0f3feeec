"""metrics.jsonl, picture grids and the trackers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator

from mmrubric.errors import InputError
from trainers.config import TrackingSection
from trainers.tracking import JsonLines, Tracking, grid


def test_lines_are_cut_back_to_a_checkpoint(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "deep" / "metrics.jsonl")
    lines.write({"step": 0, "loss": float("nan"), "best": np.float32(0.5), "many": (1, float("inf"))})
    kept = lines.position
    lines.write({"step": 1})
    lines.cut(kept)
    lines.write({"step": 1, "again": True})
    lines.close()
    rows = [json.loads(line) for line in lines.path.read_text().splitlines()]
    assert rows == [{"step": 0, "loss": None, "best": 0.5, "many": [1, None]}, {"step": 1, "again": True}]
    again = JsonLines(lines.path)
    assert again.position == lines.path.stat().st_size  # a file that is there is continued
    with pytest.raises(InputError, match="shorter than when the checkpoint was made"):
        again.cut(10_000)
    again.close()


def test_grid_is_as_square_as_it_gets() -> None:
    images = np.zeros((5, 4, 6, 3), np.uint8)
    images[4] = 100
    sheet = grid(images, gap=1)
    # 3 columns of 6 pixels and 2 rows of 4, one pixel between; the sixth place stays white
    assert sheet.shape == (2 * 4 + 1, 3 * 6 + 2, 3)
    assert (sheet[5:9, 7:13] == 100).all() and (sheet[5:9, 14:] == 255).all() and (sheet[4] == 255).all()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_trackers_get_numbers_and_pictures(name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    directory = tmp_path / "run"
    directory.mkdir()
    accelerator = Accelerator(log_with=[name], project_dir=str(directory))
    options = TrackingSection(trackers=(name,), progress=False, images_every=1)
    with Tracking(directory, options, accelerator, {"optim": {"lr": 1e-4}}, 2) as tracking:
        tracking.log(0, {"reward/mean": 0.5, "eval/sampler": "ode", "unknown": float("nan")})
        tracking.images(0, "rollout", np.zeros((2, 8, 8, 3), np.uint8), ["a", "b"])
    assert json.loads((directory / "metrics.jsonl").read_text())["unknown"] is None
    assert (directory / "images" / "rollout-000000.png").is_file()
    written = [path.name for path in directory.rglob("*") if path.is_file()]
    marks = {"tensorboard": "tfevents", "wandb": ".wandb"}
    assert any(marks[name] in file for file in written), written


def test_progress_shows_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracking(tmp_path, TrackingSection(), Accelerator(), {}, 2) as tracking:
        tracking.progress(2, reward=0.25, strict=0.5, images_per_second=3.0)
    shown = capsys.readouterr().err
    assert "2/2" in shown and "reward 0.250" in shown and "3.0 images/s" in shown
