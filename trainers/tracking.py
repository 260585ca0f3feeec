"""Where a run's numbers and pictures go: metrics.jsonl always, other trackers if asked for, and a progress
bar."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from accelerate import Accelerator
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmrubric.errors import InputError
from trainers.checkpoint import flatten
from trainers.config import TrackingSection


class JsonLines:
    """An append-only file of JSON objects, one a line, that can be cut back to an earlier position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; NaN and infinity become null, because JSON has neither."""
        self._file.write(json.dumps(_plain(row), allow_nan=False).encode() + b"\n")
        self._file.flush()

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def cut(self, position: int) -> None:
        """Drop what was written after `position`: steps that a resumed run makes again."""
        if position > self.path.stat().st_size:
            raise InputError(f"{self.path}: shorter than when the checkpoint was made ({position} bytes)")
        self._file.truncate(position)
        self._file.seek(position)

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Tracking:
    """Rank 0 writes; the other ranks call the same methods to no effect.

    Args:
        directory: of the run.
        options: section of the configuration.
        accelerator: starts wandb and tensorboard.
        config: shown by the trackers.
        total: steps of the run, for the bar.
    """

    def __init__(
        self,
        directory: Path,
        options: TrackingSection,
        accelerator: Accelerator,
        config: Mapping[str, Any],
        total: int,
    ) -> None:
        self.directory, self.options, self.accelerator = directory, options, accelerator
        self.main = accelerator.is_main_process
        self.metrics = JsonLines(directory / "metrics.jsonl") if self.main else None
        if options.trackers:
            flat = {key: str(value) for key, value in flatten(config).items()}
            # The same id after a resume: the run goes on instead of a new one beside it.
            names: dict[str, Any] = {}
            if self.main and "wandb" in options.trackers:
                run_id = _run_id(directory)
                names["wandb"] = {
                    "name": directory.name,
                    "dir": str(directory),
                    "id": run_id,
                    "resume": "allow",
                }
            accelerator.init_trackers(options.project, flat, names)
        self._bar: Progress | None = None
        self._task: Any = None
        if self.main and options.progress:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"), console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._bar.add_task("training", total=total, note="")
            self._bar.start()

    @property
    def position(self) -> int:
        """For the checkpoint."""
        return self.metrics.position if self.metrics else 0

    def cut(self, position: int) -> None:
        """Drop metrics of steps after the checkpoint."""
        if self.metrics:
            self.metrics.cut(position)

    def log(self, step: int, values: Mapping[str, float | str], kind: str = "train") -> None:
        """One row of metrics.jsonl, and the numbers to the trackers."""
        if self.metrics:
            self.metrics.write({"step": step, "kind": kind, **values})
        numbers = {k: v for k, v in values.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        if self.options.trackers:
            self.accelerator.log(numbers, step=step)

    def progress(self, step: int, *, reward: float, strict: float | None, images_per_second: float) -> None:
        """Move the bar to `step` finished steps."""
        if self._bar is not None:
            share = "" if strict is None else f"  strict completion {strict:.1%}"
            note = f"reward {reward:.3f}{share}  {images_per_second:.1f} images/s"
            self._bar.update(self._task, completed=step, note=note)

    def phase(self, name: str) -> Callable[[int, int], None] | None:
        """What to call with (done, total) to show a phase below the steps; None without a bar."""
        bar = self._bar
        if bar is None:
            return None
        task = bar.add_task(name, total=None, note="")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=done < total)

        return show

    def images(self, step: int, name: str, images: np.ndarray, captions: Sequence[str]) -> None:
        """Save a grid as `images/<name>-<step>.png`, and show the pictures in the trackers.

        Args:
            images: uint8 [n, H, W, 3].
            captions: [n].
        """
        if not self.main or len(images) == 0:
            return
        place = self.directory / "images"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grid(images)).save(place / f"{name}-{step:06d}.png")
        for tracker in self.accelerator.trackers:
            if tracker.name == "wandb":
                import wandb  # optional

                shown = [wandb.Image(image, caption=text) for image, text in zip(images, captions, strict=True)]
                tracker.log({name: shown}, step=step)
            elif tracker.name == "tensorboard":
                tracker.writer.add_images(name, images, step, dataformats="NHWC")

    def close(self) -> None:
        """End bar, trackers and file."""
        if self._bar is not None:
            self._bar.stop()
        if self.options.trackers:
            self.accelerator.end_training()
        if self.metrics:
            self.metrics.close()

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run_id(directory: Path) -> str:
    """Id of the run for its trackers, made once and kept in the run's directory."""
    place = directory / "tracker.json"
    if not place.is_file():
        place.write_text(json.dumps({"id": secrets.token_hex(8)}))
    return json.loads(place.read_text())["id"]


def grid(images: np.ndarray, gap: int = 2) -> np.ndarray:
    """Pictures [n, H, W, 3] in rows on white, as square as it gets: uint8 [h, w, 3]."""
    count, height, width, _ = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, np.uint8)
    for number, image in enumerate(images):
        y, x = divmod(number, columns)
        sheet[y * (height + gap) :, x * (width + gap) :][:height, :width] = image
    return sheet
