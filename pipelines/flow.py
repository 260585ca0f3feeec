"""The step of a rectified flow: pure functions of tensors, indexed by integer step, no scheduler object.

Convention: x_sigma = (1 - sigma) x0 + sigma e, velocity v = e - x0, sigma runs from 1 to 0 and
dt = sigma' - sigma < 0. Every step is linear, x' = x_scale * x + v_scale * v + std * noise, so that Flow-SDE,
Dance, CPS and the ODE differ by three numbers per step only, and sampling and replay do the same arithmetic.
All of it is float32 (float64 stays).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrubric.errors import InputError

NOISES = ("ode", "sde", "dance", "cps")
SCHEDULES = ("linear", "diffusers")
_TRAIN_STEPS = 1000
"""Length of the training schedule of `FlowMatchEulerDiscreteScheduler`; its last noise level is 1 / 1000."""


def sigmas(
    steps: int,
    shift: float = 1.0,
    schedule: str = "linear",
    terminal: float | None = None,
    tail: tuple[int, int] | None = None,
) -> Tensor:
    """Noise levels from exactly 1 to 0, [steps + 1] float32.

    linear: 1 - k / steps, then s * sigma / (1 + (s - 1) * sigma). This is what diffusers' scheduler makes of
    `sigmas=np.linspace(1, 1 / steps, steps)`.
    diffusers: what `FlowMatchEulerDiscreteScheduler.set_timesteps(steps)` makes by itself: equal distances
    from 1 to the shifted 1 / 1000, shifted (again), then 0.
    terminal: after the shift, distances from 1 are scaled so that the last level before 0 is this one
    (`shift_terminal` of the scheduler; Qwen-Image, arXiv 2508.02324, is deployed with 0.02).
    tail: (start, count): `count` steps take the place of all from number `start` on, at equal distances before the
    shift; the levels up to `start` stay as they are, bit for bit. MixGRPO-Flash, arXiv 2507.21802.

    Raises:
        InputError: no steps, a shift that is not positive, an unknown schedule, a terminal outside (0, 1) or
            one for a single step, a tail of no step or of more steps than there are.
    """
    if steps < 1 or not shift > 0:
        raise InputError(f"sigmas need steps >= 1 and shift > 0, not {steps} and {shift}")
    if schedule not in SCHEDULES:
        raise InputError(f"unknown schedule '{schedule}': known are {', '.join(SCHEDULES)}")
    if schedule == "linear":
        levels = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)[:-1]
    else:
        lowest = _shifted(torch.tensor(1.0 / _TRAIN_STEPS, dtype=torch.float64), shift)
        levels = torch.linspace(1.0, float(lowest), steps, dtype=torch.float64)
    last = _shifted(levels[-1], shift)
    if tail is not None:
        levels = _thinned(levels, *tail)
    levels = _shifted(levels, shift)
    if terminal is not None:
        if steps < 2 or not 0.0 < terminal < 1.0:
            raise InputError(f"shift_terminal {terminal} must be in (0, 1) and needs 2 or more steps, not {steps}")
        levels = 1.0 - (1.0 - levels) * ((1.0 - terminal) / (1.0 - last))
    levels = torch.cat([levels, levels.new_zeros(1)])
    levels[0] = 1.0
    return check_sigmas(levels.float())


def _shifted(levels: Tensor, shift: float) -> Tensor:
    return shift * levels / (1.0 + (shift - 1.0) * levels)


def _thinned(levels: Tensor, start: int, count: int) -> Tensor:
    """Levels [start + count] of [steps], the last ones at equal distances of the number of the step."""
    steps = len(levels)
    if not 0 <= start < steps or not 1 <= count <= steps - start:
        raise InputError(f"a tail of {count} steps from step {start} on does not fit {steps} steps")
    places = start + (steps - start) * torch.arange(count, dtype=torch.float64) / count
    below = places.floor().long()
    above = (below + 1).clamp(max=steps - 1)
    return torch.cat([levels[:start], levels[below] + (places - below) * (levels[above] - levels[below])])


def check_sigmas(levels: Tensor) -> Tensor:
    """Return the noise levels if they start at exactly 1 and fall to exactly 0.

    A first level of .9999 makes the first step's noise many times too large, and one above 1 makes it NaN.

    Raises:
        InputError: otherwise.
    """
    falling = bool((levels[1:] < levels[:-1]).all())
    if len(levels) < 2 or not falling or float(levels[0]) != 1.0 or float(levels[-1]) != 0.0:
        raise InputError(f"noise levels must fall from exactly 1 to exactly 0, not {levels.tolist()}")
    return levels


@dataclass(frozen=True)
class StepTable:
    """Coefficients of each step, all [T] float64 on the CPU: mean = x_scale * x + v_scale * v."""

    x_scale: Tensor
    v_scale: Tensor
    std: Tensor
    sigma: Tensor
    dt: Tensor
    history: Tensor | None = None
    """Of a multistep solver: history * (x0 - x0 of the step before) is added to the mean, with estimates
    x0 = x - sigma v."""


def check_noise(noise: str) -> None:
    """Raise InputError for a noise that flow models do not know."""
    if noise not in NOISES:
        raise InputError(f"unknown noise '{noise}' of a flow model: known are {', '.join(NOISES)}")


def step_table(levels: Tensor, noise: str, level: float, stochastic: Sequence[int]) -> StepTable:
    """Coefficients of every step of a schedule.

    With s the noise rate (sde: a * sqrt(sigma / (1 - sigma_hat)), where sigma_hat is sigma, or the second
    level where sigma is 1; dance: eta): std = s sqrt(-dt) and
    mean = x (1 + s^2 dt / (2 sigma)) + v (1 + s^2 (1 - sigma) / (2 sigma)) dt.
    cps: with the estimates x0 = x - sigma v and x1 = x + (1 - sigma) v, std = sigma' sin(a pi / 2) and
    mean = (1 - sigma') x0 + sigma' cos(a pi / 2) x1. Other steps: Euler, std = 0.

    Args:
        levels: [T + 1], see `check_sigmas`.
        noise: ode, sde, dance or cps.
        level: a or eta.
        stochastic: steps that draw noise; the last step cannot.

    Raises:
        InputError: an unknown noise, a wrong schedule or a stochastic last step.

    Flow-GRPO arXiv 2505.05470, DanceGRPO arXiv 2505.07818, CPS arXiv 2509.05952.
    """
    check_noise(noise)
    levels = check_sigmas(levels).double().cpu()
    sigma, after = levels[:-1], levels[1:]
    dt = after - sigma
    x_scale, v_scale, std = torch.ones_like(dt), dt.clone(), torch.zeros_like(dt)
    chosen = torch.tensor(sorted(stochastic), dtype=torch.long)
    if len(chosen) and int(chosen[-1]) >= len(dt) - 1:
        raise InputError(f"step {int(chosen[-1])} of {len(dt)} cannot be stochastic: the last step is deterministic")
    if noise == "ode" or len(chosen) == 0:
        return StepTable(x_scale, v_scale, std, sigma, dt)
    s, s_after, s_dt = sigma[chosen], after[chosen], dt[chosen]
    if noise == "cps":
        angle = level * math.pi / 2
        keep = s_after * math.cos(angle)
        x_scale[chosen] = (1 - s_after) + keep
        v_scale[chosen] = keep * (1 - s) - (1 - s_after) * s
        std[chosen] = s_after * math.sin(angle)
    else:
        hat = torch.where(s == 1.0, levels[1], s)
        rate = level * (s / (1 - hat)).sqrt() if noise == "sde" else torch.full_like(s, level)
        x_scale[chosen] = 1 + rate**2 * s_dt / (2 * s)
        v_scale[chosen] = (1 + rate**2 * (1 - s) / (2 * s)) * s_dt
        std[chosen] = rate * (-s_dt).sqrt()
    return StepTable(x_scale, v_scale, std, sigma, dt)


def second_order(table: StepTable, start: int) -> StepTable:
    """The table with DPM-Solver++(2M), midpoint, from step `start` on, all of which are deterministic.

    With lambda = ln((1 - sigma) / sigma) and h = lambda' - lambda, a first-order step is Euler's, and one of second
    order adds -dt / sigma * h / (2 h_before) * (x0 - x0_before). The first step has no step before it: noise was drawn
    between the estimates, so that their difference would be no derivative along the path. The last one, at whose end
    lambda is infinite, is Euler's too.

    DPM-Solver++, arXiv 2211.01095.
    """
    history = torch.zeros_like(table.sigma)
    log_ratio = torch.log((1 - table.sigma) / table.sigma)
    here = torch.arange(len(history))[start + 1 : -1]
    growth = (log_ratio[here + 1] - log_ratio[here]) / (log_ratio[here] - log_ratio[here - 1])
    history[here] = -table.dt[here] / table.sigma[here] * growth / 2
    return replace(table, history=history)


def step_mean(x: Tensor, velocity: Tensor, table: StepTable, steps: Tensor) -> Tensor:
    """Mean of the next state, [n, ...] float32 (float64 if `x` is), of items [n, ...] at whole steps [n]."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    x_scale, v_scale = (_per_item(values, steps, x, dtype) for values in (table.x_scale, table.v_scale))
    return x_scale * x.to(dtype) + v_scale * velocity.to(dtype)


def at_steps(values: Tensor, steps: Tensor, like: Tensor) -> Tensor:
    """Entries [n] of a table column, on the device of `like`, in float32 (float64 if `like` is)."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return values[steps.cpu()].to(device=like.device, dtype=dtype)


def _per_item(values: Tensor, steps: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    return at_steps(values, steps, like).to(dtype).reshape(-1, *([1] * (like.dim() - 1)))


def log_prob(action: Tensor, mean: Tensor, std: Tensor, form: str = "gaussian") -> Tensor:
    """Log density of the step taken, averaged (not summed) over all elements of an item, [n].

    gaussian: -(x' - mean)^2 / (2 std^2) - ln std - ln(2 pi) / 2. cps: -(x' - mean)^2, the published form
    without its constants. The gradient flows through `mean` alone.

    Raises:
        InputError: an unknown form, or std 0 (a deterministic step has no density).
    """
    if form not in ("gaussian", "cps"):
        raise InputError(f"unknown log_prob '{form}': known are gaussian, cps")
    if bool((std <= 0).any()):
        raise InputError(
            "a deterministic step has no log-prob: sample with noise 'sde', 'dance' or 'cps' and level > 0"
        )
    square = ((action.detach() - mean) ** 2).flatten(1).mean(1)
    if form == "cps":
        return -square
    return -square / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Path:
    """What a walk from noise to sample leaves; K recorded steps, None = not recorded."""

    final: Tensor
    """[n, ...]."""
    states: Tensor | None
    """[n, K, ...] before each stochastic step."""
    actions: Tensor | None
    """[n, K, ...] after it."""
    log_probs: Tensor | None
    """[n, K]."""
    means: Tensor | None
    """[n, K, ...]."""


def walk(
    velocity: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    draw: Callable[[], Tensor],
    table: StepTable,
    record: frozenset[str] = frozenset(),
    form: str = "gaussian",
) -> Path:
    """Follow the schedule from initial noise to a sample.

    Args:
        velocity: (x [n, ...], sigma [n]) -> [n, ...].
        x: initial noise [n, ...].
        draw: noise [n, ...] for the next stochastic step, one call per such step.
        table: steps; those with std above 0 are stochastic.
        record: of states (and actions), log_prob, mean.
        form: see `log_prob`.
    """
    states, actions, log_probs, means = [], [], [], []
    history = [0.0] * len(table.std) if table.history is None else table.history.tolist()
    before = None
    for number, step_std in enumerate(table.std.tolist()):
        steps = torch.full((len(x),), number)
        sigma = at_steps(table.sigma, steps, x)
        v = velocity(x, sigma)
        mean = step_mean(x, v, table, steps)
        if table.history is not None:
            estimate = x - _per_item(table.sigma, steps, x, x.dtype) * v
            if before is not None and history[number]:
                mean = mean + history[number] * (estimate - before)
            before = estimate
        if step_std == 0.0:
            x = mean
            continue
        std = at_steps(table.std, steps, x)
        action = mean + std.reshape(-1, *([1] * (x.dim() - 1))) * draw()
        if "states" in record:
            states.append(x)
            actions.append(action)
        if "mean" in record:
            means.append(mean)
        if "log_prob" in record:
            log_probs.append(log_prob(action, mean, std, form))
        x = action
    return Path(x, *(torch.stack(items, 1) if items else None for items in (states, actions, log_probs, means)))
