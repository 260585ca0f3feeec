"""Fully sharded training (FSDP2) by torch's `fully_shard`: weights, gradients, optimizer and copies in 1/N on each of
N ranks.

Accelerate's own FSDP is not used: on a CPU it silently trains plain DDP, and its wrapper knows nothing of weights that
are swapped between forwards. What `accelerate launch` was asked for is read from the environment and done here.
Parameters stay float32; the policy's autocast decides the precision of the model call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from mmrubric.errors import InputError
from pipelines.shards import is_spread, local, numel

Shard = Literal["none", "fsdp2", "zero2", "zero3"]
_UNUSED = {
    "FSDP_OFFLOAD_PARAMS": ("true", "fsdp_offload_params: shards stay on their device"),
    "FSDP_ACTIVATION_CHECKPOINTING": ("true", "fsdp_activation_checkpointing: set model.gradient_checkpointing=true"),
    "FSDP_RESHARD_AFTER_FORWARD": (
        "false",
        "fsdp_reshard_after_forward=false: weights are swapped between forwards, so each must gather them anew",
    ),
    "FSDP_AUTO_WRAP_POLICY": ("size_based_wrap", "fsdp_auto_wrap_policy=SIZE_BASED_WRAP: layers are taken by class"),
}
"""Settings of accelerate's FSDP section that cannot be followed, with the value that asks for them."""
_DEEPSPEED_UNUSED = {
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": ("deepspeed_config_file", ("none",), "leave it out"),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": ("offload_optimizer_device", ("none",), "set none"),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": ("offload_param_device", ("none",), "set none"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "gradient_accumulation_steps", ("1", "auto"), "leave it out: optim.batch_size decides it",
    ),
    "ACCELERATE_GRADIENT_CLIPPING": ("gradient_clipping", ("auto",), "leave it out: optim.grad_clip decides it"),
}  # fmt: skip
"""Settings of accelerate's DeepSpeed section that cannot be followed: (name, values that ask for nothing, the way
out)."""


@dataclass(frozen=True)
class Asked:
    """What the launcher asked for."""

    shard: Shard | None = None
    """None: it said nothing."""
    blocks: tuple[str, ...] = ()
    """Class names of the layers that are gathered one at a time; empty = what the model itself names."""


def asked(environment: Mapping[str, str] | None = None) -> Asked:
    """What `accelerate launch` wrote into the environment.

    Raises:
        InputError: another stage of DeepSpeed than ZeRO-2 and ZeRO-3, FSDP1, or a setting that cannot be followed.
    """
    found = os.environ if environment is None else environment
    if found.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        return _deepspeed(found)
    if found.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return Asked()
    if found.get("FSDP_VERSION", "1") != "2":
        raise InputError(
            f"this launch asks for FSDP version {found.get('FSDP_VERSION', '1')}: set fsdp_version: 2, as in "
            "configs/accelerate/fsdp2.yaml"
        )
    wrong = [why for name, (value, why) in _UNUSED.items() if found.get(name, "").lower() == value]
    if wrong:
        raise InputError("this launch asks for what cannot be followed: " + "; ".join(wrong))
    names = found.get("FSDP_TRANSFORMER_CLS_TO_WRAP", "")
    return Asked("fsdp2", tuple(name.strip() for name in names.split(",") if name.strip()))


def _deepspeed(found: Mapping[str, str]) -> Asked:
    stage = found.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    if stage not in ("2", "3"):
        raise InputError(
            f"this launch asks for DeepSpeed with zero_stage {stage}: set zero_stage: 2 or 3, as in "
            "configs/accelerate/deepspeed_zero2.yaml and deepspeed_zero3.yaml, or launch with ddp.yaml, where nothing "
            "is shared"
        )
    wrong = [
        f"{name}={found[key]} ({way})"
        for key, (name, idle, way) in _DEEPSPEED_UNUSED.items()
        if found.get(key, idle[0]).lower() not in idle
    ]
    if wrong:
        raise InputError("this launch asks of DeepSpeed what cannot be followed: " + "; ".join(wrong))
    return Asked("zero3" if stage == "3" else "zero2")


@contextmanager
def hidden() -> Iterator[None]:
    """Create accelerate's objects inside, so that they set up the ranks and nothing of their own FSDP or DeepSpeed."""
    names = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def choose(configured: Shard | None, launched: Asked) -> Shard:
    """`model.shard`, or what the launcher asked for where that is null.

    Raises:
        InputError: both say something, and not the same.
    """
    if configured is not None and launched.shard is not None and configured != launched.shard:
        raise InputError(
            f"model.shard={configured}, but this launch asks for {launched.shard}: leave model.shard null, or launch "
            "with another --config_file"
        )
    return configured or launched.shard or "none"


def block_names(module: nn.Module, wanted: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Class names of the layers to gather one at a time, of those that the module really has.

    Raises:
        InputError: none: the whole model would be gathered at once, on every rank.
    """
    fields = ("_repeated_blocks", "_no_split_modules")
    named = wanted or [name for field in fields for name in getattr(module, field, None) or ()]
    present = {type(part).__name__ for part in module.modules()}
    found = tuple(dict.fromkeys(name for name in named if name in present))
    missing = sorted(set(wanted) - present)
    if missing or not found:
        what = f"it has no {', '.join(missing)}" if missing else "it names no repeated layers"
        raise InputError(
            f"cannot shard a {type(module).__name__}: {what}; give fsdp_transformer_layer_cls_to_wrap in the launch "
            "configuration"
        )
    return found


def layers(module: nn.Module, names: tuple[str, ...]) -> list[nn.Module]:
    """What is gathered at once: the layers of the named classes, inner before outer, and last the module itself, each
    without what is in those before it."""
    return [part for part in reversed(list(module.modules())) if type(part).__name__ in names or part is module]


def sharder(device: torch.device, blocks: tuple[str, ...] = ()) -> Callable[[nn.Module], nn.Module]:
    """A function that shards a module over all ranks, in place, for `load_policy(shard=...)`.

    Args:
        device: of this rank; its kind decides the mesh (a CPU goes through gloo).
        blocks: see `block_names`.
    """

    def shard(module: nn.Module) -> nn.Module:
        names = block_names(module, blocks)
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        # The root too is resharded after its forward: weights are swapped between forwards, and what stays gathered
        # would be the weights from before the swap.
        for part in layers(module, names):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
        plain = [name for name, p in module.named_parameters() if not isinstance(p, DTensor)]
        if plain:
            raise RuntimeError(f"sharding was asked for, but {len(plain)} parameters are whole: {plain[:3]}")
        return module

    return shard


@dataclass(frozen=True)
class Layout:
    """What of a module lies on this rank."""

    parameters: int
    """Numbers in all parameters together, over all ranks."""
    tensors: int
    """Parameter tensors."""
    dtensors: int
    """Of these, how many are shards."""
    local_bytes: int
    """Bytes of the parameters on this rank."""

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Count a module's parameters; they may be on `meta`."""
        parameters = list(module.parameters())
        return cls(
            parameters=sum(map(numel, parameters)),
            tensors=len(parameters),
            dtensors=sum(map(is_spread, parameters)),
            local_bytes=sum(local(p).numel() * p.element_size() for p in parameters),
        )
