"""Groups whose rewards hardly differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.filters.base import Filter, registry
from mmrubric.group import Group
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags


@registry.register("low_std", Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(frozen=True, kw_only=True)
class LowStd(Filter):
    """Drops a group whose known rewards deviate by less than `min_std`: divided by so little, noise of the judge would
    pass for a difference. A group with fewer than two known rewards has no deviation and is dropped as well.

    0.05 suits continuous scores. With means of binary criteria one verdict of one sample may deviate by less
    (1 / (M sqrt(G)), .03 at 12 criteria and 8 samples), so lower it there.

    Source: RationalRewards, arXiv 2604.11626; RubricRM, arXiv 2608.26956.

    Args:
        min_std: smallest sample standard deviation (ddof 1) over all drawn samples, in units of the reward.
    """

    min_std: float = 0.05

    def __post_init__(self) -> None:
        number("low_std: min_std", self.min_std, low=0.0)

    def keep(self, groups: Sequence[Group]) -> NDArray[np.bool_]:
        """[P] whether the deviation is large enough."""
        return np.array([self._varies(group) for group in groups], dtype=bool)

    def _varies(self, group: Group) -> bool:
        rewards = group.need("rewards", "low_std")
        if rewards.ndim != 1:
            raise InputError(f"low_std takes one reward per sample [S], group {group.key!r} has {list(rewards.shape)}")
        known = rewards[~np.isnan(rewards)]
        return len(known) > 1 and bool(known.std(ddof=1) >= self.min_std)
