"""From scores to preferences to the fixed advantages of RPO.

Source: Auto-Rubric as Reward, arXiv 2605.08354; the bridge from per-criterion scores to a preference is ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from mmrubric.checks import number, one_of, switch
from mmrubric.errors import InputError
from mmrubric.group import Pair, PairVerdict, rewards_array
from mmrubric.scores import Floats, Rules, ScoreTable, weighted_mean

PAIRINGS = ("disjoint", "round_robin")
TIE_POLICIES = ("drop", "ask_joint")
DEFAULT_MARGIN = 1e-6


def margin_of(margin: float | None, binarize: bool) -> float:
    """The margin to use: 1e-6 when none is given, which only makes sense for binarised criteria."""
    switch("binarize", binarize)
    if margin is None:
        if not binarize:
            raise InputError("margin: give one when binarize is false; soft scores are never exactly equal")
        return DEFAULT_MARGIN
    return number("margin", margin, low=0.0)


def compare(
    table: ScoreTable,
    a: int | str,
    b: int | str,
    margin: float | None = None,
    min_coverage: float = 0.5,
    dependencies: str = "none",
    gates: bool = True,
    binarize: bool = True,
) -> PairVerdict:
    """Prefer one of two samples of a table.

    S = sum w good / sum w over the criteria known for both; S(a) - S(b) > margin wins. Before that, in this
    order: dependencies; gates (a hard criterion failed on one side decides, on both sides is a TIE, unknown
        is FAILED);
    coverage (common known weight below `min_coverage` is FAILED).

    Args:
        table: the group's scores.
        a, b: rows or sample ids.
        margin: smallest difference of S (in [0, 1]) that counts; 1e-6 by default, required without
            `binarize`.
        min_coverage: in [0, 1].
        dependencies: none, direct or cascade.
        gates: whether hard criteria decide; False treats them as ordinary ones.
        binarize: take good as passed (good >= 0.5), because token probabilities are never exact.

    Raises:
        InputError: unknown sample, a equal to b, or a bad option.
    """
    margin = margin_of(margin, binarize)
    rules = Rules(dependencies, gates, min_coverage)
    first, second = table.row(a), table.row(b)
    if first == second:
        raise InputError(f"compare needs two different samples, got {a!r} twice")
    masked = table.with_dependencies(rules.dependencies)
    if rules.gates:
        gate_a, gate_b = masked.gate[first], masked.gate[second]
        if np.isnan(gate_a) or np.isnan(gate_b):
            return PairVerdict.FAILED
        if gate_a != gate_b:
            return PairVerdict.WIN_A if gate_a > gate_b else PairVerdict.WIN_B
        if gate_a == 0.0:
            return PairVerdict.TIE
    both = masked.known[first] & masked.known[second]
    share = weighted_mean(both.astype(np.float64), masked.weights)
    if not rules.covered(share):
        return PairVerdict.FAILED
    good = (masked.passed if binarize else masked.good)[[first, second]]
    score_a, score_b = weighted_mean(np.where(both, good, np.nan), masked.weights)
    return _by_margin(score_a - score_b, margin)


def compare_rewards(a: float, b: float, margin: float = DEFAULT_MARGIN) -> PairVerdict:
    """Prefer the larger reward; NaN on either side is FAILED."""
    if np.isnan(a) or np.isnan(b):
        return PairVerdict.FAILED
    return _by_margin(a - b, margin)


def _by_margin(difference: float, margin: float) -> PairVerdict:
    if abs(difference) <= margin:
        return PairVerdict.TIE
    return PairVerdict.WIN_A if difference > 0 else PairVerdict.WIN_B


def both_orders(forward: PairVerdict, swapped: PairVerdict) -> PairVerdict:
    """Join the verdict on (a, b) with the verdict on (b, a).

    Agreement stands, disagreement (a win against a tie included) is INCONSISTENT, a failure in either is
    FAILED.
    """
    back = PairVerdict(swapped).flipped()
    if PairVerdict.FAILED in (forward, back):
        return PairVerdict.FAILED
    return PairVerdict(forward) if forward == back else PairVerdict.INCONSISTENT


def advantages(
    verdict: PairVerdict, win: float = 1.0, loss: float = -0.1, centered: bool = False
) -> tuple[float, float]:
    """Advantages of (a, b): `win` to the winner and `loss` to the loser, exactly 0 to both for anything else.

    `centered` subtracts the pair mean: +-0.55 instead of (1.0, -0.1), so that sampled actions are not
    reinforced on average. Source: RPO, arXiv 2605.08354.
    """
    high, low = (win - loss) / 2 if centered else win, (loss - win) / 2 if centered else loss
    if verdict == PairVerdict.WIN_A:
        return high, low
    if verdict == PairVerdict.WIN_B:
        return low, high
    PairVerdict(verdict)
    return 0.0, 0.0


def pairing(size: int, how: str = "disjoint", seed: str = "") -> list[tuple[int, int]]:
    """Which samples of a group to compare: a random `disjoint` matching, or `round_robin`, all pairs.

    Args:
        size: number of samples; at least 2, and even for `disjoint`.
        how: disjoint or round_robin.
        seed: any text; the same text gives the same matching on every rank and after a resume.

    Raises:
        InputError: a size that the pairing cannot serve.
    """
    one_of("pairing", how, PAIRINGS)
    check_pairing(size, how)
    if how == "round_robin":
        return list(combinations(range(size), 2))
    order = seeded_rng("pairing", seed).permutation(size)
    return [(int(order[k]), int(order[k + 1])) for k in range(0, size, 2)]


def check_pairing(size: int, how: str) -> None:
    """Refuse a group size that a pairing cannot serve, before anything expensive runs."""
    if size < 2:
        raise InputError(f"a preference needs groups of at least 2 samples, got {size}")
    if how == "disjoint" and size % 2:
        raise InputError(
            f"disjoint pairs need an even group, got {size} samples; use an even size or pairing=round_robin"
        )


def seeded_rng(*parts: object) -> np.random.Generator:
    """A generator that depends on the text of `parts` only (never on rank, process or Python's hash seed)."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def compare_pairs(
    table: ScoreTable,
    which: Iterable[tuple[int, int]],
    *,
    tie_policy: str = "drop",
    ask: Callable[[Sequence[tuple[int, int]]], Sequence[PairVerdict]] | None = None,
    margin: float | None = None,
    min_coverage: float = 0.5,
    dependencies: str = "none",
    gates: bool = True,
    binarize: bool = True,
) -> tuple[Pair, ...]:
    """Compare several pairs of a table.

    Args:
        tie_policy: `drop` leaves a tie a tie (advantage 0); `ask_joint` hands all tied pairs to `ask` at
            once, which asks a pair judge, and takes its verdicts instead.
        ask: tied pairs (rows) to one verdict each; required by `ask_joint`. It belongs to the caller, so that
            this module stays pure.
    """
    one_of("tie_policy", tie_policy, TIE_POLICIES)
    if (tie_policy == "ask_joint") != (ask is not None):
        raise InputError("tie_policy ask_joint and a function `ask` go together; give both or neither")
    options = (margin, min_coverage, dependencies, gates, binarize)
    pairs = {(i, j): compare(table, i, j, *options) for i, j in which}
    ties = [pair for pair, verdict in pairs.items() if verdict == PairVerdict.TIE]
    if ask is not None and ties:
        answers = ask(ties)
        if len(answers) != len(ties):
            raise InputError(f"ask returned {len(answers)} verdicts for {len(ties)} tied pairs")
        pairs.update(zip(ties, map(PairVerdict, answers), strict=True))
    return tuple((i, j, verdict) for (i, j), verdict in pairs.items())


