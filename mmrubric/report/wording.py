"""Numbers as text, the same everywhere in a report."""

from __future__ import annotations

import numpy as np

MINUS = "\N{MINUS SIGN}"


def points(value: float) -> str:
    """A difference of shares in points with its sign: '+12', below 10 with a decimal: '+3.4'."""
    if not np.isfinite(value):
        return "unknown"
    scaled = 100 * value
    if abs(scaled) < 0.05:
        return "0"
    text = f"{scaled:+.1f}" if abs(scaled) < 9.95 else f"{scaled:+.0f}"
    return text.replace("-", MINUS)


def percent(value: float | None) -> str:
    """A share as text: '93 %', with decimals close to 0 and 1; 'unknown' for None and NaN."""
    if value is None or not np.isfinite(value):
        return "unknown"
    return f"{100 * value:.1f} %" if 0 < value < 0.02 or 0.98 < value < 1 else f"{100 * value:.0f} %"
