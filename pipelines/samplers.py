"""How samples are drawn: settings that are stored with every rollout, so that its replay reads the same ones."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator


class Window(BaseModel, frozen=True, extra="forbid"):
    """Steps that are stochastic and trained; the others follow the ODE. MixGRPO, arXiv 2507.21802."""

    size: int = Field(default=0, ge=0)
    """Number of steps in the window; 0 = every step but the last."""
    strategy: Literal["fixed", "random", "progressive", "decay", "exp_decay"] = "fixed"
    """fixed: starts at `lo`; random: drawn per optimisation step. The others move from `lo` towards the end.
    progressive: stays equally long everywhere; decay, exp_decay: ever shorter, linearly or exponentially."""
    lo: int = Field(default=0, ge=0)
    """First step that a window may start at."""
    hi: int | None = Field(default=None, ge=1)
    """End (exclusive) of the range that windows stay in; None = the last step, which is never trained."""
    stride: int = Field(default=1, ge=1)
    """Moving: steps that the window moves at a time; windows overlap where this is below `size`."""
    overlap: int | None = Field(default=None, ge=0)
    """Moving: steps that a window shares with the one before, in place of `stride`, which is then size - overlap."""
    iters_per_window: int = Field(default=25, ge=1)
    """Moving: optimisation steps at each position; decay, exp_decay: at the first one."""
    min_iters: int | None = Field(default=None, ge=1)
    """decay: optimisation steps at the last position; None = a quarter of `iters_per_window`, at least 1."""
    decay_rate: float = Field(default=0.1, gt=0.0, allow_inf_nan=False)
    """exp_decay: k of iters_per_window * exp(-k max(0, start - decay_from)), rounded up."""
    decay_from: int = Field(default=13, ge=0)
    """exp_decay: denoising step from which on positions are held shorter."""
    at_end: Literal["clamp", "roll_back"] = "clamp"
    """Moving: whether the window stays at the last position or starts again at `lo`."""
    compression: float = Field(default=1.0, gt=0.0, le=1.0)
    """Steps of the ODE after the window as a share of those left there, rounded down, at least 1. MixGRPO-Flash: 0.4,
    with `solver: dpmsolver++`."""

    def end(self, total_steps: int) -> int:
        """End (exclusive) of the range that windows stay in."""
        last = total_steps - 1
        return last if self.hi is None else min(self.hi, last)

    def shortened(self, steps: int) -> int:
        """How many steps take the place of `steps` after the window."""
        # the slack absorbs rounding of products such as .29 * 100
        return steps if self.compression == 1 else max(1, math.floor(self.compression * steps + 1e-9))

    @model_validator(mode="after")
    def _check(self) -> Window:
        if self.overlap is not None and self.stride != 1:
            raise ValueError(
                f"window.overlap {self.overlap} and window.stride {self.stride} say one thing: give either"
            )
        if self.overlap is not None and self.overlap >= self.size:
            raise ValueError(f"window.overlap is {self.overlap}: it must be below window.size ({self.size})")
        if self.min_iters is not None and self.min_iters > self.iters_per_window:
            raise ValueError(f"window.min_iters {self.min_iters} is above iters_per_window {self.iters_per_window}")
        moving = {"progressive", "decay", "exp_decay"}
        acts = {
            **dict.fromkeys(("stride", "overlap", "iters_per_window", "at_end"), moving),
            "min_iters": {"decay"}, "decay_rate": {"exp_decay"}, "decay_from": {"exp_decay"},
        }  # fmt: skip
        for name, strategies in acts.items():
            if self.strategy not in strategies and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"window.{name} is set but acts only with strategy {', '.join(sorted(strategies))}, "
                    f"not {self.strategy}"
                )
        return self


class Sampler(BaseModel, frozen=True, extra="forbid"):
    """How a flow model draws samples. Stored with every rollout, so that a replay cannot use another schedule."""

    kind: Literal["flow"] = "flow"
    """Sort of generator that this is for."""
    steps: int = Field(default=10, ge=1)
    """Denoising steps."""
    guidance: float = Field(default=1.0, ge=1.0, allow_inf_nan=False)
    """Scale of classifier-free guidance; 1 = off, one model call per step. A model with embedded guidance
    (FLUX.1-dev) is handed the scale, in one call per step whatever it is."""
    shift: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    """Shift of the noise levels, as in diffusers' `FlowMatchEulerDiscreteScheduler`. Where the pipeline shifts
    by the size of the image, `adapter.shift_for(height, width)` is its value."""
    shift_terminal: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Noise level before the last step, to which the shifted levels are stretched (Qwen-Image); None = none."""
    schedule: Literal["linear", "diffusers"] = "linear"
    """linear: equal distances from 1 to 0 before the shift. diffusers: what the scheduler takes when nothing
    but the number of steps is given to it; its last step starts next to 0."""
    noise: Literal["ode", "sde", "dance", "cps", "ddim"] = "ode"
    """ode: deterministic; sde: Flow-GRPO; dance: DanceGRPO; cps: coefficients-preserving. Stable Diffusion 1.5, 2 and
    XL take ode or ddim: DDPO."""
    level: float = Field(default=0.7, ge=0.0, allow_inf_nan=False)
    """Amount of noise of the stochastic steps: a (sde, cps) or eta (dance, ddim)."""
    solver: Literal["euler", "dpmsolver++"] = "euler"
    """Of the deterministic steps after the window, or of all steps without noise; before and in the window they stay as
    they are. dpmsolver++: second order, multistep, midpoint, as diffusers' `DPMSolverMultistepScheduler`."""
    window: Window | None = None
    """Steps that are stochastic; None = every step but the last."""
    same_noise: bool = False
    """The samples of a prompt share their initial noise and differ by the noise of the steps only."""
    height: int | None = Field(default=None, ge=1)
    """Pixels; None = the model's own size."""
    width: int | None = Field(default=None, ge=1)
    """Pixels; None = the model's own size."""
    max_sequence_length: int | None = Field(default=None, ge=0, le=512)
    """Text tokens: of T5 (SD3, FLUX; an SD3 pipeline without T5 gets as many zero tokens, 0 = none), or of the
    language model (Qwen-Image, pictures not counted; shorter prompts are padded and masked). None = as deployed."""
    log_prob: Literal["gaussian", "cps"] = "gaussian"
    """gaussian: log density of a step, mean over elements; cps: the published form without its constants."""

    @model_validator(mode="after")
    def _check(self) -> Sampler:
        if self.noise in ("cps", "ddim") and self.level > 1:
            raise ValueError(f"sampler.level is {self.level}: {self.noise} takes a level in [0, 1]")
        if self.log_prob == "cps" and self.noise != "cps":
            raise ValueError(f"sampler.log_prob 'cps' belongs to noise 'cps', not '{self.noise}': use 'gaussian'")
        if self.shift_terminal is not None and self.steps < 2:
            raise ValueError("sampler.shift_terminal is the level before the last of 2 or more steps, steps is 1")
        if self.same_noise and not self.stochastic:
            raise ValueError(
                "sampler.same_noise with deterministic steps makes all samples of a prompt equal: "
                "take a stochastic noise ('sde', 'dance', 'cps', 'ddim') with a level above 0, or same_noise: false"
            )
        if self.window is not None and not self.stochastic:
            raise ValueError(
                f"sampler.window says which steps are stochastic, but with noise '{self.noise}' and level {self.level} "
                "none is: leave it out, or take a noise with a level above 0"
            )
        self._check_solver()
        return self

    def _check_solver(self) -> None:
        window = self.window or Window()
        if window.compression < 1 and self.solver == "euler":
            raise ValueError(
                f"sampler.window.compression is {window.compression}, but it acts only after stochastic steps and with "
                "sampler.solver 'dpmsolver++': Euler steps would be too coarse"
            )
        if self.solver == "euler":
            return
        if self.stochastic and not window.size and window.hi is None:
            raise ValueError(
                f"sampler.solver '{self.solver}' is for deterministic steps, but with noise '{self.noise}' every step "
                "but the last is stochastic: give a window, or noise: ode"
            )
        if self.stochastic:
            left = window.shortened(self.steps - (window.lo + window.size if window.size else window.end(self.steps)))
            if left < 3:
                raise ValueError(
                    f"sampler.window leaves {left} steps after itself, and sampler.solver '{self.solver}' takes the "
                    "first and the last as Euler does: use more steps, a larger window.compression, or euler"
                )
        elif self.steps < 4:
            raise ValueError(
                f"sampler.solver '{self.solver}' takes the first two steps from noise level 1 and the last one as "
                f"Euler does, so that nothing is left of {self.steps} steps: use 4 or more, or euler"
            )

    @property
    def stochastic(self) -> bool:
        """Whether any step may draw noise."""
        return self.noise != "ode" and self.level > 0


