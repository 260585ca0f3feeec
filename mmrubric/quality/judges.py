"""Whether several judges read the same criteria alike: a criterion that they read differently is not clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.quality.discrimination import By
from mmrubric.report import agreement
from mmrubric.scores import ScoreTable

Floats = NDArray[np.float64]
ALL = "all"
"""Key of the agreement over all criteria."""


@dataclass(frozen=True)
class JudgeAgreement:
    """Agreement of J judges on the yes and no of some criteria."""

    key: str
    """Criterion id, category, or `ALL`."""
    cells: int
    """Questions that at least two judges answered; the rest rests on these."""
    agreement: float
    """Share of pairs of answers to one question that are equal, in [0, 1]; NaN without any."""
    alpha: float
    """Krippendorff's alpha; NaN where all answers are one and the same."""


def judge_agreement(judges: Mapping[str, Sequence[ScoreTable]], by: By = "category") -> list[JudgeAgreement]:
    """Agreement across judges, over all criteria first and then by `by`, sorted by key.

    Args:
        judges: by judge id, the score tables of the same samples; joined by rubric, sample id and criterion id.
        by: `criterion` or `category`.

    Raises:
        InputError: fewer than two judges, two verdicts of one judge on one question, or no question in common.
    """
    one_of("by", by, get_args(By))
    if len(judges) < 2:
        raise InputError(f"agreement across judges needs at least two, got {sorted(judges)}")
    answers = {name: _answers(name, tables) for name, tables in judges.items()}
    cells = sorted({cell for given in answers.values() for cell in given})
    ratings = np.array([[given.get(cell, np.nan) for cell in cells] for given in answers.values()])
    ratings = ratings.reshape(len(answers), len(cells))
    common = (~np.isnan(ratings)).sum(axis=0) >= 2
    if not common.any():
        raise InputError(f"judges {', '.join(sorted(judges))} answered no question in common: give the same samples")
    keys = np.array([cell[2] if by == "criterion" else cell[3] for cell in cells])
    return [
        _agreement(ALL, ratings[:, common]),
        *(_agreement(str(key), ratings[:, common & (keys == key)]) for key in sorted(set(keys[common]))),
    ]


def _answers(name: str, tables: Sequence[ScoreTable]) -> dict[tuple[str, str, str, str], float]:
    """Yes (1) or no (0) by rubric hash, sample id, criterion id and category."""
    found: dict[tuple[str, str, str, str], float] = {}
    for table in tables:
        rubric, decided = table.rubric.hash, agreement.decided(table.met)
        for sample, row in zip(table.sample_ids, decided, strict=True):
            for criterion, value in zip(table.rubric.criteria, row, strict=True):
                cell = (rubric, sample, criterion.id, criterion.category)
                if cell in found:
                    raise InputError(
                        f"judge {name!r} judged sample {sample!r} twice by one rubric; choose one phase and step"
                    )
                found[cell] = float(value)
    return found


def _agreement(key: str, ratings: Floats) -> JudgeAgreement:
    """Of ratings [J, N] with at least two known ones in every column."""
    equal = total = 0
    for first, second in combinations(ratings, 2):
        a, b = agreement.known_both(first, second)
        equal, total = equal + int((a == b).sum()), total + len(a)
    return JudgeAgreement(
        key, ratings.shape[1], float(agreement.ratio(equal, total)), agreement.krippendorff_alpha(ratings)
    )
