"""How fast the old policy of DiffusionNFT follows the trained one."""

from __future__ import annotations

from collections.abc import Callable

from mmrubric.errors import InputError

Decay = Callable[[int], float]
"""step (>= 0) -> d in [0, 1]: v_old <- d v_old + (1 - d) v_theta. 0 copies, 1 never moves."""


def type0(step: int) -> float:
    """0: the old policy is the trained one of the last update."""
    return 0.0


def type1(step: int) -> float:
    """min(0.001 step, 0.5): the GenEval recipe."""
    return min(0.001 * step, 0.5)


def type2(step: int) -> float:
    """0 up to step 75, then min(0.0075 (step - 75), 0.999): the OCR recipe."""
    return min(max(0.0075 * (step - 75), 0.0), 0.999)


_DECAYS: dict[str, Decay] = {"type0": type0, "type1": type1, "type2": type2}


def names() -> list[str]:
    """Schedules that `build` knows."""
    return [*_DECAYS, "constant"]


def build(name: str, value: float | None = None) -> Decay:
    """Decay schedule of the old policy.

    Args:
        name: `type0`, `type1`, `type2` (published) or `constant`.
        value: d in [0, 1) for `constant`, refused for the others.

    Raises:
        InputError: unknown name, or a value that is missing, out of range or without effect.
    """
    if name == "constant":
        if value is None or not 0 <= value < 1:
            raise InputError(f"old-policy decay 'constant' needs a value in [0, 1), not {value}")
        return lambda step: value
    if name not in _DECAYS:
        raise InputError(f"unknown old-policy decay {name!r}; known: {', '.join(names())}")
    if value is not None:
        raise InputError(f"old-policy decay {name!r} takes no value (given: {value}); only 'constant' does")
    return _DECAYS[name]
