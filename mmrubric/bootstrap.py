"""Percentile bootstrap intervals of means, resampling whole prompts.

Prompts are the independent unit: images of one prompt share its difficulty, so resampling images would make
intervals too narrow. Unknown values are NaN and are never counted as 0 or 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrubric.errors import InputError

_CHUNK = 2_000_000
"""Indices drawn at a time: bounds memory (about 50 MB); the draws do not depend on it."""


class Interval(NamedTuple):
    """A 95 % (or other level) interval around an estimate; all NaN when nothing is known."""

    low: float
    mid: float
    """The estimate on the data itself, not the median of the resamples."""
    high: float


def bootstrap(values: ArrayLike, seed: int, resamples: int = 10_000, level: float = 0.95) -> Interval:
    """Interval of the mean over known values, by resampling prompts.

    Args:
        values: [P] or [P, S] (prompts, samples); NaN = unknown. A prompt with nothing known is left out.
        seed: same seed, same interval.
        resamples: number of bootstrap resamples, at least 100.
        level: coverage in (0, 1).

    Returns:
        (low, mid, high). With one known prompt low and high are NaN: one unit has no spread to resample.

    Raises:
        InputError: wrong shape, infinite values, bad `resamples` or `level`.
    """
    sums, counts = _sums(values, "values")
    kept = counts > 0
    columns = np.stack([sums[kept], counts[kept]], axis=1)
    return _interval(columns, seed, resamples, level)


def paired_bootstrap(
    before: ArrayLike, after: ArrayLike, seed: int, resamples: int = 10_000, level: float = 0.95
) -> Interval:
    """Interval of mean(after) - mean(before), paired by prompt.

    Each resample draws prompts with replacement and takes both conditions of the drawn prompts; each mean is
    over the known values of these prompts. A prompt with nothing known in one condition is left out of both,
    so the difference always compares the same prompts (`known_pairs` says which).

    Args:
        before: [P] or [P, S]; NaN = unknown. Row p is the same prompt as row p of `after`.
        after: [P] or [P, S']; the number of samples may differ.
        seed: same seed, same interval.
        resamples: number of bootstrap resamples, at least 100.
        level: coverage in (0, 1).

    Returns:
        (low, mid, high). With one known pair low and high are NaN, with none all three.

    Raises:
        InputError: the numbers of prompts differ, or as for `bootstrap`.
    """
    kept = known_pairs(before, after)
    sums_b, counts_b = _sums(before, "before")
    sums_a, counts_a = _sums(after, "after")
    columns = np.stack([sums_b, counts_b, sums_a, counts_a], axis=1)[kept]
    return _interval(columns, seed, resamples, level)


def known_pairs(before: ArrayLike, after: ArrayLike) -> NDArray[np.bool_]:
    """[P] bool: prompts with a known value in both conditions, the ones `paired_bootstrap` uses."""
    _, counts_b = _sums(before, "before")
    _, counts_a = _sums(after, "after")
    if len(counts_b) != len(counts_a):
        raise InputError(
            f"paired bootstrap: before has {len(counts_b)} prompts and after has {len(counts_a)}; "
            "rows must be the same prompts in the same order"
        )
    return (counts_b > 0) & (counts_a > 0)


def _sums(values: ArrayLike, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of the known values of each prompt, both [P]."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2):
        raise InputError(f"bootstrap: {name} must be [P] or [P, S], got shape {array.shape}")
    if np.isinf(array).any():
        raise InputError(f"bootstrap: {name} holds an infinite value; use NaN for unknown")
    array = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 0)
    known = ~np.isnan(array)
    return np.where(known, array, 0.0).sum(axis=1), known.sum(axis=1).astype(np.float64)


def _interval(columns: NDArray[np.float64], seed: int, resamples: int, level: float) -> Interval:
    if resamples < 100:
        raise InputError(f"bootstrap: resamples must be at least 100, got {resamples}")
    if not 0.0 < level < 1.0:
        raise InputError(f"bootstrap: level must lie in (0, 1), got {level}")
    prompts = len(columns)
    if prompts == 0:
        return Interval(np.nan, np.nan, np.nan)
    mid = float(_statistic(columns.sum(axis=0)[None])[0])
    if prompts == 1:
        return Interval(np.nan, mid, np.nan)
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK // prompts)
    parts = []
    for start in range(0, resamples, rows):
        index = rng.integers(0, prompts, size=(min(rows, resamples - start), prompts))
        totals = np.stack([column[index].sum(axis=1) for column in columns.T], axis=1)
        parts.append(_statistic(totals))
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(np.concatenate(parts), [tail, 1.0 - tail])
    return Interval(float(low), mid, float(high))


def _statistic(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R, 2] -> mean, [R, 4] -> mean(after) - mean(before); columns are sum, count(, sum, count)."""
    if totals.shape[1] == 2:
        return totals[:, 0] / totals[:, 1]
    return totals[:, 2] / totals[:, 3] - totals[:, 0] / totals[:, 1]
