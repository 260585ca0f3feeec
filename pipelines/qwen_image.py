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
from pipelines.adapter import length_problem, to_images
from pipelines.conditioning import Embedding
from pipelines.packed import PackedAdapter, pack, unpack


class QwenImageAdapter(PackedAdapter):
    """Adapter of a `QwenImagePipeline`."""

    default_steps = 50

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        if pipe.text_encoder is None:
            raise InputError(f"the {type(pipe).__name__} has no text encoder")
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
        return self.velocity(module, x, sigma, tokens, mask)

    def velocity(
        self, module: nn.Module, x: Tensor, sigma: Tensor, tokens: Tensor, mask: Tensor,
        more: tuple[Tensor, list[tuple[int, int, int]]] | None = None,
    ) -> Tensor:  # fmt: skip
        """Velocity [n, C, h, w]; `more` = further image tokens [n, N, 4 C] and (1, rows, columns) of their images."""
        h, w = x.shape[2:]
        image, shapes = pack(x), [(1, h // 2, w // 2)]
        count = image.shape[1]
        if more is not None:
            image, shapes = torch.cat([image, more[0]], 1), shapes + more[1]
        velocity = module(
            hidden_states=image,
            timestep=sigma,
            encoder_hidden_states=tokens,
            encoder_hidden_states_mask=mask,
            img_shapes=[shapes] * len(x),
            return_dict=False,
        )[0]
        return unpack(velocity[:, :count], h, w)

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

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Latents [n, C, h, w] (mean of the posterior) of [n, 3, H, W] in [-1, 1]."""
        mean, std = self._statistics()
        return ((self.pipe.vae.encode(pixels[:, :, None]).latent_dist.mode()[:, :, 0] - mean) / std).float()

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
