"""How a model runs: kernels, compilation and memory change no number but by rounding, or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import Sampler, load_policy
from pipelines.engine import Encoders, EngineOptions, use_attention
from pipelines.seeds import row_seed
from pipelines.testing import tiny_sd3_directory
from pipelines.testing_flux import tiny_flux_directory

SEEDS = [row_seed(0, 0, i, 0) for i in range(4)]


def test_offloaded_encoders_come_for_what_is_not_known_and_leave_again(
    tiny: Path, tmp_path: Path, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[str] = []
    monkeypatch.setattr(
        Encoders, "_move", lambda self, device: moves.append("in" if not moves or moves[-1] == "out" else "out")
    )
    policy = load_policy(tiny, device="cpu", engine=EngineOptions(offload_encoders=True))
    policy.encode(prompts[:3])
    assert moves == ["in", "out"]  # once for all three
    policy.sample(prompts[:3], SEEDS[:3], Sampler(steps=2))
    assert moves == ["in", "out"]
    policy.sample(prompts, SEEDS, Sampler(steps=2))
    assert moves == ["in", "out", "in", "out"]  # the fourth prompt is new
    stays = load_policy(tiny, device="cpu")
    stays.sample(prompts, SEEDS, Sampler(steps=2))
    assert moves == ["in", "out", "in", "out"]


def test_the_vae_in_slices_or_tiles(tiny: Path, prompts: list[Prompt]) -> None:
    plain = load_policy(tiny, device="cpu")
    options = EngineOptions(vae_slicing=True, vae_tiling=True)
    sliced = load_policy(tiny, device="cpu", engine=options)
    vae = sliced.adapter.pipe.vae
    assert vae.use_slicing and vae.use_tiling and not plain.adapter.pipe.vae.use_slicing
    decoded: list[int] = []
    vae.decoder.register_forward_hook(lambda _, inputs, __: decoded.append(len(inputs[0])))
    one, two = (p.sample(prompts, SEEDS, Sampler(steps=1)) for p in (plain, sliced))
    assert decoded == [1, 1, 1, 1] and torch.equal(one.samples, two.samples)
    assert np.abs(one.images.astype(int) - two.images.astype(int)).max() <= 1


@pytest.mark.parametrize("kernels", ["xformers", "flash"])
def test_attention_kernels_that_cannot_run_here_are_refused_before_weights(
    kernels: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = EngineOptions(attention=kernels)  # type: ignore[arg-type]
    empty = tmp_path / "no weights"
    empty.mkdir()
    (empty / "model_index.json").write_text((tiny / "model_index.json").read_text())
    with pytest.raises(InputError, match=f"attention={kernels} has kernels for a GPU only"):
        load_policy(empty, device="cpu", engine=options)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"attention={kernels} needs the package"):
        load_policy(empty, device="cuda", engine=options)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    if kernels == "flash":
        with pytest.raises(InputError, match="sdpa takes torch's own flash kernel"):
            load_policy(empty, device="cuda", engine=options)


def test_attention_kernels_reach_every_layer_or_it_is_an_error(tmp_path: Path) -> None:
    sd3 = load_policy(tiny_sd3_directory(tmp_path / "sd3"), device="cpu").adapter.pipe.transformer
    with pytest.raises(InputError, match="JointAttnProcessor2_0 cannot change kernels"):
        use_attention(sd3, "flash")
    use_attention(sd3, "xformers")
    assert {type(p).__name__ for p in sd3.attn_processors.values()} == {"XFormersJointAttnProcessor"}
    flux = load_policy(tiny_flux_directory(tmp_path / "flux"), device="cpu").adapter.pipe.transformer
    use_attention(flux, "native")  # diffusers' name of sdpa; the others need their packages
    assert {p._attention_backend for p in flux.attn_processors.values()} == {"native"}


def test_compiled_shards_are_refused(tiny: Path) -> None:
    with pytest.raises(InputError, match=r"model\.compile=true with sharded weights"):
        load_policy(tiny, device="cpu", engine=EngineOptions(compile=True), shard=lambda module: module)


@pytest.mark.slow
def test_a_compiled_model_replays_what_it_sampled(tmp_path: Path, prompts: list[Prompt]) -> None:
    model = tiny_sd3_directory(tmp_path / "m", layers=1)
    plain = load_policy(model, device="cpu")
    compiled = load_policy(model, device="cpu", engine=EngineOptions(compile=True), old=True)
    sampler = Sampler(steps=2, noise="sde", max_sequence_length=0)
    rollout = compiled.sample(prompts, SEEDS, sampler, frozenset({"states", "log_prob"}))
    torch.testing.assert_close(rollout.samples, plain.sample(prompts, SEEDS, sampler).samples, atol=1e-5, rtol=0)
    out = compiled.log_prob(rollout, torch.arange(4), torch.zeros(4, dtype=torch.long))
    assert out.log_prob is not None and rollout.log_probs is not None
    # ratio 1 although sampling and training are two graphs
    torch.testing.assert_close(out.log_prob.detach(), rollout.log_probs[:, 0], atol=1e-5, rtol=0)
    # the graph reads the weights that are swapped in, not those it was compiled with
    with torch.no_grad():
        for _, p in compiled.trainable_parameters():
            p.add_(0.05)
    assert not torch.allclose(compiled.sample(prompts, SEEDS, sampler).samples, rollout.samples)
    with compiled.weights("old"):
        assert torch.equal(compiled.sample(prompts, SEEDS, sampler).samples, rollout.samples)
