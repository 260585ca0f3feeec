"""Janus and Janus-Pro (arXiv 2501.17811): image tokens with embeddings and a head of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mmrubric.errors import InputError
from pipelines.token_adapter import FREE, TokenAdapter


class JanusAdapter(TokenAdapter):
    """A `JanusForConditionalGeneration`. The unconditional branch is the prompt with padding in place of every token
    but the first of the text and the one that begins an image, as in `generate(generation_mode="image")`."""

    trainable = (
        "model.language_model",
        "model.generation_embeddings",
        "model.generation_aligner",
        "model.generation_head",
    )
    vq_name = "model.vqmodel"
    reads_negative = False

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__(model, processor)
        tokenizer = processor.tokenizer
        self._kept = {tokenizer.bos_token_id, tokenizer.convert_tokens_to_ids(processor.image_start_token)}
        if None in self._kept:
            raise InputError("the tokenizer of this Janus model has no token that begins a text or an image")

    @property
    def text_model(self) -> Any:
        return self.model.model.language_model

    @property
    def vocabulary(self) -> int:
        return self.model.config.vq_config.num_embeddings

    @property
    def allowed(self) -> Tensor | None:
        return None

    @property
    def layout(self) -> Tensor:
        return torch.full((self.model.config.vision_config.num_image_tokens,), FREE)

    @property
    def size(self) -> tuple[int, int]:
        vq = self.model.config.vq_config
        side = vq.num_patches * 2 ** (len(vq.channel_multiplier) - 1)
        return side, side

    @property
    def default_guidance(self) -> float:
        return 5.0

    def prompt_ids(self, text: str) -> list[int]:
        if self.processor.chat_template is not None:
            said = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            text = self.processor.apply_chat_template(said, add_generation_prompt=True)
        return self.processor.tokenizer(text + self.processor.image_start_token).input_ids

    def unconditional_ids(self, text: str, negative: str) -> list[int]:
        return [token if token in self._kept else self.pad for token in self.prompt_ids(text)]

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.text_model.embed_tokens(ids)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return self.model.model.generation_aligner(self.model.model.generation_embeddings(tokens))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.model.generation_head(hidden)

    def decode(self, tokens: Tensor) -> np.ndarray:
        return self.to_pixels(self.model.model.vqmodel.decode(tokens))

    def encode(self, images: np.ndarray) -> Tensor:
        vq = self.model.model.vqmodel
        latent = vq.quant_conv(vq.encoder(self.to_values(images))).permute(0, 2, 3, 1).flatten(1, 2)
        # `decode` scales codes to unit length, so the nearest code is the one in the nearest direction
        codes = functional.normalize(vq.quantize.embedding.weight, dim=-1)
        return (functional.normalize(latent, dim=-1) @ codes.T).argmax(-1)
