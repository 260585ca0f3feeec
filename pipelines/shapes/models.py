"""The parts of the shipped `StableDiffusion3Pipeline`, built from their configuration classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

from mmrubric.shapes.grammar import COUNT_WORDS, PLURALS, RELATIONS
from mmrubric.shapes.world import BACKGROUNDS, COLOURS, RADII, SHAPES, SIZE, WORDS

MAX_TOKENS = 16
"""Prompt length of the text encoders, start and end tokens included."""
WIDTH, LAYERS, HEADS = 128, 5, 4
TEXT_WIDTHS = (64, 64)
LATENT_CHANNELS = 8


def grammar_words() -> list[str]:
    """Every word of the prompt grammar, in lower case and in a fixed order."""
    phrases = [
        *COUNT_WORDS.values(),
        *RADII,
        *COLOURS,
        *SHAPES,
        *PLURALS.values(),
        *RELATIONS,
        *BACKGROUNDS,
        *WORDS,
    ]
    words = [
        "a",
        "an",
        "and",
        "on",
        "in",
        "the",
        "word",
        "background",
        *(w for p in phrases for w in p.lower().split()),
    ]
    return list(dict.fromkeys(words))


def build_tokenizer(words: Sequence[str], max_tokens: int = MAX_TOKENS) -> CLIPTokenizer:
    """A CLIP tokenizer in which each given word is one token and any other ASCII text falls into characters."""
    characters = [chr(c) for c in range(33, 127)]
    merges = build_merges([[*word[:-1], word[-1] + "</w>"] for word in words])
    vocabulary = [*characters, *(c + "</w>" for c in characters), *("".join(pair) for pair in merges)]
    vocabulary += ["<|startoftext|>", "<|endoftext|>"]
    index = {token: i for i, token in enumerate(dict.fromkeys(vocabulary))}
    return CLIPTokenizer(vocab=index, merges=merges, model_max_length=max_tokens)  # pyright: ignore[reportArgumentType]


def build_merges(words: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Merges of a BPE tokenizer, by rank, that make each word, given in characters, one token."""
    merges: list[tuple[str, str]] = []
    for word in words:
        # apply what earlier words brought, lowest rank first as BPE does, then join what is left, so that a later
        # word never splits an earlier one
        pieces = list(word)
        while len(pieces) > 1:
            pairs = list(pairwise(pieces))
            known = [pair for pair in pairs if pair in merges]
            pair = min(known, key=merges.index) if known else pairs[0]
            if not known:
                merges.append(pair)
            place = pairs.index(pair)
            pieces[place : place + 2] = ["".join(pair)]
    return merges


def build_text_encoder(tokenizer: CLIPTokenizer, width: int) -> CLIPTextModelWithProjection:
    """A two-layer CLIP text encoder; the pipeline reads the output of its first layer and the pooled projection."""
    ids: Any = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=tokenizer.model_max_length,
        **ids,
    )
    return CLIPTextModelWithProjection(config)


def build_vae() -> AutoencoderKL:
    """64 x 64 pixels to an 8 x 8 latent of 8 channels."""
    blocks: Any = {  # diffusers annotates these as tuples of one
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (8, 16, 32, 64),
    }
    return AutoencoderKL(
        **blocks,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=2,
        sample_size=SIZE,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
        force_upcast=False,
    )


def build_transformer() -> SD3Transformer2DModel:
    """16 image tokens of 2 x 2 latent pixels.

    The values of a token (32) must stay well below the width: the residual stream carries the noisy input as well as
    the meaning, and a token of 96 values in 128 hardly learns.
    """
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=LAYERS,
        attention_head_dim=WIDTH // HEADS,
        num_attention_heads=HEADS,
        joint_attention_dim=sum(TEXT_WIDTHS),
        caption_projection_dim=WIDTH,
        pooled_projection_dim=sum(TEXT_WIDTHS),
        pos_embed_max_size=4,
    )


def build_pipeline(vae: AutoencoderKL) -> StableDiffusion3Pipeline:
    """The whole pipeline around a trained VAE, without T5."""
    tokenizer = build_tokenizer(grammar_words())
    return StableDiffusion3Pipeline(
        transformer=build_transformer(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=vae,
        text_encoder=build_text_encoder(tokenizer, TEXT_WIDTHS[0]),
        tokenizer=tokenizer,
        text_encoder_2=build_text_encoder(tokenizer, TEXT_WIDTHS[1]),
        tokenizer_2=tokenizer,
        text_encoder_3=None,  # pyright: ignore[reportArgumentType]
        tokenizer_3=None,  # pyright: ignore[reportArgumentType]
    )
