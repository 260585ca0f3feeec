"""Tiny random FLUX.1 and FLUX.1-Kontext directories for tests."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel

from pipelines.quiet import quiet
from pipelines.shapes.models import build_tokenizer
from pipelines.testing import all_words, tiny_t5_encoder, tiny_t5_tokenizer, tiny_vae


def tiny_flux_directory(
    path: str | Path, seed: int = 0, *, pixels: int = 16, distilled: bool = True, kontext: bool = False,
    max_tokens: int = 24,
) -> Path:  # fmt: skip
    """Write a `FluxPipeline` (or `FluxKontextPipeline`) directory with random weights, the same for the same arguments.

    The latent has 4 channels and half as many rows and columns as the image; tokens are 2 x 2 latent pixels.

    Args:
        path: directory to write.
        seed: seed of the weights; the global generators are left alone.
        pixels: size that the VAE is made for, a multiple of 4; other sizes work.
        distilled: as FLUX.1-dev: the transformer reads the guidance scale and the scheduler shifts by the size of
            the image. False: as FLUX.1-schnell, neither.
        kontext: the pipeline that edits a source image; its parts are the same.
        max_tokens: prompt length of the CLIP encoder.
    """
    tokenizer = build_tokenizer(all_words(), max_tokens)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipe = (FluxKontextPipeline if kontext else FluxPipeline)(
            transformer=FluxTransformer2DModel(
                in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
                joint_attention_dim=32, pooled_projection_dim=16, guidance_embeds=distilled,
                axes_dims_rope=(4, 6, 6),
            ),
            scheduler=FlowMatchEulerDiscreteScheduler(
                shift=3.0 if distilled else 1.0, use_dynamic_shifting=distilled
            ),
            vae=tiny_vae(pixels),
            text_encoder=_clip(len(tokenizer), max_tokens),
            tokenizer=tokenizer,
            text_encoder_2=tiny_t5_encoder(32),
            tokenizer_2=tiny_t5_tokenizer(),  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
    with quiet():
        pipe.save_pretrained(path)
    return Path(path)


def _clip(words: int, max_tokens: int) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=words, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=max_tokens, bos_token_id=words - 2, eos_token_id=words - 1, pad_token_id=words - 1,
    )  # fmt: skip
    return CLIPTextModel(config)
