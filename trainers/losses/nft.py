"""DiffusionNFT: the forward-process loss, and how advantages become its optimality r."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from trainers.losses.base import Batch, LossOut, Options, at_least_float32, expand_as, mean_dims, register

if TYPE_CHECKING:
    from pipelines.policy import StepOut

RPO_WIN, RPO_LOSS, RPO_ADVANTAGE_MAX = 1.0, -1.0, 1.0
"""RPO through this loss: r is 1 for the winner, 0 for the loser, one half (and weight 0) for a tie."""
_MIN_WEIGHT = 1e-5


class NftOptions(Options):
    """Options of `nft`."""

    beta: float = Field(default=1.0, gt=0)
    """Distance of the two implicit policies from the old one; no effect on the gradient at theta = old."""
    advantage_max: float = Field(default=5.0, gt=0)
    """Advantages are clipped to +- this and mapped to r in [0, 1]; also the factor of the loss."""


def optimality(advantage: Tensor, advantage_max: float) -> Tensor:
    """r = clip(clip(A, +-A_max) / (2 A_max) + 1/2, 0, 1), per item."""
    scaled = advantage.clamp(-advantage_max, advantage_max) / (2 * advantage_max)
    return (scaled + 0.5).clamp(0, 1)


def rpo_warnings(win: float, loss: float, options: NftOptions) -> list[str]:
    """What to tell a user at start who sends RPO advantages through this loss; empty when all is as intended.

    With RPO's own (+1, -0.1) both samples of a pair would be reinforced (r = 1 and .45).
    """
    given = (win, loss, options.advantage_max)
    if given == (RPO_WIN, RPO_LOSS, RPO_ADVANTAGE_MAX):
        return []
    r = optimality(torch.tensor([win, loss], dtype=torch.float64), options.advantage_max).tolist()
    return [
        f"rpo with nft is meant for win={RPO_WIN:g}, loss={RPO_LOSS:g}, advantage_max={RPO_ADVANTAGE_MAX:g} "
        f"(r = 1 and 0); win={win:g}, loss={loss:g}, advantage_max={options.advantage_max:g} give "
        f"r = {r[0]:.3g} for the winner and {r[1]:.3g} for the loser"
    ]


def _branch(x_t: Tensor, t: Tensor, velocity: Tensor, x0: Tensor) -> Tensor:
    """mean_dims (x0_hat - x0)^2 / w, w = max(mean_dims |x0_hat - x0|, 1e-5) in float64 without gradient."""
    error = x_t - t * velocity - x0
    with torch.no_grad():
        weight = mean_dims(error.abs().double()).clamp(min=_MIN_WEIGHT)
    return mean_dims(error.square()).double() / weight


@register(
    "nft",
    needs={"advantage", "x0", "x_t", "t", "velocity_old"},
    outputs={"velocity"},
    kind="forward",
    options=NftOptions,
    tie_weight=0.0,
)
def nft(step: StepOut, batch: Batch, options: NftOptions) -> LossOut:
    """A_max [r l(v+) + (1 - r) l(v-)] / beta, with v+- = v_old +- beta (v_theta - v_old).

    The value carries no learning signal (at theta = old it does not depend on r): plot the reward. The
    gradient is proportional to 2r - 1. Several noise levels of one image are several items.

    DiffusionNFT, arXiv 2509.16117.
    """
    assert batch.advantage is not None and batch.x0 is not None and batch.x_t is not None
    assert batch.t is not None and batch.velocity_old is not None and step.velocity is not None
    velocity = at_least_float32(step.velocity)
    old = at_least_float32(batch.velocity_old).detach()
    x0, x_t = at_least_float32(batch.x0), at_least_float32(batch.x_t)
    t = expand_as(at_least_float32(batch.t), x_t)
    change = velocity - old
    plus = _branch(x_t, t, old + options.beta * change, x0)
    minus = _branch(x_t, t, old - options.beta * change, x0)
    r = optimality(batch.advantage.double(), options.advantage_max)
    loss = (options.advantage_max / options.beta) * (r * plus + (1 - r) * minus)
    metrics = {
        "nft/old_deviate": mean_dims(change.detach().abs()),
        "nft/optimality": r.detach(),
        "nft/loss_plus": plus.detach(),
        "nft/loss_minus": minus.detach(),
    }
    return LossOut(loss.to(velocity.dtype), metrics)