class TokenSampler(BaseModel, frozen=True, extra="forbid"):
    """How a token model draws samples: l = l_u + w (l_c - l_u), p = softmax(l / temperature), cut to top-k and top-p.

    Temperature and cuts belong to the log-prob as well; the token that was drawn is always kept by a cut.
    """

    kind: Literal["tokens"] = "tokens"
    """Sort of generator that this is for."""
    guidance: float = Field(default=1.0, ge=1.0, allow_inf_nan=False)
    """w, the scale of classifier-free guidance; 1 = off, one model call per token."""
    guidance_mode: Literal["combined", "no_cfg", "cond_is"] = "combined"
    """Whose log-prob is trained. combined: of the guided logits, both branches in the graph. no_cfg: guidance must be
    1. cond_is: of the conditional logits alone, while guided logits sample; losses weigh each token by the truncated
    ratio of the two."""
    temperature: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    """Logits are divided by it."""
    top_k: int = Field(default=0, ge=0)
    """Most probable tokens that are kept; 0 = all."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Smallest set of tokens that is kept has at least this probability; 1 = all."""

    @model_validator(mode="after")
    def _check(self) -> TokenSampler:
        if self.guidance_mode == "no_cfg" and self.guidance != 1.0:
            raise ValueError(f"sampler.guidance_mode no_cfg samples without guidance, but guidance is {self.guidance}")
        if self.guidance_mode == "cond_is" and self.guidance == 1.0:
            raise ValueError("sampler.guidance_mode cond_is needs a guidance above 1: without it use combined")
        return self

    @property
    def same_noise(self) -> bool:
        """Tokens have no initial noise to share."""
        return False

    @property
    def stochastic(self) -> bool:
        """Every token is drawn."""
        return True


def _kind(value: Any) -> str:
    return value.get("kind", "flow") if isinstance(value, dict) else getattr(value, "kind", "flow")


AnySampler = Annotated[
    Annotated[Sampler, Tag("flow")] | Annotated[TokenSampler, Tag("tokens")],
    Discriminator(_kind),
]
"""A sampler of either sort, told apart by `kind`."""
