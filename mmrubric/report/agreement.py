"""How good a judge is: statistics of its answers against labels, against itself, and against its other order.

Pure numpy. NaN = unknown, and an unknown value is left out on both sides, never counted as 0. A statistic that the
data cannot decide is NaN; each function says when that is so. The formulas on totals (`kappa_of`, `alpha_of`,
`ece_of`, ...) take sums over items with any leading axes, so that a bootstrap can resample sums instead of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.preference import both_orders
from mmrubric.scores import PASS

Floats = NDArray[np.float64]
Outcomes = Sequence[PairVerdict]
Weights = Literal["none", "linear", "quadratic"]
Level = Literal["nominal", "ordinal", "interval"]
BINS = 10
GRADES = 5
"""Steps 0, 1/4, .. 1 on which values in [0, 1] are compared by weighted kappa."""


def ratio(hits: ArrayLike, total: ArrayLike) -> Floats:
    """hits / total, NaN where the total is 0."""
    hits, total = np.broadcast_arrays(np.asarray(hits, np.float64), np.asarray(total, np.float64))
    return np.divide(hits, total, out=np.full(hits.shape, np.nan), where=total != 0)


def decided(met: ArrayLike) -> Floats:
    """Yes (1.0) or no (0.0) of values in [0, 1], by met >= 0.5 as everywhere; NaN kept."""
    values = shares(met, "met")
    return np.where(np.isnan(values), np.nan, (values >= PASS).astype(np.float64))


def graded(met: ArrayLike, grades: int = GRADES) -> Floats:
    """The nearest of `grades` even steps as 0 .. grades - 1 (halves up); NaN kept."""
    return np.floor(shares(met, "met") * (grades - 1) + 0.5)


def shares(values: ArrayLike, name: str) -> Floats:
    """The values as float64; `InputError` when one lies outside [0, 1]. NaN or None = unknown."""
    array = np.asarray(values, dtype=np.float64)
    if not (np.isnan(array) | ((array >= 0) & (array <= 1))).all():
        raise InputError(f"{name} must lie in [0, 1], with NaN for unknown; got {np.nanmin(array)}..{np.nanmax(array)}")
    return array


def known_both(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    """The entries of two arrays [N] that are known in both. Different lengths: `InputError`."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise InputError(f"expected two arrays [N] of one length, got shapes {list(a.shape)} and {list(b.shape)}")
    known = ~np.isnan(a) & ~np.isnan(b)
    return a[known], b[known]


def coverage(met: ArrayLike) -> float:
    """Share of answers that are known, in [0, 1]; NaN without any entry."""
    array = np.asarray(met, dtype=np.float64)
    return float((~np.isnan(array)).mean()) if array.size else float("nan")


def accuracy(judge: ArrayLike, truth: ArrayLike) -> float:
    """Share of equal entries of two category arrays [N], in [0, 1]; NaN when nothing is known in both."""
    a, b = known_both(judge, truth)
    return float(ratio((a == b).sum(), len(a)))


def confusion(first: ArrayLike, second: ArrayLike, levels: Sequence[float]) -> Floats:
    """Counts [K, K]: row = level of `first`, column = level of `second`; entries unknown on a side are left out.

    Raises:
        InputError: a value that is none of the levels.
    """
    a, b = known_both(first, second)
    order = np.asarray(levels, np.float64)
    stray = sorted(set(np.concatenate([a, b]).tolist()) - set(order.tolist()))
    if stray:
        raise InputError(f"values {stray} are none of the levels {order.tolist()}")
    # `levels` is in the order of the scale, which need not be the order of the numbers.
    place = {float(level): k for k, level in enumerate(order)}
    table = np.zeros((len(order), len(order)))
    np.add.at(table, ([place[v] for v in a.tolist()], [place[v] for v in b.tolist()]), 1.0)
    return table


def kappa_of(table: Floats, weights: Weights = "none") -> Floats:
    """Cohen's kappa of confusion counts [..., K, K]: 1 - observed / expected disagreement, [...].

    NaN where the expected disagreement is 0: both sides use one and the same level, so agreement by chance is
    certain and the question is undecided.
    """
    steps = np.arange(table.shape[-1])
    distance = np.abs(steps[:, None] - steps[None, :]).astype(np.float64)
    one_of("weights", weights, get_args(Weights))
    cost = {"none": (distance > 0).astype(np.float64), "linear": distance, "quadratic": distance**2}[weights]
    by_chance = table.sum(axis=-1)[..., :, None] * table.sum(axis=-2)[..., None, :]
    observed = (cost * table).sum(axis=(-2, -1)) * table.sum(axis=(-2, -1))
    return 1.0 - ratio(observed, (cost * by_chance).sum(axis=(-2, -1)))


