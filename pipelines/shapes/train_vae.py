"""Stage 1 of the shipped generator: the VAE."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from rich.progress import track
from torch import Tensor

from mmrubric.shapes.world import SIZE
from pipelines.shapes.data import Pictures
from pipelines.shapes.state import Stage

CROP = 32
"""Side of the training crops, in pixels."""
SHOWN_WEIGHT = 4.0
"""What is drawn counts so much more than the background when the decoder is refined."""
KL_WEIGHT = 1e-4
"""Small: the latent stays smooth without losing the colour and the edges of small shapes."""


def to_model(pixels: Tensor) -> Tensor:
    """uint8 [B, 64, 64, 3] to float [B, 3, 64, 64] in [-1, 1]."""
    return pixels.permute(0, 3, 1, 2).float().div(127.5).sub(1)


def vae_loss(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """Absolute and squared error of the reconstruction, and the KL to a standard normal, each a mean over elements."""
    posterior = vae.encode(images).latent_dist  # pyright: ignore[reportAttributeAccessIssue]
    reconstruction = vae.decode(posterior.sample()).sample  # pyright: ignore[reportAttributeAccessIssue]
    error = reconstruction - images
    kl = posterior.kl().mean() / posterior.mean[0].numel()
    return error.abs().mean() + 2 * error.square().mean() + KL_WEIGHT * kl


def train_vae(vae: AutoencoderKL, collages: np.ndarray, pictures: Pictures, stage: Stage) -> None:
    """Train to the end of the stage on crops, going on where it stopped; then set the scale of the latent."""
    scenes = torch.from_numpy(pictures.pixels[: len(collages)])
    data = torch.cat([torch.from_numpy(collages), scenes])

    def step(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(data), (stage.batch,), generator=generator)
        top, left = (8 * torch.randint((SIZE - CROP) // 8 + 1, (2,), generator=generator)).tolist()
        return vae_loss(vae, to_model(data[rows, top : top + CROP, left : left + CROP]))

    stage.run(vae, step)
    set_latent_scale(vae, scenes[:2048])


@torch.no_grad()
def encode(vae: AutoencoderKL, pixels: Tensor, batch: int = 64) -> Tensor:
    """Scaled latent means, float16 [N, 8, 8, 8]."""
    shift, scale = vae.config["shift_factor"], vae.config["scaling_factor"]
    parts = track(pixels.split(batch), description="encoding")
    means = [vae.encode(to_model(part)).latent_dist.mean for part in parts]  # pyright: ignore[reportAttributeAccessIssue]
    return torch.cat([((mean - shift) * scale).half() for mean in means])


def refine_decoder(vae: AutoencoderKL, pictures: Pictures, stage: Stage) -> None:
    """Train the decoder alone on whole scenes, so that the latent, and a flow model trained on it, stay valid.

    Crowded crops teach the encoder fast, but normalisation statistics of a crop are not those of a picture.
    """
    data = torch.from_numpy(pictures.pixels)

    def step(generator: torch.Generator) -> Tensor:
        images = to_model(data[torch.randint(len(data), (stage.batch,), generator=generator)])
        with torch.no_grad():
            latents = vae.encode(images).latent_dist.mean  # pyright: ignore[reportAttributeAccessIssue]
        error = vae.decode(latents).sample - images  # pyright: ignore[reportAttributeAccessIssue]
        ground = images.flatten(2).median(-1).values[:, :, None, None]
        shown = ((images - ground).abs().amax(1, keepdim=True) > 0.1).float()
        return ((1 + SHOWN_WEIGHT * shown) * (error.abs() + 2 * error.square())).mean()

    stage.run(vae.decoder, step)


def encode_once(vae: AutoencoderKL, pixels: Tensor, folder: Path) -> Tensor:
    """`encode`, kept in a file under a hash of the encoder's weights."""
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in vae.encoder.parameters())).hexdigest()
    path = folder / f"latents-{digest[:12]}-{len(pixels)}.npy"
    if not path.exists():
        np.save(path, encode(vae, pixels).numpy())
    return torch.from_numpy(np.load(path))


@torch.no_grad()
def set_latent_scale(vae: AutoencoderKL, pixels: Tensor) -> None:
    """Shift and scale so that the latent has mean 0 and standard deviation 1."""
    vae.register_to_config(shift_factor=0.0, scaling_factor=1.0)
    latents = encode(vae, pixels).float()
    vae.register_to_config(shift_factor=latents.mean().item(), scaling_factor=1 / latents.std().item())
