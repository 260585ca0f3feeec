"""Which steps are stochastic and trained (Flow-GRPO-Fast; MixGRPO, arXiv 2507.21802)."""

from __future__ import annotations

import math
import random
from typing import TypeVar

from torch import Tensor

from mmrubric.errors import InputError
from pipelines import flow
from pipelines.samplers import Sampler, TokenSampler, Window

S = TypeVar("S", bound=Sampler | TokenSampler)


def window_start(window: Window, total_steps: int, seed: int, step: int) -> int:
    """First denoising step of the window at one optimisation step, the same on all ranks.

    A function of the step alone, so that nothing needs to be saved:

    - fixed: `lo`.
    - random: drawn from [lo, hi - size] by `Random(seed + step)`.
    - progressive: `lo`, then `stride` further every `iters_per_window` optimisation steps, up to hi - size.
    - decay: as progressive, but the stay at a position falls linearly with it, from `iters_per_window` at `lo` to
      `min_iters` at hi - size, rounded down: early, noisy steps shape the picture most.
    - exp_decay: as progressive, but the stay at position l is iters_per_window * exp(-decay_rate max(0, l -
      decay_from)), rounded up: full up to `decay_from`, then falling.

    Windows overlap by size - stride steps. Past the last position, `at_end` says whether the window stays there
    (clamp) or goes through all positions again from `lo` (roll_back). It is never empty or cut short.

    Source: MixGRPO, arXiv 2507.21802.

    Raises:
        InputError: the window does not fit between `lo` and the last step.
    """
    lo, hi = window.lo, window.end(total_steps)
    size = window.size or hi - lo
    if size < 1 or lo + size > hi:
        raise InputError(
            f"sampler.window: {size} steps do not fit between lo {lo} and hi {hi} of {total_steps} steps "
            "(the last step is never trained): use a smaller size or more steps"
        )
    last = hi - size
    if window.strategy == "fixed":
        return lo
    if window.strategy == "random":
        return random.Random(seed + step).randint(lo, last)
    stride = window.stride if window.overlap is None else size - window.overlap
    stays = [(start, _stay(window, start, last)) for start in (*range(lo, last, stride), last)]
    left = step % sum(count for _, count in stays) if window.at_end == "roll_back" else step
    for start, count in stays:
        if left < count:
            return start
        left -= count
    return last


def _stay(window: Window, start: int, last: int) -> int:
    """Optimisation steps that a moving window stays at `start`, at least 1."""
    most = window.iters_per_window
    if window.strategy == "decay" and last > window.lo:
        least = window.min_iters or max(1, most // 4)
        return most + (least - most) * (start - window.lo) // (last - window.lo)
    if window.strategy == "exp_decay":
        return math.ceil(most * math.exp(-window.decay_rate * max(0, start - window.decay_from)))
    return most


def at(sampler: S, seed: int, step: int) -> S:
    """The sampler of one optimisation step: its window, if any, is resolved to a fixed one."""
    if not isinstance(sampler, Sampler):
        return sampler
    window = sampler.window
    if window is None:
        return sampler
    start = window_start(window, sampler.steps, seed, step)
    size = window.size or window.end(sampler.steps) - window.lo
    fixed = Window(size=size, lo=start, hi=start + size, compression=window.compression)
    return sampler.model_copy(update={"window": fixed})


def levels(sampler: Sampler) -> Tensor:
    """Noise levels of a flow model, [T + 1] float32, see `pipelines.flow.sigmas`.

    T = `steps`, or fewer where `window.compression` shortens what follows the window. Up to the end of the window they
    are those without compression, and so are its states and log-probs.

    Raises:
        InputError: see `stochastic_steps`.
    """
    tail, window = None, sampler.window
    if window is not None and window.compression < 1:
        start = stochastic_steps(sampler)[-1] + 1
        tail = start, window.shortened(sampler.steps - start)
    return flow.sigmas(sampler.steps, sampler.shift, sampler.schedule, sampler.shift_terminal, tail)


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
    return list(range(start, start + (window.size or window.end(sampler.steps) - start)))
