"""Weighted mean over criteria."""

from __future__ import annotations

from dataclasses import dataclass

from mmrubric.aggregate.base import Aggregator, Context, registry
from mmrubric.scores import Floats, ScoreTable, weighted_mean
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags


@registry.register("weighted", Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(kw_only=True)
class Weighted(Aggregator):
    """R = sum |w| good / sum |w| over known criteria, in [0, 1] without a clamp, also when all weights are
    negative.

    Equal weights equal `mean` bit for bit. Source: PRBench's normalised form; RubricHub, arXiv 2601.08430.
    """

    def weigh(self, table: ScoreTable, ctx: Context) -> Floats:
        """Weighted mean of `good` over known criteria."""
        return weighted_mean(table.good, table.weights)
