"""The in-process client on tiny random models: a vision-language one and a language one."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM

import judges
from mmrubric.chat import ChatRequest, ImagePart, Message
from mmrubric.errors import InputError
from mmrubric.llm_local import LocalLLM, default_device
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure
from trainers.shapes_vlm.model import CHAT_TEMPLATE, build_model, build_processor, build_tokenizer, save

TEXTS = ["Image: a red circle. yes no", "True? The circle is red.", "a much longer prompt than the others " * 3]


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "sees"
    tokenizer = build_tokenizer(TEXTS)
    save(build_model(tokenizer), build_processor(tokenizer), folder)
    return folder


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models") / "reads"
    tokenizer = build_tokenizer(TEXTS)
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def picture(seed: int) -> ImagePart:
    return ImagePart.of(Image.fromarray(np.random.default_rng(seed).integers(0, 255, (64, 64, 3), dtype=np.uint8)))


def ask(*parts: str | ImagePart, **options) -> ChatRequest:
    defaults = {"max_tokens": 1, "top_logprobs": 20, "cut_is_fine": True}
    return ChatRequest((Message.of("user", *parts),), **(defaults | options))


def test_a_batch_answers_as_each_request_alone(sees: Path):
    requests = [ask("Image:", picture(k), text) for k, text in enumerate(TEXTS)] + [ask("no picture")]
    together = LocalLLM(sees).map_sync(requests)
    alone = LocalLLM(sees, batch_size=1)
    for request, reply in zip(requests, together, strict=True):
        single = alone.chat_sync(request)
        assert reply.failure is None and reply.text == single.text
        assert dict(reply.tokens[0].top) == pytest.approx(dict(single.tokens[0].top), abs=1e-4)
        assert reply.cost.prompt_tokens == single.cost.prompt_tokens


def test_log_probs_are_those_of_the_model(reads: Path):
    reply = LocalLLM(reads).chat_sync(ask("a red circle"))
    client = LocalLLM(reads)._model
    ids = client._tokenizer("<|user|>a red circle<|end|><|assistant|>", return_tensors="pt").input_ids
    wanted = client._model(ids).logits[0, -1].log_softmax(-1).topk(20).values
    assert [value for _, value in reply.tokens[0].top] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert reply.cost.prompt_tokens == ids.shape[1] and reply.cost.completion_tokens == 1


def test_pictures_decide_the_answer_and_their_order_counts(sees: Path):
    client, (a, b) = LocalLLM(sees), (picture(0), picture(1))
    first, second, swapped = client.map_sync([ask(a, "?"), ask(b, "?"), ask(b, a, "?")])
    both = client.chat_sync(ask(a, b, "?"))
    assert first.tokens != second.tokens and both.tokens[0].logprob != swapped.tokens[0].logprob


def test_sampling_is_seeded_and_leaves_the_random_state_alone(reads: Path):
    client = LocalLLM(reads)
    asked = [ask("a red", temperature=1.0, seed=k, max_tokens=8, top_logprobs=None) for k in range(6)]
    before = torch.get_rng_state()
    texts = [reply.text for reply in client.map_sync(asked)]
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(texts)) > 1
    assert [client.chat_sync(request).text for request in asked] == texts, "no answer depends on its batch"


def test_sampling_follows_the_distribution(reads: Path):
    client = LocalLLM(reads, batch_size=500)
    top = dict(client.chat_sync(ask("a red")).tokens[0].top)
    token = max(top, key=lambda text: top[text])
    replies = client.map_sync([ask("a red", temperature=0.5, seed=k) for k in range(2000)])
    logits = (
        LocalLLM(reads)
        ._model._model(client._model._tokenizer("<|user|>a red<|end|><|assistant|>", return_tensors="pt").input_ids)
        .logits[0, -1]
    )
    wanted = (logits / 0.5).softmax(-1).max().item()
    seen = np.mean([reply.tokens[0].text == token for reply in replies])
    assert seen == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / 2000) ** 0.5)


def test_one_prompt_that_is_too_long_fails_alone(reads: Path):
    fine, long = LocalLLM(reads).map_sync([ask("red"), ask("red " * 100)])
    assert fine.failure is None
    assert long.failure is Failure.server_error and "longer than 64 tokens" in long.detail


def test_a_picture_for_a_model_that_reads_only_text_fails_alone(reads: Path):
    fine, refused = LocalLLM(reads).map_sync([ask("red"), ask(picture(0), "red")])
    assert fine.failure is None and refused.failure is Failure.bad_image


def test_a_cut_answer_is_a_failure_where_it_was_not_meant_to_be_cut(reads: Path):
    reply = LocalLLM(reads).chat_sync(ask("red", max_tokens=3, cut_is_fine=False))
    assert reply.failure is Failure.truncated and reply.finish == "length"
    assert reply.cost.completion_tokens == 3, "a failed call counts as well"


def test_a_cancelled_call_is_not_worked_on(reads: Path):
    client = LocalLLM(reads, batch_size=1)

    async def cancel() -> None:
        tasks = [asyncio.ensure_future(client.chat(ask(f"red {k}", max_tokens=16))) for k in range(8)]
        await asyncio.sleep(0)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(cancel())
    client._worker.shutdown(wait=True)
    assert client.usage.attempts <= 2


def test_equal_files_are_equal_models(reads: Path, tmp_path: Path):
    copy = tmp_path / "reads"
    shutil.copytree(reads, copy)
    first, second = LocalLLM(reads), LocalLLM(copy)
    assert first.sent(ask("red")) == second.sent(ask("red"))
    weights = LlamaForCausalLM.from_pretrained(copy)
    weights.model.norm.weight.data[0] += 1
    weights.save_pretrained(copy)
    assert LocalLLM(copy).sent(ask("red")) != first.sent(ask("red"))


def test_tf41_each_rank_has_its_judge_on_its_own_gpu():
    assert [default_device(True, {"LOCAL_RANK": str(k)}) for k in range(2)] == ["cuda:0", "cuda:1"]
    assert default_device(True, {}) == "cuda:0" and default_device(False, {"LOCAL_RANK": "1"}) == "cpu"


def test_bad_folders_are_named(reads: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"holds no config.json"):
        LocalLLM(tmp_path)
    bare = tmp_path / "bare"
    shutil.copytree(reads, bare)
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="no chat template"):
        LocalLLM(bare)
    (bare / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(InputError, match="cannot be loaded"):
        LocalLLM(bare)
    with pytest.raises(InputError, match="dtype 'int7' is none"):
        LocalLLM(reads, dtype="int7")


def test_the_judge_asks_no_schema_and_reads_what_comes(sees: Path):
    rubric = Rubric(prompt="a red circle", criteria=[Criterion(id="red", text="The circle is red.")])
    judge = judges.build("local", model=sees, read="json", max_tokens=8, re_asks=0)
    request = judges.JudgeRequest(rubric=rubric, candidate=Image.new("RGB", (64, 64)))
    verdict = judge.score_sync([request])[0][0]
    assert verdict.met is None and verdict.failure in (Failure.truncated, Failure.unparsable)
    unsure = judges.build("local", model=sees).score_sync([request])[0][0]
    assert unsure.failure is Failure.unparsable and "is not on yes/no" in unsure.reason
    lenient = judges.build("local", model=sees, off_mass=0.9999).score_sync([request])[0][0]
    assert lenient.met is None or 0 < lenient.met < 1
