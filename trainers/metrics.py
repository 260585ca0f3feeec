"""Runtime invariants as metrics, with limits that warn or, with `strict`, end the run.

`Means` collects one step's numbers on a rank and joins the ranks by counts, so that what is logged is
what was trained. The functions below it make the named metrics; `Invariants` compares them with their limits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from mmrubric.errors import InputError, RunError
from mmrubric.group import PairVerdict
from mmrubric.scores import ScoreTable, summarize

if TYPE_CHECKING:
    from pipelines.samplers import AnySampler
    from trainers.distributed import Dist

logger = logging.getLogger(__name__)

Reduction = Literal["mean", "sum", "max", "min"]
_EMPTY = {"mean": 0.0, "sum": 0.0, "max": -math.inf, "min": math.inf}


class Cell(NamedTuple):
    """One metric on one rank: plain numbers that travel between ranks."""

    reduction: Reduction
    value: float
    """Weighted sum for mean and sum, extreme for max and min."""
    count: float
    """Sum of weights of the values seen; 0 = nothing known."""


def to_numpy(values: Any) -> np.ndarray:
    """Flat float64 copy of a number, a sequence, an array or a (detached or not) tensor on any device."""
    if hasattr(values, "detach"):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64).reshape(-1)


class Means:
    """The numbers of one step on one rank: weighted means, sums and extremes."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def add(
        self,
        name: str,
        values: Any,
        weight: Any = 1.0,
        reduction: Reduction = "mean",
        unknown: Literal["skip", "keep"] = "keep",
    ) -> None:
        """Add values to a metric.

        Args:
            name: metric name.
            values: scalar or [n]; tensors are detached.
            weight: scalar or [n]; values of weight 0 (masked rows, padding) are left out, also of max and
                min.
            reduction: how values are joined over micro-batches and ranks.
            unknown: `keep` makes the result NaN (a loss that is NaN must be seen); `skip` leaves NaN out (a
                reward that nobody could give).

        Raises:
            InputError: sizes differ, a weight is negative, or the metric has another reduction already.
        """
        x, w = to_numpy(values), to_numpy(weight)
        if w.size not in (1, x.size):
            raise InputError(f"metric {name!r}: {x.size} values but {w.size} weights")
        w = np.broadcast_to(w, x.shape)
        if not (w >= 0).all():
            raise InputError(f"metric {name!r}: weights must be at least 0")
        use = w > 0
        if unknown == "skip":
            use &= ~np.isnan(x)
        x, w = x[use], w[use]
        old = self._cells.get(name, Cell(reduction, _EMPTY[reduction], 0.0))
        if old.reduction != reduction:
            raise InputError(f"metric {name!r} is a {old.reduction}, not a {reduction}")
        new = Cell(reduction, _EMPTY[reduction], 0.0)
        if x.size:
            total = {"mean": (x * w).sum, "sum": (x * w).sum, "max": x.max, "min": x.min}[reduction]()
            new = Cell(reduction, float(total), float(w.sum()))
        self._cells[name] = _join(old, new)

    def add_max(self, name: str, values: Any, weight: Any = 1.0) -> None:
        """`add` with the largest value in place of the mean."""
        self.add(name, values, weight, "max")

    def add_all(self, metrics: Mapping[str, Any], weight: Any = 1.0) -> None:
        """Add the per-item metrics of a loss, weighted as the loss is."""
        for name, values in metrics.items():
            self.add(name, values, weight)

    def cells(self) -> dict[str, Cell]:
        """What another rank needs to join this log."""
        return dict(self._cells)

    @classmethod
    def merged(cls, parts: Iterable[Mapping[str, Cell]]) -> Self:
        """One log from the cells of all ranks (or micro-batches), joined by counts in the order given.

        Raises:
            InputError: ranks disagree on a metric's reduction.
        """
        log = cls()
        for part in parts:
            for name, cell in part.items():
                old = log._cells.get(name, Cell(cell.reduction, _EMPTY[cell.reduction], 0.0))
                if old.reduction != cell.reduction:
                    raise InputError(
                        f"metric {name!r} is a {old.reduction} on one rank and a {cell.reduction} on another"
                    )
                log._cells[name] = _join(old, Cell(*cell))
        return log

    def get(self, name: str) -> float | None:
        """Value of a metric; None when nothing was added to it. NaN only if a kept value was NaN."""
        cell = self._cells.get(name)
        if cell is None or cell.count == 0:
            return None
        return cell.value / cell.count if cell.reduction == "mean" else cell.value

    def reduce(self, dist: Dist) -> dict[str, float]:
        """`result` over all ranks, the same on each. A collective."""
        return Means.merged(dist.gather([self.cells()])).result()

    def result(self) -> dict[str, float]:
        """All metrics, sorted by name; NaN = nothing known."""
        return {name: math.nan if (v := self.get(name)) is None else v for name in sorted(self._cells)}


