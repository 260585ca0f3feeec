"""The clipped policy loss and its GRPO-Guard variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from mmrubric.errors import InputError
from trainers.losses.base import (
    Batch,
    LossOut,
    Options,
    at_least_float32,
    expand_as,
    mean_dims,
    per_item,
    register,
)

if TYPE_CHECKING:
    from pipelines.policy import StepOut

_MAX_LOG_RATIO = 20.0


class ClipOptions(Options):
    """Options of `clip` and `guard`."""

    clip: float = Field(default=1e-4, gt=0, lt=1)
    """Lower clip of the ratio: 1 - clip. Small, because log-probs are means over latent dimensions."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip: 1 + clip_high; None = the same as `clip`."""
    delta: float | None = Field(default=None, gt=1)
    """Two-sided clipping: cap of the ratio in the unclipped term (it acts on negative advantages), above
    1 + clip_high; None = no cap. TRL's `delta`, the dual clip of 1912.09729."""
    advantage_clip: float | None = Field(default=5.0, gt=0)
    """Advantages are clamped to +- this first; None = no clamp."""
    ratio: Literal["token", "sequence"] = "token"
    """Token models: the ratio of each token, or of the whole sample by its mean log-ratio (GSPO, arXiv 2507.18071)."""

    @model_validator(mode="after")
    def _delta_above_clip(self) -> ClipOptions:
        if self.delta is not None and self.delta <= 1 + self.high:
            raise ValueError(f"delta {self.delta} must be above 1 + clip_high = {1 + self.high}, or it undoes the clip")
        return self

    @property
    def high(self) -> float:
        return self.clip if self.clip_high is None else self.clip_high


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, options: ClipOptions) -> LossOut:
    """max(-A min(rho, delta), -A clip(rho, 1 - clip, 1 + clip_high)) per element, with rho = exp(log_ratio).

    The log-ratio is kept within +-20, so that a diverging policy gives a large loss and never inf or NaN.

    Args:
        log_ratio: [n] or [n, T].
        advantage: of the same shape, or [n, 1].
        options: clip ranges.

    Returns:
        Loss in the shape of `log_ratio`; metrics `loss/ratio` and `loss/clip_fraction` (1 where the clip stops the
        gradient).
    """
    advantage = advantage.to(log_ratio.dtype)
    if options.advantage_clip is not None:
        advantage = advantage.clamp(-options.advantage_clip, options.advantage_clip)
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    free = ratio if options.delta is None else ratio.clamp(max=options.delta)
    bounded = ratio.clamp(1 - options.clip, 1 + options.high)
    loss = torch.maximum(-advantage * free, -advantage * bounded)
    with torch.no_grad():
        stopped = ((ratio > 1 + options.high) & (advantage > 0)) | ((ratio < 1 - options.clip) & (advantage < 0))
        if options.delta is not None:
            stopped |= (ratio > options.delta) & (advantage < 0)
    return LossOut(loss, {"loss/ratio": ratio.detach(), "loss/clip_fraction": stopped.to(ratio.dtype)})


@register("clip", needs={"advantage", "old_log_prob"}, outputs={"log_prob"}, kind="replay", options=ClipOptions)
def clip(step: StepOut, batch: Batch, options: ClipOptions) -> LossOut:
    """PPO clip: of flow models on the ratio of mean-reduced log-probs, of token models on each token's (mean over
    tokens).

    Flow-GRPO, arXiv 2505.05470; RPO, arXiv 2605.08354 (clip 0.2, advantages +1 and -0.1); RubricRL, arXiv 2511.20651.
    """
    assert batch.advantage is not None
    return _surrogate(step, batch, batch.advantage, options)


