"""Outlines as radii: how far a blob reaches from its centre in 72 directions, and which shape does so."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import ndimage

from mmrubric.shapes import OTHER, SHAPES

DIRECTIONS = 72
MISFIT = 0.085
"""Largest mean deviation of the radii from a shape's, as a share of the mean radius."""
CLEAR = 0.065
"""Radii that deviate more have no name if another shape's deviate by less than 1.3 times as much."""
AREA_TOLERANCE = 0.25
"""Largest difference of the area that the radii enclose and the blob's own, as a share of it."""
LEAST_RADIUS = 3.8
"""Blobs with a smaller radius are too small to have a shape, in pixels."""
_STEP = 0.25
_STEPS = 140
_ANGLES = np.arange(DIRECTIONS) * 2 * np.pi / DIRECTIONS


@dataclass(frozen=True)
class Radii:
    """Centres and outlines of blobs, in pixels; pixel i reaches from i to i + 1."""

    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray
    """float [K, 72]"""


@dataclass(frozen=True)
class Fit:
    """Best shape of each blob; `radius` is half the shape's height, in pixels."""

    shape: list[str]
    radius: np.ndarray
    x: np.ndarray
    y: np.ndarray
    misfit: np.ndarray


def radii(masks: np.ndarray, level: np.ndarray) -> Radii:
    """Measure outlines.

    Args:
        masks: bool [K, H, W], one blob each.
        level: float [K, H, W], contrast as a share of the blob's own; the edge is where it falls to one half.
    """
    own = np.where(ndimage.binary_dilation(masks, np.ones((1, 3, 3), bool)), np.clip(level, 0, 1), 0)
    left, right = _extent(own.max(1))
    top, bottom = _extent(own.max(2))
    x, y = (left + right) / 2, (top + bottom) / 2
    return Radii(x, y, _cast(own, x, y, _STEP, _STEPS))


