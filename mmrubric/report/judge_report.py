"""How far a judge can be trusted: measured against labels, its own other order, its own repeats, and attacks.

    data = judge_report(groups, load_labels("labels.jsonl"), pairs=load_pairs("pairs.jsonl"), repeats=[again])
    write_judge_report(data, "runs/judge")        # report.html and report.json

The chapters are the four reliability sections of the survey of rubrics (arXiv 2606.08625).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrubric.errors import InputError
from mmrubric.record_reader import RecordedGroup
from mmrubric.report import judge_report_sections as sections
from mmrubric.report.agreement import ALWAYS_FIRST
from mmrubric.report.judge_report_inputs import Label, PairAnswers
from mmrubric.report.judge_report_numbers import (
    CalibrationNumbers,
    KindNumbers,
    OrderNumbers,
    attack_of,
    calibration_of,
    numbers_of,
    orders_of,
    table_of,
)
from mmrubric.report.model import Measure, Reliability, Section
from mmrubric.report.numbers import finite, listed
from mmrubric.report.probes import ProbeResult
from mmrubric.report.written import WrittenReport, write_files
from mmrubric.verdict import FREE, Cost


@dataclass(frozen=True)
class JudgeReport:
    """Everything that the report of one judge shows."""

    title: str
    judge: str
    """Id of the judge."""
    samples: int
    prompts: int
    overall: KindNumbers
    kinds: list[KindNumbers]
    calibration: CalibrationNumbers
    orders: OrderNumbers | None
    repeats: int
    """Further askings of the same questions."""
    answers: dict[str, int]
    """Questions by what came back: answered, does not apply, unknown, or the kind of failure."""
    reads: dict[str, int]
    """Known answers by how they were read."""
    cost: Cost
    """Of all questions, failed ones too."""
    cached: int
    """Answers that came from a store and cost nothing."""
    labels_unused: int
    """Labels that fit no verdict of the record."""
    labels_open: int
    """Labels that say that nobody can say."""
    probes: Sequence[ProbeResult]
    fidelity: Mapping[str, Sequence[Measure]]
    """The measures of the section on judge fidelity by what they are about."""
    reliability: Reliability
    notices: Sequence[str]
    """Sentences that a reader must not miss."""

    def as_json(self) -> dict[str, Any]:
        """The content of report.json: plain values, None where unknown; intervals are `[low, mid, high]`."""
        drawn = self.calibration.diagram
        return {
            "title": self.title,
            "judge": self.judge,
            "samples": self.samples,
            "prompts": self.prompts,
            "labels": {"used": self.overall.labels, "unused": self.labels_unused, "open": self.labels_open},
            "overall": _kind(self.overall),
            "per_kind": {kind.kind: _kind(kind) for kind in self.kinds},
            "calibration": {
                "edges": drawn.edges.tolist(),
                "counts": [int(count) for count in drawn.counts],
                "said": [finite(value) for value in drawn.said],
                "true": [listed(interval) for interval in self.calibration.true],
                "ece_by_chance": finite(self.calibration.by_chance),
            },
            "orders": None if self.orders is None else _orders(self.orders),
            "always_first": ALWAYS_FIRST,
            "repeats": self.repeats,
            "answers": self.answers,
            "reads": self.reads,
            "cost": {**asdict(self.cost), "cached": self.cached},
            "reliability": {
                key: {"summary": section.summary, "measures": [_measure(measure) for measure in section.measures]}
                for key, _, section in self.reliability.items()
            },
            "notices": list(self.notices),
        }


def _kind(numbers: KindNumbers) -> dict[str, Any]:
    counts = asdict(numbers)
    return {
        **{name: counts[name] for name in ("verdicts", "labels", "false_yes", "false_no")},
        "base_rate": finite(numbers.base_rate),
        **{name: listed(interval) for name, interval in numbers.values.items()},
    }


def _orders(numbers: OrderNumbers) -> dict[str, Any]:
    found = numbers.orders
    return {
        "pairs": numbers.pairs,
        "known": found.known,
        "outcomes": {str(verdict): count for verdict, count in found.outcomes.items()},
        "consistency": listed(numbers.consistency),
        "bias": listed(numbers.bias),
        **{name: finite(getattr(found, name)) for name in ("accuracy", "accuracy_first", "accuracy_second")},
    }


def _measure(measure: Measure) -> dict[str, Any]:
    value = finite(measure.value) if isinstance(measure.value, float) else measure.value
    return {"name": measure.name, "value": value, "unit": measure.unit, "note": measure.note}


def judge_report(
    verdicts: Sequence[RecordedGroup],
    labels: Iterable[Label] = (),
    *,
    pairs: Sequence[PairAnswers] = (),
    repeats: Sequence[Sequence[RecordedGroup]] = (),
    attacks: Mapping[str, Sequence[RecordedGroup]] | None = None,
    probes: Sequence[ProbeResult] = (),
    title: str = "Judge report",
    seed: int = 0,
    resamples: int = 1000,
) -> JudgeReport:
    """Measure one judge.

    Args:
        verdicts: groups of a run record (`RecordReader.groups`) of one judge, each sample once.
        labels: what is true; without any, accuracy and calibration are unknown and the report says so.
        pairs: pairs asked in both orders, for position consistency and bias.
        repeats: the same samples judged again by the same judge, for the run-to-run spread.
        attacks: by name, the same samples (same ids) judged after an attack.
        probes: results of `run_probes`, shown beside `attacks`.
        title: of the report.
        seed: of the bootstrap.
        resamples: bootstrap resamples of prompts, at least 100.

    Raises:
        InputError: no verdicts, several judges, a sample judged twice, labels or repeats that do not fit.
    """
    judges = sorted({group.judge_id for group in verdicts})
    if len(judges) > 1:
        raise InputError(
            f"the record has verdicts of {len(judges)} judges; choose one judge id of: {', '.join(judges)}"
        )
    labels = list(labels)
    options = {"seed": seed, "resamples": resamples}
    table = table_of(verdicts, labels, repeats)
    overall = numbers_of(table, None, **options)
    kinds = [numbers_of(table, kind, **options) for kind in table.kinds]
    calibration = calibration_of(table, **options)
    orders = orders_of(pairs, **options)
    attacked = [attack_of(name, verdicts, groups, **options) for name, groups in (attacks or {}).items()]
    tried = [*probes, *attacked]
    given = [cell.verdict for cell in table.cells]
    answers = Counter(sections.answer_of(verdict) for verdict in given)
    cost = sum((verdict.cost for verdict in given), FREE)
    fidelity = sections.fidelity(overall, calibration, orders, len(repeats), answers, cost)
    others = sorted({group.judge_id for run in repeats for group in run} - set(judges))
    keys = {cell.key for cell in table.cells}
    return JudgeReport(
        title=title,
        judge=judges[0],
        samples=len({cell.verdict.sample_id for cell in table.cells}),
        prompts=len(np.unique(table.units)),
        overall=overall,
        kinds=kinds,
        calibration=calibration,
        orders=orders,
        repeats=len(repeats),
        answers=dict(answers.most_common()),
        reads=dict(Counter(verdict.read for verdict in given if verdict.known).most_common()),
        cost=cost,
        cached=sum(verdict.cost.cached for verdict in given),
        labels_unused=sum((label.sample_id, label.criterion_id) not in keys for label in labels),
        labels_open=sum(label.met is None for label in labels),
        probes=tried,
        fidelity=fidelity,
        reliability=Reliability(
            sections.rubrics(verdicts),
            Section(
                sections.fidelity_sentence(overall, orders, len(repeats)),
                [measure for group in fidelity.values() for measure in group],
            ),
            sections.saturation(verdicts, kinds, orders),
            sections.attacks(tried, orders),
        ),
        notices=sections.notices(overall, len(labels), others, Counter(v.read for v in given if v.known)),
    )


def write_judge_report(report: JudgeReport, directory: str | Path) -> WrittenReport:
    """Write `report.html`, which opens without a network, and `report.json`.

    Raises:
        InputError: one of the four reliability sections is missing or empty; it is named.
    """
    report.reliability.require_all()
    from mmrubric.report.judge_report_page import render

    return write_files(report.as_json(), render(report), directory)
