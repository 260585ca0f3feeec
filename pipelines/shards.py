"""Parameters that are spread over ranks: reading them whole, filling them, even numbers of forwards.

Under FSDP2 they are DTensors. Under DeepSpeed ZeRO-3 a parameter is empty but while its layer runs, and its `ds_tensor`
holds this rank's part: flat, in equal parts, the last filled up with anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True)
class Partition:
    """This rank's part of a tensor as ZeRO-3 lays it out."""

    part: Tensor
    """[at most ceil(n / ranks)], without what fills it up; of the last ranks it may be empty."""
    shape: torch.Size
    """Of the whole, n numbers."""

    @property
    def size(self) -> int:
        """Numbers of each rank's part, filled up."""
        return -(-self.shape.numel() // torch.distributed.get_world_size())

    def whole(self) -> Tensor:
        """A collective."""
        mine = self.part.new_zeros(self.size)
        mine[: len(self.part)] = self.part
        every = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(every, mine)
        return torch.cat(every)[: self.shape.numel()].view(self.shape)


Held = Tensor | Partition


def is_partitioned(tensor: Held) -> bool:
    """Whether ZeRO-3 holds a parameter in parts."""
    return getattr(tensor, "ds_tensor", None) is not None


def is_spread(tensor: Held) -> bool:
    """Whether other ranks hold parts of a tensor."""
    return isinstance(tensor, (DTensor, Partition)) or is_partitioned(tensor)


def _let_go(tensor: Held) -> None:
    """End the time in which ZeRO-3 holds a parameter whole, if it does: the next forward would use it as it is.

    Reading a weight in another layer's forward, as peft does for its type, keeps it whole until the next step.
    """
    parameter: Any = tensor
    if is_partitioned(tensor) and parameter.numel():
        parameter.ds_active_sub_modules.clear()  # an error may have left its layer's forward
        parameter.partition()


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 or ZeRO-3 holds the module's parameters in shards."""
    return isinstance(module, FSDPModule) or any(is_partitioned(p) for p in module.parameters())


def held(tensor: Held) -> Held:
    """A tensor as it lies here, detached, sharing its memory: whole, a DTensor or a `Partition`."""
    if isinstance(tensor, Partition):
        return tensor
    if not is_partitioned(tensor):
        return tensor.detach()
    whole: Any = tensor
    begin = torch.distributed.get_rank() * whole.ds_tensor.numel()
    count = min(max(whole.ds_numel - begin, 0), whole.ds_tensor.numel())
    return Partition(whole.ds_tensor.detach()[:count], torch.Size(whole.ds_shape))


def copy_of(tensor: Tensor) -> Held:
    """A copy with a memory of its own, laid out as the tensor."""
    found = held(tensor)
    return Partition(found.part.clone(), found.shape) if isinstance(found, Partition) else found.clone()


def numel(tensor: Held) -> int:
    """Numbers of the whole tensor."""
    return held(tensor).shape.numel()


def state_dict(module: nn.Module) -> dict[str, Held]:
    """A module's `state_dict` as it lies here."""
    return {name: held(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module before FSDP2 put its own on top."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))


def local(tensor: Held) -> Tensor:
    """This rank's part of a tensor, sharing its memory; a plain tensor is its own part."""
    found = held(tensor)
    if isinstance(found, Partition):
        return found.part
    return found.to_local() if isinstance(found, DTensor) else found


def full(tensor: Held) -> Tensor:
    """The whole tensor, detached. A collective where it is sharded."""
    found = held(tensor)
    if isinstance(found, Partition):
        return found.whole()
    return found.full_tensor() if isinstance(found, DTensor) else found


def whole_pipeline(pipe: Any, module: Any, state: dict[str, Tensor]) -> Any:
    """A pipeline beside `pipe` that shares all its parts but the sharded `module`, which is built anew from whole
    tensors: writing it to disk cannot touch the one that trains."""
    kind: Any = plain_class(module)
    with torch.device("meta"):
        whole = kind.from_config(module.config)
    whole.load_state_dict(state, assign=True)
    return type(pipe)(**{name: whole if part is module else part for name, part in pipe.components.items()})


def writes() -> bool:
    """Whether this process is rank 0, or the only one."""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def gathered(tree: Any) -> Any:
    """Nested dicts and lists with whole tensors on the CPU in place of shards, one at a time. A collective.

    Only rank 0 keeps them: the others get empty tensors, so that a node never holds the model once per rank.
    """
    if isinstance(tree, (DTensor, Partition)):
        whole = full(tree)
        return whole.cpu() if writes() else whole.new_zeros(0, device="cpu")
    if isinstance(tree, Mapping):
        return {key: gathered(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(gathered(value) for value in tree)
    return tree


def like(value: Tensor, target: Tensor) -> Tensor:
    """A whole tensor, the same on all ranks, laid out as `target`; nothing is sent."""
    if not isinstance(target, DTensor):
        return value
    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


@torch.no_grad()
def assign(target: Held, value: Tensor) -> None:
    """target <- value, a whole tensor that is the same on all ranks."""
    if isinstance(found := held(target), Partition):
        _let_go(target)
        begin = torch.distributed.get_rank() * found.size
        found.part.copy_(value.reshape(-1)[begin : begin + len(found.part)])
    else:
        found.copy_(like(value.to(found.dtype), found))


def optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A `state_dict` of whole tensors, laid out as the optimizer's parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    spread = {
        number: {
            k: like(v, parameters[number]) if k != "step" and isinstance(v, Tensor) else v for k, v in kept.items()
        }
        for number, kept in state["state"].items()
    }
    return {**state, "state": spread}


@torch.no_grad()
def exchange(pairs: Iterable[tuple[Tensor, Held]]) -> None:
    """Exchange the contents of parameters and tensors of the same layout, bitwise.

    FSDP2 and ZeRO-3 gather from memory of their own that a new `.data` would not reach.
    """
    for one, other in pairs:
        _let_go(one)
        mine, theirs = local(one), local(other)
        kept = mine.clone()
        mine.copy_(theirs)
        theirs.copy_(kept)


class EvenCalls:
    """Calls a sharded module equally often on all ranks: each call gathers weights, so a rank with fewer would hang
    the others. Where rows decide how often an adapter calls its module (sources of several shapes), ranks that ran
    out repeat their last call and count it by 0.

    Args:
        module: the sharded module; every rank calls it at least once.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._made = 0
        self._again: Callable[[], Any] = lambda: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._made:
            self._any(True)
        self._made += 1
        self._again = lambda: self._module(*args, **kwargs)
        return self._again()

    def filled(self, output: Tensor) -> Tensor:
        """`output`, after as many calls as the busiest rank made. A collective."""
        while self._any(False):
            output = output + 0.0 * self._again()[0].sum()
        return output

    def _any(self, more: bool) -> bool:
        """Whether any rank is about to make a further call. All ranks ask before each, in the same order."""
        flag = torch.tensor(int(more), device=next(self._module.parameters()).device)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return bool(flag)
