"""`PairVerdict` and `Group`: what an advantage is computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrubric.errors import InputError
from mmrubric.scores import ScoreTable


class PairVerdict(StrEnum):
    """Outcome of comparing sample a with sample b."""

    WIN_A = "WIN_A"
    WIN_B = "WIN_B"
    TIE = "TIE"
    INCONSISTENT = "INCONSISTENT"
    """The two orders disagree."""
    FAILED = "FAILED"
    """The judge gave no usable answer, or too little is known of both samples."""

    def flipped(self) -> PairVerdict:
        """The verdict seen from the other side: as if b had been named first."""
        return {PairVerdict.WIN_A: PairVerdict.WIN_B, PairVerdict.WIN_B: PairVerdict.WIN_A}.get(self, self)


Pair: TypeAlias = tuple[int, int, PairVerdict]
"""(row of a, row of b, verdict)."""


@dataclass(frozen=True)
class Group:
    """All samples of one prompt. A method that needs a field that is None says so by name.

    Raises:
        InputError: fields that disagree about the number of samples, infinite rewards, or pairs that repeat.
    """

    rewards: NDArray[np.float64] | None = None
    """[S], or [S, R] for R separate rewards; NaN = not scorable."""
    table: ScoreTable | None = None
    pairs: tuple[Pair, ...] | None = None
    token_mask: NDArray[np.bool_] | None = None
    """[S, T] True where a token counts."""
    relevance: NDArray[np.float64] | None = None
    """[S, K, T] relevance of token t to criterion k."""
    key: str = ""
    """Names the group (prompt id and step, say); seeds the random pairing of a group without a table."""
    size: int = 0
    """Number of samples S; found from the fields, and only needed for a group that holds pairs alone."""

    def __post_init__(self) -> None:
        if self.rewards is not None:
            object.__setattr__(self, "rewards", rewards_array(self.rewards))
        sizes = {
            name: len(value)
            for name in ("rewards", "table", "token_mask", "relevance")
            if (value := getattr(self, name)) is not None
        }
        if self.size:
            sizes["size"] = self.size
        elif not sizes and self.pairs:
            sizes["pairs"] = 1 + max(max(i, j) for i, j, _ in self.pairs)
        if len(set(sizes.values())) != 1:
            raise InputError(f"group {self.key!r}: fields must agree on the number of samples, got {sizes or 'none'}")
        object.__setattr__(self, "size", next(iter(sizes.values())))
        if self.pairs is not None:
            object.__setattr__(self, "pairs", check_pairs(self.pairs, self.size))

    def need(self, field: str, method: str) -> Any:
        """The field, or an `InputError` that names it and the method that needs it."""
        value = getattr(self, field)
        if value is None:
            raise InputError(f"{method} needs Group.{field}, which group {self.key!r} does not have")
        return value

    def take(self, rows: ArrayLike) -> Group:
        """The group of some samples, in the given order; pairs are kept where both samples are."""
        index = np.asarray(rows, dtype=np.intp)
        new = {int(old): position for position, old in enumerate(index)}
        kept = None
        if self.pairs is not None:
            kept = tuple((new[i], new[j], verdict) for i, j, verdict in self.pairs if i in new and j in new)
        return replace(
            self,
            rewards=None if self.rewards is None else self.rewards[index],
            table=None if self.table is None else self.table.take(index),
            pairs=kept,
            token_mask=None if self.token_mask is None else self.token_mask[index],
            relevance=None if self.relevance is None else self.relevance[index],
            size=len(index),
        )


def as_group(group: Group | ArrayLike) -> Group:
    """A `Group` as it is; an array of rewards [S] or [S, R] as a group that holds nothing else."""
    return group if isinstance(group, Group) else Group(rewards=rewards_array(group))


def rewards_array(rewards: ArrayLike) -> NDArray[np.float64]:
    """Rewards as float64 [S] or [S, R]; NaN or None = not scorable, infinity is an `InputError`."""
    try:
        values = np.array(rewards, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"rewards must be numbers [S] or [S, R]: {error}") from error
    if values.ndim not in (1, 2):
        raise InputError(f"rewards have shape {list(values.shape)}; expected [S] or [S, R]")
    if np.isinf(values).any():
        raise InputError("rewards hold an infinite value; use NaN for a sample that cannot be scored")
    return values


def check_pairs(pairs: Sequence[Pair], size: int) -> tuple[Pair, ...]:
    """Pairs with verdicts as enum members; `InputError` when a row is out of range or a pair repeats."""
    seen: set[frozenset[int]] = set()
    checked = []
    for i, j, verdict in pairs:
        if not (0 <= i < size and 0 <= j < size) or i == j:
            raise InputError(f"pair ({i}, {j}) does not name two different samples of 0..{size - 1}")
        if frozenset((i, j)) in seen:
            raise InputError(f"pair ({i}, {j}) is given twice; combine its two orders first")
        seen.add(frozenset((i, j)))
        checked.append((int(i), int(j), PairVerdict(verdict)))
    return tuple(checked)
