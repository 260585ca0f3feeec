"""Collapse guards: the signs that a run goes wrong, watched every step. Pure numpy.

Fast recipes reach a high reward and then destroy the images (known failures TF19, TF20). Four signs are
watched: the smoothed reward falls from its best, the policy leaves the reference (KL), the trained weights
    run away from
their moving average, and the images gain high-frequency energy (grids, noise) against step 0.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from mmrubric.errors import InputError

logger = logging.getLogger(__name__)

Action = Literal["warn", "stop"]


class Rule(BaseModel):
    """One guard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: float | None = Field(default=None, gt=0)
    """Fires above this value; None = only measured."""
    action: Action = "warn"
    """`warn` logs once and counts; `stop` asks the loop to save and end the run."""
    patience: int = Field(default=1, ge=1)
    """Consecutive measured steps above the limit before it fires."""


class GuardConfig(BaseModel):
    """Which guards act, and at what value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reward_drop: Rule = Rule(limit=0.15)
    """Best smoothed reward minus the smoothed reward now, in reward units."""
    kl: Rule = Rule()
    """Mean distance from the reference, in the unit of the run's KL name; hence no default limit."""
    ema_distance: Rule = Rule(limit=0.1)
    """||weights - EMA|| / ||EMA||."""
    high_freq: Rule = Rule(limit=2.0)
    """High-frequency image energy over that of the first measured step."""
    smoothing: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the reward's moving average (bias-corrected); 0 = raw reward."""
    warmup: int = Field(default=5, ge=0)
    """Measured rewards before a best is kept: the first averages are noisy, and a lucky one is no best."""


@dataclass(frozen=True)
class Fired:
    """A guard that acts at this step."""

    name: str
    value: float
    limit: float
    action: Action

    def __str__(self) -> str:
        return f"collapse guard {self.name}: {self.value:.4g} is above {self.limit:.4g}"


@dataclass(frozen=True)
class GuardReport:
    """Outcome of one step."""

    metrics: dict[str, float]
    """`guard/<name>`, NaN = not measured, and `guard/fired`, the number of guards above their limit."""
    fired: list[Fired] = field(default_factory=list)

    @property
    def stop(self) -> bool:
        """Whether a guard with action `stop` fired."""
        return any(f.action == "stop" for f in self.fired)


_NAMES: tuple[str, ...] = ("reward_drop", "kl", "ema_distance", "high_freq")


