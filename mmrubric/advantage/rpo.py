"""Rubric Policy Optimization: the verdict of a pair is mapped to constants that are the advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from mmrubric import preference
from mmrubric.advantage.base import Advantage, AdvantageOut, clamped, registry
from mmrubric.checks import number, one_of, switch
from mmrubric.errors import InputError
from mmrubric.group import Group, Pair, as_group
from mmrubric.scores import Rules
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

PAIRINGS = (*preference.PAIRINGS, "list")
SOURCES = ("auto", "pairs", "table", "rewards")


@registry.register("rpo", Tags(Construction.contrastive_pairs, Optimisation.refine, Signal.output_level, Loop.none))
@dataclass(frozen=True, kw_only=True)
class Rpo(Advantage):
    """`win` to the winner of a pair, `loss` to the loser, 0 to both for a tie; no mean, no std.

    A tied or inconsistent pair has advantage 0 and weight 1, a failed one weight 0. A sample in several pairs
    has the mean over them.

    Args:
        win, loss: the constants +lambda and -gamma. With the `nft` loss use 1 and -1.
        centered: subtract the pair mean, (1.0, -0.1) -> +-0.55.
        clamp: advantages are cut to +-clamp; None = not.
        pairing: for groups above 2. `disjoint`: a random matching, even groups only; `round_robin`: all
            pairs; `list`: all pairs give ranks, and the advantage is linear in the rank.
        source: where preferences come from: `pairs` (a pair judge's verdicts, always used as they are),
            `table` (`preference.compare`), `rewards` (the larger wins). `auto` takes the first of these that
            a group has.
        margin, min_coverage, dependencies, gates, binarize: see `preference.compare`; `rewards` uses margin
            only.
        seed: of the random matching, which also depends on the group's sample ids or key.

    Source: arXiv 2605.08354; groups above 2 and `centered` are ours, `list` is its code's.
    """

    win: float = 1.0
    loss: float = -0.1
    centered: bool = False
    clamp: float | None = 5.0
    pairing: str = "disjoint"
    source: str = "auto"
    margin: float | None = None
    min_coverage: float = 0.5
    dependencies: str = "none"
    gates: bool = True
    binarize: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        number("win", self.win)
        number("loss", self.loss)
        if self.win <= self.loss:
            raise InputError(f"win ({self.win}) must be above loss ({self.loss})")
        switch("centered", self.centered)
        if self.clamp is not None and number("clamp", self.clamp, low=0.0) == 0:
            raise InputError("clamp: 0 removes every advantage; use a positive number or null")
        one_of("pairing", self.pairing, PAIRINGS)
        one_of("source", self.source, SOURCES)
        preference.margin_of(self.margin, self.binarize)
        Rules(self.dependencies, self.gates, self.min_coverage)

    def check_size(self, size: int) -> None:
        """At least 2 samples; an even number for disjoint pairs."""
        preference.check_pairing(size, self.pairing)

    def compute(self, groups: Sequence[Group | ArrayLike]) -> list[AdvantageOut]:
        """See `Advantage.compute`; needs `Group.pairs`, `.table` or `.rewards`, as `source` says."""
        return [self._one(as_group(group)) for group in groups]

    def pairs(self, group: Group) -> tuple[Pair, ...]:
        """The pairs of a group with verdicts: those it holds, or those that `pairing` and scores give."""
        source = self.source
        if source == "auto":
            source = next((name for name in SOURCES[1:] if getattr(group, name) is not None), None)
            if source is None:
                raise InputError(f"rpo needs Group.pairs, table or rewards; group {group.key!r} has none of them")
        value = group.need(source, "rpo")
        if source == "pairs":
            return value
        if source == "rewards":
            if value.ndim != 1:
                raise InputError(f"rpo compares one reward per sample, got shape {list(value.shape)}")
            margin = preference.margin_of(self.margin, self.binarize)
            return tuple((i, j, preference.compare_rewards(value[i], value[j], margin)) for i, j in self._which(group))
        return preference.compare_pairs(
            value,
            self._which(group),
            margin=self.margin,
            min_coverage=self.min_coverage,
            dependencies=self.dependencies,
            gates=self.gates,
            binarize=self.binarize,
        )

    def matches(self, size: int, key: str) -> list[tuple[int, int]]:
        """The pairs that `pairing` says."""
        return self._matches(size, f"{key}\x1f")

    def _which(self, group: Group) -> list[tuple[int, int]]:
        content = "\x1f".join(group.table.sample_ids) if group.table is not None else ""
        return self._matches(group.size, f"{group.key}\x1f{content}")

    def _matches(self, size: int, named: str) -> list[tuple[int, int]]:
        how = "round_robin" if self.pairing == "list" else self.pairing
        return preference.pairing(size, how, f"{self.seed}\x1f{named}")

    def _one(self, group: Group) -> AdvantageOut:
        preference.check_pairing(group.size, "round_robin")
        pairs = self.pairs(group)
        if self.pairing == "list":
            ranks = preference.ranks_of(pairs, group.size)
            advantage, weight = preference.list_map(ranks, self.win, self.loss, self.centered)
        else:
            advantage, weight = preference.pair_advantages(pairs, group.size, self.win, self.loss, self.centered)
        return AdvantageOut(clamped(advantage, self.clamp), weight)
