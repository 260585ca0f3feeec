"""Weights of global rules from labelled pairs, and the reward that they make.

One row per pair: d = scores of the preferred candidate minus those of the other one, one column per rule, so that
swapping the two candidates of a pair changes nothing. The weights are those of a logistic regression without
intercept, kept sparse by an l1 penalty. Source: AutoRubric-T2I, arXiv 2605.17602; the fit is reconstructed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrubric.aggregate.base import Aggregator, Context, registry
from mmrubric.checks import number
from mmrubric.errors import InputError, RunError
from mmrubric.scores import Floats, ScoreTable, weighted_mean
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

LAMS = (0.01, 0.03, 0.1, 0.2)
"""Strengths of the penalty among which validation chooses."""
_TOLERANCE = 1e-10
_STEPS = 100_000

TAGS = Tags(Construction.contrastive_pairs, Optimisation.confusion_repair, Signal.output_level, Loop.none)


@registry.register("l1_rules", TAGS)
@dataclass(kw_only=True)
class L1Rules(Aggregator):
    """R = (sum |w| good over known rules) / (known share of sum |w|), in [0, sum |w|].

    It is `weighted` on the scale of the fit: sigmoid(R(a) - R(b)) is the probability that a is preferred. With
    weights below 0 it is the paper's sum of w times score plus a constant, which no comparison sees.
    Source: AutoRubric-T2I, arXiv 2605.17602.
    """

    def weigh(self, table: ScoreTable, ctx: Context) -> Floats:
        """Sum over rules, known or not, at the mean of the known ones."""
        return weighted_mean(table.good, table.weights) * table.weights.sum()


@dataclass(frozen=True)
class Fit:
    """Weights of J rules."""

    weights: Floats
    """[J] for scores as judged: the margin of a pair is d @ weights."""
    scaled: Floats
    """[J] for columns of root mean square 1: what the penalty saw, and what rules are ranked by."""
    lam: float

    @property
    def kept(self) -> NDArray[np.intp]:
        """Columns with a weight, the heaviest first."""
        order = np.argsort(-np.abs(self.scaled), kind="stable")
        return order[self.scaled[order] != 0.0]


@dataclass(frozen=True)
class HardPairs:
    """Rows that the weights get wrong, and rows that they get right by little."""

    misranked: NDArray[np.intp]
    """Margin <= 0."""
    low_margin: NDArray[np.intp]
    """Margin above 0, and below the quantile of all |margin|."""


def differences(first: ArrayLike, second: ArrayLike, preferred: Sequence[int]) -> Floats:
    """Scores of the preferred candidate minus those of the other one; NaN where one of them is unknown.

    Args:
        first, second: [P, J] scores of the two candidates of each pair, as they were shown.
        preferred: P indices, 0 = first, 1 = second.

    Returns:
        d [P, J].
    """
    signs = np.array([1.0 - 2.0 * index for index in preferred])
    return signs[:, None] * (np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64))


def fit_l1(d: ArrayLike, lam: float, *, scale: bool = True, nonneg: bool = False) -> Fit:
    """min over w of mean log(1 + exp(-w.d)) + lam ||w||_1, by accelerated proximal gradient with restarts.

    Args:
        d: [P, J] differences, all known.
        lam: strength of the penalty, above 0: without it, pairs that rules tell apart send the weights to infinity.
        scale: divide every column by its root mean square about zero before the fit, so that the penalty does not
            favour rules whose scores vary much. Never centred: that would tell the two orders of a pair apart.
        nonneg: only weights >= 0.

    Raises:
        InputError: no pairs, a value that is not finite, or lam <= 0.
        RunError: no convergence.
    """
    d = _checked(d)
    if number("lam", lam, low=0.0) == 0.0:
        raise InputError("lam: must be above 0")
    size = np.sqrt((d**2).mean(axis=0)) if scale else np.ones(d.shape[1])
    # A rule that scores both candidates of every pair alike has nothing to be divided by, and no weight.
    size[size == 0.0] = 1.0
    w = _minimise(d / size, lam, nonneg)
    return Fit(w / size, w, lam)


def select(d: ArrayLike, lam: float, top: int, *, scale: bool = True, nonneg: bool = False, refit: bool = True) -> Fit:
    """`fit_l1`, with only the `top` heaviest rules of weight above 0 left.

    Args:
        d, lam, scale, nonneg: see `fit_l1`.
        top: most rules to keep.
        refit: fit again on the rules that are left, until none of them leaves; False keeps the first weights.

    Returns:
        A fit over all J rules; those that left have weight 0.
    """
    d = _checked(d)
    left = np.arange(d.shape[1])
    while True:
        fit = fit_l1(d[:, left], lam, scale=scale, nonneg=nonneg)
        stay = np.sort([column for column in fit.kept if fit.scaled[column] > 0.0][:top]).astype(np.intp)
        if len(stay) == len(left) or not refit:
            return _spread(fit, stay, left, d.shape[1])
        left = left[stay]


def accuracy(weights: ArrayLike, d: ArrayLike) -> float:
    """Share of pairs whose preferred candidate has the higher reward; a tie counts one half."""
    margins = _checked(d) @ np.asarray(weights, dtype=np.float64)
    return float(((margins > 0.0) + 0.5 * (margins == 0.0)).mean())


def best_of(fits: Sequence[Fit], d: ArrayLike) -> tuple[Fit, float]:
    """The fit with the highest accuracy on validation pairs d, and that accuracy; of equals the largest lam.

    The larger penalty leaves fewer rules.
    """
    scored = [(accuracy(fit.weights, d), fit.lam, index) for index, fit in enumerate(fits)]
    best = max(scored)
    return fits[best[2]], best[0]


def hard_pairs(weights: ArrayLike, d: ArrayLike, low: float = 0.2) -> HardPairs:
    """Pairs to look at again, the worst first.

    Args:
        weights, d: [J] and [P, J].
        low: quantile of |margin| below which a margin is low, in [0, 1].
    """
    margins = _checked(d) @ np.asarray(weights, dtype=np.float64)
    order = np.argsort(margins, kind="stable")
    floor = np.quantile(np.abs(margins), number("low", low, 0.0, 1.0))
    return HardPairs(
        misranked=order[margins[order] <= 0.0],
        low_margin=order[(margins[order] > 0.0) & (margins[order] < floor)],
    )


def collinear(d: ArrayLike, threshold: float) -> list[tuple[int, ...]]:
    """Clusters of rules that say the same (or the opposite), each with its representative first.

    l1 picks one of several equal columns by chance, so one is chosen here: the one that prefers the preferred
    candidates most; one that speaks against them only if none speaks for them.

    Args:
        d: [P, J] differences.
        threshold: least |cosine| of two columns, about zero as in the fit, in [0, 1]. Columns of zeros stay alone.

    Returns:
        Clusters that together hold every column once, in the order of their representatives.
    """
    d = _checked(d)
    length = np.linalg.norm(d, axis=0)
    unit = np.divide(d, length, out=np.zeros_like(d), where=length > 0)
    strength = unit.sum(axis=0)
    order = sorted(range(d.shape[1]), key=lambda column: (strength[column] <= 0.0, -abs(strength[column]), column))
    near = np.abs(unit.T @ unit) >= number("threshold", threshold, 0.0, 1.0) - 1e-12
    clusters: dict[int, list[int]] = {}
    for column in order:
        head = next((head for head in clusters if near[head, column] and length[column] > 0), column)
        clusters.setdefault(head, []).append(column)
    return [tuple(clusters[head]) for head in sorted(clusters)]


def split_by_prompt(prompts: Sequence[str], share: float, seed: int) -> NDArray[np.bool_]:
    """True for the pairs of validation: all pairs of a prompt fall on one side.

    Args:
        prompts: of the P pairs.
        share: of the prompts that is held out, in (0, 1); at least one prompt is on each side.
        seed: of the draw.

    Raises:
        InputError: fewer than two prompts.
    """
    names = sorted(set(prompts))
    if len(names) < 2:
        raise InputError(
            f"pairs: have {len(names)} prompt; give pairs of two prompts or more, so that some can be held out"
        )
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    chosen = {names[index] for index in np.random.default_rng(seed).permutation(len(names))[:count]}
    return np.array([prompt in chosen for prompt in prompts])


def _minimise(d: Floats, lam: float, nonneg: bool) -> Floats:
    curvature = np.linalg.norm(d, 2) ** 2 / (4 * len(d)) if d.size else 0.0
    w = ahead = np.zeros(d.shape[1])
    if curvature == 0.0:
        return w
    momentum = 1.0
    for _ in range(_STEPS):
        # sigmoid(-m) = (1 - tanh(m / 2)) / 2, which no margin overflows.
        gradient = -(d * (0.5 - 0.5 * np.tanh(d @ ahead / 2))[:, None]).mean(axis=0)
        moved = ahead - gradient / curvature
        new = np.maximum(np.abs(moved) - lam / curvature, 0.0) * np.sign(moved)
        new = np.maximum(new, 0.0) if nonneg else new
        if np.abs(new - ahead).max() <= _TOLERANCE:
            return new
        if (ahead - new) @ (new - w) > 0.0:
            # The momentum points uphill: start it anew.
            momentum, ahead = 1.0, new
        else:
            later = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            ahead = new + (momentum - 1.0) / later * (new - w)
            momentum = later
        w = new
    raise RunError(f"l1 fit: no convergence in {_STEPS} steps at lam {lam:g}; use a larger lam, or scale the columns")


def _spread(fit: Fit, stay: NDArray[np.intp], left: NDArray[np.intp], width: int) -> Fit:
    """The weights of the columns `stay` (of those `left`) at their places among `width` columns."""
    weights, scaled = np.zeros(width), np.zeros(width)
    weights[left[stay]], scaled[left[stay]] = fit.weights[stay], fit.scaled[stay]
    return Fit(weights, scaled, fit.lam)


def _checked(d: ArrayLike) -> Floats:
    d = np.asarray(d, dtype=np.float64)
    if d.ndim != 2 or not len(d):
        raise InputError(f"d: expected differences [pairs, rules] with at least one pair, got shape {list(d.shape)}")
    if not np.isfinite(d).all():
        raise InputError("d: a difference is not finite; leave out pairs with an unknown score")
    return d
