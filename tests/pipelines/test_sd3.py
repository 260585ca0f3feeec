import dataclasses

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, StableDiffusion3Pipeline

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import flow, load_policy
from pipelines.policy import RowSeed
from pipelines.samplers import Sampler
from pipelines.seeds import NoiseStream, row_seed
from pipelines.shapes.models import grammar_words

ODE = Sampler(steps=4, max_sequence_length=0, shift=3.0)
NO_T5 = {"text_encoder_3": None, "tokenizer_3": None}
SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]


def plain(directory, **parts):
    pipe = StableDiffusion3Pipeline.from_pretrained(directory, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def latents(pipe, prompts, sampler, **options):
    noise = NoiseStream([seed.noise for seed in SEEDS], (4, 8, 8)).draw()
    return pipe(
        [p.text for p in prompts], negative_prompt=[p.negative for p in prompts], latents=noise,
        num_inference_steps=sampler.steps, guidance_scale=sampler.guidance, output_type="latent",
        max_sequence_length=sampler.max_sequence_length, **options,
    ).images  # fmt: skip


@pytest.mark.parametrize("guidance", [1.0, 4.5])
@pytest.mark.parametrize("schedule", ["linear", "diffusers"])
def test_ode_sampling_equals_the_plain_pipeline(policy, tiny, prompts, guidance, schedule):
    sampler = ODE.model_copy(update={"guidance": guidance, "schedule": schedule})
    prompts = [dataclasses.replace(p, negative="a black square") for p in prompts]
    options = {"sigmas": [1 - k / 4 for k in range(4)]} if schedule == "linear" else {}
    expected = latents(plain(tiny, **NO_T5), prompts, sampler, **options)
    rollout = policy.sample(prompts, SEEDS, sampler)
    torch.testing.assert_close(rollout.samples, expected, atol=1e-5, rtol=0)


def test_images_equal_those_of_the_plain_pipeline(policy, tiny, prompts):
    generators = [torch.Generator().manual_seed(seed.noise) for seed in SEEDS]
    images = plain(tiny, **NO_T5)(
        [p.text for p in prompts], generator=generators, num_inference_steps=4, guidance_scale=1.0,
        output_type="np", max_sequence_length=0,
    ).images  # fmt: skip
    rollout = policy.sample(prompts, SEEDS, ODE.model_copy(update={"schedule": "diffusers"}))
    # the last digit may round either way
    assert np.abs(rollout.images.astype(int) - (images * 255).round().astype(int)).max() <= 1


def test_with_t5(tiny_t5, prompts):
    sampler = ODE.model_copy(update={"guidance": 3.0, "max_sequence_length": 20, "shift": 1.0})
    policy = load_policy(tiny_t5, tune=None)
    expected = latents(plain(tiny_t5), prompts, sampler, sigmas=[1 - k / 4 for k in range(4)])
    rollout = policy.sample(prompts, SEEDS, sampler)
    torch.testing.assert_close(rollout.samples, expected, atol=1e-5, rtol=0)
    with pytest.raises(InputError, match=r"'p0' has 13 tokens, max_sequence_length is 6"):
        policy.sample(prompts, SEEDS, sampler.model_copy(update={"max_sequence_length": 6}))
    without = load_policy(tiny_t5, tune=None, t5=False)
    zeros = without.conditioner.cache.get(prompts[0].text, 20)[0][-20:]
    assert without.adapter.pipe.text_encoder_3 is None and bool((zeros == 0).all())


def test_every_word_of_the_grammar_is_one_token(policy, prompts):
    tokenizer = policy.adapter.pipe.tokenizer
    for text in [*grammar_words(), *(p.text for p in prompts)]:
        assert len(tokenizer(text, add_special_tokens=False).input_ids) == len(text.split()), text


def test_zero_tokens_in_place_of_t5_follow_the_sampler(policy, prompts):
    # 24 CLIP tokens, then one zero token per T5 token
    for tokens in (0, 5):
        sampler = ODE.model_copy(update={"max_sequence_length": tokens})
        embedding = policy._embed(prompts, torch.tensor([0, 1]), sampler)
        assert embedding[0].shape == (2, 24 + tokens, 32) and embedding[1].shape == (2, 32)


@pytest.mark.parametrize("noise", ["ode", "sde"])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_batch_split_and_order_do_not_change_the_samples(policy, prompts, noise, guidance):
    sampler = ODE.model_copy(update={"noise": noise, "guidance": guidance})
    whole = policy.sample(prompts, SEEDS, sampler)
    split = policy.sample(prompts, SEEDS, sampler, batch=1)
    turned = policy.sample(prompts[::-1], SEEDS[::-1], sampler)
    torch.testing.assert_close(split.samples, whole.samples, atol=1e-5, rtol=0)
    torch.testing.assert_close(turned.samples.flip(0), whole.samples, atol=1e-5, rtol=0)


def test_samples_of_one_prompt_differ_and_same_noise_shares_the_start(policy, prompts):
    sampler = ODE.model_copy(update={"noise": "sde", "same_noise": True})
    seeds = [row_seed(0, 0, 0, n, same_noise=True) for n in range(2)]
    rollout = policy.sample([prompts[0]] * 2, seeds, sampler, frozenset({"states"}))
    assert torch.equal(rollout.states[0, 0], rollout.states[1, 0])
    assert not torch.equal(rollout.samples[0], rollout.samples[1])


def test_noise_outside_the_window_is_ode(policy, prompts):
    whole = policy.sample(prompts, SEEDS, ODE)
    sampler = ODE.model_validate({**ODE.model_dump(), "noise": "sde", "window": {"size": 1, "lo": 1}})
    rollout = policy.sample(prompts, SEEDS, sampler, frozenset({"states"}))
    early = ODE.model_validate({**sampler.model_dump(), "window": {"size": 1, "lo": 0}})
    first = policy.sample(prompts, SEEDS, early, frozenset({"states"}))
    assert rollout.steps.tolist() == [1] and rollout.states.shape[1] == 1
    # step 0 was an Euler step from the same noise: x + v dt with v as predicted there
    rows = torch.arange(4)
    velocity = policy.predict(whole, rows, first.states[:, 0], torch.ones(4))
    expected = first.states[:, 0] + velocity * (whole.sigmas[1] - 1.0)
    torch.testing.assert_close(rollout.states[:, 0], expected, atol=1e-5, rtol=0)


def test_tf06_each_row_is_conditioned_on_its_own_text(policy, prompts):
    # ragged prompts, two samples each, interleaved
    rows = [prompts[0], prompts[1], prompts[0], prompts[1]]
    together = policy.sample(rows, SEEDS, ODE.model_copy(update={"guidance": 3.0}))
    for row, prompt in enumerate(rows):
        alone = policy.sample([prompt], [SEEDS[row]], ODE.model_copy(update={"guidance": 3.0}))
        torch.testing.assert_close(alone.samples[0], together.samples[row], atol=1e-5, rtol=0)
    embedding = policy._embed(prompts, torch.tensor([1, 0, 1]), ODE)
    for row, index in enumerate((1, 0, 1)):
        assert torch.equal(embedding[0][row], policy.conditioner.cache.get(prompts[index].text, 0)[0])


def test_tf08_guidance_in_training_after_a_rollout_without(policy, prompts):
    sampler = ODE.model_copy(update={"noise": "sde"})
    prompts = [dataclasses.replace(p, negative="a green circle") for p in prompts]
    rollout = policy.sample(prompts, SEEDS, sampler, frozenset({"states", "log_prob"}))
    guided = dataclasses.replace(rollout, sampler=sampler.model_copy(update={"guidance": 3.0}))
    rows, steps = torch.arange(4), torch.zeros(4, dtype=torch.long)
    need = frozenset({"velocity", "log_prob"})
    with_text, both = (policy.log_prob(r, rows, steps, need) for r in (rollout, guided))
    x = rollout.states[:, 0]
    negative = dataclasses.replace(rollout, prompts=[Prompt(id="n", text="a green circle")] * 4)
    without = policy.predict(negative, rows, x, torch.ones(4))
    # guidance: u + 3 (c - u), with u the velocity of the negative text
    torch.testing.assert_close(both.velocity, without + 3 * (with_text.velocity - without), atol=1e-5, rtol=0)


def test_embeddings_are_cached_by_text(policy, prompts):
    policy.sample(prompts, SEEDS, ODE)
    size = len(policy.conditioner.cache)
    policy.sample([dataclasses.replace(p, id=p.id + "x") for p in prompts], SEEDS, ODE)
    assert len(policy.conditioner.cache) == size


def test_prompts_that_are_too_long_or_unreadable_are_named(policy, prompts):
    long = Prompt(id="long", text="a red circle " * 8)
    # 24 words, start and end token
    with pytest.raises(InputError, match=r"prompt 'long' has 26 tokens, the CLIP text encoder takes 24: 'a red"):
        policy.check_prompts([prompts[0], long])
    with pytest.raises(InputError, match="'long'"):
        policy.sample([long], SEEDS[:1], ODE)
    with pytest.raises(InputError, match="negative text of prompt 'n' has 26 tokens"):
        policy.check_prompts([dataclasses.replace(prompts[0], id="n", negative=long.text)])
    with pytest.raises(InputError, match="does not know"):
        policy.check_prompts([Prompt(id="u", text="a red ☃")])
    policy.check_prompts(prompts)


def test_adopt_latents_and_images(policy, prompts):
    rollout = policy.sample(prompts, SEEDS, ODE)
    adopted = policy.adopt(prompts, rollout.samples)
    assert np.array_equal(adopted.images, rollout.images) and adopted.log_probs is None and adopted.seeds is None
    from_images = policy.adopt(prompts, rollout.images)
    assert from_images.samples.shape == rollout.samples.shape and from_images.sampler == policy.deployed
    # the VAE normalisation of encoding undoes that of decoding: (z - .1) * 1.5
    pixels = torch.from_numpy(rollout.images).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        mode = policy.adapter.pipe.vae.encode(pixels).latent_dist.mode()
    torch.testing.assert_close(from_images.samples, (mode - 0.1) * 1.5, atol=1e-5, rtol=0)
    velocity = policy.predict(from_images, torch.tensor([0, 3]), torch.zeros(2, 4, 8, 8), torch.tensor([0.3, 0.9]))
    assert velocity.shape == (2, 4, 8, 8) and velocity.requires_grad
    with pytest.raises(InputError, match="uint8"):
        policy.adopt(prompts, rollout.images.astype(float))
    with pytest.raises(InputError, match="one prompt per sample"):
        policy.adopt(prompts[:1], rollout.samples)


def test_one_seed_per_row_alone_decides_the_image(policy, prompts):
    one = policy.sample(prompts[:1], [RowSeed(1, 2)], ODE)
    two = policy.sample(prompts[:1], [RowSeed(1, 3)], ODE)
    assert np.array_equal(one.images, two.images)


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_dpm_solver_equals_the_plain_pipeline_with_that_scheduler(policy, tiny, prompts, guidance):
    levels = flow.sigmas(6, 3.0)

    class Scheduler(DPMSolverMultistepScheduler):
        """The scheduler on our levels: its own timesteps are cut to whole numbers."""

        def set_timesteps(self, *_, **__):
            super().set_timesteps(6)
            self.sigmas, self.timesteps = levels, levels[:-1] * 1000

    pipe = plain(tiny, **NO_T5)
    pipe.scheduler = Scheduler(use_flow_sigmas=True, prediction_type="flow_prediction", solver_order=2)
    sampler = ODE.model_copy(update={"guidance": guidance, "steps": 6, "solver": "dpmsolver++"})
    expected = latents(pipe, prompts, sampler)
    rollout = policy.sample(prompts, SEEDS, sampler)
    torch.testing.assert_close(rollout.samples, expected, atol=1e-5, rtol=0)
    euler = policy.sample(prompts, SEEDS, sampler.model_copy(update={"solver": "euler"}))
    assert (euler.samples - rollout.samples).abs().max() > 1e-3
