"""The judges of shapes on pictures that went through a VAE.

Example: `python -m tests.judges.vae pipelines/assets/shapes-sd3/vae --scenes 5000 --json after_vae.json`
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from judges.shapes.measure import Distortion, main

SHIPPED = Path(__file__).parents[2] / "pipelines" / "assets" / "shapes-sd3" / "vae"


def round_trip(folder: Path, batch: int = 64) -> Distortion:
    """Pictures encoded and decoded by the `AutoencoderKL` in a folder, in fp32 and without sampling noise."""
    from diffusers import AutoencoderKL

    vae = AutoencoderKL.from_pretrained(folder, torch_dtype=torch.float32).eval()

    def distort(pictures: np.ndarray) -> np.ndarray:
        parts = []
        for start in range(0, len(pictures), batch):
            pixels = torch.from_numpy(pictures[start : start + batch]).permute(0, 3, 1, 2).float() / 127.5 - 1
            with torch.inference_mode():
                mean = vae.encode(pixels).latent_dist.mean  # pyright: ignore[reportAttributeAccessIssue]
                decoded = vae.decode(mean).sample  # pyright: ignore[reportAttributeAccessIssue]
            levels = ((decoded.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
            parts.append(levels.permute(0, 2, 3, 1).numpy())
        return np.concatenate(parts)

    return distort


if __name__ == "__main__":
    main(sys.argv[2:], round_trip(Path(sys.argv[1])))
