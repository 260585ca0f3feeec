"""FLUX.1-Kontext (arXiv 2506.15742): FLUX.1 that edits a source image.

The clean latents of the source are further image tokens, told apart from the sample's by the first of their three
positions. A source of any size is scaled to one of the shapes that the model was trained on, so the sources of a
batch may have different numbers of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS
from torch import Tensor, nn

from pipelines.conditioning import Embedding
from pipelines.flux import FluxAdapter, positions
from pipelines.packed import by_kind

_TRAINED_AREA = 1024 * 1024
"""Pixels of the sample that the trained shapes belong to."""


class FluxKontextAdapter(FluxAdapter):
    """Adapter of a `FluxKontextPipeline`; a prompt without a source image is painted as by FLUX.1."""

    max_sources = 1

    def source_size(self, source: tuple[int, int], height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels to which a source (height, width) is scaled.

        The pipeline takes the trained shape whose proportions are nearest; for samples of another size than its
        own (1024 x 1024) the shapes shrink or grow with them, so that a small rollout does not carry 4096 tokens.
        """
        aspect = source[1] / source[0]
        _, w, h = min((abs(aspect - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
        scale, unit = math.sqrt(height * width / _TRAINED_AREA), 2 * self.pipe.vae_scale_factor
        return max(round(h * scale) // unit, 1) * unit, max(round(w * scale) // unit, 1) * unit

    def encode_sources(self, sources: Sequence[Any], height: int, width: int) -> Embedding:
        """(tokens [N, 4 C], rows and columns [2] int64 on the CPU) of a source image; N = 0 without one."""
        return self.encode_pictures(sources, lambda size: self.source_size(size, height, width))

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Velocity [n, C, h, w] at x [n, C, h, w] and noise level sigma [n] in [0, 1].

        The model knows no mask, so rows whose sources differ in shape go through it one shape at a time.
        """
        tokens, pooled, sources, shapes = embedding

        def velocity(at: Tensor, shape: list[int]) -> Tensor:
            at, (rows, columns) = at.to(x.device), shape
            more = (sources[at, : rows * columns], positions(rows, columns, x.device, picture=1))
            return self.velocity(module, x[at], sigma[at], tokens[at], pooled[at], guidance, more)

        return by_kind(shapes, velocity)
