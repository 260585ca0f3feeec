"""The shipped editor of the shapes world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FluxKontextPipeline
from PIL import Image

import judges
from judges import JudgeRequest
from mmrubric import Prompt, generators
from mmrubric.errors import InputError
from mmrubric.prompt import Media
from mmrubric.shapes.edits import draw_edit_prompts
from pipelines import load_policy, windows
from pipelines.diffusion import FlowPolicy
from pipelines.flux_kontext import FluxKontextAdapter
from pipelines.load import SHIPPED
from pipelines.packed import pack
from pipelines.seeds import NoiseStream, eval_seed
from pipelines.shapes.edit_models import MAX_TOKENS, build_edit_pipeline, instructions, tokenize
from pipelines.shapes.muon import muon_and_adamw
from pipelines.shapes.state import Stage
from pipelines.shapes.train import load_vae
from pipelines.shapes.train_edit import EditModel, draw_pairs, train_edit


@pytest.fixture(scope="module")
def policy() -> FlowPolicy:
    loaded = load_policy("shapes-edit", tune=None, device="cpu")
    assert isinstance(loaded, FlowPolicy)
    return loaded


def test_it_is_small_and_a_plain_kontext_pipeline(policy: FlowPolicy):
    files = list(SHIPPED["shapes-edit"].rglob("*"))
    assert sum(file.stat().st_size for file in files if file.is_file()) < 8e6
    assert not [file for file in files if file.suffix in (".bin", ".pt", ".pkl")]
    assert type(policy.adapter.pipe).__name__ == "FluxKontextPipeline"
    assert not policy.adapter.pipe.transformer.config.guidance_embeds


def test_at_the_deployed_size_a_source_keeps_its_size(policy: FlowPolicy):
    prompt = draw_edit_prompts("heldout", 1)[0]
    rollout = policy.sample([prompt], [eval_seed(0, prompt.id, 0)])
    assert rollout.images.shape == (1, 64, 64, 3) and rollout.samples.shape == (1, 8, 8, 8)
    tokens, shape = policy.adapter.encode_sources(prompt.sources, 64, 64)
    # 64 pixels are 8 latents, 4 tokens
    assert tokens.shape == (16, 32) and shape.tolist() == [4, 4]


def test_it_edits_as_plain_diffusers_does(policy: FlowPolicy):
    prompt = draw_edit_prompts("heldout", 1)[0]
    mine = policy.sample([prompt], [eval_seed(0, prompt.id, 0)]).images[0]
    sampler = policy.deployed
    sigmas = windows.levels(sampler)[:-1].numpy()
    theirs = policy.adapter.pipe(
        image=Image.fromarray(np.asarray(prompt.sources[0])), prompt=prompt.text, height=64, width=64,
        max_area=64 * 64, _auto_resize=False, sigmas=sigmas, max_sequence_length=MAX_TOKENS, output_type="np",
        latents=pack(NoiseStream([eval_seed(0, prompt.id, 0).noise], (8, 8, 8)).draw()),
    ).images[0]  # fmt: skip
    assert np.abs(mine / 255 - theirs).max() < 0.02


def test_it_follows_and_keeps_far_more_often_than_chance(policy: FlowPolicy):
    prompts = draw_edit_prompts("heldout", 48, seed=5)
    images = policy.sample(prompts, [eval_seed(0, prompt.id, 0) for prompt in prompts]).images
    write, judge = generators.build("shapes_edit"), judges.build("shapes_edit")

    def shares(candidates: Sequence[Media]) -> dict[str, float]:
        requests = [
            JudgeRequest(write.generate_sync(prompt), image, source=prompt.sources)
            for prompt, image in zip(prompts, candidates, strict=True)
        ]
        met: dict[str, list[float]] = {}
        for request, verdicts in zip(requests, judge.score_sync(requests), strict=True):
            for criterion, verdict in zip(request.rubric.criteria, verdicts, strict=True):
                met.setdefault(criterion.category, []).append(float(verdict.met or 0))
        return {name: float(np.mean(values)) for name, values in met.items()}

    edited, source = shares(list(images)), shares([p.sources[0] for p in prompts])
    # doing nothing keeps everything and follows never; another prompt's source does neither
    other = shares([p.sources[0] for p in prompts[1:] + prompts[:1]])
    assert source["follow"] == 0 and source["keep"] > 0.8
    assert edited["follow"] > 0.4 and edited["keep"] > max(0.75, other["keep"] + 0.2)


def test_an_instruction_with_unknown_characters_or_too_many_words_is_refused(policy: FlowPolicy):
    source = draw_edit_prompts("heldout", 1)[0].sources
    with pytest.raises(InputError, match="tokens"):
        policy.check_prompts([Prompt("long", "make the circle red and the square blue", sources=source)])


@pytest.fixture(scope="module")
def untrained() -> FluxKontextPipeline:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_edit_pipeline(load_vae(SHIPPED["shapes"] / "vae").requires_grad_(False))


def test_every_instruction_is_distinct_for_both_encoders(untrained: FluxKontextPipeline):
    clip, t5 = tokenize(untrained, instructions())
    assert clip.shape == t5.shape == (45, MAX_TOKENS)
    assert len(set(map(tuple, clip.tolist()))) == len(set(map(tuple, t5.tolist()))) == 45
    assert untrained.tokenizer_2.unk_token_id not in t5


def test_training_predicts_what_the_adapter_predicts(untrained: FluxKontextPipeline):
    prompt = draw_edit_prompts("train", 1)[0]
    generator = torch.Generator().manual_seed(1)
    x, sigma = torch.randn(2, 8, 8, 8, generator=generator), torch.tensor([0.3, 0.9])
    adapter = FluxKontextAdapter(untrained)
    with torch.no_grad():
        source, shape = adapter.encode_sources(prompt.sources, 64, 64)
        row = (*adapter.encode(prompt.text, MAX_TOKENS), source, shape)
        sampled = adapter.predict(adapter.module, x, sigma, tuple(torch.stack([part] * 2) for part in row), 1.0)
        text = torch.tensor([instructions().index(prompt.text)] * 2)
        trained = EditModel(untrained)(pack(x), torch.stack([source] * 2), text, sigma)
    torch.testing.assert_close(trained, pack(sampled), rtol=1e-4, atol=1e-5)


def test_training_moves_transformer_and_encoders_and_leaves_the_vae(untrained: FluxKontextPipeline, tmp_path: Path):
    parts = {name: getattr(untrained, name) for name in ("transformer", "text_encoder", "text_encoder_2", "vae")}
    before = {name: torch.nn.utils.parameters_to_vector(part.parameters()).clone() for name, part in parts.items()}
    pairs = draw_pairs(untrained, 2, 0, tmp_path)
    assert pairs.source.shape == pairs.target.shape == (2, 8, 8, 8) and pairs.text.min() > 0
    train_edit(untrained, pairs, Stage("edit", tmp_path, 2, 2, 1e-2, save_every=2, optimizers=muon_and_adamw))
    after = {name: torch.nn.utils.parameters_to_vector(part.parameters()) for name, part in parts.items()}
    assert {name for name in parts if not torch.equal(before[name], after[name])} == {*parts} - {"vae"}
    again = draw_pairs(untrained, 2, 0, tmp_path)
    assert torch.equal(again.source, pairs.source)
