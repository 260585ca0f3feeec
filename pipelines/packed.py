"""Models whose tokens are 2 x 2 latent pixels (FLUX.1, Qwen-Image): packing, sizes and the shift by size.

Rollouts hold unpacked latents [n, C, h, w]; tokens exist around the model call only, so noise, steps, log-probs
and decoding are the same for every model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmrubric.errors import InputError
from mmrubric.images import ImageOptions, normalize
from pipelines.adapter import DiffusersAdapter
from pipelines.samplers import Sampler

AS_IS = ImageOptions(max_side=None, max_bytes=None)
"""A source image is scaled once, by the pipeline's own rule."""


def pack(x: Tensor) -> Tensor:
    """Tokens [n, h w / 4, 4 C] of latents [n, C, h, w], row by row; channels first within a token."""
    n, channels, h, w = x.shape
    patches = x.reshape(n, channels, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(n, (h // 2) * (w // 2), channels * 4)


def unpack(tokens: Tensor, h: int, w: int) -> Tensor:
    """Latents [n, C, h, w] of tokens [n, h w / 4, 4 C]; the inverse of `pack`."""
    n, _, width = tokens.shape
    patches = tokens.reshape(n, h // 2, w // 2, width // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(n, width // 4, h, w)


def by_kind(kinds: Tensor, call: Callable[[Tensor, list[int]], Tensor]) -> Tensor:
    """Results [n, ...] of a call that takes rows of one kind only, in the order of the rows.

    Args:
        kinds: [n, k] int64 on the CPU; rows are of one kind where all k numbers are equal.
        call: (rows [m] int64, the k numbers of their kind) -> [m, ...].
    """
    distinct, kind = torch.unique(kinds, dim=0, return_inverse=True)
    places = [torch.nonzero(kind == number)[:, 0] for number in range(len(distinct))]
    parts = [call(rows, numbers) for rows, numbers in zip(places, distinct.tolist(), strict=True)]
    return torch.cat(parts)[torch.cat(places).argsort().to(parts[0].device)]


class PackedAdapter(DiffusersAdapter):
    """Adapter of a model on packed latents, deployed with noise levels that are shifted by the image's size."""

    default_sequence_length = 512
    default_steps = 28
    """Denoising steps of the plain pipeline."""

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        side = int(self.pipe.default_sample_size * self.pipe.vae_scale_factor)
        return side, side

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of a sample [C, H / f, W / f].

        Raises:
            InputError: a side that the VAE and the tokens do not divide.
        """
        factor = self.pipe.vae_scale_factor
        if height % (2 * factor) or width % (2 * factor):
            raise InputError(f"height and width must be multiples of {2 * factor} pixels, not {height} x {width}")
        return self.pipe.transformer.config.in_channels // 4, height // factor, width // factor

    def shift_for(self, height: int, width: int) -> float:
        """Shift with which the plain pipeline paints height x width pixels.

        Dynamic shifting (arXiv 2403.03206, section 5.3.2) maps sigma to e^mu / (e^mu + 1 / sigma - 1), which is
        the plain shift by s = e^mu (of type 'linear': s = mu), with mu linear in the number of tokens.
        """
        config = self.pipe.scheduler.config
        if not config.use_dynamic_shifting:
            return float(config.shift)
        tokens = (height // (2 * self.pipe.vae_scale_factor)) * (width // (2 * self.pipe.vae_scale_factor))
        slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
        mu = config.base_shift + slope * (tokens - config.base_image_seq_len)
        return math.exp(mu) if config.time_shift_type == "exponential" else mu

    def encode_pictures(
        self, pictures: Sequence[Any], size: Callable[[tuple[int, int]], tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Source images as tokens, one after the other.

        Args:
            pictures: up to `max_sources` images.
            size: height and width to scale an image of (height, width) to, multiples of a token.

        Returns:
            tokens [N, 4 C], and rows and columns of each image, [2 `max_sources`] int64 on the CPU, 0 where there is
            none; `predict` reads them to group the rows of a batch.
        """
        vae, unit = self.pipe.vae, 2 * self.pipe.vae_scale_factor
        tokens = [torch.zeros(0, self.pipe.transformer.config.in_channels, device=vae.device)]
        shapes = torch.zeros(self.max_sources, 2, dtype=torch.long)
        for number, source in enumerate(pictures):
            picture = normalize(source, AS_IS)
            h, w = size((picture.height, picture.width))
            pixels = self.pipe.image_processor.preprocess(picture, h, w)
            tokens.append(pack(self.encode_pixels(pixels.to(vae.device, vae.dtype)))[0])
            shapes[number] = torch.tensor([h // unit, w // unit])
        return torch.cat(tokens), shapes.flatten()

    def deployed(self, height: int, width: int) -> Sampler:
        """What the plain pipeline does at this size when it is given a prompt and nothing else."""
        return Sampler(
            steps=self.default_steps,
            shift=self.shift_for(height, width),
            shift_terminal=self.pipe.scheduler.config.shift_terminal,
        )
