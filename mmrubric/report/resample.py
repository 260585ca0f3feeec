"""Bootstrap intervals of statistics that are formulas on sums, such as kappa or ECE.

`mmrubric.bootstrap` does means; this does any formula. As there, whole units (prompts) are resampled: pictures of one
prompt share its difficulty, so resampling single answers would make intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrubric.bootstrap import Interval
from mmrubric.errors import InputError

Floats = NDArray[np.float64]
_CHUNK = 2_000_000
"""Indices drawn at a time: bounds memory; the draws do not depend on it."""
_MOST_UNDEFINED = 0.05
"""With a larger share of undecided resamples the rest is no picture of the spread, and the bounds are NaN."""


@dataclass(frozen=True)
class Statistic:
    """A statistic that depends on its items only through sums over them."""

    columns: Floats
    """[N, ...] what each item adds; zeros where it says nothing."""
    formula: Callable[[Floats], Floats]
    """Totals [..., *columns.shape[1:]] to the statistic [...]; NaN where the totals do not decide it."""


def intervals(
    statistics: Mapping[str, Statistic], units: NDArray[np.intp], seed: int, resamples: int = 1000, level: float = 0.95
) -> dict[str, Interval]:
    """Percentile intervals of several statistics on the same N items, from the same resamples of units.

    Args:
        statistics: by name.
        units: [N] which unit each item belongs to, any integers.
        seed: same seed, same intervals.
        resamples: at least 100.
        level: coverage in (0, 1).

    Returns:
        (low, mid, high) by name; mid is the statistic on the data itself. The bounds are NaN when fewer than two units
        say anything, or when more than 5 % of the resamples leave the statistic undecided. They always hold mid:
        resampling adds noise to the bins of an ECE, so that all its resamples can lie above the estimate.

    Raises:
        InputError: bad `resamples` or `level`.
    """
    if resamples < 100:
        raise InputError(f"intervals: resamples must be at least 100, got {resamples}")
    if not 0.0 < level < 1.0:
        raise InputError(f"intervals: level must lie in (0, 1), got {level}")
    row = np.unique(units, return_inverse=True)[1]
    count = int(row.max()) + 1 if len(row) else 0
    sums = {name: _per_unit(statistic.columns, row, count) for name, statistic in statistics.items()}
    draws: dict[str, list[Floats]] = {name: [] for name in statistics}
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // max(1, count))
    for start in range(0, resamples if count > 1 else 0, step):
        size = min(step, resamples - start)
        index = rng.integers(0, count, size=(size, count)) + count * np.arange(size)[:, None]
        weights = np.bincount(index.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)
        for name, statistic in statistics.items():
            draws[name].append(statistic.formula(np.tensordot(weights, sums[name], axes=1).astype(np.float64)))
    return {
        name: _interval(
            float(statistic.formula(sums[name].sum(axis=0))), sums[name], np.concatenate(draws[name] or [[]]), level
        )
        for name, statistic in statistics.items()
    }


def _per_unit(columns: Floats, row: NDArray[np.intp], count: int) -> Floats:
    sums = np.zeros((count, *columns.shape[1:]))
    np.add.at(sums, row, columns)
    return sums


def _interval(mid: float, sums: Floats, draws: Floats, level: float) -> Interval:
    speaking = sums.reshape(len(sums), -1).any(axis=1).sum() if sums.size else 0
    known = draws[~np.isnan(draws)]
    if np.isnan(mid) or speaking < 2 or len(known) < (1 - _MOST_UNDEFINED) * len(draws):
        return Interval(np.nan, mid, np.nan)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(known, [tail, 1.0 - tail])
    return Interval(min(float(low), mid), mid, max(float(high), mid))
