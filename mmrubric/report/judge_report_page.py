"""The page of a judge report: chapters with a sentence, then pictures, then measures and tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from mmrubric.bootstrap import Interval
from mmrubric.group import PairVerdict
from mmrubric.report import judge_report_plots as plots
from mmrubric.report.judge_report import JudgeReport
from mmrubric.report.judge_report_sections import of_100, range_of, short
from mmrubric.report.model import Measure, Unit
from mmrubric.report.page import duration, shown_measure
from mmrubric.report.written import filled

QUESTIONS = {
    "rubric_quality": "What was asked",
    "judge_fidelity": "Can its answers be believed",
    "saturation_and_ties": "Do its answers tell pictures apart",
    "attack_probes": "Can it be talked round",
}
"""Heading of each chapter, beside the survey's name for it."""
COLUMNS: dict[str, tuple[str, Unit]] = {
    "accuracy": ("Right", "share"),
    "kappa": ("Kappa", "number"),
    "kappa_linear": ("Linear", "number"),
    "kappa_quadratic": ("Quadratic", "number"),
    "alpha": ("Alpha", "number"),
    "ece": ("ECE", "share"),
    "coverage": ("Answered", "share"),
    "spread": ("Spread", "number"),
}
"""Columns of the table by kind: statistic to heading and unit."""


