"""From a finished run to its report: both evaluations, the second reader, and how far to trust the judge."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from mmrubric.errors import RunError
from mmrubric.judging import Judge, JudgeRequest
from mmrubric.report import (
    AlignmentReport,
    Count,
    CurvePoint,
    Picture,
    PromptResult,
    Reliability,
    attack_probes,
    compute,
    judge_fidelity,
    png_bytes,
    rubric_quality,
    run_probes,
    saturation_and_ties,
)
from mmrubric.report.write import PICTURES
from mmrubric.verdict import Verdict
from trainers.config import TrainConfig
from trainers.evaluate import EvalItem, EvalResult
from trainers.loop import Trainer

ENOUGH = 300
"""Held-out prompts below which the report says that they are few."""
PROBED = 64
"""Pictures for the attack probes and the repeated judging."""
LABELLED = 200
"""Rendered scenes on which the judge is compared with ground truth."""


@dataclass
class Training:
    """What the steps of a run recorded, one entry per step; no curve where the judge compared."""

    curve: list[CurvePoint] = field(default_factory=list)
    ties: list[float] = field(default_factory=list)
    """Share of compared pairs that tied, in [0, 1]; NaN = none was compared."""
    flat: list[float] = field(default_factory=list)
    """Share of groups whose rewards were all equal."""

    def add(self, step: int, metrics: dict[str, float]) -> None:
        """Take the metrics of a finished step (1-based)."""
        # The mean share of won comparisons is one half whatever the pictures are.
        if (strict := metrics.get("reward/strict_completion")) is not None:
            self.curve.append(CurvePoint(step, known(metrics["reward/mean"]), known(strict)))
        self.ties.append(metrics.get("judge/tie_share", metrics["group/tie_share"]))
        self.flat.append(metrics["group/zero_std_share"])


def known(value: float) -> float | None:
    """The value, None for NaN."""
    return float(value) if np.isfinite(value) else None


def build_report(
    trainer: Trainer,
    before: EvalResult,
    after: EvalResult,
    *,
    judge: Judge,
    reader: Judge | None,
    training: Training,
    seconds: float,
    timings: dict[str, float],
) -> AlignmentReport:
    """The report of a run, with its four reliability sections measured here.

    Args:
        trainer: after its last step.
        before, after: evaluations of the same prompts with their pictures.
        judge: the one that evaluated.
        reader: the second reader, or None.
        training: what the steps recorded.
        seconds: wall time so far.
        timings: seconds per phase; the caller may still add to it.
    """
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
    same = config.eval.allow_same_judge and trainer.worker.judge.id == judge.id
    notes = []
    if trainer.stopped:
        notes.append(f"Training stopped at step {trainer.done} of {config.run.steps}: {trainer.stopped}.")
    if config.judge.compare:
        notes.append("In training the judge compared pictures in pairs, so there is no reward to draw over the steps.")
    if len(results) < ENOUGH:
        notes.append(f"Only {len(results)} prompts were evaluated; the intervals are wide.")
    report = AlignmentReport(
        title=config.run.name,
        results=results,
        settings=_settings(trainer),
        seconds=seconds,
        judged_images=trainer.done * config.data.prompts_per_step * config.rollout.drawn,
        judge=judge.id,
        reliability=Reliability(),
        train_judge=trainer.worker.judge.id,
        second_reader=reader.id if reader is not None else None,
        allow_same_judge=same,
        curve=training.curve,
        method=_method(config),
        notes=notes,
        timings=timings,
    )
    numbers = compute(report, resamples=100)
    probed = after.items[:PROBED]
    rubrics = [after.rubrics[item.row] for item in probed]
    images = [item.image for item in probed if item.image is not None]
    steps = f"mean of {len(training.ties)} steps"
    reliability = Reliability(
        rubric_quality(results),
        judge_fidelity(
            results,
            numbers,
            repeats=_repeats(judge, after, probed),
            labels=_labels(judge) if (config.eval.judge or config.judge).name == "shapes" else None,
            order="each picture is judged alone, so a pair has no order",
            same_judge=same,
        ),
        saturation_and_ties(
            numbers,
            tie_share=known(_mean(training.ties)),
            zero_variance_share=known(_mean(training.flat)),
            note=steps,
        ),
        attack_probes(run_probes(judge, rubrics, images)),
    )
    return replace(report, reliability=reliability)


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
    return JudgeRequest.of_sample(result.prompts[item.row], result.rubrics[item.row], item.image, item.sample_id)


def _pictures(result: EvalResult, row: int, second: dict[tuple[int, int], list[Verdict]], show: bool) -> list[Picture]:
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
