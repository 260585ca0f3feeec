"""From the shipped generator to a report, in a few minutes: evaluate, align by RPO, evaluate again, write.

The number of steps is fixed. Before and after share prompts, seeds, sampler and guidance; the weights after
the last step are the ones evaluated, never a choice on the held-out prompts.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import judges
from mmrubric.config import load_config
from mmrubric.errors import InputError, RunError
from mmrubric.judging import Judge, JudgeRequest
from mmrubric.report import (
    AlignmentReport,
    CurvePoint,
    Picture,
    PromptResult,
    Reliability,
    Written,
    attack_probes,
    compute,
    judge_fidelity,
    png_bytes,
    rubric_quality,
    run_probes,
    saturation_and_ties,
)
from mmrubric.report.reliability import Count
from mmrubric.report.wording import percent, points
from mmrubric.report.write import PICTURES, write_report
from mmrubric.verdict import Verdict
from trainers import parts
from trainers.config import TrainConfig
from trainers.evaluate import EvalItem, EvalResult
from trainers.judge_worker import refuse_same_judge
from trainers.loop import Trainer

logger = logging.getLogger(__name__)

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "shapes" / "quickstart.yaml"
ENOUGH = 300
"""Held-out prompts below which the report says that they are few."""
PROBED = 64
"""Pictures for the attack probes and the repeated judging."""
LABELLED = 200
"""Rendered scenes on which the judge is compared with ground truth."""


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
        refuse_same_judge(judge.id, eval_judge.id, config.eval.allow_same_judge)
        reader = _second(config, second_reader, eval_judge)
        made = parts.build(config, judge=judge, eval_judge=eval_judge)
    with Trainer(config, made) as trainer, _progress(console) as progress:
        shown = f"{len(made.heldout or ())} held-out prompts"
        with clock.phase("evaluate before"), _task(progress, "evaluating before", shown):
            before = trainer.evaluate(keep_images=True)
        with clock.phase("train"):
            curve, ties, flat = _train(trainer, progress)
        with clock.phase("evaluate after"), _task(progress, "evaluating after", shown):
            after = trainer.evaluate(keep_images=True)
        with clock.phase("save"):
            trainer.save()
            if config.run.final_model:
                trainer.export()
        with clock.phase("second reader and probes"), _task(progress, "checking the judge"):
            report = _report(trainer, before, after, eval_judge, reader, curve, ties, flat, clock)
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
def _task(progress: Progress, description: str, note: str = "") -> Iterator[None]:
    """A phase whose length is not known beforehand."""
    task = progress.add_task(description, total=None, note=note)
    yield
    progress.update(task, total=1, completed=1)


def _train(trainer: Trainer, progress: Progress) -> tuple[list[CurvePoint], list[float], list[float]]:
    """The fixed number of steps; the reward curve, and the shares of ties and of groups without signal."""
    steps = trainer.config.run.steps
    task = progress.add_task("training", total=steps, note="")
    curve: list[CurvePoint] = []
    ties: list[float] = []
    flat: list[float] = []
    while trainer.done < steps and not trainer.stopped:
        metrics = trainer.step()
        reward, strict = metrics["reward/mean"], metrics["reward/strict_completion"]
        curve.append(CurvePoint(trainer.done, _known(reward), _known(strict)))
        ties.append(metrics.get("judge/tie_share", metrics["group/tie_share"]))
        flat.append(metrics["group/zero_std_share"])
        left = (steps - trainer.done) * metrics["time/step"]
        note = (
            f"{trainer.done}/{steps}, reward {reward:.2f}, all met {strict:.0%}, "
            f"{metrics['time/images_per_second']:.0f} images/s, {left:.0f} s left"
        )
        progress.update(task, completed=trainer.done, note=note)
    if trainer.stopped:
        logger.warning("training stopped at step %d of %d: %s", trainer.done, steps, trainer.stopped)
    return curve, ties, flat


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


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


def _report(
    trainer: Trainer,
    before: EvalResult,
    after: EvalResult,
    eval_judge: Judge,
    reader: Judge | None,
    curve: list[CurvePoint],
    ties: list[float],
    flat: list[float],
    clock: _Clock,
) -> AlignmentReport:
    config = trainer.config
    second = {side: _read(reader, result) for side, result in (("before", before), ("after", after))}
    results = [
        PromptResult(
            prompt.id,
            prompt.text,
            before.rubrics[row],
            _pictures(before, row, second["before"], row < PICTURES),
            _pictures(after, row, second["after"], row < PICTURES),
        )
        for row, prompt in enumerate(before.prompts)
    ]
    same = config.eval.allow_same_judge and trainer.worker.judge.id == eval_judge.id
    notes = []
    if trainer.stopped:
        notes.append(f"Training stopped at step {trainer.done} of {config.run.steps}: {trainer.stopped}.")
    if len(results) < ENOUGH:
        notes.append(f"Only {len(results)} prompts were evaluated; the intervals are wide.")
    report = AlignmentReport(
        title=config.run.name,
        results=results,
        settings=_settings(trainer),
        seconds=time.perf_counter() - clock.began,
        judged_images=trainer.done * config.data.prompts_per_step * config.rollout.drawn,
        judge=eval_judge.id,
        reliability=Reliability(),
        train_judge=trainer.worker.judge.id,
        second_reader=reader.id if reader is not None else None,
        allow_same_judge=same,
        curve=curve,
        method=_method(config),
        notes=notes,
        timings=clock.phases,
    )
    numbers = compute(report, resamples=100)
    probed = after.items[:PROBED]
    rubrics = [after.rubrics[item.row] for item in probed]
    images = [item.image for item in probed if item.image is not None]
    steps = f"mean of {len(ties)} steps"
    reliability = Reliability(
        rubric_quality(results),
        judge_fidelity(
            results,
            numbers,
            repeats=_repeats(eval_judge, after, probed),
            labels=_labels(eval_judge) if (config.eval.judge or config.judge).name == "shapes" else None,
            order=Count(0, 0, "does not apply: each picture is judged alone, so there is no order"),
            same_judge=same,
        ),
        saturation_and_ties(
            numbers, tie_share=_known(_mean(ties)), zero_variance_share=_known(_mean(flat)), note=steps
        ),
        attack_probes(run_probes(eval_judge, rubrics, images)),
    )
    return AlignmentReport(**{**_fields(report), "reliability": reliability})


def _fields(report: AlignmentReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__dataclass_fields__}


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else float("nan")


def _read(reader: Judge | None, result: EvalResult) -> dict[tuple[int, int], list[Verdict]]:
    """The second reader's verdicts by (prompt row, sample)."""
    if reader is None:
        return {}
    answers = reader.score_sync([_request(result, item) for item in result.items])
    return {(item.row, item.sample): verdicts for item, verdicts in zip(result.items, answers, strict=True)}


