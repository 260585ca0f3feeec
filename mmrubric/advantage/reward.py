"""Rewards as they are, for a loss with a baseline of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mmrubric.advantage.base import Advantage, AdvantageOut, registry
from mmrubric.errors import InputError
from mmrubric.group import Group, as_group
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags


@registry.register("reward", Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(frozen=True, kw_only=True)
class Reward(Advantage):
    """The reward itself, 0 with weight 0 for NaN. For PPO, whose value head is the baseline: one sample is enough.

    Source: PPO, arXiv 1707.06347; RubricRL, arXiv 2511.20651.
    """

    def compute(self, groups: Sequence[Group | ArrayLike]) -> list[AdvantageOut]:
        return [self._one(as_group(group).need("rewards", "reward")) for group in groups]

    def _one(self, rewards: np.ndarray) -> AdvantageOut:
        if rewards.ndim != 1:
            raise InputError("advantage 'reward' takes one reward per sample [S]; combine several rewards first")
        known = np.isfinite(rewards)
        return AdvantageOut(np.where(known, rewards, 0.0), known.astype(np.float64))

    def check_size(self, size: int) -> None:
        if size < 1:
            raise InputError(f"a group needs at least one sample, not {size}")
