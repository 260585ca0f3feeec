"""Shapes that touch are one blob: separate them by colour or at narrow places, where the parts are shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from judges.shapes.blobs import Blobs, colour_classes, describe
from judges.shapes.morphology import depth, label, nearest_seed
from mmrubric.shapes import OTHER

LEAST_AREA = 60.0
"""Blobs with less area are not two shapes, in pixels."""
PART_MISFIT = 0.035
"""Parts must fit their outline better than whole blobs, since a smudge can be cut in many ways."""
NAMED_SHARE = 0.8
"""A strange blob is cut at its necks only if shapes make up at least this share of it."""
COLOUR_SHARE = 0.3
"""As `NAMED_SHARE`, for cuts between colours: a change of colour is a border that anyone sees."""
NECKS = (1.0, 2.0, 3.0, 4.0, 5.5)
"""Half widths of the necks at which a blob may be cut, in pixels."""
_LEAST_PART = 12
_BOX = np.ones((3, 3), bool)
_PLUS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], bool)


def split_touching(values: np.ndarray, blobs: Blobs, skip: Collection[int] = ()) -> Blobs:
    """Replace blobs that are several touching shapes by these shapes.

    Args:
        values: float [N, 64, 64, 3], RGB.
        blobs: what was found.
        skip: images to leave alone.

    Returns:
        Blobs in which a replaced one has area 0 and its parts stand at the end.
    """
    for propose in (_by_colour, *(_by_erosion(neck) for neck in NECKS)):
        doubtful = [
            i
            for i, area in enumerate(blobs.area)
            if area >= LEAST_AREA
            and blobs.image[i] not in skip
            and (blobs.shape[i] == OTHER or (propose is _by_colour and blobs.colour[i] == OTHER))
        ]
        if doubtful:
            blobs = _attempt(values, blobs, doubtful, propose)
    return blobs


def _attempt(
    values: np.ndarray,
    blobs: Blobs,
    doubtful: list[int],
    propose: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Blobs:
    owners: list[int] = []
    masks: list[np.ndarray] = []
    for index in doubtful:
        image = blobs.image[index]
        mask = blobs.labels[image] == index + 1
        parts = propose(values[image], mask)
        sizes = np.bincount(parts[mask], minlength=1)[1:]
        for part in np.flatnonzero(sizes >= _LEAST_PART) + 1 if (sizes >= _LEAST_PART).sum() > 1 else ():
            owners.append(index)
            masks.append(parts == part)
    if not owners:
        return blobs
    # Each part is looked at as if it were alone in its image.
    images = blobs.image[owners]
    alone = np.stack([mask * np.int32(k + 1) for k, mask in enumerate(masks)])
    found = describe(values[images], alone, blobs.cover[images])
    labels, accepted = blobs.labels.copy(), []
    owner = np.array(owners)
    least = COLOUR_SHARE if propose is _by_colour else NAMED_SHARE
    area, keep = blobs.area.copy(), np.array([s != OTHER for s in found.shape])
    keep &= found.misfit <= PART_MISFIT
    for index in set(owners):
        mine = owner == index
        named = found.area[mine & keep].sum() / blobs.area[index]
        whole_is_shape = blobs.shape[index] != OTHER
        if (keep[mine].all() and mine.sum() > 1) or (not whole_is_shape and named >= least):
            area[index] = 0
            for k in np.flatnonzero(mine):
                accepted.append(k)
                labels[images[k]][masks[k]] = len(blobs.area) + len(accepted)
    return Blobs(
        labels,
        blobs.cover,
        np.concatenate([blobs.image, images[accepted]]).astype(int),
        np.concatenate([area, found.area[accepted]]),
        np.concatenate([blobs.x, found.x[accepted]]),
        np.concatenate([blobs.y, found.y[accepted]]),
        blobs.shape + [found.shape[k] if keep[k] else OTHER for k in accepted],
        np.concatenate([blobs.misfit, found.misfit[accepted]]),
        blobs.colour + [found.colour[k] for k in accepted],
    )


def _by_colour(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Connected regions of one palette colour; other pixels of the blob go to the nearest region."""
    classes, inner = colour_classes(values[None], mask[None].astype(np.int32))
    seeds = np.zeros(mask.shape, np.int32)
    count = 0
    for colour in np.unique(classes[0][inner[0]]):
        regions, found = label(inner[0] & (classes[0] == colour), _BOX)
        sizes = np.bincount(regions.ravel())
        for region in range(1, found + 1):
            if sizes[region] >= _LEAST_PART:
                count += 1
                seeds[regions == region] = count
    return _nearest(seeds, mask)


def _by_erosion(least: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def propose(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        core = depth(mask) > least
        seeds, _ = label(core, _PLUS)
        return _nearest(seeds, mask)

    return propose


def _nearest(seeds: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Give every pixel of `mask` the label of the nearest seed; 0 outside, and if there are no two seeds."""
    if seeds.max(initial=0) < 2:
        return np.zeros_like(seeds)
    return np.where(mask, nearest_seed(seeds), 0)
