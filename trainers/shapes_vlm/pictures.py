"""Pictures for the tiny VLM, with what is seen in them: scenes, near misses, disorder, foreign shapes, VAE smudges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image, ImageDraw

from mmrubric.shapes.checks import OTHER, Seen, SeenItem, seen_of
from mmrubric.shapes.grammar import Spec, pool
from mmrubric.shapes.sampling import changed, changes_of, scene_for
from mmrubric.shapes.world import COLOURS, RADII, SIZE, Item, Scene, clear_of, render

SUPERSAMPLE = 4
FOREIGN_SHARE = 0.15
"""Share of pictures of shapes with a shape that has no name."""
VAE_SHARE = 0.6
NOISE = 0.35
"""Largest standard deviation of the noise on the latent, whose own is 1."""
SHARES = {"single": 0.1, "count": 0.15, "pair": 0.15, "relation": 0.4, "word": 0.2}
"""Share of each kind of prompt: written words, which generators draw seldom, and relations are slow to learn."""


@dataclass(frozen=True)
class Picture:
    """A picture, the prompt it may have been made for, and the truth about it."""

    spec: Spec
    scene: Scene
    """Without the foreign shape."""
    seen: Seen
    pixels: np.ndarray
    """uint8 [64, 64, 3]."""


def draw_spec(split: str, rng: np.random.Generator) -> Spec:
    """A prompt, kinds in the proportions of `SHARES`."""
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    specs = pool(kind, split)
    return specs[int(rng.integers(len(specs)))]


def draw_picture(spec: Spec, rng: np.random.Generator) -> Picture:
    """A picture that satisfies a prompt (35 %), misses it by a change (35 %) or two (20 %), or has nothing to do with
    it (10 %)."""
    shown = spec
    kind = rng.random()
    if kind < 0.1:
        shown = draw_spec(spec.split, rng)
    else:
        for _ in range(0 if kind < 0.45 else 1 if kind < 0.8 else 2):
            shown = changed(shown, str(rng.choice(changes_of(shown))), rng)
    scene = scene_for(shown, rng, grid=bool(rng.random() < 0.5))
    pixels, seen = render(scene), seen_of(scene)
    if scene.items and rng.random() < FOREIGN_SHARE:
        scene, pixels, seen = _with_foreign(scene, rng)
    return Picture(spec, scene, seen, pixels)


def _with_foreign(scene: Scene, rng: np.random.Generator) -> tuple[Scene, np.ndarray, Seen]:
    """A shape without a name, in place of one of the shapes or beside them where there is room."""
    items = list(scene.items)
    if rng.random() < 0.5:
        gone = items.pop(int(rng.integers(len(items))))
        x, y, radius, colour = gone.x, gone.y, gone.radius, gone.colour
    else:
        radius = float(rng.uniform(*RADII[str(rng.choice(list(RADII)))]))
        colour = str(rng.choice(list(COLOURS)))
        for x, y in rng.uniform(radius, SIZE - radius, (40, 2)).tolist():
            if clear_of(Item("square", colour, x, y, radius), items):
                break
        else:
            return scene, render(scene), seen_of(scene)
    kept = Scene(scene.background, tuple(items))
    pixels = _draw(render(kept), _foreign_outline(x, y, radius, rng), COLOURS[colour])
    size = Item("square", colour, x, y, radius).size
    seen = seen_of(kept)
    return kept, pixels, Seen(seen.background, (*seen.items, SeenItem(OTHER, colour, size, x, y)))


def _foreign_outline(x: float, y: float, radius: float, rng: np.random.Generator) -> list[tuple[float, float]]:
    """A star, a bar, a half disc, an L or a lump, turned at random."""
    kind, turn = int(rng.integers(5)), float(rng.uniform(0, 2 * math.pi))
    if kind == 0:
        polar = [(k * math.pi / 5, 1.0 if k % 2 else 0.4) for k in range(10)]
    elif kind == 1:
        polar = [(a, 1.0) for a in (0.25, math.pi - 0.25, math.pi + 0.25, -0.25)]
    elif kind == 2:
        polar = [(k * math.pi / 16, 1.0) for k in range(17)]
    elif kind == 3:
        corners = [(-0.7, -0.9), (-0.1, -0.9), (-0.1, 0.4), (0.8, 0.4), (0.8, 0.9), (-0.7, 0.9)]
        polar = [(math.atan2(v, u), math.hypot(u, v)) for u, v in corners]
        turn = float(rng.integers(4)) * math.pi / 2
    else:
        polar = [(k * math.pi / 4, float(rng.uniform(0.3, 1.1))) for k in range(8)]
    return [(x + radius * r * math.cos(a + turn), y + radius * r * math.sin(a + turn)) for a, r in polar]


def _draw(pixels: np.ndarray, outline: list[tuple[float, float]], colour: tuple[int, int, int]) -> np.ndarray:
    k = SUPERSAMPLE
    mask = Image.new("L", (SIZE * k, SIZE * k), 0)
    ImageDraw.Draw(mask).polygon([(px * k - 0.5, py * k - 0.5) for px, py in outline], fill=255)
    alpha = np.asarray(mask.resize((SIZE, SIZE), Image.Resampling.BOX), np.float32)[..., None] / 255
    return (pixels * (1 - alpha) + np.asarray(colour, np.float32) * alpha).round().astype(np.uint8)


@torch.no_grad()
def smudged(pixels: np.ndarray, vae: AutoencoderKL, rng: np.random.Generator) -> np.ndarray:
    """uint8 [N, 64, 64, 3] as a generator might draw them: most go through the VAE, with noise on their latents."""
    made = pixels.copy()
    rows = np.flatnonzero(rng.random(len(pixels)) < VAE_SHARE)
    if len(rows):
        images = torch.from_numpy(pixels[rows]).permute(0, 3, 1, 2).float().div(127.5).sub(1)
        latents = vae.encode(images).latent_dist.mean  # pyright: ignore[reportAttributeAccessIssue]
        deviation = torch.from_numpy(rng.uniform(0, NOISE, len(rows)).astype(np.float32))[:, None, None, None]
        noise = torch.from_numpy(rng.standard_normal(latents.shape, dtype=np.float32))
        latents = latents + noise * deviation / vae.config["scaling_factor"]
        decoded = vae.decode(latents).sample  # pyright: ignore[reportAttributeAccessIssue]
        made[rows] = decoded.add(1).mul(127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    return made
