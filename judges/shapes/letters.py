"""Letters by cells: a line of strokes is cut into letters of 5 x 7 cells, each compared with the glyphs."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from judges.shapes.morphology import depth
from mmrubric.shapes.world import GLYPH_HEIGHT, GLYPH_SCALE, GLYPH_WIDTH, GLYPHS

MOST_WRONG_CELLS = 5
"""A letter may differ from its glyph in at most this many of its 35 cells."""
_HEIGHTS = (15, 27)
_THICKEST = 4.0
"""Half of the widest stroke of a letter, in pixels."""
_GAP = 8
"""Largest empty space between two letters, in pixels."""
_PITCH = (GLYPH_WIDTH + 1) * GLYPH_SCALE


def read_letters(masks: list[np.ndarray], level: np.ndarray) -> tuple[str, list[int]] | None:
    """Read a word.

    Args:
        masks: bool [64, 64] each, blobs that are no shapes.
        level: float [64, 64], contrast as a share of the blob's own.

    Returns:
        The text ('' where it cannot be read) and the indices of the blobs it is made of, or None where there
        is no writing.
    """
    strokes = []
    for k, mask in enumerate(masks):
        box = ndimage.find_objects(mask.astype(int))[0]
        thickness = depth(mask).max()
        if thickness <= _THICKEST and box[0].stop - box[0].start <= _HEIGHTS[1]:
            strokes.append((box[1].start, box[1].stop, box[0].start, box[0].stop, k))
    strokes.sort()
    letters = [s for s in strokes if s[3] - s[2] >= _HEIGHTS[0] and s[1] - s[0] >= 6]
    best: list[tuple[int, int, int, int, int]] = []
    for start in letters:
        line = [s for s in strokes if start[2] - 5 <= s[2] and s[3] <= start[3] + 5]
        at = line.index(start)
        low = high = at
        while low > 0 and line[low][0] - max(s[1] for s in line[:low]) <= _GAP:
            low -= 1
        while high + 1 < len(line) and line[high + 1][0] - max(s[1] for s in line[: high + 1]) <= _GAP:
            high += 1
        if high - low + 1 > len(best):
            best = line[low : high + 1]
    if not best:
        return None
    left, right = min(s[0] for s in best), max(s[1] for s in best)
    top, bottom = min(s[2] for s in best), max(s[3] for s in best)
    if right - left < 1.5 * GLYPH_WIDTH * GLYPH_SCALE:
        return None
    ink = np.where(np.any([masks[s[4]] for s in best], axis=0), np.clip(level, 0, 1), 0)
    return _spell(ink[top:bottom, left:right]), [s[4] for s in best]


def _spell(ink: np.ndarray) -> str:
    letters = round((ink.shape[1] + GLYPH_SCALE) / _PITCH)
    columns = letters * (GLYPH_WIDTH + 1) - 1
    expected_width, expected_height = columns * GLYPH_SCALE, GLYPH_HEIGHT * GLYPH_SCALE
    if abs(ink.shape[1] - expected_width) > 5 or abs(ink.shape[0] - expected_height) > 4:
        return ""
    factors = (expected_height / ink.shape[0], expected_width / ink.shape[1])
    stretched = np.asarray(ndimage.zoom(ink, factors, order=1))
    cells = stretched.reshape(GLYPH_HEIGHT, GLYPH_SCALE, columns, GLYPH_SCALE).mean((1, 3)) > 0.45
    text = ""
    for k in range(letters):
        cell = cells[:, k * (GLYPH_WIDTH + 1) :][:, :GLYPH_WIDTH]
        wrong = {
            letter: int((cell != np.array([[c == "#" for c in row] for row in rows])).sum())
            for letter, rows in GLYPHS.items()
        }
        letter = min(wrong, key=lambda name: wrong[name])
        others = [n for name, n in wrong.items() if name != letter]
        if wrong[letter] > MOST_WRONG_CELLS or wrong[letter] == min(others):
            return ""
        text += letter
    return text
