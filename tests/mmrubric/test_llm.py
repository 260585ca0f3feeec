"""The LLM client against a scripted server: one call, its retries, typed failures, accounting and identity."""

from __future__ import annotations

import asyncio
import base64
import io
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from mmrubric.chat import ChatRequest, Endpoint, EndpointError, ImagePart, Message
from mmrubric.chat_errors import retry_after
from mmrubric.errors import InputError
from mmrubric.images import content_hash
from mmrubric.llm import LLM
from mmrubric.store import request_key
from mmrubric.verdict import Failure
from tests.mmrubric.stub_server import Answer, Clock, Stub, completion, error, serve

ASK = ChatRequest((Message.of("user", "Is it red?"),))


def client(stub, clock=None, **options):
    return LLM(Endpoint(base_url=stub.base_url, model="m", **options), sleep=clock or Clock(), seed=0)


def ask(*script, request=ASK, **options):
    with serve(Stub(*script)) as stub:
        llm = client(stub, **options)
        return llm.chat_sync(request), llm, stub


def test_an_answer_with_its_cost():
    reply, llm, stub = ask(completion("yes"))
    assert (reply.text, reply.failure, reply.finish) == ("yes", None, "stop")
    assert (reply.cost.calls, reply.cost.prompt_tokens, reply.cost.completion_tokens) == (1, 10, 2)
    assert reply.cost.seconds > 0 and (llm.usage.calls, llm.usage.attempts, llm.usage.failed) == (1, 1, 0)
    assert stub.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Is it red?"}],
            "max_tokens": 512,
            "temperature": 0.0,
        }
    ]


def test_everything_set_is_sent_and_nothing_else():
    schema = {"type": "json_schema", "json_schema": {"name": "v", "schema": {"type": "object"}}}
    request = ChatRequest(
        (
            Message.of("system", "Judge."),
            Message.of("user", ImagePart.of(Image.new("RGB", (2, 2), "red")), "Is it red?"),
        ),
        max_tokens=1,
        temperature=0.7,
        seed=3,
        top_logprobs=5,
        response_format=schema,
        extra_body={"structured_outputs": {"choice": ["a"]}},
        cut_is_fine=True,
    )
    _, _, stub = ask(completion(), request=request)
    [sent] = stub.requests
    image = sent["messages"][1]["content"][0]["image_url"]["url"]
    assert Image.open(io.BytesIO(base64.b64decode(image.removeprefix("data:image/png;base64,")))).size == (
        2,
        2,
    )
    assert sent["messages"][1]["content"][1] == {"type": "text", "text": "Is it red?"}
    rest = {k: v for k, v in sent.items() if k not in ("messages", "model")}
    assert rest == {
        "max_tokens": 1,
        "temperature": 0.7,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 5,
        "response_format": schema,
        "structured_outputs": {"choice": ["a"]},
    }


def test_log_probs_are_read():
    content = [
        {
            "token": " Yes",
            "logprob": -0.1,
            "bytes": None,
            "top_logprobs": [{"token": " Yes", "logprob": -0.1}, {"token": "No", "logprob": -2.5}],
        }
    ]
    request = ChatRequest(ASK.messages, max_tokens=1, top_logprobs=2, cut_is_fine=True)
    reply, _, _ = ask(completion(" Yes", "length", logprobs={"content": content}), request=request)
    assert reply.failure is None
    assert reply.tokens[0].text == " Yes" and reply.tokens[0].top == ((" Yes", -0.1), ("No", -2.5))


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_jf49_passing_errors_are_retried(status):
    reply, llm, stub = ask(error(status), error(status), completion("yes"))
    assert reply.text == "yes" and len(stub.requests) == 3
    assert (reply.cost.calls, llm.usage.attempts, llm.usage.unreported, llm.usage.failed) == (3, 3, 2, 0)


@pytest.mark.parametrize(
    ("status", "message", "failure", "hint"),
    [
        (400, "bad", Failure.server_error, "HTTP 400: bad"),
        (400, "cannot identify image file", Failure.bad_image, "identify"),
        (413, "Payload Too Large", Failure.bad_image, "max_bytes"),
        (422, "no", Failure.server_error, "HTTP 422"),
    ],
)
def test_lasting_errors_are_not_retried(status, message, failure, hint):
    check_lasting(status, message, failure, hint)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens",
        "The prompt (length 5000) is longer than the maximum model length of 2048",
        "the request exceeds the available context size",
        "context_length_exceeded",
    ],
)
def test_jf22_a_prompt_that_is_too_long_is_not_retried(message):
    check_lasting(400, message, Failure.server_error, "--max-model-len")


def test_jf30_too_many_images_is_not_retried():
    check_lasting(
        400, "At most 1 image(s) may be provided in one request.", Failure.server_error, "limit-mm-per-prompt"
    )


