"""Builders of tiny random models for tests: real pipeline directories of a few hundred kilobytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import T5Config, T5EncoderModel, T5Tokenizer

from pipelines.quiet import quiet
from pipelines.shapes.models import build_text_encoder, build_tokenizer, grammar_words

PROMPTS = (
    "a red circle left of a blue square on a white background",
    "two green triangles on a black background",
    "a large yellow circle on a white background",
    "three blue squares on a black background",
)
"""Prompts of different lengths that every tiny pipeline can read."""


def tiny_sd3_directory(
    path: str | Path, seed: int = 0, *, pixels: int = 16, width: int = 16, layers: int = 2, t5: bool = False,
    shift: float = 1.0, max_tokens: int = 24,
) -> Path:  # fmt: skip
    """Write a `StableDiffusion3Pipeline` directory with random weights, the same for the same arguments.

    The latent has 4 channels and half as many rows and columns as the image, patches are 2 x 2 latent pixels,
    so 16 pixels make 16 tokens. Words of the shapes grammar are one token each.

    Args:
        path: directory to write.
        seed: seed of the weights; the global generators are left alone.
        pixels: side of the square images, a multiple of 4.
        width: width of the transformer and the text encoders, a multiple of 4.
        layers: blocks of the transformer.
        t5: with a T5 encoder (words of `PROMPTS` only) or without.
        shift: of the scheduler.
        max_tokens: prompt length of the CLIP encoders.
    """
    tokenizer = build_tokenizer(all_words(), max_tokens)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipe = StableDiffusion3Pipeline(
            transformer=SD3Transformer2DModel(
                sample_size=pixels // 2, patch_size=2, in_channels=4, out_channels=4, num_layers=layers,
                attention_head_dim=width // 2, num_attention_heads=2, joint_attention_dim=2 * width,
                caption_projection_dim=width, pooled_projection_dim=2 * width, pos_embed_max_size=pixels // 4,
                qk_norm="rms_norm",
            ),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
            vae=tiny_vae(pixels),
            text_encoder=build_text_encoder(tokenizer, width),
            tokenizer=tokenizer,
            text_encoder_2=build_text_encoder(tokenizer, width),
            tokenizer_2=tokenizer,
            text_encoder_3=tiny_t5_encoder(2 * width) if t5 else None,  # pyright: ignore[reportArgumentType]
            tokenizer_3=tiny_t5_tokenizer() if t5 else None,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
    with quiet():
        pipe.save_pretrained(path)
    return Path(path)


def all_words() -> list[str]:
    """Words that are one token each in every tiny pipeline."""
    return list(dict.fromkeys([*grammar_words(), *" ".join(PROMPTS).split()]))


def tiny_vae(pixels: int) -> AutoencoderKL:
    """A 2-D VAE with 4 channels and half as many rows and columns as the image."""
    config: dict[str, Any] = dict(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8), layers_per_block=1, latent_channels=4, norm_num_groups=2,
        sample_size=pixels, mid_block_add_attention=False, use_quant_conv=False, use_post_quant_conv=False,
        scaling_factor=1.5, shift_factor=0.1,
    )  # fmt: skip
    return AutoencoderKL(**config)


def tiny_t5_tokenizer() -> T5Tokenizer:
    """Words of `PROMPTS` are one token each."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -10.0), ("▁", -5.0), *(("▁" + w, -1.0) for w in _t5_words())]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=64)


def tiny_t5_encoder(width: int) -> T5EncoderModel:
    """One layer of `width` features."""
    config = T5Config(
        vocab_size=4 + len(_t5_words()), d_model=width, d_kv=8, d_ff=2 * width, num_layers=1, num_heads=2,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return T5EncoderModel(config)


def _t5_words() -> list[str]:
    return sorted({word for prompt in PROMPTS for word in prompt.split()})