def _surrogate(step: StepOut, batch: Batch, advantage: Tensor, options: ClipOptions) -> LossOut:
    """The clipped loss [n]; advantage [n], or [n, T] with ratio `token`."""
    assert step.log_prob is not None and batch.old_log_prob is not None
    if step.log_prob.shape != batch.old_log_prob.shape:
        raise InputError(
            f"log_prob has shape {tuple(step.log_prob.shape)}, old_log_prob {tuple(batch.old_log_prob.shape)}"
        )
    log_ratio = at_least_float32(step.log_prob) - at_least_float32(batch.old_log_prob)
    importance = batch.importance
    if options.ratio == "sequence":
        log_ratio = per_item(LossOut(log_ratio), batch.mask).loss
    out = clipped_surrogate(log_ratio, advantage if advantage.ndim > 1 else expand_as(advantage, log_ratio), options)
    return per_item(_weighed(out, importance), batch.mask)


def _weighed(out: LossOut, importance: Tensor | None) -> LossOut:
    return out if importance is None else LossOut(out.loss * importance, out.metrics)


class PpoOptions(ClipOptions):
    """Options of `ppo`."""

    clip: float = Field(default=0.2, gt=0, lt=1)
    value_coefficient: float = Field(default=0.5, gt=0)
    """Weight of the value head's squared error."""
    ratio: Literal["token"] = "token"
    """Each token has an advantage of its own."""


@register(
    "ppo",
    needs={"advantage", "old_log_prob", "old_value"},
    outputs={"log_prob", "value"},
    kind="replay",
    options=PpoOptions,
)
def ppo(step: StepOut, batch: Batch, options: PpoOptions) -> LossOut:
    """PPO with a value head, gamma = lambda = 1 and the reward R at the last token: A_t = R - V_old(s_t).

    clip(A_t) + value_coefficient (V(s_t) - R)^2, mean over tokens. `Batch.advantage` holds R.

    PPO, arXiv 1707.06347; RubricRL, arXiv 2511.20651.
    """
    assert batch.advantage is not None and batch.old_value is not None and step.value is not None
    value = at_least_float32(step.value)
    reward = batch.advantage.to(value.dtype).unsqueeze(1)
    out = _surrogate(step, batch, reward - at_least_float32(batch.old_value), options)
    error = per_item(LossOut((value - reward).square(), {"loss/value_mean": value.detach()}), batch.mask)
    metrics = {**out.metrics, **error.metrics, "loss/value_error": error.loss.detach()}
    return LossOut(out.loss + options.value_coefficient * error.loss, metrics)


class GuardOptions(ClipOptions):
    """Options of `guard`: those of `clip`, with the published clip."""

    clip: float = Field(default=2e-6, gt=0, lt=1)
    ratio: Literal["token"] = "token"
    """Fixed: this loss is for flow models."""


def guard_log_ratio(step: StepOut, batch: Batch) -> Tensor:
    """(delta log p + b) S per item, with b = mean_dims(mean - old_mean)^2 / (2 S^2) and S the item's own std.

    Equals mean_dims(noise * (mean - old_mean)) with the rollout's noise, whatever the step: zero mean and one
    scale for all steps. b and S belong to the item; upstream averages them over the micro-batch, which is
    wrong when steps are mixed (known failure TF15).
    """
    assert step.log_prob is not None and step.mean is not None and step.std is not None
    assert batch.old_log_prob is not None and batch.old_mean is not None
    std = at_least_float32(step.std)
    gap = at_least_float32(step.mean) - at_least_float32(batch.old_mean)
    bias = mean_dims((gap / expand_as(std, gap)).square()) / 2
    return (at_least_float32(step.log_prob) - at_least_float32(batch.old_log_prob) + bias) * std


@register(
    "guard",
    needs={"advantage", "old_log_prob", "old_mean"},
    outputs={"log_prob", "mean", "std", "dt"},
    kind="replay",
    options=GuardOptions,
)
def guard(step: StepOut, batch: Batch, options: GuardOptions) -> LossOut:
    """Clip on the normalised ratio, then divided by -dt so that every step has the same gradient scale.

    GRPO-Guard, arXiv 2510.22319. Needs the Gaussian log-prob.
    """
    assert batch.advantage is not None and step.dt is not None
    out = _weighed(clipped_surrogate(guard_log_ratio(step, batch), batch.advantage, options), batch.importance)
    return LossOut(out.loss / -at_least_float32(step.dt), out.metrics)
