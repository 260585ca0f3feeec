"""Colours as people see them: CIELAB, and names of colours."""

from __future__ import annotations

import re

import numpy as np
from PIL import ImageColor

from mmrubric.errors import InputError

_HEX = re.compile(r"#([0-9a-f]{3}|[0-9a-f]{6})")
# Linear sRGB to XYZ with white point D65: IEC 61966-2-1.
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
# The white of this matrix, so that white is exactly L = 100, a = b = 0.
_TO_XYZ /= _TO_XYZ.sum(axis=1, keepdims=True)


def _linear_levels() -> np.ndarray:
    """Linear light of the 256 sRGB levels, float32 [256]."""
    level = np.arange(256) / 255.0
    return np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4).astype(np.float32)


_LINEAR = _linear_levels()


def to_lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of 8-bit sRGB.

    Args:
        rgb: uint8 [..., 3].

    Returns:
        float32 [..., 3]: L in [0, 100], a and b about -110 to 110. CIE 15, white point D65.
    """
    relative = _LINEAR[rgb] @ _TO_XYZ.T.astype(np.float32)
    small = relative <= (6 / 29) ** 3
    root = np.where(small, relative / (3 * (6 / 29) ** 2) + 4 / 29, np.cbrt(relative))
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def distances(lab: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """CIE76 colour difference (Euclidean in CIELAB) of every pixel [..., 3] from a colour [3]: float32 [...]."""
    return np.sqrt(((lab - colour) ** 2).sum(axis=-1))


def rgb_of(colour: str) -> np.ndarray:
    """sRGB, uint8 [3], of a CSS colour name ('teal') or '#rgb' or '#rrggbb'.

    Raises:
        InputError: neither.
    """
    word = colour.strip().lower()
    if word not in ImageColor.colormap and not _HEX.fullmatch(word):
        raise InputError(f"{colour!r} is no colour; give a CSS name such as 'teal', or hex such as '#1e90ff'")
    return np.array(ImageColor.getrgb(word)[:3], dtype=np.uint8)
