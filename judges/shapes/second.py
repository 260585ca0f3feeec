"""The second reader, written apart from the first: hue for colour, outlines seen from the centre for shape.

It shares no rule and no threshold with the first reader. Foreground is what differs in the plane of opponent
colours (red against green, yellow against blue), cut at half of the local contrast; a blob's outline is its
radius in 72 directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from judges.shapes.letters import read_letters
from judges.shapes.morphology import depth, label, local_maximum, nearest_seed
from judges.shapes.radial import fit, radii
from mmrubric.shapes import OTHER, RADII, Seen, SeenItem

SMALLEST = 8
"""Blobs of fewer pixels are specks and not seen."""
LEAST_CONTRAST = 30.0
"""Least distance from the background in the opponent plane, and least difference of brightness, of a blob."""
CLASS_NAMES = ("red", "orange", "yellow", "green", "blue", "purple", OTHER)
_HUE_EDGES = np.array([15.0, 41.0, 75.0, 95.0, 170.0, 190.0, 255.0, 325.0])
_HUE_CLASSES = np.array([0, 1, 2, 6, 3, 6, 4, 5, 0])
_LARGE = (RADII["small"][1] + RADII["large"][0]) / 2
_BOX = np.ones((3, 3), bool)
_FLAT = np.zeros((3, 3, 3), bool)
_FLAT[1] = True


@dataclass
class Piece:
    """A blob of one colour class in one picture."""

    image: int
    mask: np.ndarray
    """bool [64, 64]"""
    colour: str
    shape: str = OTHER
    radius: float = 0.0
    x: float = 0.0
    y: float = 0.0


def read(pixels: np.ndarray) -> list[Seen]:
    """Read what pictures show.

    Args:
        pixels: uint8 [N, 64, 64, 3], RGB.

    Returns:
        One `Seen` for each picture.
    """
    values = pixels.astype(np.float32)
    grounds = np.stack([_background(image) for image in pixels])
    field, brightness = _contrast(values, grounds)
    # Single noisy pixels must not move an outline.
    field = ndimage.gaussian_filter(field, (0, 0.5, 0.5))
    peak = local_maximum(field, 5)
    level = field / np.maximum(peak, LEAST_CONTRAST)
    mask = (level > 0.5) & (field > LEAST_CONTRAST)
    classes = _classes(values)
    pieces = _pieces(mask, classes, level)
    _name(pieces, level)
    result = []
    for n, ground in enumerate(grounds):
        mine = [p for p in pieces if p.image == n]
        mine = _second_look(mine, level)
        word, colour, mine = _writing(mine, level[n])
        mine += _colourless(n, brightness[n], mask[n])
        items = [
            SeenItem(p.shape, p.colour, "large" if p.radius > _LARGE else "small", p.x, p.y)
            for p in sorted(mine, key=lambda p: (p.x, p.y))
        ]
        result.append(Seen(background_name(ground), tuple(items), word, colour))
    return result


def _background(pixels: np.ndarray) -> np.ndarray:
    """Colour [3] of the most frequent region of colour space, as the mean of what lies near it."""
    coarse = (pixels.astype(np.int32) // 32).reshape(-1, 3)
    bins = np.bincount(coarse @ np.array([64, 8, 1]), minlength=512)
    flat = pixels.reshape(-1, 3).astype(np.float32)
    start = flat[(coarse @ np.array([64, 8, 1])) == bins.argmax()].mean(0)
    # A background whose colour lies at the edge of a bin is spread over two: look around the mean as well.
    return flat[np.abs(flat - start).max(1) < 26].mean(0)


def background_name(colour: np.ndarray) -> str:
    """Name of a background by saturation and brightness; `OTHER` for what is none of the four."""
    high, low = float(colour.max()), float(colour.min())
    if high - low < 32:
        middle = (high + low) / 2
        names = (("black", 0, 50), ("gray", 110, 182), ("white", 214, 255))
        return next((name for name, least, most in names if least <= middle <= most), OTHER)
    hue = float(hues(colour[None])[0])
    return "pink" if high > 215 and 34 <= high - low <= 95 and (hue >= 325 or hue <= 5) else OTHER


def _contrast(values: np.ndarray, grounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance from the background in the opponent plane, and difference of brightness: both [N, 64, 64]."""
    difference = values - grounds[:, None, None]
    red, green, blue = difference[..., 0], difference[..., 1], difference[..., 2]
    return np.hypot(red - green, (red + green) / 2 - blue), (red + green + blue) / 3


def hues(values: np.ndarray) -> np.ndarray:
    """Hue in degrees, [0, 360), of colours [..., 3]."""
    red, green, blue = values[..., 0], values[..., 1], values[..., 2]
    return np.degrees(np.arctan2(np.sqrt(3.0) * (green - blue), 2 * red - green - blue)) % 360


def _classes(values: np.ndarray) -> np.ndarray:
    """Index into `CLASS_NAMES` of every pixel by hue; dull and dark pixels have no name."""
    classes = _HUE_CLASSES[np.digitize(hues(values), _HUE_EDGES)]
    high, low = values.max(-1), values.min(-1)
    dull = (high - low < 0.42 * high) | (high < 100)
    brown = (classes == 1) & (high < 175)
    return np.where(dull | brown, len(CLASS_NAMES) - 1, classes)


