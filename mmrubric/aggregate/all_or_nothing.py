"""1 if every criterion is passed, else 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmrubric.aggregate.base import Aggregator, Context, registry
from mmrubric.scores import Floats, ScoreTable
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags


@registry.register("all_or_nothing", Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(kw_only=True)
class AllOrNothing(Aggregator):
    """1.0 if every criterion is passed, 0.0 if a known one is not, NaN if that hangs on an unknown one.

    As a reward an unknown verdict is neither a failure nor a pass; the evaluation metric
    `scores.strict_completion` counts it as not completed.
    """

    def weigh(self, table: ScoreTable, ctx: Context) -> Floats:
        """All criteria passed, in three-valued logic."""
        complete = np.where(table.known.all(axis=1), 1.0, np.nan)
        return np.where((table.passed == 0.0).any(axis=1), 0.0, complete)
