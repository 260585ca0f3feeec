"""Stable Diffusion XL (arXiv 2307.01952): how to encode and predict.

A denoising diffusion model as in `pipelines.sd15`. It also reads the size of the picture; as in the plain pipeline,
that is the size of the sample, uncropped. Embeddings are (tokens of both CLIP encoders [77, D], pooled [P]).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines.adapter import clip_problem
from pipelines.conditioning import Embedding
from pipelines.sd15 import DDIMAdapter


class SDXLAdapter(DDIMAdapter):
    """Adapter of a `StableDiffusionXLPipeline`."""

    deployed_guidance = 5.0

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        if pipe.text_encoder is None or pipe.text_encoder_2 is None:
            raise InputError("the StableDiffusionXLPipeline lacks a text encoder: the base model has two")

    def problem(self, text: str, tokens: int) -> str | None:
        """Why a text cannot be shown to the model in full, or None."""
        for tokenizer in (self.pipe.tokenizer, self.pipe.tokenizer_2):
            problem = clip_problem(tokenizer, text, tokenizer.model_max_length)
            if problem:
                return problem
        return None

    def encode(self, text: str, tokens: int) -> Embedding:
        """(tokens [L, D], pooled [P]) of one text; zeros for an empty one where the pipeline has
        `force_zeros_for_empty_prompt`, as for a negative prompt that is not given."""
        embeds, _, pooled, _ = self.pipe.encode_prompt(text, device=self.device, do_classifier_free_guidance=False)
        if not text and self.pipe.config.force_zeros_for_empty_prompt:
            embeds, pooled = torch.zeros_like(embeds), torch.zeros_like(pooled)
        return embeds[0], pooled[0]

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Noise or v [n, C, h, w] at x [n, C, h, w] and level sigma [n] in [0, 1]."""
        tokens, pooled = embedding
        height, width = (side * self.pipe.vae_scale_factor for side in x.shape[2:])
        size = torch.tensor([height, width, 0, 0, height, width], device=x.device, dtype=tokens.dtype)
        return module(
            x,
            self.timesteps(sigma),
            encoder_hidden_states=tokens,
            added_cond_kwargs={"text_embeds": pooled, "time_ids": size.expand(len(x), -1)},
            return_dict=False,
        )[0]
