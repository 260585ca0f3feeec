"""Prompts that the policy has mastered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mmrubric.aggregate import Context
from mmrubric.checks import number, whole
from mmrubric.filters.base import Filter, registry
from mmrubric.group import Group
from mmrubric.scores import sample_pass_rate
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags


@registry.register("saturated", Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(kw_only=True)
class Saturated(Filter):
    """Bans a prompt once its group has passed everything, or nearly, in `patience` visits in a row: it teaches no more.

    The pass rate of a group is the mean over its samples of passed / known criteria; samples without any known one are
    left out, and a visit of which nothing is known counts neither way.

    Source: RationalRewards, arXiv 2604.11626 (prompts of a high mean are banned); patience and cooldown are ours.

    Args:
        threshold: pass rate in [0, 1] from which on a visit counts.
        patience: such visits in a row, at least 1.
        cooldown: whole epochs for which the prompt is left out after the one that it is banned in, at least 1; None =
            for good.
    """

    threshold: float = 1.0
    patience: int = 2
    cooldown: int | None = None
    _streak: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _bans: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        number("saturated: threshold", self.threshold, low=0.0, high=1.0)
        whole("saturated: patience", self.patience, 1)
        if self.cooldown is not None:
            whole("saturated: cooldown", self.cooldown, 1)

    def observe(self, groups: Sequence[Group], ctx: Sequence[Context]) -> None:
        """Count visits, by the prompt id of the contexts."""
        for group, where in zip(groups, ctx, strict=True):
            rates = sample_pass_rate(group.need("table", "saturated"))
            if np.isnan(rates).all():
                continue
            name = where.prompt_id
            # The slack absorbs the rounding of a mean.
            passed = np.nanmean(rates) >= self.threshold - 1e-12
            self._streak[name] = self._streak.get(name, 0) + 1 if passed else 0
            if self._streak[name] >= self.patience:
                self._bans[name] = math.inf if self.cooldown is None else where.epoch + 1 + self.cooldown
                self._streak[name] = 0

    def bans(self) -> dict[str, float]:
        """By prompt id, the first epoch in which it may be drawn again; bans that have ended stay listed."""
        return dict(self._bans)

    def state_dict(self) -> dict[str, Any]:
        """Streaks, and the bans as epochs; None = for good."""
        ends = {name: None if math.isinf(epoch) else epoch for name, epoch in self._bans.items()}
        return {"streak": dict(self._streak), "bans": ends}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._streak = {name: int(count) for name, count in state["streak"].items()}
        self._bans = {name: math.inf if epoch is None else float(epoch) for name, epoch in state["bans"].items()}
