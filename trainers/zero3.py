"""DeepSpeed ZeRO-3: weights, gradients and optimizer in 1/N on each of N ranks.

A layer's weights are gathered before it runs and let go after it. Nothing is fetched ahead, kept for the backward pass
or held whole because it is small: weights are swapped between forwards (`pipelines.weights`), and what is gathered by
then would be the weights from before. DeepSpeed's engine stands where DDP's wrapper would, and the policy calls it;
precision stays the policy's autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipelines import shards
from trainers import zero2
from trainers.zero2 import MOMENTS, Stepper

OPTIONS = {
    "stage": 3,
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_reuse_distance": 0,
    # no stream of its own, which would gather beside what swaps
    "overlap_comm": False,
    # it would replace torch.nn.functional.linear for the whole process
    "memory_efficient_linear": False,
}


def sharder(device: torch.device) -> Callable[[nn.Module], nn.Module]:
    """A function that shards a module over all ranks, in place, for `load_policy(shard=...)`. It runs once `Zero3` has
    it."""

    def shard(module: nn.Module) -> nn.Module:
        for buffer in module.buffers():
            buffer.data = buffer.data.to(device)  # Init places parameters only
        zero2.load(device).zero.Init(module=module, config_dict_or_path=_config(1, None))
        plain = [name for name, p in module.named_parameters() if not shards.is_partitioned(p)]
        if plain:
            raise RuntimeError(f"sharding was asked for, but {len(plain)} parameters are whole: {plain[:3]}")
        return module

    return shard


class _Network(nn.Module):
    """The network under the autocast of who called the engine, which ends any autocast that is not its own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.dtype: torch.dtype | None = None

    def forward(self, device: str, *inputs: Any, **options: Any) -> Any:
        with torch.autocast(device, dtype=self.dtype, enabled=self.dtype is not None):
            return self.network(*inputs, **options)


class _Engine(nn.Module):
    """DeepSpeed's engine as the policy calls it."""

    def __init__(self, engine: nn.Module, network: _Network) -> None:
        super().__init__()
        self.engine, self.network = engine, network

    def forward(self, *inputs: Any, **options: Any) -> Any:
        kind = next(self.engine.parameters()).device.type
        self.network.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        with torch.autocast(kind, enabled=False):
            return self.engine(kind, *inputs, **options)


class Zero3(Stepper):
    """The engine of a run. All ranks make it, and call its methods, together.

    Args:
        module: the network, from `sharder`.
        parameters: what trains of it, float32; they stay the objects that they are.
        optimizer: AdamW over them, in one group. From now on DeepSpeed gives it this rank's parts.
        limit: gradients are clipped to this norm; None = not.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        limit: float | None,
    ) -> None:
        self._parameters, self._optimizer = list(parameters), optimizer
        total = sum(map(shards.numel, parameters))
        options, network = _config(min(total, zero2.BUCKET), limit), _Network(module)
        self._engine = zero2.make_engine(parameters[0].device, network, optimizer, options)
        self.module = _Engine(self._engine, network)
        """What to call in place of the network."""

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state as one process has it, per parameter, in parts: see `pipelines.shards.gathered`."""
        (group,) = self._optimizer.param_groups
        state: dict[int, dict[str, Any]] = {}
        for number, parameter in enumerate(self._parameters):
            if kept := self._optimizer.state.get(self._flat(parameter)):
                moments = {name: self._part(parameter, name) for name in MOMENTS}
                state[number] = {"step": kept["step"].clone(), **moments}
        return {"state": state, "param_groups": [{**group, "params": list(range(len(self._parameters)))}]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict` with whole tensors, after the parameters have got their values. Of an optimizer of
        one process too."""
        self._optimizer.state.clear()
        for number, parameter in enumerate(self._parameters):
            self._part(parameter).part.copy_(shards.local(parameter))
            if state["state"]:
                found, flat = state["state"][number], self._flat(parameter)
                kept = self._optimizer.state[flat]
                kept["step"] = found["step"].clone()
                for name in MOMENTS:
                    kept.setdefault(name, torch.zeros_like(flat))
                    shards.assign(self._part(parameter, name), found[name].to(flat.device))

    def _flat(self, parameter: nn.Parameter) -> Tensor:
        """The float32 buffer that a parameter's part lies in; the key of the optimizer's state."""
        inner = self._engine.optimizer
        return inner.fp32_partitioned_groups_flat[inner.grad_position[inner.get_param_id(parameter)][0]]

    def _part(self, parameter: nn.Parameter, moment: str | None = None) -> shards.Partition:
        """What the optimizer keeps of a parameter's part: its value, or a moment."""
        part = shards.held(parameter)
        assert isinstance(part, shards.Partition)
        kept = self._engine.optimizer.get_local_fp32_param(parameter, moment)
        return shards.Partition(kept[: len(part.part)], part.shape)


def _config(bucket: int, limit: float | None) -> dict[str, Any]:
    return zero2.config({**OPTIONS, "reduce_bucket_size": bucket}, limit)
