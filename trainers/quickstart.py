"""From the shipped generator to a report, in a few minutes: evaluate, align by RPO, evaluate again, write.

The number of steps is fixed. Before and after share prompts, seeds, sampler and guidance; the weights after
the last step are the ones evaluated, never a choice on the held-out prompts.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import judges
from mmrubric.config import load_config
from mmrubric.errors import InputError
from mmrubric.judging import Judge
from mmrubric.report import Written, write_report
from mmrubric.report.wording import percent, points
from trainers import parts
from trainers.config import TrainConfig
from trainers.judge_worker import refuse_same_judge
from trainers.loop import Trainer
from trainers.run_report import Training, build_report

logger = logging.getLogger(__name__)

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "shapes" / "quickstart.yaml"


@dataclass(frozen=True)
class Result:
    """A finished quickstart."""

    directory: Path
    written: Written

    @property
    def line(self) -> str:
        """The result in one line."""
        numbers, seconds = self.written.numbers, self.written.data["seconds"]
        judge = numbers.judge
        strict, difference = judge.strict_completion, judge.strict_difference
        return (
            f"Everything right in {percent(strict[0])} of pictures before, {percent(strict[1])} after "
            f"({points(difference.mid)} points, 95 % interval {points(difference.low)} to "
            f"{points(difference.high)}); criteria met {percent(judge.mean_pass_rate[0])} before, "
            f"{percent(judge.mean_pass_rate[1])} after; "
            f"{numbers.prompts} held-out prompts, {seconds:.0f} s."
        )


@dataclass
class _Clock:
    """Seconds per phase."""

    began: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to `name`."""
        began = time.perf_counter()
        yield
        self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - began


def read_config(path: str | Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """The settings of a quickstart; a run directory that is in use gets a number behind its name.

    Raises:
        InputError: settings that a quickstart cannot have.
    """
    config = load_config(TrainConfig, path or CONFIG, list(overrides))
    if config.run.resume is not None:
        raise InputError(
            "run.resume: a quickstart compares with its own start, so it always starts anew; "
            "continue a run with `accelerate launch -m trainers.train --config ... run.resume=auto`"
        )
    if config.run.processes != 1:
        raise InputError(f"run.processes={config.run.processes}: a quickstart runs in one process")
    if config.run.steps < 1:
        raise InputError("run.steps: a quickstart needs at least 1 training step")
    run = config.run.model_copy(update={"name": _free_name(config)})
    tracking = config.tracking.model_copy(update={"progress": False})  # one bar, and it is drawn here
    return config.model_copy(update={"run": run, "tracking": tracking})


def _free_name(config: TrainConfig) -> str:
    name, number = config.run.name, 1
    while (directory := Path(config.run.output_dir) / name).is_dir() and any(directory.iterdir()):
        number += 1
        name = f"{config.run.name}-{number}"
    return name


def run(
    config: TrainConfig | str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    second_reader: str | None = "auto",
    console: Console | None = None,
) -> Result:
    """Evaluate, train, evaluate again and write `report.html` and `report.json` into the run's directory.

    Args:
        config: settings, a YAML file, or None for configs/shapes/quickstart.yaml.
        overrides: `section.key=value`, with a file.
        second_reader: name of a judge that reads the evaluated pictures as well; "auto" takes the second
            reader of the shapes world where that world's judge is used, None takes none.
        console: where progress goes; default standard error.

    Raises:
        InputError: bad settings, before weights load.
        RunError: the judge failed too often.
    """
    if not isinstance(config, TrainConfig):
        config = read_config(config, overrides)
    elif overrides:
        raise InputError("overrides belong to a configuration file; change the TrainConfig instead")
    console = console or Console(stderr=True)
    clock = _Clock()
    with clock.phase("load"):
        judge = parts.make_judge(config.judge)
        eval_judge = parts.make_judge(config.eval.judge) if config.eval.judge is not None else judge
        refuse_same_judge(judge, eval_judge, config.eval.allow_same_judge)
        reader = _second(config, second_reader, eval_judge)
        made = parts.build(config, judge=judge, eval_judge=eval_judge)
    with Trainer(config, made) as trainer, _progress(console) as progress:
        shown = f"{len(made.heldout or ())} held-out prompts"
        with clock.phase("evaluate before"), _task(progress, "evaluating before", shown) as advance:
            before = trainer.evaluate(keep_images=True, progress=advance)
        with clock.phase("train"):
            training = _train(trainer, progress)
        with clock.phase("evaluate after"), _task(progress, "evaluating after", shown) as advance:
            after = trainer.evaluate(keep_images=True, progress=advance)
        with clock.phase("save"):
            trainer.save()
            if config.run.final_model:
                trainer.export()
        with clock.phase("second reader and probes"), _task(progress, "checking the judge"):
            report = build_report(
                trainer,
                before,
                after,
                judge=eval_judge,
                reader=reader,
                training=training,
                seconds=time.perf_counter() - clock.began,
                timings=clock.phases,
            )
    written = write_report(report, trainer.directory, began=clock.began)
    return Result(trainer.directory, written)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable="CI" in os.environ) as progress:
        yield progress


@contextmanager
def _task(progress: Progress, description: str, note: str = "") -> Iterator[Callable[[int, int], None]]:
    """A phase; it pulses until its (done, in all) is told."""
    task = progress.add_task(description, total=None, note=note)
    yield lambda done, total: progress.update(task, completed=done, total=total)
    progress.update(task, total=1, completed=1)


def _train(trainer: Trainer, progress: Progress) -> Training:
    """The fixed number of steps, fewer only if a collapse guard stops the run."""
    steps = trainer.config.run.steps
    task = progress.add_task("training", total=steps, note="")
    training = Training()
    while trainer.done < steps and not trainer.stopped:
        metrics = trainer.step()
        training.add(trainer.done, metrics)
        left = (steps - trainer.done) * metrics["time/step"]
        # A judge that compares says nothing of single criteria, and its mean reward is always one half.
        told = f"ties {metrics.get('judge/tie_share', 0):.0%}"
        if not trainer.config.judge.compare:
            told = f"reward {metrics['reward/mean']:.2f}, all met {metrics['reward/strict_completion']:.0%}"
        note = f"{trainer.done}/{steps}, {told}, {metrics['time/images_per_second']:.0f} images/s, {left:.0f} s left"
        progress.update(task, completed=trainer.done, note=note)
    if trainer.stopped:
        logger.warning("training stopped at step %d of %d: %s", trainer.done, steps, trainer.stopped)
    return training


def _second(config: TrainConfig, name: str | None, eval_judge: Judge) -> Judge | None:
    if name == "auto":
        used = config.eval.judge or config.judge
        name = "shapes_second" if used.name == "shapes" else None
    if name is None:
        return None
    reader = judges.build(name)
    if reader.id == eval_judge.id:
        raise InputError(f"second reader: {name!r} is the evaluation judge itself; name another one, or none")
    return reader
