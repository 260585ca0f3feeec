"""Which steps are stochastic and trained (Flow-GRPO-Fast; MixGRPO, arXiv 2507.21802)."""

from __future__ import annotations

import random

from mmrubric.errors import InputError
from pipelines.policy import Sampler, Window


def window_start(window: Window, total_steps: int, seed: int, step: int) -> int:
    """First denoising step of the window at one optimisation step, the same on all ranks.

    fixed: lo. random: drawn from [lo, hi - size] by `Random(seed + step)`. progressive:
    min(lo + step // iters_per_window * stride, hi - size), so it stays at the end once it is there.

    Raises:
        InputError: the window does not fit between `lo` and the last step.
    """
    lo, hi = window.lo, _end(window, total_steps)
    size = window.size or hi - lo
    if size < 1 or lo + size > hi:
        raise InputError(
            f"sampler.window: {size} steps do not fit between lo {lo} and hi {hi} of {total_steps} steps "
            "(the last step is never trained): use a smaller size or more steps"
        )
    if window.strategy == "random":
        return random.Random(seed + step).randint(lo, hi - size)
    if window.strategy == "progressive":
        return min(lo + step // window.iters_per_window * window.stride, hi - size)
    return lo


def at(sampler: Sampler, seed: int, step: int) -> Sampler:
    """The sampler of one optimisation step: its window, if any, is resolved to a fixed one."""
    window = sampler.window
    if window is None:
        return sampler
    start = window_start(window, sampler.steps, seed, step)
    size = window.size or _end(window, sampler.steps) - window.lo
    return sampler.model_copy(update={"window": Window(size=size, lo=start, hi=start + size)})


def stochastic_steps(sampler: Sampler) -> list[int]:
    """Steps that draw noise: those of the window, without the last step; none for an ODE.

    Raises:
        InputError: the window does not fit, or moves and was not resolved by `at`.
    """
    if not sampler.stochastic:
        return []
    window = sampler.window or Window()
    if window.strategy != "fixed":
        raise InputError(
            f"sampler.window.strategy '{window.strategy}' depends on the optimisation step: "
            "pass `pipelines.windows.at(sampler, seed, step)`"
        )
    if sampler.window is None and sampler.steps == 1:
        return []
    start = window_start(window, sampler.steps, 0, 0)
    return list(range(start, start + (window.size or _end(window, sampler.steps) - start)))


def _end(window: Window, total_steps: int) -> int:
    last = total_steps - 1
    return last if window.hi is None else min(window.hi, last)
