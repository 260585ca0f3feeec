"""The page of a rubric report: chapters with a sentence, then pictures, then measures, tables and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from mmrubric.quality import RULES, Power
from mmrubric.report import rubric_report_plots as plots
from mmrubric.report.judge_report_page import Bar, Picture, _shown
from mmrubric.report.rubric_report import RubricReport
from mmrubric.report.rubric_report_numbers import CriterionPower, RubricNumbers, by_rule
from mmrubric.report.wording import percent, points
from mmrubric.report.written import filled

QUESTIONS = {
    "rubric_quality": "Are the checklists well made",
    "judge_fidelity": "Do different readers agree on them",
    "saturation_and_ties": "Do the criteria tell pictures apart",
    "attack_probes": "Can a judge be talked round",
}
"""Heading of each chapter, beside the survey's name for it."""
SHOWN_RUBRICS = 40
SHOWN_CRITERIA = 60
"""Rows of the longest lists; report.json holds all of them."""


@dataclass(frozen=True)
class Table:
    """Rows of text below some headings; the first cell of a row names it."""

    headings: list[str]
    rows: list[list[str]]
    caption: str


@dataclass(frozen=True)
class Chapter:
    """One of the four chapters."""

    key: str
    name: str
    heading: str
    summary: str
    measures: list[dict[str, Any]]
    pictures: list[Picture] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    rubrics: list[dict[str, Any]] = field(default_factory=list)
    """Checklists with findings, worst first."""
    selection: str = ""
    """Which checklists are shown."""


def render(report: RubricReport) -> str:
    """The page as text; it needs no network."""
    return filled(
        "rubric_report.html.j2",
        title=report.title,
        headline=headline(report),
        tiles=tiles(report),
        notices=report.notices,
        chapters=chapters(report),
    )


def headline(report: RubricReport) -> dict[str, str]:
    """The result as one sentence, and what it rests on."""
    count = len(report.rubrics)
    detail = f"{report.criteria:,} criteria, read by {len(RULES)} rules of wording and structure"
    if report.power is not None:
        detail += f", and by {report.power.verdicts:,} verdicts on {report.power.samples:,} samples"
    if report.faultless == count:
        lead, result = "By their wording, there is", "no fault"
        rest = " in this checklist." if count == 1 else f" in these {count:,} checklists."
        return {"lead": lead, "result": result, "rest": rest, "tone": "", "detail": f"{detail}."}
    result = f"{count - report.faultless:,} of {count:,} checklists"
    return {"lead": "Worth another look:", "result": result, "rest": ".", "tone": "down", "detail": f"{detail}."}


def tiles(report: RubricReport) -> list[dict[str, str]]:
    """The key figures below the headline."""
    sizes = [len(item.rubric.criteria) for item in report.rubrics]
    severities = Counter(finding.severity for item in report.rubrics for finding in item.findings)
    unsaid = sum(len(item.coverage.missing) for item in report.rubrics)
    out = [
        _tile("Criteria per checklist", f"{np.mean(sizes):.1f}", f"from {min(sizes)} to {max(sizes)}"),
        _tile(
            "Errors", f"{severities['error']:,}", f"{severities['warning']:,} warnings, {severities['note']:,} notes"
        ),
        _tile("Words of the prompt spoken of", percent(report.coverage), f"{unsaid:,} are in no criterion"),
    ]
    judged = [] if report.power is None else [c.power for c in report.power.criteria if np.isfinite(c.power.pass_rate)]
    if judged:
        fixed = sum(bool(power.saturated) for power in judged)
        out.append(
            _tile("Criteria that hardly vary", percent(fixed / len(judged)), f"{fixed:,} of {len(judged):,} judged")
        )
    else:
        out.append(_tile("Criteria that hardly vary", "not measured", "no verdicts were given"))
    if report.proxy is not None and report.proxy.known:
        note = f"of {report.proxy.known:,} labelled pairs"
        out.append(_tile("A proxy decides right", percent(report.proxy.accuracy), note))
    return out


def _tile(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "note": note}


def chapters(report: RubricReport) -> list[Chapter]:
    """The four chapters in order."""
    fill = {"rubric_quality": _well_made, "judge_fidelity": _agreed, "saturation_and_ties": _told_apart}
    return [
        Chapter(
            key,
            name,
            QUESTIONS[key],
            section.summary,
            [_shown(measure) for measure in section.measures],
            **(fill[key](report) if key in fill else {}),
        )
        for key, name, section in report.reliability.items()
    ]


