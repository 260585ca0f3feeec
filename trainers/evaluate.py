"""Evaluation: held-out prompts, the deployed sampler, fixed noise, per-prompt verdicts. It never chooses a
checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from mmrubric import images as image_tools
from mmrubric import scores
from mmrubric.errors import InputError, RunError
from mmrubric.judging import JudgeRequest
from mmrubric.prompt import Prompt
from mmrubric.record import SampleRow
from mmrubric.rubric import Rubric
from mmrubric.scores import PassSummary, ScoreTable
from mmrubric.verdict import Verdict
from pipelines import seeds
from pipelines.policy import Policy
from pipelines.samplers import AnySampler
from trainers.distributed import Dist, split_rows
from trainers.judge_worker import JudgeWorker, check_failures
from trainers.metrics import describe_sampler, table_metrics


@dataclass(frozen=True)
class EvalItem:
    """One evaluated picture."""

    row: int
    """Number of the prompt."""
    sample: int
    sample_id: str
    image_hash: str
    verdicts: tuple[Verdict, ...]
    image: np.ndarray | None = None
    """uint8 [H, W, 3]; None where pictures were not kept."""
    error: str = ""
    """Set when judging broke off; no verdicts then."""


@dataclass(frozen=True)
class EvalResult:
    """An evaluation, the same on all ranks."""

    prompts: tuple[Prompt, ...]
    rubrics: tuple[Rubric, ...]
    """[P], the checklist of each prompt."""
    items: tuple[EvalItem, ...]
    """[P * samples], by prompt and sample."""
    judge_id: str
    sampler: AnySampler
    weights: str
    """raw or ema."""
    step: int
    """Finished training steps."""
    seconds: float
    same_judge: bool = False
    """Whether the judge that evaluated is the one that trained."""

    @cached_property
    def tables(self) -> tuple[ScoreTable, ...]:
        """[P] score tables, rows = samples."""
        rows: list[list[EvalItem]] = [[] for _ in self.prompts]
        for item in self.items:
            rows[item.row].append(item)
        return tuple(
            ScoreTable.from_verdicts(rubric, [item.sample_id for item in group], [item.verdicts for item in group])
            for rubric, group in zip(self.rubrics, rows, strict=True)
        )

    @cached_property
    def summary(self) -> PassSummary:
        """Mean pass rate, strict completion, coverage and unknown share over all pictures."""
        return scores.summarize(self.tables)

    @property
    def mean_pass_rate(self) -> float:
        """Mean over pictures of passed / known, in [0, 1]."""
        return self.summary.mean_pass_rate

    @property
    def strict_completion(self) -> float:
        """Share of pictures that pass every criterion; unknown counts as not."""
        return self.summary.strict_completion

    @property
    def unknown_share(self) -> float:
        """Share of verdicts that are unknown."""
        return self.summary.unknown_share

    def pass_rate_by_prompt(self) -> np.ndarray:
        """[P] mean over a prompt's pictures of passed / known; NaN where nothing is known."""
        rates = [scores.sample_pass_rate(table) for table in self.tables]
        return np.array([np.nan if np.isnan(r).all() else np.nanmean(r) for r in rates])

    def completion_by_prompt(self) -> np.ndarray:
        """[P] share of a prompt's pictures that pass every criterion."""
        return np.array([scores.sample_completion(table).mean() for table in self.tables])

    def metrics(self) -> dict[str, float | str]:
        """Rows for the log, with the sampler that was used (known failure TF60)."""
        by_kind = {f"eval/{k.removeprefix('reward/')}": v for k, v in table_metrics(self.tables).items()}
        return by_kind | {
            "eval/unknown_share": self.unknown_share,
            "eval/images": len(self.items),
            "eval/seconds": self.seconds,
            "eval/sampler": describe_sampler(self.sampler),
            "eval/weights": self.weights,
            "eval/judge": self.judge_id,
            "eval/same_judge": str(self.same_judge).lower(),
        }

    def rows(self) -> list[SampleRow]:
        """Rows for the run record."""
        hashes = [rubric.hash for rubric in self.rubrics]
        return [
            SampleRow(
                step=self.step, phase="eval", prompt_id=self.prompts[item.row].id, prompt_row=item.row,
                rubric_hash=hashes[item.row], sample_id=item.sample_id, sample_hash=item.image_hash,
                judge_id=self.judge_id, verdicts=item.verdicts,
            )
            for item in self.items
        ]  # fmt: skip

    def save_images(self, directory: str | Path) -> list[Path]:
        """Write the kept pictures as `<prompt id>-<sample>.png`."""
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        written = []
        for item in self.items:
            if item.image is not None:
                name = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.prompts[item.row].id)
                written.append(place / f"{name}-{item.sample:02d}.png")
                Image.fromarray(item.image).save(written[-1])
        return written


