"""Stable Diffusion 3 and 3.5: how to encode, predict and decode.

Convention of the model: sigma runs from 1 (noise) to 0, it predicts the velocity e - x0, and it is
conditioned on 1000 * sigma. Embeddings are (tokens [L, D], pooled [P]).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines.conditioning import Embedding


class SD3Adapter:
    """Adapter of a `StableDiffusion3Pipeline`, with or without T5 and with any of its sizes."""

    default_sequence_length = 256
    """T5 tokens that the pipeline takes when nothing is said."""

    def __init__(self, pipe: StableDiffusion3Pipeline) -> None:
        self.pipe: Any = pipe
        if pipe.transformer is None or pipe.vae is None:
            raise InputError("the StableDiffusion3Pipeline has no transformer or no vae: both are needed")
        scheduler = dict(pipe.scheduler.config)
        odd = [
            name
            for name in (
                "use_dynamic_shifting",
                "shift_terminal",
                "use_karras_sigmas",
                "use_exponential_sigmas",
            )
            if scheduler.get(name)
        ]
        if odd or scheduler.get("use_beta_sigmas") or scheduler.get("invert_sigmas"):
            raise InputError(
                f"the scheduler of this pipeline uses {', '.join(odd) or 'beta or inverted sigmas'}: "
                "only a plain FlowMatchEulerDiscreteScheduler with a shift is supported"
            )

    @property
    def module(self) -> nn.Module:
        """The network that is trained, unwrapped."""
        return self.pipe.transformer

    @property
    def frozen(self) -> list[nn.Module]:
        """Networks that are never trained and may be kept in half precision (the VAE stays float32)."""
        encoders = (self.pipe.text_encoder, self.pipe.text_encoder_2, self.pipe.text_encoder_3)
        return [encoder for encoder in encoders if encoder is not None]

    @property
    def default_shift(self) -> float:
        """Shift of the scheduler that came with the weights."""
        return float(self.pipe.scheduler.config.shift)

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        side = int(self.pipe.transformer.config.sample_size * self.pipe.vae_scale_factor)
        return side, side

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of a sample [C, H / f, W / f].

        Raises:
            InputError: a side that the VAE and the patches do not divide, or beyond the position table.
        """
        factor, config = self.pipe.vae_scale_factor, self.pipe.transformer.config
        unit = factor * config.patch_size
        if height % unit or width % unit:
            raise InputError(f"height and width must be multiples of {unit} pixels, not {height} x {width}")
        if max(height, width) // unit > config.pos_embed_max_size:
            raise InputError(f"{height} x {width} pixels: this model goes up to {unit * config.pos_embed_max_size}")
        return config.in_channels, height // factor, width // factor

    def problem(self, text: str, tokens: int) -> str | None:
        """Why a text cannot be shown to the model in full, or None."""
        limit = self.pipe.tokenizer_max_length
        for tokenizer in (self.pipe.tokenizer, self.pipe.tokenizer_2):
            ids = tokenizer(text).input_ids
            if len(ids) > limit:
                return f"has {len(ids)} tokens, the CLIP text encoder takes {limit}"
            if tokenizer.unk_token_id in tokenizer(text, add_special_tokens=False).input_ids:
                return "holds characters that the tokenizer does not know"
        if self.pipe.tokenizer_3 is not None:
            count = len(self.pipe.tokenizer_3(text).input_ids)
            if count > tokens:
                return f"has {count} tokens, max_sequence_length is {tokens}"
        return None

    def encode(self, text: str, tokens: int) -> Embedding:
        """(tokens [L + `tokens`, D], pooled [P]) of one text."""
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            prompt=text,
            prompt_2=None,
            prompt_3=None,
            device=self._device,
            do_classifier_free_guidance=False,
            max_sequence_length=tokens,
        )
        return embeds[0], pooled[0]

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding) -> Tensor:
        """Velocity [n, ...] at x [n, ...] and noise level sigma [n] in [0, 1]."""
        tokens, pooled = embedding
        return module(
            hidden_states=x,
            timestep=sigma * 1000.0,
            encoder_hidden_states=tokens,
            pooled_projections=pooled,
            return_dict=False,
        )[0]

    def decode(self, latents: Tensor) -> np.ndarray:
        """uint8 RGB [n, H, W, 3] of latents [n, C, h, w]."""
        config, vae = self.pipe.vae.config, self.pipe.vae
        scaled = latents.to(vae.dtype) / config.scaling_factor + (config.shift_factor or 0.0)
        pixels = vae.decode(scaled, return_dict=False)[0].float()
        unit = (pixels / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).contiguous()
        return (unit * 255).round().to(torch.uint8).cpu().numpy()

    def encode_images(self, images: np.ndarray) -> Tensor:
        """Latents [n, C, h, w] (mean of the posterior) of uint8 RGB [n, H, W, 3]."""
        config, vae = self.pipe.vae.config, self.pipe.vae
        pixels = torch.from_numpy(np.ascontiguousarray(images)).to(vae.device, vae.dtype).permute(0, 3, 1, 2)
        mean = vae.encode(pixels / 127.5 - 1).latent_dist.mode()
        return ((mean - (config.shift_factor or 0.0)) * config.scaling_factor).float()

    def save_lora(self, directory: str | Path) -> None:
        """Write the adapter for `StableDiffusion3Pipeline.load_lora_weights`."""
        from peft import get_peft_model_state_dict

        self.pipe.save_lora_weights(
            directory,
            transformer_lora_layers=get_peft_model_state_dict(self.pipe.transformer),
            transformer_lora_adapter_metadata=self.pipe.transformer.peft_config["default"].to_dict(),
        )

    @property
    def _device(self) -> torch.device:
        return self.pipe.transformer.device
