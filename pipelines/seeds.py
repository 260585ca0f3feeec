"""Where noise comes from: a function of run, step, prompt row and sample, never of rank or batch split.

Each row has generators of its own on the CPU, so that the same images come out on any number of processes, in
any batch size and on any device. A plain diffusers call repeats an image of an ODE sampler with
`generator=torch.Generator().manual_seed(seed.noise)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from pipelines.policy import RowSeed


def derive(*key: int | str) -> int:
    """A seed in [0, 2**63) from a key, the same everywhere. (torch's CPU generator uses its low 32 bits.)"""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def row_seed(run_seed: int, step: int, prompt_row: int, sample: int, same_noise: bool = False) -> RowSeed:
    """Seeds of a training sample.

    Args:
        run_seed: seed of the run.
        step: optimisation step, counted over resumes.
        prompt_row: row of the prompt in the step, over all ranks.
        sample: number of the sample within its prompt row.
        same_noise: the samples of a row share their initial noise; the noise of their steps differs always.
    """
    noise = derive("noise", run_seed, step, prompt_row, *(() if same_noise else (sample,)))
    return RowSeed(noise=noise, path=derive("path", run_seed, step, prompt_row, sample))


def eval_seed(run_seed: int, item_id: str, sample: int) -> RowSeed:
    """Seeds of an evaluation sample: the same before and after training."""
    return RowSeed(
        noise=derive("eval noise", run_seed, item_id, sample),
        path=derive("eval path", run_seed, item_id, sample),
    )


class NoiseStream:
    """Standard normal noise for B rows, one generator per row."""

    def __init__(self, seeds: Sequence[int], shape: Sequence[int], device: torch.device | str = "cpu") -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._shape = tuple(shape)
        self._device = device

    def draw(self) -> Tensor:
        """[B, *shape] float32, the next noise of each row."""
        noise = torch.empty(len(self._generators), *self._shape)
        for row, generator in zip(noise, self._generators, strict=True):
            row.normal_(generator=generator)
        return noise.to(self._device)
