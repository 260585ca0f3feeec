import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import Sampler, load_policy
from pipelines.packed import by_kind, pack, unpack
from pipelines.seeds import NoiseStream, row_seed
from pipelines.testing_qwen import sources_scaled_to, tiny_qwen_image_edit_directory

SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]
SAMPLER = Sampler(steps=2, height=48, width=48, guidance=2.5, max_sequence_length=24, noise="sde")


def load(folder, plus: bool):
    return load_policy(tiny_qwen_image_edit_directory(folder / "model", plus=plus), device="cpu")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Reads one source. Its weights are left alone."""
    return load(tmp_path_factory.mktemp("edit"), plus=False)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Reads up to three sources. Its weights are left alone."""
    return load(tmp_path_factory.mktemp("plus"), plus=True)


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def edits(prompts: list[Prompt], *sources: tuple) -> list[Prompt]:
    return [dataclasses.replace(p, sources=s, negative="a black square") for p, s in zip(prompts, sources, strict=True)]


def test_the_template_is_cut_where_the_pictures_begin(one, many, prompts):
    for policy, first in ((one, "<|vision_start|>"), (many, "a")):
        pipe = policy.adapter.pipe
        ids = pipe.tokenizer(pipe.prompt_template_encode.format(prompts[0].text)).input_ids
        assert pipe.tokenizer.convert_ids_to_tokens(ids)[pipe.prompt_template_encode_start_idx] == first


def test_sources_take_the_area_of_the_sample(one, many):
    for policy in (one, many):
        size = policy.adapter.source_size
        # 16 : 9 in 1024 * 1024 pixels is 1365.3 x 768, and 1365.3 / 32 = 42.7
        assert size((90, 160), 1024, 1024) == (768, 1376) and size((500, 500), 1024, 1024) == (1024, 1024)
        # a quarter of the area: 682.7 x 384, and 682.7 / 32 = 21.3
        assert size((90, 160), 512, 512) == (384, 672)
        # never nothing
        assert size((1, 40), 32, 32) == (32, 192)
    # the language model sees the same picture, or one of 384 * 384 pixels: 512 x 288
    assert one.adapter.seen_size((90, 160), 512, 512) == (384, 672)
    assert many.adapter.seen_size((90, 160), 512, 512) == many.adapter.seen_size((90, 160), 1024, 1024) == (288, 512)


def test_an_embedding_holds_the_text_and_what_its_pictures_add(many, prompts):
    rows = edits(prompts[:2], (picture(64, 64),), (picture(64, 64), picture(32, 64)))
    tokens, mask, added, sources, shapes = many.conditioner.embed(rows, torch.arange(2), SAMPLER, False)
    # 384 x 384 pixels are scaled to 392 x 392 for patches of 2 x 14 pixels, and 256 x 544 (32 : 64) to 252 x 532;
    # around each picture stand 'Picture', ' ', '1', ':', ' ', <|vision_start|> and <|vision_end|>
    assert added.tolist() == [[14 * 14 + 7], [14 * 14 + 9 * 19 + 14]]
    # 'two green triangles on a black background' and what follows it in the template: 12 tokens
    assert tokens.shape[1] == 24 + 381 and mask.sum(1).tolist()[1] == 12 + 381
    # of 48 x 48 pixels, 48 / 32 = 1.5 is rounded to 2, 67.9 / 32 to 2 and 33.9 / 32 to 1; a token has 4 x 4 pixels
    assert shapes.tolist() == [[16, 16, 0, 0, 0, 0], [16, 16, 8, 16, 0, 0]] and sources.shape[1] == 16 * 16 + 8 * 16


def test_sources_of_any_size_and_number_in_one_batch(many, prompts):
    rows = edits(
        prompts, (picture(50, 50),), (picture(31, 97), picture(8, 8, 1)), (picture(50, 50, 2),), (picture(97, 31),) * 3
    )
    together = many.sample(rows, SEEDS, SAMPLER, frozenset({"states", "log_prob"}))
    for row in range(4):
        alone = many.sample([rows[row]], [SEEDS[row]], SAMPLER)
        torch.testing.assert_close(alone.samples[0], together.samples[row], atol=1e-5, rtol=0)
    index = torch.tensor([3, 0, 2, 1])
    out = many.log_prob(together, index, index * 0)
    torch.testing.assert_close(out.log_prob.detach(), together.log_probs[index, 0], atol=1e-5, rtol=0)
    out.log_prob.sum().backward()
    # what the last block makes of the text is read by no one
    grads = [p.grad for name, p in many.trainable_parameters() if "txt" not in name and "add_" not in name]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)
    many.module.zero_grad()


