"""Training data of the shipped generator: rendered scenes with their prompts, drawn from the training split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import track

from mmrubric.shapes.grammar import KIND_SHARES, Spec, pool
from mmrubric.shapes.sampling import scene_for
from mmrubric.shapes.world import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZE,
    WORDS,
    Item,
    Scene,
    Word,
    render,
    word_extent,
)


@dataclass(frozen=True)
class Pictures:
    """uint8 [N, 64, 64, 3] with one prompt each."""

    pixels: np.ndarray
    texts: list[str]


def draw_training_specs(count: int, rng: np.random.Generator) -> list[Spec]:
    """Training prompts with repeats, kinds in the proportions of `KIND_SHARES`."""
    pools = {kind: pool(kind, "train") for kind in KIND_SHARES}
    kinds = rng.choice(list(pools), count, p=list(KIND_SHARES.values()))
    return [pools[kind][rng.integers(len(pools[kind]))] for kind in kinds]


def draw_collages(count: int, seed: int, folder: Path) -> np.ndarray:
    """Crowded pictures uint8 [N, 64, 64, 3] for the VAE: it learns colours and edges several times faster from them
    than from scenes, which are mostly background."""
    path = folder / f"collages-{count}-{seed}.npy"
    if not path.exists():
        rng = np.random.default_rng(seed)
        pixels = [render(_collage(rng)) for _ in track(range(count), description="drawing collages")]
        np.save(path, np.stack(pixels))
    return np.load(path)


def _collage(rng: np.random.Generator) -> Scene:
    def one_of(names: Iterable[str]) -> str:
        return str(rng.choice(list(names)))

    places = rng.uniform((0, 0, 4.5), (SIZE, SIZE, 12.5), (int(rng.integers(4, 11)), 3)).tolist()
    items = tuple(Item(one_of(SHAPES), one_of(COLOURS), x, y, radius) for x, y, radius in places)
    word = None
    if rng.random() < 0.3:
        text = one_of(WORDS)
        width, height = word_extent(text)
        x, y = rng.integers(2, (SIZE - width - 1, SIZE - height - 1)) + np.array([width, height]) / 2
        word = Word(text, one_of(COLOURS), float(x), float(y))
    return Scene(one_of(BACKGROUNDS), items, word)


def draw_pictures(count: int, seed: int, folder: Path, grid: bool = True) -> Pictures:
    """Render `count` scenes, about 3 ms each, or read them from `folder` when they were rendered before."""
    path = folder / f"scenes-{'grid' if grid else 'free'}-{count}-{seed}.npz"
    if path.exists():
        with np.load(path) as file:
            return Pictures(file["pixels"], file["texts"].tolist())
    rng = np.random.default_rng(seed)
    specs = draw_training_specs(count, rng)
    pixels = [render(scene_for(spec, rng, grid)) for spec in track(specs, description="drawing scenes")]
    pictures = Pictures(np.stack(pixels), [spec.text for spec in specs])
    np.savez_compressed(path, pixels=pictures.pixels, texts=np.array(pictures.texts))
    return pictures
