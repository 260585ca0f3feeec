"""Tiny random Stable Diffusion 1.5 and XL directories for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel

from pipelines.quiet import quiet
from pipelines.shapes.models import build_text_encoder, build_tokenizer
from pipelines.testing import all_words, tiny_vae

_WIDTH = 16


def tiny_sd15_directory(path: str | Path, seed: int = 0, *, scheduler: Any = None, pixels: int = 16) -> Path:
    """Write a `StableDiffusionPipeline` directory with random weights, the same for the same arguments.

    The latent has 4 channels and half as many rows and columns as the image.

    Args:
        path: directory to write.
        seed: seed of the weights; the global generators are left alone.
        scheduler: None = `sd_scheduler()`.
        pixels: the model's own size.
    """
    tokenizer = build_tokenizer(all_words(), 24)
    ids: Any = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=_WIDTH, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=24, **ids,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts: dict[str, Any] = dict(
            vae=_vae(pixels), text_encoder=CLIPTextModel(config), tokenizer=tokenizer, unet=_unet(pixels, _WIDTH),
            scheduler=scheduler or sd_scheduler(), safety_checker=None, feature_extractor=None,
            requires_safety_checker=False,
        )  # fmt: skip
    with quiet():
        StableDiffusionPipeline(**parts).save_pretrained(path)
    return Path(path)


def tiny_sdxl_directory(path: str | Path, seed: int = 0, *, scheduler: Any = None, pixels: int = 16) -> Path:
    """Write a `StableDiffusionXLPipeline` directory; arguments as those of `tiny_sd15_directory`."""
    tokenizer = build_tokenizer(all_words(), 24)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts: dict[str, Any] = dict(
            vae=_vae(pixels), text_encoder=build_text_encoder(tokenizer, _WIDTH), tokenizer=tokenizer,
            text_encoder_2=build_text_encoder(tokenizer, _WIDTH), tokenizer_2=tokenizer,
            unet=_unet(
                pixels, 2 * _WIDTH, addition_embed_type="text_time", addition_time_embed_dim=8,
                projection_class_embeddings_input_dim=6 * 8 + _WIDTH, use_linear_projection=True,
            ),
            scheduler=scheduler or sd_scheduler(), add_watermarker=False,
        )  # fmt: skip
    with quiet():
        StableDiffusionXLPipeline(**parts).save_pretrained(path)
    return Path(path)


def sd_scheduler(**options: Any) -> DDIMScheduler:
    """The betas of Stable Diffusion."""
    plain: dict[str, Any] = dict(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    )  # fmt: skip
    return DDIMScheduler(**(plain | options))


def _vae(pixels: int) -> AutoencoderKL:
    vae = tiny_vae(pixels)
    vae.register_to_config(shift_factor=None)
    return vae


def _unet(pixels: int, context: int, **options: Any) -> UNet2DConditionModel:
    plain: dict[str, Any] = dict(
        sample_size=pixels // 2, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=context, attention_head_dim=2, norm_num_groups=4,
    )  # fmt: skip
    return UNet2DConditionModel(**(plain | options))
