"""Fallback of `response_format`, remembered per endpoint (JF48), and the identity of what was really sent (JF43)."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from mmrubric.chat import ChatRequest, Endpoint, Message
from mmrubric.chat_errors import refused_format
from mmrubric.llm import LLM
from mmrubric.store import request_key
from mmrubric.verdict import Failure
from tests.mmrubric.stub_server import Clock, Stub, completion, error, serve


def schema(name):
    body = {"type": "object", "properties": {name: {"type": "string"}}}
    return {"type": "json_schema", "json_schema": {"name": name, "schema": body}}


ASK = ChatRequest((Message.of("user", "JSON, please."),), response_format=schema("met"))
LOOSE = replace(ASK, response_format={"type": "json_object"})
PLAIN = replace(ASK, response_format=None)

TYPE_REFUSALS = [
    (400, "This model does not support response_format of type json_schema", None),
    (400, "Invalid value: supported values are 'json_object' and 'text'.", "response_format.type"),
    (
        422,
        "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), 'msg': 'Input should be ...'}]",
        None,
    ),
    (400, "Structured output is disabled on this server", None),
]
SCHEMA_REFUSALS = [
    (400, "Invalid schema for response_format 'met': additionalProperties is required", None),
    (400, "The provided JSON schema contains features not supported by xgrammar.", None),
    (400, "Failed to compile the grammar: unknown format uri", None),
]
OTHER_REFUSALS = [
    (400, "temperature must be at most 2"),
    (400, "We could not parse the JSON body of your request."),
    (400, "This model's maximum context length is 2048 tokens"),
    (400, "'messages' must contain the word 'json' to use 'response_format' of type 'json_object'"),
    (
        422,
        "[{'loc': ('body', 'max_tokens'), 'msg': 'too large', 'input': {'response_format': {'type': 'json_schema'}}}]",
    ),
]


def kind(body):
    return body["response_format"]["type"] if "response_format" in body else "text"


def takes(*kinds, refusal=None):
    """A server that takes these formats only."""
    refusal = refusal or error(400, "response_format is not supported")
    return Stub(reply=lambda body: completion("{}") if kind(body) in kinds else refusal)


def client(stub, clock=None, **options):
    return LLM(Endpoint(base_url=stub.base_url, model="m", **options), sleep=clock or Clock())


@pytest.mark.parametrize(("status", "message", "param"), TYPE_REFUSALS)
def test_jf48_a_refused_format_falls_back_and_is_remembered(status, message, param):
    with serve(takes("json_object", refusal=error(status, message, param=param))) as stub:
        clock = Clock()
        llm = client(stub, clock, max_retries=0)
        first, second = llm.chat_sync(ASK), llm.chat_sync(ASK)
    assert (first.text, first.format_used, first.cost.calls) == ("{}", "json_object", 2)
    assert (second.text, second.format_used, second.cost.calls) == ("{}", "json_object", 1)
    assert [kind(body) for body in stub.requests] == ["json_schema", "json_object", "json_object"]
    # Not a retry: none was allowed, and nobody waited.
    assert clock.waits == [] and llm.usage.failed == 0


def test_jf48_down_to_no_format_at_all():
    with serve(takes("text")) as stub:
        llm = client(stub, max_retries=0)
        replies = [llm.chat_sync(request) for request in (ASK, ASK, LOOSE, PLAIN)]
    assert [reply.format_used for reply in replies] == ["text"] * 4
    assert [kind(body) for body in stub.requests] == ["json_schema", "json_object", "text", "text", "text", "text"]


def test_jf48_each_type_is_remembered_by_itself():
    # Some servers take json_schema but not json_object.
    with serve(takes("json_schema", "text")) as stub:
        llm = client(stub)
        assert [llm.chat_sync(r).format_used for r in (LOOSE, ASK, LOOSE)] == ["text", "json_schema", "text"]


@pytest.mark.parametrize(("status", "message"), OTHER_REFUSALS)
def test_jf48_other_refusals_change_nothing(status, message):
    with serve(Stub(error(status, message))) as stub:
        llm = client(stub)
        reply = llm.chat_sync(ASK)
        assert (reply.failure, reply.format_used, len(stub.requests)) == (Failure.server_error, "json_schema", 1)
        stub.script = [completion("{}")]
        assert llm.chat_sync(ASK).format_used == "json_schema"


def test_jf48_a_500_that_names_the_format_is_retried_as_it_was():
    with serve(Stub(error(500, "response_format crashed"), completion("{}"))) as stub:
        assert client(stub).chat_sync(ASK).format_used == "json_schema"


@pytest.mark.parametrize(("status", "message", "param"), SCHEMA_REFUSALS)
def test_a_schema_that_cannot_be_compiled_costs_no_other_schema(status, message, param):
    def reply(body):
        bad = kind(body) == "json_schema" and body["response_format"]["json_schema"]["name"] == "met"
        return error(status, message, param=param) if bad else completion("{}")

    with serve(Stub(reply=reply)) as stub:
        llm = client(stub)
        other = replace(ASK, response_format=schema("other"))
        used = [llm.chat_sync(request).format_used for request in (ASK, other, ASK)]
    assert used == ["json_object", "json_schema", "json_object"] and len(stub.requests) == 4


def test_jf48_many_calls_in_flight_fall_only_as_far_as_needed(caplog):
    def reply(body):
        answer = completion("{}") if kind(body) == "json_object" else error(400, "json_schema is not supported")
        answer.delay = 0.1
        return answer

    with serve(Stub(reply=reply)) as stub, caplog.at_level(logging.WARNING, logger="mmrubric"):
        replies = client(stub, concurrency=16, max_retries=0).map_sync([ASK] * 40)
    assert {(reply.text, reply.format_used) for reply in replies} == {("{}", "json_object")}
    kinds = [kind(body) for body in stub.requests]
    # Only what was in flight before the first refusal came back is refused; nothing went on to text.
    assert 1 <= kinds.count("json_schema") <= 16 and kinds.count("json_object") == 40 and "text" not in kinds
    assert len([record for record in caplog.records if "response_format" in record.message]) == 1


def test_jf43_the_identity_is_that_of_the_request_really_sent():
    with serve(takes("json_object")) as stub:
        llm = client(stub)
        asked = llm.sent(ASK)
        reply = llm.chat_sync(ASK)
        # Known now, so that the next call looks under the right key; a new process has to try the forms.
        assert reply.sent == llm.sent(ASK) == llm.sent(LOOSE) != asked
        assert request_key(reply.sent) != request_key(asked)
        fresh = client(stub)
        assert fresh.sent(ASK) == asked
        assert fresh.sent_forms(ASK) == (asked, reply.sent, llm.sent(PLAIN)) and len(set(fresh.sent_forms(ASK))) == 3
        assert fresh.sent_forms(PLAIN) == (llm.sent(PLAIN),)


def test_a_format_of_another_kind_is_sent_as_it_is():
    with serve(Stub(error(400, "response_format is not supported"))) as stub:
        reply = client(stub).chat_sync(replace(ASK, response_format={"type": "structural_tag"}))
    assert (reply.failure, reply.format_used, len(stub.requests)) == (Failure.server_error, "structural_tag", 1)


def test_what_a_refusal_is_about():
    assert {refused_format(status, message, param or "") for status, message, param in TYPE_REFUSALS} == {"type"}
    assert {refused_format(status, message, param or "") for status, message, param in SCHEMA_REFUSALS} == {"schema"}
    assert {refused_format(status, message) for status, message in OTHER_REFUSALS} == {""}
    assert refused_format(500, "response_format") == ""
