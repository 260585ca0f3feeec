"""What every loss shares: the batch it reads, what it returns, the registry, and the one reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from mmrubric.errors import InputError

if TYPE_CHECKING:
    from pipelines.policy import StepOut
    from pipelines.samplers import Sampler, TokenSampler

Kind = Literal["replay", "forward"]
FLOW_OUTPUTS = frozenset({"log_prob", "mean", "std", "dt", "velocity", "sigma"})
TOKEN_OUTPUTS = frozenset({"log_prob", "value", "logits"})
"""Fields of `StepOut` that each sort of generator can give."""


class Options(BaseModel):
    """Base of every loss's options: unknown keys are refused, values cannot change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass
class Batch:
    """n trained items. `replay` losses see (row, step) pairs, `forward` losses (row, noise level) pairs; of token
    models an item is a whole row of T tokens, and log-probs are [n, T].

    A field is None where the loss at hand does not need it (`Loss.needs` names those that it does).
    """

    advantage: Tensor | None = None
    """[n]; 0 = no signal. What the sample deserves, the same at each of its steps. With `ppo` its reward."""
    weight: Tensor | None = None
    """[n]; 0 = masked (judge failed, or padding). Used by `weighted_sum`, never by a loss itself."""
    mask: Tensor | None = None
    """[n, T] bool, of token models: False = forced by the layout, outside every mean over tokens."""
    old_log_prob: Tensor | None = None
    """[n] or [n, T], of the policy before the update; of a flow model the mean over latent dimensions."""
    importance: Tensor | None = None
    """[n] or [n, T] (as the loss has its ratio), truncated probability ratio of the policy before the update to what
    sampled, where they differ."""
    log_prob_ref: Tensor | None = None
    """[n, T], of the reference."""
    old_value: Tensor | None = None
    """[n, T], value head before the update."""
    old_mean: Tensor | None = None
    """[n, ...], step mean of the policy that sampled."""
    state: Tensor | None = None
    """[n, ...], latents before the step."""
    action: Tensor | None = None
    """[n, ...], latents after the step."""
    x0: Tensor | None = None
    """[n, ...], final latents of the row."""
    x_t: Tensor | None = None
    """[n, ...], x0 noised to level t: (1 - t) x0 + t noise."""
    t: Tensor | None = None
    """[n], noise level in (0, 1]."""
    velocity_old: Tensor | None = None
    """[n, ...], velocity of the old policy at (x_t, t)."""
    velocity_ref: Tensor | None = None
    """[n, ...], velocity of the reference at the item's point."""
    mean_ref: Tensor | None = None
    """[n, ...], step mean of the reference."""

    def __post_init__(self) -> None:
        sizes = {f.name: len(v) for f in fields(self) if (v := getattr(self, f.name)) is not None}
        if len(set(sizes.values())) > 1:
            raise InputError(f"batch fields differ in their number of items: {sizes}")

    def __len__(self) -> int:
        return next((len(v) for f in fields(self) if (v := getattr(self, f.name)) is not None), 0)

    def take(self, index: Tensor | slice) -> Batch:
        """The items at `index` (a LongTensor, a mask or a slice)."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{name: None if value is None else value[index] for name, value in values.items()})


@dataclass
class LossOut:
    """Per item, neither reduced nor weighted."""

    loss: Tensor
    """[n], with gradient."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """name -> [n], detached. Average them with the items' weights."""


class LossFunction(Protocol):
    """What `register` takes."""

    def __call__(self, step: StepOut, batch: Batch, options: Any) -> LossOut: ...


class _Entry(NamedTuple):
    call: LossFunction
    needs: frozenset[str]
    outputs: frozenset[str]
    kind: Kind
    options: type[Options]
    tie_weight: float


_LOSSES: dict[str, _Entry] = {}


def register(
    name: str,
    *,
    needs: Iterable[str],
    outputs: Iterable[str],
    kind: Kind,
    options: type[Options],
    tie_weight: float = 1.0,
) -> Callable[[LossFunction], LossFunction]:
    """Make a loss buildable by name.

    Args:
        needs: fields of `Batch` that it reads.
        outputs: fields of `StepOut` that it reads, with gradient.
        kind: `replay` evaluates stored steps, `forward` freshly noised final samples.
        options: its typed options.
        tie_weight: weight of a row whose advantage is 0 because there was nothing to prefer.
    """

    def add(call: LossFunction) -> LossFunction:
        if name in _LOSSES:
            raise ValueError(f"loss {name!r} is registered twice")
        _LOSSES[name] = _Entry(call, frozenset(needs), frozenset(outputs), kind, options, tie_weight)
        return call

    return add


def names() -> list[str]:
    """Losses that `build` knows."""
    return sorted(_LOSSES)


def parse_options(model: type[Options], what: str, given: dict[str, Any]) -> Any:
    """Options as a typed object; an unknown or bad one is an `InputError` that lists the known ones."""
    try:
        return model(**given)
    except ValidationError as error:
        known = ", ".join(model.model_fields) or "none"
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg']}" for e in error.errors())
        raise InputError(f"{what}: {faults} (known options: {known})") from error


def require(what: str, owner: object, wanted: Iterable[str], where: str) -> None:
    """Raise an `InputError` that names every field in `wanted` which `owner` lacks."""
    missing = sorted(name for name in wanted if getattr(owner, name, None) is None)
    if missing:
        raise InputError(f"{what} needs {', '.join(missing)} in {where}, which were not recorded or asked for")


