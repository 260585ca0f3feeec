"""Dynamic rollout selection: draw more samples than are trained on, keep a mix of best, worst and random.

Source: RubricRL, arXiv 2511.20651; N 8, N' 12, K 4, `worst` and `rescue_variance` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrubric.checks import number, switch
from mmrubric.errors import InputError
from mmrubric.group import rewards_array
from mmrubric.preference import seeded_rng


@dataclass(frozen=True)
class Selection:
    """Rows kept of one prompt's samples."""

    best: tuple[int, ...]
    """The K highest rewards."""
    random: tuple[int, ...]
    """Drawn from the rest."""
    worst: tuple[int, ...] = ()
    """The lowest rewards."""
    rescued: bool = False
    """True when a random pick was swapped so that the group carries a signal."""
    skipped: bool = False
    """True when fewer than 2 samples are known: the prompt is masked (the collectives stay the same)."""

    @property
    def rows(self) -> NDArray[np.intp]:
        """All kept rows, ascending."""
        return np.array(sorted(self.best + self.random + self.worst), dtype=np.intp)


def select(
    rewards: ArrayLike,
    keep: int = 8,
    best: int = 4,
    seed: str | int = 0,
    rescue_variance: bool = True,
    tol: float = 1e-6,
    worst: int = 0,
) -> Selection:
    """Keep the `best` highest and the `worst` lowest rewards and fill up to `keep` with a random draw from the rest.

    Args:
        rewards: [N'] rewards of one prompt's samples; NaN samples are never kept.
        keep: N, number of samples to train on, at least 2.
        best: K in [0, keep]; 0 is a plain random subsample, `keep` is pure top-N.
        seed: any text or number; names run, step and prompt. Also breaks ties of equal rewards.
        rescue_variance: when all kept rewards are equal (max - min <= tol) though the full set's are not,
            swap one random pick for the global minimum (or the maximum, when the minimum is what was kept).
        tol: largest difference that is a tie.
        worst: samples that are kept for the lowest rewards, so that best + worst + random = `keep`; where fewer
            are known, the best are taken first.

    Raises:
        InputError: sizes that do not fit, or rewards that are not [N'].
    """
    values = rewards_array(rewards)
    if values.ndim != 1:
        raise InputError(f"select needs rewards [N'], got shape {list(values.shape)}")
    check(len(values), keep, best, worst)
    switch("rescue_variance", rescue_variance)
    number("tol", tol, low=0.0)
    known = np.flatnonzero(~np.isnan(values))
    rng = seeded_rng("selection", seed)
    # Shuffling before a stable sort breaks ties by the seed, not by position.
    shuffled = known[rng.permutation(len(known))]
    order = shuffled[np.argsort(-values[shuffled], kind="stable")]
    top, rest = order[:best], order[best:]
    rest, bottom = np.split(rest, [max(len(rest) - worst, 0)])
    drawn = rest[rng.permutation(len(rest))[: keep - best - worst]]
    rescued = False
    chosen = np.concatenate([top, drawn, bottom])
    if rescue_variance and len(drawn) and np.ptp(values[chosen]) <= tol < np.ptp(values[known]):
        at_minimum = values[chosen[0]] - values[order[-1]] <= tol
        drawn[-1] = order[0] if at_minimum else order[-1]
        rescued = True
    picked, filled, lowest = (tuple(map(int, part)) for part in (top, drawn, bottom))
    return Selection(picked, filled, lowest, rescued, skipped=len(chosen) < 2)


def check(drawn: int, keep: int, best: int, worst: int = 0) -> None:
    """Refuse sizes that do not fit, before anything is sampled.

    Raises:
        InputError: unless 2 <= keep <= drawn, best and worst are at least 0, and best + worst <= keep.
    """
    if not 2 <= keep <= drawn:
        raise InputError(f"selection keeps {keep} of {drawn} samples; needs 2 <= keep <= number of samples drawn")
    if not 0 <= best <= keep:
        raise InputError(f"selection: best is {best}; needs 0 <= best <= keep ({keep})")
    if not 0 <= worst <= keep - best:
        raise InputError(f"selection: worst is {worst}; needs 0 <= worst <= keep - best ({keep} - {best})")
