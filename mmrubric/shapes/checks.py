"""What each question about a picture of shapes means, given what is seen in it.

Ground truth (a `Scene`) and every reader of pixels end in the same `Seen`, so a question means the same to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrubric.errors import InputError
from mmrubric.shapes.world import Scene

OTHER = "other"
"""Name of a shape, colour, size or background that is none of the known ones."""
RELATION_MARGIN = 4.0
"""Least distance of two centres along the named axis for a relation to hold, in pixels."""


@dataclass(frozen=True)
class SeenItem:
    """One shape: names may be `OTHER`; `x`, `y` is the centre in pixels."""

    shape: str
    colour: str
    size: str
    x: float
    y: float


@dataclass(frozen=True)
class Seen:
    """What is in a picture. `word` is what is written ('' where something unreadable is), None = no writing."""

    background: str
    items: tuple[SeenItem, ...] = ()
    word: str | None = None
    word_colour: str | None = None


def seen_of(scene: Scene) -> Seen:
    """Ground truth of a scene."""
    items = tuple(SeenItem(i.shape, i.colour, i.size, i.x, i.y) for i in scene.items)
    if scene.word is None:
        return Seen(scene.background, items)
    return Seen(scene.background, items, scene.word.text, scene.word.colour)


def holds(arguments: Mapping[str, Any], seen: Seen) -> bool | None:
    """Whether the statement with these arguments is true.

    Args:
        arguments: `check` and what it needs: `object` shape; `count` number, shape or none for any shape;
            `colour` shape, colour; `size` shape, size; `relation` first, second, relation; `background` colour;
            `text` word; `writing`; `writing_colour` colour; `nothing_else` shapes, word (bool).
            `colour`, `size` and `writing_colour` also take `if_any`: the statement then speaks only of what is
            there.
        seen: what is in the picture.

    Returns:
        True, False, or None where the question does not apply (`if_any` and nothing of the kind is there).

    Raises:
        InputError: unknown check or missing argument.
    """
    check = arguments.get("check")
    if check not in _CHECKS:
        raise InputError(f"unknown check {check!r}; known: {', '.join(_CHECKS)}")
    try:
        return _CHECKS[check](arguments, seen)
    except KeyError as missing:
        raise InputError(f"check {check!r} needs the argument {missing.args[0]!r}") from None


def _of(shape: str | None, seen: Seen) -> list[SeenItem]:
    return [item for item in seen.items if shape is None or item.shape == shape]


def _every(flags: list[bool], arguments: Mapping[str, Any]) -> bool | None:
    if not flags:
        return None if arguments.get("if_any") else False
    return all(flags)


def _object(arguments: Mapping[str, Any], seen: Seen) -> bool:
    return bool(_of(arguments["shape"], seen))


def _count(arguments: Mapping[str, Any], seen: Seen) -> bool:
    return len(_of(arguments.get("shape"), seen)) == arguments["number"]


def _colour(arguments: Mapping[str, Any], seen: Seen) -> bool | None:
    colour = arguments["colour"]
    return _every([item.colour == colour for item in _of(arguments["shape"], seen)], arguments)


def _size(arguments: Mapping[str, Any], seen: Seen) -> bool | None:
    size = arguments["size"]
    return _every([item.size == size for item in _of(arguments["shape"], seen)], arguments)


def _relation(arguments: Mapping[str, Any], seen: Seen) -> bool:
    first, second = _of(arguments["first"], seen), _of(arguments["second"], seen)
    return any(related(arguments["relation"], a, b) for a in first for b in second if a is not b)


def related(relation: str, a: SeenItem, b: SeenItem) -> bool:
    """Whether `a` is `relation` `b`: the named axis must dominate and exceed `RELATION_MARGIN`."""
    dx, dy = b.x - a.x, b.y - a.y
    along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
    if relation in ("right of", "below"):
        along = -along
    return along >= RELATION_MARGIN and along >= abs(across)


def _background(arguments: Mapping[str, Any], seen: Seen) -> bool:
    return seen.background == arguments["colour"]


def _text(arguments: Mapping[str, Any], seen: Seen) -> bool:
    return seen.word == arguments["word"]


def _writing(arguments: Mapping[str, Any], seen: Seen) -> bool:
    return seen.word is not None


def _writing_colour(arguments: Mapping[str, Any], seen: Seen) -> bool | None:
    colour = arguments["colour"]
    return _every([] if seen.word is None else [seen.word_colour == colour], arguments)


def _nothing_else(arguments: Mapping[str, Any], seen: Seen) -> bool:
    shapes = arguments["shapes"]
    return all(item.shape in shapes for item in seen.items) and (arguments["word"] or seen.word is None)


_CHECKS = {
    "object": _object,
    "count": _count,
    "colour": _colour,
    "size": _size,
    "relation": _relation,
    "background": _background,
    "text": _text,
    "writing": _writing,
    "writing_colour": _writing_colour,
    "nothing_else": _nothing_else,
}