def check_lasting(status, message, failure, hint):
    reply, llm, stub = ask(error(status, message))
    assert (reply.failure, reply.text, reply.status) == (failure, None, status) and hint in reply.detail
    assert len(stub.requests) == 1 and llm.usage.failures == {failure: 1}


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ([error(429)], Failure.rate_limited),
        ([error(500)], Failure.server_error),
        ([error(504)], Failure.timeout),
        ([Answer(200, b"<html>oops</html>", {"Content-Type": "text/html"})], Failure.server_error),
        ([Answer(200, b'{"choices": [{"mess')], Failure.server_error),
        ([Answer(200, {"choices": []})], Failure.server_error),
        ([Answer(200, [1])], Failure.server_error),
        ([Answer(500, b"\xff\xfe")], Failure.server_error),
    ],
)
def test_jf47_one_retry_layer_with_exactly_n_plus_one_attempts(script, failure):
    clock = Clock()
    reply, llm, stub = ask(*script, clock=clock, max_retries=3)
    assert reply.failure == failure and reply.text is None and reply.detail
    assert len(stub.requests) == 4 == llm.usage.attempts == reply.cost.calls
    assert len(clock.waits) == 3 and llm.usage.failures == {failure: 1} and llm.usage.unreported == 4


def test_jf45_waits_grow_with_jitter():
    clock = Clock()
    ask(error(429), clock=clock, max_retries=4, backoff=1.0, backoff_max=4.0)
    # 1, 2, 4, then capped at 4: between half of it and all of it
    assert all(top / 2 <= wait <= top for wait, top in zip(clock.waits, [1, 2, 4, 4], strict=True)), clock.waits
    assert len({wait / top for wait, top in zip(clock.waits, [1, 2, 4, 4], strict=True)}) == 4


def test_jf46_retry_after_is_obeyed_up_to_its_limit():
    clock = Clock()
    reply, _, _ = ask(error(429, headers={"Retry-After": "7"}), completion(), clock=clock, backoff=0.1)
    assert reply.text == "yes" and clock.waits == [7.0]
    reply, _, stub = ask(error(429, headers={"Retry-After": "500"}), completion(), clock=clock)
    assert reply.failure == Failure.rate_limited and "500 s" in reply.detail and len(stub.requests) == 1


def test_jf46_retry_after_in_seconds_and_as_a_date():
    # 1994-11-15 08:12:31 UTC = 784887151 seconds after 1970
    assert retry_after({"retry-after": "Tue, 15 Nov 1994 08:12:31 GMT"}, now=784887141) == 10
    assert retry_after({"retry-after": "Tue, 15 Nov 1994 08:12:31 GMT"}, now=784887999) == 0
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after({"retry-after": "-3"}) == 0
    assert retry_after({"retry-after": "soon"}) is None and retry_after({"retry-after": "nan"}) is None
    assert retry_after({}) is None


def test_a_slow_server_is_a_timeout():
    slow = completion()
    slow.delay = 60.0
    started = time.monotonic()
    reply, _, _ = ask(slow, timeout=0.2, max_retries=1)
    assert reply.failure == Failure.timeout and reply.cost.calls == 2 and time.monotonic() - started < 30


def test_text_that_is_no_text_is_not_sent():
    reply, llm, stub = ask(completion(), request=ChatRequest((Message.of("user", "half a pair: \ud83d"),)))
    assert reply.failure == Failure.server_error and "cannot be sent" in reply.detail
    assert stub.requests == [] and llm.usage.failed == 1


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1", model="m", max_retries=1)
        reply = LLM(endpoint, sleep=Clock()).chat_sync(ASK)
    assert reply.failure == Failure.server_error and "cannot reach http://127.0.0.1" in reply.detail


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (completion(None, message={"refusal": "I cannot."}), Failure.refused),
        (completion("", "content_filter"), Failure.refused),
        (completion('{"met": tr', "length"), Failure.truncated),
        (completion('{"met":' + "\n" * 4000, "length"), Failure.truncated),
        (completion(None), Failure.unparsable),
        (completion("  \n"), Failure.unparsable),
    ],
)
def test_jf04_failures_inside_a_200_are_typed_and_their_tokens_counted(answer, failure):
    reply, llm, stub = ask(answer)
    assert reply.failure == failure and len(stub.requests) == 1
    assert (llm.usage.prompt_tokens, llm.usage.completion_tokens, llm.usage.failed) == (10, 2, 1)


