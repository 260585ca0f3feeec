"""Qwen-Image (arXiv 2508.02324): how to encode, predict, guide and decode.

Convention of the model: packed latents, it predicts the velocity e - x0 and is conditioned on sigma itself (it
multiplies by 1000). Embeddings are (tokens [T, D], mask [T]), padded to `max_sequence_length` and masked, so that
they are the same in every batch. The VAE is a video VAE; an image is one frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mmrubric.errors import InputError
from pipelines.adapter import length_problem, to_images, to_pixels
from pipelines.conditioning import Embedding
from pipelines.packed import PackedAdapter, pack, unpack


class QwenImageAdapter(PackedAdapter):
    """Adapter of a `QwenImagePipeline`."""

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        if pipe.text_encoder is None:
            raise InputError("the QwenImagePipeline has no text encoder")
        if pipe.transformer.config.guidance_embeds:
            raise InputError("Qwen-Image with embedded guidance is not supported: diffusers cannot run it either")

    def problem(self, text: str, tokens: int) -> str | None:
        """Why a text cannot be shown to the model in full, or None."""
        return length_problem(self._count(text), tokens)

    def encode(self, text: str, tokens: int) -> Embedding:
        """(tokens [`tokens`, D], mask [`tokens`] bool) of one text."""
        embeds, _ = self.pipe.encode_prompt(prompt=text, device=self.device, max_sequence_length=tokens)
        missing = tokens - embeds.shape[1]
        mask = torch.arange(tokens, device=embeds.device) < embeds.shape[1]
        return functional.pad(embeds[0], (0, 0, 0, missing)), mask

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Velocity [n, C, h, w] at x [n, C, h, w] and noise level sigma [n] in [0, 1]."""
        tokens, mask = embedding
        h, w = x.shape[2:]
        velocity = module(
            hidden_states=pack(x),
            timestep=sigma,
            encoder_hidden_states=tokens,
            encoder_hidden_states_mask=mask,
            img_shapes=[[(1, h // 2, w // 2)]] * len(x),
            return_dict=False,
        )[0]
        return unpack(velocity, h, w)

    def guide(self, without: Tensor, with_text: Tensor, scale: float) -> Tensor:
        """Classifier-free guidance whose tokens keep the length of the conditional ones, as the pipeline has it."""
        h, w = without.shape[2:]
        text, guided = pack(with_text), pack(super().guide(without, with_text, scale))
        return unpack(guided * (text.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True)), h, w)

    def decode(self, latents: Tensor) -> np.ndarray:
        """uint8 RGB [n, H, W, 3] of latents [n, C, h, w]."""
        mean, std = self._statistics()
        vae = self.pipe.vae
        frames = vae.decode((latents.to(vae.dtype) * std + mean)[:, :, None], return_dict=False)[0]
        return to_images(frames[:, :, 0])

    def encode_images(self, images: np.ndarray) -> Tensor:
        """Latents [n, C, h, w] (mean of the posterior) of uint8 RGB [n, H, W, 3]."""
        mean, std = self._statistics()
        frames = to_pixels(images, self.pipe.vae)[:, :, None]
        return ((self.pipe.vae.encode(frames).latent_dist.mode()[:, :, 0] - mean) / std).float()

    def _count(self, text: str) -> int:
        """Tokens that the transformer reads: those of the chat template without its system part."""
        template = self.pipe.prompt_template_encode.format(text)
        return len(self.pipe.tokenizer(template).input_ids) - self.pipe.prompt_template_encode_start_idx

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the VAE's latents, each [C, 1, 1]."""
        vae = self.pipe.vae
        values = (vae.config.latents_mean, vae.config.latents_std)
        mean, std = (torch.tensor(v, device=vae.device, dtype=vae.dtype).reshape(-1, 1, 1) for v in values)
        return mean, std
