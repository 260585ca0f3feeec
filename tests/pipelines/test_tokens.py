"""Token policies against transformers' own generation, on disk, and as chosen by `load_policy`."""

import json

import numpy as np
import pytest
import torch
from transformers import Emu3ForConditionalGeneration, Emu3Processor, JanusForConditionalGeneration, JanusProcessor

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import Sampler, load_policy
from pipelines.engine import EngineOptions
from pipelines.load import check_sampler, provides, read_index
from pipelines.policy import Rollout
from pipelines.quiet import quiet
from pipelines.rollout_io import load_rollout, save_rollout
from pipelines.samplers import TokenSampler
from pipelines.seeds import row_seed
from pipelines.testing_tokens import tiny_emu3_directory, tiny_janus_directory

SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]
GREEDY = {"top_k": 1}


@pytest.fixture(scope="module")
def janus(tmp_path_factory):
    return tiny_janus_directory(tmp_path_factory.mktemp("janus") / "model")


@pytest.fixture(scope="module")
def emu3(tmp_path_factory):
    return tiny_emu3_directory(tmp_path_factory.mktemp("emu3") / "model")


@pytest.mark.parametrize("scale", [2.0, 5.0])
def test_greedy_tokens_and_pictures_are_those_of_plain_janus(janus, prompts, scale):
    policy = load_policy(janus, None, device="cpu")
    rollout = policy.sample(prompts, SEEDS, TokenSampler(guidance=scale, **GREEDY))
    with quiet():
        plain = JanusForConditionalGeneration.from_pretrained(janus, dtype=torch.float32).eval()
        processor = JanusProcessor.from_pretrained(janus)
    texts = [prompt.text for prompt in prompts]
    inputs = processor(text=texts, generation_mode="image", padding=True, return_tensors="pt")
    options = {"generation_mode": "image", "do_sample": False, "guidance_scale": scale, "use_cache": True}
    tokens = plain.generate(**inputs, **options)
    assert torch.equal(rollout.samples, tokens)
    assert len(set(tokens.flatten().tolist())) > 5
    pixels = ((plain.decode_image_tokens(tokens) / 2 + 0.5) * 255).round().clamp(0, 255)
    assert np.array_equal(pixels.detach().numpy(), rollout.images) and rollout.images.std() > 10
    alone = processor(text=texts[:1], generation_mode="image", return_tensors="pt")
    assert alone["input_ids"][0].tolist() == policy.adapter.prompt_ids(texts[0])


def test_janus_encodes_pictures_as_transformers_does_where_codes_have_unit_length(janus):
    policy = load_policy(janus, None, device="cpu")
    vq = policy.adapter.vq
    with torch.no_grad():
        vq.quantize.embedding.weight.copy_(torch.nn.functional.normalize(vq.quantize.embedding.weight, dim=-1))
        images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
        found = policy.adapter.encode(images)
        # the distance of a latent of any length to codes of one length is least for the nearest direction
        values = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
        assert torch.equal(found.flatten(), vq.encode(values).image_tokens)


def test_janus_wraps_prompts_in_the_chat_template_of_the_processor(janus, tmp_path):
    policy = load_policy(janus, None, device="cpu")
    plain = policy.adapter.prompt_ids("a red circle")
    policy.adapter.processor.chat_template = (
        "{% for m in messages %}{% for c in m.content %}two {{ c.text }}{% endfor %}{% endfor %} and"
    )
    words = policy.adapter.processor.tokenizer
    two, end = words.convert_tokens_to_ids("two</w>"), words.convert_tokens_to_ids("and</w>")
    assert policy.adapter.prompt_ids("a red circle") == [plain[0], two, *plain[1:-1], end, plain[-1]]


def test_greedy_tokens_and_pictures_are_those_of_plain_emu3(emu3, prompts):
    prompts = [Prompt(id=p.id, text=p.text, negative="two green triangles") for p in prompts]
    policy = load_policy(emu3, None, device="cpu")
    rollout = policy.sample(prompts, SEEDS, TokenSampler(guidance=3.0, **GREEDY))
    with quiet():
        plain = Emu3ForConditionalGeneration.from_pretrained(emu3, dtype=torch.float32).eval()
        processor = Emu3Processor.from_pretrained(emu3)
    words, end_of_line = plain.vocabulary_mapping, plain.vocabulary_mapping.eol_token_id
    options = {"return_for_image_generation": True, "image_area": 16 * 16, "return_tensors": "pt"}
    for row, prompt in enumerate(prompts):
        inputs = processor(text=[prompt.text], **options)
        negative = processor(text=[prompt.negative], **options)
        length = inputs["input_ids"].shape[1]

        def allowed(_batch, ids, length=length):
            return [end_of_line] if (len(ids) - length) % 3 == 2 else words.image_tokens

        out = plain.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=6,
            do_sample=False, prefix_allowed_tokens_fn=allowed, guidance_scale=3.0,
            negative_prompt_ids=negative["input_ids"], negative_prompt_attention_mask=negative["attention_mask"],
        )[:, length:]  # fmt: skip
        assert out[0].tolist() == rollout.samples[row].tolist()
        decoded = plain.decode_image_tokens(image_tokens=torch.nn.functional.pad(out, (0, 3)), height=2, width=2)
        pixels = ((decoded[0].permute(1, 2, 0) / 2 + 0.5) * 255).round().clamp(0, 255).numpy()
        assert np.abs(pixels - rollout.images[row]).max() <= 1


