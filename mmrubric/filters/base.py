"""What every filter shares, and several filters as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrubric.aggregate import Context
from mmrubric.errors import InputError
from mmrubric.group import Group
from mmrubric.tags import Registry


class Filter:
    """Looks at the groups of all ranks and says which to train on and which prompts to leave out for a while.

    Subclasses override what they decide. All of it is a function of the groups seen, so that ranks that see the
    same groups agree.
    """

    def observe(self, groups: Sequence[Group], ctx: Sequence[Context]) -> None:
        """Learn from one step's groups of all ranks, in canonical order. A stateless filter learns nothing."""

    def keep(self, groups: Sequence[Group]) -> NDArray[np.bool_]:
        """[P] whether a group is trained on. A group that is not has weight 0 and is outside every normaliser.

        Raises:
            InputError: a group lacks a field that the filter needs.
        """
        return np.ones(len(groups), dtype=bool)

    def bans(self) -> Mapping[str, float]:
        """By prompt id, the first epoch in which a banned prompt may be drawn again; infinity = never."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, JSON only; empty for a stateless filter."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`. State for a stateless filter means another one wrote it: `InputError`."""
        if state:
            raise InputError(f"{type(self).__name__} keeps no state, but the checkpoint holds {sorted(state)}")


registry: Registry[Filter] = Registry("filter")


class Chain(Filter):
    """Several filters as one: a group is trained on if all of them keep it, a prompt drawn if none bans it.

    Args:
        filters: options of each filter by its name; none = everything is kept.

    Raises:
        InputError: an unknown name or option, or a bad value.
    """

    def __init__(self, filters: Mapping[str, Mapping[str, Any]]) -> None:
        self.filters = {name: registry.build(name, **options) for name, options in filters.items()}

    def observe(self, groups: Sequence[Group], ctx: Sequence[Context]) -> None:
        for one in self.filters.values():
            one.observe(groups, ctx)

    def keep(self, groups: Sequence[Group]) -> NDArray[np.bool_]:
        kept = super().keep(groups)
        for one in self.filters.values():
            kept &= one.keep(groups)
        return kept

    def bans(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for one in self.filters.values():
            for name, epoch in one.bans().items():
                found[name] = max(epoch, found.get(name, 0.0))
        return found

    def state_dict(self) -> dict[str, Any]:
        return {name: one.state_dict() for name, one in self.filters.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self.filters):
            raise InputError(f"checkpoint holds filters {sorted(state)}, this run has {sorted(self.filters)}")
        for name, one in self.filters.items():
            one.load_state_dict(state[name])
