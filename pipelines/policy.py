"""A generator seen as a policy: the typed objects between sampling, judging and training.

`Rollout` is what sampling leaves behind, `StepOut` what a replay of some of its steps gives. Both are the
same for every model; `pipelines.diffusion` fills them for flow models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from pydantic import BaseModel, Discriminator, Field, Tag, model_validator
from torch import Tensor, nn

from mmrubric.errors import InputError
from mmrubric.rubric import Prompt
from pipelines import flow

RECORDABLE = frozenset({"states", "log_prob", "mean"})
"""What `Policy.sample` can record."""


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
        return self

    def sigmas(self) -> Tensor:
        """Noise levels [steps + 1] float32, see `pipelines.flow.sigmas`."""
        return flow.sigmas(self.steps, self.shift, self.schedule, self.shift_terminal)

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


@dataclass(frozen=True)
class RowSeed:
    """Seeds of one sample: `noise` for the initial noise, `path` for the noise of the steps."""

    noise: int
    path: int


@dataclass
class Rollout:
    """B samples and what is needed to replay them. Model numbers are float32 whatever the precision.

    Of a flow model, T = denoising steps and K = recorded steps. Of a token model, T = K = tokens of an image, `samples`
    and `actions` are the tokens [B, T] int64, `sigmas` is empty and `states` and `means` are None. What was not
    recorded is None.
    """

    prompts: list[Prompt]
    """The distinct prompts that the policy was shown (the context of every log-prob)."""
    prompt_index: Tensor
    """[B] int64, into `prompts`."""
    prompt_rows: Tensor
    """[B] int64, row of the prompt in the whole step, over all ranks."""
    sample_index: Tensor
    """[B] int64, number of the sample within its prompt row."""
    sample_ids: list[str]
    """[B], unique within a run."""
    seeds: list[RowSeed] | None
    """[B]; None for samples from outside."""
    policy_version: int
    """Version of the weights that sampled."""
    sampler: Sampler | TokenSampler
    sigmas: Tensor
    """[T + 1] float32, from 1 to 0; of DDIM models timesteps as shares of the training schedule."""
    samples: Tensor
    """[B, ...] final latents."""
    images: np.ndarray
    """[B, H, W, 3] uint8 RGB."""
    steps: Tensor
    """[K] int64, the stochastic steps; never the last one."""
    states: Tensor | None = None
    """[B, K, ...] before each step."""
    actions: Tensor | None = None
    """[B, K, ...] after each step."""
    log_probs: Tensor | None = None
    """[B, K], under the weights and the logits that sampled."""
    means: Tensor | None = None
    """[B, K, ...]."""
    mask: Tensor | None = None
    """[B, K] bool, False = not to be trained on."""

    def __len__(self) -> int:
        return len(self.prompt_index)

    def select(self, rows: Tensor | Sequence[int]) -> Rollout:
        """The given rows, in the given order, repeats allowed; all prompts are kept."""
        index = torch.as_tensor(rows, dtype=torch.long).cpu()
        numbers = index.tolist()

        def take(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index.to(value.device)]

        return replace(
            self,
            prompt_index=self.prompt_index[index],
            prompt_rows=self.prompt_rows[index],
            sample_index=self.sample_index[index],
            sample_ids=[self.sample_ids[i] for i in numbers],
            seeds=None if self.seeds is None else [self.seeds[i] for i in numbers],
            samples=self.samples[index.to(self.samples.device)],
            images=self.images[index.numpy()],
            **{name: take(getattr(self, name)) for name in ("states", "actions", "log_probs", "means", "mask")},
        )

    @staticmethod
    def merge(rollouts: Sequence[Rollout]) -> Rollout:
        """One rollout with the rows of all, in order.

        Raises:
            InputError: none given, or they differ in sampler, version, steps or recorded parts.
        """
        if not rollouts:
            raise InputError("Rollout.merge needs at least one rollout")
        first = rollouts[0]
        for other in rollouts[1:]:
            for name in ("sampler", "policy_version"):
                if getattr(first, name) != getattr(other, name):
                    raise InputError(f"rollouts differ in {name}: {getattr(first, name)} and {getattr(other, name)}")
            if not (torch.equal(first.sigmas, other.sigmas) and torch.equal(first.steps, other.steps)):
                raise InputError("rollouts differ in noise levels or recorded steps")
            for name in ("seeds", "states", "actions", "log_probs", "means", "mask"):
                if (getattr(first, name) is None) != (getattr(other, name) is None):
                    raise InputError(f"only some of the rollouts hold {name}")
        prompts, places = distinct([prompt for rollout in rollouts for prompt in rollout.prompts])
        index, start = [], 0
        for rollout in rollouts:
            index.append(places[start : start + len(rollout.prompts)][rollout.prompt_index])
            start += len(rollout.prompts)

        def join(name: str) -> Tensor | None:
            parts = [getattr(rollout, name) for rollout in rollouts]
            return None if parts[0] is None else torch.cat(parts)

        return replace(
            first,
            prompts=prompts,
            prompt_index=torch.cat(index),
            prompt_rows=torch.cat([r.prompt_rows for r in rollouts]),
            sample_index=torch.cat([r.sample_index for r in rollouts]),
            sample_ids=[i for r in rollouts for i in r.sample_ids],
            seeds=None if first.seeds is None else [s for r in rollouts for s in (r.seeds or [])],
            samples=torch.cat([r.samples for r in rollouts]),
            images=np.concatenate([r.images for r in rollouts]),
            **{name: join(name) for name in ("states", "actions", "log_probs", "means", "mask")},
        )


@dataclass
class StepOut:
    """Replay of n (row, step) items under the present weights, of token models n whole rows; None = not asked for."""

    log_prob: Tensor | None = None
    """[n], of token models [n, T]; gradient flows."""
    mean: Tensor | None = None
    """[n, ...], gradient flows."""
    std: Tensor | None = None
    """[n], standard deviation of the step."""
    dt: Tensor | None = None
    """[n], next noise level minus this one, negative."""
    velocity: Tensor | None = None
    """[n, ...], gradient flows."""
    sigma: Tensor | None = None
    """[n], noise level."""
    value: Tensor | None = None
    """[n, T], of token policies with a value head: what is expected before each token; gradient flows."""
    logits: Tensor | None = None
    """[n, T, V], of token policies; gradient flows."""


STEP_FIELDS = frozenset(field.name for field in fields(StepOut))
"""Names that `Policy.log_prob(need=...)` may ask for."""


@runtime_checkable
class Policy(Protocol):
    """What the trainers need of a generator. `pipelines.diffusion.FlowPolicy` documents each part."""

    provides: frozenset[str]
    version: int
    deployed: Any
    """`Sampler` or `TokenSampler`, used where none is given."""

    @property
    def module(self) -> nn.Module: ...

    def wrap(self, fn: Callable[[nn.Module], nn.Module]) -> None: ...

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]: ...

    def check_prompts(self, prompts: Sequence[Prompt], sampler: Any = None) -> None: ...

    def sample(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[RowSeed],
        sampler: Any = None,
        record: frozenset[str] = frozenset(),
        *,
        prompt_rows: Sequence[int] | Tensor | None = None,
        sample_index: Sequence[int] | Tensor | None = None,
        batch: int | None = None,
    ) -> Rollout: ...

    def log_prob(
        self, rollout: Rollout, rows: Tensor, steps: Tensor, need: frozenset[str] = frozenset({"log_prob"})
    ) -> StepOut: ...

    def predict(self, rollout: Rollout, rows: Tensor, x: Tensor, t: Tensor) -> Tensor: ...

    def adopt(self, prompts: Sequence[Prompt], samples: Tensor | np.ndarray) -> Rollout: ...

    def weights(self, name: str) -> AbstractContextManager[None]: ...

    def update_old(self, decay: float = 0.0) -> None: ...

    def update_ema(self, decay: float) -> None: ...

    def keep_previous(self, source: str | None = None) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def save_pretrained(self, directory: str) -> None: ...


def distinct(prompts: Sequence[Prompt]) -> tuple[list[Prompt], Tensor]:
    """The distinct prompts in order of appearance, and for each given prompt its index among them."""
    place: dict[tuple, int] = {}
    unique: list[Prompt] = []
    index = []
    for prompt in prompts:
        # source images need not be hashable, and the same object is the same image
        key = (prompt.id, prompt.text, prompt.negative, *map(id, prompt.sources))
        if key not in place:
            place[key] = len(unique)
            unique.append(prompt)
        index.append(place[key])
    return unique, torch.tensor(index, dtype=torch.long)


def count_within(index: Tensor) -> Tensor:
    """For each entry, how many equal entries come before it."""
    seen: dict[int, int] = {}
    counts = []
    for value in index.tolist():
        counts.append(seen.get(value, 0))
        seen[value] = counts[-1] + 1
    return torch.tensor(counts, dtype=torch.long)


def batches(count: int, size: int | None) -> Iterator[slice]:
    """Consecutive slices of at most `size` items (None = all at once)."""
    step = max(count, 1) if size is None else size
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