def _request(result: EvalResult, item: EvalItem) -> JudgeRequest:
    if item.image is None:
        raise RunError(f"the evaluation kept no picture of {item.sample_id}; evaluate with keep_images=True")
    sources = result.prompts[item.row].sources
    source = sources[0] if sources else None
    return JudgeRequest(
        rubric=result.rubrics[item.row], candidate=item.image, source=source, sample_id=item.sample_id
    )


def _pictures(
    result: EvalResult, row: int, second: dict[tuple[int, int], list[Verdict]], show: bool
) -> list[Picture]:
    """The pictures of a prompt; only the first one of a shown prompt travels into the page."""
    return [
        Picture(
            item.sample_id,
            item.verdicts,
            second.get((row, item.sample), []),
            png_bytes(item.image) if show and item.sample == 0 and item.image is not None else None,
        )
        for item in result.items
        if item.row == row
    ]


def _repeats(judge: Judge, result: EvalResult, items: Sequence[EvalItem]) -> Count:
    """Verdicts that come out the same when the same pictures are judged again."""
    again = judge.score_sync([_request(result, item) for item in items])
    same = total = 0
    for item, verdicts in zip(items, again, strict=True):
        new = {v.criterion_id: v.met for v in verdicts}
        total += len(item.verdicts)
        same += sum(new.get(v.criterion_id) == v.met for v in item.verdicts)
    return Count(same, total, f"on {len(items)} pictures judged twice")


def _labels(judge: Judge) -> Count:
    """Verdicts that equal ground truth on rendered scenes; every second scene has one attribute changed."""
    from mmrubric import generators
    from mmrubric.shapes import draw_specs, holds, near_miss, render, scene_for, seen_of
    from mmrubric.shapes.sampling import changes_of

    rng = np.random.default_rng(0)
    generator = generators.build("shapes")
    requests, truth = [], []
    for k, spec in enumerate(draw_specs("heldout", LABELLED, seed=0)):
        wrong = k % 2 == 1
        scene = near_miss(spec, str(rng.choice(changes_of(spec))), rng) if wrong else scene_for(spec, rng)
        rubric = generator.generate_sync(spec.text)
        requests.append(JudgeRequest(rubric=rubric, candidate=render(scene), sample_id=f"scene-{k}"))
        truth.append({c.id: holds(c.arguments, seen_of(scene)) for c in rubric.criteria})
    right = total = 0
    for known, verdicts in zip(truth, judge.score_sync(requests), strict=True):
        total += len(known)
        right += sum(known[v.criterion_id] == (None if v.met is None else v.met >= 0.5) for v in verdicts)
    return Count(right, total, f"on {LABELLED} rendered scenes, half of them with one attribute changed")


def _method(config: TrainConfig) -> str:
    how = {
        "rpo": "RPO: checklists turn pairs of pictures into binary preferences",
        "grpo": "GRPO on checklist rewards",
    }
    losses = {"nft": "DiffusionNFT", "clip": "clipped policy-gradient", "guard": "GRPO-Guard"}
    name = how.get(config.advantage.name, config.advantage.name)
    loss = losses.get(config.loss.name, config.loss.name)
    return f"{name}, which train the generator through the {loss} loss for {config.run.steps} steps."


def _settings(trainer: Trainer) -> dict[str, Any]:
    """The configuration, the sampler that evaluated, and what it ran on; no names of hosts or people."""
    config = trainer.config
    sampler = config.eval.sampler or trainer.policy.deployed
    return {
        **config.model_dump(mode="json"),
        "evaluation sampler": sampler.model_dump(mode="json"),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": str(trainer.accelerator.device),
            "threads": torch.get_num_threads(),
        },
    }
