"""The networks of a pipeline without their weights, for counting: built from their configurations on `meta`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrubric.errors import InputError
from pipelines.load import SUPPORTED, LoraOptions, add_lora, read_index, resolve
from pipelines.quiet import quiet


@dataclass(frozen=True)
class Skeleton:
    """Networks whose tensors have shapes and no memory."""

    denoiser: nn.Module
    """What trains; `requires_grad` says which of it."""
    encoders: list[nn.Module]
    vae: nn.Module


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
    return Skeleton(denoiser, encoders, vae)


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
