"""Stable Diffusion 1.5 and XL, beyond what every adapter must do (test_contract)."""

import dataclasses
import json

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from torch.distributions import Normal

from mmrubric.errors import InputError
from pipelines import Sampler, load_policy
from pipelines.load import build_adapter, check_sampler, provides
from pipelines.quiet import quiet
from pipelines.seeds import NoiseStream, row_seed
from pipelines.testing import tiny_sd3_directory
from pipelines.testing_sd import sd_scheduler, tiny_sd15_directory, tiny_sdxl_directory

SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]
BUILD = {"sd15": tiny_sd15_directory, "sdxl": tiny_sdxl_directory}
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


@pytest.fixture(scope="module", params=list(BUILD))
def policy(request, tmp_path_factory):
    """Its weights are left alone."""
    return load_policy(BUILD[request.param](tmp_path_factory.mktemp("sd") / "model"), device="cpu")


def plain(pipe, prompts, steps: int, **options) -> torch.Tensor:
    noise = NoiseStream([seed.noise for seed in SEEDS], (4, 8, 8)).draw()
    pipe.set_progress_bar_config(disable=True)
    return pipe(
        [p.text for p in prompts], latents=noise, num_inference_steps=steps, output_type="latent", **options
    ).images


def test_log_prob_is_the_mean_of_normal_densities(policy, prompts):
    record = frozenset({"states", "log_prob", "mean"})
    rollout = policy.sample(prompts, SEEDS, Sampler(steps=4, noise="ddim", level=0.6, guidance=2.0), record)
    alphas, t = policy.adapter.pipe.scheduler.alphas_cumprod.double(), [751, 501, 251]
    assert rollout.sigmas.tolist() == pytest.approx([0.751, 0.501, 0.251, 0.001, 0.0])
    for k in range(3):
        a, a_next = alphas[t[k]], alphas[t[k] - 250]
        std = float(0.6 * ((1 - a_next) / (1 - a) * (1 - a / a_next)).sqrt())
        density = Normal(rollout.means[:, k], std).log_prob(rollout.actions[:, k]).flatten(1).mean(1)
        torch.testing.assert_close(rollout.log_probs[:, k], density, atol=1e-5, rtol=1e-5)


def test_without_noise_it_is_the_ode(policy, prompts):
    none = policy.sample(prompts, SEEDS, Sampler(steps=3, noise="ddim", level=0.0)).samples
    ode = policy.sample(prompts, SEEDS, Sampler(steps=3)).samples
    some = policy.sample(prompts, SEEDS, Sampler(steps=3, noise="ddim", level=0.5)).samples
    assert torch.equal(none, ode) and (some - ode).abs().max() > 1e-2


def test_a_window_of_stochastic_steps(policy, prompts):
    sampler = Sampler.model_validate({"steps": 5, "noise": "ddim", "window": {"size": 2, "lo": 1}})
    rollout = policy.sample(prompts, SEEDS, sampler, frozenset({"states", "log_prob"}))
    assert rollout.steps.tolist() == [1, 2] and rollout.log_probs.shape == (4, 2)


@pytest.mark.parametrize(("name", "scheduler"), [
    ("sd15", sd_scheduler(prediction_type="v_prediction")),
    ("sd15", sd_scheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing")),
    ("sdxl", sd_scheduler(timestep_spacing="trailing", set_alpha_to_one=True)),
    ("sdxl", sd_scheduler(timestep_spacing="linspace", steps_offset=0)),
])  # fmt: skip
def test_other_schedules_equal_the_plain_pipeline(tmp_path, prompts, name, scheduler):
    policy = load_policy(BUILD[name](tmp_path, scheduler=scheduler), tune=None, device="cpu")
    shown = [dataclasses.replace(p, negative="a black square") for p in prompts]
    mine = policy.sample(shown, SEEDS, Sampler(steps=7, guidance=3.0)).samples
    pipe = policy.adapter.pipe
    pipe.scheduler = scheduler
    theirs = plain(pipe, prompts, 7, guidance_scale=3.0, negative_prompt=["a black square"] * 4)
    # the first step of an untrained epsilon model multiplies by 1 / sqrt(abar), up to 15
    scale = theirs.abs().max()
    torch.testing.assert_close(mine / scale, theirs / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "scheduler"), [
    ("sd15", PNDMScheduler(**BETAS, skip_prk_steps=True)),
    ("sdxl", EulerDiscreteScheduler(**BETAS, timestep_spacing="leading")),
    ("sdxl", DPMSolverMultistepScheduler(**BETAS)),
])  # fmt: skip
def test_the_betas_of_another_scheduler_are_taken_over(tmp_path, prompts, name, scheduler):
    policy = load_policy(BUILD[name](tmp_path / "model", scheduler=scheduler), device="cpu")
    mine = policy.sample(prompts, SEEDS, Sampler(steps=4)).samples
    policy.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved/scheduler/scheduler_config.json").read_text())
    assert config["_class_name"] == "DDIMScheduler" and config["beta_end"] == 0.012
    with quiet():
        kind = StableDiffusionPipeline if name == "sd15" else StableDiffusionXLPipeline
        pipe = kind.from_pretrained(tmp_path / "model")
        pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False)
    torch.testing.assert_close(mine, plain(pipe, prompts, 4, guidance_scale=1.0), atol=1e-5, rtol=0)


