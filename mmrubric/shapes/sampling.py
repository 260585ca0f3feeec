"""Random scenes: one that satisfies a prompt, and near misses of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mmrubric.shapes.grammar import COUNT_WORDS, RELATIONS, Spec
from mmrubric.shapes.world import (
    BACKGROUNDS,
    COLOURS,
    RADII,
    SHAPES,
    SIZE,
    WORDS,
    Item,
    Scene,
    Word,
    clear_of,
    word_extent,
)

CHANGES = ("colour", "shape", "size", "count", "relation", "background", "word", "word_colour")
"""What `near_miss` can change."""
GRID_RADII = {"small": 6.0, "large": 10.5}
"""Radii of the scenes on a grid, in pixels."""
_RELATION_GAP, _RELATION_DRIFT = 20.0, 7.0
"""Related shapes are at least this far apart along the named axis and at most this far across it, in pixels."""


def _place(
    wanted: list[tuple[str, str, str]], rng: np.random.Generator, relation: str | None, grid: bool
) -> tuple[Item, ...]:
    """Shapes (shape, colour, size word) at free positions; two shapes may stand in a relation."""
    while True:
        items: list[Item] = []
        for shape, colour, size in wanted:
            places = _grid_places(size, rng) if grid else _free_places(size, rng)
            for x, y, radius in places:
                item = Item(shape, colour, x, y, radius)
                if clear_of(item, items) and (not items or _fits(items[0], item, relation)):
                    items.append(item)
                    break
            else:
                break
        if len(items) == len(wanted):
            return tuple(items)


def _free_places(size: str, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """60 places (x, y, radius) anywhere, all with one radius."""
    radius = float(rng.uniform(*RADII[size]))
    return [(x, y, radius) for x, y in rng.uniform(radius, SIZE - radius, (60, 2)).tolist()]


def _grid_places(size: str, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Every place (x, y, radius) of the grid, in random order; small and large shapes have grids of their own."""
    first = 12 if size == "small" else 16
    ticks = range(first, SIZE - first + 1, 8)
    cells = [(float(x), float(y), GRID_RADII[size]) for x in ticks for y in ticks]
    return [cells[i] for i in rng.permutation(len(cells))]


def _fits(a: Item, b: Item, relation: str | None) -> bool:
    if relation is None:
        return True
    dx, dy = b.x - a.x, b.y - a.y
    along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
    if relation in ("right of", "below"):
        along = -along
    return along >= _RELATION_GAP and abs(across) <= _RELATION_DRIFT


def scene_for(spec: Spec, rng: np.random.Generator, grid: bool = False) -> Scene:
    """A random scene that satisfies a prompt; sizes that the prompt leaves open are drawn, one for each subject.

    Args:
        spec: what the prompt asks for.
        rng: decides the places, and the sizes left open.
        grid: places on a grid of 8 pixels and one radius for each size word, instead of any place and radius. A tiny
            generator learns these scenes several times faster.
    """
    if spec.word is not None:
        width, height = word_extent(spec.word)
        step = 8 if grid else 1
        x = 2.0 + rng.integers(SIZE - width - 3) // step * step + width / 2
        y = 2.0 + rng.integers(SIZE - height - 3) // step * step + height / 2
        return Scene(spec.background, word=Word(spec.word, spec.word_colour or "", float(x), float(y)))
    wanted = []
    for subject in spec.subjects:
        size = subject.size or str(rng.choice(list(RADII)))
        wanted += [(subject.shape, subject.colour, size)] * subject.count
    return Scene(spec.background, _place(wanted, rng, spec.relation, grid))


def changes_of(spec: Spec) -> tuple[str, ...]:
    """The changes of `CHANGES` that make sense for a prompt."""
    if spec.word is not None:
        return ("word", "word_colour", "background")
    sizes = ("size",) if any(subject.size for subject in spec.subjects) else ()
    relation = ("relation",) if spec.relation else ()
    count = ("count",) if len(spec.subjects) == 1 else ()
    return ("colour", "shape", "background", *sizes, *relation, *count)


def changed(spec: Spec, change: str, rng: np.random.Generator) -> Spec:
    """The prompt with one attribute (of one subject) changed at random.

    Raises:
        ValueError: the prompt has nothing of that kind to change.
    """
    if change not in changes_of(spec):
        raise ValueError(f"cannot change {change!r} of {spec.text!r}")

    def other(options: tuple[str, ...] | dict, now: str | None) -> str:
        return str(rng.choice([o for o in options if o != now]))

    if change == "background":
        return replace(spec, background=other(BACKGROUNDS, spec.background))
    if change == "word":
        return replace(spec, word=other(WORDS, spec.word))
    if change == "word_colour":
        return replace(spec, word_colour=other(COLOURS, spec.word_colour))
    if change == "relation":
        return replace(spec, relation=other(RELATIONS, spec.relation))
    index = int(rng.integers(len(spec.subjects)))
    if change == "size":
        index = int(rng.choice([i for i, s in enumerate(spec.subjects) if s.size]))
    subject = spec.subjects[index]
    if change == "count":
        subject = replace(subject, count=int(rng.choice([n for n in (1, *COUNT_WORDS) if n != subject.count])))
    elif change == "colour":
        subject = replace(subject, colour=other(COLOURS, subject.colour))
    elif change == "size":
        subject = replace(subject, size=other(RADII, subject.size))
    else:
        taken = {s.shape for s in spec.subjects}
        subject = replace(subject, shape=str(rng.choice([s for s in SHAPES if s not in taken])))
    return replace(spec, subjects=(*spec.subjects[:index], subject, *spec.subjects[index + 1 :]))


def near_miss(spec: Spec, change: str, rng: np.random.Generator) -> Scene:
    """A random scene that satisfies a prompt but for one changed attribute (of one subject).

    Raises:
        ValueError: the prompt has nothing of that kind to change.
    """
    return scene_for(changed(spec, change, rng), rng)
