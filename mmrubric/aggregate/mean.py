"""Plain mean over criteria."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmrubric.aggregate.base import Aggregator, Context, registry
from mmrubric.scores import Floats, ScoreTable, weighted_mean
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags


@registry.register("mean", Tags(Construction.llm_direct, Optimisation.dedup, Signal.output_level, Loop.none))
@dataclass(kw_only=True)
class Mean(Aggregator):
    """R = (1/M) sum good over known criteria, in [0, 1]; a category weighs as much as it has criteria.

    Source: RubricRL, arXiv 2511.20651.
    """

    def weigh(self, table: ScoreTable, ctx: Context) -> Floats:
        """Mean of `good` over known criteria."""
        return weighted_mean(table.good, np.ones(len(table.weights)))
