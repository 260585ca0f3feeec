"""The training of the shipped Janus model, and the model."""

import numpy as np
import torch
from transformers import JanusForConditionalGeneration, JanusProcessor

import judges
from mmrubric import Prompt, generators
from mmrubric.judging import JudgeRequest
from mmrubric.scores import ScoreTable, summarize
from mmrubric.shapes.grammar import draw_specs, enumerate_specs
from mmrubric.shapes.world import SIZE
from pipelines import load_policy
from pipelines.janus import JanusAdapter
from pipelines.load import SHIPPED
from pipelines.quiet import quiet
from pipelines.samplers import TokenSampler
from pipelines.seeds import eval_seed, row_seed
from pipelines.shapes.data import draw_pictures
from pipelines.shapes.janus_models import CODES, GRID, SPECIAL, build_janus, build_janus_tokenizer, build_processor
from pipelines.shapes.janus_models import build_vq as build_whole_vq
from pipelines.shapes.models import grammar_words
from pipelines.shapes.train_janus_lm import ImageModel, drop_text, tokenize
from pipelines.shapes.train_janus_vq import Reconstruct, cluster, encode_tokens, normalise, unit
from pipelines.shapes.train_vae import to_model
from pipelines.tokens import TokenPolicy

TOKENIZER = build_janus_tokenizer([*grammar_words(), '"'])


def build_vq():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_whole_vq()


def test_every_word_of_the_grammar_is_one_token_in_either_case():
    for word in [*grammar_words(), '"']:
        ids = TOKENIZER(word).input_ids
        assert len(ids) == 2 and ids[0] == TOKENIZER.bos_token_id, word
        assert TOKENIZER(word.upper()).input_ids == ids
    assert TOKENIZER.decode(TOKENIZER("two zebras").input_ids[1:]) == "two zebras"
    texts = [spec.text for kind in ("single", "pair", "word") for spec in list(enumerate_specs(kind))[::197]]
    ids, mask = tokenize(TOKENIZER, texts)
    assert (ids[:, -1] == TOKENIZER.convert_tokens_to_ids(SPECIAL["boi_token"])).all()
    assert ids.shape[1] < 20 and TOKENIZER.unk_token_id not in ids
    assert (ids[mask == 0] == TOKENIZER.pad_token_id).all()


def test_dropped_prompts_are_what_the_policy_takes_for_the_unconditional_branch():
    texts = ["a red circle on a white background", 'the word "GO" in red on a pink background']
    ids, mask = tokenize(TOKENIZER, texts)
    dropped = drop_text(TOKENIZER, ids, mask, torch.tensor([True, True]))
    kept = drop_text(TOKENIZER, ids, mask, torch.tensor([False, False]))
    assert torch.equal(kept, ids)
    adapter = JanusAdapter(build_janus_model(), build_processor(TOKENIZER, SIZE, GRID * GRID))
    for row, text in enumerate(texts):
        shown = mask[row].bool()
        assert dropped[row][shown].tolist() == adapter.unconditional_ids(text, "")
        assert ids[row][shown].tolist() == adapter.prompt_ids(text)


def build_janus_model():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return build_janus(build_vq(), TOKENIZER).eval()


def test_training_computes_the_logits_of_the_policy():
    model = build_janus_model()
    policy = TokenPolicy(JanusAdapter(model, build_processor(TOKENIZER, SIZE, GRID * GRID)))
    texts = ["a red circle on a white background", "two large green squares on a pink background"]
    prompts = [Prompt(id=str(i), text=text) for i, text in enumerate(texts)]
    rollout = policy.sample(prompts, [row_seed(0, 0, i, 0) for i in range(2)], TokenSampler())
    rows = torch.arange(2)
    with torch.no_grad():
        expected = policy.log_prob(rollout, rows, rows, frozenset({"logits"})).logits
        logits = ImageModel(model)(*tokenize(TOKENIZER, texts), rollout.samples)
    assert expected is not None and logits.shape == (2, GRID * GRID, CODES)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_codes_have_unit_length_and_the_model_itself_finds_the_same(tmp_path):
    vq = build_vq()
    pictures = draw_pictures(24, 3, tmp_path)
    cluster(vq, torch.from_numpy(pictures.pixels), torch.Generator().manual_seed(0))
    normalise(vq)
    assert torch.allclose(vq.quantize.embedding.weight.norm(dim=1), torch.ones(CODES))
    tokens = encode_tokens(vq, pictures)
    assert tokens.shape == (24, GRID * GRID) and tokens.unique().numel() > 20
    with torch.no_grad():
        plain = vq.encode(to_model(torch.from_numpy(pictures.pixels))).image_tokens
    assert torch.equal(tokens.flatten().long(), plain)