class Guards:
    """Watches one run. Call `update` once per step with the values of all ranks, on every rank alike."""

    def __init__(self, config: GuardConfig | None = None) -> None:
        self.config = config or GuardConfig()
        self._sum = 0.0
        self._norm = 0.0
        self._rewards = 0
        self._best: float | None = None
        self._energy: float | None = None
        self._streak: dict[str, int] = dict.fromkeys(_NAMES, 0)
        self._fired: dict[str, int] = dict.fromkeys(_NAMES, 0)

    def update(
        self,
        step: int,
        *,
        reward: float | None = None,
        kl: float | None = None,
        ema_distance: float | None = None,
        high_freq: float | None = None,
    ) -> GuardReport:
        """Take one step's values; None = not measured, which neither fires nor ends a streak.

        A NaN reward means that no sample could be scored and counts as not measured. A NaN or infinite `kl`,
        `ema_distance` or `high_freq` is a broken policy and counts as above every limit.

        Args:
            step: for the log line only.
            reward: mean reward of the step.
            kl: mean distance from the reference.
            ema_distance: see `relative_distance`.
            high_freq: see `high_freq_energy`.
        """
        values = {
            "reward_drop": self._reward_drop(reward),
            "kl": kl,
            "ema_distance": ema_distance,
            "high_freq": self._energy_ratio(high_freq),
        }
        fired = [f for name in _NAMES if (f := self._judge(name, values[name]))]
        for f in fired:
            if self._fired[f.name] == 0 or f.action == "stop":
                logger.warning("step %d: %s (%s)", step, f, f.action)
            self._fired[f.name] += 1
        metrics = {f"guard/{name}": math.nan if (v := values[name]) is None else v for name in _NAMES}
        metrics["guard/fired"] = float(len(fired))
        return GuardReport(metrics, fired)

    def _reward_drop(self, reward: float | None) -> float | None:
        if reward is None or math.isnan(reward):
            return None
        decay = self.config.smoothing
        self._sum = decay * self._sum + (1 - decay) * reward
        self._norm = decay * self._norm + (1 - decay)
        self._rewards += 1
        if self._rewards <= self.config.warmup:
            return None
        smoothed = self._sum / self._norm
        self._best = smoothed if self._best is None else max(self._best, smoothed)
        return self._best - smoothed

    def _energy_ratio(self, energy: float | None) -> float | None:
        if energy is None:
            return None
        if self._energy is None and math.isfinite(energy):
            # Flat images at step 0 would make any detail look like an explosion.
            self._energy = max(energy, 1e-6)
        return math.nan if self._energy is None else energy / self._energy

    def _judge(self, name: str, value: float | None) -> Fired | None:
        rule: Rule = getattr(self.config, name)
        if value is None or rule.limit is None:
            return None
        self._streak[name] = self._streak[name] + 1 if not value <= rule.limit else 0
        return Fired(name, value, rule.limit, rule.action) if self._streak[name] >= rule.patience else None

    def state_dict(self) -> dict[str, Any]:
        """Everything that `update` depends on besides the config; plain JSON values."""
        return {
            "sum": self._sum,
            "norm": self._norm,
            "rewards": self._rewards,
            "best": self._best,
            "energy": self._energy,
            "streak": dict(self._streak),
            "fired": dict(self._fired),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Self:
        """Go on from `state_dict`.

        Raises:
            InputError: keys are missing or unknown.
        """
        if set(state) != set(self.state_dict()):
            raise InputError(f"state of the collapse guards has keys {sorted(state)}, not {sorted(self.state_dict())}")
        self._sum, self._norm, self._rewards = (
            float(state["sum"]),
            float(state["norm"]),
            int(state["rewards"]),
        )
        self._best, self._energy = state["best"], state["energy"]
        self._streak = {name: int(state["streak"][name]) for name in _NAMES}
        self._fired = {name: int(state["fired"][name]) for name in _NAMES}
        return self


def high_freq_energy(images: np.ndarray, cutoff: float = 0.25) -> float:
    """Mean power per pixel of what varies faster than `cutoff`, of grey images in [0, 1].

    Args:
        images: uint8 [B, H, W, 3] or [H, W, 3].
        cutoff: radial frequency in cycles per pixel, in (0, 0.5); 0.25 = periods under four pixels.

    Returns:
        In [0, 1]; NaN for no image. A checkerboard of black and white pixels has 0.25, a flat image 0.
    """
    stack = np.asarray(images)
    stack = stack[None] if stack.ndim == 3 else stack
    if stack.ndim != 4 or stack.shape[-1] != 3 or stack.dtype != np.uint8:
        raise InputError(f"images must be uint8 [B, H, W, 3], not {stack.dtype} {stack.shape}")
    if len(stack) == 0:
        return math.nan
    grey = stack.mean(-1, dtype=np.float64) / 255
    height, width = grey.shape[1:]
    radius = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :])
    power = np.abs(np.fft.fft2(grey)) ** 2 / (height * width) ** 2
    return float(power[:, radius > cutoff].sum(1).mean())


def relative_distance(pairs: Iterable[tuple[Any, Any]], total: Callable[[float], float] = float) -> float:
    """||a - b|| / ||b|| over all pairs of arrays (numpy or detached torch); NaN when there are none or b is
    0. `total` sums over the ranks where the arrays are parts."""
    gap = size = 0.0
    for a, b in pairs:
        gap += float(((a - b) ** 2).sum())
        size += float((b**2).sum())
    gap, size = total(gap), total(size)
    return math.sqrt(gap / size) if size > 0 else math.nan
