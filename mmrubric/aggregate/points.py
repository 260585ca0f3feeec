"""Signed points, as HealthBench scores them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmrubric.aggregate.base import Aggregator, Context, registry
from mmrubric.checks import switch
from mmrubric.errors import InputError
from mmrubric.rubric import Rubric
from mmrubric.scores import Floats, ScoreTable
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags


@registry.register("points", Tags(Construction.human_expert, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(kw_only=True)
class Points(Aggregator):
    """R = sum w met / sum of positive w, over known criteria; the one aggregator that reads signs.

    At most 1, and negative when penalties outweigh, unless `clamp` cuts it to [0, 1]. NaN when no positive
    criterion is known. Source: HealthBench, arXiv 2505.08775.
    """

    clamp: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        switch("clamp", self.clamp)

    def check(self, rubric: Rubric) -> None:
        """Refuse a rubric without a positive weight: there is nothing to divide by."""
        if not any(criterion.weight > 0 for criterion in rubric.criteria):
            raise InputError(
                "points needs a criterion with a positive weight; all of "
                f"{', '.join(map(repr, rubric.ids))} are negative. Use the weighted aggregator instead"
            )

    def weigh(self, table: ScoreTable, ctx: Context) -> Floats:
        """Points earned over points that could be earned."""
        points = table.points / table.weights.max()
        earned = (points * np.where(table.known, table.met, 0.0)).sum(axis=1)
        possible = np.where(table.known, np.maximum(points, 0.0), 0.0).sum(axis=1)
        score = np.divide(earned, possible, out=np.full(len(table), np.nan), where=possible > 0)
        return np.clip(score, 0.0, 1.0) if self.clamp else score