def _join(a: Cell, b: Cell) -> Cell:
    if a.count == 0 or b.count == 0:
        return a if b.count == 0 else b
    if a.reduction in ("mean", "sum"):
        return Cell(a.reduction, a.value + b.value, a.count + b.count)
    if math.isnan(a.value) or math.isnan(b.value):
        return Cell(a.reduction, math.nan, a.count + b.count)
    pick = max if a.reduction == "max" else min
    return Cell(a.reduction, pick(a.value, b.value), a.count + b.count)


def add_replay(log: Means, log_prob: Any, old_log_prob: Any, steps: Any, weight: Any = 1.0) -> None:
    """First pass after a rollout: replayed against recorded log-probs, in all and per denoising step.

    Adds `replay/logprob_absdiff_mean`, `_max`, `replay/ratio_mean`, `_max` and
    `replay/logprob_absdiff_{mean,max}/step_NN`.

    Args:
        log: where to add.
        log_prob: [n].
        old_log_prob: [n].
        steps: [n], step index of each item; None = none (tokens), then no rows per step.
        weight: [n] or scalar.
    """
    difference = to_numpy(log_prob) - to_numpy(old_log_prob)
    w = np.broadcast_to(to_numpy(weight), difference.shape)
    gap, ratio = np.abs(difference), np.exp(difference)
    for reduction in ("mean", "max"):
        log.add(f"replay/logprob_absdiff_{reduction}", gap, w, reduction)
        log.add(f"replay/ratio_{reduction}", ratio, w, reduction)
    if steps is None:
        return
    index = to_numpy(steps).astype(int)
    for step in np.unique(index):
        at = index == step
        for reduction in ("mean", "max"):
            log.add(f"replay/logprob_absdiff_{reduction}/step_{step:02d}", gap[at], w[at], reduction)


def group_metrics(rewards: Sequence[Any], prompt_ids: Sequence[str], tol: float = 1e-6) -> dict[str, float]:
    """Metrics of the groups of a whole step, from all ranks.

    `group/zero_std_share` counts groups in which no two known rewards differ by more than `tol`;
    `group/tie_share` counts pairs of known rewards within a group.

    Args:
        rewards: one array [S] per group, NaN = not scorable.
        prompt_ids: one id per group.
        tol: largest difference that is a tie.

    Returns:
        `group/size_min`, `group/size_max` (samples drawn), `group/unique_prompts`, `group/zero_std_share`,
        `group/tie_share`, `reward/missing_share`, `reward/mean`, `reward/std` (over samples, ddof 1); NaN =
        unknown.
    """
    if any(np.ndim(r) != 1 for r in rewards):
        raise InputError("rewards must be [S] for each group; combine several rewards first")
    if len(rewards) != len(prompt_ids):
        raise InputError(f"{len(rewards)} groups of rewards but {len(prompt_ids)} prompt ids")
    groups = [to_numpy(r) for r in rewards]
    known = [g[~np.isnan(g)] for g in groups]
    values = np.concatenate(known) if known else np.empty(0)
    drawn = sum(g.size for g in groups)
    pairs = np.concatenate([np.abs(k[:, None] - k[None, :])[np.triu_indices(k.size, 1)] for k in known] or [values])
    return {
        "group/size_min": float(min((g.size for g in groups), default=math.nan)),
        "group/size_max": float(max((g.size for g in groups), default=math.nan)),
        "group/unique_prompts": float(len(set(prompt_ids))),
        "group/zero_std_share": _share(np.array([k.size < 2 or np.ptp(k) <= tol for k in known])),
        "group/tie_share": _share(pairs <= tol),
        "reward/missing_share": 1 - values.size / drawn if drawn else math.nan,
        "reward/mean": float(values.mean()) if values.size else math.nan,
        "reward/std": float(values.std(ddof=1)) if values.size > 1 else math.nan,
    }


def table_metrics(tables: Sequence[ScoreTable], by: Literal["category", "id"] = "category") -> dict[str, float]:
    """Per-criterion means of the judged samples of a whole step; unknown entries are left out, never 0.

    Args:
        tables: one per group.
        by: name criteria by category (rubrics differ from prompt to prompt) or by id (one rubric for all).

    Returns:
        `reward/<criterion>_mean` (mean of `good`), and `reward/coverage`, `reward/unknown_share`,
        `reward/mean_pass_rate`, `reward/strict_completion` as in `mmrubric.scores.summarize`.
    """
    log = Means()
    for table in tables:
        for k, criterion in enumerate(table.rubric.criteria):
            key = criterion.id if by == "id" else criterion.category
            log.add(f"reward/{key}_mean", table.good[:, k], unknown="skip")
    summary = summarize(tables)
    return log.result() | {
        "reward/coverage": summary.coverage,
        "reward/unknown_share": summary.unknown_share,
        "reward/mean_pass_rate": summary.mean_pass_rate,
        "reward/strict_completion": summary.strict_completion,
    }


def pair_metrics(verdicts: Sequence[PairVerdict]) -> dict[str, float]:
    """`judge/inconsistent_share`, `judge/tie_share` of answered pairs, and `judge/pair_failed_share`."""
    answered = [verdict for verdict in verdicts if verdict is not PairVerdict.FAILED]
    return {
        "judge/inconsistent_share": _share(np.array([v is PairVerdict.INCONSISTENT for v in answered])),
        "judge/tie_share": _share(np.array([v is PairVerdict.TIE for v in answered])),
        "judge/pair_failed_share": _share(np.array([v is PairVerdict.FAILED for v in verdicts])),
    }