def test_jf03_tokens_of_failed_calls_are_kept():
    paid = Answer(500, {"error": {"message": "late"}, "usage": {"prompt_tokens": 5, "completion_tokens": 1}})
    reply, llm, _ = ask(paid, completion(usage=None), price_prompt=2.0, price_completion=10.0)
    # The 500 reported 5 and 1; the answer reported nothing, which is unknown and not zero.
    assert (reply.cost.prompt_tokens, llm.usage.unreported) == (5, 1)
    assert llm.usage.price == pytest.approx((5 * 2 + 1 * 10) / 1e6)
    assert ask(completion())[1].usage.price is None


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_endpoint_that_serves_nobody_stops_at_once(status):
    with serve(Stub(error(status, "denied"))) as stub:
        llm = client(stub, concurrency=2, api_key_env="MY_KEY")
        with pytest.raises(EndpointError, match=rf"HTTP {status}: denied"):
            llm.map_sync([ASK] * 50)
        assert len(stub.requests) < 50
        assert llm.usage.aborted >= 1 and llm.usage.failed == 0


def test_jf52_concurrency_is_bounded_and_order_kept():
    def reply(body):
        answer = completion(body["messages"][0]["content"])
        answer.delay = 0.02
        return answer

    with serve(Stub(reply=reply)) as stub:
        requests = [ChatRequest((Message.of("user", str(i)),)) for i in range(30)]
        replies = client(stub, concurrency=4).map_sync(requests)
        assert [r.text for r in replies] == [str(i) for i in range(30)]
        assert 2 <= stub.most_in_flight <= 4


def test_jf50_several_loops_threads_and_a_running_loop():
    with serve(Stub(completion())) as stub:
        llm = client(stub)
        assert llm.chat_sync(ASK).text == llm.chat_sync(ASK).text == "yes"

        async def inside():
            here = (await llm.chat(ASK)).text
            await llm.aclose()
            return here, llm.chat_sync(ASK).text

        assert asyncio.run(inside()) == ("yes", "yes")
        assert asyncio.run(inside()) == ("yes", "yes")
        with ThreadPoolExecutor(4) as pool:
            assert {r.text for r in pool.map(lambda _: llm.chat_sync(ASK), range(8))} == {"yes"}
        assert llm.usage.calls == 14


def test_a_cancelled_call_is_counted():
    slow = completion()
    slow.delay = 60.0

    async def main(llm, stub):
        task = asyncio.ensure_future(llm.chat(ASK))
        while not stub.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serve(Stub(slow)) as stub:
        llm = client(stub)
        asyncio.run(main(llm, stub))
        # The request that was cut off may have cost something, so it counts as one of unknown cost.
        assert (llm.usage.calls, llm.usage.aborted, llm.usage.attempts, llm.usage.unreported) == (1, 1, 1, 1)


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    reply, llm, stub = ask(completion(), api_key_env="MY_KEY")
    assert {k.lower(): v for k, v in stub.headers[0].items()}["authorization"] == "Bearer s3cret"
    assert "s3cret" not in reply.sent + repr(llm.endpoint) + llm.endpoint.model_dump_json()


def test_jf40_identity_covers_endpoint_parameters_and_pixels():
    red, blue = Image.new("RGB", (2, 2), "red"), Image.new("RGB", (2, 2), "blue")

    def key(image=red, text="red?", base_url="http://a/v1", model="m", **options):
        llm = LLM(Endpoint(base_url=base_url, model=model))
        return request_key(llm.sent(ChatRequest((Message.of("user", ImagePart.of(image), text),), **options)))

    assert key() == key(np.asarray(red)) == key(base_url="http://a/v1/")
    others = [
        key(blue),
        key(text="blue?"),
        key(base_url="http://b/v1"),
        key(model="n"),
        key(seed=1),
        key(max_tokens=1),
        key(extra_body={"x": 1}),
        key(response_format={"type": "json_object"}),
        key(temperature=1.0),
    ]
    assert len({key(), *others}) == 1 + len(others)
    assert ImagePart.of(red).sha256 == content_hash(red)


def test_jf41_identity_is_the_pixels_whatever_the_file_is_called(tmp_path):
    paths = [tmp_path / folder / "same.png" for folder in ("a", "b", "c")]
    for path, colour in zip(paths, ["red", "blue", "red"], strict=True):
        path.parent.mkdir()
        Image.new("RGB", (2, 2), colour).save(path)
    llm = LLM(Endpoint(base_url="http://a/v1", model="m"))
    sent = [llm.sent(ChatRequest((Message.of("user", ImagePart.of(path)),))) for path in paths]
    assert sent[0] == sent[2] != sent[1] and "same.png" not in sent[0]


def test_endpoint_is_checked():
    with pytest.raises(ValueError, match="deadline 5 is shorter than the timeout 60"):
        Endpoint(base_url="http://a/v1", model="m", deadline=5)
    with pytest.raises(ValueError, match="http://"):
        Endpoint(base_url="127.0.0.1:8000", model="m")
    with pytest.raises(InputError):
        ImagePart.of(b"")