def _extent(profile: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where profiles [K, L] first and last pass one half, with linear interpolation between pixel centres."""
    padded = np.pad(profile, ((0, 0), (1, 1)))
    above = padded > 0.5
    rows = np.arange(len(padded))
    first = np.maximum(above.argmax(1), 1)
    last = np.minimum(padded.shape[1] - 1 - above[:, ::-1].argmax(1), padded.shape[1] - 2)

    def between(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        high, low = padded[rows, inside], padded[rows, outside]
        return np.clip((high - 0.5) / np.maximum(high - low, 1e-6), 0, 1)

    # Index i of the padded profile is pixel i - 1, whose centre is at i - 0.5.
    return first - 0.5 - between(first, first - 1), last - 0.5 + between(last, last + 1)


def _cast(own: np.ndarray, x: np.ndarray, y: np.ndarray, step: float, steps: int) -> np.ndarray:
    """Distance from (x, y) at which each ray leaves the blob for good half a pixel long: [K, 72]."""
    distance = np.arange(steps) * step
    dx, dy = np.cos(_ANGLES)[:, None] * distance, np.sin(_ANGLES)[:, None] * distance
    which = np.broadcast_to(np.arange(len(own))[:, None, None], (len(own), DIRECTIONS, steps))
    rows, columns = y[:, None, None] + dy - 0.5, x[:, None, None] + dx - 0.5
    along = _bilinear(own, which, rows, columns)
    out = along < 0.5
    leaves = out[..., :-2] & out[..., 1:-1] & out[..., 2:]
    k = leaves.argmax(-1)
    before = np.take_along_axis(along, np.maximum(k - 1, 0)[..., None], -1)[..., 0]
    after = np.take_along_axis(along, k[..., None], -1)[..., 0]
    part = np.clip((before - 0.5) / np.maximum(before - after, 1e-6), 0, 1)
    return np.where(k > 0, (k - 1 + part) * step, 0.0)


def _bilinear(own: np.ndarray, which: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Values between pixel centres; outside the picture there is nothing."""
    margin = 2
    padded = np.pad(own, ((0, 0), (margin, margin), (margin, margin)))
    height, width = padded.shape[1:]
    rows = np.clip(rows + margin, 0, height - 1.001)
    columns = np.clip(columns + margin, 0, width - 1.001)
    r, c = rows.astype(int), columns.astype(int)
    fr, fc = rows - r, columns - c
    flat, base = padded.ravel(), (which * height + r) * width + c
    top = flat[base] * (1 - fc) + flat[base + 1] * fc
    bottom = flat[base + width] * (1 - fc) + flat[base + width + 1] * fc
    return top * (1 - fr) + bottom * fr


def fit(outlines: Radii, area: np.ndarray) -> Fit:
    """Compare outlines with the four shapes.

    Args:
        outlines: of K blobs.
        area: pixels of each blob.
    """
    ideal, names = _ideal()
    measured = outlines.radius
    # Best scale of each ideal outline (radius 1) by least squares.
    scale = measured @ ideal.T / np.square(ideal).sum(1)
    deviation = np.abs(measured[:, None] - scale[..., None] * ideal).mean(2) / np.maximum(
        measured.mean(1)[:, None], 1e-6
    )
    strange = np.array([name == OTHER for name in names])
    best = np.where(strange, np.inf, deviation).argmin(1)
    rows = np.arange(len(measured))
    enclosed = np.square(measured).sum(1) * np.pi / DIRECTIONS
    sound = np.abs(enclosed - area) <= AREA_TOLERANCE * area
    misfit, radius = deviation[rows, best], scale[rows, best]
    same = np.array([[name == names[k] for name in names] for k in best]).reshape(deviation.shape)
    rival = np.where(same | strange, np.inf, deviation).min(1)
    unclear = (misfit > CLEAR) & (rival < 1.3 * misfit)
    # In blur a cross grows like a diamond: a diamond must fit clearly better.
    good = (
        (deviation[:, strange].min(1) > 0.5 * misfit) & ~unclear & sound & (misfit <= MISFIT) & (radius >= LEAST_RADIUS)
    )
    shapes = [names[k] if ok else OTHER for k, ok in zip(best, good, strict=True)]
    return Fit(shapes, radius, outlines.x, outlines.y, misfit)


@lru_cache(maxsize=1)
def _ideal() -> tuple[np.ndarray, list[str]]:
    """Outlines of radius 1, sharp and blurred, [outlines, 72], with the names of their shapes."""
    size, radius = 181, 60.0
    axis = (np.arange(size) - size // 2) / radius
    x, y = np.meshgrid(axis, axis)
    inside = {
        "circle": x**2 + y**2 < 1,
        "square": np.maximum(np.abs(x), np.abs(y)) < 0.9,
        "triangle": (y < 1) & (np.abs(x) < 0.55 * (y + 1)),
        "cross": (np.maximum(np.abs(x), np.abs(y)) < 1) & (np.minimum(np.abs(x), np.abs(y)) < 0.34),
        OTHER: np.abs(x) + np.abs(y) < 1,  # a diamond resembles a blurred cross
    }
    outlines, names = [], []
    for shape in (*SHAPES, OTHER):
        # Blur of 0.6 to 1.1 pixels on radii of 5.5 to 11.5 pixels.
        blurs = (0.0, 0.06, 0.12, 0.18, 0.24)
        # A blurred diamond is round: only the sharp ones are told from circles and crosses.
        for blur in blurs if shape != OTHER else blurs[:2]:
            soft = ndimage.gaussian_filter(inside[shape].astype(float), blur * radius)
            own = soft[None]
            left, right = _extent(own.max(1))
            top, bottom = _extent(own.max(2))
            outlines.append(_cast(own, (left + right) / 2, (top + bottom) / 2, 1.0, 110)[0] / radius)
            names.append(shape)
    return np.stack(outlines), names
