"""The architectures of the contract tests: tiny directories, and how the plain pipeline is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mmrubric import Prompt
from pipelines.testing import tiny_sd3_directory
from pipelines.testing_flux import tiny_flux_directory
from pipelines.testing_qwen import tiny_qwen_image_directory, tiny_qwen_image_edit_directory
from pipelines.testing_sd import tiny_sd15_directory, tiny_sdxl_directory

HEIGHT, WIDTH = 16, 8
SHAPE = (4, 8, 4)
"""Latent of HEIGHT x WIDTH pixels in every tiny pipeline."""
NEGATIVE = "a black square"


@dataclasses.dataclass(frozen=True)
class Case:
    """One architecture: its tiny directory and how the plain pipeline is called."""

    pipeline: str
    build: Callable[[Path], Path]
    tokens: int
    """`max_sequence_length`."""
    guidance: Callable[[float], dict[str, Any]]
    """Arguments of the plain call for a scale, where 1 is off."""
    packed: bool = True
    sources: int = 0
    """Source images of a prompt in the tests."""
    reads: str = "none"
    """Source images that the model reads."""
    one_by_one: bool = False
    """The plain pipeline takes one row per call."""
    parts: tuple[str, ...] = ()
    """Parts that the plain pipeline wants to be named as None."""
    noises: tuple[str, ...] = ("sde", "dance", "cps")
    """Kinds of stochastic steps, the usual one first."""
    unit: int = 4
    """Pixels of which sides are multiples."""
    steps: int = 28
    """Steps of the plain pipeline."""


def true_cfg(scale: float) -> dict[str, Any]:
    return {"true_cfg_scale": scale, **({"negative_prompt": [NEGATIVE] * 4} if scale > 1 else {})}


def negative_cfg(scale: float) -> dict[str, Any]:
    return {"guidance_scale": scale, "negative_prompt": [NEGATIVE] * 4}


CASES = {
    "sd3": Case(
        "StableDiffusion3Pipeline", lambda path: tiny_sd3_directory(path, shift=3.0), 0, negative_cfg,
        packed=False, parts=("text_encoder_3", "tokenizer_3"),
    ),
    "flux": Case("FluxPipeline", tiny_flux_directory, 20, lambda scale: {"guidance_scale": scale}),
    "flux-schnell": Case("FluxPipeline", lambda path: tiny_flux_directory(path, distilled=False), 20, true_cfg),
    "kontext": Case(
        "FluxKontextPipeline", lambda path: tiny_flux_directory(path, kontext=True), 20,
        lambda scale: {"guidance_scale": scale}, sources=1, reads="0 or 1",
    ),
    "qwen-image": Case("QwenImagePipeline", tiny_qwen_image_directory, 24, true_cfg, steps=50),
    "qwen-image-edit": Case(
        "QwenImageEditPipeline", tiny_qwen_image_edit_directory, 24, true_cfg, sources=1, reads="1", one_by_one=True,
        steps=50,
    ),
    "qwen-image-edit-plus": Case(
        "QwenImageEditPlusPipeline", lambda path: tiny_qwen_image_edit_directory(path, plus=True), 24, true_cfg,
        sources=2, reads="1 to 3", one_by_one=True, steps=50,
    ),
    "sd15": Case(
        "StableDiffusionPipeline", tiny_sd15_directory, 0, negative_cfg, packed=False, noises=("ddim",), unit=2,
        steps=50, parts=("safety_checker", "feature_extractor", "image_encoder"),
    ),
    "sdxl": Case(
        "StableDiffusionXLPipeline", tiny_sdxl_directory, 0, negative_cfg, packed=False, noises=("ddim",), unit=2,
        steps=50, parts=("image_encoder", "feature_extractor"),
    ),
}  # fmt: skip


def pictured(case: Case, prompts: list[Prompt]) -> list[Prompt]:
    """The prompts with as many source images as the case has, of several shapes."""
    random = np.random.default_rng(0)
    pictures = [[random.integers(0, 256, (8 * n, 8, 3), dtype=np.uint8) for n in (1, 3, 2)] for _ in prompts]
    return [
        dataclasses.replace(prompt, sources=tuple(some[: case.sources]))
        for prompt, some in zip(prompts, pictures, strict=True)
    ]
