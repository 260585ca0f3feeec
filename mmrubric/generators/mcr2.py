"""Which of many statements to keep: those that add directions to what is covered already (MCR2 coding rate).

Texts -> encoder -> unit vectors -> PCA -> unit vectors Z [N, D]. The coding rate of a set is
R(Z) = 1/2 sum_i log(1 + D / (N eps^2) s_i^2) with s_i its singular values: near 0 for repeats, large for statements on
different things. Only the top singular values with 95 % of the energy count, so that noise is not paid.

Source: Auto-Rubric as Reward, arXiv 2605.08354, gives the numbers; the greedy choice within a round is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.similar import Encoder

Floats = NDArray[np.float64]
DIMENSIONS = 100
_ZERO = 1e-9
"""Lengths and shares below this are rounding."""


def unit_rows(vectors: np.ndarray, zero: float = 0.0) -> Floats:
    """Rows [N, D] of length 1; a row no longer than `zero` becomes zeros.

    Raises:
        InputError: not two-dimensional, or a value that is not finite.
    """
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"encoder: vectors must be finite numbers [texts, dimensions], got shape {list(rows.shape)}")
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > zero)


def reduced(vectors: np.ndarray, dimensions: int = DIMENSIONS) -> Floats:
    """Unit vectors [N, D <= dimensions] in the principal axes of their directions; lengths of the input do not matter.

    Fewer than two different directions leave no axis: [N, 0].
    """
    rows = unit_rows(vectors)
    centred = rows - rows.mean(axis=0, keepdims=True)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    kept = axes[values > _ZERO][:dimensions]
    return unit_rows(centred @ kept.T, _ZERO)


def coding_rate(vectors: np.ndarray, eps: float = 0.1, energy: float = 0.95) -> float:
    """Coding rate in nats of rows [N, D], from the fewest singular values that hold `energy` of the sum of squares.

    Args:
        vectors: rows; their order and the axes do not matter.
        eps: distortion that is not told apart, > 0.
        energy: share in (0, 1].
    """
    number("eps", eps, low=1e-12)
    number("energy", energy, low=1e-12, high=1.0)
    rows = np.asarray(vectors, dtype=np.float64)
    if not rows.size:
        return 0.0
    squares = np.linalg.svd(rows, compute_uv=False) ** 2
    total = squares.sum()
    # The slack keeps the cut where it is when rounding moves a sum that meets the share exactly.
    needed = int(np.searchsorted(np.cumsum(squares), (energy - _ZERO) * total)) + 1
    return float(0.5 * np.log1p(_scale(rows.shape[1], len(rows), eps) * squares[:needed]).sum())


def _scale(dimensions: int, count: int, eps: float) -> float:
    return dimensions / (count * eps**2)


def grown(vectors: Floats, chosen: Sequence[int], most: int, least_gain: float, eps: float) -> list[int]:
    """Indices of rows to add to `chosen`, best first, while one raises the full coding rate by `least_gain`.

    Args:
        vectors: unit rows [N, D].
        chosen: rows that are in already.
        most: size of the whole set.
    """
    size, added = vectors.shape[1], list[int]()
    rate = coding_rate(vectors[list(chosen)], eps, 1.0)
    left = [index for index in range(len(vectors)) if index not in set(chosen)]
    while left and len(chosen) + len(added) < most:
        inside = vectors[[*chosen, *added]]
        scale = _scale(size, len(inside) + 1, eps)
        whole = np.eye(size) + scale * inside.T @ inside
        # det(A + s z z^T) = det(A) (1 + s z^T A^-1 z): one solve weighs all candidates.
        gains = np.log1p(scale * np.einsum("nd,dn->n", vectors[left], np.linalg.solve(whole, vectors[left].T)))
        best = int(np.argmax(gains))
        new = 0.5 * float(np.linalg.slogdet(whole)[1] + gains[best])
        if new - rate < least_gain:
            break
        rate = new
        added.append(left.pop(best))
    return added


@dataclass
class Selection:
    """A set of texts that grows in rounds until further ones add nothing.

    Args:
        encoder: texts -> vectors.
        least_gain: a round that raises the coding rate by less (nats) is a poor one.
        patience: poor rounds in a row that end it.
        max_rounds, max_texts: bounds.
        eps, energy: see `coding_rate`.
        dimensions: of the principal axes, at most.
    """

    encoder: Encoder
    least_gain: float = 0.002
    patience: int = 2
    max_rounds: int = 50
    max_texts: int = 200
    eps: float = 0.1
    energy: float = 0.95
    dimensions: int = DIMENSIONS
    chosen: list[str] = field(default_factory=list, init=False)
    """In the order in which they were taken."""
    gains: list[float] = field(default_factory=list, init=False)
    """Gain of each round (nats)."""

    @property
    def stopped(self) -> str:
        """Why no further round is needed; "" = go on."""
        if len(self.chosen) >= self.max_texts:
            return f"{self.max_texts} texts"
        if len(self.gains) >= self.max_rounds:
            return f"{self.max_rounds} rounds"
        last = self.gains[-self.patience :]
        if len(last) == self.patience and max(last) < self.least_gain:
            return f"gain below {self.least_gain:g} in {self.patience} rounds"
        return ""

    def offer(self, texts: Sequence[str]) -> float:
        """A round: takes of these texts those that add something. Their order does not matter.

        Returns:
            The gain in coding rate, both rates measured in the axes of this round.
        """
        new = sorted(set(texts) - set(self.chosen))
        if not new:
            self.gains.append(0.0)
            return 0.0
        pool = [*sorted(self.chosen), *new]
        vectors = np.asarray(self.encoder(pool))
        if len(vectors) != len(pool):
            raise InputError(f"encoder: gave {len(vectors)} vectors for {len(pool)} texts")
        rows = reduced(vectors, self.dimensions)
        before = list(range(len(self.chosen)))
        added = grown(rows, before, self.max_texts, self.least_gain, self.eps)
        gain = self._rate(rows[[*before, *added]]) - self._rate(rows[before])
        # A first text alone has no directions to compare with; it is taken all the same.
        self.chosen += [pool[index] for index in added] or ([] if self.chosen else pool[:1])
        self.gains.append(gain)
        return gain

    def _rate(self, rows: Floats) -> float:
        return coding_rate(rows, self.eps, self.energy)
