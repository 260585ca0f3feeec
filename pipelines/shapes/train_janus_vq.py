"""Stage 1 of the shipped Janus model: the VQ model that makes tokens of pictures and pictures of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import JanusVQVAE

from mmrubric.shapes.world import SIZE
from pipelines.shapes.data import Pictures
from pipelines.shapes.janus_models import CODES, GRID
from pipelines.shapes.state import Stage
from pipelines.shapes.train_vae import SHOWN_WEIGHT, to_model

CELL = SIZE // GRID
"""Pixels on a side of a token."""
CROP = 4 * CELL
"""Side of the training crops, in pixels."""
NOISE = 0.1
"""Standard deviation of the noise on the unit latent before there are codes, so that near latents decode alike."""
COMMITMENT = 0.25
"""Weight of the pull of the latent towards its code; the code is pulled with weight 1 (arXiv 1711.00937)."""
CLUSTER_ROUNDS = 20


class Reconstruct(nn.Module):
    """Encoder, codes of unit length (arXiv 2110.04627) and decoder; `quantise` False leaves the latent as it is."""

    def __init__(self, vq: JanusVQVAE) -> None:
        super().__init__()
        self.vq, self.quantise = vq, False

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstruction [B, 3, H, W] and the codebook loss, of images in [-1, 1] and noise [B, 8, H / 8, W / 8]."""
        latent = unit(self.vq, images)
        if self.quantise:
            codes = functional.normalize(self.vq.quantize.embedding(nearest(self.vq, latent)), dim=-1)
            codes = codes.permute(0, 3, 1, 2)
            pull = (codes - latent.detach()).square().mean() + COMMITMENT * (codes.detach() - latent).square().mean()
            used = latent + (codes - latent).detach()
        else:
            pull, used = latent.new_zeros(()), functional.normalize(latent + NOISE * noise, dim=1)
        return self.vq.decoder(self.vq.post_quant_conv(used)), pull


def unit(vq: JanusVQVAE, images: Tensor) -> Tensor:
    """Latent of unit length [B, 8, H / 8, W / 8]."""
    return functional.normalize(vq.quant_conv(vq.encoder(images)).float(), dim=1)


def nearest(vq: JanusVQVAE, latent: Tensor) -> Tensor:
    """Codes [B, H, W] int64 of a latent [B, 8, H, W]."""
    codes = functional.normalize(vq.quantize.embedding.weight, dim=-1)
    return (latent.permute(0, 2, 3, 1) @ codes.T).argmax(-1)


def reconstruction_loss(output: Tensor, images: Tensor) -> Tensor:
    """Absolute and squared error; what differs from the background counts `SHOWN_WEIGHT` times more."""
    error = output.float() - images
    ground = images.flatten(2).median(-1).values[:, :, None, None]
    shown = ((images - ground).abs().amax(1, keepdim=True) > 0.1).float()
    return ((1 + SHOWN_WEIGHT * shown) * (error.abs() + 2 * error.square())).mean()


def train_vq(
    vq: JanusVQVAE, pictures: Pictures, collages: np.ndarray, smooth: Stage, stage: Stage, autocast: bool
) -> None:
    """Train on crops without codes, start the codes from the clusters of the latent, then train with codes: a codebook
    that starts so has hardly any dead codes. Each stage goes on where it stopped.

    Collages, which are crowded, take half of the smooth stage and none of the stage with codes, so that no code is
    spent on what a scene never shows.
    """
    scenes, model = torch.from_numpy(pictures.pixels), Reconstruct(vq)
    crowded = torch.cat([torch.from_numpy(collages), scenes[: len(collages)]])
    cells = (SIZE - CROP) // CELL + 1

    def step(generator: torch.Generator) -> Tensor:
        data = scenes if model.quantise else crowded
        rows = torch.randint(len(data), (stage.batch,), generator=generator)
        top, left = (CELL * torch.randint(cells, (2,), generator=generator)).tolist()
        images = to_model(data[rows, top : top + CROP, left : left + CROP])
        noise = torch.randn(stage.batch, vq.config.embed_dim, CROP // CELL, CROP // CELL, generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output, pull = model(images, noise)
        return reconstruction_loss(output, images) + pull

    smooth.run(model, step)
    cluster(vq, scenes, torch.Generator().manual_seed(0))
    model.quantise = True
    stage.run(model, step)
    normalise(vq)


def refine_vq_decoder(vq: JanusVQVAE, pictures: Pictures, stage: Stage, autocast: bool) -> None:
    """Train the decoder alone on whole pictures, whose normalisation statistics are not those of a crop."""
    data, decoder = torch.from_numpy(pictures.pixels), nn.ModuleList([vq.post_quant_conv, vq.decoder])

    def step(generator: torch.Generator) -> Tensor:
        images = to_model(data[torch.randint(len(data), (stage.batch,), generator=generator)])
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with torch.no_grad():
                tokens: Any = nearest(vq, unit(vq, images)).flatten(1)
                codes = vq.quantize.get_codebook_entry(tokens)
            output = vq.decoder(vq.post_quant_conv(codes))
        return reconstruction_loss(output, images)

    stage.run(decoder, step)


@torch.no_grad()
def cluster(vq: JanusVQVAE, pixels: Tensor, generator: torch.Generator) -> None:
    """Start the codebook from the spherical k-means clusters of the latents of 512 pictures."""
    rows = torch.randint(len(pixels), (512,), generator=generator)
    latent = torch.cat([unit(vq, to_model(pixels[part])) for part in rows.split(64)])
    # plain background would take most of the codes: latents that nearly coincide count once
    points = (latent.permute(0, 2, 3, 1).flatten(0, 2) * 30).round().unique(dim=0)
    points = functional.normalize(points, dim=1)
    centres = points[torch.randperm(len(points), generator=generator)[:CODES]]
    for _ in range(CLUSTER_ROUNDS):
        place = (points @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, place, points)
        centres = torch.where(sums.norm(dim=1, keepdim=True) > 0, functional.normalize(sums, dim=1), centres)
    vq.quantize.embedding.weight.copy_(centres)


@torch.no_grad()
def normalise(vq: JanusVQVAE) -> None:
    """Codes of unit length, so that the model's own `encode`, which compares distances, finds the same codes."""
    vq.quantize.embedding.weight.copy_(functional.normalize(vq.quantize.embedding.weight, dim=-1))


@torch.no_grad()
def encode_tokens(vq: JanusVQVAE, pictures: Pictures, batch: int = 128) -> Tensor:
    """Tokens [N, 64] int16 of all pictures."""
    parts = torch.from_numpy(pictures.pixels).split(batch)
    return torch.cat([nearest(vq, unit(vq, to_model(part))).flatten(1).short() for part in parts])