def test_emu3_draws_image_tokens_only_and_closes_each_row(emu3, prompts):
    policy = load_policy(emu3, device="cpu")
    words = policy.adapter.model.vocabulary_mapping
    rollout = policy.sample(prompts, SEEDS, TokenSampler(temperature=5.0), frozenset({"log_prob"}))
    assert (rollout.samples[:, [2, 5]] == words.eol_token_id).all()
    assert set(rollout.samples[:, [0, 1, 3, 4]].flatten().tolist()) <= set(words.image_tokens)
    assert rollout.mask.tolist() == [[True, True, False, True, True, False]] * 4
    # logits of text tokens are outside the log-prob: raising them changes nothing
    before = policy.log_prob(rollout, torch.arange(4), torch.zeros(4).long()).log_prob
    text = [i for i in range(policy.adapter.vocabulary) if i not in set(words.image_tokens)]
    with torch.no_grad():
        policy.adapter.model.lm_head.weight[text] = 1e3
    after = policy.log_prob(rollout, torch.arange(4), torch.zeros(4).long()).log_prob
    torch.testing.assert_close(after, before)
    assert (after[:, [2, 5]] == 0).all()


def test_token_rollouts_come_back_from_disk(janus, prompts, tmp_path):
    policy = load_policy(janus, device="cpu")
    sampler = TokenSampler(guidance=3.0, guidance_mode="cond_is", temperature=0.9, top_k=8)
    rollout = policy.sample(prompts, SEEDS, sampler, frozenset({"log_prob"}))
    save_rollout(rollout, tmp_path / "rollout.safetensors")
    again = load_rollout(tmp_path / "rollout.safetensors")
    assert again.sampler == sampler and again.sample_ids == rollout.sample_ids and again.seeds == rollout.seeds
    for name in ("samples", "actions", "log_probs", "mask", "steps", "sigmas", "prompt_index"):
        assert torch.equal(getattr(again, name), getattr(rollout, name)), name
    assert np.array_equal(again.images, rollout.images)
    half = Rollout.merge([again.select([0, 1]), rollout.select([2, 3])])
    assert torch.equal(half.samples, rollout.samples)
    out = policy.log_prob(half, torch.arange(4), torch.zeros(4).long()).log_prob
    assert torch.equal(out, policy.log_prob(rollout, torch.arange(4), torch.zeros(4).long()).log_prob)


def test_the_model_type_chooses_the_adapter(janus, emu3, tmp_path):
    assert read_index(str(janus)) == {"_class_name": "JanusForConditionalGeneration"}
    assert load_policy(emu3, None, device="cpu").deployed == TokenSampler(guidance=3.0)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InputError, match="model_type 'llama': token models that can be loaded are janus, emu3"):
        load_policy(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load_policy(tmp_path)


def test_what_is_provided_and_sampled_is_known_before_weights_load(janus):
    name = read_index(str(janus))["_class_name"]
    assert provides(name) == {"log_prob", "logits"} and provides(name, value_head=True) >= {"value"}
    check_sampler(name, TokenSampler())
    with pytest.raises(InputError, match="a JanusForConditionalGeneration takes tokens"):
        check_sampler(name, Sampler())
    with pytest.raises(InputError, match="a StableDiffusion3Pipeline takes flow"):
        check_sampler("StableDiffusion3Pipeline", TokenSampler())
    with pytest.raises(InputError, match="its sampler has kind 'tokens'"):
        load_policy(janus, None, device="cpu").sample([Prompt(id="p", text="a red circle")], SEEDS[:1], Sampler())


def test_a_flow_policy_refuses_token_samplers(policy, prompts):
    with pytest.raises(InputError, match="its sampler has kind 'flow'"):
        policy.sample(prompts, SEEDS, TokenSampler())


@pytest.mark.parametrize(("options", "words"), [
    ({"t5": False}, "t5=False is for StableDiffusion3Pipeline"),
    ({"engine": EngineOptions(vae_tiling=True)}, "vae_tiling=True: a token model takes none"),
    ({"tune": None, "value_head": True}, "trains nothing"),
])  # fmt: skip
def test_options_that_do_not_act_on_token_models_are_errors(janus, options, words):
    with pytest.raises(InputError, match=words):
        load_policy(janus, **options)


def test_a_value_head_is_for_token_models(tiny):
    with pytest.raises(InputError, match="value_head is for token models"):
        load_policy(tiny, value_head=True)


def test_deployed_json_is_checked(janus, tmp_path):
    load_policy(janus, device="cpu").save_pretrained(tmp_path)
    assert json.loads((tmp_path / "deployed.json").read_text()) == {"kind": "tokens", "guidance": 5.0}
    (tmp_path / "deployed.json").write_text(json.dumps({"kind": "tokens", "steps": 3}))
    with pytest.raises(InputError, match=r"deployed\.json.*steps"):
        load_policy(tmp_path)


def test_weights_that_lack_a_part_are_refused(janus, tmp_path):
    from safetensors.torch import load_file, save_file

    load_policy(janus, device="cpu").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {k: v for k, v in load_file(file).items() if "generation_head.vision_head" not in k}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="lack 2 tensors of a JanusForConditionalGeneration"):
        load_policy(tmp_path)


def test_janus_refuses_negative_texts(janus):
    with pytest.raises(InputError, match="'n' has a negative text, which this model never reads"):
        load_policy(janus, None, device="cpu").check_prompts([Prompt(id="n", text="a circle", negative="blue")])
