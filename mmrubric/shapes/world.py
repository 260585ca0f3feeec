"""Scenes of the embedded world and their renderer.

A scene is at most four shapes or one written word on a plain background, drawn at 64 x 64 pixels with
anti-aliased edges. Positions and radii are in pixels, x to the right and y down, measured at pixel centres.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

SIZE = 64
"""Width and height of a picture, in pixels."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 40),
    "orange": (250, 135, 20),
    "yellow": (250, 220, 50),
    "green": (35, 160, 70),
    "blue": (35, 85, 220),
    "purple": (140, 45, 175),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (250, 250, 250),
    "gray": (145, 145, 145),
    "black": (15, 15, 15),
    "pink": (250, 190, 205),
}
SHAPES = ("circle", "square", "triangle", "cross")
RADII: dict[str, tuple[float, float]] = {"small": (5.5, 6.5), "large": (10.0, 11.5)}
"""Half of a shape's height, in pixels, for each size word."""
WORDS = ("GO", "HI", "NO", "OK", "UP", "CAT", "SUN", "TEA")
MIN_GAP = 3.0
"""Least empty space between two shapes and towards the border, in pixels."""
_SUPERSAMPLE = 4

# 5 x 7 glyphs, one row a string; only the letters that WORDS needs.
GLYPHS: dict[str, tuple[str, ...]] = {
    "A": (".###.", "#...#", "#...#", "#####", "#...#", "#...#", "#...#"),
    "C": (".####", "#....", "#....", "#....", "#....", "#....", ".####"),
    "E": ("#####", "#....", "#....", "####.", "#....", "#....", "#####"),
    "G": (".####", "#....", "#....", "#..##", "#...#", "#...#", ".####"),
    "H": ("#...#", "#...#", "#...#", "#####", "#...#", "#...#", "#...#"),
    "I": ("#####", "..#..", "..#..", "..#..", "..#..", "..#..", "#####"),
    "K": ("#...#", "#..#.", "#.#..", "##...", "#.#..", "#..#.", "#...#"),
    "N": ("#...#", "##..#", "##..#", "#.#.#", "#..##", "#..##", "#...#"),
    "O": (".###.", "#...#", "#...#", "#...#", "#...#", "#...#", ".###."),
    "P": ("####.", "#...#", "#...#", "####.", "#....", "#....", "#...."),
    "S": (".####", "#....", "#....", ".###.", "....#", "....#", "####."),
    "T": ("#####", "..#..", "..#..", "..#..", "..#..", "..#..", "..#.."),
    "U": ("#...#", "#...#", "#...#", "#...#", "#...#", "#...#", ".###."),
}
GLYPH_WIDTH, GLYPH_HEIGHT, GLYPH_SCALE = 5, 7, 3


@dataclass(frozen=True)
class Item:
    """One drawn shape; `x`, `y` is its centre and `radius` half its height, in pixels."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float

    @property
    def size(self) -> str:
        """The size word: the boundary lies midway between the two ranges of `RADII`."""
        return "large" if self.radius > (RADII["small"][1] + RADII["large"][0]) / 2 else "small"


@dataclass(frozen=True)
class Word:
    """A written word; `x`, `y` is its centre in pixels."""

    text: str
    colour: str
    x: float
    y: float


@dataclass(frozen=True)
class Scene:
    """What a picture shows: the ground truth that a judge never sees."""

    background: str
    items: tuple[Item, ...] = ()
    word: Word | None = None


def word_extent(text: str) -> tuple[int, int]:
    """Width and height of a written word, in pixels."""
    return (len(text) * (GLYPH_WIDTH + 1) - 1) * GLYPH_SCALE, GLYPH_HEIGHT * GLYPH_SCALE


@lru_cache(maxsize=256)
def word_mask(text: str) -> np.ndarray:
    """Boolean pixels [height, width] of a written word.

    Raises:
        KeyError: a letter outside `GLYPHS`.
    """
    columns = [np.array([[c == "#" for c in row] for row in GLYPHS[letter]]) for letter in text]
    gap = np.zeros((GLYPH_HEIGHT, 1), bool)
    joined = np.hstack([part for column in columns for part in (column, gap)][:-1])
    return np.kron(joined, np.ones((GLYPH_SCALE, GLYPH_SCALE), bool))


def outline(item: Item) -> list[tuple[float, float]]:
    """Corner points of a shape in pixels; a circle is a 48-gon."""
    x, y, r = item.x, item.y, item.radius
    if item.shape == "circle":
        angles = [2 * math.pi * k / 48 for k in range(48)]
        return [(x + r * math.cos(a), y + r * math.sin(a)) for a in angles]
    if item.shape == "square":
        h = 0.9 * r
        return [(x - h, y - h), (x + h, y - h), (x + h, y + h), (x - h, y + h)]
    if item.shape == "triangle":
        return [(x, y - r), (x + 1.1 * r, y + r), (x - 1.1 * r, y + r)]
    if item.shape == "cross":
        t = 0.34 * r
        unit = [(-t, -r), (t, -r), (t, -t), (r, -t), (r, t), (t, t)]
        points = [*unit, *((-a, -b) for a, b in unit)]
        return [(x + a, y + b) for a, b in points]
    raise ValueError(f"unknown shape {item.shape!r}; known: {', '.join(SHAPES)}")


def render(scene: Scene) -> np.ndarray:
    """Draw a scene.

    Returns:
        uint8 [64, 64, 3], RGB.
    """
    k = _SUPERSAMPLE
    canvas = Image.new("RGB", (SIZE * k, SIZE * k), BACKGROUNDS[scene.background])
    draw = ImageDraw.Draw(canvas)
    for item in scene.items:
        # PIL fills the end pixel as well: half a fine pixel less on each side keeps the area right.
        points = [(px * k - 0.5, py * k - 0.5) for px, py in outline(item)]
        draw.polygon(points, fill=COLOURS[item.colour])
    pixels = np.asarray(canvas.resize((SIZE, SIZE), Image.Resampling.BOX)).copy()
    if scene.word is not None:
        width, height = word_extent(scene.word.text)
        left, top = round(scene.word.x - width / 2), round(scene.word.y - height / 2)
        pixels[top : top + height, left : left + width][word_mask(scene.word.text)] = COLOURS[scene.word.colour]
    return pixels


def clear_of(item: Item, others: list[Item]) -> bool:
    """Whether a shape keeps `MIN_GAP` from the border and from every other shape (by bounding boxes)."""
    reach = item.radius * (1.1 if item.shape == "triangle" else 1.0)
    low, high = reach + MIN_GAP, SIZE - reach - MIN_GAP
    if not (low <= item.x <= high and low <= item.y <= high):
        return False
    for other in others:
        gap = max(abs(item.x - other.x), abs(item.y - other.y)) - 1.1 * (item.radius + other.radius)
        if gap < MIN_GAP:
            return False
    return True
