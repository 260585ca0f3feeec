"""Parameters that are spread over ranks (DTensors): reading them whole, filling them, even numbers of forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 holds the module's parameters in shards."""
    return isinstance(module, FSDPModule)


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module before FSDP2 put its own on top."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory; a plain tensor is its own part."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def full(tensor: Tensor) -> Tensor:
    """The whole tensor. A collective where it is sharded."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor


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
    if isinstance(tree, DTensor):
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
def assign(target: Tensor, value: Tensor) -> None:
    """target <- value, a whole tensor that is the same on all ranks."""
    target.copy_(like(value.to(target.dtype), target))


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
def exchange(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Exchange the contents of tensors of the same layout, bitwise.

    FSDP2 gathers from memory of its own that a new `.data` would not reach.
    """
    for one, other in pairs:
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
