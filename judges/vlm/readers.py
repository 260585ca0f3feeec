"""Pure readers of token log-probabilities: from (token, log-probability) lists to shares of the answers.

Sources: VQAScore, arXiv 2404.01291 (P(yes)); expected score over level tokens as in G-Eval, arXiv 2303.16634.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmrubric.llm_asking import TopTokens
from mmrubric.llm_json import BadAnswer

_BLANKS = " \t\r\n▁ĠĊ"
"""Blanks, and the characters by which tokenizers write them: SentencePiece '▁', byte-level BPE 'Ġ' and 'Ċ'."""
_ROUNDING = 1e-3
"""Servers round log-probabilities, so a distribution may sum to slightly more than 1."""
_SLACK = 1e-9
"""1 - (.6 + .3) is not .1 in floating point."""


@dataclass(frozen=True)
class Shares:
    """What the first token says about each answer."""

    of: Mapping[str, float]
    """Probability of each answer code among the codes; sums to 1."""
    off_mass: float
    """Probability of tokens that are no code, in [0, 1]."""


def form(token: str) -> str:
    """The form in which spellings of an answer agree: without blanks around it, in lower case."""
    return token.strip(_BLANKS).lower()


def read_shares(top: TopTokens, codes: Sequence[str], off_mass: float = 0.1) -> Shares:
    """Share of each code at one position: all spellings summed, then renormalised over the codes.

    Args:
        top: tokens and log-probabilities of the first generated position, not constrained by a grammar.
        codes: the possible answers, each a single token; told apart by `form`.
        off_mass: largest probability outside the codes, in [0, 1), that still counts as an answer.

    Raises:
        BadAnswer: no tokens, broken log-probabilities, or more than `off_mass` outside the codes.
    """
    if not top:
        raise BadAnswer("the server gave no log-probabilities; start it with them or use read='json'")
    if any(math.isnan(logprob) or logprob > _ROUNDING for _, logprob in top):
        raise BadAnswer(f"log-probabilities above 0 or NaN: {_listed(top)}")
    if math.fsum(math.exp(logprob) for _, logprob in top) > 1 + _ROUNDING:
        raise BadAnswer(f"the probabilities sum to more than 1: {_listed(top)}")
    mass = {code: math.fsum(math.exp(p) for token, p in top if form(token) == form(code)) for code in codes}
    known = math.fsum(mass.values())
    off = max(0.0, 1.0 - known)
    if known <= 0.0 or off > off_mass + _SLACK:
        wanted = "/".join(codes)
        raise BadAnswer(f"{off:.0%} of the probability is not on {wanted}, but on: {_listed(top)}")
    return Shares({code: value / known for code, value in mass.items()}, off)


def yes_probability(top: TopTokens, off_mass: float = 0.1) -> float:
    """P(yes) / (P(yes) + P(no)) over all spellings, in [0, 1]; raises `BadAnswer` as `read_shares` does."""
    return read_shares(top, ("yes", "no"), off_mass).of["yes"]


def expected_value(shares: Mapping[str, float], values: Mapping[str, float]) -> float:
    """Mean of the values, weighted by the shares of those codes that have a value.

    Raises:
        ValueError: those codes have no share at all.
    """
    total = math.fsum(shares[code] for code in values)
    if total <= 0.0:
        raise ValueError("no share on any code that has a value")
    mean = math.fsum(shares[code] * value for code, value in values.items()) / total
    # Rounding must not push a mean of equal values past them.
    return min(max(mean, min(values.values())), max(values.values()))


def _listed(top: TopTokens) -> str:
    best = sorted(top, key=lambda item: -item[1])[:3]
    return ", ".join(f"{token!r} {math.exp(min(logprob, 0.0)):.2f}" for token, logprob in best)
