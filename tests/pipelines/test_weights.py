import json

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from safetensors.torch import load, save
from torch import nn

from mmrubric.errors import InputError
from pipelines import LoraOptions, load_policy
from pipelines.samplers import Sampler
from pipelines.seeds import row_seed

SDE = Sampler(steps=3, noise="sde", max_sequence_length=0)
NO_T5 = {"text_encoder_3": None, "tokenizer_3": None}
LORA = LoraOptions(rank=4, alpha=12.0)
SEEDS = [row_seed(0, 0, i, 0) for i in range(4)]


def sample(policy, prompts, sampler=SDE, record=frozenset({"states", "log_prob"})):
    return policy.sample(prompts, SEEDS, sampler, record)


def move(policy, amount=0.05, seed=0):
    """One update in a random direction."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, p in policy.trainable_parameters():
            p.add_(amount * torch.randn(p.shape, generator=generator))
    policy.version += 1


def snapshot(policy):
    return {name: p.detach().clone() for name, p in policy.trainable_parameters()}


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_tf42_reference_is_the_loaded_model_after_updates(tiny, prompts, tune):
    policy = load_policy(tiny, tune, reference=True)
    before = sample(policy, prompts).samples
    for seed in range(3):
        move(policy, seed=seed)
        with policy.weights("reference"):
            assert torch.equal(sample(policy, prompts).samples, before)
        assert not torch.allclose(sample(policy, prompts).samples, before)


def test_lora_starts_as_the_base_model_and_trains_the_adapter_only(tiny, policy, prompts):
    lora = load_policy(tiny, "lora", LORA)
    named = lora.trainable_parameters()
    # 2 blocks x 4 targets (the last block has no output projection for the text) x A and B
    assert len(named) == 16 and all("lora_" in name for name, _ in named)
    assert torch.equal(sample(lora, prompts).samples, sample(policy, prompts).samples)
    rollout = sample(lora, prompts)
    rows = torch.arange(4)
    lora.log_prob(rollout, rows, rows * 0).log_prob.sum().backward()
    assert {name for name, p in lora.module.named_parameters() if p.grad is not None} <= {name for name, _ in named}
    assert any(p.grad is not None and p.grad.abs().max() > 0 for _, p in named)


def test_lora_initial_weights_come_from_its_own_seed(tiny):
    one, two, other = (load_policy(tiny, "lora", LoraOptions(seed=s)) for s in (0, 0, 1))
    assert equal(snapshot(one), snapshot(two)) and not equal(snapshot(one), snapshot(other))


def test_old_and_ema_follow_their_decay(tiny):
    policy = load_policy(tiny, old=True, ema=True)
    start = snapshot(policy)
    move(policy)
    moved = snapshot(policy)
    policy.update_ema(0.9)
    policy.update_old(0.0)
    with policy.weights("old"):
        assert equal(snapshot(policy), moved)
    with policy.weights("ema"):
        for name, value in snapshot(policy).items():
            # .9 * start + .1 * moved
            torch.testing.assert_close(value, 0.9 * start[name] + 0.1 * moved[name], atol=1e-6, rtol=0)
    policy.update_ema(1.0)
    assert equal(snapshot(policy), moved)


def test_tf53_swapping_and_syncing_leaves_the_weights_bitwise(tiny, prompts):
    for tune in ("full", "lora"):
        policy = load_policy(tiny, tune, old=True, ema=True, reference=True)
        move(policy)
        before, whole = snapshot(policy), {k: v.clone() for k, v in policy.module.state_dict().items()}
        places = [p.data_ptr() for _, p in policy.trainable_parameters()]
        for name in ("old", "ema", "reference"):
            with policy.weights(name):
                sample(policy, prompts)
        with pytest.raises(ZeroDivisionError), policy.weights("ema"):
            raise ZeroDivisionError
        policy.update_old(0.5)
        policy.update_ema(0.5)
        assert equal(snapshot(policy), before) and equal(dict(policy.module.state_dict()), whole)
        assert [p.data_ptr() for _, p in policy.trainable_parameters()] == places
        assert all(p.requires_grad for _, p in policy.trainable_parameters())


def test_a_swap_between_forward_and_backward_keeps_the_gradient(tiny, prompts):
    grads = []
    for swap in (False, True):
        policy = load_policy(tiny, old=True)
        move(policy)
        rollout, rows = sample(policy, prompts), torch.arange(4)
        out = policy.log_prob(rollout, rows, rows * 0).log_prob
        if swap:
            with torch.no_grad(), policy.weights("old"):
                policy.log_prob(rollout, rows, rows * 0)
        out.sum().backward()
        grads.append([p.grad for _, p in policy.trainable_parameters() if p.grad is not None])
    assert all(torch.equal(one, two) for one, two in zip(*grads, strict=True))


def test_copies_that_are_not_kept_or_nested_are_errors(tiny, policy):
    with pytest.raises(InputError, match="old=True"), policy.weights("old"):
        pass
    with pytest.raises(InputError, match="known are old, ema, reference"), policy.weights("best"):
        pass
    with pytest.raises(InputError, match="ema=True"):
        policy.update_ema(0.9)
    kept = load_policy(tiny, old=True, ema=True)
    with kept.weights("old"):
        with pytest.raises(RuntimeError, match="leave that block"), kept.weights("ema"):
            pass
        with pytest.raises(RuntimeError, match="updating the ema"):
            kept.update_ema(0.9)
        with pytest.raises(RuntimeError, match="state_dict"):
            kept.state_dict()
    with pytest.raises(InputError, match=r"in \[0, 1\]"):
        kept.update_old(1.5)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_state_dict_round_trip_is_bitwise(tiny, tune):
    policy = load_policy(tiny, tune, old=True, ema=True, reference=True)
    move(policy)
    policy.update_ema(0.5)
    saved = load(save(policy.state_dict()))
    fresh = load_policy(tiny, tune, old=True, ema=True, reference=True)
    fresh.load_state_dict(saved)
    assert equal(fresh.state_dict(), policy.state_dict()) and fresh.version == 1


def test_tf52_state_of_another_set_up_is_refused_and_changes_nothing(tiny):
    full, lora = load_policy(tiny), load_policy(tiny, "lora")
    before = snapshot(full)
    with pytest.raises(InputError, match="LoRA against full"):
        full.load_state_dict(lora.state_dict())
    with pytest.raises(InputError, match="missing"):
        load_policy(tiny, ema=True).load_state_dict(full.state_dict())
    wide = load_policy(tiny, "lora", LoraOptions(rank=8))
    with pytest.raises(InputError, match="another shape"):
        lora.load_state_dict(wide.state_dict())
    assert equal(snapshot(full), before)


def test_full_weights_are_saved_for_plain_diffusers(tiny, prompts, tmp_path):
    policy = load_policy(tiny, ema=True)
    move(policy)
    ode = Sampler(steps=3, schedule="diffusers", max_sequence_length=0)
    expected = sample(policy, prompts, ode, frozenset()).samples
    policy.save_pretrained(tmp_path / "model")
    pipe = StableDiffusion3Pipeline.from_pretrained(tmp_path / "model", **NO_T5)
    assert equal(dict(pipe.transformer.state_dict()), dict(policy.module.state_dict()))
    assert torch.equal(sample(load_policy(tmp_path / "model"), prompts, ode, frozenset()).samples, expected)
    with policy.weights("ema"):
        policy.save_pretrained(tmp_path / "ema")
        averaged = snapshot(policy)
    assert equal(snapshot(load_policy(tmp_path / "ema")), averaged)


def test_lora_is_saved_for_plain_diffusers(tiny, prompts, tmp_path):
    policy = load_policy(tiny, "lora", LORA)
    move(policy)
    ode = Sampler(steps=3, schedule="diffusers", max_sequence_length=0)
    policy.save_pretrained(tmp_path)
    pipe = StableDiffusion3Pipeline.from_pretrained(tiny, **NO_T5)
    pipe.scheduler.set_shift(1.0)
    pipe.set_progress_bar_config(disable=True)
    pipe.load_lora_weights(tmp_path)
    images = pipe(
        [p.text for p in prompts], generator=[torch.Generator().manual_seed(s.noise) for s in SEEDS],
        num_inference_steps=3, guidance_scale=1.0, max_sequence_length=0, output_type="latent",
        sigmas=[1.0, 0.5005, 0.001],
    ).images  # fmt: skip
    torch.testing.assert_close(sample(policy, prompts, ode, frozenset()).samples, images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_tf44_saving_changes_nothing(tiny, prompts, tmp_path, tune):
    results = []
    for save_in_between in (False, True):
        policy = load_policy(tiny, tune, reference=True, ema=True)
        move(policy)
        if save_in_between:
            policy.save_pretrained(tmp_path)
        rollout, rows = sample(policy, prompts), torch.arange(4)
        with torch.no_grad(), policy.weights("reference"):
            reference = policy.log_prob(rollout, rows, rows * 0).log_prob
        loss = (policy.log_prob(rollout, rows, rows * 0).log_prob - reference).sum()
        loss.backward()
        results.append((loss.detach(), [p.grad for _, p in policy.trainable_parameters() if p.grad is not None]))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(one, two) for one, two in zip(results[0][1], results[1][1], strict=True))


@pytest.mark.parametrize("tune", ["full", "lora"])
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16),
                                                  ("fp16", torch.float16)])  # fmt: skip
def test_tf13_dtypes_are_what_the_config_says(tiny, prompts, precision, dtype, tune):
    policy = load_policy(tiny, tune, precision=precision)
    pipe = policy.adapter.pipe
    seen = {}
    handles = [
        layer.register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out.dtype}))
        for name, layer in policy.module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    sample(policy, prompts, Sampler(steps=1, max_sequence_length=0), frozenset())
    for handle in handles:
        handle.remove()
    assert len(seen) > 10 and set(seen.values()) == {dtype}
    assert {p.dtype for _, p in policy.trainable_parameters()} == {torch.float32}
    assert pipe.vae.dtype == torch.float32 and pipe.text_encoder.dtype == pipe.text_encoder_2.dtype == dtype
    assert not any(
        p.requires_grad for part in (pipe.vae, pipe.text_encoder, pipe.text_encoder_2) for p in part.parameters()
    )


def test_tf47_a_small_update_is_not_rounded_away(tiny, prompts, tmp_path):
    # weights of size ~1 stored in bf16: a step of 1e-5 is below their spacing of 2^-8, float32 keeps it
    pipe = StableDiffusion3Pipeline.from_pretrained(tiny, **NO_T5)
    pipe.to(dtype=torch.bfloat16).save_pretrained(tmp_path)
    for tune in ("full", "lora"):
        policy = load_policy(tmp_path, tune, precision="bf16")
        before = snapshot(policy)
        optimizer = torch.optim.SGD([p for _, p in policy.trainable_parameters()], lr=1e-5)
        for _, p in policy.trainable_parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        for name, p in policy.trainable_parameters():
            torch.testing.assert_close(before[name] - p.detach(), torch.full_like(p, 1e-5), atol=2e-7, rtol=0)


def test_a_wrapper_is_used_for_training_and_parameters_stay(tiny, prompts):
    calls = []

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            calls.append(torch.is_grad_enabled())
            return self.module(*args, **kwargs)

    policy = load_policy(tiny, ema=True)
    names = [name for name, _ in policy.trainable_parameters()]
    policy.wrap(Wrapper)
    assert isinstance(policy.module, Wrapper) and [n for n, _ in policy.trainable_parameters()] == names
    rollout, rows = sample(policy, prompts), torch.arange(4)
    calls.clear()
    policy.log_prob(rollout, rows, rows * 0).log_prob.sum().backward()
    assert calls == [True]

    def replacing(module):
        module.proj_out.weight = nn.Parameter(module.proj_out.weight.detach().clone())
        return module

    with pytest.raises(RuntimeError, match="replaced"):
        load_policy(tiny).wrap(replacing)


def test_of_shards_no_casts_are_kept_for_the_call(tiny, prompts):
    kept = {}
    for name, shard in (("whole", None), ("shards", lambda module: module)):
        policy = load_policy(tiny, device="cpu", precision="bf16", shard=shard)
        policy.module.register_forward_hook(
            lambda *_, name=name: kept.update({name: torch.is_autocast_cache_enabled()})
        )
        sample(policy, prompts)
    # the cache would hold a cast of every weight, which shards are there to avoid
    assert kept == {"whole": True, "shards": False}


def test_tf45_tf46_works_inside_ddp(tiny, prompts, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        policy = load_policy(tiny, device="cpu", ema=True)
        expected = sample(policy, prompts)
        policy.wrap(nn.parallel.DistributedDataParallel)
        rollout, rows = sample(policy, prompts), torch.arange(4)
        assert torch.equal(rollout.samples, expected.samples)
        out = policy.log_prob(rollout, rows, rows * 0).log_prob
        assert torch.equal(out.detach(), rollout.log_probs[:, 0])
        with torch.no_grad(), policy.weights("ema"):
            policy.log_prob(rollout, rows, rows * 0)
        out.sum().backward()
        assert policy.trainable_parameters()[0][1].grad is not None
        policy.save_pretrained(tmp_path / "saved")
        assert json.loads((tmp_path / "saved" / "deployed.json").read_text())["schedule"] == "diffusers"
    finally:
        torch.distributed.destroy_process_group()
