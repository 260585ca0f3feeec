"""Distances from the reference policy, each under its own name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from mmrubric.errors import InputError
from trainers.losses.base import Batch, Kind, Loss, LossOut, at_least_float32, expand_as, mean_dims, per_item, require

if TYPE_CHECKING:
    from pipelines.policy import StepOut


def gaussian(step: StepOut, batch: Batch) -> Tensor:
    """mean_dims (mean - mean_ref)^2 / (2 S^2): the KL of the two steps, per latent element. RPO's choice."""
    assert step.std is not None
    gap = _mean_gap(step, batch)
    return mean_dims((gap / expand_as(at_least_float32(step.std), gap)).square()) / 2


def mu_no_dt(step: StepOut, batch: Batch) -> Tensor:
    """`gaussian` times -dt, that is with s^2 = S^2 / (-dt) in place of S^2, for every noise schedule.

    What flow_grpo ships, so published coefficients carry over.
    """
    assert step.dt is not None
    return gaussian(step, batch) * -at_least_float32(step.dt)


def velocity(step: StepOut, batch: Batch) -> Tensor:
    """mean_dims (v - v_ref)^2."""
    assert step.velocity is not None and batch.velocity_ref is not None
    return mean_dims((at_least_float32(step.velocity) - at_least_float32(batch.velocity_ref)).square())


def sample(step: StepOut, batch: Batch) -> Tensor:
    """mean_dims (x' - x'_ref)^2 with the same noise in both, which is the squared gap of the means."""
    return mean_dims(_mean_gap(step, batch).square())


def k3(step: StepOut, batch: Batch) -> Tensor:
    """exp(d) - d - 1 with d = log p_ref - log p, mean over tokens: the k3 estimator, never negative.

    http://joschu.net/blog/kl-approx.html; GRPO, arXiv 2402.03300. d is kept within +-20.
    """
    assert step.log_prob is not None and batch.log_prob_ref is not None
    gap = (at_least_float32(batch.log_prob_ref) - at_least_float32(step.log_prob)).clamp(-20, 20)
    return per_item(LossOut(gap.exp() - gap - 1), batch.mask).loss


def _mean_gap(step: StepOut, batch: Batch) -> Tensor:
    assert step.mean is not None and batch.mean_ref is not None
    return at_least_float32(step.mean) - at_least_float32(batch.mean_ref)


class _Entry(NamedTuple):
    call: Callable[[StepOut, Batch], Tensor]
    needs: frozenset[str]
    outputs: frozenset[str]
    kinds: tuple[Kind, ...]


_KLS: dict[str, _Entry] = {
    "mu_no_dt": _Entry(mu_no_dt, frozenset({"mean_ref"}), frozenset({"mean", "std", "dt"}), ("replay",)),
    "gaussian": _Entry(gaussian, frozenset({"mean_ref"}), frozenset({"mean", "std"}), ("replay",)),
    "velocity": _Entry(velocity, frozenset({"velocity_ref"}), frozenset({"velocity"}), ("replay", "forward")),
    "sample": _Entry(sample, frozenset({"mean_ref"}), frozenset({"mean"}), ("replay",)),
    "k3": _Entry(k3, frozenset({"log_prob_ref"}), frozenset({"log_prob"}), ("replay",)),
}


@dataclass(frozen=True)
class KL:
    """A distance with its coefficient, as `build` returns it."""

    name: str
    beta: float
    needs: frozenset[str]
    """Fields of `Batch`; empty when the coefficient is 0, so that no reference pass is run."""
    outputs: frozenset[str]
    """Fields of `StepOut`; empty when the coefficient is 0."""

    @property
    def active(self) -> bool:
        """Whether the coefficient is above 0."""
        return self.beta > 0

    def __call__(self, step: StepOut, batch: Batch) -> LossOut:
        """beta times the distance, [n], to be added to the loss; metric `loss/kl_<name>` is the distance
        itself.

        Raises:
            InputError: a field is missing.
            ValueError: called with coefficient 0.
        """
        if not self.active:
            raise ValueError("KL with coefficient 0 has no value: check `active` and leave the reference pass out")
        require(f"KL {self.name!r}", batch, self.needs, "the batch")
        require(f"KL {self.name!r}", step, self.outputs, "the step")
        distance = _KLS[self.name].call(step, batch)
        return LossOut(self.beta * distance, {f"loss/kl_{self.name}": distance.detach()})


def names() -> list[str]:
    """Distances that `build` knows."""
    return list(_KLS)


def build(name: str, beta: float, loss: Loss | None = None) -> KL:
    """Build a KL term.

    Args:
        name: one of `names()`.
        beta: coefficient >= 0; 0 needs nothing and runs nothing.
        loss: the loss it is added to; a `forward` loss has no steps and takes `velocity` only.

    Raises:
        InputError: unknown name, bad coefficient, or a distance that the loss cannot have.
    """
    if name not in _KLS:
        raise InputError(f"unknown KL {name!r}; known: {', '.join(names())}")
    if not (math.isfinite(beta) and beta >= 0):
        raise InputError(f"KL coefficient {beta} must be finite and at least 0")
    entry = _KLS[name]
    if beta == 0:
        return KL(name, 0.0, frozenset(), frozenset())
    if loss is not None and loss.kind not in entry.kinds:
        fitting = ", ".join(n for n, e in _KLS.items() if loss.kind in e.kinds)
        raise InputError(f"KL {name!r} compares sampling steps, which loss {loss.name!r} has not; use: {fitting}")
    return KL(name, float(beta), entry.needs, entry.outputs)
