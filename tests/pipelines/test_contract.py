"""What every flow adapter must do, on tiny random pipelines of each architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import LoraOptions, Sampler, load_policy
from pipelines.diffusion import FlowPolicy
from pipelines.load import ATTENTION, replaced_parts
from pipelines.packed import pack, unpack
from pipelines.policy import Rollout
from pipelines.quiet import quiet
from pipelines.seeds import NoiseStream, row_seed
from pipelines.testing_qwen import sources_scaled_to
from tests.pipelines.cases import CASES, HEIGHT, NEGATIVE, SHAPE, WIDTH, Case, pictured

RECORD = frozenset({"states", "log_prob", "mean"})
PRECISIONS = ("fp32", "bf16", "fp16")
SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]


@dataclasses.dataclass
class Model:
    """A case with its directory and policies that no test changes."""

    case: Case
    path: Path
    policies: dict[str, FlowPolicy]

    @property
    def policy(self) -> FlowPolicy:
        return self.policies["fp32"]

    @property
    def noise(self) -> str:
        """The usual kind of stochastic steps."""
        return self.case.noises[0]

    def sampler(self, **fields: Any) -> Sampler:
        """As deployed at HEIGHT x WIDTH, without guidance in 3 steps unless said."""
        deployed = self.policy.adapter.deployed(HEIGHT, WIDTH)
        size = {"height": HEIGHT, "width": WIDTH, "max_sequence_length": self.case.tokens}
        return Sampler.model_validate({**deployed.model_dump(), **size, "steps": 3, "guidance": 1.0, **fields})

    def plain(self, prompts: list[Prompt], sampler: Sampler, source: Path | None = None, **options: Any) -> Any:
        """What plain diffusers makes of the same noise: latents, or images with output_type='np'."""
        lora = options.pop("lora", None)
        with quiet():
            parts = {**dict.fromkeys(self.case.parts), **replaced_parts(self.case.pipeline, str(source or self.path))}
            pipe = getattr(diffusers, self.case.pipeline).from_pretrained(source or self.path, **parts)
            if lora:
                pipe.load_lora_weights(lora)
        pipe.set_progress_bar_config(disable=True)
        noise = NoiseStream([seed.noise for seed in SEEDS], SHAPE).draw()
        options = {
            "prompt": [p.text for p in prompts], "latents": pack(noise) if self.case.packed else noise,
            "height": HEIGHT, "width": WIDTH, "num_inference_steps": sampler.steps, "output_type": "latent",
            **self.case.guidance(sampler.guidance), **options,
        }  # fmt: skip
        if self.case.sources:
            pictures = [[Image.fromarray(np.asarray(s)) for s in p.sources] for p in prompts]
            # in a list QwenImageEditPipeline would not scale a picture for the language model
            options["image"] = [some if len(some) > 1 else some[0] for some in pictures]
        if self.case.pipeline == "FluxKontextPipeline":
            # the pipeline's own size is 1024 x 1024; those of the sources are what the adapter scales them to
            options |= {"max_area": HEIGHT * WIDTH, "_auto_resize": False}
        if "ddim" not in self.case.noises:
            options["max_sequence_length"] = sampler.max_sequence_length
        with sources_scaled_to(HEIGHT * WIDTH):
            if self.case.one_by_one:
                outs = [pipe(**row).images for row in rows_of(options)]
                out: Any = (np if options["output_type"] == "np" else torch).concatenate(outs)
            else:
                out = pipe(**options).images
        return unpack(out, *SHAPE[1:]) if self.case.packed and options["output_type"] == "latent" else out


def rows_of(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of one call for each of four rows; lists and latents hold one entry per row."""
    for row in range(4):
        one = {name: value[row : row + 1] if isinstance(value, list) else value for name, value in options.items()}
        yield {**one, "latents": options["latents"][row : row + 1], "image": options["image"][row]}


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    case = CASES[request.param]
    path = case.build(tmp_path_factory.mktemp(request.param) / "model")
    return Model(case, path, {p: load_policy(path, precision=p, device="cpu") for p in PRECISIONS})


@pytest.fixture
def shown(prompts: list[Prompt], model: Model) -> list[Prompt]:
    """Prompts with a negative text and a source image where the model reads them."""
    negative = NEGATIVE if model.policy.adapter.guidance == "cfg" else ""
    return [dataclasses.replace(prompt, negative=negative) for prompt in pictured(model.case, prompts)]


def roll_out(policy: FlowPolicy, prompts: list[Prompt], sampler: Sampler, batch: int | None = None) -> Rollout:
    return policy.sample(prompts, SEEDS, sampler, RECORD, batch=batch)