def evaluate(
    policy: Policy,
    prompts: Sequence[Prompt],
    rubrics: Sequence[Rubric],
    worker: JudgeWorker,
    *,
    sampler: AnySampler | None = None,
    samples: int = 1,
    seed: int = 0,
    batch: int = 32,
    weights: str = "raw",
    max_failure_share: float = 0.05,
    step: int = 0,
    keep_images: bool = True,
    same_judge: bool = False,
    dist: Dist | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvalResult:
    """Sample and judge held-out prompts. A collective: all ranks call it and get the same result.

    The noise is a function of (seed, prompt id, sample): two evaluations differ by the weights alone.

    Args:
        policy: what is evaluated.
        prompts: [P]; rubrics: [P].
        worker: the evaluation judge at work.
        sampler: None = the one the model is deployed with.
        samples: pictures per prompt.
        batch: pictures per model call.
        weights: `raw`, or a named copy such as `ema`.
        max_failure_share: more judge failures are an error.
        step: finished training steps, for the record.
        keep_images: put the pictures into the result (they travel between ranks).
        same_judge: stated in the result.
        dist: the ranks.
        progress: called on each rank with (pictures done, pictures in all).

    Raises:
        InputError: no prompt, or counts differ.
        RunError: the judge failed too often, or broke off.
    """
    if not prompts or len(prompts) != len(rubrics):
        raise InputError(f"an evaluation needs one rubric per prompt: {len(prompts)} prompts, {len(rubrics)} rubrics")
    began = time.perf_counter()
    used = sampler or policy.deployed
    dist = dist or Dist()
    shard = split_rows(len(prompts), samples, dist.world)[dist.rank]
    keys = list(zip(shard.prompt_rows.tolist(), shard.samples.tolist(), strict=True))
    pending = []
    with nullcontext() if weights == "raw" else policy.weights(weights):
        for start in range(0, len(keys), batch):
            part = keys[start : start + batch]
            rollout = policy.sample(
                [prompts[row] for row, _ in part],
                [seeds.eval_seed(seed, prompts[row].id, number) for row, number in part],
                used,
            )
            real = [i for i in range(len(part)) if shard.weight[start + i] > 0]
            ids = [f"eval-{part[i][0]:05d}-{part[i][1]:03d}" for i in real]
            requests = [
                JudgeRequest.of_sample(prompts[part[i][0]], rubrics[part[i][0]], rollout.images[i], name)
                for i, name in zip(real, ids, strict=True)
            ]
            if requests:
                where = [(*part[i], name, rollout.images[i]) for i, name in zip(real, ids, strict=True)]
                pending.append((where, worker.submit(requests)))
            if progress is not None:
                progress(min(start + batch, len(keys)), len(keys))
    mine: list[EvalItem] = []
    for where, future in pending:
        error = future.exception()
        answers = [[] for _ in where] if error else future.result()
        for (row, number, name, image), verdicts in zip(where, answers, strict=True):
            text = f"{type(error).__name__}: {error}" if error else ""
            kept = image if keep_images else None
            mine.append(EvalItem(row, number, name, image_tools.content_hash(image), tuple(verdicts), kept, text))
    items = dist.gather_rows(mine, key=lambda item: (item.row, item.sample))
    if broken := [item.error for item in items if item.error]:
        raise RunError(f"evaluation: judging broke off on {len(broken)} of {len(items)} images: {broken[0]}")
    check_failures([v for item in items for v in item.verdicts], max_failure_share, f"evaluation at step {step}")
    return EvalResult(
        tuple(prompts), tuple(rubrics), tuple(items), worker.judge.id, used, weights, step,
        time.perf_counter() - began, same_judge,
    )  # fmt: skip
