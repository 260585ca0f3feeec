"""Blobs of foreground: where they are, which outline they have and which colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from judges.shapes.morphology import label, local_maximum, local_mean
from mmrubric.shapes import BACKGROUNDS, COLOURS, OTHER, SHAPES, SIZE, Item, Scene, render

FAINT = 40.0
"""Least colour distance from the background of a pixel that may belong to a blob (0 to 441)."""
COLOUR_REACH = 80.0
"""Largest distance of a blob's colour from a palette colour that still bears its name."""
PURE = 0.7
"""Least share of a blob's inner pixels that must have the blob's colour."""
MISFIT = 0.055
"""Largest share of a blob's area by which it may differ from the best outline; rendered shapes stay under 0.02
even after the VAE."""
CLEAR, RIVAL = 0.025, 1.5
"""A blob with more misfit than `CLEAR` has no name if another shape fits within `RIVAL` times its misfit."""
STRANGER = 0.5
"""A blob is a stranger if one of `STRANGERS` fits with at most this share of the best shape's misfit."""
LEAST_NAMED_AREA = 40.0
"""A blob with less area is too small for its outline to be told, in pixels."""
_GRID = 20
_REACH = 1.1
_PALETTE = np.array(list(COLOURS.values()), np.float32)
_FLAT8 = np.zeros((3, 3, 3), bool)
_FLAT8[1] = True
_FLAT4 = ndimage.generate_binary_structure(3, 1) & _FLAT8


def _turned(points: list[tuple[float, float]], degrees: float) -> list[tuple[float, float]]:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(c * x - s * y, s * x + c * y) for x, y in points]


_TRIANGLE = [(0.0, -1.0), (1.1, 1.0), (-1.1, 1.0)]
_CROSS = [(-0.34, -1), (0.34, -1), (0.34, -0.34), (1, -0.34), (1, 0.34), (0.34, 0.34)]
_CROSS += [(-x, -y) for x, y in _CROSS]
_HALF_DISC = [(math.cos(math.pi * k / 24), math.sin(math.pi * k / 24)) for k in range(25)]
_BAR = [(-1.1, -0.7), (1.1, -0.7), (1.1, 0.7), (-1.1, 0.7)]
_STAR = [
    ((1, 0.45)[k % 2] * math.sin(math.pi * k / 5), -(1, 0.45)[k % 2] * math.cos(math.pi * k / 5)) for k in range(10)
]
_TRAPEZOID = [(-0.55, -1), (0.55, -1), (1.05, 1), (-1.05, 1)]
STRANGERS = [
    [(0.0, -1.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)],
    *(_turned(_TRIANGLE, degrees) for degrees in (90, 180, 270)),
    _turned(_CROSS, 45),
    *(_turned(_HALF_DISC, degrees) for degrees in (0, 90, 180, 270)),
    _BAR,
    _turned(_BAR, 90),
    _STAR,
    _TRAPEZOID,
]
"""Outlines of radius 1 that are no shape of the world, whose shapes all stand upright."""


@dataclass
class Blobs:
    """Blobs of N images; the fields after the first two have one entry for each label."""

    labels: np.ndarray
    """int [N, 64, 64], 0 = none"""
    cover: np.ndarray
    """Share of each pixel that foreground covers, float [N, 64, 64] in [0, 1]."""
    image: np.ndarray
    area: np.ndarray
    x: np.ndarray
    """Centroid in pixels, measured as `Item.x` is: pixel i reaches from i to i + 1."""
    y: np.ndarray
    shape: list[str]
    misfit: np.ndarray
    colour: list[str]


