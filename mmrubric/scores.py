"""`ScoreTable`, and the order in which it becomes a score: dependencies, gates, coverage, weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrubric.checks import number, one_of, switch
from mmrubric.dag import topological_order
from mmrubric.errors import InputError
from mmrubric.rubric import Rubric
from mmrubric.verdict import Verdict

Floats = NDArray[np.float64]
DEPENDENCIES = ("none", "direct", "cascade")
PASS = 0.5
"""A criterion is passed when good >= 0.5: token probabilities are never exactly 0 or 1."""


class ScoreTable:
    """Verdicts of one group: samples x criteria, with the rubric they belong to.

    Args:
        rubric: the one rubric of the group; its criteria are the columns, in order.
        met: array-like [S, C] in [0, 1], NaN or None = unknown, as judged (not flipped).
        sample_ids: S unique texts; default "0", "1", ...

    Raises:
        InputError: wrong shape, a value outside [0, 1], or sample ids that do not fit.
    """

    def __init__(self, rubric: Rubric, met: ArrayLike, sample_ids: Sequence[str] | None = None) -> None:
        try:
            values = np.array(met, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"met must be numbers [samples, criteria]: {error}") from error
        if values.ndim != 2 or values.shape[1] != len(rubric.criteria):
            raise InputError(
                f"met has shape {list(values.shape)}; expected [samples, {len(rubric.criteria)}], "
                "one column per criterion of the rubric"
            )
        bad = ~np.isnan(values) & ~((values >= 0.0) & (values <= 1.0))
        if bad.any():
            row, column = (int(index) for index in np.argwhere(bad)[0])
            raise InputError(
                f"met of sample {row}, criterion {rubric.ids[column]!r} is {values[row, column]}, "
                "outside [0, 1]; use NaN for unknown"
            )
        ids = tuple(map(str, range(len(values)))) if sample_ids is None else tuple(sample_ids)
        if len(ids) != len(values) or len(set(ids)) != len(ids) or not all(isinstance(id, str) for id in ids):
            raise InputError(f"sample_ids must be {len(values)} unique texts, got {list(ids)}")
        self.rubric = rubric
        self.sample_ids: tuple[str, ...] = ids
        self.met: Floats = _frozen(values)
        """[S, C] as judged."""

    @classmethod
    def from_verdicts(
        cls, rubric: Rubric, sample_ids: Sequence[str], verdicts: Iterable[Verdict | Iterable[Verdict]]
    ) -> ScoreTable:
        """Join verdicts by sample id and criterion id, never by position; a missing verdict is unknown.

        Args:
            rubric: the rubric that was judged.
            sample_ids: rows of the table, in order.
            verdicts: in any order, flat or one list per request as `Judge.score` returns them.

        Raises:
            InputError: a verdict on an unknown sample or criterion, or two on the same cell.
        """
        rows = {id: index for index, id in enumerate(sample_ids)}
        columns = {id: index for index, id in enumerate(rubric.ids)}
        met = np.full((len(sample_ids), len(columns)), np.nan)
        seen: set[tuple[int, int]] = set()
        for item in verdicts:
            for verdict in [item] if isinstance(item, Verdict) else item:
                if verdict.sample_id not in rows:
                    raise InputError(f"verdict on unknown sample {verdict.sample_id!r}; known: {list(rows)}")
                if verdict.criterion_id not in columns:
                    raise InputError(f"verdict on unknown criterion {verdict.criterion_id!r}; known: {list(columns)}")
                cell = rows[verdict.sample_id], columns[verdict.criterion_id]
                if cell in seen:
                    raise InputError(
                        f"two verdicts on sample {verdict.sample_id!r}, criterion {verdict.criterion_id!r}"
                    )
                seen.add(cell)
                met[cell] = np.nan if verdict.met is None else verdict.met
        return cls(rubric, met, sample_ids)

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __repr__(self) -> str:
        return f"ScoreTable(samples={len(self)}, criteria={list(self.rubric.ids)})"

    @cached_property
    def points(self) -> Floats:
        """[C] signed weights. Only the `points` aggregator reads them."""
        return _frozen(np.array([criterion.weight for criterion in self.rubric.criteria]))

    @cached_property
    def weights(self) -> Floats:
        """[C] magnitudes |weight|; the sign is spent in `good`."""
        return _frozen(np.abs(self.points))

    @cached_property
    def good(self) -> Floats:
        """[S, C] `met` with negative criteria flipped; NaN kept."""
        return _frozen(np.where(self.points < 0, 1.0 - self.met, self.met))

    @cached_property
    def passed(self) -> Floats:
        """[S, C] 1.0 where good >= 0.5, 0.0 where below, NaN kept."""
        return _frozen(np.where(np.isnan(self.good), np.nan, (self.good >= PASS).astype(np.float64)))

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """[S, C] True where the verdict is known."""
        return ~np.isnan(self.met)

    @cached_property
    def coverage(self) -> Floats:
        """[S] share of the weight that is known, in [0, 1]."""
        return _frozen(weighted_mean(self.known.astype(np.float64), self.weights))

    def row(self, sample: int | str) -> int:
        """Row of a sample given by position or id; `InputError` when there is none."""
        if isinstance(sample, str):
            if sample not in self.sample_ids:
                raise InputError(f"unknown sample {sample!r}; known: {', '.join(self.sample_ids)}")
            return self.sample_ids.index(sample)
        if isinstance(sample, bool) or not 0 <= int(sample) < len(self):
            raise InputError(f"sample {sample!r} is outside 0..{len(self) - 1}")
        return int(sample)

    def take(self, rows: ArrayLike) -> ScoreTable:
        """The table of some rows, in the given order."""
        index = np.asarray(rows, dtype=np.intp)
        return ScoreTable(self.rubric, self.met[index], [self.sample_ids[i] for i in index])

    def with_dependencies(self, dependencies: str = "none") -> ScoreTable:
        """The table after dependency masking, decided by met >= 0.5 of the parents.

        The child of a failed parent is failed (good = 0, known, either polarity); else the child of an
        unknown parent is unknown. `direct` looks at the parents as judged, `cascade` at the parents after
        masking (DSG and DPG). `none` returns the table itself.
        """
        if one_of("dependencies", dependencies, DEPENDENCIES) == "none":
            return self
        holds = np.where(self.known, (self.met >= PASS).astype(np.float64), np.nan)
        judged = holds.copy()
        met = self.met.copy()
        criteria = self.rubric.criteria
        column = {id: index for index, id in enumerate(self.rubric.ids)}
        for child_id in topological_order({criterion.id: criterion.depends_on for criterion in criteria}):
            child = column[child_id]
            parents = [column[id] for id in criteria[child].depends_on]
            if not parents:
                continue
            state = (holds if dependencies == "cascade" else judged)[:, parents]
            failed = (state == 0.0).any(axis=1)
            unknown = ~failed & np.isnan(state).any(axis=1)
            met[unknown, child] = holds[unknown, child] = np.nan
            # good = 0 means met = 1 for a negative criterion, yet its own children see a failed parent.
            met[failed, child] = 1.0 if criteria[child].weight < 0 else 0.0
            holds[failed, child] = 0.0
        return ScoreTable(self.rubric, met, self.sample_ids)

    @cached_property
    def gate(self) -> Floats:
        """[S] 0.0 where a hard criterion failed, else NaN where one is unknown, else 1.0."""
        hard = np.array([criterion.hard for criterion in self.rubric.criteria])
        state = self.passed[:, hard]
        open_ = np.where(np.isnan(state).any(axis=1), np.nan, 1.0)
        return _frozen(np.where((state == 0.0).any(axis=1), 0.0, open_))


@dataclass(frozen=True)
class Rules:
    """What happens before the weights, in this order: dependencies, gates, coverage."""

    dependencies: str = "none"
    gates: bool = True
    min_coverage: float = 0.5

    def __post_init__(self) -> None:
        one_of("dependencies", self.dependencies, DEPENDENCIES)
        switch("gates", self.gates)
        number("min_coverage", self.min_coverage, 0.0, 1.0)

    def covered(self, share: Floats) -> NDArray[np.bool_]:
        """True where a known share of the weight is enough; nothing known is never enough."""
        # The slack absorbs rounding of sums such as (.1 + .2) / (.1 + .2 + .3).
        return (share > 0.0) & (share >= self.min_coverage - 1e-12)

    def settle(self, table: ScoreTable) -> Settled:
        """Apply the rules to a table."""
        masked = table.with_dependencies(self.dependencies)
        decided = np.full(len(table), np.nan)
        to_weigh = self.covered(masked.coverage)
        if self.gates:
            decided[masked.gate == 0.0] = 0.0
            to_weigh &= masked.gate == 1.0
        return Settled(masked, decided, to_weigh)


@dataclass(frozen=True)
class Settled:
    """A table after `Rules`: what is decided, and which samples are left for the weights."""

    table: ScoreTable
    """After dependency masking."""
    decided: Floats
    """[S] 0.0 where a gate failed, NaN elsewhere."""
    to_weigh: NDArray[np.bool_]
    """[S] True where the score comes from the weights; elsewhere `decided` is the score."""


def weighted_mean(values: Floats, weights: Floats) -> Floats:
    """Mean over the last axis with NaN left out: sum w x / sum w over known; NaN where nothing is known.

    Weights (>= 0) are divided by the largest first, so that equal weights equal the plain mean bit for bit
    and weights near the float limit do not overflow.
    """
    known = ~np.isnan(values)
    shares = np.where(known, weights / weights.max(), 0.0) if weights.max() > 0 else np.zeros(values.shape)
    total = shares.sum(axis=-1)
    weighted = (shares * np.where(known, values, 0.0)).sum(axis=-1)
    return np.divide(weighted, total, out=np.full(total.shape, np.nan), where=total > 0)


@dataclass(frozen=True)
class PassSummary:
    """Evaluation of many samples. Every share is in [0, 1]; NaN where there is nothing to average."""

    mean_pass_rate: float
    """Mean over samples of passed / known."""
    strict_completion: float
    """Share of samples that pass every criterion; unknown counts as not passed."""
    coverage: float
    """Mean over samples of the known share of the weight; printed beside every pass rate."""
    unknown_share: float
    """Share of verdicts that are unknown."""
    samples: int
    scored: int
    """Samples with at least one known verdict: those behind `mean_pass_rate`."""


def sample_pass_rate(table: ScoreTable) -> Floats:
    """[S] passed / known per sample, unweighted; NaN where nothing is known."""
    known = table.known.sum(axis=1)
    passed = np.nansum(table.passed, axis=1)
    return np.divide(passed, known, out=np.full(len(table), np.nan), where=known > 0)


def sample_completion(table: ScoreTable) -> Floats:
    """[S] 1.0 where every criterion is passed, 0.0 elsewhere; unknown counts as not completed."""
    return (table.passed == 1.0).all(axis=1).astype(np.float64)


def summarize(tables: ScoreTable | Iterable[ScoreTable]) -> PassSummary:
    """Pass rates over all samples of one or many tables (each with its own rubric)."""
    listed = [tables] if isinstance(tables, ScoreTable) else list(tables)
    rates = np.concatenate([sample_pass_rate(table) for table in listed] or [np.empty(0)])
    complete = np.concatenate([sample_completion(table) for table in listed] or [np.empty(0)])
    coverage = np.concatenate([table.coverage for table in listed] or [np.empty(0)])
    scored = rates[~np.isnan(rates)]
    verdicts = sum(table.known.size for table in listed)
    unknown = sum(int((~table.known).sum()) for table in listed)
    return PassSummary(
        mean_pass_rate=_mean(scored),
        strict_completion=_mean(complete),
        coverage=_mean(coverage),
        unknown_share=unknown / verdicts if verdicts else float("nan"),
        samples=len(rates),
        scored=len(scored),
    )


def mean_pass_rate(tables: ScoreTable | Iterable[ScoreTable]) -> float:
    """Mean over samples of passed / known; samples with nothing known are left out. NaN without any."""
    return summarize(tables).mean_pass_rate


def strict_completion(tables: ScoreTable | Iterable[ScoreTable]) -> float:
    """Share of samples that pass every criterion; unknown counts as not completed."""
    return summarize(tables).strict_completion


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _frozen(values: Floats) -> Floats:
    values.setflags(write=False)
    return values
