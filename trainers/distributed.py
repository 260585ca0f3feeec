"""Rows over ranks: who draws what, how small results come together, whether all ranks are there and agree."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from mmrubric.errors import InputError, RunError
from pipelines.shards import full

T = TypeVar("T")
Placement = Literal["spread", "whole"]


@dataclass(frozen=True)
class Shard:
    """Rows of one rank, in canonical order, padding last. All ranks have the same number."""

    prompt_rows: np.ndarray
    """[n] int64, prompt row within the step."""
    samples: np.ndarray
    """[n] int64, sample number within the prompt row."""
    weight: np.ndarray
    """[n] float64: 1, or 0 for padding (which repeats rows and counts nowhere)."""

    def __len__(self) -> int:
        return len(self.prompt_rows)

    @property
    def real(self) -> np.ndarray:
        """[m] positions of the rows that are no padding."""
        return np.flatnonzero(self.weight)


def split_rows(
    prompts: int, samples: int, world: int, placement: Placement = "spread", updates: int = 1
) -> list[Shard]:
    """Split the prompts x samples rows of a step into one shard per rank.

    Args:
        prompts: prompt rows of the step, over all ranks.
        samples: samples per prompt row.
        world: number of ranks.
        placement: `spread` cuts the row list into even runs, so a group may lie on two ranks; `whole` keeps
            each group on one rank (pair judges need both images in one place).
        updates: optimizer steps that share out the groups by prompt row modulo their number. Every rank gets its part
            of each, or some would wait with filler rows while others train.

    Returns:
        Shards of equal length; a rank with fewer rows repeats its last one (or the step's first) at weight 0.

    Raises:
        InputError: a size below 1, or an unknown placement.
    """
    if min(prompts, samples, world) < 1:
        raise InputError(f"prompts {prompts}, samples {samples} and ranks {world} must each be at least 1")
    if placement not in ("spread", "whole"):
        raise InputError(f"unknown placement {placement!r}; known: spread, whole")
    rows = np.stack(np.divmod(np.arange(prompts * samples), samples), 1)
    if placement == "spread" and updates > 1:
        dealt = rows[np.argsort(rows[:, 0] % updates, kind="stable")]
        parts = [part[np.lexsort((part[:, 1], part[:, 0]))] for part in (dealt[rank::world] for rank in range(world))]
    elif placement == "spread":
        parts = np.array_split(rows, world)
    else:
        order = np.argsort(np.arange(prompts) % updates, kind="stable")
        dealt = [order[rank::world] for rank in range(world)] if updates > 1 else np.array_split(order, world)
        parts = [rows.reshape(prompts, samples, 2)[np.sort(groups)].reshape(-1, 2) for groups in dealt]
    length = max(len(part) for part in parts)
    shards = []
    for part in parts:
        filler = part[-1:] if len(part) else rows[:1]
        padded = np.concatenate([part, np.repeat(filler, length - len(part), 0)])
        weight = np.concatenate([np.ones(len(part)), np.zeros(length - len(part))])
        shards.append(Shard(padded[:, 0].copy(), padded[:, 1].copy(), weight))
    return shards


def canonical(items: Iterable[T], key: Callable[[T], tuple[Any, ...]]) -> list[T]:
    """Sorted by `key`, which is (prompt row, sample id).

    Raises:
        RunError: two items have one key, so that a row would count twice.
    """
    ordered = sorted(items, key=key)
    for a, b in pairwise(ordered):
        if key(a) == key(b):
            raise RunError(f"row {key(a)} came from two places; padding rows must not be gathered")
    return ordered


def param_checksum(parameters: Iterable[torch.Tensor]) -> float:
    """A number that nearly any change of any value changes; equal for equal weights on equal machines. A collective
    where parameters are sharded: each is gathered for its moment, so that ranks compare what they would run."""
    total = 0.0
    for position, parameter in enumerate(parameters, 1):
        values = full(parameter).double()
        total += position * float(values.sum()) + float(values.square().sum())
    return total


class Dist:
    """The ranks of this run and their collectives: every method that gathers must be called on all ranks.

    Results are joined in rank order and are the same on every rank, with one process as with many. Create it
    after the run's `Accelerator`, whose process group it uses.
    """

    def __init__(self) -> None:
        self._state = PartialState()

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self._state.num_processes

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._state.process_index

    @property
    def main(self) -> bool:
        """Whether this rank writes files and prints."""
        return self._state.is_main_process

    def gather(self, items: Sequence[T]) -> list[T]:
        """Small picklable objects of all ranks, joined in rank order."""
        return gather_object(list(items))

    def gather_rows(self, items: Sequence[T], key: Callable[[T], tuple[Any, ...]]) -> list[T]:
        """Objects of all ranks in canonical order.

        Args:
            items: this rank's, without padding.
            key: (prompt row, sample id) of an item.

        Raises:
            RunError: two items have one key.
        """
        return canonical(self.gather(items), key)

    def sum(self, value: float) -> float:
        """Sum over ranks, exactly rounded, so that it does not depend on their order."""
        return math.fsum(self.gather([value]))

    def max(self, value: float) -> float:
        """Largest value of any rank."""
        return max(self.gather([value]))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._state.wait_for_everyone()

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Let gradients accumulate without averaging them over ranks yet.

        Of a sharded module only where part of it is frozen (LoRA): gradients that are not averaged are whole on every
        rank, and those of a full model are what sharding is there to avoid.
        """
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        if isinstance(module, FSDPModule) and any(not p.requires_grad for p in module.parameters()):
            return _unreduced(module)
        return nullcontext()

    def checksum_spread(self, parameters: Iterable[torch.Tensor]) -> float:
        """`dist/param_checksum_spread`: largest minus smallest checksum over ranks; 0 when all agree."""
        sums = self.gather([param_checksum(parameters)])
        return max(sums) - min(sums)


@contextmanager
def _unreduced(module: FSDPModule) -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def end_ranks() -> None:
    """End the process group, if there is one; nothing collective comes after.

    A thread of gloo lets go of the tensors of the last collective shortly after it is over. Were Python already ending
    by then, the process would abort ("terminate called without an active exception") with all its work done, and
    destroying the group does not wait for these threads where a sharded tensor's mesh still holds it.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        time.sleep(0.2)


def has_accelerator() -> bool:
    """Whether torch sees a GPU or another accelerator."""
    return torch.accelerator.is_available()


def prepare_environment() -> None:
    """Tell accelerate to use the CPU when several ranks were started on a machine without an accelerator."""
    if started_processes() > 1 and not has_accelerator():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def started_processes() -> int:
    """Number of ranks that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launch_command(processes: int, accelerator: bool, arguments: Sequence[str] | None = None) -> str:
    """The command that really starts `processes` ranks of `trainers.train` on this kind of machine."""
    use_cpu = "" if accelerator else "ACCELERATE_USE_CPU=true "
    stage = 3 if os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3" else 2
    used = {"ACCELERATE_USE_FSDP": "fsdp2", "ACCELERATE_USE_DEEPSPEED": f"deepspeed_zero{stage}"}
    file = next((file for name, file in used.items() if os.environ.get(name, "false").lower() == "true"), None)
    several = ""
    if processes > 1:
        several = f"--config_file configs/accelerate/{file}.yaml " if file else "--multi_gpu "
    rest = shlex.join(sys.argv[1:] if arguments is None else arguments)
    return f"{use_cpu}accelerate launch {several}--num_processes {processes} -m trainers.train {rest}".strip()


def check_processes(
    requested: int,
    started: int | None = None,
    accelerator: bool | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Compare the config's `processes` with the ranks that run; call it before loading anything.

    `accelerate launch --cpu --num_processes 2` silently starts one process, which would train half a batch.

    Args:
        requested: the config's value.
        started: None = of this launch.
        accelerator: None = of this machine.
        arguments: command-line arguments for the hint; None = of this process.

    Raises:
        InputError: they differ; the message has the right command.
    """
    started = started_processes() if started is None else started
    if started == requested:
        return
    accelerator = has_accelerator() if accelerator is None else accelerator
    why = ""
    if not accelerator and requested > 1 and started == 1:
        why = "Without an accelerator, accelerate's --cpu starts one process for any --num_processes. "
    raise InputError(
        f"processes={requested} in the config, but {started} started. {why}"
        f"Run: {launch_command(requested, accelerator, arguments)} (or set processes={started})"
    )