def segment(values: np.ndarray, grounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels of connected blobs at half their contrast, and the share of each pixel that they cover."""
    apart = values - grounds[:, None, None]
    distance = np.sqrt(np.einsum("nyxc,nyxc->nyx", apart, apart))
    rough, count = label(distance > FAINT, _FLAT8)
    if count == 0:
        return rough, np.zeros_like(distance)
    smooth = local_mean(distance, 3)
    peak = np.zeros(count + 1, np.float32)
    where = np.flatnonzero(rough)
    np.maximum.at(peak, rough.ravel()[where], smooth.ravel()[where])
    peak[0] = np.inf
    reach = np.maximum(peak, FAINT)[local_maximum(rough, 3)]
    cover = np.clip((distance / reach - 0.2) / 0.6, 0, 1)
    labels, _ = label(distance > np.maximum(0.5 * reach, FAINT), _FLAT8)
    return labels, cover


def describe(values: np.ndarray, labels: np.ndarray, cover: np.ndarray) -> Blobs:
    """Measure every blob: area, centroid, best outline and its misfit, colour."""
    count = int(labels.max(initial=0))
    grown = np.where(labels > 0, labels, local_maximum(labels, 3))
    weight = np.where(grown > 0, cover, 0)
    where = np.flatnonzero(grown)
    owner, mass = grown.ravel()[where], weight.ravel()[where].astype(np.float64)
    n, y, x = np.unravel_index(where, labels.shape)
    area = np.bincount(owner, mass, count + 1)[1:]
    safe = np.maximum(area, 1e-9)
    cx = np.bincount(owner, mass * (x + 0.5), count + 1)[1:] / safe
    cy = np.bincount(owner, mass * (y + 0.5), count + 1)[1:] / safe
    image = np.zeros(count + 1, int)
    image[owner] = n
    blobs = Blobs(labels, cover, image[1:], area, cx, cy, [OTHER] * count, np.full(count, np.inf), [])
    blobs.colour = colours(values, labels, count)
    if count:
        features = _features(grown, weight, blobs)
        bank, bank_area, bank_shape = _bank()
        cell = (2 * _REACH / _GRID) ** 2
        apart = (np.square(features).sum(1)[:, None] + np.square(bank).sum(1) - 2 * features @ bank.T) * cell
        # Blur rounds small outlines more than large ones: compare with outlines of about the same area,
        # and tiny or huge blobs with the smallest or largest ones.
        clipped = np.clip(safe, bank_area.min(), bank_area.max())[:, None] / bank_area
        apart = np.where((clipped > 0.7) & (clipped < 1.45), apart, np.inf)
        strangers = bank_shape == len(SHAPES)
        best = np.where(strangers, np.inf, apart).argmin(1)
        blobs.misfit = apart[np.arange(count), best]
        # In blur the outlines grow alike: a stranger must fit clearly better.
        strange = apart[:, strangers].min(1) < STRANGER * blobs.misfit
        rival = np.where((bank_shape == bank_shape[best][:, None]) | strangers, np.inf, apart).min(1)
        unclear = (blobs.misfit > CLEAR) & (rival < RIVAL * blobs.misfit)
        fits = (blobs.misfit <= MISFIT) & (area >= LEAST_NAMED_AREA) & ~strange & ~unclear
        blobs.shape = [SHAPES[bank_shape[k]] if ok else OTHER for k, ok in zip(best, fits, strict=True)]
    return blobs


def _features(grown: np.ndarray, weight: np.ndarray, blobs: Blobs) -> np.ndarray:
    """Each blob's cover on a grid around its centroid, scaled to unit area: float [count, grid * grid]."""
    step = (np.arange(_GRID) + 0.5) / _GRID * 2 * _REACH - _REACH
    scale = np.sqrt(np.maximum(blobs.area, 1e-9))[:, None]
    x = (blobs.x[:, None] + step * scale - 0.5)[:, None, :]
    y = (blobs.y[:, None] + step * scale - 0.5)[:, :, None]
    x0, y0 = np.floor(x).astype(int), np.floor(y).astype(int)
    fx, fy = x - x0, y - y0
    own = np.arange(1, len(blobs.area) + 1)[:, None, None]
    image = blobs.image[:, None, None]

    def at(yi: np.ndarray, xi: np.ndarray) -> np.ndarray:
        inside = (yi >= 0) & (yi < SIZE) & (xi >= 0) & (xi < SIZE)
        where = (image, np.clip(yi, 0, SIZE - 1), np.clip(xi, 0, SIZE - 1))
        return np.where(inside & (grown[where] == own), weight[where], 0)

    top = at(y0, x0) * (1 - fx) + at(y0, x0 + 1) * fx
    bottom = at(y0 + 1, x0) * (1 - fx) + at(y0 + 1, x0 + 1) * fx
    return (top * (1 - fy) + bottom * fy).reshape(len(blobs.area), -1)


@lru_cache(maxsize=1)
def _bank() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, areas and shape indices of rendered outlines: shapes and strangers at many radii and blurs.

    The index after the last shape marks strangers: outlines that would otherwise pass for one of the four.
    """
    sharp: list[tuple[int, np.ndarray]] = []
    for index, shape in enumerate(SHAPES):
        for radius in (4.0, 4.75, 5.5, 6.3, 7.2, 8.3, 9.5, 10.5, 11.8, 14.0, 18.0):
            for dx, dy in ((0.0, 0.0), (0.5, 0.25), (0.2, 0.6)):
                item = Item(shape, "red", 31.5 + dx, 31.5 + dy, radius)
                sharp.append((index, render(Scene("white", (item,)))))
    for points in STRANGERS:
        for radius in (4.5, 5.5, 6.7, 8.2, 10.0, 12.5, 16.0):
            sharp.append((len(SHAPES), _draw(points, 31.7, 31.7, radius)))
    soft = [
        (index, ndimage.gaussian_filter(picture.astype(np.float32), (sigma, sigma, 0)))
        for index, picture in sharp
        for sigma in (0.0, 0.7, 1.1)
    ]
    values = np.stack([picture for _, picture in soft])
    white = np.array(BACKGROUNDS["white"], np.float32)
    labels, cover = segment(values, np.broadcast_to(white, (len(values), 3)))
    labels = np.where(labels > 0, np.arange(1, len(values) + 1)[:, None, None], 0)
    grown = np.where(labels > 0, labels, local_maximum(labels, 3))
    weight = np.where(grown > 0, cover, 0).astype(np.float64)
    total = weight.sum((1, 2))
    axis = np.arange(SIZE) + 0.5
    cx, cy = (weight * axis).sum((1, 2)) / total, (weight * axis[:, None]).sum((1, 2)) / total
    blobs = Blobs(labels, cover, np.arange(len(values)), total, cx, cy, [], total, [])
    return _features(grown, weight, blobs), total, np.array([index for index, _ in soft])


def _draw(points: list[tuple[float, float]], x: float, y: float, radius: float) -> np.ndarray:
    """A red polygon on white, uint8 [64, 64, 3]."""
    fine = 4
    canvas = Image.new("RGB", (SIZE * fine, SIZE * fine), BACKGROUNDS["white"])
    corners = [((x + radius * px) * fine - 0.5, (y + radius * py) * fine - 0.5) for px, py in points]
    ImageDraw.Draw(canvas).polygon(corners, fill=COLOURS["red"])
    return np.asarray(canvas.resize((SIZE, SIZE), Image.Resampling.BOX))


def colours(values: np.ndarray, labels: np.ndarray, count: int, reach: float = COLOUR_REACH) -> list[str]:
    """Palette name of each blob's inner pixels, `OTHER` where they are mixed or bear no name."""
    classes, inner = colour_classes(values, labels, reach)
    named = len(_PALETTE) + 1
    where = np.flatnonzero(inner)
    keys = labels.ravel()[where] * named + classes.ravel()[where]
    tally = np.bincount(keys, minlength=(count + 1) * named).reshape(-1, named)[1:]
    best = tally.argmax(1)
    share = tally[np.arange(count), best] / np.maximum(tally.sum(1), 1)
    names = [*COLOURS, OTHER]
    return [names[k] if s >= PURE else OTHER for k, s in zip(best, share, strict=True)]


def colour_classes(
    values: np.ndarray, labels: np.ndarray, reach: float = COLOUR_REACH
) -> tuple[np.ndarray, np.ndarray]:
    """Index of the nearest palette colour of a blob's pixels (6 = none), and which pixels are inside a blob.

    Edge pixels are a mixture with the background, so only pixels whose four neighbours are in the blob count;
    a blob too thin to have any keeps all its pixels.
    """
    mask = labels > 0
    where = np.flatnonzero(mask)
    nearest, distance = closest(values.reshape(-1, 3)[where], _PALETTE)
    nearest[distance > reach**2] = len(_PALETTE)
    classes = np.full(labels.shape, len(_PALETTE))
    classes.ravel()[where] = nearest
    inner = ndimage.binary_erosion(mask, _FLAT4, border_value=1)
    thick = np.bincount(labels.ravel()[np.flatnonzero(inner)], minlength=int(labels.max(initial=0)) + 1)
    return classes, inner | (mask & (thick[labels] < 4))


def closest(values: np.ndarray, palette: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the colour of `palette` [K, 3] nearest to values [..., 3], and its squared distance: [...]."""
    norm = np.einsum("...c,...c->...", values, values)
    without_norm = np.square(palette).sum(-1) - 2 * values @ palette.T
    nearest = without_norm.argmin(-1)
    return nearest, norm + np.take_along_axis(without_norm, nearest[..., None], -1)[..., 0]