def cohen_kappa(
    first: ArrayLike, second: ArrayLike, weights: Weights = "none", levels: Sequence[float] | None = None
) -> float:
    """Agreement of two raters beyond chance, at most 1; 0 = as by chance.

    Args:
        first, second: categories [N]; NaN = unknown.
        weights: `none`; or `linear` and `quadratic` in the number of levels between two answers.
        levels: the categories in the order of the scale; default: the values that occur, sorted.

    Returns:
        kappa; NaN when nothing is known in both or all known answers are one and the same category.

    Cohen 1960 and 1968 (weighted).
    """
    a, b = known_both(first, second)
    return float(kappa_of(confusion(a, b, np.union1d(a, b).tolist() if levels is None else levels), weights))


def krippendorff_alpha(ratings: ArrayLike, level: Level = "nominal") -> float:
    """Krippendorff's alpha: agreement of any number of raters beyond chance, with missing answers.

    Args:
        ratings: [raters, units]; NaN = no answer. Units with fewer than two answers say nothing and are left out.
        level: `nominal` (equal or not), `ordinal` (distance in ranks), `interval` (distance in value).

    Returns:
        alpha, at most 1; NaN when no unit has two answers or all paired answers are equal.

    Krippendorff, Content Analysis (2004), ch. 11.
    """
    values = np.asarray(ratings, dtype=np.float64)
    if values.ndim != 2:
        raise InputError(f"ratings must be [raters, units], got shape {list(values.shape)}")
    one_of("level", level, get_args(Level))
    known = ~np.isnan(values)
    known[:, known.sum(axis=0) < 2] = False
    if not known.any():
        return float("nan")
    codes, counts = np.unique(values[known], return_inverse=True, return_counts=True)[1:]
    if len(counts) == 1:
        return float("nan")
    answers = known.sum(axis=0)
    if level == "nominal":
        per_unit = np.zeros((values.shape[1], len(counts)))
        np.add.at(per_unit, (np.nonzero(known)[1], codes), 1.0)
        within = ratio(answers**2 - (per_unit**2).sum(axis=1), answers - 1.0)[answers > 1].sum()
        between = float(known.sum()) ** 2 - (counts.astype(np.float64) ** 2).sum()
        return float(_alpha(known.sum(), within, between))
    flat = values[known]
    if level == "ordinal":
        # The ordinal distance, sum of n_g from c to k minus (n_c + n_k) / 2, is the difference of mean ranks.
        flat = (np.cumsum(counts) - counts / 2)[codes]
    # Alpha does not change under shift and scale; in [0, 1] no digits are lost.
    flat = (flat - flat.min()) / (flat.max() - flat.min())
    filled = np.zeros(values.shape)
    filled[known] = flat
    return float(alpha_of(alpha_totals(filled, known).sum(axis=0)))


