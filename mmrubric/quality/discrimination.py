"""Whether criteria tell samples apart, from verdicts: pass rates, saturation, spread, and the gap to a preference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.report.reliability import SATURATED
from mmrubric.scores import ScoreTable

Floats = NDArray[np.float64]
By = Literal["criterion", "category"]
Preferred = Mapping[str, bool]
"""By sample id: True = preferred, False = rejected; samples that are not named have no label."""


@dataclass(frozen=True)
class Power:
    """How well one criterion (or the criteria of one category) tells samples apart.

    Satisfied is good: `passed` of the score table, so that negative criteria count as passed when they do not show.
    Every share is in [0, 1] and NaN where nothing was known to measure it on.
    """

    key: str
    """Criterion id or category."""
    columns: int
    """Criteria x groups behind the numbers."""
    verdicts: int
    """Known and unknown ones."""
    unknown_share: float
    pass_rate: float
    """Of all known verdicts."""
    std: float
    """Standard deviation of good within a group (ddof 0), mean over columns with at least 2 known verdicts."""
    separates: float
    """Share of those columns in which some samples pass and others fail."""
    gap: float
    """Pass rate of preferred minus rejected samples within a group, in [-1, 1], mean over columns that know both."""
    gap_columns: int
    """Columns behind `gap`."""

    @property
    def saturated(self) -> Literal["", "always", "never"]:
        """'always' or 'never' when nearly all samples pass or fail it."""
        low, high = SATURATED
        return "never" if self.pass_rate <= low else "always" if self.pass_rate >= high else ""


def discrimination(
    tables: ScoreTable | Iterable[ScoreTable],
    preferred: Preferred | Sequence[Preferred] | None = None,
    by: By = "criterion",
) -> list[Power]:
    """Discriminative power over one or many groups.

    A criterion that is the same for all samples of a group adds nothing to their advantages at any weight, so
    `separates` and `std` are taken within groups; so is `gap`, because prompts differ in difficulty.

    Args:
        tables: one per group, each with its own rubric.
        preferred: labels by sample id: one mapping for all tables, or one per table.
        by: `criterion` joins equal criterion ids of different rubrics, which is right when the ids mean the same in
            all of them; `category` joins categories.

    Returns:
        Sorted by key.

    Raises:
        InputError: unknown `by`, a wrong number of mappings, or labels that name no sample of their table.
    """
    one_of("by", by, get_args(By))
    listed = [tables] if isinstance(tables, ScoreTable) else list(tables)
    columns: dict[str, list[_Column]] = {}
    for table, labels in zip(listed, _labels(listed, preferred), strict=True):
        for index, criterion in enumerate(table.rubric.criteria):
            key = criterion.id if by == "criterion" else criterion.category
            columns.setdefault(key, []).append(_Column(table.good[:, index], table.passed[:, index], labels))
    return [_power(key, columns[key]) for key in sorted(columns)]


@dataclass(frozen=True)
class _Column:
    """One criterion of one group, [S] each; NaN = unknown or unlabelled."""

    good: Floats
    passed: Floats
    labels: Floats


def _labels(tables: Sequence[ScoreTable], preferred: Preferred | Sequence[Preferred] | None) -> list[Floats]:
    """Labels [S] of every table: 1 preferred, 0 rejected, NaN none."""
    if preferred is None:
        return [np.full(len(table), np.nan) for table in tables]
    shared = isinstance(preferred, Mapping)
    given = [preferred] * len(tables) if isinstance(preferred, Mapping) else list(preferred)
    if len(given) != len(tables):
        raise InputError(f"preferred: {len(given)} mappings for {len(tables)} tables; give one per table")
    for wanted, mapping in zip([tables] if shared else [[table] for table in tables], given, strict=False):
        known = {id for table in wanted for id in table.sample_ids}
        if mapping and not known & mapping.keys():
            raise InputError(
                f"preferred: none of its {len(mapping)} sample ids is judged; it names for example "
                f"{next(iter(mapping))!r}, the tables {next(iter(known), 'nothing')!r}"
            )
    return [
        np.array([float(mapping[id]) if id in mapping else np.nan for id in table.sample_ids])
        for table, mapping in zip(tables, given, strict=True)
    ]


def _power(key: str, columns: Sequence[_Column]) -> Power:
    passed = np.concatenate([column.passed for column in columns])
    known = passed[~np.isnan(passed)]
    several = [column for column in columns if (~np.isnan(column.passed)).sum() >= 2]
    gaps = [gap for column in columns if not np.isnan(gap := _gap(column))]
    return Power(
        key=key,
        columns=len(columns),
        verdicts=len(passed),
        unknown_share=1.0 - len(known) / len(passed) if len(passed) else float("nan"),
        pass_rate=_mean(known),
        std=_mean([float(np.nanstd(column.good)) for column in several]),
        separates=_mean([float(np.nanmax(column.passed) > np.nanmin(column.passed)) for column in several]),
        gap=_mean(gaps),
        gap_columns=len(gaps),
    )


def _gap(column: _Column) -> float:
    return _mean(_known(column.passed, column.labels == 1)) - _mean(_known(column.passed, column.labels == 0))


def _known(values: Floats, chosen: NDArray[np.bool_]) -> Floats:
    return values[chosen & ~np.isnan(values)]


def _mean(values: Sequence[float] | Floats) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
