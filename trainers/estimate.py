"""What a run will take, by arithmetic alone: memory per rank, samples, judge calls and their price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Numbers:
    """How many numbers (parameters) a model has."""

    trained: int
    """That train: of the denoiser, or of its LoRA adapter."""
    frozen: int = 0
    """Of the denoiser, that do not train."""
    encoders: int = 0
    """Of frozen networks in half precision, such as text encoders."""
    vae: int = 0
    """Of frozen networks in float32."""
    block: int = 0
    """Of the largest layer that sharding gathers at once, frozen ones included."""


@dataclass(frozen=True)
class Held:
    """Something that lies in the memory of a rank."""

    what: str
    numbers: int
    """Over all ranks."""
    dtype: Literal["fp32", "bf16", "fp16"]
    shards: int = 1
    """Ranks that share it; 1 = whole on each."""

    @property
    def bytes(self) -> int:
        """On the rank with the most."""
        return -(-self.numbers // self.shards) * (4 if self.dtype == "fp32" else 2)

    def __str__(self) -> str:
        return f"{readable(self.bytes)} ({self.dtype}, {f'1/{self.shards}' if self.shards > 1 else 'whole'})"


def memory(
    numbers: Numbers,
    *,
    precision: Precision,
    ranks: int = 1,
    sharded: bool = False,
    bucket: int | None = None,
    copies: int = 0,
    checkpointing: bool = False,
    offload_encoders: bool = False,
) -> list[Held]:
    """What lies on each rank's device during an update by AdamW. Activations are not included: they depend on the
    model's layers, the pictures' size and the batch.

    Args:
        numbers: of the model.
        precision: of the autocast and of frozen networks.
        ranks: processes.
        sharded: FSDP2 or DeepSpeed ZeRO-3, else the whole on each rank.
        bucket: DeepSpeed: gradients averaged at once. Where not `sharded`, gradients and optimizer still are (ZeRO-2).
        copies: kept copies of the trained weights (old, ema, reference, previous).
        checkpointing: activations are recomputed, so casts of one layer live at a time.
        offload_encoders: they are on the device only while they encode, before the first step.
    """
    deepspeed = bucket is not None
    shards, stepped = ranks if sharded else 1, ranks if sharded or deepspeed else 1
    adapter = numbers.frozen > 0
    trained = numbers.trained
    held = [
        Held("trained weights", trained, "fp32", shards),
        Held("frozen denoiser", numbers.frozen, precision, shards),
        Held(f"{copies} weight copies", copies * trained, "fp32", shards),
        # sharded adapters add up whole gradients and share them once per step, see Dist.no_sync
        Held("gradients", trained, "fp32", 1 if adapter and not deepspeed else stepped),
        Held("Adam moments", 2 * trained, "fp32", stepped),
        Held("the optimizer's copy of trained weights", trained if deepspeed else 0, "fp32", stepped),
        Held("frozen encoders", 0 if offload_encoders else numbers.encoders, precision),
        Held("VAE", numbers.vae, "fp32"),
    ]
    if ranks > 1 and (deepspeed or not sharded):
        held.append(Held("buckets of averaged gradients", trained if bucket is None else min(trained, bucket), "fp32"))
    if sharded:
        # ZeRO-3 is set to fetch nothing ahead
        what, layers = ("a gathered layer", 1) if deepspeed else ("two gathered layers", 2)
        held.append(Held(what, layers * numbers.block, precision if adapter else "fp32"))
    if precision != "fp32":
        cast = min(numbers.block, trained) if checkpointing else trained
        held.append(Held("casts of trained weights for the backward pass", cast, precision))
    return [item for item in held if item.numbers]


def total(held: list[Held]) -> int:
    """Bytes of all."""
    return sum(item.bytes for item in held)


def evaluations(steps: int, every: int) -> int:
    """How often a run evaluates: before the first step, every so many, and after the last."""
    return 0 if every == 0 else 1 + steps // every + (steps % every > 0)


def cost(calls: int, price: float | None) -> float | None:
    """Price of so many judge calls; None where the price is unknown, which is not 0."""
    return None if price is None and calls else calls * (price or 0.0)


def readable(size: float) -> str:
    """Bytes as GiB, MiB or KiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size / 1024:.1f} KiB"
