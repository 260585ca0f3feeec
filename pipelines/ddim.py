"""The step of a denoising diffusion model (DDIM): pure functions, beside `pipelines.flow`, whose steps they share.

Convention: x_t = sqrt(abar_t) x0 + sqrt(1 - abar_t) e with integer timesteps t of N, and the network gives e
(`epsilon`) or v = sqrt(abar) e - sqrt(1 - abar) x0 (`v_prediction`). A level of the schedule is t / N, so a schedule
falls from about 1 to 0 as that of a flow does; in float32 it gives t back exactly. The step, too, is linear in x and
the network's output, so walking, replay and log-probs are those of `pipelines.flow`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrubric.errors import InputError
from pipelines.flow import StepTable
from pipelines.samplers import Sampler

PREDICTIONS = ("epsilon", "v_prediction")
NOISES = ("ode", "ddim")
LACKS = frozenset({"velocity", "dt"})
"""Fields of `StepOut` that these models do not have: both belong to the time of a flow."""


def check_sampler(sampler: Sampler) -> None:
    """Refuse what acts on flow models only.

    Raises:
        InputError: names the options.
    """
    if sampler.noise not in NOISES:
        raise InputError(f"sampler.noise '{sampler.noise}' is for flow models: this model takes {' or '.join(NOISES)}")
    plain = Sampler()
    names = ("shift", "shift_terminal", "schedule", "solver")
    odd = [name for name in names if getattr(sampler, name) != getattr(plain, name)]
    if sampler.max_sequence_length:
        odd.append("max_sequence_length")
    if odd:
        listed = ", ".join(f"sampler.{name}" for name in odd)
        raise InputError(
            f"{listed} is set, but this model takes DDIM's steps, the timesteps of its own scheduler and CLIP's text: "
            "leave it out"
        )


def step_table(
    levels: Tensor,
    alpha_bar: Tensor,
    last_alpha_bar: float,
    noise: str,
    eta: float,
    stochastic: Sequence[int],
    prediction: str = "epsilon",
) -> StepTable:
    """Coefficients of every step: mean = x_scale x + v_scale (network's output).

    With a = abar_t, a' = abar_t' and t' = t - N // T: s = eta sqrt((1 - a') / (1 - a) (1 - a / a')) is the std of a
    stochastic step, 0 that of the others, and the mean is sqrt(a') x0 + sqrt(1 - a' - s^2) e with the estimates x0 and
    e from the network's output. t' below 0 has `last_alpha_bar`; for a stochastic step, which would lose its noise by
    that, it is 0 instead.

    Args:
        levels: [T + 1], timesteps t / N and 0.
        alpha_bar: [N], cumulative products of the training schedule.
        last_alpha_bar: of what the last step leads to.
        noise: ode or ddim.
        eta: in [0, 1].
        stochastic: steps that draw noise; the last step cannot.
        prediction: epsilon or v_prediction.

    Raises:
        InputError: an unknown noise or prediction, a stochastic last step, or timesteps without any signal that an
            epsilon model cannot start from.

    DDIM arXiv 2010.02502, DDPO arXiv 2305.13301.
    """
    if noise not in NOISES:
        raise InputError(f"unknown noise '{noise}': known are {', '.join(NOISES)}")
    if prediction not in PREDICTIONS:
        raise InputError(f"unknown prediction_type '{prediction}': known are {', '.join(PREDICTIONS)}")
    alpha_bar, levels = alpha_bar.double().cpu(), levels.double().cpu()
    t = timesteps(levels[:-1], len(alpha_bar))
    before = t - len(alpha_bar) // len(t)
    chosen = torch.tensor(sorted(stochastic) if noise == "ddim" else [], dtype=torch.long)
    if len(chosen) and int(chosen[-1]) >= len(t) - 1:
        raise InputError(f"step {int(chosen[-1])} of {len(t)} cannot be stochastic: the last step is deterministic")
    before[chosen] = before[chosen].clamp(min=0)
    a = alpha_bar[t]
    a_next = torch.where(before >= 0, alpha_bar[before.clamp(min=0)], last_alpha_bar)
    if prediction == "epsilon" and bool((a == 0).any()):
        raise InputError(
            "the schedule starts from zero signal (rescale_betas_zero_snr): that takes a v_prediction model"
        )
    std = torch.zeros_like(a)
    std[chosen] = eta * ((1 - a_next) / (1 - a) * (1 - a / a_next))[chosen].sqrt()
    to_noise = (1 - a_next - std**2).clamp(min=0).sqrt()
    if prediction == "epsilon":
        x_scale = (a_next / a).sqrt()
        v_scale = to_noise - (a_next * (1 - a) / a).sqrt()
    else:
        x_scale = (a_next * a).sqrt() + to_noise * (1 - a).sqrt()
        v_scale = to_noise * a.sqrt() - (a_next * (1 - a)).sqrt()
    return StepTable(x_scale, v_scale, std, levels[:-1], levels[1:] - levels[:-1])


def timesteps(levels: Tensor, train_steps: int) -> Tensor:
    """Integer timesteps, int64, of levels t / N."""
    return (levels * train_steps).round().long()
