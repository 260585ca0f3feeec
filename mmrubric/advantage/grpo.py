"""Group-relative advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mmrubric.advantage.base import Advantage, AdvantageOut, clamped, registry
from mmrubric.advantage.standardize import center, check_options, masked_standardize, spread
from mmrubric.checks import number, one_of
from mmrubric.errors import InputError
from mmrubric.group import Group, as_group
from mmrubric.scores import Floats
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

SCALES = ("group", "batch", "none")
COMBINES = ("sum_then_normalize", "normalize_then_sum")


@registry.register("grpo", Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(frozen=True, kw_only=True)
class Grpo(Advantage):
    """(r - mean of the group) / (std + eps); exactly 0 for ties, 0 with weight 0 for NaN.

    Args:
        scale: what the std is taken over: `group`; `batch` (the raw rewards of all groups); `none` (no
            division).
        ddof: 1 = sample std, 0 = population std.
        eps: added to the std.
        tol: a group whose rewards differ by at most this is tied.
        combine: for rewards [S, R]. `sum_then_normalize`: weighted sum, then as one reward; a reward that a
            sample lacks counts as the group's mean of that reward (neither 0 nor a prize).
            `normalize_then_sum`: every reward is standardised within its group, then the weighted sum is
            taken, so that none rules by its unit; with `scale="batch"` the sum is divided by its std over the
            batch. It excludes `scale="none"`.
        weights: [R] weights of the rewards; None = all 1.
        clamp: advantages are cut to +-clamp; None = not.
        min_group_std: a group with a smaller std is treated as tied; about .05 for continuous scores, 0 for
            means of binary criteria.

    Source: GRPO; Flow-GRPO, arXiv 2505.05470; names of the options as in TRL.
    """

    scale: str = "group"
    ddof: int = 1
    eps: float = 1e-6
    tol: float = 1e-6
    combine: str = "sum_then_normalize"
    weights: Sequence[float] | None = None
    clamp: float | None = None
    min_group_std: float = 0.0

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)
        one_of("combine", self.combine, COMBINES)
        check_options(self.ddof, self.eps, self.tol)
        number("min_group_std", self.min_group_std, low=0.0)
        if self.clamp is not None and number("clamp", self.clamp, low=0.0) == 0:
            raise InputError("clamp: 0 removes every advantage; use a positive number or null")
        if self.combine == "normalize_then_sum" and self.scale == "none":
            raise InputError("combine normalize_then_sum divides by the group's std; scale none forbids that")
        for value in self.weights or ():
            number("weights", value)
        if self.weights is not None and not any(self.weights):
            raise InputError("weights: at least one reward needs a weight that is not 0")

    def check_size(self, size: int) -> None:
        """Groups of one have no mean to compare with (their std is NaN, their advantage would be noise)."""
        if size < 2:
            raise InputError(f"grpo needs groups of at least 2 samples, got {size}")

    def compute(self, groups: Sequence[Group | ArrayLike]) -> list[AdvantageOut]:
        """See `Advantage.compute`; needs `Group.rewards`."""
        rewards = []
        for group in map(as_group, groups):
            self.check_size(group.size)
            rewards.append(self._columns(group.need("rewards", "grpo")))
        if self.combine == "sum_then_normalize":
            values = [self._sum(columns) for columns in rewards]
            std = _batch_std(values, self.ddof) if self.scale == "batch" else None
            return [self._advantage(value, std) for value in values]
        values = [self._sum_of_standardized(columns) for columns in rewards]
        # Each value is already a sum of group z-scores, whose mean is 0: only the batch scale is left to
        # apply.
        std = _batch_std(values, self.ddof) + self.eps if self.scale == "batch" else 1.0
        return [self._out(np.divide(v, std, out=np.zeros(len(v)), where=v != 0), ~np.isnan(v)) for v in values]

    def _advantage(self, values: Floats, batch_std: float | None) -> AdvantageOut:
        known = ~np.isnan(values)
        deviation, signal = center(values, known, None, self.tol)
        std = spread(deviation, known, None, self.ddof).item()
        if not signal.item() or std < self.min_group_std:
            return self._out(np.zeros(len(values)), known)
        if self.scale != "none":
            deviation = deviation / ((std if batch_std is None else batch_std) + self.eps)
        return self._out(deviation, known)

    def _sum_of_standardized(self, columns: Floats) -> Floats:
        known = ~np.isnan(columns)
        deviation, _ = center(columns, known, 0, self.tol)
        enough = spread(deviation, known, 0, self.ddof) >= self.min_group_std
        scores = masked_standardize(columns, enough, 0, self.ddof, self.eps, self.tol)
        return np.where(_scored(columns), scores @ self._weights(columns.shape[1]), np.nan)

    def _out(self, advantage: Floats, known: np.ndarray) -> AdvantageOut:
        return AdvantageOut(clamped(np.where(known, advantage, 0.0), self.clamp), known.astype(np.float64))

    def _columns(self, rewards: Floats) -> Floats:
        columns = rewards[:, None] if rewards.ndim == 1 else rewards
        if self.weights is not None and len(self.weights) != columns.shape[1]:
            raise InputError(f"weights: {len(self.weights)} weights for {columns.shape[1]} rewards")
        # A reward of weight 0 takes no part at all: its unknowns must not unscore a sample.
        return columns[:, self._weights(columns.shape[1]) != 0] if self.weights is not None else columns

    def _weights(self, count: int) -> Floats:
        if self.weights is None:
            return np.ones(count)
        weights = np.asarray(self.weights, dtype=np.float64)
        return weights if count == len(weights) else weights[weights != 0]

    def _sum(self, rewards: Floats) -> Floats:
        known = ~np.isnan(rewards)
        count = known.sum(axis=0)
        means = np.where(known, rewards, 0.0).sum(axis=0) / np.maximum(count, 1)
        filled = np.where(known, rewards, means)
        return np.where(_scored(rewards), filled @ self._weights(rewards.shape[1]), np.nan)


def _scored(rewards: Floats) -> np.ndarray:
    """[S] True where at least one of the rewards [S, R] is known."""
    return np.asarray(~np.isnan(rewards).all(axis=1))


def _batch_std(groups: Sequence[Floats], ddof: int) -> float:
    """Std over the known values of all groups together."""
    values = np.concatenate(groups) if groups else np.empty(0)
    known = ~np.isnan(values)
    deviation, _ = center(values, known, None, 0.0)
    return float(spread(deviation, known, None, ddof).item())
