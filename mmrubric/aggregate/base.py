"""What every aggregator shares: the order dependencies, gates, coverage, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrubric.errors import InputError
from mmrubric.rubric import Rubric
from mmrubric.scores import Floats, Rules, ScoreTable
from mmrubric.tags import Registry


@dataclass(frozen=True)
class Context:
    """Where in a run a table comes from."""

    step: int = 0
    epoch: int = 0
    prompt_id: str = ""
    outcome: Floats | None = None
    """[S] verifiable outcome per sample, for methods that use one."""


@dataclass(kw_only=True)
class Aggregator:
    """A table to a reward per sample. Subclasses say only how criteria are weighed (`weigh`).

    Stateful aggregators also override `observe`, called once per step with all groups of all ranks in
    canonical order, `end_epoch`, `state_dict` and `load_state_dict`; a stateless one inherits forms that hold
    nothing.

    Args:
        dependencies: none, direct or cascade.
        gates: whether a failed hard criterion makes the reward 0 and an unknown one NaN.
        min_coverage: in [0, 1]; a sample with a smaller known share of the weight is NaN.
    """

    dependencies: str = "none"
    gates: bool = True
    min_coverage: float = 0.5

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> Rules:
        """The steps before the weights."""
        return Rules(self.dependencies, self.gates, self.min_coverage)

    def __call__(self, table: ScoreTable, ctx: Context | None = None) -> Floats:
        """Reward [S]; NaN = not scorable.

        Raises:
            InputError: the rubric does not suit this aggregator.
        """
        self.check(table.rubric)
        settled = self.rules().settle(table)
        weighed = self.weigh(settled.table, ctx or Context())
        return np.where(settled.to_weigh, weighed, settled.decided)

    def weigh(self, table: ScoreTable, ctx: Context) -> Floats:
        """Reward [S] from a table whose dependencies are masked; NaN where nothing can be said."""
        raise NotImplementedError

    def check(self, rubric: Rubric) -> None:
        """Raise `InputError` if this aggregator cannot score the rubric; call it before expensive work."""

    def observe(self, tables: Sequence[ScoreTable], ctx: Sequence[Context]) -> None:
        """Learn from one step's groups. Stateless aggregators learn nothing."""

    def end_epoch(self) -> None:
        """Close an epoch. Stateless aggregators have none."""

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, JSON only; empty for a stateless aggregator."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`. State for a stateless aggregator means another one wrote it: `InputError`."""
        if state:
            raise InputError(f"{type(self).__name__} keeps no state, but the checkpoint holds {sorted(state)}")


registry: Registry[Aggregator] = Registry("aggregator")
