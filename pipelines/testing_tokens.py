"""Tiny random Janus and Emu3 directories for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    Emu3ImageProcessor,
    Emu3Processor,
    Emu3TextConfig,
    Emu3VQVAEConfig,
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
)

from pipelines.quiet import quiet
from pipelines.shapes.janus_models import SPECIAL, build_janus_tokenizer, build_processor, generation_config
from pipelines.testing import all_words

EMU3_SPECIAL = {
    "bos_token": "<|begin|>",
    "eos_token": "<|end|>",
    "pad_token": "<|pad|>",
    "unk_token": "<|unknown|>",
    "image_token": "<image>",
    "boi_token": "<|image start|>",
    "eoi_token": "<|image end|>",
    "image_wrapper_token": "<|image token|>",
    "eof_token": "<|extra_201|>",
    "eol_token": "<|extra_200|>",
}
"""Special tokens by the names that `Emu3Processor` asks the tokenizer for."""
EMU3_CODES = 24


def tiny_janus_directory(path: str | Path, seed: int = 0, *, grid: int = 4, codes: int = 32, width: int = 16) -> Path:
    """Write a `JanusForConditionalGeneration` directory with random weights, the same for the same arguments.

    Args:
        path: directory to write.
        seed: seed of the weights; the global generators are left alone.
        grid: image tokens on a side; a token is 2 x 2 pixels.
        codes: entries of the codebook.
        width: of the language model, a multiple of 4.
    """
    tokenizer: Any = build_janus_tokenizer([*all_words(), '"'])
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
    )  # fmt: skip
    vision = JanusVisionConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=2 * grid, patch_size=2, mlp_ratio=1,
        projection_dim=width, depth=1, num_image_tokens=grid * grid,
    )  # fmt: skip
    vq = JanusVQVAEConfig(
        embed_dim=4, num_embeddings=codes, latent_channels=32, base_channels=32, channel_multiplier=(1, 1),
        num_res_blocks=0, num_patches=grid, projection_dim=width, image_token_embed_dim=width, initializer_range=0.3,
    )  # fmt: skip
    options: dict[str, Any] = {"initializer_range": 0.3}
    options["image_token_id"] = tokenizer.convert_tokens_to_ids(SPECIAL["image_token"])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = JanusForConditionalGeneration(
            JanusConfig(text_config=text, vision_config=vision, vq_config=vq, **options)
        )
    model.generation_config = generation_config(tokenizer, guidance=5.0)
    with quiet():
        model.save_pretrained(path)
        build_processor(tokenizer, 2 * grid, grid * grid).save_pretrained(path)
    return Path(path)


def tiny_emu3_directory(path: str | Path, seed: int = 0, *, grid: int = 2) -> Path:
    """Write an `Emu3ForConditionalGeneration` directory with random weights, the same for the same arguments.

    Args:
        path: directory to write.
        seed: seed of the weights; the global generators are left alone.
        grid: image tokens on a side; a token is 8 x 8 pixels, as `Emu3Processor` wants.
    """
    visual = [f"<|visual token {code:06d}|>" for code in range(EMU3_CODES)]
    special = {**EMU3_SPECIAL, **{f"visual_{code}_token": token for code, token in enumerate(visual)}}
    tokenizer: Any = build_janus_tokenizer([*all_words(), '"', "*"], special)
    # `Emu3Processor` writes the token that begins a text itself
    tokenizer.backend_tokenizer.post_processor = None
    words = tokenizer.get_vocab()
    text: Any = Emu3TextConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
    )  # fmt: skip
    vq = Emu3VQVAEConfig(
        codebook_size=EMU3_CODES, embed_dim=4, latent_channels=4, base_channels=32, channel_multiplier=(1, 1, 1, 1),
        num_res_blocks=1, attn_resolutions=(3,), hidden_size=32, temporal_downsample_factor=4,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Emu3ForConditionalGeneration(Emu3Config(vq_config=vq, text_config=text, vocabulary_map=words))
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        guidance_scale=3.0, image_area=(8 * grid) ** 2,
    )  # fmt: skip
    images = Emu3ImageProcessor(min_pixels=64, max_pixels=(8 * grid) ** 2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    with quiet():
        model.save_pretrained(path)
        Emu3Processor(images, tokenizer).save_pretrained(path)
    return Path(path)
