"""Why a verdict of the judge of shapes is what it is, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmrubric.shapes import OTHER, Seen, SeenItem
from mmrubric.shapes.checks import related
from mmrubric.shapes.grammar import PLURALS


def explain(arguments: Mapping[str, Any], seen: Seen) -> str:
    """What was seen that decides the statement with these arguments (see `mmrubric.shapes.holds`)."""
    return _REASONS[arguments["check"]](arguments, seen)


def _noun(shape: str | None, number: int) -> str:
    if shape is None:
        return "shape" if number == 1 else "shapes"
    return shape if number == 1 else PLURALS.get(shape, shape + "s")


def _of(shape: str | None, seen: Seen) -> list[SeenItem]:
    return [item for item in seen.items if shape is None or item.shape == shape]


def _named(item: SeenItem) -> str:
    colour = "oddly coloured" if item.colour == OTHER else item.colour
    return f"{colour} {'blob' if item.shape == OTHER else item.shape}"


def _list(items: list[SeenItem]) -> str:
    return ", ".join(_named(item) for item in items) or "nothing"


def _count(arguments: Mapping[str, Any], seen: Seen) -> str:
    shape = arguments.get("shape")
    items = _of(shape, seen)
    detail = [item.colour if shape else _named(item) for item in items]
    return f"{len(items)} {_noun(shape, len(items))} seen" + (f": {', '.join(detail)}" if detail else "")


def _attribute(field: str) -> Callable[[Mapping[str, Any], Seen], str]:
    def reason(arguments: Mapping[str, Any], seen: Seen) -> str:
        shape = arguments["shape"]
        items = _of(shape, seen)
        if not items:
            return f"no {_noun(shape, 1)} seen"
        return f"{_noun(shape, len(items))} seen: {', '.join(getattr(item, field) for item in items)}"

    return reason


def _relation(arguments: Mapping[str, Any], seen: Seen) -> str:
    first, second, relation = arguments["first"], arguments["second"], arguments["relation"]
    for shape in (first, second):
        if not _of(shape, seen):
            return f"no {shape} seen"
    pairs = [(a, b) for a in _of(first, seen) for b in _of(second, seen) if a is not b]
    if not pairs:
        return f"only one {first} seen"
    best = next((pair for pair in pairs if related(relation, *pair)), pairs[0])
    dx, dy = round(best[1].x - best[0].x), round(best[1].y - best[0].y)
    across = f"{abs(dx)} pixels {'right' if dx >= 0 else 'left'}"
    down = f"{abs(dy)} pixels {'down' if dy >= 0 else 'up'}"
    return f"from the {first} to the {second}: {across}, {down}"


def _background(arguments: Mapping[str, Any], seen: Seen) -> str:
    return "the background has no known colour" if seen.background == OTHER else f"the background is {seen.background}"


def _writing(arguments: Mapping[str, Any], seen: Seen) -> str:
    if seen.word is None:
        return "no writing seen"
    return f'"{seen.word}" is written' if seen.word else "the writing cannot be read"


def _writing_colour(arguments: Mapping[str, Any], seen: Seen) -> str:
    if seen.word is None:
        return "no writing seen"
    return "the writing has no known colour" if seen.word_colour == OTHER else f"the writing is {seen.word_colour}"


def _nothing_else(arguments: Mapping[str, Any], seen: Seen) -> str:
    extra = [item for item in seen.items if item.shape not in arguments["shapes"]]
    writing = seen.word is not None and not arguments["word"]
    if not extra:
        return "also seen: writing" if writing else "nothing else seen"
    return f"also seen: {_list(extra)}" + (" and writing" if writing else "")


_REASONS: dict[str, Callable[[Mapping[str, Any], Seen], str]] = {
    "object": _count,
    "count": _count,
    "colour": _attribute("colour"),
    "size": _attribute("size"),
    "relation": _relation,
    "background": _background,
    "text": _writing,
    "writing": _writing,
    "writing_colour": _writing_colour,
    "nothing_else": _nothing_else,
}
