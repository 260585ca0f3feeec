"""The parts of the shipped `FluxKontextPipeline` of the shapes world, built from their configuration classes."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from mmrubric.shapes.edits import DIRECTIONS, KIND_SHARES, enumerate_edits
from mmrubric.shapes.world import COLOURS, SHAPES
from pipelines.shapes.models import build_tokenizer

MAX_TOKENS = 8
"""Instruction length of both text encoders, start and end tokens included."""
WIDTH, HEADS, DOUBLE_LAYERS, SINGLE_LAYERS = 128, 4, 1, 4
TEXT_WIDTH = 64


def instructions() -> list[str]:
    """Every instruction of the grammar, after the empty one that classifier-free guidance needs."""
    return ["", *(edit.text for kind in KIND_SHARES for edit in enumerate_edits(kind))]


def edit_words() -> list[str]:
    """Every word of the instructions, in a fixed order."""
    return ["make", "remove", "move", "the", *DIRECTIONS, *COLOURS, *SHAPES]


def build_edit_pipeline(vae: AutoencoderKL) -> FluxKontextPipeline:
    """The whole pipeline around a trained VAE; the transformer has not learned anything yet."""
    clip = build_tokenizer(edit_words(), MAX_TOKENS)
    return FluxKontextPipeline(
        transformer=build_edit_transformer(vae.config["latent_channels"]),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=vae,
        text_encoder=_clip_encoder(clip),
        tokenizer=clip,
        text_encoder_2=_t5_encoder(),
        tokenizer_2=_t5_tokenizer(),  # pyright: ignore[reportArgumentType]
    )


def build_edit_transformer(latent_channels: int) -> FluxTransformer2DModel:
    """16 tokens of 2 x 2 latent pixels for the sample, as many for the source, 8 of text; no guidance scale is read."""
    return FluxTransformer2DModel(
        in_channels=4 * latent_channels,
        num_layers=DOUBLE_LAYERS,
        num_single_layers=SINGLE_LAYERS,
        attention_head_dim=WIDTH // HEADS,
        num_attention_heads=HEADS,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=TEXT_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(8, 12, 12),
    )


def tokenize(pipeline: FluxKontextPipeline, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [N, L] of CLIP and of T5, padded as the pipeline pads them."""
    options: dict[str, Any] = {"padding": "max_length", "max_length": MAX_TOKENS, "return_tensors": "pt"}
    return pipeline.tokenizer(texts, **options).input_ids, pipeline.tokenizer_2(texts, **options).input_ids


def _clip_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    ids: Any = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=TEXT_WIDTH, intermediate_size=2 * TEXT_WIDTH, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=MAX_TOKENS, **ids,
    )  # fmt: skip
    return CLIPTextModel(config)


def _t5_tokenizer() -> T5Tokenizer:
    """Each word of the instructions is one token, any other is unknown."""
    words = [("▁" + word, -1.0) for word in edit_words()]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -10.0), ("▁", -5.0), *words]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=MAX_TOKENS)


def _t5_encoder() -> T5EncoderModel:
    config = T5Config(
        vocab_size=4 + len(edit_words()), d_model=TEXT_WIDTH, d_kv=16, d_ff=2 * TEXT_WIDTH, num_layers=1, num_heads=4,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, dropout_rate=0.0,
    )  # fmt: skip
    return T5EncoderModel(config)
