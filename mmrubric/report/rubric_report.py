"""How good rubrics are: by their wording, against their prompts, and by what verdicts and a proxy show.

    report = rubric_report(load_rubrics([Path("rubrics.jsonl")]), of_groups(RecordReader("record.jsonl").groups()))
    write_rubric_report(report, "runs/rubrics")        # report.html and report.json

The chapters are the four reliability sections of the survey of rubrics (arXiv 2606.08625); what has no input is 'not
measured'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrubric.errors import InputError
from mmrubric.quality import ProxyAccuracy, proxy_accuracy
from mmrubric.report import rubric_report_sections as sections
from mmrubric.report.judge_report_inputs import PairAnswers
from mmrubric.report.judge_report_numbers import orders_of
from mmrubric.report.model import Reliability
from mmrubric.report.numbers import finite
from mmrubric.report.probes import ProbeResult
from mmrubric.report.rubric_report_inputs import Judged, Source, known_tables
from mmrubric.report.rubric_report_numbers import PowerNumbers, RubricNumbers, by_rule, read_rubrics, read_verdicts
from mmrubric.report.written import WrittenReport, write_files
from mmrubric.similar import Encoder


@dataclass(frozen=True)
class RubricReport:
    """Everything that the report of some rubrics shows."""

    title: str
    rubrics: list[RubricNumbers]
    power: PowerNumbers | None
    """None without verdicts."""
    proxy: ProxyAccuracy | None
    """None without a proxy's answers."""
    probes: Sequence[ProbeResult]
    reliability: Reliability
    notices: Sequence[str]
    """Sentences that a reader must not miss."""

    @property
    def criteria(self) -> int:
        """Criteria of all rubrics."""
        return sum(len(item.rubric.criteria) for item in self.rubrics)

    @property
    def faultless(self) -> int:
        """Rubrics without an error or a warning."""
        return sum(not item.faults for item in self.rubrics)

    @property
    def coverage(self) -> float:
        """Mean share of the prompt that is spoken of, in [0, 1]; NaN when no prompt names anything."""
        shares = [share for item in self.rubrics if np.isfinite(share := item.coverage.share)]
        return float(np.mean(shares)) if shares else float("nan")

    def as_json(self) -> dict[str, Any]:
        """The content of report.json: plain values, None where unknown."""
        return {
            "title": self.title,
            "totals": {
                "rubrics": len(self.rubrics),
                "criteria": self.criteria,
                "faultless": self.faultless,
                "coverage": finite(self.coverage),
                "findings": {rule: dict(counts) for rule, counts in sorted(by_rule(self.rubrics).items())},
            },
            "rubrics": [item.as_json() for item in self.rubrics],
            "power": None if self.power is None else self.power.as_json(),
            "proxy": None if self.proxy is None else _plain(asdict(self.proxy)),
            "reliability": {
                key: {"summary": section.summary, "measures": [_plain(asdict(m)) for m in section.measures]}
                for key, _, section in self.reliability.items()
            },
            "notices": list(self.notices),
        }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: finite(value) if isinstance(value, float) else value for name, value in values.items()}


def rubric_report(
    sources: Sequence[Source],
    judged: Sequence[Judged] = (),
    *,
    preferred: Mapping[str, bool] | None = None,
    proxy: Sequence[PairAnswers] = (),
    without: Sequence[PairAnswers] | None = None,
    probes: Sequence[ProbeResult] = (),
    encoder: Encoder | None = None,
    title: str = "Rubric report",
    advance: Callable[[int], None] = lambda count: None,
) -> RubricReport:
    """Measure rubrics.

    Args:
        sources: the rubrics; equal ones count once.
        judged: verdicts on them, of one or several judges.
        preferred: by sample id, whether a sample is the preferred one; for the gap.
        proxy: labelled pairs that a proxy decided with the rubrics, in both orders.
        without: the same pairs decided without any rubric, for the credit.
        probes: attacks that were tried on these rubrics.
        encoder: finds repeats in other words; None = by words only.
        title: of the report.
        advance: gets the number of rubrics that are done.

    Raises:
        InputError: no rubric, verdicts on none of them, labels that name no judged sample, or pairs that do not fit.
    """
    if not sources:
        raise InputError("there is no rubric to report on; give at least one rubric file")
    if preferred is not None and not judged:
        raise InputError("preferred samples need verdicts; give a run record or verdict rows too")
    if without is not None and not proxy:
        raise InputError("pairs decided without a rubric need the same pairs decided with one")
    known, others = known_tables(judged, {source.rubric.hash: source.rubric for source in sources})
    decided = proxy_accuracy(proxy, without) if proxy else None
    power = read_verdicts(known, rubrics := read_rubrics(sources, encoder, advance), preferred)
    return RubricReport(
        title=title,
        rubrics=rubrics,
        power=power,
        proxy=decided,
        probes=probes,
        reliability=Reliability(
            sections.quality(rubrics),
            sections.fidelity(power, decided),
            sections.saturation(power, labelled=preferred is not None),
            sections.attacks(rubrics, probes, orders_of(proxy)),
        ),
        notices=sections.notices(len(sources) - len(rubrics), others, power),
    )


def write_rubric_report(report: RubricReport, directory: str | Path) -> WrittenReport:
    """Write `report.html`, which opens without a network, and `report.json`.

    Raises:
        InputError: one of the four reliability sections is missing or empty; it is named.
    """
    report.reliability.require_all()
    from mmrubric.report.rubric_report_page import render

    return write_files(report.as_json(), render(report), directory)
