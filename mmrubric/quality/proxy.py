"""Whether a rubric alone lets an independent model decide: Proxy-GRM, arXiv 2603.16600, without its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.preference import both_orders
from mmrubric.report.agreement import ratio
from mmrubric.report.judge_report_inputs import PairAnswers

Floats = NDArray[np.float64]
_WINS = (PairVerdict.WIN_A, PairVerdict.WIN_B)


@dataclass(frozen=True)
class ProxyAccuracy:
    """What a proxy decides with one rubric (or with several, each on its own pairs)."""

    labelled: int
    """Pairs with a label."""
    known: int
    """Labelled pairs that the proxy answered in both orders; the rest of the numbers rests on these."""
    accuracy: float
    """Share of known pairs whose two orders both name the preferred sample, in [0, 1]."""
    undecided: float
    """Share of known pairs whose two orders disagree, or agree on a tie."""
    reward: float
    """Mean of `proxy_rewards`, in [-1, 1]."""
    credit: float
    """Mean of `proxy_credit`, in [-2, 2]: what the rubric adds to the proxy's own judgement. NaN without a baseline."""
    credited: int
    """Pairs behind `credit`."""


def proxy_rewards(answers: Sequence[PairAnswers]) -> Floats:
    """Reward [N] of each pair: +1 = both orders name the preferred sample, -1 = both name the other one.

    0 = the orders disagree or agree on a tie; NaN = no label, or no answer to one order: such a pair is left out, it
    is no loss of the rubric. Proxy-GRM, r_proxy with agreement needed.
    """
    return np.array([_reward(answer) for answer in answers], dtype=np.float64)


def _reward(answer: PairAnswers) -> float:
    outcome = both_orders(answer.forward, answer.swapped)
    if answer.preferred not in _WINS or outcome == PairVerdict.FAILED:
        return float("nan")
    if outcome not in _WINS:
        return 0.0
    return 1.0 if outcome == answer.preferred else -1.0


def proxy_credit(answers: Sequence[PairAnswers], without: Sequence[PairAnswers]) -> Floats:
    """Counterfactual credit [N], in [-2, 2]: reward with the rubric minus reward of the same pair without any.

    A proxy that is right anyway gives no credit to the rubric. Pairs are joined by id; NaN where one of the two is
    unknown or the pair was not asked without a rubric.

    Raises:
        InputError: no pair is in both, a pair id twice, or one pair with two labels.
    """
    baseline = _by_id(without, "without")
    named = _by_id(answers, "with")
    if named and not named.keys() & baseline.keys():
        raise InputError(
            f"proxy: no pair was asked both with and without a rubric; with: {next(iter(named))!r}, ..., without: "
            f"{next(iter(baseline), 'nothing')!r}; keep the pair ids"
        )
    for id in named.keys() & baseline.keys():
        if named[id].preferred != baseline[id].preferred:
            raise InputError(
                f"proxy: pair {id!r} is labelled {named[id].preferred} with a rubric, {baseline[id].preferred} without"
            )
    rewards = {id: _reward(answer) for id, answer in baseline.items()}
    return proxy_rewards(answers) - np.array([rewards.get(a.pair_id, np.nan) for a in answers], dtype=np.float64)


def _by_id(answers: Sequence[PairAnswers], name: str) -> dict[str, PairAnswers]:
    found = {answer.pair_id: answer for answer in answers}
    if len(found) < len(answers):
        ids = [answer.pair_id for answer in answers]
        twice = next(id for id in ids if ids.count(id) > 1)
        raise InputError(f"proxy: pair {twice!r} is given twice among the pairs {name} a rubric; ids must be unique")
    return found


def proxy_accuracy(answers: Sequence[PairAnswers], without: Sequence[PairAnswers] | None = None) -> ProxyAccuracy:
    """How often the proxy decides right when it is given the rubric.

    Args:
        answers: labelled pairs, asked with the rubric in both orders.
        without: the same pairs asked without any rubric; None = no credit.

    Raises:
        InputError: as for `proxy_credit`.
    """
    rewards = proxy_rewards(answers)
    known = rewards[~np.isnan(rewards)]
    credit = proxy_credit(answers, without) if without is not None else np.empty(0)
    credit = credit[~np.isnan(credit)]
    return ProxyAccuracy(
        labelled=sum(answer.preferred in _WINS for answer in answers),
        known=len(known),
        accuracy=float(ratio((known == 1).sum(), len(known))),
        undecided=float(ratio((known == 0).sum(), len(known))),
        reward=float(ratio(known.sum(), len(known))),
        credit=float(ratio(credit.sum(), len(credit))),
        credited=len(credit),
    )


def rank_by_proxy(
    candidates: Mapping[str, Sequence[PairAnswers]], without: Sequence[PairAnswers] | None = None
) -> list[tuple[str, ProxyAccuracy]]:
    """Rubric candidates from best to worst by mean reward; ties by name, candidates without a known pair last.

    Args:
        candidates: by name of the rubric, the proxy's answers with it; compare them on the same pairs.
        without: the pairs without any rubric, for the credit.
    """
    scored = [(name, proxy_accuracy(answers, without)) for name, answers in candidates.items()]
    return sorted(scored, key=lambda item: (np.isnan(item[1].reward), -np.nan_to_num(item[1].reward), item[0]))
