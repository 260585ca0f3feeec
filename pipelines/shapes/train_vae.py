"""Stage 1 of the shipped generator: the VAE."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from pipelines.shapes.data import Pictures
from pipelines.shapes.state import Stage

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


def train_vae(vae: AutoencoderKL, pictures: Pictures, stage: Stage) -> None:
    """Train to the end of the stage, going on where it stopped; then set the scale of the latent."""
    data = torch.from_numpy(pictures.pixels)

    def step(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(data), (stage.batch,), generator=generator)
        return vae_loss(vae, to_model(data[rows]))

    stage.run(vae, step)
    set_latent_scale(vae, data[:2048])


@torch.no_grad()
def encode(vae: AutoencoderKL, pixels: Tensor, batch: int = 256) -> Tensor:
    """Scaled latent means, float16 [N, 8, 8, 8]."""
    shift, scale = vae.config["shift_factor"], vae.config["scaling_factor"]
    means = [vae.encode(to_model(part)).latent_dist.mean for part in pixels.split(batch)]  # pyright: ignore[reportAttributeAccessIssue]
    return torch.cat([((mean - shift) * scale).half() for mean in means])


@torch.no_grad()
def set_latent_scale(vae: AutoencoderKL, pixels: Tensor) -> None:
    """Shift and scale so that the latent has mean 0 and standard deviation 1."""
    vae.register_to_config(shift_factor=0.0, scaling_factor=1.0)
    latents = encode(vae, pixels).float()
    vae.register_to_config(shift_factor=latents.mean().item(), scaling_factor=1 / latents.std().item())
