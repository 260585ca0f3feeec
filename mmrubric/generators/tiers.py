"""Screening of global criteria by how often they apply and pass, and their tiers (RuCL, arXiv 2602.21628)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric

Tier = Literal["easy", "hard"]
APPLICABLE = 0.99
"""Least applicability; a criterion for a whole data set must make sense for all of it."""
CUT = 0.8
"""Pass rate from which a criterion is easy. Our choice: any cut in (.694, .861) fits the paper's tiers."""


@dataclass(frozen=True)
class Rates:
    """What a judge measured of one criterion over N answers; both shares in [0, 1]."""

    applicability: float
    """Share of the answers to which it applies, of those that the judge could say it of; NaN without any."""
    pass_rate: float
    """Share of these that meet it; NaN where it applies to none."""
    failures: int = 0
    """Answers on which the judge failed: outside both shares."""


@dataclass(frozen=True)
class Screened:
    """One candidate criterion after screening."""

    criterion: Criterion
    """Kept ones carry `tier`, `applicability` and `pass_rate` in `extra`."""
    rates: Rates
    why_not: str = ""
    """Why it was dropped; "" = kept."""


@dataclass(frozen=True)
class TieredRubric:
    """A rubric whose criteria all have a tier.

    Raises:
        InputError: a tier without criteria, or a criterion without a tier.
    """

    rubric: Rubric

    def __post_init__(self) -> None:
        bad = [
            criterion.id for criterion in self.rubric.criteria if criterion.extra.get("tier") not in ("easy", "hard")
        ]
        if bad:
            raise InputError(f"criteria {bad}: field extra.tier must be 'easy' or 'hard'; build the pool with fit")
        for tier in ("easy", "hard"):
            if not self.columns(tier).any():
                figures = ", ".join(f"{one.id} {_shown(one.extra.get('pass_rate'))}" for one in self.rubric.criteria)
                raise InputError(
                    f"tier {tier!r} holds no criterion; set cut between the pass rates ({figures}), or add candidates"
                )

    def columns(self, tier: Tier) -> NDArray[np.bool_]:
        """[C] True for the criteria of a tier."""
        return np.array([criterion.extra["tier"] == tier for criterion in self.rubric.criteria])

    @classmethod
    def of(cls, criteria: Sequence[Criterion]) -> Self:
        """A tiered set with an empty prompt, for a whole data set; `InputError` when it holds no criterion."""
        if not criteria:
            raise InputError("tiers: no criterion is left; lower applicable, or write other candidates")
        return cls(Rubric(prompt="", criteria=tuple(criteria)))


def rates_of(met: ArrayLike, failed: ArrayLike) -> list[Rates]:
    """Applicability and pass rate of K criteria over N answers.

    Args:
        met: [N, K] in [0, 1], NaN = does not apply, or failed; passed at 0.5.
        failed: [N, K] True where the judge failed.
    """
    scores, lost = np.asarray(met, dtype=np.float64), np.asarray(failed, dtype=bool)
    applies = ~np.isnan(scores)
    rates = []
    for column in range(scores.shape[1]):
        said, hits = int((~lost[:, column]).sum()), int(applies[:, column].sum())
        passed = int((scores[applies[:, column], column] >= 0.5).sum())
        rates.append(
            Rates(
                hits / said if said else float("nan"),
                passed / hits if hits else float("nan"),
                int(lost[:, column].sum()),
            )
        )
    return rates


def screen(
    criteria: Sequence[Criterion],
    rates: Sequence[Rates],
    applicable: float = APPLICABLE,
    cut: float = CUT,
    exclude: Collection[str] = (),
) -> list[Screened]:
    """Keep what applies (almost) everywhere, and sort it into tiers by its pass rate.

    Args:
        criteria, rates: candidates, and what was measured of each.
        applicable: least applicability, in [0, 1].
        cut: pass rate from which the tier is easy, in [0, 1].
        exclude: categories that something else verifies, such as the correctness of an answer, or text by OCR.
    """
    number("applicable", applicable, 0.0, 1.0)
    number("cut", cut, 0.0, 1.0)
    made = []
    for criterion, rate in zip(criteria, rates, strict=True):
        if criterion.category in exclude:
            made.append(Screened(criterion, rate, f"its category {criterion.category!r} is verified otherwise"))
        # NaN compares as false: what was never seen to apply is dropped too.
        elif not rate.applicability >= applicable:
            made.append(Screened(criterion, rate, f"applies to {rate.applicability:.1%}, below {applicable:.1%}"))
        elif np.isnan(rate.pass_rate):
            made.append(Screened(criterion, rate, "applies to no answer"))
        else:
            figures: dict[str, Any] = {
                "tier": "easy" if rate.pass_rate >= cut else "hard",
                "applicability": rate.applicability,
                "pass_rate": rate.pass_rate,
            }
            extra = {**criterion.extra, **figures}
            made.append(Screened(criterion.model_copy(update={"extra": extra}), rate))
    return made


def _shown(rate: object) -> str:
    return f"{rate:.3f}" if isinstance(rate, (int, float)) else "unknown"