def alpha_totals(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """What each unit adds to interval alpha, [units, 4]: answers, sum, sum of squares, disagreement within.

    Args:
        values: [raters, units], anything where unknown.
        known: [raters, units]; units with fewer than two known answers add nothing.
    """
    usable = known & (known.sum(axis=0) >= 2)
    answers = usable.sum(axis=0).astype(np.float64)
    total, squares = (np.where(usable, v, 0.0).sum(axis=0) for v in (values, values**2))
    within = np.where(answers > 1, 2 * ratio(answers * squares - total**2, answers - 1), 0.0)
    return np.stack([answers, total, squares, within], axis=1)


def alpha_of(totals: Floats) -> Floats:
    """Interval alpha from totals [..., 4] of `alpha_totals` on values in [0, 1]; NaN where all values are equal."""
    answers, total, squares, within = np.moveaxis(totals, -1, 0)
    between = 2 * (answers * squares - total**2)
    # What is left of equal values is rounding.
    return _alpha(answers, within, np.where(between > 1e-12 * answers**2, between, 0.0))


def _alpha(answers: ArrayLike, within: ArrayLike, between: ArrayLike) -> Floats:
    """1 - observed / expected disagreement, from the pairs within units and among all answers."""
    return 1.0 - ratio((np.asarray(answers) - 1.0) * np.asarray(within), between)


@dataclass(frozen=True)
class Diagram:
    """What a reliability diagram draws. Bin b holds edges[b] <= p < edges[b + 1]; the last one holds p = 1 too."""

    edges: Floats
    """[B + 1] from 0 to 1, equally wide."""
    counts: Floats
    """[B] answers per bin."""
    said: Floats
    """[B] mean probability; NaN for an empty bin."""
    true: Floats
    """[B] mean label: how often it was true; NaN for an empty bin."""


def bin_totals(probability: ArrayLike, truth: ArrayLike, bins: int = BINS) -> Floats:
    """What each item adds to its bin, [N, B, 3]: 1, probability, label; zeros where one is unknown."""
    p, t = shares(probability, "probability"), shares(truth, "truth")
    if p.ndim != 1 or p.shape != t.shape:
        raise InputError(f"probability and truth must be [N], got shapes {list(p.shape)} and {list(t.shape)}")
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    known = ~np.isnan(p) & ~np.isnan(t)
    where = np.minimum(np.searchsorted(_edges(bins), np.where(known, p, 0.0), side="right") - 1, bins - 1)
    totals = np.zeros((len(p), bins, 3))
    items = np.flatnonzero(known)
    totals[items, where[items]] = np.stack([np.ones(len(items)), p[items], t[items]], axis=1)
    return totals


def _edges(bins: int) -> Floats:
    # k / bins is the float nearest to the decimal edge; linspace(0, 1, 11)[3] lies above 0.3.
    return np.arange(bins + 1) / bins


def ece_of(totals: Floats) -> Floats:
    """ECE from totals [..., B, 3] of `bin_totals`: sum over bins of |sum p - sum label| / N; NaN where N = 0."""
    gap = np.abs(totals[..., 1] - totals[..., 2]).sum(axis=-1)
    return ratio(gap, totals[..., 0].sum(axis=-1))


def diagram(probability: ArrayLike, truth: ArrayLike, bins: int = BINS) -> Diagram:
    """The reliability diagram of P(met) against labels in [0, 1]; `Diagram` states the rule for edges."""
    count, said, true = bin_totals(probability, truth, bins).sum(axis=0).T
    return Diagram(_edges(bins), count, ratio(said, count), ratio(true, count))


def ece(probability: ArrayLike, truth: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error of P(met) with equally wide bins, in [0, 1]; 0 = its percentages can be believed.

    It is the error of the probability of yes, not of the confidence in the chosen answer, and is biased upwards on
    few items. NaN when nothing is known on both sides. Guo et al., arXiv 1706.04599; bins as in `Diagram`.
    """
    return float(ece_of(bin_totals(probability, truth, bins).sum(axis=0)))


def brier(probability: ArrayLike, truth: ArrayLike) -> float:
    """Mean of (probability - label)^2, in [0, 1], 0 is best; NaN when nothing is known on both sides. Brier 1950."""
    p, t = known_both(shares(probability, "probability"), shares(truth, "truth"))
    return float(ratio(((p - t) ** 2).sum(), len(p)))


@dataclass(frozen=True)
class Orders:
    """Pairs asked in both orders."""

    outcomes: dict[PairVerdict, int]
    """Joined outcomes; an agreed win, an agreed tie and a disagreement are three different things."""
    known: int
    """Pairs answered in both orders; the other statistics rest on these."""
    consistency: float
    """Share of known pairs with the same outcome in both orders."""
    bias: float
    """Share of answers for the image shown first minus share for the one shown second, in [-1, 1].

    0 = no order is favoured, 1 = always the first. Without ties it equals `accuracy_first` - `accuracy_second`."""
    accuracy: float
    """Share of answers, over both orders, that name the preferred image; ties count as wrong. NaN without labels."""
    accuracy_first: float
    """The same when the preferred image is shown first."""
    accuracy_second: float
    """The same when it is shown second."""


ALWAYS_FIRST = {"consistency": 0.0, "bias": 1.0, "accuracy": 0.5}
"""The baseline: a judge that names the first image whatever it shows (on any pairs, see the test)."""


def order_totals(forward: Outcomes, swapped: Outcomes, preferred: Sequence[PairVerdict | None] | None = None) -> Floats:
    """What each pair adds, [N, 6]: known, agreed, first - second, labelled, right when preferred is first, second.

    Args:
        forward: verdict on (a, b) with a shown first.
        swapped: verdict on (b, a), named by position: WIN_A = the image shown first, which is b.
        preferred: WIN_A or WIN_B (by the forward naming) where labelled; a tie or None = no label.

    Raises:
        InputError: lengths differ, or an answer to one order is INCONSISTENT.
    """
    wanted = [None] * len(forward) if preferred is None else list(preferred)
    if not len(forward) == len(swapped) == len(wanted):
        raise InputError(f"{len(forward)} forward, {len(swapped)} swapped and {len(wanted)} preferred verdicts")
    rows = np.zeros((len(forward), 6))
    for row, one, other, best in zip(rows, forward, swapped, wanted, strict=True):
        if PairVerdict.INCONSISTENT in (one, other):
            raise InputError("an answer to one order cannot be INCONSISTENT; give the two orders apart")
        if PairVerdict.FAILED in (one, other):
            continue
        row[0] = 1
        row[1] = both_orders(one, other) != PairVerdict.INCONSISTENT
        row[2] = sum((v == PairVerdict.WIN_A) - (v == PairVerdict.WIN_B) for v in (one, other))
        if best in (PairVerdict.WIN_A, PairVerdict.WIN_B):
            right = one == best, PairVerdict(other).flipped() == best
            row[3], row[4], row[5] = 1, *(right if best == PairVerdict.WIN_A else right[::-1])
    return rows


def consistency_of(totals: Floats) -> Floats:
    """Position consistency from totals [..., 6] of `order_totals`; NaN where no pair is known."""
    return ratio(totals[..., 1], totals[..., 0])


def bias_of(totals: Floats) -> Floats:
    """First-order bias from totals [..., 6] of `order_totals`; NaN where no pair is known."""
    return ratio(totals[..., 2], 2 * totals[..., 0])


def orders(forward: Outcomes, swapped: Outcomes, preferred: Sequence[PairVerdict | None] | None = None) -> Orders:
    """Position consistency and first-order bias of a pair judge; arguments and errors as for `order_totals`.

    A statistic without any pair to rest on is NaN. `accuracy_first` - `accuracy_second` is the delta
    of arXiv 2605.08354.
    """
    totals = order_totals(forward, swapped, preferred).sum(axis=0)
    joined = [both_orders(one, other) for one, other in zip(forward, swapped, strict=True)]
    first, second = (float(ratio(totals[k], totals[3])) for k in (4, 5))
    return Orders(
        outcomes={verdict: joined.count(verdict) for verdict in PairVerdict},
        known=int(totals[0]),
        consistency=float(consistency_of(totals)),
        bias=float(bias_of(totals)),
        accuracy=(first + second) / 2,
        accuracy_first=first,
        accuracy_second=second,
    )


@dataclass(frozen=True)
class Spread:
    """The same questions asked several times."""

    cells: int
    """Questions with at least two known answers; the rest rests on these."""
    std: float
    """Standard deviation of one answer around its question's mean: root of the mean variance (ddof 1)."""
    changed: float
    """Share of questions whose yes or no is not the same every time."""


def spread_totals(runs: ArrayLike) -> Floats:
    """What each question adds, [N, 3]: 1, variance of its answers, whether its yes or no changed; else zeros.

    Args:
        runs: [R, N] in [0, 1]; NaN = unknown. Questions with fewer than two known answers add nothing.
    """
    values = shares(runs, "runs")
    if values.ndim != 2:
        raise InputError(f"runs must be [runs, questions], got shape {list(values.shape)}")
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    usable = count >= 2
    filled = np.where(known, values, 0.0)
    mean = ratio(filled.sum(axis=0), count)
    squares = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
    yes = (known & (values >= PASS)).sum(axis=0)
    columns = np.stack([np.ones(len(count)), ratio(squares, count - 1.0), (yes > 0) & (yes < count)], axis=1)
    return np.where(usable[:, None], columns, 0.0)


def spread_of(totals: Floats) -> Floats:
    """Standard deviation of a repeated answer from totals [..., 3] of `spread_totals`; NaN without a question."""
    return np.sqrt(ratio(totals[..., 1], totals[..., 0]))


def changed_of(totals: Floats) -> Floats:
    """Share of questions whose decision changed, from totals [..., 3] of `spread_totals`; NaN without a question."""
    return ratio(totals[..., 2], totals[..., 0])


def repeat_spread(runs: ArrayLike) -> Spread:
    """Run-to-run spread of a judge's answers [R, N] in [0, 1] (NaN = unknown), R runs over the same N questions.

    NaN when no question has two known answers. A preference between two samples should use a `margin` above it.
    """
    totals = spread_totals(runs).sum(axis=0)
    return Spread(int(totals[0]), float(spread_of(totals)), float(changed_of(totals)))