def _pieces(mask: np.ndarray, classes: np.ndarray, level: np.ndarray) -> list[Piece]:
    """Blobs, cut where their colour class changes."""
    labels, _ = label(mask, _FLAT)
    pieces = []
    for number, box in enumerate(ndimage.find_objects(labels), start=1):
        n = box[0].start
        inside = labels[n] == number
        if inside.sum() < SMALLEST:
            continue
        # Edge pixels are mixtures, so only the full ones vote.
        full = inside & (level[n] > 0.85)
        full = full if full.sum() >= 4 else inside
        votes = np.bincount(classes[n][full], minlength=len(CLASS_NAMES))
        if votes.max() >= 0.85 * votes.sum():
            pieces.append(Piece(n, inside, CLASS_NAMES[votes.argmax()]))
        else:
            pieces += _by_class(n, inside, full, classes[n])
    return pieces


def _by_class(n: int, inside: np.ndarray, full: np.ndarray, classes: np.ndarray) -> list[Piece]:
    seeds = np.zeros(inside.shape, int)
    names: list[str] = []
    for k, name in enumerate(CLASS_NAMES):
        regions, _ = label(full & (classes == k), _BOX)
        sizes = np.bincount(regions.ravel())
        for region in np.flatnonzero(sizes[1:] >= SMALLEST) + 1:
            names.append(name)
            seeds[regions == region] = len(names)
    if len(names) < 2:
        return [Piece(n, inside, names[0] if names else OTHER)]
    nearest = nearest_seed(seeds)
    return [Piece(n, inside & (nearest == k), name) for k, name in enumerate(names, start=1)]


def _name(pieces: list[Piece], level: np.ndarray) -> None:
    """Fill in shape, radius and centre of each piece, by its outline."""
    if not pieces:
        return
    masks = np.stack([p.mask for p in pieces])
    found = fit(radii(masks, level[[p.image for p in pieces]]), masks.sum((1, 2)))
    for k, piece in enumerate(pieces):
        piece.shape = found.shape[k]
        piece.radius, piece.x, piece.y = float(found.radius[k]), float(found.x[k]), float(found.y[k])


def _second_look(pieces: list[Piece], level: np.ndarray) -> list[Piece]:
    """Pieces that are no shape: together they may be one of mixed colour, apart they may be several."""
    strange = [p for p in pieces if p.shape == OTHER]
    kept = [p for p in pieces if p.shape != OTHER]
    if not strange:
        return pieces
    regions, count = label(np.any([p.mask for p in strange], axis=0), _BOX)
    for region in range(1, count + 1):
        members = [p for p in strange if (regions[p.mask] == region).any()]
        if len(members) > 1:
            whole = Piece(members[0].image, regions == region, OTHER)
            _name([whole], level)
            if whole.shape != OTHER or all(p.mask.sum() < 40 for p in members):
                kept.append(whole)
                continue
        for piece in members:
            parts = _apart(piece)
            _name(parts, level)
            named = [p for p in parts if p.shape != OTHER]
            good = len(parts) > 1 and sum(p.mask.sum() for p in named) >= 0.8 * piece.mask.sum()
            kept += parts if good else [piece]
    return kept


def _apart(piece: Piece) -> list[Piece]:
    """Cut a piece between its thickest places: each pixel goes to the nearest of their inscribed discs."""
    deep = depth(piece.mask)
    smooth = ndimage.gaussian_filter(deep, 1.0)
    tops = (smooth == ndimage.maximum_filter(smooth, 7)) & (deep >= max(2.5, 0.55 * float(deep.max())))
    seeds, count = label(tops, _BOX)
    if not 2 <= count <= 5:
        return []
    rows, columns = np.indices(piece.mask.shape)
    distance = []
    for seed in range(1, count + 1):
        y, x = (v.mean() for v in np.nonzero(seeds == seed))
        distance.append(np.hypot(rows - y, columns - x) - deep[seeds == seed].max())
    basins = np.argmin(distance, axis=0) + 1
    parts = [Piece(piece.image, (basins == k) & piece.mask, piece.colour) for k in range(1, count + 1)]
    return [p for p in parts if p.mask.sum() >= SMALLEST]


def _writing(pieces: list[Piece], level: np.ndarray) -> tuple[str | None, str | None, list[Piece]]:
    """The word that strange pieces form, its colour, and the pieces that are not part of it."""
    strange = [p for p in pieces if p.shape == OTHER]
    found = read_letters([p.mask for p in strange], level) if strange else None
    if found is None:
        return None, None, pieces
    text, members = found
    used = [strange[k] for k in members]
    sizes: dict[str, int] = {}
    for piece in used:
        sizes[piece.colour] = sizes.get(piece.colour, 0) + int(piece.mask.sum())
    colour = max(sizes, key=lambda name: sizes[name])
    if sizes[colour] < 0.7 * sum(sizes.values()):
        colour = OTHER
    return text, colour, [p for p in pieces if not any(p is u for u in used)]


def _colourless(n: int, brightness: np.ndarray, mask: np.ndarray) -> list[Piece]:
    """Blobs that differ from the background in brightness only, away from the edges of coloured ones."""
    away = ~ndimage.binary_dilation(mask, np.ones((5, 5), bool))
    labels, count = label((np.abs(brightness) > LEAST_CONTRAST) & away, _BOX)
    pieces = []
    for number in range(1, count + 1):
        inside = labels == number
        if inside.sum() >= SMALLEST:
            y, x = (float(v.mean()) for v in np.nonzero(inside))
            radius = float(np.sqrt(inside.sum() / np.pi))
            pieces.append(Piece(n, inside, OTHER, OTHER, radius, x + 0.5, y + 0.5))
    return pieces