def test_clusters_are_nearer_to_the_latent_than_chance(tmp_path):
    vq = build_vq()
    pixels = torch.from_numpy(draw_pictures(24, 3, tmp_path).pixels)
    with torch.no_grad():
        latent = unit(vq, to_model(pixels)).permute(0, 2, 3, 1).flatten(0, 2)
        chance = (latent @ torch.nn.functional.normalize(vq.quantize.embedding.weight, dim=-1).T).amax(1).mean()
        cluster(vq, pixels, torch.Generator().manual_seed(0))
        found = (latent @ vq.quantize.embedding.weight.T).amax(1).mean()
    assert found > max(0.98, chance)


def test_the_codebook_learns_and_the_decoder_sees_codes_alone():
    model = Reconstruct(build_vq())
    images, noise = torch.full((2, 3, 32, 32), 0.3), torch.zeros(2, 8, 4, 4)
    model.quantise = True
    output, pull = model(images, noise)
    (output.square().mean() + pull).backward()
    table = model.vq.quantize.embedding.weight.grad
    assert table is not None and 0 < (table.abs().sum(1) > 0).sum() < CODES
    first = model.vq.encoder.conv_in.weight.grad
    assert first is not None and first.abs().max() > 0


SHIPPED_JANUS = SHIPPED["shapes-janus"]


def test_the_shipped_model_draws_what_prompts_ask_for_more_often_than_not():
    policy = load_policy("shapes-janus", None, device="cpu")
    assert policy.kind == "tokens"
    specs = draw_specs("heldout", 40, 0)
    prompts = [Prompt(id=f"e{i}", text=spec.text) for i, spec in enumerate(specs)]
    rollout = policy.sample(prompts, [eval_seed(0, prompt.id, 0) for prompt in prompts])
    rubrics = [generators.build("shapes").generate_sync(spec.text) for spec in specs]
    pictures = zip(rubrics, rollout.images, strict=True)
    verdicts = judges.build("shapes").score_sync([
        JudgeRequest(rubric, picture, sample_id=str(row)) for row, (rubric, picture) in enumerate(pictures)
    ])  # fmt: skip
    tables = [
        ScoreTable.from_verdicts(rubric, [str(row)], [row_verdicts])
        for row, (rubric, row_verdicts) in enumerate(zip(rubrics, verdicts, strict=True))
    ]
    # of pictures of other prompts about a third of the criteria hold
    assert summarize(tables).mean_pass_rate > 0.5
    # room to improve
    assert summarize(tables).strict_completion < 0.7


def test_plain_transformers_generates_from_the_shipped_model():
    assert sum(file.stat().st_size for file in SHIPPED_JANUS.iterdir()) < 8e6
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in SHIPPED_JANUS.iterdir())
    with quiet():
        model = JanusForConditionalGeneration.from_pretrained(SHIPPED_JANUS, dtype=torch.float32).eval()
        processor = JanusProcessor.from_pretrained(SHIPPED_JANUS)
    inputs = processor(text=["a large red circle on a white background"], generation_mode="image", return_tensors="pt")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tokens = model.generate(**inputs, generation_mode="image", num_return_sequences=8, guidance_scale=2.0)
    with torch.no_grad():
        pixels = (model.decode_image_tokens(tokens).numpy() / 2 + 0.5) * 255
    red = (np.abs(pixels - np.array([215, 35, 40])).max(-1) < 60).sum((1, 2))
    # a large circle has 314 to 415 pixels
    assert ((red > 250) & (red < 450)).sum() >= 4 and (np.median(pixels, (1, 2, 3)) > 230).sum() >= 6
