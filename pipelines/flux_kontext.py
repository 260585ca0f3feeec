"""FLUX.1-Kontext (arXiv 2506.15742): FLUX.1 that edits a source image.

The clean latents of the source are further image tokens, told apart from the sample's by the first of their three
positions. A source of any size is scaled to one of the shapes that the model was trained on, so the sources of a
batch may have different numbers of tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS
from torch import Tensor, nn
from torch.nn import functional

from mmrubric.images import ImageOptions, normalize
from pipelines.conditioning import Embedding
from pipelines.flux import FluxAdapter, positions
from pipelines.packed import pack

_TRAINED_AREA = 1024 * 1024
"""Pixels of the sample that the trained shapes belong to."""
_AS_IS = ImageOptions(max_side=None, max_bytes=None)


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

    def encode_source(self, source: Any, height: int, width: int) -> Embedding:
        """(tokens [N, 4 C], rows and columns [2] int64) of a source image or None; tokens are filled up with zeros
        to the N of the largest trained shape, and those zeros are never shown to the model."""
        unit = 2 * self.pipe.vae_scale_factor
        shapes = [self.source_size((h, w), height, width) for w, h in PREFERRED_KONTEXT_RESOLUTIONS]
        limit = max((h // unit) * (w // unit) for h, w in shapes)
        vae = self.pipe.vae
        if source is None:
            # on the CPU: predict reads it to group the rows
            return torch.zeros(limit, self.pipe.transformer.config.in_channels, device=vae.device), torch.zeros(
                2
            ).long()
        picture, processor = normalize(source, _AS_IS), self.pipe.image_processor
        h, w = self.source_size((picture.height, picture.width), height, width)
        pixels = processor.preprocess(processor.resize(picture, h, w), h, w)
        tokens = pack(self.encode_pixels(pixels.to(vae.device, vae.dtype)))[0]
        return functional.pad(tokens, (0, 0, 0, limit - len(tokens))), torch.tensor([h // unit, w // unit])

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Velocity [n, C, h, w] at x [n, C, h, w] and noise level sigma [n] in [0, 1].

        The model knows no mask, so rows whose sources differ in shape go through it one shape at a time.
        """
        tokens, pooled, sources, shapes = embedding
        kinds, kind = torch.unique(shapes, dim=0, return_inverse=True)
        places, parts = [], []
        for number, (rows, columns) in enumerate(kinds.tolist()):
            at = torch.nonzero(kind == number)[:, 0].to(x.device)
            more = (sources[at, : rows * columns], positions(rows, columns, x.device, picture=1))
            places.append(at)
            parts.append(self.velocity(module, x[at], sigma[at], tokens[at], pooled[at], guidance, more))
        return torch.cat(parts)[torch.cat(places).argsort()]
