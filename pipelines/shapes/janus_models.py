"""The parts of the shipped Janus model, built from their configuration classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    JanusVisionConfig,
    JanusVQVAE,
    JanusVQVAEConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from mmrubric.shapes.world import SIZE
from pipelines.shapes.models import build_merges

GRID = 8
"""Image tokens on a side of the picture."""
CODES = 1024
"""Entries of the codebook."""
WIDTH, LAYERS, HEADS, INNER = 128, 6, 4, 320
SPECIAL = {
    "bos_token": "<|begin|>",
    "eos_token": "<|end|>",
    "pad_token": "<|pad|>",
    "unk_token": "<|unknown|>",
    "image_token": "<|image|>",
    "boi_token": "<|image begin|>",
    "eoi_token": "<|image end|>",
}
"""Special tokens by the names that `JanusProcessor` asks the tokenizer for."""


def build_janus_tokenizer(words: Sequence[str], special: dict[str, str] | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer in which each given word is one token, whatever its case; other ASCII text falls into characters.

    Args:
        words: words and marks in lower case.
        special: special tokens by name; the text starts with `bos_token`. None = `SPECIAL`.
    """
    special = special or SPECIAL
    characters = [chr(c) for c in range(33, 127)]
    merges = build_merges([[*word[:-1], word[-1] + "</w>"] for word in words])
    vocabulary = [*characters, *(c + "</w>" for c in characters), *("".join(pair) for pair in merges)]
    index = {token: i for i, token in enumerate(dict.fromkeys([*special.values(), *vocabulary]))}
    model: Any = models.BPE(vocab=index, merges=merges, unk_token=special["unk_token"], end_of_word_suffix="</w>")
    tokenizer: Any = Tokenizer(model)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    start = special["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, index[start])]
    )
    known = {"bos_token", "eos_token", "pad_token", "unk_token"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        extra_special_tokens={name: token for name, token in special.items() if name not in known},
        **{name: special[name] for name in known},
    )


def build_processor(tokenizer: PreTrainedTokenizerFast, pixels: int, tokens: int) -> JanusProcessor:
    """The processor of a model for square pictures of `pixels` a side and `tokens` image tokens."""
    images = JanusImageProcessor(size={"height": pixels, "width": pixels}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return JanusProcessor(images, tokenizer, num_image_tokens=tokens)


def build_vq_config() -> JanusVQVAEConfig:
    """64 x 64 pixels to 8 x 8 tokens of 1024 codes with 8 values each."""
    return JanusVQVAEConfig(
        embed_dim=8,
        num_embeddings=CODES,
        latent_channels=64,
        base_channels=32,
        channel_multiplier=(1, 1, 1, 2),
        num_res_blocks=0,
        num_patches=GRID,
        projection_dim=WIDTH,
        image_token_embed_dim=WIDTH,
    )


def build_vq() -> JanusVQVAE:
    return JanusVQVAE(build_vq_config())


def build_janus(vq: JanusVQVAE, tokenizer: Any) -> JanusForConditionalGeneration:
    """The whole model around a trained VQ model; the tower that reads images is as small as can be and untrained."""
    vision = JanusVisionConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        image_size=SIZE,
        patch_size=SIZE // GRID,
        mlp_ratio=1,
        projection_dim=WIDTH,
        depth=1,
        num_image_tokens=GRID * GRID,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    parts: Any = {"text_config": text, "vision_config": vision, "vq_config": vq.config}
    config = JanusConfig(**parts, image_token_id=tokenizer.convert_tokens_to_ids(SPECIAL["image_token"]))
    model = JanusForConditionalGeneration(config)
    model.model.vqmodel.load_state_dict(vq.state_dict())
    model.generation_config = generation_config(tokenizer)
    return model


def generation_config(tokenizer: Any, guidance: float = 3.0) -> GenerationConfig:
    """What plain `generate(generation_mode="image")` reads."""
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        guidance_scale=guidance,
        do_sample=True,
        generation_kwargs={"boi_token_id": tokenizer.convert_tokens_to_ids(SPECIAL["boi_token"])},
    )