def pair_advantages(
    pairs: Iterable[Pair], size: int, win: float = 1.0, loss: float = -0.1, centered: bool = False
) -> tuple[Floats, Floats]:
    """Advantage [S] = mean over a sample's pairs, and weight [S].

    FAILED pairs are left out of the mean. A sample with no other pair has advantage 0 and weight 0; a sample
    of tied or inconsistent pairs has advantage 0 and weight 1.
    """
    total, count = np.zeros(size), np.zeros(size)
    for i, j, verdict in pairs:
        if verdict != PairVerdict.FAILED:
            total[[i, j]] += advantages(verdict, win, loss, centered)
            count[[i, j]] += 1
    return np.divide(total, count, out=np.zeros(size), where=count > 0), (count > 0).astype(np.float64)


def win_rates(pairs: Iterable[Pair], size: int) -> Floats:
    """[S] share of a sample's answered pairs that it wins, in [0, 1]; NaN where none was answered.

    A tie counts half, and so do two orders that disagree. As a reward it is that of Pref-GRPO, arXiv 2508.20751.
    """
    above, weight = pair_advantages(pairs, size, 0.5, -0.5)
    return np.where(weight > 0, 0.5 + above, np.nan)


def list_map(ranks: ArrayLike, win: float = 1.0, loss: float = -0.1, centered: bool = False) -> tuple[Floats, Floats]:
    """Advantage [S] linear in the rank, from `win` at rank 1 to `loss` at the worst rank, and weight [S].

    Args:
        ranks: [S], 1 = best, equal ranks = tie, NaN = not ranked (advantage 0, weight 0).

    If every known rank is equal, the advantage is exactly 0 (the published code rewards all of them).
    Source: code of arXiv 2605.08354, A = 1 - 1.1 (rank - 1) / (worst - 1).
    """
    values = rewards_array(ranks)
    known = ~np.isnan(values)
    if values.ndim != 1 or (values[known] < 1).any():
        raise InputError(f"ranks must be [S] with 1 = best, got {values.tolist()}")
    out = np.zeros(len(values))
    seen = values[known]
    if len(seen) and seen.max() > seen.min():
        mapped = win - (win - loss) * (seen - 1.0) / (seen.max() - 1.0)
        out[known] = mapped - mapped.mean() if centered else mapped
    return out, known.astype(np.float64)


def ranks_of(pairs: Iterable[Pair], size: int) -> Floats:
    """Ranks [S] from all pairs of a group: 1 + number of samples that beat it.

    A pair that FAILED leaves an order undefined, and a sample compared less often would rank better for it.
    So the samples with most failures are left out (NaN) until every remaining pair has a verdict.
    """
    wins = np.zeros((size, size), dtype=bool)
    compared = np.eye(size, dtype=bool)
    for i, j, verdict in pairs:
        if verdict != PairVerdict.FAILED:
            compared[i, j] = compared[j, i] = True
        wins[i, j], wins[j, i] = verdict == PairVerdict.WIN_A, verdict == PairVerdict.WIN_B
    kept = np.ones(size, dtype=bool)
    while True:
        missing = np.where(kept, (~compared[:, kept]).sum(axis=1), 0)
        if not missing.any():
            break
        kept &= missing < missing.max()
    if kept.sum() < 2:
        return np.full(size, np.nan)
    beaten = wins[kept][:, kept].sum(axis=0)
    ranks = np.full(size, np.nan)
    ranks[kept] = 1.0 + beaten
    return ranks
