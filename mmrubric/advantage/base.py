"""What every advantage shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mmrubric import preference
from mmrubric.group import Group
from mmrubric.rubric import Rubric
from mmrubric.scores import Floats
from mmrubric.tags import Registry


@dataclass(frozen=True)
class AdvantageOut:
    """Advantages of one group."""

    advantage: Floats
    """[S] or [S, T]; exactly 0 for a tie and for a sample that cannot be scored."""
    weight: Floats
    """Same shape; 0 for a sample that cannot be scored (outside every normaliser), else 1, ties too."""

    @property
    def tied(self) -> bool:
        """True when something of the group is known and yet none of it has a signal."""
        return bool((self.weight > 0).any() and not self.advantage.any())


class Advantage:
    """Groups to advantages. Subclasses implement `compute` and, if they are picky, `check_size`."""

    def __call__(self, groups: Sequence[Group | ArrayLike]) -> list[Floats]:
        """Advantages, one float64 array per group, in order."""
        return [out.advantage for out in self.compute(groups)]

    def compute(self, groups: Sequence[Group | ArrayLike]) -> list[AdvantageOut]:
        """Advantage and weight of every group.

        Args:
            groups: all groups of all ranks, in canonical order; a bare array is a group of rewards [S] or [S,
                R].

        Raises:
            InputError: a group is too small, or lacks a field that the method needs.
        """
        raise NotImplementedError

    def check_rubric(self, rubric: Rubric) -> None:
        """Raise `InputError` if groups of a rubric cannot be used; call it before they are sampled."""

    def matches(self, size: int, key: str) -> list[tuple[int, int]]:
        """Which samples of a group a judge compares, where one compares: all pairs.

        Args:
            size: number of samples.
            key: names the group, as in `Group.key`; seeds a choice.
        """
        return preference.pairing(size, "round_robin")

    def check_size(self, size: int) -> None:
        """Raise `InputError` if groups of `size` samples cannot be used; call it before expensive work."""
        raise NotImplementedError


def clamped(values: Floats, clamp: float | None) -> Floats:
    """Values cut to [-clamp, clamp]; None = as they are."""
    return values if clamp is None else np.clip(values, -clamp, clamp)


registry: Registry[Advantage] = Registry("advantage")
