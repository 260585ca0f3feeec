"""Checks of option values, shared by every registered component, so that their messages read alike."""

from __future__ import annotations

import math
from collections.abc import Collection

from mmrubric.errors import InputError


def one_of(name: str, value: str, known: Collection[str]) -> str:
    """Return `value` if it is one of `known`; raise `InputError` that lists them otherwise."""
    if value not in known:
        raise InputError(f"{name}: unknown value {value!r}; known: {', '.join(sorted(known))}")
    return value


def number(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a float if it is a finite number in [low, high]; raise `InputError` otherwise."""
    # bool is an int in Python; `margin=True` is a slip, not the number 1.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{name}: {value!r} is not a finite number")
    if not low <= value <= high:
        raise InputError(f"{name}: {value!r} is outside [{low:g}, {high:g}]")
    return float(value)


def switch(name: str, value: bool) -> bool:
    """Return `value` if it is a bool; raise `InputError` otherwise."""
    if not isinstance(value, bool):
        raise InputError(f"{name}: {value!r} is neither true nor false")
    return value


def whole(name: str, value: int, low: int) -> int:
    """`value` if it is a whole number from `low` on; `InputError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(f"{name}: {value!r} is no whole number from {low} on")
    return value
