"""The few `scipy.ndimage` calls whose results type checkers cannot tell, with their types."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import ndimage


def label(mask: np.ndarray, structure: np.ndarray) -> tuple[np.ndarray, int]:
    """Connected regions of a mask, numbered from 1, and their number."""
    found: Any = ndimage.label(mask, structure)
    return found[0], int(found[1])


def depth(mask: np.ndarray) -> np.ndarray:
    """Distance of each pixel of `mask` [H, W] from the nearest pixel outside; the frame is outside."""
    found: Any = ndimage.distance_transform_edt(np.pad(mask, 1))
    return found[1:-1, 1:-1]


def nearest_seed(seeds: np.ndarray) -> np.ndarray:
    """Each pixel's nearest seed number; `seeds` [H, W] is 0 where there is none."""
    index: Any = ndimage.distance_transform_edt(seeds == 0, return_distances=False, return_indices=True)
    return seeds[tuple(index)]


def local_maximum(values: np.ndarray, side: int) -> np.ndarray:
    """Largest value in the square of `side` pixels around each pixel of each picture [N, H, W]."""
    size: Any = (1, side, side)
    return ndimage.maximum_filter(values, size)


def local_mean(values: np.ndarray, side: int) -> np.ndarray:
    """Mean of the square of `side` pixels around each pixel of each picture [N, H, W]."""
    size: Any = (1, side, side)
    return ndimage.uniform_filter(values, size)
