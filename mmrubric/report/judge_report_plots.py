"""Pictures of a judge report, drawn as the plots of the other report are."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmrubric.bootstrap import Interval
from mmrubric.report.agreement import ALWAYS_FIRST
from mmrubric.report.judge_report_numbers import CalibrationNumbers
from mmrubric.report.plots import _STYLE, AFTER, BEFORE, CARD, INK, LINE, MUTED, _clean, _svg
from mmrubric.report.wording import percent, points


class Row(NamedTuple):
    """One line of an interval plot."""

    name: str
    value: Interval
    reference: float = float("nan")
    """Drawn as a hollow dot; NaN = none."""


def _dot(axes: Axes, x: float, y: float, filled: bool = True) -> None:
    colour = AFTER if filled else BEFORE
    face = colour if filled else CARD
    axes.plot([x], [y], "o", ms=7.5, color=colour, markerfacecolor=face, markeredgewidth=2, clip_on=False, zorder=3)


def _bar(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    axes.plot(xs, ys, color=AFTER, lw=2.2, alpha=0.55, solid_capstyle="round", clip_on=False)


def shares_plot(rows: Sequence[Row], label: str, *, difference: bool = False) -> str:
    """Shares with their 95 % intervals, one row each, as an SVG element.

    Args:
        rows: values in [0, 1], or in [-1, 1] with `difference`; an unknown one is written so.
        label: what the picture shows, for screen readers; unlike the other labels of a page in its first 24 letters.
        difference: the values are differences of shares, drawn around 0.
    """
    with matplotlib.rc_context(_STYLE):
        height = 0.62 + 0.42 * len(rows)
        figure = Figure(figsize=(7.2, height))
        axes = figure.add_axes((0.26, 0.42 / height, 0.6, 1 - 0.62 / height))
        ys = np.arange(len(rows))[::-1]
        low, right = (-100, 106) if difference else (0, 103)
        for y, row in zip(ys, rows, strict=True):
            _bar(axes, [100 * row.value.low, 100 * row.value.high], [y, y])
            _dot(axes, 100 * row.reference, y, filled=False)
            _dot(axes, 100 * row.value.mid, y)
            text = points(row.value.mid) if difference else percent(row.value.mid)
            axes.text(right, y, text, va="center", ha="left", color=INK, fontweight="bold")
        axes.set_yticks(ys, ["\n".join(wrap(row.name, 20, max_lines=2, placeholder=" …")) for row in rows])
        for text in axes.get_yticklabels():
            text.set_parse_math(False)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlim(low, 100)
        ticks = range(low, 101, 50 if difference else 25)
        axes.set_xticks(ticks, [points(v / 100) if difference else f"{v} %" for v in ticks])
        axes.grid(axis="x", color=LINE, lw=0.8)
        if difference:
            axes.axvline(0, color=MUTED, lw=1)
        _clean(axes)
        return _svg(figure, label)


def reliability_plot(calibration: CalibrationNumbers) -> str:
    """How often it was true over what the judge said, with the number of answers below, as an SVG element."""
    drawn = calibration.diagram
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 4.6))
        axes = figure.add_axes((0.12, 0.3, 0.82, 0.67))
        below = figure.add_axes((0.12, 0.12, 0.82, 0.13), sharex=axes)
        axes.plot([0, 100], [0, 100], color=MUTED, lw=1.2, ls=(0, (4, 4)))
        axes.text(52, 46, "as often as it said", color=MUTED, rotation=27, rotation_mode="anchor", fontsize=9.5)
        for said, true in zip(drawn.said, calibration.true, strict=True):
            _bar(axes, [100 * said] * 2, [100 * true.low, 100 * true.high])
        axes.plot(100 * drawn.said, 100 * drawn.true, color=AFTER, lw=1, alpha=0.5)
        for said, true in zip(drawn.said, drawn.true, strict=True):
            _dot(axes, 100 * said, 100 * true)
        below.bar(100 * (drawn.edges[:-1] + drawn.edges[1:]) / 2, drawn.counts, width=9, color=BEFORE, alpha=0.5)
        ticks = range(0, 101, 25)
        axes.set_yticks(ticks, [f"{v} %" for v in ticks])
        below.set_xticks(ticks, [f"{v} %" for v in ticks])
        below.set_yticks([])
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.tick_params(labelbottom=False)
        axes.set_ylabel("it was true")
        below.set_xlabel("the judge said 'met' with")
        below.set_ylabel("answers", rotation=0, ha="right", va="center")
        axes.grid(color=LINE, lw=0.8)
        for part in (axes, below):
            _clean(part)
        return _svg(figure, "Reliability diagram of the judge")


def bias_plot(bias: Interval) -> str:
    """Where the judge stands between always the second and always the first image, as an SVG element."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 1.5))
        axes = figure.add_axes((0.14, 0.42, 0.72, 0.4))
        axes.axvline(0, color=MUTED, lw=1)
        _bar(axes, [bias.low, bias.high], [0, 0])
        _dot(axes, ALWAYS_FIRST["bias"], 0, filled=False)
        _dot(axes, bias.mid, 0)
        axes.set_xlim(-1, 1)
        axes.set_ylim(-1, 1)
        axes.set_yticks([])
        axes.set_xticks([-1, 0, 1], ["always the second", "order does not matter", "always the first"])
        axes.grid(axis="x", color=LINE, lw=0.8)
        _clean(axes)
        return _svg(figure, "Bias for the image that is shown first")
