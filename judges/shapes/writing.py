"""Written words: blobs that together look like a word of the world's glyphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import ndimage

from mmrubric.shapes.world import GLYPH_HEIGHT, GLYPH_SCALE, GLYPH_WIDTH, GLYPHS, SIZE, WORDS, word_mask

LEAST_CORRELATION = 0.7
"""Least correlation (-1 to 1) of the foreground with a word's glyphs."""
LETTER_HEIGHT = (15, 26)
"""Heights that unreadable letters may have, in pixels."""
_PAD = 4
_FULL = SIZE + 2 * _PAD


@dataclass(frozen=True)
class Writing:
    """What is written, '' where it cannot be read, with its pixels [64, 64] and the labels of its blobs."""

    text: str
    mask: np.ndarray
    labels: frozenset[int]


Finder = Callable[[np.ndarray, np.ndarray, list[int]], Writing | None]
"""Takes labels [64, 64], cover [64, 64] and the labels to look at."""


def read_word(labels: np.ndarray, cover: np.ndarray, strange: list[int]) -> Writing | None:
    """The word that the strange blobs spell, letter by letter; None where there is none."""
    ink = _ink(labels, cover, strange)
    correlation, word, top, left = _best_place(ink)
    if correlation < LEAST_CORRELATION:
        return None
    height, width = word_mask(word).shape
    if not _spells(ink[top : top + height, left : left + width], word):
        return None
    return _inside(labels, strange, word, (top, left, height, width))


def _ink(labels: np.ndarray, cover: np.ndarray, strange: list[int]) -> np.ndarray:
    return np.where(ndimage.binary_dilation(np.isin(labels, strange)), cover, 0)


def _inside(labels: np.ndarray, strange: list[int], text: str, where: tuple[int, int, int, int]) -> Writing | None:
    """Writing made of the blobs that lie in a box (top, left, height, width)."""
    top, left, height, width = where
    box = np.zeros(labels.shape, bool)
    box[max(top - 1, 0) : top + height + 1, max(left - 1, 0) : left + width + 1] = True
    inside = frozenset(label for label in strange if box[labels == label].mean() > 0.7)
    return Writing(text, np.isin(labels, list(inside)), inside) if inside else None


def unreadable(labels: np.ndarray, cover: np.ndarray, strange: list[int]) -> Writing | None:
    """Blobs made of thin strokes as high as letters, two side by side or one as wide; or a word misspelt."""
    letters = []
    for label in strange:
        mask = labels == label
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
        thin = ndimage.binary_erosion(mask, np.ones((5, 5), bool)).sum() <= 0.04 * mask.sum()
        if thin and LETTER_HEIGHT[0] <= height <= LETTER_HEIGHT[1]:
            letters.append((columns[0], columns[-1], rows[0] + height / 2, width, label))
    letters.sort()
    for k, (_, right, middle, width, label) in enumerate(letters):
        line = {label}
        for left2, right2, middle2, _, label2 in letters[k + 1 :]:
            if abs(middle2 - middle) <= 5 and -2 <= left2 - right <= 9:
                line.add(label2)
                right = right2
        if len(line) > 1 or width >= 1.6 * GLYPH_WIDTH * GLYPH_SCALE:
            return Writing("", np.isin(labels, list(line)), frozenset(line))
    correlation, word, top, left = _best_place(_ink(labels, cover, strange))
    if correlation < LEAST_CORRELATION:
        return None
    return _inside(labels, strange, "", (top, left, *word_mask(word).shape))


@lru_cache(maxsize=len(WORDS))
def _template(word: str) -> tuple[np.ndarray, np.ndarray, tuple[int, int], float]:
    """Spectrum of a word's zero-mean glyphs with an empty frame, spectrum of its window, extent and norm."""
    glyphs = np.pad(word_mask(word), 2).astype(float)
    norm = float(np.sqrt(np.square(glyphs - glyphs.mean()).sum()))
    size = (_FULL, _FULL)
    spectrum = np.conj(np.fft.rfft2(glyphs - glyphs.mean(), size))
    return (
        spectrum,
        np.conj(np.fft.rfft2(np.ones(glyphs.shape), size)),
        (glyphs.shape[0], glyphs.shape[1]),
        norm,
    )


def _best_place(ink: np.ndarray) -> tuple[float, str, int, int]:
    """Best correlation of ink and glyphs over all words and positions: (correlation, word, top, left)."""
    padded = np.pad(ink, _PAD)
    shape = (_FULL, _FULL)
    image, image_square = np.fft.rfft2(padded), np.fft.rfft2(padded**2)
    best = (-1.0, "", 0, 0)
    spreads: dict[tuple[int, int], np.ndarray] = {}
    for word in WORDS:
        spectrum, window, (height, width), norm = _template(word)
        reach = np.s_[: _FULL - height + 1, : _FULL - width + 1]
        if (height, width) not in spreads:  # words of equal length share the window
            total = np.fft.irfft2(image * window, shape)[reach]
            square = np.fft.irfft2(image_square * window, shape)[reach]
            spreads[height, width] = np.sqrt(np.maximum(square - total**2 / (height * width), 1e-6))
        score = np.fft.irfft2(image * spectrum, shape)[reach] / (spreads[height, width] * norm)
        top, left = np.unravel_index(int(score.argmax()), score.shape)
        if score[top, left] > best[0]:
            # The template's frame is two pixels wide.
            best = (float(score[top, left]), word, max(int(top) - _PAD + 2, 0), max(int(left) - _PAD + 2, 0))
    return best


def _spells(ink: np.ndarray, word: str) -> bool:
    """Whether each letter is more like the word's than like any other letter."""
    full = np.zeros((GLYPH_HEIGHT * GLYPH_SCALE, (len(word) * (GLYPH_WIDTH + 1) - 1) * GLYPH_SCALE))
    full[: ink.shape[0], : ink.shape[1]] = ink
    cells = full.reshape(GLYPH_HEIGHT, GLYPH_SCALE, -1, GLYPH_SCALE).mean((1, 3))
    names, shapes = _glyphs()
    for k, letter in enumerate(word):
        cell = cells[:, k * (GLYPH_WIDTH + 1) :][:, :GLYPH_WIDTH].ravel()
        cell = cell - cell.mean()
        if names[int((shapes @ cell).argmax())] != letter:
            return False
    return True


@lru_cache(maxsize=1)
def _glyphs() -> tuple[list[str], np.ndarray]:
    """Letters and their zero-mean unit-norm cells [letters, 35]."""
    cells = np.array([[c == "#" for row in rows for c in row] for rows in GLYPHS.values()], float)
    cells -= cells.mean(1, keepdims=True)
    return list(GLYPHS), cells / np.linalg.norm(cells, axis=1, keepdims=True)
