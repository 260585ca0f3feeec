"""DeepSpeed ZeRO-2: gradients and optimizer in 1/N on each of N ranks, the weights whole. And what ZeRO-3 shares.

DeepSpeed's engine gets the trained parameters and the optimizer, and never the network: the policy calls its own
module, so that frozen weights keep their precision and named copies of the weights are swapped in as on one process.
The engine moves the parameters into one flat buffer, in their order; the optimizer keeps a copy of this rank's part.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmrubric.errors import InputError

BUCKET = 200_000_000
"""Most numbers of gradients that are averaged at once; their buffer is as large."""
MOMENTS = ("exp_avg", "exp_avg_sq")


def check(precision: str) -> None:
    """Whether a run can be driven by DeepSpeed.

    Raises:
        InputError: it is not installed, or the precision needs scaled gradients.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise InputError(
            "sharding by DeepSpeed needs the package deepspeed: pip install 'mmrubric[deepspeed]', or launch with "
            "configs/accelerate/fsdp2.yaml, which needs nothing more and shares the weights too"
        )
    if precision == "fp16":
        raise InputError("model.precision=fp16 with DeepSpeed: gradients are not scaled there, use bf16 or fp32")


class _Trained(nn.Module):
    """What the engine takes for a model: the trained parameters, and a forward pass that hands the loss through."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_ = nn.ParameterList(parameters)

    def forward(self, loss: Tensor) -> Tensor:
        return loss


class Stepper:
    """What the stages share: an engine of DeepSpeed that adds up gradients and steps."""

    _engine: Any

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch, averaged over ranks; `last`: a step follows."""
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss)

    def step(self) -> float:
        """Clip, step and clear. Returns the norm of the gradients before clipping, over all ranks; where it is not
        finite, no weight has changed."""
        self._engine.step()
        return float(self._engine.get_global_grad_norm())


class Zero2(Stepper):
    """The engine of a run. All ranks make it, and call its methods, together.

    Args:
        parameters: what trains, float32; they stay the objects that they are, in new memory.
        optimizer: AdamW over them, in one group. From now on it holds one parameter, this rank's part of the buffer.
        limit: gradients are clipped to this norm; None = not.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, limit: float | None):
        self._parameters, self._optimizer = list(parameters), optimizer
        options = {"stage": 2, "reduce_bucket_size": min(sum(p.numel() for p in parameters), BUCKET)}
        trained = _Trained(self._parameters)
        self._engine = make_engine(parameters[0].device, trained, optimizer, config(options, limit))
        start, offset = self._parameters[0].data_ptr(), 0
        for parameter in self._parameters:
            if parameter.data_ptr() != start + 4 * offset:
                raise RuntimeError("this version of deepspeed lays out parameters in another order than theirs")
            offset += parameter.numel()

    @property
    def _part(self) -> Tensor:
        """This rank's part of the buffer [n], float32, padded at its end; the key of the optimizer's state."""
        (group,) = self._optimizer.param_groups
        (part,) = group["params"]
        return part

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch, averaged over ranks; `last`: a step follows."""
        super().backward(self._engine(loss), last)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state as one process has it: whole tensors per parameter. A collective."""
        (group,) = self._optimizer.param_groups
        state: dict[int, dict[str, Tensor]] = {}
        if kept := self._optimizer.state.get(self._part):
            for number, parameter, mine, place in self._places():
                whole = {name: torch.zeros_like(parameter) for name in MOMENTS}
                for name, tensor in whole.items():
                    tensor.view(-1)[mine] = kept[name][place]
                    torch.distributed.all_reduce(tensor)
                state[number] = {"step": kept["step"].clone(), **whole}
        return {"state": state, "param_groups": [{**group, "params": list(range(len(self._parameters)))}]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`, after the parameters have got their values. Of an optimizer of one process too."""
        part = self._part
        self._optimizer.state.clear()
        kept = {name: torch.zeros_like(part) for name in MOMENTS}
        for number, parameter, mine, place in self._places():
            part[place] = parameter.view(-1)[mine]
            for name in MOMENTS if state["state"] else ():
                kept[name][place] = state["state"][number][name].to(part.device).view(-1)[mine]
        if state["state"]:
            self._optimizer.state[part] = {"step": state["state"][0]["step"].clone(), **kept}

    def _places(self) -> Iterator[tuple[int, nn.Parameter, slice, slice]]:
        """Each parameter with its number, what of it lies in this rank's part, and where there."""
        size, first = self._part.numel(), 0
        begin = torch.distributed.get_rank() * size
        for number, parameter in enumerate(self._parameters):
            low = min(max(begin, first), first + parameter.numel())
            high = max(low, min(begin + size, first + parameter.numel()))
            place = min(max(low - begin, 0), size)
            yield number, parameter, slice(low - first, high - first), slice(place, place + high - low)
            first += parameter.numel()


def config(zero: dict[str, Any], limit: float | None) -> dict[str, Any]:
    """DeepSpeed's settings of a run that accumulates and schedules by itself; `zero`: those of ZeRO."""
    return {
        "train_batch_size": torch.distributed.get_world_size(),
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": limit or 0.0,
        "steps_per_print": None,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
        "timers": {"throughput": {"enabled": False}},  # it would wait for the GPU in each forward
    }


def load(device: torch.device) -> Any:
    """The package deepspeed, on the process group that is there."""
    on_cpu = device.type == "cpu"
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed: Any = importlib.import_module("deepspeed")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # it calls collectives by names that torch is about to drop
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    if on_cpu:
        # a collective in shared memory that would be compiled now, for a minute or more; gloo has what is needed
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = torch.distributed.get_backend()
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, dist_init_required=False)
    return deepspeed


def make_engine(
    device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer, options: dict[str, Any]
) -> Any:
    """DeepSpeed's engine."""
    return load(device).initialize(model=model, optimizer=optimizer, config=options)[0]