def both(policy, prompt: Prompt, sizes: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    """What the policy and its plain pipeline make of the same noise and of sources (height, width)."""
    sources = tuple(picture(h, w, seed) for seed, (h, w) in enumerate(sizes))
    sampler = SAMPLER.model_copy(
        update={"noise": "ode", "shift": policy.adapter.shift_for(48, 48), "shift_terminal": 0.02}
    )
    mine = policy.sample(edits([prompt], sources), SEEDS[:1], sampler).samples
    noise = NoiseStream([SEEDS[0].noise], (4, 24, 24)).draw()
    shown = [Image.fromarray(source) for source in sources]
    with sources_scaled_to(48 * 48):
        plain = policy.adapter.pipe(
            image=shown if len(shown) > 1 else shown[0], prompt=[prompt.text], negative_prompt=["a black square"],
            true_cfg_scale=2.5, height=48, width=48, num_inference_steps=2, latents=pack(noise), output_type="latent",
        ).images  # fmt: skip
    return mine, unpack(plain, 24, 24)


@pytest.mark.parametrize("sizes", [((96, 32),), ((40, 80), (64, 64), (80, 40))])
def test_sources_of_other_shapes_equal_the_plain_pipeline(one, many, prompts, sizes):
    mine, plain = both(one if len(sizes) == 1 else many, prompts[0], sizes)
    torch.testing.assert_close(mine, plain, atol=1e-5, rtol=0)


def test_sources_that_are_modulated_as_clean_equal_the_plain_pipeline(prompts, tmp_path):
    path = tiny_qwen_image_edit_directory(tmp_path, plus=True, zero_cond_t=True)
    policy = load_policy(path, tune=None, device="cpu")
    mine, plain = both(policy, prompts[0], ((40, 80), (64, 64)))
    torch.testing.assert_close(mine, plain, atol=1e-5, rtol=0)


def test_the_order_of_the_sources_counts(many, prompts):
    first, second = picture(64, 64), picture(64, 64, 1)
    one, other = (
        many.sample(edits(prompts[:1], s), SEEDS[:1], SAMPLER).samples for s in ((first, second), (second, first))
    )
    assert (one - other).abs().max() > 1e-4


def test_text_and_latents_both_carry_the_source(one, prompts):
    rows = edits([prompts[0]] * 2, (picture(64, 64),), (picture(64, 64, 1),))
    tokens, mask, _, sources, _ = one.conditioner.embed(rows, torch.arange(2), SAMPLER, False)
    assert torch.equal(mask[0], mask[1])
    assert (tokens[0] - tokens[1]).abs().max() > 1e-4 and (sources[0] - sources[1]).abs().max() > 1e-2


def test_text_and_source_are_encoded_once(tmp_path, prompts):
    policy = load(tmp_path, plus=False)
    array = picture(20, 30)
    rows = edits([prompts[0]] * 3, (array,), (Image.fromarray(array),), (picture(20, 30, 1),))
    policy.sample(rows, SEEDS[:3], SAMPLER)
    # two sources, each beside the prompt and the negative text
    assert len(policy.conditioner.sources) == 2 and len(policy.conditioner.cache) == 4
    policy.sample(rows, SEEDS[:3], SAMPLER.model_copy(update={"height": 64}))
    assert len(policy.conditioner.sources) == 4 and len(policy.conditioner.cache) == 8


def test_prompts_with_too_few_or_too_many_sources_are_named(one, many, prompts):
    with pytest.raises(InputError, match="prompt 'p0' has 0 source images, this model reads 1"):
        one.sample(prompts[:1], SEEDS[:1], SAMPLER)
    with pytest.raises(InputError, match=r"prompt 'p1' has 2 source images, this model reads 1$"):
        one.check_prompts(edits(prompts[:2], (picture(8, 8),), (picture(8, 8),) * 2), SAMPLER)
    with pytest.raises(InputError, match="prompt 'p0' has 4 source images, this model reads 1 to 3"):
        many.check_prompts(edits(prompts[:1], (picture(8, 8),) * 4), SAMPLER)


def test_by_kind_calls_once_per_kind_and_keeps_the_order():
    calls = []

    def call(rows, kind):
        calls.append((rows.tolist(), kind))
        return rows * 10.0 + kind[1]

    out = by_kind(torch.tensor([[2, 1], [1, 5], [2, 1], [1, 4]]), call)
    assert out.tolist() == [1.0, 15.0, 21.0, 34.0]
    assert calls == [([3], [1, 4]), ([1], [1, 5]), ([0, 2], [2, 1])]