def _well_made(report: RubricReport) -> dict[str, Any]:
    sizes = [len(item.rubric.criteria) for item in report.rubrics]
    pictures = [
        Picture(Markup(plots.sizes_plot(sizes)), "How many checklists have how many criteria; 3 to 25 are usual.")
    ]
    counts = by_rule(report.rubrics)
    if counts:
        order = {rule: counts[rule] for rule in RULES if rule in counts}
        caption = "What was found, by rule. Errors make a fair answer impossible, warnings bend the score."
        pictures.append(Picture(Markup(plots.rules_plot(order)), caption))
    kinds = Counter(criterion.category for item in report.rubrics for criterion in item.rubric.criteria)
    worst = sorted((item for item in report.rubrics if item.findings or item.coverage.missing), key=_badness)
    shown = [_card(item) for item in worst[:SHOWN_RUBRICS]]
    selection = f"The {len(shown):,} worst of {len(worst):,} checklists with a finding; report.json holds all."
    return {
        "pictures": pictures,
        "bars": [Bar("Criteria by kind", kinds.most_common())],
        "rubrics": shown,
        "selection": selection
        if len(worst) > len(shown)
        else f"All {len(worst):,} checklists with a finding, worst first.",
    }


def _badness(item: RubricNumbers) -> tuple[int, int, int]:
    """Sorts most errors first, then most warnings, then most words left out."""
    counts = Counter(finding.severity for finding in item.findings)
    return -counts["error"], -counts["warning"], -len(item.coverage.missing)


def _card(item: RubricNumbers) -> dict[str, Any]:
    texts = {criterion.id: criterion.text for criterion in item.rubric.criteria}
    return {
        "where": item.where,
        "prompt": item.rubric.prompt or "(for a whole data set)",
        "missing": ", ".join(item.coverage.missing),
        "findings": [
            {
                "severity": finding.severity,
                "rule": finding.rule.replace("_", " "),
                "message": finding.message,
                "texts": [texts[id] for id in finding.criteria],
            }
            for finding in item.findings
        ],
    }


def _agreed(report: RubricReport) -> dict[str, Any]:
    if report.power is None or not report.power.agreement:
        return {}
    rows = [
        [item.key, f"{item.cells:,}", percent(item.agreement), "–" if np.isnan(item.alpha) else f"{item.alpha:.2f}"]
        for item in report.power.agreement
    ]
    caption = "Alpha: 1 = the judges always agree, 0 = as by chance; – means that only one answer occurs."
    return {"tables": [Table(["Kind of criterion", "Questions", "Same answer", "Alpha"], rows, caption)]}


_COLUMNS = ["Pass", "Spread", "Separates", "Gap", "Unknown"]


def _told_apart(report: RubricReport) -> dict[str, Any]:
    power = report.power
    if power is None:
        return {}
    known = [item for item in power.criteria if np.isfinite(item.power.pass_rate)]
    out: dict[str, Any] = {}
    if known:
        rates = [item.power.pass_rate for item in known]
        caption = (
            "How often each criterion is passed. Those at either end, in grey, say almost nothing about a picture."
        )
        out["pictures"] = [Picture(Markup(plots.pass_rates_plot(rates)), caption)]
    caption = (
        "Spread: standard deviation within a group. Separates: share of groups in which some samples pass and others "
        "fail. Gap: pass rate of preferred minus rejected samples, in points. – means not measured."
    )
    kinds = Table(["Kind of criterion", *_COLUMNS], [[kind.key, *_cells(kind)] for kind in power.kinds], caption)
    weakest = sorted(known, key=_weakness)[:SHOWN_CRITERIA]
    which = f"The {len(weakest):,} of {len(known):,} criteria that separate least, weakest first."
    rows = [[f"{item.text} ({item.where})", *_cells(item.power)] for item in weakest]
    out["tables"] = [kinds, *([Table(["Criterion", *_COLUMNS], rows, which)] if rows else [])]
    return out


def _weakness(item: CriterionPower) -> tuple[float, float]:
    """Sorts what separates least first, then by how far the pass rate is from one half."""
    return float(np.nan_to_num(item.power.separates)), -abs(item.power.pass_rate - 0.5)


def _cells(power: Power) -> Sequence[str]:
    return [
        _or_dash(power.pass_rate, percent(power.pass_rate)),
        _or_dash(power.std, f"{power.std:.2f}"),
        _or_dash(power.separates, percent(power.separates)),
        _or_dash(power.gap, points(power.gap)),
        _or_dash(power.unknown_share, percent(power.unknown_share)),
    ]


def _or_dash(value: float, text: str) -> str:
    return text if np.isfinite(value) else "–"
