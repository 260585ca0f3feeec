import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import Sampler, load_policy
from pipelines.seeds import row_seed
from pipelines.testing import tiny_sd3_directory
from pipelines.testing_flux import tiny_flux_directory

SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]
SAMPLER = Sampler(steps=2, height=32, width=32, guidance=2.5, max_sequence_length=20, noise="sde")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Its weights are left alone."""
    return load_policy(tiny_flux_directory(tmp_path_factory.mktemp("kontext") / "m", kontext=True), device="cpu")


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def edits(prompts: list[Prompt], *sources) -> list[Prompt]:
    chosen = [(source,) if source is not None else () for source in sources]
    return [dataclasses.replace(p, sources=s) for p, s in zip(prompts, chosen, strict=True)]


def test_sources_take_the_nearest_trained_shape(policy):
    size = policy.adapter.source_size
    # 1024 x 1024 samples: the pipeline's own shapes (height, width), here with sides in units of 4 pixels
    assert size((500, 500), 1024, 1024) == (1024, 1024)
    # 16 : 9 = 1.78; the nearest are 1392 / 752 = 1.85 and 1328 / 800 = 1.66
    assert size((90, 160), 1024, 1024) == (752, 1392)
    assert size((3000, 10), 1024, 1024) == (1568, 672)
    # samples of a quarter of the area: half of each side
    assert size((500, 500), 512, 512) == (512, 512) and size((3000, 10), 512, 512) == (784, 336)
    # never nothing, and whole tokens: 752 / 32 = 23.5 and 1392 / 32 = 43.5
    assert size((1, 1), 4, 4) == (4, 4) and size((90, 160), 32, 32) == (24, 44)


def test_sources_of_any_size_in_one_batch(policy, prompts):
    rows = edits(prompts, picture(50, 50), picture(31, 97), None, picture(97, 31))
    together = policy.sample(rows, SEEDS, SAMPLER, frozenset({"states", "log_prob"}))
    for row in range(4):
        alone = policy.sample([rows[row]], [SEEDS[row]], SAMPLER)
        torch.testing.assert_close(alone.samples[0], together.samples[row], atol=1e-5, rtol=0)
    index = torch.tensor([3, 0, 2, 1])
    out = policy.log_prob(together, index, index * 0)
    torch.testing.assert_close(out.log_prob.detach(), together.log_probs[index, 0], atol=1e-5, rtol=0)
    out.log_prob.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for _, p in policy.trainable_parameters())
    policy.module.zero_grad()


def test_the_source_reaches_the_sample(policy, prompts):
    one, other, none = (
        policy.sample(edits(prompts[:1], s), SEEDS[:1], SAMPLER).samples
        for s in (picture(8, 8), picture(8, 8, 1), None)
    )
    assert (one - other).abs().max() > 1e-4 and (one - none).abs().max() > 1e-4


def test_without_a_source_it_is_flux(policy, prompts, tmp_path):
    flux = load_policy(tiny_flux_directory(tmp_path), tune=None, device="cpu")
    mine, theirs = (p.sample(prompts, SEEDS, SAMPLER).samples for p in (policy, flux))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def test_a_source_is_encoded_once_by_its_pixels(tmp_path, prompts):
    policy = load_policy(tiny_flux_directory(tmp_path / "m", kontext=True), tune=None, device="cpu")
    array = picture(20, 30)
    Image.fromarray(array).save(tmp_path / "source.png")
    rows = edits(prompts, array, Image.fromarray(array), array.copy(), tmp_path / "source.png")
    rollout = policy.sample(rows, SEEDS, SAMPLER)
    # three times the same pixels, and a file, which is known by its path
    assert len(policy.conditioner.sources) == 2
    again = [dataclasses.replace(prompts[0], sources=rows[i].sources) for i in (0, 3)]
    by_array, by_file = (policy.sample([row], SEEDS[:1], SAMPLER).samples for row in again)
    assert torch.equal(by_array, by_file) and len(policy.conditioner.sources) == 2
    assert rollout.images.shape == (4, 32, 32, 3)


def test_sources_that_no_one_reads_are_refused(policy, prompts, tmp_path):
    with pytest.raises(InputError, match="prompt 'p0' has 2 source images, this model reads 1"):
        policy.check_prompts([dataclasses.replace(prompts[0], sources=(picture(8, 8), picture(8, 8)))])
    painter = load_policy(tiny_sd3_directory(tmp_path), tune=None, device="cpu")
    with pytest.raises(InputError, match="prompt 'p1' has 1 source images, this model reads 0"):
        painter.check_prompts(edits(prompts[:2], None, picture(8, 8)))