def _share(flags: np.ndarray) -> float:
    return float(np.mean(flags)) if flags.size else math.nan


def describe_sampler(sampler: AnySampler) -> str:
    """Text of `eval/sampler`: name, steps and guidance of the sampler used."""
    if sampler.kind == "tokens":
        cuts = f", top-k {sampler.top_k}" if sampler.top_k else ""
        cuts += f", top-p {sampler.top_p:g}" if sampler.top_p < 1 else ""
        return f"tokens, temperature {sampler.temperature:g}, guidance {sampler.guidance:g}{cuts}"
    noise = sampler.noise if sampler.noise == "ode" else f"{sampler.noise} {sampler.level:g}"
    noise += "" if sampler.solver == "euler" else f", {sampler.solver}"
    return f"{noise}, {sampler.steps} steps, guidance {sampler.guidance:g}, shift {sampler.shift:g}"


class Limit(BaseModel):
    """Range that a metric should stay in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: float | None = None
    """Smallest good value."""
    max: float | None = None
    """Largest good value."""
    above: float | None = None
    """Good values are strictly above this."""
    skip_first: int = 0
    """Steps of this run before the limit holds."""
    help: str = ""
    """What to do about it; part of the message."""

    def broken(self, value: float) -> bool:
        """Whether a known value is outside."""
        return not (
            (self.min is None or value >= self.min)
            and (self.max is None or value <= self.max)
            and (self.above is None or value > self.above)
        )


def default_limits(
    *,
    precision: str = "fp32",
    group_size: int | None = None,
    unique_prompts: int | None = None,
    old_moves: bool = False,
    grouped: bool = True,
) -> dict[str, Limit]:
    """Limits of field/trainers.md section 3 for a run.

    Args:
        precision: `fp32` allows a replay error of 1e-6, half precision 1e-5.
        group_size: samples per prompt; every group must have as many.
        unique_prompts: prompts asked for per step.
        old_moves: whether the old policy differs from the trained one at the first pass (decay above 0, or
            several updates per rollout); only then is an `nft/old_deviate` of 0 a fault.
        grouped: whether the samples of a group are compared with one another (not with a value head).
    """
    replay = 1e-6 if precision == "fp32" else 1e-5
    limits = {
        "replay/logprob_absdiff_mean": Limit(max=replay, help="replay and rollout use different inputs or batch sizes"),
        "replay/logprob_absdiff_max": Limit(max=replay, help="replay and rollout use different inputs or batch sizes"),
        "group/zero_std_share": Limit(
            max=0.5, help="most groups teach nothing: larger groups, softer or harder rubrics"
        ),
        "group/tie_share": Limit(max=0.5, help="most pairs teach nothing: more criteria, or softer scores"),
        "adapter/trainable_params": Limit(above=0, help="nothing trains"),
        "dist/param_checksum_spread": Limit(max=0, help="ranks hold different weights"),
    }
    if not grouped:
        del limits["group/zero_std_share"], limits["group/tie_share"]
    if group_size is not None:
        limits["group/size_min"] = limits["group/size_max"] = Limit(min=group_size, max=group_size)
    if unique_prompts is not None:
        limits["group/unique_prompts"] = Limit(min=unique_prompts, max=unique_prompts)
    if old_moves:
        limits["nft/old_deviate"] = Limit(above=0, skip_first=2, help="the update misses the active adapter")
    return limits


@dataclass(frozen=True)
class Violation:
    """A metric outside its limit."""

    name: str
    value: float
    limit: Limit

    def __str__(self) -> str:
        bounds = [f"{k} {v:g}" for k in ("min", "max", "above") if (v := getattr(self.limit, k)) is not None]
        return f"{self.name} = {self.value:.6g}, limit {', '.join(bounds)}" + (
            f": {self.limit.help}" if self.limit.help else ""
        )


class Invariants:
    """Compares each step's metrics with their limits. Unknown (NaN) and absent metrics break nothing."""

    def __init__(self, limits: Mapping[str, Limit], strict: bool = False) -> None:
        self.limits = dict(limits)
        self.strict = strict
        self._warned: set[str] = set()

    def check(self, step: int, metrics: Mapping[str, float]) -> list[Violation]:
        """Violations of this step. Each metric warns once in the log.

        Raises:
            RunError: `strict` and at least one violation; the message names them all.
        """
        found = []
        for name, limit in self.limits.items():
            value = metrics.get(name, math.nan)
            if step >= limit.skip_first and not math.isnan(value) and limit.broken(value):
                found.append(Violation(name, value, limit))
        if found and self.strict:
            raise RunError(f"step {step}: " + "; ".join(map(str, found)) + " (strict: true)")
        for violation in found:
            if violation.name not in self._warned:
                self._warned.add(violation.name)
                logger.warning("step %d: %s", step, violation)
        return found
