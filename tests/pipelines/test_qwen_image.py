import math

import pytest
import torch

from mmrubric.errors import InputError
from pipelines import load_policy, windows
from pipelines.load import build_adapter
from pipelines.packed import pack
from pipelines.samplers import Sampler
from pipelines.testing_qwen import tiny_qwen_image_directory


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Its weights are left alone."""
    return load_policy(tiny_qwen_image_directory(tmp_path_factory.mktemp("qwen") / "model"), tune=None, device="cpu")


def test_the_template_is_cut_where_the_prompt_begins(policy, prompts):
    pipe = policy.adapter.pipe
    ids = pipe.tokenizer(pipe.prompt_template_encode.format(prompts[0].text)).input_ids
    words = pipe.tokenizer.decode(ids[pipe.prompt_template_encode_start_idx :]).split()
    assert words[0] == "a" and " ".join(words).startswith("a red circle left of a blue square")


def test_texts_are_padded_to_the_length_and_masked(policy, prompts):
    short, mask = policy.conditioner.cache.get(prompts[1].text, 24)
    # "two green triangles on a black background", <|im_end|>, \n, <|im_start|>, assistant, \n
    assert short.shape == (24, 16) and mask.tolist() == [True] * 12 + [False] * 12
    assert bool((short[12:] == 0).all()) and bool((short[:12] != 0).any(1).all())
    longer, _ = policy.conditioner.cache.get(prompts[1].text, 30)
    assert longer.shape == (30, 16) and torch.equal(longer[:12], short[:12])


def test_padding_does_not_reach_the_velocity(policy, prompts):
    x, sigma = torch.linspace(-1, 1, 4 * 64).reshape(1, 4, 8, 8), torch.tensor([0.5])
    velocities = []
    for tokens in (12, 24, 60):
        embedding = tuple(t[None] for t in policy.conditioner.cache.get(prompts[1].text, tokens))
        with torch.no_grad():
            velocities.append(policy.adapter.predict(policy.module, x, sigma, embedding, 1.0))
        junk = (embedding[0].masked_fill(~embedding[1][..., None], 7.0), embedding[1])
        with torch.no_grad():
            velocities.append(policy.adapter.predict(policy.module, x, sigma, junk, 1.0))
    for other in velocities[1:]:
        torch.testing.assert_close(other, velocities[0], atol=1e-5, rtol=0)


def test_prompts_that_are_too_long_are_named(policy, prompts):
    with pytest.raises(InputError, match=r"prompt 'p0' has 17 tokens, max_sequence_length is 16"):
        policy.check_prompts(prompts, Sampler(max_sequence_length=16))


def test_guidance_keeps_the_length_of_the_conditional_tokens(policy):
    generator = torch.Generator().manual_seed(0)
    without, with_text = torch.randn(2, 2, 4, 4, 4, generator=generator)
    guided = policy.adapter.guide(without, with_text, 4.0)
    torch.testing.assert_close(pack(guided).norm(dim=-1), pack(with_text).norm(dim=-1))
    # the direction is that of plain guidance
    plain = pack(without + 4.0 * (with_text - without))
    cosine = torch.nn.functional.cosine_similarity(pack(guided), plain, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_deployed_levels_end_at_the_terminal_of_the_shift(policy):
    # 256 px = 4096 tokens: mu = .5 + .4 * 3840 / 7936
    assert policy.deployed.shift == pytest.approx(math.exp(0.5 + 0.4 * 3840 / 7936), abs=1e-9)
    assert policy.deployed.shift_terminal == 0.02
    assert windows.levels(policy.deployed)[-2].item() == pytest.approx(0.02, abs=1e-7)


def test_encoded_images_are_normalised_by_the_vae_statistics(policy):
    images = (torch.arange(16 * 8 * 3).reshape(1, 16, 8, 3) % 251).to(torch.uint8)
    frames = images.permute(0, 3, 1, 2).float()[:, :, None] / 127.5 - 1
    with torch.no_grad():
        mode = policy.adapter.pipe.vae.encode(frames).latent_dist.mode()[:, :, 0]
        encoded = policy.adapter.encode_images(images.numpy())
    # latents_mean .1, -.2, .3, 0 and latents_std 1.5, .5, 2, 1
    for channel, (mean, std) in enumerate(((0.1, 1.5), (-0.2, 0.5), (0.3, 2.0), (0.0, 1.0))):
        torch.testing.assert_close(encoded[:, channel], (mode[:, channel] - mean) / std, atol=1e-5, rtol=0)


def test_embedded_guidance_is_refused(tmp_path):
    pipe = load_policy(tiny_qwen_image_directory(tmp_path), tune=None, device="cpu").adapter.pipe
    pipe.transformer.register_to_config(guidance_embeds=True)
    with pytest.raises(InputError, match="embedded guidance is not supported"):
        build_adapter("QwenImagePipeline", pipe)
