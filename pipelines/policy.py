"""A generator seen as a policy: the typed objects between sampling, judging and training.

`Rollout` is what sampling leaves behind, `StepOut` what a replay of some of its steps gives. Both are the
same for every model; `pipelines.diffusion` fills them for flow models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from mmrubric.rubric import Prompt
from pipelines.samplers import Sampler, TokenSampler
from pipelines.shards import Held

RECORDABLE = frozenset({"states", "log_prob", "mean"})
"""What `Policy.sample` can record."""


@dataclass(frozen=True)
class RowSeed:
    """Seeds of one sample: `noise` for the initial noise, `path` for the noise of the steps."""

    noise: int
    path: int


@dataclass
class Rollout:
    """B samples and what is needed to replay them. Model numbers are float32 whatever the precision.

    Of a flow model, T = denoising steps and K = recorded steps. Of a token model, T = K = tokens of an image, `samples`
    and `actions` are the tokens [B, T] int64, `sigmas` is empty and `states` and `means` are None. What was not
    recorded is None.
    """

    prompts: list[Prompt]
    """The distinct prompts that the policy was shown (the context of every log-prob)."""
    prompt_index: Tensor
    """[B] int64, into `prompts`."""
    prompt_rows: Tensor
    """[B] int64, row of the prompt in the whole step, over all ranks."""
    sample_index: Tensor
    """[B] int64, number of the sample within its prompt row."""
    sample_ids: list[str]
    """[B], unique within a run."""
    seeds: list[RowSeed] | None
    """[B]; None for samples from outside."""
    policy_version: int
    """Version of the weights that sampled."""
    sampler: Sampler | TokenSampler
    sigmas: Tensor
    """[T + 1] float32, from 1 to 0; of DDIM models timesteps as shares of the training schedule."""
    samples: Tensor
    """[B, ...] final latents."""
    images: np.ndarray
    """[B, H, W, 3] uint8 RGB."""
    steps: Tensor
    """[K] int64, the stochastic steps; never the last one."""
    states: Tensor | None = None
    """[B, K, ...] before each step."""
    actions: Tensor | None = None
    """[B, K, ...] after each step."""
    log_probs: Tensor | None = None
    """[B, K], under the weights and the logits that sampled."""
    means: Tensor | None = None
    """[B, K, ...]."""
    mask: Tensor | None = None
    """[B, K] bool, False = not to be trained on."""

    def __len__(self) -> int:
        return len(self.prompt_index)

    def select(self, rows: Tensor | Sequence[int]) -> Rollout:
        """The given rows, in the given order, repeats allowed; all prompts are kept."""
        index = torch.as_tensor(rows, dtype=torch.long).cpu()
        numbers = index.tolist()

        def take(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index.to(value.device)]

        return replace(
            self,
            prompt_index=self.prompt_index[index],
            prompt_rows=self.prompt_rows[index],
            sample_index=self.sample_index[index],
            sample_ids=[self.sample_ids[i] for i in numbers],
            seeds=None if self.seeds is None else [self.seeds[i] for i in numbers],
            samples=self.samples[index.to(self.samples.device)],
            images=self.images[index.numpy()],
            **{name: take(getattr(self, name)) for name in ("states", "actions", "log_probs", "means", "mask")},
        )

    @staticmethod
    def merge(rollouts: Sequence[Rollout]) -> Rollout:
        """One rollout with the rows of all, in order.

        Raises:
            InputError: none given, or they differ in sampler, version, steps or recorded parts.
        """
        if not rollouts:
            raise InputError("Rollout.merge needs at least one rollout")
        first = rollouts[0]
        for other in rollouts[1:]:
            for name in ("sampler", "policy_version"):
                if getattr(first, name) != getattr(other, name):
                    raise InputError(f"rollouts differ in {name}: {getattr(first, name)} and {getattr(other, name)}")
            if not (torch.equal(first.sigmas, other.sigmas) and torch.equal(first.steps, other.steps)):
                raise InputError("rollouts differ in noise levels or recorded steps")
            for name in ("seeds", "states", "actions", "log_probs", "means", "mask"):
                if (getattr(first, name) is None) != (getattr(other, name) is None):
                    raise InputError(f"only some of the rollouts hold {name}")
        prompts, places = distinct([prompt for rollout in rollouts for prompt in rollout.prompts])
        index, start = [], 0
        for rollout in rollouts:
            index.append(places[start : start + len(rollout.prompts)][rollout.prompt_index])
            start += len(rollout.prompts)

        def join(name: str) -> Tensor | None:
            parts = [getattr(rollout, name) for rollout in rollouts]
            return None if parts[0] is None else torch.cat(parts)

        return replace(
            first,
            prompts=prompts,
            prompt_index=torch.cat(index),
            prompt_rows=torch.cat([r.prompt_rows for r in rollouts]),
            sample_index=torch.cat([r.sample_index for r in rollouts]),
            sample_ids=[i for r in rollouts for i in r.sample_ids],
            seeds=None if first.seeds is None else [s for r in rollouts for s in (r.seeds or [])],
            samples=torch.cat([r.samples for r in rollouts]),
            images=np.concatenate([r.images for r in rollouts]),
            **{name: join(name) for name in ("states", "actions", "log_probs", "means", "mask")},
        )


@dataclass
class StepOut:
    """Replay of n (row, step) items under the present weights, of token models n whole rows; None = not asked for."""

    log_prob: Tensor | None = None
    """[n], of token models [n, T]; gradient flows."""
    mean: Tensor | None = None
    """[n, ...], gradient flows."""
    std: Tensor | None = None
    """[n], standard deviation of the step."""
    dt: Tensor | None = None
    """[n], next noise level minus this one, negative."""
    velocity: Tensor | None = None
    """[n, ...], gradient flows."""
    sigma: Tensor | None = None
    """[n], noise level."""
    value: Tensor | None = None
    """[n, T], of token policies with a value head: what is expected before each token; gradient flows."""
    logits: Tensor | None = None
    """[n, T, V], of token policies; gradient flows."""


STEP_FIELDS = frozenset(field.name for field in fields(StepOut))
"""Names that `Policy.log_prob(need=...)` may ask for."""


@runtime_checkable
class Policy(Protocol):
    """What the trainers need of a generator. `pipelines.diffusion.FlowPolicy` documents each part."""

    provides: frozenset[str]
    version: int
    deployed: Any
    """`Sampler` or `TokenSampler`, used where none is given."""

    @property
    def module(self) -> nn.Module: ...

    def wrap(self, fn: Callable[[nn.Module], nn.Module]) -> None: ...

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]: ...

    def check_prompts(self, prompts: Sequence[Prompt], sampler: Any = None) -> None: ...

    def sample(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[RowSeed],
        sampler: Any = None,
        record: frozenset[str] = frozenset(),
        *,
        prompt_rows: Sequence[int] | Tensor | None = None,
        sample_index: Sequence[int] | Tensor | None = None,
        batch: int | None = None,
    ) -> Rollout: ...

    def log_prob(
        self, rollout: Rollout, rows: Tensor, steps: Tensor, need: frozenset[str] = frozenset({"log_prob"})
    ) -> StepOut: ...

    def predict(self, rollout: Rollout, rows: Tensor, x: Tensor, t: Tensor) -> Tensor: ...

    def adopt(self, prompts: Sequence[Prompt], samples: Tensor | np.ndarray) -> Rollout: ...

    def weights(self, name: str) -> AbstractContextManager[None]: ...

    def update_old(self, decay: float = 0.0) -> None: ...

    def update_ema(self, decay: float) -> None: ...

    def keep_previous(self, source: str | None = None) -> None: ...

    def state_dict(self) -> dict[str, Held]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def save_pretrained(self, directory: str) -> None: ...


def distinct(prompts: Sequence[Prompt]) -> tuple[list[Prompt], Tensor]:
    """The distinct prompts in order of appearance, and for each given prompt its index among them."""
    place: dict[tuple, int] = {}
    unique: list[Prompt] = []
    index = []
    for prompt in prompts:
        # source images need not be hashable, and the same object is the same image
        key = (prompt.id, prompt.text, prompt.negative, *map(id, prompt.sources))
        if key not in place:
            place[key] = len(unique)
            unique.append(prompt)
        index.append(place[key])
    return unique, torch.tensor(index, dtype=torch.long)


def count_within(index: Tensor) -> Tensor:
    """For each entry, how many equal entries come before it."""
    seen: dict[int, int] = {}
    counts = []
    for value in index.tolist():
        counts.append(seen.get(value, 0))
        seen[value] = counts[-1] + 1
    return torch.tensor(counts, dtype=torch.long)


def batches(count: int, size: int | None) -> Iterator[slice]:
    """Consecutive slices of at most `size` items (None = all at once)."""
    step = max(count, 1) if size is None else size
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
