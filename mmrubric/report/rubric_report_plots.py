"""Pictures of a rubric report, drawn as the plots of the other reports are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmrubric.report.plots import _STYLE, AFTER, BEFORE, INK, LINE, _clean, _svg
from mmrubric.report.reliability import SATURATED

_SHADES = {"error": INK, "warning": AFTER, "note": BEFORE}
_BINS = 20


def sizes_plot(sizes: Sequence[int]) -> str:
    """How many rubrics have how many criteria, as an SVG element."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(2.6)
        values, counts = np.unique(np.asarray(sizes), return_counts=True)
        axes.bar(values, counts, width=0.8, color=AFTER)
        # A single size would fill the whole width.
        axes.set_xlim(min(0, values.min()) - 0.5, max(10, values.max()) + 0.5)
        axes.set_xlabel("criteria per checklist")
        axes.set_ylabel("checklists")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return _svg(figure, "Sizes: criteria per checklist")


def rules_plot(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Findings per rule, errors, warnings and notes side by side, as an SVG element."""
    with matplotlib.rc_context(_STYLE):
        height = 0.9 + 0.34 * len(counts)
        figure = Figure(figsize=(7.2, height))
        axes = figure.add_axes((0.2, 0.42 / height, 0.72, 1 - 0.85 / height))
        ys = np.arange(len(counts))[::-1]
        left = np.zeros(len(counts))
        for severity, colour in _SHADES.items():
            values = np.array([found.get(severity, 0) for found in counts.values()])
            axes.barh(ys, values, left=left, height=0.62, color=colour, label=f"{severity}s")
            left += values
        for y, total in zip(ys, left, strict=True):
            axes.text(total, y, f" {total:,.0f}", va="center", ha="left", color=INK, fontweight="bold")
        axes.set_yticks(ys, [rule.replace("_", " ") for rule in counts])
        axes.set_xlim(0, 1.08 * left.max())
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.grid(axis="x", color=LINE, lw=0.8)
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, borderaxespad=0.2)
        _clean(axes)
        return _svg(figure, "Rules: findings per rule")


def pass_rates_plot(rates: Sequence[float]) -> str:
    """How many criteria have which pass rate (in [0, 1]), the saturated ends in another colour, as an SVG element."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(2.6)
        edges = np.arange(_BINS + 1) / _BINS
        counts = np.histogram(np.asarray(rates), edges)[0]
        middle = (edges[:-1] + edges[1:]) / 2
        ends = (middle < SATURATED[0]) | (middle > SATURATED[1])
        axes.bar(100 * middle, counts, width=88 / _BINS, color=[BEFORE if end else AFTER for end in ends])
        axes.set_xlim(0, 100)
        axes.set_xticks(range(0, 101, 25), [f"{v} %" for v in range(0, 101, 25)])
        axes.set_xlabel("samples that pass the criterion")
        axes.set_ylabel("criteria")
        return _svg(figure, "Pass rates of single criteria")


def _canvas(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, height))
    axes = figure.add_axes((0.1, 0.22, 0.86, 0.72))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y", color=LINE, lw=0.8)
    _clean(axes)
    return figure, axes