def test_deployed_equals_the_plain_pipeline_given_a_prompt_alone(policy, prompts):
    # no negative text: the empty one, or zeros for XL
    mine = policy.sample(prompts, SEEDS, policy.deployed.model_copy(update={"steps": 5})).samples
    torch.testing.assert_close(mine, plain(policy.adapter.pipe, prompts, 5), atol=2e-5, rtol=0)
    scale = 7.5 if isinstance(policy.adapter.pipe, StableDiffusionPipeline) else 5.0
    assert policy.deployed.guidance == scale


@pytest.mark.parametrize(("scheduler", "words"), [
    (sd_scheduler(clip_sample=True), "clip_sample"),
    (sd_scheduler(thresholding=True), "thresholding"),
    (sd_scheduler(prediction_type="sample"), "prediction_type sample"),
    (EulerDiscreteScheduler(**BETAS, use_karras_sigmas=True), "EulerDiscreteScheduler .*use_karras_sigmas"),
    (FlowMatchEulerDiscreteScheduler(), "FlowMatchEulerDiscreteScheduler .*no betas"),
])  # fmt: skip
def test_schedulers_that_ddim_cannot_repeat_are_refused(tmp_path, scheduler, words):
    with pytest.raises(InputError, match=words):
        load_policy(tiny_sdxl_directory(tmp_path, scheduler=scheduler), device="cpu")


def test_models_that_read_more_than_a_text_are_refused(tmp_path):
    pipe = load_policy(tiny_sd15_directory(tmp_path), tune=None, device="cpu").adapter.pipe
    pipe.unet.register_to_config(in_channels=9)
    with pytest.raises(InputError, match="reads 9 channels"):
        build_adapter("StableDiffusionPipeline", pipe)
    pipe.unet.register_to_config(in_channels=4, time_cond_proj_dim=32)
    with pytest.raises(InputError, match="guidance scale"):
        build_adapter("StableDiffusionPipeline", pipe)


def test_there_is_no_velocity(policy, prompts):
    assert policy.provides == {"log_prob", "mean", "std", "sigma"} == provides(type(policy.adapter.pipe).__name__)
    rollout = policy.sample(prompts, SEEDS, Sampler(steps=3, noise="ddim"), frozenset({"states"}))
    rows = torch.arange(4)
    with pytest.raises(InputError, match="predicts no velocity"):
        policy.predict(rollout, rows, rollout.samples, torch.full((4,), 0.5))
    with pytest.raises(InputError, match="gives no dt, velocity"):
        policy.log_prob(rollout, rows, rows * 0, frozenset({"velocity", "dt"}))
    out = policy.log_prob(rollout, rows, rows * 0)
    assert out.dt is None and out.velocity is None and out.std is not None and out.sigma is not None


def test_samplers_of_flow_models_are_refused_and_the_other_way_round(policy, prompts, tmp_path):
    for sampler in (Sampler(noise="sde"), Sampler(shift=3.0), Sampler(schedule="diffusers")):
        with pytest.raises(InputError, match=r"sampler\."):
            policy.sample(prompts, SEEDS, sampler)
        with pytest.raises(InputError, match=r"sampler\."):
            check_sampler("StableDiffusionXLPipeline", sampler)
    with pytest.raises(InputError, match=r"sampler\.steps is 1001"):
        policy.sample(prompts, SEEDS, Sampler(steps=1001))
    with pytest.raises(InputError, match="'ddim' of a flow model"):
        load_policy(tiny_sd3_directory(tmp_path), tune=None).check_prompts(prompts, Sampler(noise="ddim"))
    with pytest.raises(InputError, match="'ddim' of a flow model"):
        check_sampler("FluxPipeline", Sampler(noise="ddim"))
