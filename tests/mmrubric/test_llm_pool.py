"""Several servers of one model: routing, fail-over, and an identity that does not depend on either."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest
from PIL import Image

from mmrubric.chat import ChatRequest, Endpoint, EndpointError, ImagePart, Message
from mmrubric.errors import InputError
from mmrubric.llm import LLM
from mmrubric.llm_pool import LLMPool, connect
from mmrubric.verdict import Failure
from tests.mmrubric.stub_server import Answer, Clock, Stub, completion, error, serve

ASK = ChatRequest((Message.of("user", "Is it red?"),))


@contextmanager
def servers(count, clock=None, **options):
    """A pool of `count` stubs; `stubs` by base_url."""
    clock = clock or Clock()
    with ExitStack() as stack:
        stubs = [stack.enter_context(serve(Stub(completion("yes")))) for _ in range(count)]
        endpoints = [Endpoint(base_url=stub.base_url, model="m", **options) for stub in stubs]
        pool = LLMPool(endpoints, sleep=clock, clock=clock.time, seed=0)
        yield pool, {stub.base_url: stub for stub in stubs}


def urls(pool, route):
    return [member.endpoint.base_url for member in pool.order(route)]


def nowhere(count):
    return LLMPool([Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="m") for port in range(1, count + 1)])


def test_equal_routes_meet_the_same_server():
    with servers(3) as (pool, stubs):
        # 40 routes: the ports are random, and one of 3 servers gets none with probability 3 (2/3)^40 = 3e-7
        routes = [f"image {i % 40}" for i in range(80)]
        assert {reply.text for reply in pool.map_sync([ASK] * 80, routes=routes)} == {"yes"}
        expected = [urls(pool, route)[0] for route in routes]
        assert {url: len(stub.requests) for url, stub in stubs.items()} == {url: expected.count(url) for url in stubs}
        assert pool.usage.calls == pool.usage.attempts == 80 and min(map(expected.count, stubs)) > 0


def test_routes_spread_evenly_and_only_those_of_a_lost_server_move():
    three, two = nowhere(3), nowhere(2)
    routes = [f"image {i}" for i in range(600)]
    homes = [urls(three, route)[0] for route in routes]
    # 600 / 3 = 200 each; the standard deviation is sqrt(600 * 1/3 * 2/3) = 11.5
    assert all(150 < homes.count(url) < 250 for url in set(homes)) and len(set(homes)) == 3
    for route in routes:
        assert urls(two, route) == [url for url in urls(three, route) if url != "http://127.0.0.1:3/v1"]


def test_the_first_picture_is_the_route_when_none_is_given():
    def request(colour, text):
        return ChatRequest((Message.of("user", ImagePart.of(Image.new("RGB", (2, 2), colour)), text),))

    with servers(4) as (pool, stubs):
        for colour in ("red", "blue"):
            before = {url: len(stub.requests) for url, stub in stubs.items()}
            pool.map_sync([request(colour, f"criterion {i}") for i in range(5)])
            assert sorted(len(stub.requests) - before[url] for url, stub in stubs.items()) == [0, 0, 0, 5]


def test_requests_without_a_picture_are_spread():
    with servers(2) as (pool, stubs):
        pool.map_sync([ASK] * 40)
        assert all(len(stub.requests) > 8 for stub in stubs.values())


@pytest.mark.parametrize("dead", [Answer(drop=True)])
def test_a_call_that_cannot_reach_its_server_goes_on_to_the_next(dead):
    clock = Clock()
    with servers(2, clock, max_retries=3) as (pool, stubs):
        home, second = urls(pool, "image")
        stubs[home].script = [dead]
        reply = pool.chat_sync(ASK, route="image")
        # One attempt here, one there, and no wait in between.
        assert (reply.text, reply.failure, reply.cost.calls) == ("yes", None, 2) and clock.waits == []
        assert len(stubs[home].requests) == len(stubs[second].requests) == 1
        assert (pool.usage.calls, pool.usage.attempts, pool.usage.failed) == (1, 2, 0)


def test_a_dead_server_is_passed_over_and_comes_back():
    clock = Clock()
    with servers(3, clock, breaker_failures=2, breaker_cooldown=30) as (pool, stubs):
        home = urls(pool, "image 0")[0]
        own = [route for route in (f"image {i}" for i in range(40)) if urls(pool, route)[0] == home]
        others = [route for route in (f"image {i}" for i in range(40)) if route not in own]
        stubs[home].script = [Answer(drop=True)]
        for route in own[:4]:
            assert pool.chat_sync(ASK, route=route).text == "yes"
        assert len(stubs[home].requests) == 2

        # Its routes move to their second server; the others stay where they were.
        before = {url: len(stub.requests) for url, stub in stubs.items()}
        pool.map_sync([ASK] * 40, routes=own + others)
        moved = [urls(pool, route)[1] for route in own] + [urls(pool, route)[0] for route in others]
        assert {url: len(stub.requests) - before[url] for url, stub in stubs.items()} == {
            url: moved.count(url) for url in stubs
        }

        stubs[home].script, clock.now = [completion("back")], 31.0
        assert [pool.chat_sync(ASK, route=route).text for route in own[:3]] == ["back"] * 3


@pytest.mark.parametrize("failure", [error(500), error(429)])
def test_other_failures_are_retried_where_they_happened(failure):
    with servers(2) as (pool, stubs):
        home, second = urls(pool, "image")
        stubs[home].script = [failure, completion("late")]
        assert pool.chat_sync(ASK, route="image").text == "late"
        assert (len(stubs[home].requests), len(stubs[second].requests)) == (2, 0)


def test_all_servers_dead_is_one_failure_that_names_them():
    with servers(2, max_retries=2) as (pool, stubs):
        for stub in stubs.values():
            stub.script = [Answer(drop=True)]
        reply = pool.chat_sync(ASK, route="image")
        assert reply.failure == Failure.server_error and all(url in reply.detail for url in stubs)
        # The last one left is retried as a single server would be.
        assert [len(stubs[url].requests) for url in urls(pool, "image")] == [1, 3]
        assert (pool.usage.calls, pool.usage.failures) == (1, {Failure.server_error: 1})


def test_the_identity_does_not_depend_on_routing():
    with servers(2) as (pool, stubs):
        replies = pool.map_sync([ASK] * 6, routes=[str(i) for i in range(6)])
        assert {reply.sent for reply in replies} == {pool.sent(ASK)}
        turned = LLMPool([Endpoint(base_url=url, model="m") for url in sorted(stubs, reverse=True)])
        assert turned.sent(ASK) == pool.sent(ASK)
        alone = [Endpoint(base_url=url, model="m") for url in stubs]
        assert len({pool.sent(ASK), LLM(alone[0]).sent(ASK), LLM(alone[1]).sent(ASK)}) == 3
        assert LLMPool(alone[:1]).sent(ASK) == LLM(alone[0]).sent(ASK)


def test_a_format_refused_by_one_server_is_not_sent_to_the_others():
    request = ChatRequest(ASK.messages, response_format={"type": "json_object"})
    with servers(3) as (pool, stubs):
        for stub in stubs.values():
            stub.reply = lambda body: error(400, "response_format") if "response_format" in body else completion("{}")
        replies = [pool.chat_sync(request, route=str(i)) for i in range(12)]
        assert {reply.format_used for reply in replies} == {"text"} and len({reply.sent for reply in replies}) == 1
        assert sum(len(stub.requests) for stub in stubs.values()) == 13


def test_a_wrong_key_stops_the_pool():
    with servers(2) as (pool, stubs):
        for stub in stubs.values():
            stub.script = [error(401, "denied")]
        with pytest.raises(EndpointError, match="denied"):
            pool.map_sync([ASK] * 10)


def test_connect_makes_what_is_needed():
    one, two = (Endpoint(base_url=f"http://{host}/v1", model="m") for host in "ab")
    assert isinstance(connect(one), LLM) and isinstance(connect([one]), LLM)
    pool = connect([one, two], seed=1)
    assert isinstance(pool, LLMPool) and [m.endpoint for m in pool.members] == [one, two]


def test_endpoints_that_make_no_pool_are_refused():
    one = Endpoint(base_url="http://a/v1", model="m")
    with pytest.raises(InputError, match="at least one"):
        connect([])
    with pytest.raises(InputError, match="http://a/v1 is given twice"):
        connect([one, one])
    with pytest.raises(InputError, match="field model differs"):
        connect([one, Endpoint(base_url="http://b/v1", model="n")])
    with pytest.raises(InputError, match="field price_prompt differs"):
        connect([one, Endpoint(base_url="http://b/v1", model="m", price_prompt=1.0)])