@dataclass(frozen=True)
class Loss:
    """A loss with its options, as `build` returns it."""

    name: str
    kind: Kind
    needs: frozenset[str]
    """Fields of `Batch`."""
    outputs: frozenset[str]
    """Fields of `StepOut`."""
    options: Any
    tie_weight: float
    """0 where an advantage of 0 still has a gradient (nft: a pull towards the old policy), else 1."""
    _call: LossFunction = field(repr=False)

    @property
    def skips_zero_advantage(self) -> bool:
        """Whether an item of advantage 0 has exactly zero gradient, so that its forward may be left out."""
        return self.kind == "replay" and "value" not in self.outputs

    def record(self, sampler: Sampler | TokenSampler) -> frozenset[str]:
        """What `Policy.sample` has to record for this loss."""
        if self.kind == "forward":
            return frozenset()
        if sampler.kind == "tokens":
            return frozenset({"log_prob"})
        return frozenset({"states", "log_prob"} | ({"mean"} if "old_mean" in self.needs else set()))

    def __call__(self, step: StepOut, batch: Batch) -> LossOut:
        """Per-item loss.

        Raises:
            InputError: a field that the loss needs is missing (the message names it), or fields differ in
                their number of items.
        """
        require(f"loss {self.name!r}", batch, self.needs, "the batch")
        require(f"loss {self.name!r}", step, self.outputs, "the step")
        out = self._call(step, batch, self.options)
        if out.loss.shape != (len(batch),):
            raise InputError(
                f"loss {self.name!r} has shape {tuple(out.loss.shape)} for {len(batch)} items: fields differ"
            )
        return out

    def check_sampler(self, sampler: Sampler | TokenSampler) -> None:
        """Refuse a rollout sampler whose steps this loss cannot use.

        Raises:
            InputError: a loss for the other sort of generator, no noise (there is no density to replay), or the CPS
                log-prob with `guard`.
        """
        fitting = TOKEN_OUTPUTS if sampler.kind == "tokens" else FLOW_OUTPUTS
        if odd := self.outputs - fitting:
            others = ", ".join(name for name, entry in sorted(_LOSSES.items()) if entry.outputs <= fitting)
            raise InputError(
                f"loss {self.name!r} needs {', '.join(sorted(odd))}, which a generator with rollout.sampler.kind="
                f"{sampler.kind} does not give; use one of: {others}"
            )
        if sampler.kind == "tokens":
            return
        if self.kind == "forward":
            return
        if not sampler.stochastic:
            raise InputError(
                f"loss {self.name!r} needs the log-prob of noisy steps, but sampler.noise={sampler.noise!r} "
                f"at level {sampler.level} is deterministic: choose noise sde, dance or cps with a level "
                "above 0, or loss nft"
            )
        if self.name == "guard" and sampler.log_prob != "gaussian":
            raise InputError(
                f"loss 'guard' needs the Gaussian log-prob, not sampler.log_prob={sampler.log_prob!r}: "
                "its correction holds for that density only"
            )


def build(name: str, **options: Any) -> Loss:
    """Build a loss by name.

    Raises:
        InputError: unknown name or option; the message lists the known ones.
    """
    if name not in _LOSSES:
        raise InputError(f"unknown loss {name!r}; known: {', '.join(names())}")
    entry = _LOSSES[name]
    parsed = parse_options(entry.options, f"loss {name!r}", options)
    return Loss(name, entry.kind, entry.needs, entry.outputs, parsed, entry.tie_weight, entry.call)


def at_least_float32(x: Tensor) -> Tensor:
    """float32 for half precision, unchanged otherwise, so that float64 stays float64."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def mean_dims(x: Tensor) -> Tensor:
    """Mean over every dimension but the first: [n, ...] -> [n]. Never over items (known failure TF15)."""
    return x.flatten(1).mean(1) if x.ndim > 1 else x


def per_item(out: LossOut, mask: Tensor | None) -> LossOut:
    """Means over the tokens that count, where loss and metrics are [n, T]; [n] stays as it is."""

    def mean(values: Tensor) -> Tensor:
        if values.ndim == 1:
            return values
        if mask is None:
            return values.mean(1)
        return torch.where(mask, values, torch.zeros_like(values)).sum(1) / mask.sum(1)

    return LossOut(mean(out.loss), {name: mean(values) for name, values in out.metrics.items()})


def expand_as(value: Tensor, like: Tensor) -> Tensor:
    """[n] -> [n, 1, ...] with as many dimensions as `like`."""
    return value.reshape(-1, *[1] * (like.ndim - 1))


def weighted_sum(loss: Tensor, weight: Tensor, normaliser: float, world_size: int = 1) -> Tensor:
    """The only reduction: sum(weight * loss) * world_size / normaliser.

    The normaliser is the number of items with weight > 0 over all ranks and all micro-batches of one
    optimizer step. It is fixed before the first micro-batch, so neither the micro-batch size, nor the number
    of ranks, nor skipped rows change the gradient. `world_size` undoes the average that DDP takes over ranks.

    Args:
        loss: [n].
        weight: [n]; items of weight 0 add nothing.
        normaliser: > 0; with no trained item at all pass 1.
        world_size: ranks that DDP averages over.
    """
    if not normaliser > 0:
        raise ValueError(f"normaliser {normaliser} is not positive; pass 1 when no item is trained")
    kept = torch.where(weight > 0, loss * weight.to(loss.dtype), torch.zeros_like(loss))
    return kept.sum() * (world_size / normaliser)
