"""FLUX.1: how to encode and predict.

Convention of the model: packed latents, it predicts the velocity e - x0 and is conditioned on sigma itself (it
multiplies by 1000). FLUX.1-dev also reads the guidance scale; FLUX.1-schnell does not. Embeddings are (T5 tokens
[T, D], CLIP pooled [P]); the padding of T5 is not masked, as in the model's own training.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines.adapter import clip_problem, length_problem
from pipelines.conditioning import Embedding
from pipelines.packed import PackedAdapter, pack, unpack
from pipelines.samplers import Sampler


class FluxAdapter(PackedAdapter):
    """Adapter of a `FluxPipeline`."""

    refused = ("shift_terminal", *PackedAdapter.refused)

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        if pipe.text_encoder is None or pipe.text_encoder_2 is None:
            raise InputError("the FluxPipeline has no CLIP or no T5 text encoder: it reads both")

    @property
    def guidance(self) -> Literal["cfg", "embedded"]:
        """embedded for a distilled model (dev); cfg, the pipeline's true_cfg_scale, for one without (schnell)."""
        return "embedded" if self.pipe.transformer.config.guidance_embeds else "cfg"

    def deployed(self, height: int, width: int) -> Sampler:
        """What the plain pipeline does at this size when it is given a prompt and nothing else."""
        scale = 3.5 if self.guidance == "embedded" else 1.0
        return super().deployed(height, width).model_copy(update={"guidance": scale})

    def problem(self, text: str, tokens: int) -> str | None:
        """Why a text cannot be shown to the model in full, or None."""
        return clip_problem(self.pipe.tokenizer, text, self.pipe.tokenizer_max_length) or length_problem(
            len(self.pipe.tokenizer_2(text).input_ids), tokens
        )

    def encode(self, text: str, tokens: int) -> Embedding:
        """(tokens [`tokens`, D], pooled [P]) of one text."""
        embeds, pooled, _ = self.pipe.encode_prompt(
            prompt=text, prompt_2=None, device=self.device, max_sequence_length=tokens
        )
        return embeds[0], pooled[0]

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Velocity [n, C, h, w] at x [n, C, h, w] and noise level sigma [n] in [0, 1]."""
        tokens, pooled = embedding
        return self.velocity(module, x, sigma, tokens, pooled, guidance)

    def velocity(
        self, module: nn.Module, x: Tensor, sigma: Tensor, tokens: Tensor, pooled: Tensor, guidance: float,
        more: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Velocity [n, C, h, w]; `more` = further image tokens [n, N, 4 C] and their positions [N, 3]."""
        h, w = x.shape[2:]
        image, places = pack(x), positions(h // 2, w // 2, x.device)
        count = image.shape[1]
        if more is not None:
            image, places = torch.cat([image, more[0]], 1), torch.cat([places, more[1]])
        velocity = module(
            hidden_states=image,
            timestep=sigma,
            guidance=torch.full_like(sigma, guidance) if self.guidance == "embedded" else None,
            encoder_hidden_states=tokens,
            pooled_projections=pooled,
            txt_ids=x.new_zeros(tokens.shape[1], 3),
            img_ids=places,
            return_dict=False,
        )[0]
        return unpack(velocity[:, :count], h, w)


def positions(rows: int, columns: int, device: torch.device, picture: int = 0) -> Tensor:
    """Places (picture, row, column) of the tokens in reading order, [rows * columns, 3] float32."""
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).reshape(-1, 2)
    return torch.cat([torch.full((len(grid), 1), picture), grid], 1).to(device, torch.float32)
