"""Deadlines, cancellation that keeps finished replies, and the circuit breaker."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from mmrubric.chat import ChatRequest, Endpoint, EndpointError, Message
from mmrubric.chat_breaker import Breaker
from mmrubric.chat_errors import CallFailed
from mmrubric.errors import InputError
from mmrubric.llm import LLM
from mmrubric.verdict import Failure
from tests.mmrubric.stub_server import Answer, Clock, Stub, completion, error, serve

ASK = ChatRequest((Message.of("user", "quick"),))
HANG = ChatRequest((Message.of("user", "hang"),))


def client(stub, clock=None, **options):
    clock = clock or Clock()
    return LLM(Endpoint(base_url=stub.base_url, model="m", **options), sleep=clock, clock=clock.time, seed=0)


def quick_or_hang(body):
    answer = completion("yes")
    answer.delay = 60.0 if body["messages"][0]["content"] == "hang" else 0.0
    return answer


def test_a_wait_beyond_the_deadline_is_not_waited():
    with serve(Stub(error(429, "busy", {"Retry-After": "100"}))) as stub:
        clock = Clock()
        reply = client(stub, clock, timeout=50, deadline=50).chat_sync(ASK)
    assert reply.failure == Failure.timeout and clock.waits == [] and len(stub.requests) == 1
    assert "deadline came after 1 attempts; HTTP 429: busy" in reply.detail


def test_the_deadline_of_a_call_covers_all_its_attempts():
    slow = error(500)
    slow.delay = 0.2
    with serve(Stub(slow)) as stub:
        reply = client(stub, timeout=3, deadline=3, max_retries=1000).chat_sync(ASK)
    assert reply.failure == Failure.timeout and "deadline came after" in reply.detail and "HTTP 500" in reply.detail
    # 3 / 0.2 = 15 attempts at most
    assert 1 <= len(stub.requests) <= 15


def test_the_deadline_of_a_call_does_not_count_its_turn_in_the_queue():
    slow = completion()
    slow.delay = 0.2
    with serve(Stub(slow)) as stub:
        # 15 calls one after another take 3 s; each has 2.5 s.
        replies = client(stub, concurrency=1, timeout=2.5, deadline=2.5).map_sync([ASK] * 15)
    assert [reply.text for reply in replies] == ["yes"] * 15


def test_a_batch_deadline_keeps_what_is_finished():
    arrived = {}
    with serve(Stub(reply=quick_or_hang)) as stub:
        llm = client(stub)
        llm.chat_sync(ASK)
        replies = llm.map_sync([ASK, HANG] * 3, deadline=4.0, on_reply=arrived.setdefault)
    assert [reply.text for reply in replies] == ["yes", None] * 3
    assert [reply.failure for reply in replies] == [None, Failure.timeout] * 3
    assert "deadline came" in replies[1].detail and arrived == dict(enumerate(replies))
    # Requests that were cut off may have cost something: counted, as of unknown cost.
    assert (llm.usage.calls, llm.usage.attempts, llm.usage.unreported, llm.usage.aborted) == (7, 7, 3, 0)
    assert llm.usage.failures == {Failure.timeout: 3}


def test_a_batch_deadline_counts_the_queue():
    with serve(Stub(reply=quick_or_hang)) as stub:
        llm = client(stub, concurrency=1)
        llm.chat_sync(ASK)
        replies = llm.map_sync([HANG] * 20, deadline=1.0)
    assert {reply.failure for reply in replies} == {Failure.timeout} and len(stub.requests) <= 2
    assert replies[-1].cost.calls == 0 and replies[-1].sent == llm.sent(HANG)


def test_a_batch_deadline_says_nothing_about_the_server():
    with serve(Stub(reply=quick_or_hang)) as stub:
        llm = client(stub, breaker_failures=1)
        llm.chat_sync(ASK)
        llm.map_sync([HANG] * 3, deadline=0.5)
        assert llm.chat_sync(ASK).text == "yes"


def test_bad_arguments_of_map():
    with serve(Stub(completion())) as stub:
        with pytest.raises(InputError, match="1 routes for 2 requests"):
            client(stub).map_sync([ASK] * 2, routes=["a"])
        for deadline in (0, -1.0, float("nan")):
            with pytest.raises(InputError, match="deadline"):
                client(stub).map_sync([ASK], deadline=deadline)


def test_a_cancelled_batch_has_handed_over_what_was_finished():
    arrived = {}

    async def main(llm):
        batch = asyncio.ensure_future(llm.map([ASK, HANG] * 2, on_reply=arrived.setdefault))
        while len(arrived) < 2:
            await asyncio.sleep(0.01)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch

    with serve(Stub(reply=quick_or_hang)) as stub:
        llm = client(stub)
        asyncio.run(main(llm))
    assert {index: reply.text for index, reply in arrived.items()} == {0: "yes", 2: "yes"}
    assert (llm.usage.calls, llm.usage.aborted) == (4, 2)


def test_ctrl_c_keeps_what_was_finished():
    arrived = {}

    def keep(index, reply):
        arrived[index] = reply.text
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with serve(Stub(reply=quick_or_hang)) as stub, pytest.raises(KeyboardInterrupt):
        client(stub).map_sync([HANG, ASK, HANG], on_reply=keep)
    assert arrived == {1: "yes"}


def test_replies_before_a_fatal_error_are_handed_over():
    arrived = []
    with serve(Stub(completion(), completion(), error(401, "expired"))) as stub, pytest.raises(EndpointError):
        client(stub, concurrency=1).map_sync([ASK] * 5, on_reply=lambda index, reply: arrived.append(reply.text))
    assert arrived == ["yes", "yes"]


def test_an_error_of_the_callback_ends_the_batch():
    def keep(index, reply):
        raise OSError("disk full")

    with serve(Stub(reply=quick_or_hang)) as stub, pytest.raises(OSError, match="disk full"):
        client(stub).map_sync([ASK, HANG], on_reply=keep)


DOWN = CallFailed(Failure.server_error, "HTTP 503: down", retry=True, outage=True)
BUSY = CallFailed(Failure.rate_limited, "HTTP 429: busy", retry=True)


def end(breaker, error=None):
    """One call that ends with this error; True if the breaker let it through."""
    through = False
    try:
        with breaker.guard():
            through = True
            if error is not None:
                raise error
    except CallFailed:
        pass
    return through


def test_the_breaker_opens_only_after_failures_in_a_row():
    breaker = Breaker("s", 3, 30.0, Clock().time)
    for error_ in (DOWN, DOWN, None, DOWN, DOWN, BUSY, DOWN, DOWN):
        assert end(breaker, error_)
    assert breaker.ready
    assert end(breaker, DOWN) and not breaker.ready and not end(breaker)


def test_one_probe_decides_after_the_cool_down():
    clock = Clock()
    breaker = Breaker("s", 1, 30.0, clock.time)
    end(breaker, DOWN)
    clock.now = 29.9
    with (
        pytest.raises(CallFailed, match=r"s is left alone after 1 failed calls .*503.*tried again in 0\.1 s"),
        breaker.guard(),
    ):
        pass
    clock.now = 30.0
    with breaker.guard():
        assert not breaker.ready
        with pytest.raises(CallFailed, match="being tried again now"), breaker.guard():
            pass
    assert breaker.ready
    # A probe that fails opens it for another 30 s, counted from the probe's end.
    end(breaker, DOWN)
    clock.now = 70.0
    assert end(breaker, DOWN)
    clock.now = 99.0
    assert not end(breaker)
    clock.now = 100.0
    assert end(breaker) and breaker.ready


def test_a_cancelled_probe_makes_room_for_the_next():
    clock = Clock()
    breaker = Breaker("s", 1, 30.0, clock.time)
    end(breaker, DOWN)
    clock.now = 30.0
    with pytest.raises(asyncio.CancelledError), breaker.guard():
        raise asyncio.CancelledError
    assert breaker.ready and end(breaker) and breaker.ready


def test_late_failures_do_not_prolong_the_pause():
    clock = Clock()
    breaker = Breaker("s", 1, 30.0, clock.time)
    with pytest.raises(CallFailed), breaker.guard():
        end(breaker, DOWN)
        clock.now = 20.0
        raise DOWN
    clock.now = 30.0
    assert breaker.ready


def test_without_a_limit_the_breaker_never_opens():
    breaker = Breaker("s", None, 30.0, Clock().time)
    assert all(end(breaker, DOWN) for _ in range(100))


@pytest.mark.parametrize("outage", [error(503, "down"), error(504, "down"), Answer(drop=True)])
def test_a_server_that_is_down_is_left_alone_and_tried_again(outage):
    clock = Clock()
    with serve(Stub(outage)) as stub:
        llm = client(stub, clock, max_retries=0, breaker_failures=3, breaker_cooldown=30)
        failed = [llm.chat_sync(ASK) for _ in range(5)]
        assert len(stub.requests) == 3
        assert failed[3].failure == Failure.server_error and failed[3].cost.calls == 0
        assert "left alone after 3 failed calls in a row" in failed[3].detail
        assert "tried again in 30.0 s" in failed[3].detail
        assert llm.usage.failed == 5 and llm.usage.attempts == 3
        stub.script, clock.now = [completion()], 31.0
        assert [llm.chat_sync(ASK).text for _ in range(2)] == ["yes", "yes"]


@pytest.mark.parametrize("limits", [{"timeout": 0.2}, {"timeout": 0.2, "deadline": 0.2}])
def test_timeouts_open_the_breaker(limits):
    with serve(Stub(reply=quick_or_hang)) as stub:
        llm = client(stub, max_retries=0, breaker_failures=2, **limits)
        assert [llm.chat_sync(HANG).failure for _ in range(2)] == [Failure.timeout] * 2
        assert "left alone" in llm.chat_sync(HANG).detail and llm.usage.attempts == 2


@pytest.mark.parametrize("answer", [error(429), error(400, "bad"), completion(None, message={"refusal": "no"})])
def test_a_server_that_answers_is_not_down(answer):
    with serve(Stub(answer)) as stub:
        llm = client(stub, max_retries=0, breaker_failures=2)
        assert not any("left alone" in llm.chat_sync(ASK).detail for _ in range(6)) and len(stub.requests) == 6


def test_a_dead_server_gets_few_requests_of_a_large_batch():
    with serve(Stub(error(503))) as stub:
        replies = client(stub, concurrency=2, max_retries=1, breaker_failures=3).map_sync([ASK] * 300)
    assert {reply.failure for reply in replies} == {Failure.server_error}
    # 8 calls are begun at a time; the first three to end stop those that have not begun. 2 attempts each.
    assert len(stub.requests) <= 2 * (3 + 8)
