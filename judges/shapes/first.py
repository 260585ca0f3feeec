"""The first reader: blobs by colour distance from the background, shapes by a bank of rendered outlines."""

from __future__ import annotations

import numpy as np

from judges.shapes import writing
from judges.shapes.blobs import Blobs, closest, colours, describe, segment
from judges.shapes.splitting import split_touching
from mmrubric.shapes import BACKGROUNDS, OTHER, RADII, SIZE, Seen, SeenItem

MIN_AREA = 8.0
"""Blobs with less area than this are specks and not seen, in pixels."""
BACKGROUND_REACH = 60.0
"""Largest colour distance at which a pixel counts as the named background."""
STROKE_COLOUR_REACH = 110.0
"""As `COLOUR_REACH` of blobs, for letters: blur mixes their thin strokes with the background throughout."""
_LARGE_RADIUS = (RADII["small"][1] + RADII["large"][0]) / 2
_AREA_PER_R2 = {"circle": np.pi, "square": 3.24, "triangle": 2.2, "cross": 2.2576}
"""Area divided by the squared radius, from the outlines of `mmrubric.shapes.world`."""
_NAMED_BACKGROUNDS = np.array(list(BACKGROUNDS.values()), np.float32)


def read(pixels: np.ndarray) -> list[Seen]:
    """Read what pictures show.

    Args:
        pixels: uint8 [N, 64, 64, 3], RGB.

    Returns:
        One `Seen` for each picture.
    """
    values = pixels.astype(np.float32)
    names, grounds = _backgrounds(values)
    labels, cover = segment(values, grounds)
    blobs = describe(values, labels, cover)
    words = _words(blobs, len(pixels), writing.read_word)
    blobs = split_touching(values, blobs, skip=words)
    words = {**_words(blobs, len(pixels), writing.unreadable, skip=words), **words}
    items: list[list[SeenItem]] = [[] for _ in range(len(pixels))]
    for index in np.argsort(blobs.x, kind="stable"):
        image = int(blobs.image[index])
        in_word = image in words and int(index) + 1 in words[image].labels
        if blobs.area[index] >= MIN_AREA and not in_word:
            items[image].append(_item(blobs, int(index)))
    result = []
    for image, name in enumerate(names):
        word = colour = None
        if image in words:
            word = words[image].text
            colour = colours(values[image][None], words[image].mask[None].astype(np.int32), 1, STROKE_COLOUR_REACH)[0]
        result.append(Seen(name, tuple(items[image]), word, colour))
    return result


def _words(
    blobs: Blobs, images: int, finder: writing.Finder, skip: dict[int, writing.Writing] | None = None
) -> dict[int, writing.Writing]:
    """What a finder reads in the blobs that are no shapes, for each image where it finds writing."""
    strange: list[list[int]] = [[] for _ in range(images)]
    for index, shape in enumerate(blobs.shape):
        if shape == OTHER and blobs.area[index] >= MIN_AREA:
            strange[blobs.image[index]].append(index + 1)
    found = {}
    for image, labels in enumerate(strange):
        if labels and image not in (skip or {}):
            writing_here = finder(blobs.labels[image], blobs.cover[image], labels)
            if writing_here is not None:
                found[image] = writing_here
    return found


def _item(blobs: Blobs, index: int) -> SeenItem:
    shape, y = blobs.shape[index], float(blobs.y[index])
    radius = float(np.sqrt(blobs.area[index] / _AREA_PER_R2.get(shape, np.pi)))
    if shape == "triangle":
        y -= radius / 3  # an item's centre is half its height; the centroid lies at two thirds
    size = "large" if radius > _LARGE_RADIUS else "small"
    return SeenItem(shape, blobs.colour[index], size, float(blobs.x[index]), y)


def _backgrounds(values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Name and mean colour [N, 3] of each background; the colour of an unnamed one is the border's median."""
    nearest, distance = closest(values, _NAMED_BACKGROUNDS)
    near = distance < BACKGROUND_REACH**2
    share = np.stack([(near & (nearest == k)).mean((1, 2)) for k in range(len(_NAMED_BACKGROUNDS))], -1)
    best = share.argmax(-1)
    mine = near & (nearest == best[:, None, None])
    total = np.maximum(mine.sum((1, 2)), 1)[:, None]
    grounds = np.einsum("nyxc,nyx->nc", values, mine.astype(np.float32)) / total
    names = list(BACKGROUNDS)
    result = []
    for n, k in enumerate(best):
        if share[n, k] >= 0.35:
            result.append(names[k])
            continue
        result.append(OTHER)
        ring = np.ones((SIZE, SIZE), bool)
        ring[2:-2, 2:-2] = False
        grounds[n] = np.median(values[n][ring], axis=0)
    return result, grounds