def replay(policy: FlowPolicy, rollout: Rollout, batch: int = 4) -> torch.Tensor:
    """[B, K] log-probs in micro-batches, with gradient as in training."""
    parts = []
    for rows in torch.arange(len(rollout)).split(batch):
        steps = [torch.full_like(rows, k) for k in range(len(rollout.steps))]
        values = [policy.log_prob(rollout, rows, step).log_prob for step in steps]
        parts.append(torch.stack([v.detach() for v in values if v is not None], 1))
    return torch.cat(parts)


def difference(one: torch.Tensor | None, two: torch.Tensor | None) -> float:
    assert one is not None and two is not None
    return (one - two).abs().max().item()


def move(policy: FlowPolicy) -> None:
    """Change the trained weights a little, adapters from zero included."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, p in policy.trainable_parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))


@pytest.mark.parametrize("guidance", [1.0, 3.5])
def test_ode_sampling_equals_the_plain_pipeline(model, shown, guidance):
    sampler = model.sampler(guidance=guidance)
    rollout = model.policy.sample(shown, SEEDS, sampler)
    assert rollout.samples.shape == (4, *SHAPE)
    torch.testing.assert_close(rollout.samples, model.plain(shown, sampler), atol=1e-5, rtol=0)


def test_images_equal_those_of_the_plain_pipeline(model, shown):
    sampler = model.sampler()
    images = (model.plain(shown, sampler, output_type="np") * 255).round().astype(int)
    rollout = model.policy.sample(shown, SEEDS, sampler)
    assert rollout.images.shape == (4, HEIGHT, WIDTH, 3)
    # the last digit may round either way
    assert np.abs(rollout.images.astype(int) - images).max() <= 1 and images.std() > 10


def test_what_is_deployed_is_the_plain_pipeline(model):
    # no deployed.json: the plain pipeline's own schedule, at its own size
    policy = model.policy
    again = policy.adapter.deployed(*policy.adapter.default_size)
    assert (policy.deployed.height, policy.deployed.width) == policy.adapter.default_size
    assert policy.deployed.shift == again.shift and policy.deployed.shift_terminal == again.shift_terminal
    assert policy.deployed.max_sequence_length == policy.adapter.default_sequence_length
    assert policy.deployed.steps == model.case.steps
    assert torch.equal(policy.adapter.levels(policy.deployed), policy.adapter.levels(again))


@pytest.mark.parametrize("guidance", [1.0, 3.5])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_ratio_is_one_on_the_first_pass(model, shown, precision, guidance):
    policy = model.policies[precision]
    for noise in model.case.noises:
        rollout = roll_out(policy, shown, model.sampler(noise=noise, guidance=guidance))
        assert rollout.states is not None and rollout.states.dtype == torch.float32
        assert difference(replay(policy, rollout), rollout.log_probs) <= (1e-6 if precision == "fp32" else 1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_replay_with_another_batch_size(model, shown, precision):
    policy = model.policies[precision]
    rollout = roll_out(policy, shown, model.sampler(noise=model.noise, guidance=2.0))
    assert difference(replay(policy, rollout, 1), rollout.log_probs) <= (1e-5 if precision == "fp32" else 1e-2)


def test_batch_split_and_order_do_not_change_the_samples(model, shown):
    for guidance in (1.0, 2.0):
        sampler = model.sampler(guidance=guidance, noise=model.noise)
        whole = model.policy.sample(shown, SEEDS, sampler)
        split = model.policy.sample(shown, SEEDS, sampler, batch=3)
        turned = model.policy.sample(shown[::-1], SEEDS[::-1], sampler)
        torch.testing.assert_close(split.samples, whole.samples, atol=1e-5, rtol=0)
        torch.testing.assert_close(turned.samples.flip(0), whole.samples, atol=1e-5, rtol=0)


def test_other_sizes_and_sizes_that_do_not_fit(model, shown):
    wide = model.sampler(height=8, width=16, noise=model.noise)
    rollout = roll_out(model.policy, shown, wide)
    assert rollout.samples.shape == (4, 4, 4, 8) and rollout.images.shape == (4, 8, 16, 3)
    assert difference(replay(model.policy, rollout), rollout.log_probs) <= 1e-6
    unit = model.case.unit
    with pytest.raises(InputError, match=f"multiples of {unit} pixels, not 16 x {unit + 1}"):
        model.policy.sample(shown, SEEDS, model.sampler(width=unit + 1))


def test_the_model_sees_rows_and_columns_in_their_places(model, shown):
    # a velocity that ignored positions, or mixed up rows and columns, would turn with the picture
    policy, sampler = model.policy, model.sampler(height=16, width=16)
    embedding = policy.conditioner.embed(shown, torch.arange(4), sampler, False)
    x = NoiseStream([seed.noise for seed in SEEDS], (4, 8, 8)).draw()
    half = torch.full((4,), 0.5)
    with torch.no_grad():
        outputs = (policy.adapter.predict(policy.module, v, half, embedding, 1.0) for v in (x, x.transpose(2, 3)))
        straight, turned = outputs
    assert straight.shape == x.shape and difference(straight, turned.transpose(2, 3)) > 1e-3


def test_embeddings_are_cached_and_independent_of_the_batch(model, shown):
    policy = load_policy(model.path, tune=None, device="cpu")
    cache, sampler = policy.conditioner.cache, model.sampler()
    batch = policy.conditioner.embed(shown, torch.arange(4), sampler, False)
    assert len(cache) == 4
    alone = load_policy(model.path, tune=None, device="cpu").conditioner
    for row in (3, 1):
        for one, many in zip(alone.embed(shown, torch.tensor([row]), sampler, False), batch, strict=True):
            # what is longer in the batch is filled up with zeros
            assert torch.equal(one[0], many[row, : one.shape[1]]) and not many[row, one.shape[1] :].any()
    policy.sample(shown, SEEDS, sampler)
    assert len(cache) == 4


def test_prompts_that_are_too_long_are_named(model, shown):
    long = dataclasses.replace(shown[0], id="long", text="a red circle " * 8)
    with pytest.raises(InputError, match=r"prompt 'long' has \d+ tokens"):
        model.policy.sample([shown[0], long], SEEDS[:2], model.sampler())
    model.policy.check_prompts(shown, model.sampler())


def test_adopted_images_come_back(model, shown):
    rollout = model.policy.sample(shown, SEEDS, model.sampler())
    adopted = model.policy.adopt(shown, rollout.samples)
    assert np.array_equal(adopted.images, rollout.images)
    encoded = model.policy.adopt(shown, rollout.images)
    assert encoded.samples.shape == (4, *SHAPE) and encoded.samples.dtype == torch.float32


def test_full_weights_are_saved_for_plain_diffusers(model, shown, tmp_path):
    policy = load_policy(model.path, device="cpu")
    before = model.policy.sample(shown, SEEDS, model.sampler()).samples
    move(policy)
    expected = policy.sample(shown, SEEDS, model.sampler()).samples
    assert difference(before, expected) > 1e-3
    policy.save_pretrained(tmp_path)
    torch.testing.assert_close(model.plain(shown, model.sampler(), tmp_path), expected, atol=1e-5, rtol=0)
    again = load_policy(tmp_path, device="cpu")
    assert torch.equal(again.sample(shown, SEEDS, model.sampler()).samples, expected)
    assert again.deployed == policy.deployed


def test_lora_is_saved_for_plain_diffusers(model, shown, tmp_path):
    policy = load_policy(model.path, "lora", LoraOptions(rank=2, alpha=4.0), device="cpu")
    names = [name for name, _ in policy.trainable_parameters()]
    assert all("lora_" in name for name in names)
    for target in ATTENTION:
        assert any(f".{target}.lora_A" in name for name in names), target
    sampler = model.sampler()
    before = policy.sample(shown, SEEDS, sampler).samples
    # A new adapter adds 0; on some processors wrapped layers round otherwise.
    torch.testing.assert_close(before, model.policy.sample(shown, SEEDS, sampler).samples, atol=1e-5, rtol=0)
    move(policy)
    expected = policy.sample(shown, SEEDS, sampler).samples
    assert difference(before, expected) > 1e-3
    policy.save_pretrained(tmp_path)
    torch.testing.assert_close(model.plain(shown, sampler, lora=tmp_path), expected, atol=1e-5, rtol=0)


def test_gradient_checkpointing_gives_the_same_gradient(model, shown):
    grads = []
    for on in (False, True):
        policy = load_policy(model.path, device="cpu", gradient_checkpointing=on)
        rollout, rows = roll_out(policy, shown, model.sampler(noise=model.noise, guidance=2.0)), torch.arange(4)
        log_prob = policy.log_prob(rollout, rows, rows * 0).log_prob
        assert log_prob is not None
        log_prob.sum().backward()
        grads.append({name: p.grad for name, p in policy.trainable_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() and len(grads[0]) > 20
    for name, one in grads[0].items():
        torch.testing.assert_close(grads[1][name], one, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_one_optimizer_step_follows_the_gradient(model, shown, tune):
    policy = load_policy(model.path, tune, device="cpu")
    rollout, rows = roll_out(policy, shown, model.sampler(noise=model.noise, guidance=2.0)), torch.arange(4)
    before = {name: p.detach().clone() for name, p in policy.trainable_parameters()}
    optimizer = torch.optim.SGD([p for _, p in policy.trainable_parameters()], lr=1e-2)
    log_prob = policy.log_prob(rollout, rows, rows * 0).log_prob
    assert log_prob is not None and rollout.log_probs is not None
    (-log_prob).sum().backward()
    optimizer.step()
    assert any(difference(before[name], p.detach()) > 0 for name, p in policy.trainable_parameters())
    assert replay(policy, rollout)[:, 0].sum() > rollout.log_probs[:, 0].sum()
