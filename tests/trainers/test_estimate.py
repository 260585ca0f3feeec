"""Memory and cost by hand, and what must hold for any sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mmrubric.config import save_config
from mmrubric.errors import InputError
from pipelines import LoraOptions, load_policy, skeleton
from pipelines.diffusion import FlowPolicy
from pipelines.testing_flux import tiny_flux_directory
from pipelines.testing_tokens import tiny_janus_directory
from tests.trainers.toys import settings
from trainers import estimate, outlook, sharding
from trainers.estimate import Numbers
from trainers.train import run


def _bytes(held: list[estimate.Held]) -> dict[str, int]:
    return {item.what: item.bytes for item in held}


def test_full_fine_tuning_by_hand() -> None:
    numbers = Numbers(trained=1000, encoders=300, vae=50, block=100)
    # one rank, fp32: weights 4000, 2 copies 8000, gradients 4000, Adam 8000, encoders 1200, VAE 200
    one = estimate.memory(numbers, precision="fp32", copies=2)
    assert _bytes(one) == {
        "trained weights": 4000, "2 weight copies": 8000, "gradients": 4000, "Adam moments": 8000,
        "frozen encoders": 1200, "VAE": 200,
    }  # fmt: skip
    assert estimate.total(one) == 25400
    # DDP keeps its buckets of gradients beside them
    ddp = estimate.memory(numbers, precision="fp32", copies=2, ranks=4)
    assert estimate.total(ddp) == 25400 + 4000
    # FSDP2 on 4 ranks, bf16: (4000 + 8000 + 4000 + 8000) / 4 = 6000; encoders 600, VAE 200; two layers of 100 fp32
    # numbers = 800; the casts of all weights live until the backward pass: 2000, or of one layer: 200
    fsdp = estimate.memory(numbers, precision="bf16", copies=2, ranks=4, sharded=True)
    assert estimate.total(fsdp) == 6000 + 600 + 200 + 800 + 2000
    less = estimate.memory(
        numbers, precision="bf16", copies=2, ranks=4, sharded=True, checkpointing=True, offload_encoders=True
    )
    assert estimate.total(less) == 6000 + 200 + 800 + 200


def test_lora_by_hand() -> None:
    numbers = Numbers(trained=10, frozen=1000, block=100)
    # the frozen network is kept in half precision: 2000 / 2; adapter 40 / 2, copy 40 / 2, Adam 80 / 2; its gradients
    # add up whole: 40; two gathered layers 2 x 100 x 2 bytes; casts of the adapter 20
    held = estimate.memory(numbers, precision="bf16", copies=1, ranks=2, sharded=True)
    assert _bytes(held) == {
        "trained weights": 20, "frozen denoiser": 1000, "1 weight copies": 20, "gradients": 40, "Adam moments": 40,
        "two gathered layers": 400, "casts of trained weights for the backward pass": 20,
    }  # fmt: skip


@given(
    st.integers(1, 10**10), st.integers(0, 10**10), st.integers(2, 64), st.integers(0, 4),
    st.sampled_from(["fp32", "bf16"]),
)  # fmt: skip
@examples(max_examples=100, deadline=None)
def test_shards_share_what_whole_ranks_repeat(
    trained: int, encoders: int, ranks: int, copies: int, precision: estimate.Precision
) -> None:
    numbers = Numbers(trained, encoders=encoders)
    whole = _bytes(estimate.memory(numbers, precision=precision, ranks=ranks, copies=copies))
    parts = _bytes(estimate.memory(numbers, precision=precision, ranks=ranks, copies=copies, sharded=True))
    for name in ("trained weights", "gradients", "Adam moments"):
        # nothing is lost, and no rank carries more than its share rounded up
        assert whole[name] <= parts[name] * ranks < whole[name] + 4 * ranks
    assert whole.get("frozen encoders") == parts.get("frozen encoders")
    assert sum(parts.values()) < sum(whole.values()) + 4 * 4


def test_evaluations_and_cost() -> None:
    # before the first step, after 10, 20 and 25
    assert estimate.evaluations(25, 10) == 4 and estimate.evaluations(20, 10) == 3 and estimate.evaluations(20, 0) == 0
    assert estimate.cost(200, 0.25) == 50.0 and estimate.cost(200, 0.0) == 0.0
    assert estimate.cost(200, None) is None  # unknown is not nothing
    assert estimate.cost(0, None) == 0.0
    assert [estimate.readable(n) for n in (512, 3 << 20, 5 << 30)] == ["0.5 KiB", "3.00 MiB", "5.00 GiB"]


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_the_skeleton_has_the_numbers_of_the_loaded_model(tune: str, tmp_path: Path) -> None:
    directory = tiny_flux_directory(tmp_path / "flux")
    lora = LoraOptions(rank=3) if tune == "lora" else None
    policy = load_policy(directory, tune, lora, device="cpu")  # type: ignore[arg-type]
    assert isinstance(policy, FlowPolicy)
    made = skeleton.build(directory, tune, lora)
    assert all(p.is_meta for part in (made.denoiser, made.vae, *made.encoders) for p in part.parameters())
    numbers = outlook.count(made, "fsdp2", ("FluxTransformerBlock", "FluxSingleTransformerBlock"))
    assert numbers.trained == sum(p.numel() for _, p in policy.trainable_parameters())
    assert numbers.trained + numbers.frozen == sum(p.numel() for p in policy.module.parameters())
    encoders = policy.adapter.frozen
    assert numbers.encoders == sum(p.numel() for encoder in encoders for p in encoder.parameters())
    assert numbers.vae == sum(p.numel() for p in policy.adapter.pipe.vae.parameters())
    layers = [
        part for name, part in policy.module.named_modules()
        if name.count(".") == 1 and name.split(".")[0] in ("transformer_blocks", "single_transformer_blocks")
    ]  # fmt: skip
    assert len(layers) == 2
    assert numbers.block >= max(sum(p.numel() for p in layer.parameters()) for layer in layers)
    # ZeRO-3 gathers the matrix and bias of one linear layer at a time; a rank holds everything else in parts
    linear = [m for m in policy.module.modules() if isinstance(m, torch.nn.Linear)]
    largest = max(sum(p.numel() for p in m.parameters()) for m in linear)
    assert outlook.count(made, "zero3").block == largest and outlook.count(made).block == 0


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_the_skeleton_of_a_token_model(tune: str, tmp_path: Path) -> None:
    directory = tiny_janus_directory(tmp_path / "janus")
    policy = load_policy(directory, tune, device="cpu")  # type: ignore[arg-type]
    made = skeleton.build(directory, tune)
    layer = type(next(m for m in policy.module.modules() if type(m).__name__.endswith("DecoderLayer"))).__name__
    numbers = outlook.count(made, "fsdp2")
    assert made.name == "JanusForConditionalGeneration" and sharding.block_names(made.denoiser) == (layer,)
    assert numbers.trained == sum(p.numel() for _, p in policy.trainable_parameters())
    assert numbers.trained + numbers.frozen == sum(p.numel() for p in policy.module.parameters())
    whole = sum(p.numel() for p in policy.adapter.model.parameters())  # type: ignore[attr-defined]
    assert numbers.trained + numbers.frozen + numbers.encoders + numbers.vae == whole


def test_dry_run_estimates_memory_calls_and_cost(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(tmp_path, tiny_model, judge__name="shapes", ema__decay=0.9)
    save_config(config, tmp_path / "config.yaml")

    def plan(*overrides: str) -> dict:
        assert run(tmp_path / "config.yaml", overrides, dry_run=True, as_json=True) == 0
        return json.loads(capsys.readouterr().out)

    shown = plan()
    weights = shown["trainable_parameters"]
    # SD3 tiny, full: weights, old and ema copies, gradients and 2 moments, all fp32 and whole
    held = shown["memory_per_rank"]
    assert shown["shard"] == "none" and "2 weight copies" in held and "(fp32, whole)" in held["trained weights"]
    assert shown["memory_per_rank_bytes"] > 4 * weights * (1 + 2 + 1 + 2)
    # 2 prompts x 2 samples
    assert shown["judge_calls_per_step"] == 4 and shown["verdicts_in_first_step"] > 4
    assert shown["judge_cost"] == shown["judge_cost_per_step"] == "unknown: set judge.price_per_call"
    priced = plan("judge.price_per_call=0.01", "run.steps=10")
    assert priced["judge_cost_per_step"] == 0.04 and priced["judge_cost"] == 0.4
    sharded = plan("run.processes=4", "model.shard=fsdp2")
    assert "(fp32, 1/4)" in sharded["memory_per_rank"]["trained weights"]
    assert "activations not included" in sharded["memory_total"]


def test_a_skeleton_needs_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "AudioLDMPipeline"}')
    with pytest.raises(InputError, match="supported are"):
        skeleton.build(tmp_path)