@dataclass(frozen=True)
class Picture:
    """A picture with the sentence below it."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Bar:
    """A bar divided by counts."""

    title: str
    parts: list[tuple[str, int]]

    @property
    def label(self) -> str:
        """The bar in words, for screen readers."""
        return ", ".join(f"{count:,} {name}" for name, count in self.parts)


@dataclass(frozen=True)
class Chapter:
    """One of the four chapters."""

    key: str
    name: str
    heading: str
    summary: str
    cards: list[tuple[str, list[dict[str, Any]]]]
    """(title, measures); a chapter with one card has no title on it."""
    pictures: list[Picture] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)


def render(report: JudgeReport) -> str:
    """The page as text; it needs no network."""
    return filled(
        "judge_report.html.j2",
        title=report.title,
        judge=report.judge,
        headline=headline(report),
        tiles=tiles(report),
        notices=report.notices,
        chapters=chapters(report),
        columns=[heading for heading, _ in COLUMNS.values()],
    )


def headline(report: JudgeReport) -> dict[str, str]:
    """The result as one sentence, and what it rests on."""
    overall = report.overall
    size = f"{report.samples:,} samples of {report.prompts:,} prompts"
    if not overall.labels:
        lead, rest = "How often this judge is right is", "."
        return {"lead": lead, "result": "unknown", "rest": rest, "tone": "flat", "detail": f"{size}, without labels."}
    accuracy = overall.values["accuracy"]
    better = accuracy.mid > overall.base_rate
    within = f" ({range_of(accuracy, 'share')})" if np.isfinite(accuracy.low) else ""
    guess = f"Always giving the most common label would be right on {of_100(overall.base_rate)}."
    return {
        "lead": "This judge is right on",
        "result": of_100(accuracy.mid),
        "rest": " labelled answers." if better else " labelled answers, which guessing would reach too.",
        "tone": "" if better else "down",
        "detail": f"Measured on {overall.labels:,} labelled answers on {size}{within}. {guess}",
    }


def tiles(report: JudgeReport) -> list[dict[str, str]]:
    """The key figures below the headline."""
    values = report.overall.values
    consistency = None if report.orders is None else report.orders.consistency
    tokens = report.cost.prompt_tokens + report.cost.completion_tokens
    out = [
        _tile("Right on labelled answers", values["accuracy"], "share", "no labels"),
        _tile("Better than chance (kappa)", values["kappa"], "number", "not decided"),
        _tile("Its percentages are off by", values["ece"], "share", "no labels"),
        _tile("Same choice in both orders", consistency, "share", "no pairs were given"),
    ]
    each = f"{tokens / report.overall.verdicts:,.0f}" if tokens else "none"
    note = f"{report.cost.calls:,} calls, {duration(report.cost.seconds)} of judging"
    return [*out, {"name": "Tokens per question", "value": each, "note": note}]


def _tile(name: str, interval: Interval | None, unit: Unit, why_not: str) -> dict[str, str]:
    if interval is None or not np.isfinite(interval.mid):
        return {"name": name, "value": "unknown", "note": why_not}
    return {"name": name, "value": short(interval.mid, unit), "note": range_of(interval, unit)}


def chapters(report: JudgeReport) -> list[Chapter]:
    """The four chapters in order."""
    fill = {
        "rubric_quality": _asked,
        "judge_fidelity": _believed,
        "saturation_and_ties": _told_apart,
        "attack_probes": _talked_round,
    }
    out = []
    for key, name, section in report.reliability.items():
        cards = report.fidelity if key == "judge_fidelity" else {"": section.measures}
        shown = [(title, [_shown(measure) for measure in measures]) for title, measures in cards.items()]
        out.append(Chapter(key, name, QUESTIONS[key], section.summary, shown, **fill[key](report)))
    return out


def _shown(measure: Measure) -> dict[str, Any]:
    return {"name": measure.name, "note": measure.note, "look": measure.look, "shown": shown_measure(measure)}


def _asked(report: JudgeReport) -> dict[str, Any]:
    parts = [(kind.kind, kind.verdicts) for kind in report.kinds]
    return {"bars": [Bar("Questions by kind of criterion", parts)]}


def _believed(report: JudgeReport) -> dict[str, Any]:
    pictures, bars = [], [Bar("What came back", list(report.answers.items()))]
    if report.overall.labels:
        rows = [plots.Row(kind.kind, kind.values["accuracy"], kind.base_rate) for kind in report.kinds]
        pictures.append(
            Picture(
                Markup(plots.shares_plot(rows, "Accuracy per kind of criterion")),
                "How often the judge is right, by kind of criterion. Bars are 95 % intervals over prompts; hollow dots "
                "are what always giving the most common label would reach.",
            )
        )
    if report.calibration.diagram.counts.any():
        pictures.append(
            Picture(
                Markup(plots.reliability_plot(report.calibration)),
                "When the judge says 'met with 80 %', it should be true 8 times of 10: dots on the dashed line. Below "
                "it the judge is too sure of 'met', above it not sure enough. Grey: how many answers.",
            )
        )
    if report.orders is not None and report.orders.orders.known:
        pictures.append(
            Picture(
                Markup(plots.bias_plot(report.orders.bias)),
                "Every pair was shown in both orders. The dot should stand in the middle; the hollow dot is a judge "
                "that always says the first.",
            )
        )
    if report.orders is not None:
        names = {
            PairVerdict.WIN_A: "won by a",
            PairVerdict.WIN_B: "won by b",
            PairVerdict.TIE: "tied in both orders",
            PairVerdict.INCONSISTENT: "changed with the order",
            PairVerdict.FAILED: "not answered",
        }
        outcomes = report.orders.orders.outcomes
        bars.append(
            Bar("Pairs (a, b) asked in both orders", [(name, outcomes[v]) for v, name in names.items() if outcomes[v]])
        )
    return {"pictures": pictures, "bars": bars, "table": kind_rows(report)}


def kind_rows(report: JudgeReport) -> list[dict[str, Any]]:
    """Rows of the table by kind, the sum last."""
    return [
        {
            "kind": kind.kind,
            "labels": f"{kind.labels:,}",
            "total": kind is report.overall,
            "cells": [_cell(kind.values[name], unit) for name, (_, unit) in COLUMNS.items()],
        }
        for kind in (*report.kinds, report.overall)
    ]


def _cell(interval: Interval, unit: Unit) -> dict[str, str]:
    """A number of the table with its interval below."""
    if not np.isfinite(interval.mid):
        return {"mid": "–", "range": ""}
    low, mid, high = (short(value, unit) for value in interval)
    return {"mid": mid, "range": f"{low} to {high}" if np.isfinite(interval.low) else ""}


def _told_apart(report: JudgeReport) -> dict[str, Any]:
    rows = [plots.Row(kind.kind, kind.values["pass_rate"]) for kind in report.kinds]
    caption = "How often each kind of criterion is met. A kind at either end tells pictures apart only rarely."
    return {"pictures": [Picture(Markup(plots.shares_plot(rows, "Pass rate per kind of criterion")), caption)]}


def _talked_round(report: JudgeReport) -> dict[str, Any]:
    rows = [plots.Row(probe.name, probe.gain) for probe in report.probes if probe.pictures]
    if not rows:
        return {}
    caption = "What each attack adds to the share of criteria met, in points. Clear to the right of 0: it works."
    return {"pictures": [Picture(Markup(plots.shares_plot(rows, "Gain of each attack", difference=True)), caption)]}
