"""From rubrics and verdicts to the numbers of a rubric report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mmrubric.quality import Coverage, Finding, JudgeAgreement, Power, coverage, discrimination, judge_agreement, lint
from mmrubric.report.numbers import finite
from mmrubric.report.reliability import polarisation
from mmrubric.report.rubric_report_inputs import Judged, Source
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable, sample_pass_rate
from mmrubric.similar import Encoder

TOLERANCE = 1e-6
"""Scores that differ by no more are a tie."""


@dataclass(frozen=True)
class RubricNumbers:
    """One rubric with what its wording says."""

    where: str
    rubric: Rubric
    findings: list[Finding]
    coverage: Coverage

    @property
    def faults(self) -> int:
        """Errors and warnings."""
        return sum(finding.severity != "note" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "where": self.where,
            "hash": self.rubric.hash,
            "prompt": self.rubric.prompt,
            "criteria": len(self.rubric.criteria),
            "findings": [{**asdict(f), "criteria": list(f.criteria)} for f in self.findings],
            "coverage": {
                "share": finite(self.coverage.share),
                **{
                    name: {"share": finite(kind.share), "spoken": list(kind.spoken), "missing": list(kind.missing)}
                    for name, kind in self.coverage.kinds.items()
                },
            },
        }


@dataclass(frozen=True)
class CriterionPower:
    """A criterion of one rubric with its discriminative power."""

    where: str
    rubric: Rubric
    power: Power

    @property
    def text(self) -> str:
        """The statement."""
        return self.rubric.criterion(self.power.key).text


@dataclass(frozen=True)
class PowerNumbers:
    """What verdicts show."""

    judges: list[str]
    groups: int
    samples: int
    verdicts: int
    unknown_share: float
    kinds: list[Power]
    """By category, all rubrics together."""
    criteria: list[CriterionPower]
    """By rubric and criterion, in the order of the rubrics."""
    tied_share: float
    """Share of groups with several scored samples whose pass rates are all equal; NaN without any."""
    several: int
    """Groups behind `tied_share`."""
    polarisation: float | None
    """Share of samples that meet all or nothing."""
    agreement: list[JudgeAgreement]
    """Across judges, all criteria first; empty with one judge."""

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "judges": self.judges,
            "groups": self.groups,
            "samples": self.samples,
            "verdicts": self.verdicts,
            "unknown_share": finite(self.unknown_share),
            "tied_share": finite(self.tied_share),
            "polarisation": self.polarisation,
            "kinds": {power.key: power_json(power) for power in self.kinds},
            "criteria": [
                {"where": item.where, "criterion": item.power.key, **power_json(item.power)} for item in self.criteria
            ],
            "agreement_across_judges": {
                item.key: {"cells": item.cells, "agreement": finite(item.agreement), "alpha": finite(item.alpha)}
                for item in self.agreement
            },
        }


def power_json(power: Power) -> dict[str, Any]:
    """A `Power` without its key as plain JSON values; None where unknown."""
    values = {name: value for name, value in asdict(power).items() if name != "key"}
    return {
        **{name: finite(value) if isinstance(value, float) else value for name, value in values.items()},
        "saturated": power.saturated,
    }


def read_rubrics(
    sources: Sequence[Source], encoder: Encoder | None, advance: Callable[[int], None]
) -> list[RubricNumbers]:
    """Lint every rubric and compare it with its prompt; equal rubrics are read once.

    Args:
        sources: rubrics.
        encoder: as for `lint`.
        advance: gets the number of rubrics that are done.
    """
    numbers: dict[str, RubricNumbers] = {}
    for source in sources:
        rubric = source.rubric
        if rubric.hash not in numbers:
            numbers[rubric.hash] = RubricNumbers(source.where, rubric, lint(rubric, encoder), coverage(rubric))
        advance(1)
    return list(numbers.values())


def read_verdicts(
    judged: Sequence[Judged], rubrics: Sequence[RubricNumbers], preferred: Mapping[str, bool] | None
) -> PowerNumbers | None:
    """Discriminative power, ties and agreement; None without verdicts. Groups of all judges count alike.

    Raises:
        InputError: labels that name none of the samples; two judgements of one sample when there are several judges.
    """
    if not judged:
        return None
    tables = [item.table for item in judged]
    labels = None if preferred is None else _per_table(tables, preferred)
    by_rubric: dict[str, list[int]] = {}
    for index, table in enumerate(tables):
        by_rubric.setdefault(table.rubric.hash, []).append(index)
    criteria = []
    for item in rubrics:
        rows = by_rubric.get(item.rubric.hash, [])
        mine = None if labels is None else [labels[row] for row in rows]
        powers = {power.key: power for power in discrimination([tables[row] for row in rows], mine)}
        criteria += [CriterionPower(item.where, item.rubric, powers[id]) for id in item.rubric.ids if id in powers]
    by_judge: dict[str, list[ScoreTable]] = {}
    for item in judged:
        by_judge.setdefault(item.judge, []).append(item.table)
    rates = [sample_pass_rate(table) for table in tables]
    known = [rate[np.isfinite(rate)] for rate in rates]
    tied = [float(np.ptp(rate) <= TOLERANCE) for rate in known if len(rate) > 1]
    verdicts = sum(table.met.size for table in tables)
    return PowerNumbers(
        judges=sorted(by_judge),
        groups=len(tables),
        samples=len({(table.rubric.hash, id) for table in tables for id in table.sample_ids}),
        verdicts=verdicts,
        unknown_share=sum(int((~table.known).sum()) for table in tables) / verdicts if verdicts else float("nan"),
        kinds=discrimination(tables, labels, by="category"),
        criteria=criteria,
        tied_share=float(np.mean(tied)) if tied else float("nan"),
        several=len(tied),
        polarisation=polarisation(np.concatenate(rates)),
        agreement=judge_agreement(by_judge) if len(by_judge) > 1 else [],
    )


def _per_table(tables: Sequence[ScoreTable], preferred: Mapping[str, bool]) -> list[dict[str, bool]]:
    """The labels of each table's samples, after checking that some label is used at all."""
    discrimination(tables, preferred)
    return [{id: preferred[id] for id in table.sample_ids if id in preferred} for table in tables]


def by_rule(rubrics: Sequence[RubricNumbers]) -> dict[str, Counter[str]]:
    """Findings counted by rule and severity."""
    counts: dict[str, Counter[str]] = {}
    for item in rubrics:
        for finding in item.findings:
            counts.setdefault(finding.rule, Counter())[finding.severity] += 1
    return counts
