"""The Muon optimizer (https://kellerjordan.github.io/posts/muon/) for the matrices of a small transformer.

`torch.optim.Muon` computes in bfloat16, which CPUs without such instructions emulate about 50 times slower, and one
matrix at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration; its steep slope at 0 brings small singular values near 1 in few rounds."""
ITERATIONS = 5
UPDATE_RMS = 0.2
"""Root mean square of an update at rate 1, as AdamW's is, so that both take the same rate (arXiv 2502.16982)."""


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is replaced by the nearest orthogonal matrix.

    Args:
        params: matrices, or kernels of convolutions [out, in, ...], which count as matrices [out, in * ...]; those of
            one shape are handled together.
        lr: rate, on the scale of AdamW's.
        momentum: decay of the gradient's running mean, used the way of Nesterov.
        weight_decay: decoupled, as in AdamW.

    Raises:
        ValueError: a parameter has one dimension.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for parameter in self.param_groups[0]["params"]:
            if parameter.ndim < 2:
                raise ValueError(f"Muon takes matrices, not a parameter of shape {list(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                steps = orthogonal(torch.stack([self._direction(p, group["momentum"]) for p in parameters]))
                size = group["lr"] * UPDATE_RMS * max(steps.shape[1:]) ** 0.5
                for parameter, step in zip(parameters, steps, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(step.view(shape), alpha=-size)

    def _direction(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        grad = parameter.grad
        assert grad is not None
        state = self.state[parameter]
        mean = state.setdefault("mean", torch.zeros_like(parameter))
        mean.lerp_(grad, 1 - momentum)
        return grad.lerp(mean, momentum).flatten(1)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [B, M, N] with the same singular vectors and singular values near 1."""
    if matrices.size(-2) > matrices.size(-1):
        return orthogonal(matrices.mT).mT
    a, b, c = COEFFICIENTS
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def muon_and_adamw(module: nn.Module, rate: float, kernels: bool = False) -> list[torch.optim.Optimizer]:
    """Muon for the matrices that map between activations, and with `kernels` for convolutions; AdamW for the rest:
    embeddings, biases and norms."""
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    parameters = list(module.parameters())
    matrices = [p for p in parameters if (p.ndim == 2 or (kernels and p.ndim > 2)) and id(p) not in tables]
    taken = {id(p) for p in matrices}
    rest = [p for p in parameters if id(p) not in taken]
    return [Muon(matrices, rate), torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.99), weight_decay=1e-3)]
