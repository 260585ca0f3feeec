"""One resumable training stage: warm-up and linear decay, averaged weights, a loss curve on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.optim import Optimizer

WARMUP = 200
EMA_DECAY = 0.999


def adamw(module: nn.Module, rate: float) -> list[Optimizer]:
    return [torch.optim.AdamW(module.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=1e-3)]


@dataclass
class Stage:
    """Training of one module in `folder`, saved every `save_every` steps; running it again goes on."""

    name: str
    folder: Path
    steps: int
    batch: int
    rate: float
    seed: int = 0
    decay_share: float = 0.3
    """The rate falls linearly to 0 over this last share of the steps."""
    save_every: int = 250
    on_save: Callable[[int], None] | None = None
    """Called with the averaged weights in the module."""
    optimizers: Callable[[nn.Module, float], list[Optimizer]] = adamw

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.pt"

    def rate_at(self, step: int) -> float:
        decay = (self.steps - step) / (self.decay_share * self.steps)
        return self.rate * min(1.0, (step + 1) / WARMUP, decay)

    def run(self, module: nn.Module, loss_of: Callable[[torch.Generator], Tensor]) -> None:
        """Train `module`; on return it holds the averaged weights."""
        optimizers = self.optimizers(module, self.rate)
        average = {k: v.detach().clone() for k, v in module.state_dict().items()}
        done, spent = self._load(module, optimizers, average)
        curve = self.folder / f"{self.name}_curve.jsonl"
        losses: list[float] = []
        began = time.monotonic() - spent
        for step in track(range(done, self.steps), description=f"training {self.name}"):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            loss = loss_of(generator)
            module.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.rate_at(step)
                optimizer.step()
            decay = min(EMA_DECAY, (1 + step) / (10 + step))
            for key, value in module.state_dict().items():
                average[key].lerp_(value, 1 - decay) if value.is_floating_point() else average[key].copy_(value)
            losses.append(loss.item())
            if (step + 1) % self.save_every == 0 or step + 1 == self.steps:
                row = {
                    "step": step + 1,
                    "loss": sum(losses) / len(losses),
                    "seconds": time.monotonic() - began,
                }
                losses.clear()
                self._save(module, optimizers, average, step + 1, row["seconds"])
                if self.on_save is not None:
                    raw = {k: v.clone() for k, v in module.state_dict().items()}
                    module.load_state_dict(average)
                    self.on_save(step + 1)
                    module.load_state_dict(raw)
                with curve.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        module.load_state_dict(average)

    def _save(self, module: nn.Module, optimizers: list[Optimizer], average: dict, step: int, seconds: float) -> None:
        state = {
            "module": module.state_dict(),
            "average": average,
            "optimizers": [o.state_dict() for o in optimizers],
            "step": step,
            "seconds": seconds,
        }
        temporary = self.path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.path)

    def _load(self, module: nn.Module, optimizers: list[Optimizer], average: dict) -> tuple[int, float]:
        if not self.path.exists():
            return 0, 0.0
        state = torch.load(self.path, weights_only=True)
        module.load_state_dict(state["module"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        average.update(state["average"])
        return state["step"], state["seconds"]
