"""How well a criterion tells a reference from candidates. Source: SibylSense, arXiv 2602.20751; forms reconstructed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mmrubric.errors import InputError
from mmrubric.scores import Floats, weighted_mean


def gaps(reference: ArrayLike, candidates: ArrayLike) -> Floats:
    """Score of the reference minus the mean score of the candidates, in [-1, 1].

    Args:
        reference: [K] scores in [0, 1], NaN = unknown.
        candidates: [N, K]; unknown ones are outside the mean.

    Returns:
        [K]; NaN where the reference or all candidates are unknown.
    """
    scores = np.asarray(candidates, dtype=np.float64)
    return np.asarray(reference, dtype=np.float64) - weighted_mean(scores.T, np.ones(len(scores)))


def is_binary(scores: ArrayLike) -> bool:
    """Whether all known scores are exactly 0 or 1."""
    values = np.asarray(scores, dtype=np.float64)
    return bool(np.isin(values[~np.isnan(values)], (0.0, 1.0)).all())


def spread(repeats: ArrayLike) -> Floats:
    """Standard deviation over repeated evaluations (ddof 1), averaged over the samples.

    Args:
        repeats: [R, S, K] scores; what is unknown once is outside.

    Returns:
        [K]; 0 with one evaluation, which is noise left out of account; NaN where no sample is known in all.
    """
    scores = np.asarray(repeats, dtype=np.float64)
    if len(scores) < 2:
        return np.zeros(scores.shape[2])
    deviation = scores.std(axis=0, ddof=1)
    return weighted_mean(deviation.T, np.ones(deviation.shape[0]))


def alphas(gap: ArrayLike, sigma: ArrayLike, lam: float, *, binary: bool = False) -> Floats:
    """gap - lam sigma: a criterion that is judged now so, now so is worth less.

    Args:
        gap, sigma: [K], see `gaps` and `spread`.
        lam: at least 0.
        binary: the judge says only yes or no; the paper then leaves the second term out.
    """
    gap = np.asarray(gap, dtype=np.float64)
    return gap.copy() if binary else gap - lam * np.asarray(sigma, dtype=np.float64)


def preference_accuracy(reference: ArrayLike, candidate: ArrayLike, weights: ArrayLike) -> float:
    """Weighted share of criteria that score the reference higher, ties one half; NaN without a known one.

    Args:
        reference, candidate: [K] scores, NaN = unknown.
        weights: [K] magnitudes.
    """
    ours, theirs = np.asarray(reference, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1:
        raise InputError(f"reference and candidate: expected two lists of one length, got {ours.shape}, {theirs.shape}")
    known = ~np.isnan(ours) & ~np.isnan(theirs)
    won = np.where(known, (ours > theirs) + 0.5 * (ours == theirs), np.nan)
    return float(weighted_mean(won, np.asarray(weights, dtype=np.float64)))
