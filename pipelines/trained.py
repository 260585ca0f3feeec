"""What every policy shares: the network that trains, its wrapper, its named copies and its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mmrubric.errors import InputError
from pipelines import shards
from pipelines.policy import RowSeed, count_within
from pipelines.shards import Held
from pipelines.weights import WeightCopies

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
DEPLOYED_FILE = "deployed.json"


class TrainedPolicy:
    """The part of a policy that holds weights.

    Args:
        core: the network, with `requires_grad` on what trains.
        lora: the trainable parameters are a LoRA adapter.
        precision: fp32, bf16 or fp16 autocast around the model call.
        copies: weights to keep besides the trained ones, of old, ema, reference, previous.
        shard: spreads the network's parameters over the ranks, in place. It comes before the copies are made, so that
            no rank ever holds a whole copy.
    """

    def __init__(
        self,
        core: nn.Module,
        lora: bool,
        precision: str,
        copies: Sequence[str],
        shard: Callable[[nn.Module], nn.Module] | None,
    ) -> None:
        self.lora, self.precision = lora, precision
        self.version = 0
        self._whole = shard is None
        self._core = core if shard is None else shard(core)
        self._wrapped = self._core
        self._trainable = [(name, p) for name, p in self._core.named_parameters() if p.requires_grad]
        self._copies = WeightCopies(self._trainable, self._core, copies, lora)

    @property
    def module(self) -> nn.Module:
        """The network that trains, wrapped if `wrap` was called."""
        return self._wrapped

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self._core.parameters()).device

    def wrap(self, fn: Callable[[nn.Module], nn.Module]) -> None:
        """Replace the module by `fn(module)`, for example accelerator.prepare (without mixed precision: the
        policy does autocast itself).

        Raises:
            RuntimeError: the wrapper replaced parameters; the named copies need them in place, as with DDP. What
                replaces them by shards is given as `shard`.
        """
        self._wrapped = fn(self._core)
        kept = dict(self._core.named_parameters())
        if any(kept.get(name) is not p for name, p in self._trainable):
            raise RuntimeError(
                "the wrapper replaced the trainable parameters: only wrappers that keep them work (DDP); shard by "
                "load_policy(shard=...)"
            )

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(name, parameter) of what trains, float32, in a fixed order, named as in the unwrapped module."""
        return list(self._trainable)

    def weights(self, name: str) -> AbstractContextManager[None]:
        """Run the body under "reference", "old", "ema" or "previous" weights; every rank enters, backward stays out."""
        return self._copies.swapped(name)

    def update_old(self, decay: float = 0.0) -> None:
        """old <- decay * old + (1 - decay) * trained."""
        self._copies.update("old", decay)

    def update_ema(self, decay: float) -> None:
        """ema <- decay * ema + (1 - decay) * trained."""
        self._copies.update("ema", decay)

    def keep_previous(self, source: str | None = None) -> None:
        """previous <- the trained weights, or those of the copy `source`, as they are before an update."""
        self._copies.update("previous", 0.0, source)

    def state_dict(self) -> dict[str, Held]:
        """Everything that training changes, flat, ready for safetensors: `trainable/...`, `old/...`,
        `ema/...`, `reference/...` and `version`. The tensors are the live ones: save or clone them before the
        next update; of a sharded network they are shards, see `pipelines.shards.gathered`."""
        self._copies.forbid_swap("state_dict")
        trained = {f"trainable/{name}": shards.held(p) for name, p in self._trainable}
        return {**trained, **self._copies.state_dict(), "version": torch.tensor(self.version)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over a `state_dict` of whole tensors, bitwise.

        Raises:
            InputError: it belongs to another set-up (LoRA against full fine-tuning, other copies, other
                shapes); nothing is changed then.
        """
        own = self.state_dict()
        extra, missing = sorted(set(state) - set(own)), sorted(set(own) - set(state))
        wrong = [k for k in own if k in state and own[k].shape != state[k].shape]
        if extra or missing or wrong:
            hint = "" if any("lora_" in k for k in state) == self.lora else " (LoRA against full fine-tuning)"
            raise InputError(
                f"this state belongs to another set-up{hint}: {len(missing)} tensors missing {missing[:2]}, "
                f"{len(extra)} unknown {extra[:2]}, {len(wrong)} of another shape {wrong[:2]}"
            )
        for name, p in self._trainable:
            shards.assign(p, state[f"trainable/{name}"])
        self._copies.load(state)
        self.version = int(state["version"])

    def _caller(self) -> nn.Module:
        """The module for a model call: the wrapped one, but without gradients the one inside DDP, which would still
        synchronise buffers, while ranks may sample in different batches."""
        if not torch.is_grad_enabled() and isinstance(self._wrapped, DistributedDataParallel):
            return self._core
        return self._wrapped

    def _autocast(self) -> torch.autocast:
        dtype = AUTOCAST[self.precision]
        # the cache would keep a cast of each gathered weight, so all of them, until the call ends
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=self._whole)


def number_rows(
    index: Tensor, prompt_rows: Sequence[int] | Tensor | None, sample_index: Sequence[int] | Tensor | None
) -> tuple[Tensor, Tensor]:
    """Prompt rows and sample numbers [B] of a rollout; default: the index [B] of the distinct prompt, and the number
    within it.

    Raises:
        InputError: other lengths.
    """
    rows = index.clone() if prompt_rows is None else torch.as_tensor(prompt_rows, dtype=torch.long)
    numbers = count_within(index) if sample_index is None else torch.as_tensor(sample_index, dtype=torch.long)
    if len(rows) != len(index) or len(numbers) != len(index):
        raise InputError("prompt_rows and sample_index need one entry per prompt row")
    return rows, numbers


def sample_ids(rows: Tensor, numbers: Tensor, seeds: Sequence[RowSeed] | None) -> list[str]:
    """Ids of the samples of a rollout: of prompt row, sample number and seed, or of adopted samples."""
    places = list(zip(rows.tolist(), numbers.tolist(), strict=True))
    if seeds is None:
        return [f"adopted-{row:05d}-{number:03d}" for row, number in places]
    return [f"{row:05d}-{n:03d}-{seed.path:016x}" for (row, n), seed in zip(places, seeds, strict=True)]


def check_rows(prompts: Sequence[object], seeds: Sequence[RowSeed]) -> None:
    """Raise InputError if a call of `sample` has no rows, or not one seed for each."""
    if not prompts or len(prompts) != len(seeds):
        raise InputError(
            f"sample needs one seed per prompt row and at least one row: {len(prompts)} prompts, {len(seeds)} seeds"
        )


def check_adopted(prompts: Sequence[object], samples: Tensor | np.ndarray) -> None:
    """Raise InputError if a call of `adopt` has no rows, not one prompt for each, or arrays that are no uint8 images
    [B, H, W, 3]."""
    if not prompts or len(prompts) != len(samples):
        raise InputError(f"adopt needs one prompt per sample: {len(prompts)} prompts, {len(samples)} samples")
    if isinstance(samples, np.ndarray) and (samples.dtype != np.uint8 or samples.ndim != 4 or samples.shape[3] != 3):
        raise InputError(f"images must be uint8 [B, H, W, 3], not {samples.dtype} {samples.shape}")
