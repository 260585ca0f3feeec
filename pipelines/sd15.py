"""Stable Diffusion 1 and 2 (arXiv 2112.10752): how to encode, predict and decode, and what DDIM models share.

Convention of the model: it is a denoising diffusion model of N = 1000 timesteps and predicts the noise, or v; see
`pipelines.ddim`. Embeddings are (CLIP tokens [77, D],).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import DDIMScheduler
from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines import ddim
from pipelines.adapter import DiffusersAdapter, clip_problem
from pipelines.conditioning import Embedding
from pipelines.flow import StepTable
from pipelines.samplers import Sampler

_ODD = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas", "use_flow_sigmas")


class DDIMAdapter(DiffusersAdapter):
    """A pipeline with a `unet` that predicts noise or v, a `vae`, and betas in its scheduler's configuration.

    Whatever scheduler the pipeline came with, `pipe.scheduler` becomes the `DDIMScheduler` of the same betas, spacing
    of timesteps and prediction type; it is what is saved with the weights.

    Raises:
        InputError: a part is missing, the scheduler does what DDIM cannot repeat, or the model reads more than a text.
    """

    network = "unet"
    lacks = ddim.LACKS
    default_sequence_length = 0
    deployed_guidance: float
    """`guidance_scale` of the plain pipeline."""

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        name, config = type(pipe).__name__, pipe.unet.config
        if config.in_channels != pipe.vae.config.latent_channels:
            raise InputError(f"the unet of this {name} reads {config.in_channels} channels: not a text-to-image model")
        if config.time_cond_proj_dim is not None:
            raise InputError(f"the unet of this {name} reads the guidance scale (LCM), which is not supported")
        if getattr(pipe.vae.config, "latents_mean", None) is not None:
            raise InputError(f"the vae of this {name} has latents_mean, which is not supported")

    def check_scheduler(self) -> None:
        """Put a `DDIMScheduler` in the place of the pipeline's.

        Raises:
            InputError: it has options that DDIM does not repeat.
        """
        name, config = type(self.pipe.scheduler).__name__, dict(self.pipe.scheduler.config)
        # schedulers that have no such option never clip
        config.setdefault("clip_sample", False)
        odd = [option for option in (*_ODD, "thresholding", "clip_sample") if config.get(option)]
        if config.get("prediction_type", "epsilon") not in ddim.PREDICTIONS:
            odd.append(f"prediction_type {config['prediction_type']}")
        if name not in DDIMScheduler._compatibles or "beta_schedule" not in config:
            odd.append("no betas")
        if odd:
            raise InputError(
                f"the {name} of this {type(self.pipe).__name__} uses {', '.join(odd)}: "
                "only a schedule that DDIMScheduler can take over is supported"
            )
        self.pipe.scheduler = DDIMScheduler.from_config(config)

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        size = self.pipe.unet.config.sample_size
        rows, columns = (size, size) if isinstance(size, int) else size
        return int(rows * self.pipe.vae_scale_factor), int(columns * self.pipe.vae_scale_factor)

    def deployed(self, height: int, width: int) -> Sampler:
        """What the plain pipeline does when it is given a prompt and nothing else, with its betas in DDIM."""
        return Sampler(steps=50, guidance=self.deployed_guidance)

    def check_sampler(self, sampler: Sampler) -> None:
        """Refuse a sampler for another sort of model."""
        ddim.check_sampler(sampler)

    def levels(self, sampler: Sampler) -> Tensor:
        """Timesteps as shares of the training schedule, and 0, [steps + 1] float32.

        Raises:
            InputError: more steps than the training schedule has.
        """
        scheduler = self.pipe.scheduler
        total = scheduler.config.num_train_timesteps
        if sampler.steps > total:
            raise InputError(f"sampler.steps is {sampler.steps}, but the model was trained on {total} timesteps")
        scheduler.set_timesteps(sampler.steps)
        return torch.cat([scheduler.timesteps.cpu().float() / total, torch.zeros(1)])

    def step_table(self, levels: Tensor, noise: str, level: float, stochastic: Sequence[int]) -> StepTable:
        """Coefficients of every step, see `pipelines.ddim.step_table`."""
        scheduler = self.pipe.scheduler
        last, kind = float(scheduler.final_alpha_cumprod), scheduler.config.prediction_type
        return ddim.step_table(levels, scheduler.alphas_cumprod, last, noise, level, stochastic, kind)

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of a sample [C, H / f, W / f].

        Raises:
            InputError: a side that the VAE does not divide.
        """
        factor = self.pipe.vae_scale_factor
        if height % factor or width % factor:
            raise InputError(f"height and width must be multiples of {factor} pixels, not {height} x {width}")
        return self.pipe.unet.config.in_channels, height // factor, width // factor

    def timesteps(self, sigma: Tensor) -> Tensor:
        """Timesteps [n] int64 of levels [n] in [0, 1]."""
        return ddim.timesteps(sigma, self.pipe.scheduler.config.num_train_timesteps)


class SD15Adapter(DDIMAdapter):
    """Adapter of a `StableDiffusionPipeline`: 1.x, and 2.x with either prediction type. No safety checker runs."""

    deployed_guidance = 7.5

    def problem(self, text: str, tokens: int) -> str | None:
        """Why a text cannot be shown to the model in full, or None."""
        return clip_problem(self.pipe.tokenizer, text, self.pipe.tokenizer.model_max_length)

    def encode(self, text: str, tokens: int) -> Embedding:
        """(tokens [L, D],) of one text."""
        embeds, _ = self.pipe.encode_prompt(text, self.device, 1, do_classifier_free_guidance=False)
        return (embeds[0],)

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Noise or v [n, C, h, w] at x [n, C, h, w] and level sigma [n] in [0, 1]."""
        (tokens,) = embedding
        return module(x, self.timesteps(sigma), encoder_hidden_states=tokens, return_dict=False)[0]
