"""Stable Diffusion 3 and 3.5: how to encode, predict and decode.

Convention of the model: sigma runs from 1 (noise) to 0, it predicts the velocity e - x0, and it is
conditioned on 1000 * sigma. Embeddings are (tokens [L, D], pooled [P]).
"""

from __future__ import annotations

from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines.adapter import DiffusersAdapter, clip_problem, length_problem
from pipelines.conditioning import Embedding


class SD3Adapter(DiffusersAdapter):
    """Adapter of a `StableDiffusion3Pipeline`, with or without T5 and with any of its sizes."""

    default_sequence_length = 256
    """T5 tokens that the pipeline takes when nothing is said."""
    refused = ("use_dynamic_shifting", "shift_terminal", *DiffusersAdapter.refused)

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        side = int(self.pipe.transformer.config.sample_size * self.pipe.vae_scale_factor)
        return side, side

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of a sample [C, H / f, W / f].

        Raises:
            InputError: a side that the VAE and the patches do not divide, or beyond the position table.
        """
        factor, config = self.pipe.vae_scale_factor, self.pipe.transformer.config
        unit = factor * config.patch_size
        if height % unit or width % unit:
            raise InputError(f"height and width must be multiples of {unit} pixels, not {height} x {width}")
        if max(height, width) // unit > config.pos_embed_max_size:
            raise InputError(f"{height} x {width} pixels: this model goes up to {unit * config.pos_embed_max_size}")
        return config.in_channels, height // factor, width // factor

    def problem(self, text: str, tokens: int) -> str | None:
        """Why a text cannot be shown to the model in full, or None."""
        for tokenizer in (self.pipe.tokenizer, self.pipe.tokenizer_2):
            problem = clip_problem(tokenizer, text, self.pipe.tokenizer_max_length)
            if problem:
                return problem
        t5 = self.pipe.tokenizer_3
        return None if t5 is None else length_problem(len(t5(text).input_ids), tokens)

    def encode(self, text: str, tokens: int) -> Embedding:
        """(tokens [L + `tokens`, D], pooled [P]) of one text."""
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            prompt=text,
            prompt_2=None,
            prompt_3=None,
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=tokens,
        )
        return embeds[0], pooled[0]

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Velocity [n, C, h, w] at x [n, C, h, w] and noise level sigma [n] in [0, 1]."""
        tokens, pooled = embedding
        return module(
            hidden_states=x,
            timestep=sigma * 1000.0,
            encoder_hidden_states=tokens,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
