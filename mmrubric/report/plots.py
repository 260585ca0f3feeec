"""The report's plots: matplotlib to inline SVG that follows the page's light or dark colours."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmrubric.report.model import CurvePoint
from mmrubric.report.numbers import KindRate
from mmrubric.report.wording import points

# Drawn in these colours, which the page's stylesheet then replaces: one SVG serves both themes.
THEME = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--line)",
    "#040404": "var(--before)",
    "#050505": "var(--after)",
    "#060606": "var(--card)",
}
INK, MUTED, LINE, BEFORE, AFTER, CARD = THEME

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mmrubric",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "xtick.color": MUTED,
    "ytick.color": INK,
}


def _svg(figure: Figure, label: str) -> str:
    """The figure as an SVG element with the page's colours, no fixed size, and `label` for screen readers."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'^<svg [^>]*?viewBox="([^"]+)"[^>]*>', _open(label), svg, count=1, flags=re.S)
    # Ids are only unique within one figure; two figures share the page.
    prefix = re.sub(r"\W+", "-", label.lower())[:24]
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    for drawn, themed in THEME.items():
        svg = svg.replace(drawn, themed)
    return svg


def _open(label: str) -> str:
    return rf'<svg viewBox="\1" role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg">'


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)


def kinds_plot(kinds: Sequence[KindRate]) -> str:
    """Pass rate per criterion kind before and after, with 95 % intervals, as an SVG element."""
    with matplotlib.rc_context(_STYLE):
        height = 0.62 + 0.5 * len(kinds)
        figure = Figure(figsize=(7.2, height))
        axes = figure.add_axes((0.165, 0.42 / height, 0.72, 1 - 0.62 / height))
        ys = np.arange(len(kinds))[::-1]
        for y, kind in zip(ys, kinds, strict=True):
            for interval, offset, colour in ((kind.before, 0.13, BEFORE), (kind.after, -0.13, AFTER)):
                low, mid, high = (100 * v for v in (interval.low, interval.mid, interval.high))
                if not np.isfinite(mid):
                    continue
                # Unclipped: a rate of exactly 0 or 100 % keeps its whole marker.
                line = {
                    "color": colour,
                    "lw": 2.2,
                    "alpha": 0.55,
                    "solid_capstyle": "round",
                    "clip_on": False,
                }
                axes.plot([low, high], [y + offset] * 2, **line)
                filled = colour == AFTER
                axes.plot(
                    [mid],
                    [y + offset],
                    "o",
                    ms=7.5,
                    color=colour,
                    markerfacecolor=colour if filled else CARD,
                    markeredgewidth=2,
                    clip_on=False,
                )
            if np.isfinite(kind.difference.mid):
                clear = kind.difference.low > 0 or kind.difference.high < 0
                axes.text(
                    103,
                    y,
                    points(kind.difference.mid),
                    va="center",
                    ha="left",
                    color=INK if clear else MUTED,
                    fontweight="bold" if clear else "normal",
                    fontsize=10.5,
                )
        axes.set_yticks(ys, [k.kind for k in kinds])
        axes.set_ylim(-0.6, len(kinds) - 0.4)
        axes.set_xlim(0, 100)
        axes.set_xticks(range(0, 101, 25), [f"{v} %" for v in range(0, 101, 25)])
        axes.grid(axis="x", color=LINE, lw=0.8)
        _clean(axes)
        return _svg(figure, "Pass rate per criterion kind before and after alignment")


def smoothing(steps: int) -> int:
    """Steps that the thick line of the curve averages over."""
    return max(1, steps // 12)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the last `window` known values at each point, [n]; NaN until one is known."""
    out = np.full(len(values), np.nan)
    for k in range(len(values)):
        recent = values[max(0, k - window + 1) : k + 1]
        recent = recent[np.isfinite(recent)]
        if recent.size:
            out[k] = recent.mean()
    return out


def curve_plot(curve: Sequence[CurvePoint]) -> str:
    """Reward (and strict completion, where recorded) over training steps, as an SVG element."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 3.0))
        axes = figure.add_axes((0.07, 0.16, 0.765, 0.78))
        steps = np.array([p.step for p in curve])
        series = {
            "reward": (np.array([np.nan if p.reward is None else p.reward for p in curve], float), AFTER),
            "all met": (np.array([np.nan if p.strict is None else p.strict for p in curve], float), INK),
        }
        ends: list[float] = []
        for name, (values, colour) in series.items():
            if not np.isfinite(values).any():
                continue
            axes.plot(steps, 100 * values, color=colour, lw=1, alpha=0.3)
            mean = 100 * smooth(values, smoothing(len(curve)))
            axes.plot(steps, mean, color=colour, lw=2.4, solid_capstyle="round")
            last = mean[np.isfinite(mean)][-1]
            # Two ends that lie close together would print their names over each other.
            shift = next((8 if last >= other else -8 for other in ends if abs(last - other) < 8), 0)
            ends.append(last)
            axes.annotate(
                f"{name} {last:.0f} %",
                (steps[-1], last),
                xytext=(8, shift),
                textcoords="offset points",
                va="center",
                color=colour,
                fontweight="bold",
                annotation_clip=False,
            )
        axes.set_ylim(0, 100)
        axes.set_yticks(range(0, 101, 25), [f"{v} %" for v in range(0, 101, 25)])
        axes.tick_params(axis="y", labelcolor=MUTED)
        axes.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("training step")
        axes.grid(axis="y", color=LINE, lw=0.8)
        _clean(axes)
        return _svg(figure, "Reward over training steps")
