"""Pictures for the tests of the judges of shapes: scenes by hand, polygons, and rubrics of one criterion."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from judges.shapes.measure import Case, draw_cases
from mmrubric.rubric import Criterion, Rubric
from mmrubric.shapes import BACKGROUNDS, COLOURS, SIZE, Item, Scene, render

Points = list[tuple[float, float]]


def scene(background: str = "white", *items: tuple[str, str, float, float, float]) -> np.ndarray:
    """A rendered scene; each item is (shape, colour, x, y, radius)."""
    return render(Scene(background, tuple(Item(*item) for item in items)))


def draw(picture: np.ndarray, points: Points, colour: tuple[int, int, int] | str) -> np.ndarray:
    """A copy of the picture with an anti-aliased polygon on it, corners in pixels."""
    fine = 8
    mask = Image.new("L", (SIZE * fine, SIZE * fine))
    ImageDraw.Draw(mask).polygon([(x * fine, y * fine) for x, y in points], fill=255)
    cover = np.asarray(mask.resize((SIZE, SIZE), Image.Resampling.BOX))[..., None] / 255
    paint = np.array(COLOURS.get(colour, (0, 0, 0)) if isinstance(colour, str) else colour)
    return np.round(picture * (1 - cover) + paint * cover).astype(np.uint8)


def box(left: float, top: float, width: float, height: float) -> Points:
    """Corners of a rectangle."""
    return [(left, top), (left + width, top), (left + width, top + height), (left, top + height)]


def disc(x: float, y: float, radius: float, start: float = 0, end: float = 360) -> Points:
    """Corners of a disc, or of its sector between two angles in degrees."""
    angles = np.radians(np.linspace(start, end, 60))
    points = [(float(x + radius * np.cos(a)), float(y + radius * np.sin(a))) for a in angles]
    return points if end - start == 360 else [*points, (x, y)]


def plain(background: str = "white") -> np.ndarray:
    """An empty picture."""
    return np.full((SIZE, SIZE, 3), BACKGROUNDS[background], np.uint8)


def rubric(check: str, verifier: str = "rule:shapes", **arguments: Any) -> Rubric:
    """A rubric of one criterion with the id `c`."""
    criterion = Criterion(id="c", text="a statement", verifier=verifier, arguments={"check": check, **arguments})
    return Rubric(prompt="a prompt", criteria=(criterion,))


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """300 true scenes and near misses of all kinds of prompts; drawn once, since drawing is slow."""
    return tuple(draw_cases(300, seed=11))
