"""How a model runs, apart from what it computes: attention kernels, compilation, memory of the VAE and the encoders."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from mmrubric.errors import InputError

_PACKAGES = {"xformers": "xformers", "flash": "flash_attn"}


class EngineOptions(BaseModel):
    """Options of `load_policy` that move no number but by rounding."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    attention: Literal["sdpa", "xformers", "flash"] = "sdpa"
    """Attention kernels: torch's own choice, or those of the packages xformers or flash-attn (GPU only)."""
    compile: bool = False
    """torch.compile the denoiser; the first step of each shape takes a minute or more."""
    vae_slicing: bool = False
    """Decode one image at a time: less memory, a little slower."""
    vae_tiling: bool = False
    """Decode large images in overlapping tiles: much less memory, blended borders."""
    embedding_cache: str | None = None
    """Directory for embeddings of texts and source images; a later run with the same encoders reads them there."""
    offload_encoders: bool = False
    """Keep the text encoders in CPU memory but for the moments when they encode. Prompts are encoded ahead."""


def check(options: EngineOptions, pipeline: str, device: str | torch.device, sharded: bool) -> None:
    """Refuse what cannot run here, before weights load.

    Raises:
        InputError: a missing package or GPU, a model without that kernel, compilation of shards.
    """
    if options.attention != "sdpa":
        package = _PACKAGES[options.attention]
        asked = f"model.attention={options.attention}"
        if torch.device(device).type != "cuda":
            raise InputError(f"{asked} has kernels for a GPU only, this run is on {device}: use model.attention=sdpa")
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{asked} needs the package {package}, which is not installed: use model.attention=sdpa")
        if options.attention == "flash" and pipeline == "StableDiffusion3Pipeline":
            raise InputError(
                f"{asked}: diffusers runs a {pipeline} on sdpa or xformers only; sdpa takes torch's own flash kernel "
                "for half precision"
            )
    if options.compile and sharded:
        raise InputError("model.compile=true with sharded weights is not supported: use one of the two")


def prepare(options: EngineOptions, pipe: Any) -> None:
    """Apply the options to a loaded pipeline's denoiser and VAE; `check` went before."""
    if options.attention != "sdpa":
        use_attention(getattr(pipe, "transformer", None) or pipe.unet, options.attention)
    if options.vae_slicing:
        pipe.vae.enable_slicing()
    if options.vae_tiling:
        pipe.vae.enable_tiling()


def use_attention(transformer: Any, kernels: str) -> None:
    """Set the attention kernels of all layers.

    Raises:
        InputError: a layer that would go on with its own.
    """
    from diffusers.models.attention_processor import JointAttnProcessor2_0, XFormersJointAttnProcessor

    processors = list(transformer.attn_processors.values())
    if kernels == "xformers" and all(isinstance(p, JointAttnProcessor2_0) for p in processors):
        # SD3's layers do not go through diffusers' dispatcher
        transformer.set_attn_processor(XFormersJointAttnProcessor())
        return
    own = sorted({type(p).__name__ for p in processors if not hasattr(p, "_attention_backend")})
    if own:
        raise InputError(f"model.attention={kernels}: {', '.join(own)} cannot change kernels; use model.attention=sdpa")
    transformer.set_attention_backend(kernels)


class Encoders:
    """Frozen encoders that are on the model's device only while they encode.

    Args:
        modules: the encoders.
        offload: False leaves them where they are.
    """

    def __init__(self, modules: list[nn.Module], offload: bool) -> None:
        self._modules, self._offload, self._away = modules, offload, offload

    def bring(self, device: torch.device) -> None:
        """Have them on the device."""
        if self._away:
            self._move(device)
            self._away = False

    def send_away(self) -> None:
        """Give their device memory free, if they are to be offloaded."""
        if self._offload and not self._away:
            self._move(torch.device("cpu"))
            self._away = True

    def _move(self, device: torch.device) -> None:
        for module in self._modules:
            nn.Module.to(module, device)
