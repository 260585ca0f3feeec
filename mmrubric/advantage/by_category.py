"""One GRPO advantage per category of a rubric, and their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mmrubric.advantage.base import Advantage, AdvantageOut, registry
from mmrubric.advantage.grpo import Grpo
from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.group import Group, as_group
from mmrubric.rubric import Rubric
from mmrubric.scores import Floats, Rules, ScoreTable, weighted_mean
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

NAME = "grpo_by_category"


@registry.register(NAME, Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none))
@dataclass(frozen=True, kw_only=True)
class GrpoByCategory(Advantage):
    """sum_c w_c A_c, where A_c standardises S_c = sum |w| good / sum |w| of category c within the group.

    A category in which the samples hardly differ is heard as well as one in which they differ a lot. A category that
    the rubric lacks adds 0, as does one in which all samples tie; one of which nothing is known of a sample adds 0 to
    that sample. Rewards, and so `reward.aggregate`, play no part.

    Args:
        weights: w_c by category, which then names every category; None = all 1.
        scale, ddof, eps, tol, clamp, min_group_std: see `grpo`; the clamp acts on the sum.
        dependencies, gates, min_coverage: see `mmrubric.aggregate`; a failed gate makes every S_c 0.

    Source: MixGRPO, arXiv 2507.21802 (one advantage per scorer); categories in place of scorers are ours.
    """

    weights: Mapping[str, float] | None = None
    scale: str = "group"
    ddof: int = 1
    eps: float = 1e-6
    tol: float = 1e-6
    clamp: float | None = None
    min_group_std: float = 0.0
    dependencies: str = "none"
    gates: bool = True
    min_coverage: float = 0.5

    def __post_init__(self) -> None:
        self._grpo(None)
        self._rules()
        for name, value in (self.weights or {}).items():
            number(f"weights[{name!r}]", value, low=0.0)
        if self.weights is not None and not any(self.weights.values()):
            raise InputError("weights: at least one category needs a weight above 0")

    def check_size(self, size: int) -> None:
        """At least 2 samples, as `grpo`."""
        if size < 2:
            raise InputError(f"{NAME} needs groups of at least 2 samples, got {size}")

    def check_rubric(self, rubric: Rubric) -> None:
        """Every category of the rubric has a weight, and not all of them 0."""
        if self.weights is None:
            return
        categories = {criterion.category for criterion in rubric.criteria}
        if unnamed := sorted(categories - set(self.weights)):
            raise InputError(f"weights: none for category {', '.join(unnamed)}; known: {', '.join(self.weights)}")
        if not any(self.weights[name] for name in categories):
            raise InputError(f"weights: 0 for every category of a rubric: {', '.join(sorted(categories))}")

    def compute(self, groups: Sequence[Group | ArrayLike]) -> list[AdvantageOut]:
        """See `Advantage.compute`; needs `Group.table`."""
        tables: list[ScoreTable] = [as_group(group).need("table", NAME) for group in groups]
        if not tables:
            return []
        names = sorted({criterion.category for table in tables for criterion in table.rubric.criteria})
        weights = dict.fromkeys(names, 1.0) if self.weights is None else self.weights
        for table in tables:
            self.check_rubric(table.rubric)
        grpo = self._grpo([weights[name] for name in names])
        return grpo.compute([self._scores(table, names) for table in tables])

    def _scores(self, table: ScoreTable, names: Sequence[str]) -> Floats:
        """[S, categories], NaN for one that the rubric lacks."""
        settled = self._rules().settle(table)
        scores = np.full((len(table), len(names)), np.nan)
        categories = np.array([criterion.category for criterion in table.rubric.criteria])
        for place, name in enumerate(names):
            if (columns := categories == name).any():
                score = weighted_mean(settled.table.good[:, columns], settled.table.weights[columns])
                scores[:, place] = np.where(settled.to_weigh, score, settled.decided)
        return scores

    def _rules(self) -> Rules:
        return Rules(self.dependencies, self.gates, self.min_coverage)

    def _grpo(self, weights: Sequence[float] | None) -> Grpo:
        return Grpo(
            scale=self.scale, ddof=self.ddof, eps=self.eps, tol=self.tol, clamp=self.clamp,
            min_group_std=self.min_group_std, combine="normalize_then_sum", weights=weights,
        )  # fmt: skip
