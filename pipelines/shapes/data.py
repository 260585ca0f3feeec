"""Training data of the shipped generator: rendered scenes with their prompts, drawn from the training split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import track

from mmrubric.shapes.grammar import KIND_SHARES, Spec, enumerate_specs
from mmrubric.shapes.sampling import scene_for
from mmrubric.shapes.world import render


@dataclass(frozen=True)
class Pictures:
    """uint8 [N, 64, 64, 3] with one prompt each."""

    pixels: np.ndarray
    texts: list[str]


def draw_training_specs(count: int, rng: np.random.Generator) -> list[Spec]:
    """Training prompts with repeats, kinds in the proportions of `KIND_SHARES`."""
    pools = {kind: [s for s in enumerate_specs(kind) if s.split == "train"] for kind in KIND_SHARES}
    kinds = rng.choice(list(pools), count, p=list(KIND_SHARES.values()))
    return [pools[kind][rng.integers(len(pools[kind]))] for kind in kinds]


def draw_pictures(count: int, seed: int, folder: Path) -> Pictures:
    """Render `count` scenes, about 3 ms each, or read them from `folder` when they were rendered before."""
    path = folder / f"scenes-{count}-{seed}.npz"
    if path.exists():
        with np.load(path) as file:
            return Pictures(file["pixels"], file["texts"].tolist())
    rng = np.random.default_rng(seed)
    specs = draw_training_specs(count, rng)
    pixels = [render(scene_for(spec, rng)) for spec in track(specs, description="drawing scenes")]
    pictures = Pictures(np.stack(pixels), [spec.text for spec in specs])
    np.savez_compressed(path, pixels=pictures.pixels, texts=np.array(pictures.texts))
    return pictures
