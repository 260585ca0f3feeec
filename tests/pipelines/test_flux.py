import math

import pytest
import torch
from diffusers import FluxPipeline

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import load_policy
from pipelines.flux import positions
from pipelines.packed import pack, unpack
from pipelines.samplers import Sampler
from pipelines.seeds import row_seed
from pipelines.testing_flux import tiny_flux_directory

SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return tiny_flux_directory(tmp_path_factory.mktemp("flux") / "model")


def test_packing_by_hand():
    # one channel, 2 x 4 pixels: the left 2 x 2 block is the first token, read row by row
    x = torch.arange(8.0).reshape(1, 1, 2, 4)
    assert pack(x).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7]]]
    # two channels: all of channel 0 comes before channel 1
    both = torch.cat([x, x + 10], 1)
    assert pack(both)[0, 1].tolist() == [2, 3, 6, 7, 12, 13, 16, 17]
    assert torch.equal(unpack(pack(both), 2, 4), both)


def test_packing_equals_the_pipeline():
    x = torch.arange(2 * 4 * 6 * 10.0).reshape(2, 4, 6, 10)
    assert torch.equal(pack(x), FluxPipeline._pack_latents(x, 2, 4, 6, 10))
    expected = FluxPipeline._prepare_latent_image_ids(2, 3, 5, torch.device("cpu"), torch.float32)
    assert torch.equal(positions(3, 5, torch.device("cpu")), expected)


def test_shift_grows_with_the_image(flux):
    adapter = load_policy(flux, tune=None, device="cpu").adapter
    # factor 2 and 2 x 2 tokens: 4 pixels a side. 64 px = 256 tokens: mu .5; 256 px = 4096 tokens: mu 1.15;
    # 128 px = 1024 tokens: mu = .5 + .65 * 768 / 3840 = .63
    for side, mu in ((64, 0.5), (256, 1.15), (128, 0.63)):
        assert adapter.shift_for(side, side) == pytest.approx(math.exp(mu), abs=1e-9)
    assert adapter.shift_for(64, 256) == pytest.approx(math.exp(0.63), abs=1e-9)
    adapter.pipe.scheduler.register_to_config(time_shift_type="linear")
    assert adapter.shift_for(64, 64) == pytest.approx(0.5, abs=1e-9)


def test_embedded_guidance_is_one_call_and_reaches_the_model(flux, prompts):
    policy = load_policy(flux, device="cpu")
    assert policy.adapter.guidance == "embedded" and policy.deployed.guidance == 3.5
    seen = []
    policy.module.register_forward_pre_hook(
        lambda _m, _a, kw: seen.append((len(kw["hidden_states"]), kw["guidance"].tolist())), with_kwargs=True
    )
    sampler = Sampler(steps=2, guidance=2.5, height=16, width=16, max_sequence_length=20)
    policy.sample(prompts, SEEDS, sampler)
    # 2.5 and 1 alike: four rows in one call per step, each with its scale
    assert seen == [(4, [2.5] * 4)] * 2
    policy.sample(prompts, SEEDS, sampler.model_copy(update={"guidance": 1.0}))
    assert seen[2:] == [(4, [1.0] * 4)] * 2


def test_a_negative_text_that_no_one_reads_is_refused(flux):
    policy = load_policy(flux, device="cpu")
    with pytest.raises(InputError, match="prompt 'n' has a negative text, which a model with embedded guidance"):
        policy.check_prompts([Prompt(id="n", text="a red circle", negative="a blue square")])


def test_a_model_that_reads_no_scale_is_guided_by_the_negative_text(tmp_path):
    policy = load_policy(tiny_flux_directory(tmp_path, distilled=False), tune=None, device="cpu")
    assert policy.adapter.guidance == "cfg" and policy.deployed.guidance == 1.0
    # schnell's scheduler neither shifts by size nor at all
    assert policy.deployed.shift == policy.adapter.shift_for(64, 64) == 1.0


def test_parts_that_flux_needs_are_named(flux):
    with pytest.raises(InputError, match="t5=False is for StableDiffusion3Pipeline"):
        load_policy(flux, t5=False)
    pipe = load_policy(flux, tune=None, device="cpu").adapter.pipe
    pipe.scheduler.register_to_config(use_karras_sigmas=True)
    from pipelines.load import build_adapter

    with pytest.raises(InputError, match="scheduler of this FluxPipeline uses use_karras_sigmas"):
        build_adapter("FluxPipeline", pipe)
    pipe.text_encoder_2 = None
    pipe.scheduler.register_to_config(use_karras_sigmas=False)
    with pytest.raises(InputError, match="no CLIP or no T5"):
        build_adapter("FluxPipeline", pipe)


def test_t5_prompts_that_are_too_long_are_named(flux, prompts):
    policy = load_policy(flux, tune=None, device="cpu")
    # 12 words and the end token
    with pytest.raises(InputError, match=r"'p0' has 13 tokens, max_sequence_length is 6"):
        policy.check_prompts(prompts, Sampler(max_sequence_length=6))
