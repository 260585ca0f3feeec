"""What the adapters of diffusers' pipelines share: the network, the schedule of a flow, a 2-D VAE, LoRA files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines import flow, windows
from pipelines.conditioning import Embedding
from pipelines.flow import StepTable
from pipelines.samplers import Sampler

_SCHEDULES = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "invert_sigmas", "stochastic_sampling")
"""Options of `FlowMatchEulerDiscreteScheduler` that no adapter repeats."""


class DiffusersAdapter:
    """A pipeline with a `transformer` that predicts the velocity e - x0, a `vae` and a flow-matching scheduler; or
    whatever network, output and schedule a subclass says (`pipelines.sd15`).

    A model adds how a text is checked and encoded, how the velocity is predicted, and the shape of a sample.

    Args:
        pipe: the loaded pipeline.

    Raises:
        InputError: a part is missing, or the scheduler does what `Sampler` cannot say.
    """

    network = "transformer"
    """Part of the pipeline that is trained."""
    lacks: frozenset[str] = frozenset()
    """Fields of `StepOut` that this sort of model does not have."""
    default_sequence_length: int
    """`Sampler.max_sequence_length` of the plain pipeline."""
    min_sources = 0
    """Source images that a prompt must have."""
    max_sources = 0
    """Source images that a prompt may have."""
    text_sees_sources = False
    """The text encoder sees the source images too: `encode_with_sources` takes the place of `encode`."""
    refused: tuple[str, ...] = _SCHEDULES
    """Options of the scheduler that this adapter does not repeat."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        name = type(pipe).__name__
        if self.module is None or pipe.vae is None:
            raise InputError(f"the {name} has no {self.network} or no vae: both are needed")
        self.check_scheduler()

    def check_scheduler(self) -> None:
        """Refuse a scheduler that does what `Sampler` cannot say."""
        odd = [option for option in self.refused if self.pipe.scheduler.config.get(option)]
        if odd:
            raise InputError(
                f"the scheduler of this {type(self.pipe).__name__} uses {', '.join(odd)}: "
                "only a FlowMatchEulerDiscreteScheduler with a plain shift is supported"
            )

    @property
    def guidance(self) -> Literal["cfg", "embedded"]:
        """cfg: scales above 1 mean a second branch with the negative text. embedded: the model reads the scale."""
        return "cfg"

    @property
    def module(self) -> nn.Module:
        """The network that is trained, unwrapped."""
        return getattr(self.pipe, self.network)

    @property
    def frozen(self) -> list[nn.Module]:
        """Networks that are never trained and may be kept in half precision (the VAE stays float32)."""
        names = ("text_encoder", "text_encoder_2", "text_encoder_3")
        encoders = [getattr(self.pipe, name, None) for name in names]
        return [encoder for encoder in encoders if encoder is not None]

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        raise NotImplementedError

    def shift_for(self, height: int, width: int) -> float:
        """Shift of the noise levels with which the plain pipeline paints height x width pixels."""
        return float(self.pipe.scheduler.config.shift)

    def deployed(self, height: int, width: int) -> Sampler:
        """What the plain pipeline does at this size when it is given a prompt and nothing else."""
        return Sampler(steps=28, shift=self.shift_for(height, width), schedule="diffusers")

    def check_sampler(self, sampler: Sampler) -> None:
        """Refuse a sampler for another sort of model."""
        flow.check_noise(sampler.noise)

    def levels(self, sampler: Sampler) -> Tensor:
        """Noise levels of a sampler, [T + 1] float32, falling to 0."""
        return windows.levels(sampler)

    def step_table(self, levels: Tensor, noise: str, level: float, stochastic: Sequence[int]) -> StepTable:
        """Coefficients of every step, see `pipelines.flow.step_table`."""
        return flow.step_table(levels, noise, level, stochastic)

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of a sample [C, h, w].

        Raises:
            InputError: a size that the model cannot paint.
        """
        raise NotImplementedError

    def problem(self, text: str, tokens: int) -> str | None:
        """Why a text cannot be shown to the model in full with `max_sequence_length` = tokens, or None."""
        raise NotImplementedError

    def encode(self, text: str, tokens: int) -> Embedding:
        """Embedding of one text; its shape depends on `tokens` alone."""
        raise NotImplementedError

    def encode_with_sources(self, text: str, tokens: int, sources: Sequence[Any], height: int, width: int) -> Embedding:
        """Embedding of one text beside source images, for a sample of height x width pixels. Embeddings of different
        lengths are filled up with zeros in a batch. Only for adapters with `text_sees_sources`."""
        raise NotImplementedError

    def encode_sources(self, sources: Sequence[Any], height: int, width: int) -> Embedding:
        """Embedding of up to `max_sources` source images of any size, for a sample of height x width pixels.
        Embeddings of different lengths are filled up with zeros in a batch. Only for adapters with `max_sources`."""
        raise NotImplementedError

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Velocity [n, ...] at x [n, ...] and noise level sigma [n] in [0, 1].

        Args:
            module: `self.module` or what wraps it.
            x: states.
            sigma: noise levels.
            embedding: tensors [n, ...] as `encode` gives them, then those of `encode_sources`.
            guidance: scale of embedded guidance; nothing for models with classifier-free guidance.
        """
        raise NotImplementedError

    def guide(self, without: Tensor, with_text: Tensor, scale: float) -> Tensor:
        """Classifier-free guidance (arXiv 2207.12598) of two velocities [n, ...]."""
        return without + scale * (with_text - without)

    def decode(self, latents: Tensor) -> np.ndarray:
        """uint8 RGB [n, H, W, 3] of latents [n, C, h, w]."""
        config, vae = self.pipe.vae.config, self.pipe.vae
        scaled = latents.to(vae.dtype) / config.scaling_factor + (config.shift_factor or 0.0)
        return to_images(vae.decode(scaled, return_dict=False)[0])

    def encode_images(self, images: np.ndarray) -> Tensor:
        """Latents [n, C, h, w] (mean of the posterior) of uint8 RGB [n, H, W, 3]."""
        return self.encode_pixels(to_pixels(images, self.pipe.vae))

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Latents [n, C, h, w] of [n, 3, H, W] in [-1, 1]."""
        config = self.pipe.vae.config
        mean = self.pipe.vae.encode(pixels).latent_dist.mode()
        return ((mean - (config.shift_factor or 0.0)) * config.scaling_factor).float()

    def save_lora(self, directory: str | Path, state: dict[str, Tensor] | None = None) -> None:
        """Write the adapter for the pipeline's own `load_lora_weights`; `state` = its whole tensors if the network
        holds shards."""
        from peft import get_peft_model_state_dict

        network: Any = self.module
        self.pipe.save_lora_weights(
            directory,
            **{
                f"{self.network}_lora_layers": get_peft_model_state_dict(network, state_dict=state),
                f"{self.network}_lora_adapter_metadata": network.peft_config["default"].to_dict(),
            },
        )

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.module.parameters()).device


def to_images(pixels: Tensor) -> np.ndarray:
    """uint8 RGB [n, H, W, 3] of what a VAE decodes, [n, 3, H, W] in [-1, 1]."""
    unit = (pixels.float() / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).contiguous()
    return (unit * 255).round().to(torch.uint8).cpu().numpy()


def to_pixels(images: np.ndarray, vae: Any) -> Tensor:
    """What a VAE encodes, [n, 3, H, W] in [-1, 1], of uint8 RGB [n, H, W, 3]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)).to(vae.device, vae.dtype).permute(0, 3, 1, 2)
    return pixels / 127.5 - 1


def clip_problem(tokenizer: Any, text: str, limit: int) -> str | None:
    """Why a CLIP encoder of `limit` tokens cannot read a text in full, or None."""
    count = len(tokenizer(text).input_ids)
    if count > limit:
        return f"has {count} tokens, the CLIP text encoder takes {limit}"
    if tokenizer.unk_token_id in tokenizer(text, add_special_tokens=False).input_ids:
        return "holds characters that the tokenizer does not know"
    return None


def length_problem(count: int, tokens: int) -> str | None:
    """Whether `count` text tokens are more than `max_sequence_length` = tokens."""
    return f"has {count} tokens, max_sequence_length is {tokens}" if count > tokens else None
