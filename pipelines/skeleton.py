"""The networks of a pipeline without their weights, for counting: built from their configurations on `meta`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrubric.errors import InputError
from pipelines import token_load
from pipelines.load import SUPPORTED, LoraOptions, add_lora, read_index, resolve
from pipelines.quiet import quiet


@dataclass(frozen=True)
class Skeleton:
    """Networks whose tensors have shapes and no memory."""

    name: str
    """Class of the network that trains."""
    denoiser: nn.Module
    """What trains; `requires_grad` says which of it."""
    encoders: list[nn.Module]
    """Frozen, in half precision where one is asked for."""
    vae: nn.Module
    """Frozen, float32."""


def build(path_or_id: str | Path, tune: str = "full", lora: LoraOptions | None = None) -> Skeleton:
    """The networks of a pipeline directory or model id; of an id, configurations alone are fetched.

    Args:
        path_or_id: as for `load_policy`.
        tune: full or lora, see `load_policy`.
        lora: options of the adapter.

    Raises:
        InputError: no pipeline that is supported, or a part without a configuration.
    """
    source = resolve(path_or_id)
    index = read_index(source)
    if index["_class_name"] in token_load.MODELS.values():
        return _token_model(index["_class_name"], source, tune, lora or LoraOptions())
    if index["_class_name"] not in SUPPORTED:
        raise InputError(f"{source} is a {index['_class_name']}: supported are {', '.join(SUPPORTED)}")
    parts = {name: _part(source, name, *value) for name, value in index.items() if isinstance(value, list) and value[0]}
    denoiser, vae = parts.get("transformer") or parts.get("unet"), parts.get("vae")
    if denoiser is None or vae is None:
        raise InputError(f"{source} has no denoiser (transformer or unet) or no vae")
    denoiser.requires_grad_(tune == "full")
    if tune == "lora":
        with torch.device("meta"):
            add_lora(denoiser, lora or LoraOptions())
    encoders = [part for name, part in parts.items() if name.startswith("text_encoder") and part is not None]
    return Skeleton(type(denoiser).__name__, denoiser, encoders, vae)


class _Held(nn.Module):
    """Some modules and loose parameters of a model, counted as one."""

    def __init__(
        self, parts: Iterable[nn.Module], loose: Iterable[nn.Parameter] = (), layers: Iterable[str] = ()
    ) -> None:
        super().__init__()
        self.parts, self.loose = nn.ModuleList(parts), nn.ParameterList(loose)
        self._no_split_modules = tuple(layers)


def _token_model(name: str, source: str, tune: str, lora: LoraOptions) -> Skeleton:
    """A token model: what trains is its language model, its tokenizer of images is float32 and the rest is frozen. A
    value head (as many numbers as a hidden state) is not counted."""
    import transformers

    adapter, kind = token_load.adapter_kind(name), getattr(transformers, name)
    with quiet(), torch.device("meta"):
        model = kind(kind.config_class.from_pretrained(source)).requires_grad_(False)
        parts = [model.get_submodule(part) for part in adapter.trainable]
        if tune == "full":
            for part in parts:
                part.requires_grad_(True)
        else:
            targets = token_load.ATTENTION if lora.targets is None else lora.targets
            add_lora(model, lora.model_copy(update={"targets": targets}), adapter.trainable)
    vq = model.get_submodule(adapter.vq_name)
    taken = {id(p) for part in (*parts, vq) for p in part.parameters()}
    rest = [p for p in model.parameters() if id(p) not in taken]
    # full fine-tuning keeps everything float32
    frozen = _Held([vq], rest) if tune == "full" else vq
    encoders: list[nn.Module] = [] if tune == "full" else [_Held([], rest)]
    return Skeleton(name, _Held(parts, layers=sorted(model._no_split_modules or ())), encoders, frozen)


def _part(source: str, name: str, library: str, kind: str) -> nn.Module | None:
    import diffusers
    import transformers

    known: Any = getattr({"diffusers": diffusers, "transformers": transformers}.get(library), kind, None)
    if not isinstance(known, type) or not issubclass(known, nn.Module):
        return None
    made: Any = known
    with quiet(), torch.device("meta"):
        try:
            if issubclass(known, diffusers.ModelMixin):
                return made.from_config(made.load_config(source, subfolder=name))
            return made(made.config_class.from_pretrained(source, subfolder=name))
        except (OSError, ValueError) as error:
            raise InputError(f"the configuration of '{name}' in {source} cannot be read: {error}") from error
