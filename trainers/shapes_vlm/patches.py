"""Labels of the patches of a picture: what has its centre there, and which colour is there."""

from __future__ import annotations

import numpy as np

from mmrubric.shapes.checks import OTHER
from mmrubric.shapes.world import (
    BACKGROUNDS,
    COLOURS,
    GLYPH_SCALE,
    GLYPH_WIDTH,
    GLYPHS,
    RADII,
    SHAPES,
    SIZE,
    word_extent,
)
from trainers.shapes_vlm.model import PATCH
from trainers.shapes_vlm.pictures import Picture

SIDE = SIZE // PATCH
CENTRES = ["", *(f"{size} {shape}" for shape in (*SHAPES, OTHER) for size in RADII), *GLYPHS]
"""Classes of a patch: nothing, a shape with its size, or a letter."""
PALETTE = [*COLOURS, *BACKGROUNDS]
_RGB = np.array([*COLOURS.values(), *BACKGROUNDS.values()], np.float32)


def centre_labels(picture: Picture) -> np.ndarray:
    """int64 [64]: index into `CENTRES`, rows of patches from the top."""
    labels = np.zeros((SIDE, SIDE), np.int64)

    def mark(x: float, y: float, name: str) -> None:
        labels[min(int(y) // PATCH, SIDE - 1), min(int(x) // PATCH, SIDE - 1)] = CENTRES.index(name)

    for item in picture.seen.items:
        mark(item.x, item.y, f"{item.size} {item.shape}")
    word = picture.scene.word
    if word is not None:
        left = word.x - word_extent(word.text)[0] / 2
        for number, letter in enumerate(word.text):
            mark(left + (number * (GLYPH_WIDTH + 1) + GLYPH_WIDTH / 2) * GLYPH_SCALE, word.y, letter)
    return labels.reshape(-1)


def colour_labels(pixels: np.ndarray) -> np.ndarray:
    """int64 [64]: index into `PALETTE` of the colour at the centre of each patch of a clean picture."""
    centres = pixels[PATCH // 2 :: PATCH, PATCH // 2 :: PATCH].astype(np.float32).reshape(-1, 1, 3)
    return np.square(centres - _RGB).sum(-1).argmin(-1)
