"""Named copies of the trainable weights: old, ema, reference and previous, swapped in by a context manager.

A swap exchanges the storage behind each parameter and copies nothing, so the optimizer, DDP and graphs of
earlier forward passes keep their parameter objects, and the trained weights come back bitwise. Nothing is
ever merged. Of sharded parameters each rank keeps and exchanges its own part; their contents change places, because
FSDP2 and ZeRO-3 gather from memory that a new storage would not reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines import shards
from pipelines.shards import Held

COPIES = ("old", "ema", "reference", "previous")


class WeightCopies:
    """Copies of the trainable parameters of one module.

    Args:
        parameters: the trainable (name, parameter) pairs.
        module: the module they belong to, unwrapped.
        names: copies to keep, of `COPIES`; each starts as the present weights.
        adapter: the trainable parameters are a LoRA adapter. Its reference is the module without the adapter,
            which takes no memory and is always there.
    """

    def __init__(
        self,
        parameters: list[tuple[str, nn.Parameter]],
        module: nn.Module,
        names: Sequence[str],
        adapter: bool,
    ) -> None:
        self._parameters, self._module, self._adapter = parameters, module, adapter
        self._active: str | None = None
        self._copies: dict[str, dict[str, Held]] = {
            name: {key: shards.copy_of(p) for key, p in parameters}
            for name in names
            if not (adapter and name == "reference")
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names that `swapped` accepts."""
        return tuple(name for name in COPIES if name in self._copies or (self._adapter and name == "reference"))

    @contextmanager
    def swapped(self, name: str) -> Iterator[None]:
        """Run the body under another set of weights. Every rank must enter it. Do not call backward inside.

        Raises:
            InputError: an unknown name, or a copy that is not kept.
            RuntimeError: entered twice.
        """
        self._check(name)
        self.forbid_swap(f"weights('{name}')")
        self._active = name
        try:
            if self._adapter and name == "reference":
                self._enable_adapter(False)
            else:
                self._exchange(self._copies[name])
            yield
        finally:
            if self._adapter and name == "reference":
                self._enable_adapter(True)
            else:
                self._exchange(self._copies[name])
            self._active = None

    @torch.no_grad()
    def update(self, name: str, decay: float, source: str | None = None) -> None:
        """copy <- decay * copy + (1 - decay) * trained weights, or those of the copy `source`; decay 0 copies exactly.

        Raises:
            InputError: a decay outside [0, 1], or a copy that is not kept.
        """
        for known in (name, source):
            if known is not None:
                self._check(known)
            if known == "reference" and self._adapter:
                raise InputError(
                    "the reference of a LoRA adapter is the model without it: it cannot be updated or copied; train "
                    "all weights (tune='full', reference=True) to have one that moves"
                )
        if not 0.0 <= decay <= 1.0:
            raise InputError(f"decay of the {name} weights must be in [0, 1], not {decay}")
        self.forbid_swap(f"updating the {name} weights")
        copy = self._copies[name]
        kept = [shards.local(copy[key]) for key, _ in self._parameters]
        given: Mapping[str, Held] = dict(self._parameters) if source is None else self._copies[source]
        present = [shards.local(given[key]) for key, _ in self._parameters]
        if decay == 0.0:
            torch._foreach_copy_(kept, present)
        else:
            torch._foreach_lerp_(kept, present, 1.0 - decay)

    def forbid_swap(self, what: str) -> None:
        """Raise RuntimeError if other weights are swapped in just now."""
        if self._active is not None:
            raise RuntimeError(f"{what} inside weights('{self._active}'): leave that block first")

    def state_dict(self) -> dict[str, Held]:
        """Flat tensors named `<copy>/<parameter>`."""
        return {f"{name}/{key}": value for name, copy in self._copies.items() for key, value in copy.items()}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        """Take over whole values whose names were checked against `state_dict`."""
        for name, copy in self._copies.items():
            for key, value in copy.items():
                shards.assign(value, state[f"{name}/{key}"])

    def _check(self, name: str) -> None:
        if name not in COPIES:
            raise InputError(f"unknown weights '{name}': known are {', '.join(COPIES)}")
        if name not in self.names:
            raise InputError(f"the policy keeps no {name} weights: load it with load_policy(..., {name}=True)")

    def _exchange(self, copy: dict[str, Held]) -> None:
        shards.exchange((p, copy[key]) for key, p in self._parameters if shards.is_spread(p))
        for key, parameter in self._parameters:
            if isinstance(kept := copy[key], Tensor) and not shards.is_spread(parameter):
                parameter.data, copy[key] = kept, parameter.data

    def _enable_adapter(self, on: bool) -> None:
        from peft.tuners.tuners_utils import (
            BaseTunerLayer,
        )  # peft takes seconds to import and few policies need it

        for layer in self._module.modules():
            if isinstance(layer, BaseTunerLayer):
                layer.enable_adapters(on)
        if not on:
            # peft freezes what it disables; FSDP2 looks once, at the first forward, what has a gradient
            for _, parameter in self._parameters:
                parameter.requires_grad_(True)
