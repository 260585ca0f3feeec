"""Weighted mean per category, then fixed category weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mmrubric.aggregate.base import Aggregator, Context, registry
from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.rubric import Rubric
from mmrubric.scores import Floats, ScoreTable, weighted_mean
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

PRESETS: dict[str, dict[str, float]] = {"atlas": {"TF": 0.4, "TA": 0.25, "TG": 0.2, "PA": 0.15}}
"""Category weights by name. The paper does not publish its own; task fulfilment is the largest."""

ALIASES = {"Task Fulfillment and Quality": "TF"}
"""Long names under which the published rubric prompt writes a category of the preset."""


@registry.register("category", Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(kw_only=True)
class Category(Aggregator):
    """R = sum_c alpha_c S_c with S_c = sum |w| good / sum |w| within the category, in [0, 1].

    A category with many criteria cannot dominate. Categories without a known verdict are dropped for that
    sample and alpha is renormalised over the rest. Source: ATLAS, arXiv 2603.06713.

    Args:
        alpha: weight >= 0 per category (at least one above 0), the name of a preset ("atlas"), or None = all
            equal.
    """

    alpha: Mapping[str, float] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        alpha = self._alpha()
        if alpha is not None:
            for name, value in alpha.items():
                number(f"alpha[{name!r}]", value, low=0.0)
            if not any(alpha.values()):
                raise InputError("alpha: at least one category needs a weight above 0")

    def check(self, rubric: Rubric) -> None:
        """Refuse a rubric with a category that alpha does not name, or with none that it weighs."""
        alpha = self._alpha()
        if alpha is None:
            return
        present = {self._name(criterion.category) for criterion in rubric.criteria}
        unnamed = sorted(present - set(alpha))
        if unnamed:
            raise InputError(f"alpha has no weight for category {', '.join(unnamed)}; known: {', '.join(alpha)}")
        if not any(alpha[name] for name in present):
            raise InputError(f"alpha is 0 for every category of the rubric: {', '.join(sorted(present))}")

    def weigh(self, table: ScoreTable, ctx: Context) -> Floats:
        """Category means, then their weighted mean."""
        categories = [self._name(criterion.category) for criterion in table.rubric.criteria]
        present = list(dict.fromkeys(categories))
        scores = np.stack(
            [
                weighted_mean(table.good[:, columns], table.weights[columns])
                for name in present
                for columns in [np.array([category == name for category in categories])]
            ],
            axis=1,
        )
        alpha = self._alpha()
        weights = np.ones(len(present)) if alpha is None else np.array([alpha[name] for name in present])
        return weighted_mean(scores, weights.astype(np.float64))

    def _alpha(self) -> Mapping[str, float] | None:
        if isinstance(self.alpha, str):
            if self.alpha not in PRESETS:
                raise InputError(f"alpha: unknown preset {self.alpha!r}; known: {', '.join(PRESETS)}")
            return PRESETS[self.alpha]
        return self.alpha

    def _name(self, category: str) -> str:
        return ALIASES.get(category, category) if isinstance(self.alpha, str) else category
