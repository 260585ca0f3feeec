"""From a transformers directory or model id to a token policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import nn

from mmrubric.errors import InputError
from pipelines.quiet import quiet
from pipelines.samplers import TokenSampler
from pipelines.token_adapter import TokenAdapter
from pipelines.trained import AUTOCAST

if TYPE_CHECKING:
    from pipelines.load import LoraOptions
    from pipelines.tokens import TokenPolicy

MODELS = {"janus": "JanusForConditionalGeneration", "emu3": "Emu3ForConditionalGeneration"}
"""Class of each `model_type` of `config.json` that can be loaded."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Layers that get a LoRA adapter where none are named."""


def read_config(source: str) -> dict[str, Any] | None:
    """`{"_class_name": ...}` of a directory or model id whose `config.json` names a model of `MODELS`; None = no such
    file.

    Raises:
        InputError: a `config.json` that names another model or cannot be read.
    """
    if Path(source).is_dir():
        file = Path(source) / "config.json"
        if not file.is_file():
            return None
        try:
            config: Any = json.loads(file.read_text())
        except ValueError as error:
            raise InputError(f"{file} is not valid JSON: {error}") from error
    else:
        from transformers import PretrainedConfig

        try:
            config, _ = PretrainedConfig.get_config_dict(source)
        except OSError:
            return None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in MODELS:
        raise InputError(
            f"config.json of {source} has model_type {kind!r}: token models that can be loaded are {', '.join(MODELS)}"
        )
    return {"_class_name": MODELS[kind]}


@dataclass(frozen=True)
class Options:
    """Arguments of `load_policy`, checked."""

    tune: str | None
    lora: LoraOptions | None
    precision: str
    device: str | torch.device
    copies: Sequence[str]
    gradient_checkpointing: bool
    batch: int | None
    deployed: TokenSampler | None
    value_head: bool
    shard: Callable[[nn.Module], nn.Module] | None


def load_tokens(name: str, source: str, options: Options) -> TokenPolicy:
    """A policy over a model class of `MODELS`.

    Raises:
        InputError: weights that are missing in the directory, or a wrong option.
    """
    from pipelines.load import LoraOptions, add_lora
    from pipelines.tokens import TokenPolicy

    adapter = build_adapter(name, source)
    tune, model = options.tune, adapter.model
    dtype = torch.float32 if tune == "full" else AUTOCAST[options.precision] or torch.float32
    # Shards are cut on the CPU: no device ever holds the whole.
    place = options.device if options.shard is None else "cpu"
    nn.Module.to(model, place, dtype).eval().requires_grad_(False)
    nn.Module.to(adapter.vq, options.device, torch.float32)
    parts = [model.get_submodule(part) for part in adapter.trainable]
    if tune == "full":
        for part in parts:
            part.requires_grad_(True)
    if tune == "lora":
        lora = options.lora or LoraOptions()
        targets = ATTENTION if lora.targets is None else lora.targets
        add_lora(model, lora.model_copy(update={"targets": targets}), adapter.trainable)
    if options.gradient_checkpointing:
        adapter.text_model.gradient_checkpointing_enable({"use_reentrant": False})
    head = None
    if options.value_head:
        head = make_value_head(adapter.width, source).to(next(parts[0].parameters()).device)
    return TokenPolicy(
        adapter,
        lora=tune == "lora",
        precision=options.precision,
        copies=options.copies,
        deployed=options.deployed,
        batch=options.batch,
        value_head=head,
        checkpointing=options.gradient_checkpointing,
        shard=options.shard,
    )


def build_adapter(name: str, source: str) -> TokenAdapter:
    """The adapter of a model class of `MODELS`, its weights in main memory.

    Raises:
        InputError: the directory lacks weights or a processor.
    """
    import transformers

    # a missing tensor is drawn at random before it is reported
    with quiet(), torch.random.fork_rng():
        kind: Any = getattr(transformers, name)
        processor_kind: Any = getattr(transformers, name.removesuffix("ForConditionalGeneration") + "Processor")
        try:
            model, info = kind.from_pretrained(source, output_loading_info=True)
            processor = processor_kind.from_pretrained(source)
        except OSError as error:
            raise InputError(f"{source} lacks a part of a {name}: {error}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(f"the weights of {source} lack {len(missing)} tensors of a {name}: {', '.join(missing[:3])}")
    return adapter_kind(name)(model, processor)


def adapter_kind(name: str) -> type[TokenAdapter]:
    """The adapter class of a model class of `MODELS`."""
    from pipelines.emu3 import Emu3Adapter
    from pipelines.janus import JanusAdapter

    return {"JanusForConditionalGeneration": JanusAdapter, "Emu3ForConditionalGeneration": Emu3Adapter}[name]


def make_value_head(width: int, source: str) -> nn.Linear:
    """A value head on hidden states of `width`, as it lies beside the weights, or 0 where none does.

    Raises:
        InputError: the file belongs to another model.
    """
    from pipelines.tokens import VALUE_FILE

    head: Any = nn.utils.skip_init(nn.Linear, width, 1)
    file = Path(source) / VALUE_FILE
    state = load_file(file) if file.is_file() else {"weight": torch.zeros(1, width), "bias": torch.zeros(1)}
    try:
        head.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"{file} is no value head of a model with hidden size {width}: {error}") from error
    return head
