"""Dynamic rollout selection: draw more samples than are trained on, keep a mix of best and random.

Source: RubricRL, arXiv 2511.20651; N 8, N' 12, K 4 and `rescue_variance` are ours.
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
    rescued: bool = False
    """True when a random pick was swapped so that the group carries a signal."""
    skipped: bool = False
    """True when fewer than 2 samples are known: the prompt is masked (the collectives stay the same)."""

    @property
    def rows(self) -> NDArray[np.intp]:
        """All kept rows, ascending."""
        return np.array(sorted(self.best + self.random), dtype=np.intp)


def select(
    rewards: ArrayLike,
    keep: int = 8,
    best: int = 4,
    seed: str | int = 0,
    rescue_variance: bool = True,
    tol: float = 1e-6,
) -> Selection:
    """Keep the `best` highest rewards and fill up to `keep` with a random draw from the rest.

    Args:
        rewards: [N'] rewards of one prompt's samples; NaN samples are never kept.
        keep: N, number of samples to train on, at least 2.
        best: K in [0, keep]; 0 is a plain random subsample, `keep` is pure top-N.
        seed: any text or number; names run, step and prompt. Also breaks ties of equal rewards.
        rescue_variance: when all kept rewards are equal (max - min <= tol) though the full set's are not,
            swap one random pick for the global minimum (or the maximum, when the minimum is what was kept).

    Raises:
        InputError: sizes that do not fit, or rewards that are not [N'].
    """
    values = rewards_array(rewards)
    if values.ndim != 1:
        raise InputError(f"select needs rewards [N'], got shape {list(values.shape)}")
    check(len(values), keep, best)
    switch("rescue_variance", rescue_variance)
    number("tol", tol, low=0.0)
    known = np.flatnonzero(~np.isnan(values))
    rng = seeded_rng("selection", seed)
    # Shuffling before a stable sort breaks ties by the seed, not by position.
    shuffled = known[rng.permutation(len(known))]
    order = shuffled[np.argsort(-values[shuffled], kind="stable")]
    top, rest = order[:best], order[best:]
    drawn = rest[rng.permutation(len(rest))[: max(keep - len(top), 0)]]
    rescued = False
    chosen = np.concatenate([top, drawn])
    if rescue_variance and len(drawn) and np.ptp(values[chosen]) <= tol < np.ptp(values[known]):
        at_minimum = values[chosen[0]] - values[order[-1]] <= tol
        drawn[-1] = order[0] if at_minimum else order[-1]
        rescued = True
    return Selection(tuple(map(int, top)), tuple(map(int, drawn)), rescued, skipped=len(chosen) < 2)


def check(drawn: int, keep: int, best: int) -> None:
    """Refuse sizes that do not fit, before anything is sampled.

    Raises:
        InputError: unless 2 <= keep <= drawn and 0 <= best <= keep.
    """
    if not 2 <= keep <= drawn:
        raise InputError(f"selection keeps {keep} of {drawn} samples; needs 2 <= keep <= number of samples drawn")
    if not 0 <= best <= keep:
        raise InputError(f"selection: best is {best}; needs 0 <= best <= keep ({keep})")
