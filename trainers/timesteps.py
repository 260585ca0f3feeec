"""Which steps and noise levels of a sample are trained: a function of the run's seed, the step and the sample."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pipelines import seeds
from pipelines.policy import Rollout


def trained_count(steps: int, fraction: float) -> int:
    """Trained ones of `steps` recorded steps: the share, rounded down, at least 1."""
    # the slack absorbs rounding of products such as .29 * 100
    return max(1, math.floor(fraction * steps + 1e-9))


def trained_steps(rollout: Rollout, fraction: float, run_seed: int, step: int) -> Tensor:
    """[B, K] bool, True for a random choice of `trained_count` recorded steps of each sample, its own.

    Source: DanceGRPO, arXiv 2505.07818 (`timestep_fraction`).
    """
    steps = len(rollout.steps)
    chosen = torch.zeros(len(rollout), steps, dtype=torch.bool)
    for place, generator in enumerate(_generators("trained steps", rollout, run_seed, step)):
        chosen[place, torch.randperm(steps, generator=generator)[: trained_count(steps, fraction)]] = True
    return chosen


def noise_levels(rollout: Rollout, count: int, run_seed: int, step: int) -> Tensor:
    """[B * count] noise levels, for each sample the first `count` of its own shuffle of the rollout's grid.

    Source: DiffusionNFT, arXiv 2509.16117.
    """
    grid = rollout.sigmas[:-1]
    levels = [
        grid[torch.randperm(len(grid), generator=generator)[:count].to(grid.device)]
        for generator in _generators("levels", rollout, run_seed, step)
    ]
    return torch.cat(levels).to(rollout.samples.device)


def level_noise(rollout: Rollout, count: int, run_seed: int, step: int) -> Tensor:
    """[B * count, ...] fresh normal noise, by (run seed, step, prompt row, sample, level)."""
    rows = [seeds.derive("level noise", run_seed, step, *key, n) for key in _keys(rollout) for n in range(count)]
    return seeds.NoiseStream(rows, rollout.samples.shape[1:], rollout.samples.device).draw()


def _generators(purpose: str, rollout: Rollout, run_seed: int, step: int) -> Iterator[torch.Generator]:
    """One for each sample, never of its rank or its place in the rollout."""
    for key in _keys(rollout):
        yield torch.Generator().manual_seed(seeds.derive(purpose, run_seed, step, *key))


def _keys(rollout: Rollout) -> list[tuple[int, int]]:
    """(prompt row, sample) of each sample."""
    return list(zip(rollout.prompt_rows.tolist(), rollout.sample_index.tolist(), strict=True))
