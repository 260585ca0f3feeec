"""What each question about an edited picture means, given what is seen in it and in its source.

A shape keeps its place when it is within `PLACE` pixels of where it was. Shapes of one name are told apart by place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mmrubric.errors import InputError
from mmrubric.shapes.checks import OTHER, Seen, SeenItem
from mmrubric.shapes.edits import DIRECTIONS, MOVE
from mmrubric.shapes.world import COLOURS, RADII, SHAPES, SIZE

PLACE = 5.0
"""How far a shape may drift and still be where it was, in pixels."""
MOVED = (0.5 * MOVE, 1.5 * MOVE)
"""Least and most way of a moved shape along its direction, in pixels; across it may drift by `PLACE`."""
_MARGIN = 3.0
"""Pixels around a shape that an edit of it may change."""


def holds_after(arguments: Mapping[str, Any], source: Seen, seen: Seen) -> bool | None:
    """Whether the statement with these arguments is true of an edited picture.

    Args:
        arguments: `check`, the `shape` that the instruction names, and for some checks what else they need:
            `recoloured` colour, `removed`, `moved` direction: the edit is done;
            `others_there`, `others_colour`, `others_place`: the shapes of other names are as in the source;
            `edited_colour`, `edited_place`: the named shape has the colour or the place that it had;
            `background`: it is that of the source;
            `nothing_new`: of no kind of shape there are more than in the source, and there is no new writing;
            `plain`: every shape has one known colour.
        source: what is in the source picture.
        seen: what is in the edited picture.

    Returns:
        True, False, or None where the question does not apply: the source does not show the named shape exactly once,
        or shows no other shape. A statement about something that got lost is False.

    Raises:
        InputError: unknown check, a missing argument, or one with an unknown value.
    """
    check = arguments.get("check")
    if check not in _CHECKS:
        raise InputError(f"unknown check {check!r}; known: {', '.join(_CHECKS)}")
    try:
        shape = _known(arguments, "shape", SHAPES)
        return _CHECKS[check](arguments, shape, source, seen)
    except KeyError as missing:
        raise InputError(f"check {check!r} needs the argument {missing.args[0]!r}") from None


def edit_boxes(arguments: Mapping[str, Any], source: Seen) -> list[tuple[float, float, float, float]] | None:
    """The regions that an edit may change, [left, top, right, bottom] in fractions of the picture: around the named
    shape, and where a move in `direction` takes it. None where the source does not show it exactly once.

    Raises:
        InputError: a missing argument, or one with an unknown value.
    """
    try:
        item = _only(_known(arguments, "shape", SHAPES), source)
    except KeyError as missing:
        raise InputError(f"the argument {missing.args[0]!r} is missing") from None
    if item is None:
        return None
    reach = 1.1 * RADII.get(item.size, RADII["large"])[1] + _MARGIN
    dx, dy = DIRECTIONS[_known(arguments, "direction", DIRECTIONS)] if "direction" in arguments else (0, 0)
    places = [(item.x, item.y), (item.x + MOVE * dx, item.y + MOVE * dy)][: 2 if "direction" in arguments else 1]
    boxes = [_box(x, y, reach) for x, y in places]
    # A move out of the picture ends nowhere.
    return [(left, top, right, bottom) for left, top, right, bottom in boxes if left < right and top < bottom]


def _box(x: float, y: float, reach: float) -> tuple[float, float, float, float]:
    left, top, right, bottom = (min(max(v / SIZE, 0.0), 1.0) for v in (x - reach, y - reach, x + reach, y + reach))
    return left, top, right, bottom


def _known(arguments: Mapping[str, Any], name: str, options: Any) -> str:
    value = arguments[name]
    if value not in options:
        raise InputError(f"argument {name}: unknown {value!r}; known: {', '.join(options)}")
    return value


def _of(shape: str, seen: Seen) -> list[SeenItem]:
    return [item for item in seen.items if item.shape == shape]


def _only(shape: str, seen: Seen) -> SeenItem | None:
    found = _of(shape, seen)
    return found[0] if len(found) == 1 else None


def distance(a: SeenItem, b: SeenItem) -> float:
    """Of two centres, in pixels."""
    return math.hypot(a.x - b.x, a.y - b.y)


def nearest(item: SeenItem, seen: Seen) -> SeenItem | None:
    """The shape of the same name that is nearest to where `item` was."""
    return min(_of(item.shape, seen), key=lambda other: distance(item, other), default=None)


def _recoloured(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    colour = _known(arguments, "colour", COLOURS)
    if _only(shape, source) is None:
        return None
    found = _of(shape, seen)
    return bool(found) and all(item.colour == colour for item in found)


def _removed(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    return None if _only(shape, source) is None else not _of(shape, seen)


def _moved(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    dx, dy = DIRECTIONS[_known(arguments, "direction", DIRECTIONS)]
    old, new = _only(shape, source), _of(shape, seen)
    if old is None:
        return None
    ways = [((n.x - old.x) * dx + (n.y - old.y) * dy, abs((n.x - old.x) * dy) + abs((n.y - old.y) * dx)) for n in new]
    return bool(ways) and all(MOVED[0] <= along <= MOVED[1] and across <= PLACE for along, across in ways)


def _others(shape: str, source: Seen) -> list[SeenItem]:
    return [item for item in source.items if item.shape != shape]


def _others_there(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    wanted, found = Counter(i.shape for i in _others(shape, source)), Counter(i.shape for i in seen.items)
    return wanted <= found if wanted else None


def _others_colour(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    others = _others(shape, source)
    return all(_same_colour(item, nearest(item, seen)) for item in others) if others else None


def _others_place(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    others = _others(shape, source)
    return all(_same_place(item, nearest(item, seen)) for item in others) if others else None


def _edited_colour(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    item = _only(shape, source)
    return None if item is None else _same_colour(item, nearest(item, seen))


def _edited_place(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool | None:
    item = _only(shape, source)
    return None if item is None else _same_place(item, nearest(item, seen))


def _same_colour(old: SeenItem, new: SeenItem | None) -> bool:
    return new is not None and new.colour == old.colour


def _same_place(old: SeenItem, new: SeenItem | None) -> bool:
    return new is not None and distance(old, new) <= PLACE


def _background(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool:
    return seen.background == source.background


def _nothing_new(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool:
    fits = Counter(item.shape for item in seen.items) <= Counter(item.shape for item in source.items)
    return fits and (seen.word is None or source.word is not None)


def _plain(arguments: Mapping[str, Any], shape: str, source: Seen, seen: Seen) -> bool:
    return all(OTHER not in (item.colour, item.shape) for item in seen.items)


_CHECKS = {
    "recoloured": _recoloured,
    "removed": _removed,
    "moved": _moved,
    "others_there": _others_there,
    "others_colour": _others_colour,
    "others_place": _others_place,
    "edited_colour": _edited_colour,
    "edited_place": _edited_place,
    "background": _background,
    "nothing_new": _nothing_new,
    "plain": _plain,
}
