"""The one group normaliser."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.scores import Floats


def masked_standardize(
    values: ArrayLike,
    mask: ArrayLike | None = None,
    axes: int | tuple[int, ...] | None = None,
    ddof: int = 1,
    eps: float = 1e-6,
    tol: float = 1e-6,
) -> Floats:
    """(x - mean) / (std + eps) over the known values of `axes`, float64, the shape of `values`.

    No signal is exactly 0: where max - min <= tol over the known values, or fewer than 2 are known, the
        result is
    0, decided before any division. It is 0 outside the mask and where a value is NaN.

    Args:
        values: any shape; NaN = unknown.
        mask: broadcastable to `values`; True = take part. NaN never takes part.
        axes: axes to normalise over; None = all.
        ddof: 1 for sample axes, 0 for token axes.
        eps: added to the standard deviation, >= 0.
        tol: largest spread that counts as a tie, >= 0.

    Raises:
        InputError: infinite values or a bad option.
    """
    check_options(ddof, eps, tol)
    x = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(x) if mask is None else ~np.isnan(x) & np.broadcast_to(np.asarray(mask, dtype=bool), x.shape)
    if np.isinf(x[known]).any():
        raise InputError("masked_standardize: values hold infinity; use NaN for unknown")
    deviation, signal = center(x, known, axes, tol)
    std = spread(deviation, known, axes, ddof)
    return np.divide(deviation, std + eps, out=np.zeros(x.shape), where=known & signal & (std + eps > 0))


def check_options(ddof: int, eps: float, tol: float) -> None:
    """Refuse options of the normaliser that are out of range."""
    if ddof not in (0, 1):
        raise InputError(f"ddof: {ddof!r} is not 0 or 1")
    number("eps", eps, low=0.0)
    number("tol", tol, low=0.0)


def center(x: Floats, known: np.ndarray, axes: int | tuple[int, ...] | None, tol: float) -> tuple[Floats, np.ndarray]:
    """x minus the mean of its known values (0 elsewhere), and whether there is a signal."""
    count = known.sum(axis=axes, keepdims=True)
    mean = np.where(known, x, 0.0).sum(axis=axes, keepdims=True) / np.maximum(count, 1)
    high = np.where(known, x, -np.inf).max(axis=axes, keepdims=True, initial=-np.inf)
    low = np.where(known, x, np.inf).min(axis=axes, keepdims=True, initial=np.inf)
    signal = (count >= 2) & (high - low > tol)
    return np.where(known, x - mean, 0.0), signal


def spread(deviation: Floats, known: np.ndarray, axes: int | tuple[int, ...] | None, ddof: int) -> Floats:
    """Standard deviation of centred values over the known ones; 0 where fewer than 2 are known."""
    count = known.sum(axis=axes, keepdims=True)
    squares = np.square(np.where(known, deviation, 0.0)).sum(axis=axes, keepdims=True)
    return np.where(count >= 2, np.sqrt(squares / np.maximum(count - ddof, 1)), 0.0)
