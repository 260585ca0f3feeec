"""Strict JSON from a model, with a bounded number of second chances (JF01 to JF10, JF18, JF43, JF51)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.chat import ChatRequest, Endpoint, Message
from mmrubric.llm import LLM
from mmrubric.llm_asking import Asker, Reading
from mmrubric.llm_json import BadAnswer, ask_json, parse_object
from mmrubric.store import Store
from mmrubric.verdict import Failure
from tests.mmrubric.stub_server import Clock, Stub, completion, error, serve

ASK = ChatRequest((Message.of("system", "Judge."), Message.of("user", "Is it red?")), max_tokens=50)
GOOD = completion('{"met": "yes"}')


def met(found):
    if set(found) != {"met"}:
        raise BadAnswer(f"fields {sorted(found)}, expected met", Failure.missing)
    if found["met"] not in ("yes", "no"):
        raise ValueError(f"met is {found['met']!r}, expected yes or no")
    return found["met"]


def ask(*script, validate=met, max_retries=0, **options):
    with serve(Stub(*script)) as stub:
        llm = LLM(Endpoint(base_url=stub.base_url, model="m", max_retries=max_retries), sleep=Clock())
        return asyncio.run(ask_json(llm, ASK, validate, **options)), llm, stub


def test_a_good_answer_is_asked_for_once():
    result, llm, stub = ask(GOOD)
    assert (result.value, result.failure, result.calls, len(stub.requests)) == ("yes", None, 1, 1)
    assert result.sent == llm.sent(ASK) == result.reply.sent and result.found == {"met": "yes"}


@pytest.mark.parametrize("text", ['{"met": "yes', '{"a": 1, "b"', '{"met"}', "{", '{"met": "yes",}', "{'met': 'yes'}"])
def test_jf05_half_an_object_is_asked_for_once_more_with_the_error(text):
    result, _, stub = ask(completion(text), GOOD)
    assert (result.value, result.calls) == ("yes", 2)
    first, second = (body["messages"] for body in stub.requests)
    assert second[:2] == first and [turn["role"] for turn in second[2:]] == ["assistant", "user"]
    assert second[2]["content"] == text and "cannot be used: " in second[3]["content"]
    assert [body["max_tokens"] for body in stub.requests] == [50, 50]
    result, _, stub = ask(completion(text))
    assert (result.value, result.failure, len(stub.requests)) == (None, Failure.unparsable, 2) and result.detail


@pytest.mark.parametrize("re_asks", [0, 1, 3])
def test_jf51_garbage_for_ever_ends(re_asks):
    result, llm, stub = ask(completion("garbage"), re_asks=re_asks)
    assert result.failure == Failure.unparsable and "no JSON object" in result.detail
    assert len(stub.requests) == re_asks + 1 == result.calls
    # What failed was paid for: 10 + 2 tokens per call
    assert (result.cost.calls, result.cost.prompt_tokens) == (re_asks + 1, 10 * (re_asks + 1))
    assert llm.usage.prompt_tokens == result.cost.prompt_tokens


def test_jf08_nothing_is_invented_when_both_answers_are_prose():
    outcomes = {(r.value, r.failure) for r, _, _ in (ask(completion("I cannot help with that")) for _ in range(3))}
    assert outcomes == {(None, Failure.unparsable)}


def test_jf01_an_answer_cut_off_gets_a_larger_budget():
    cut = completion('{"met": tr', "length")
    result, _, stub = ask(cut, GOOD)
    assert (result.value, result.cost.completion_tokens) == ("yes", 4)
    assert [body["max_tokens"] for body in stub.requests] == [50, 200]
    assert stub.requests[0]["messages"] == stub.requests[1]["messages"]
    result, _, stub = ask(cut)
    assert (result.value, result.failure, len(stub.requests)) == (None, Failure.truncated, 2)


def test_jf02_endless_blanks_are_truncation():
    blanks = completion('{"met":' + "\n" * 4000, "length")
    result, _, stub = ask(blanks)
    assert (result.failure, len(stub.requests)) == (Failure.truncated, 2)
    # The same request would end in the same blanks, so the model is told; the blanks are not sent back.
    told = stub.requests[1]["messages"]
    assert told[2]["content"] == '{"met":' and "blanks" in told[3]["content"]


@pytest.mark.parametrize(
    "refusal", [completion(None, message={"refusal": "I will not."}), completion("{}", "content_filter")]
)
def test_jf06_a_refusal_is_typed_and_not_asked_again(refusal):
    result, _, stub = ask(refusal)
    assert (result.value, result.failure, len(stub.requests)) == (None, Failure.refused, 1)


def test_an_empty_answer_is_asked_for_again():
    result, _, stub = ask(completion(None), GOOD)
    assert result.value == "yes" and stub.requests[1]["messages"][2]["content"] == "(no answer)"


def test_a_bad_answer_that_cannot_be_sent_back_is_sent_back_in_part():
    result, _, stub = ask(completion('{"met": "\ud83d"}'), GOOD)
    assert result.value == "yes" and stub.requests[1]["messages"][2]["content"] == '{"met": "?"}'


@pytest.mark.parametrize(
    ("failing", "failure"),
    [
        (error(500), Failure.server_error),
        (error(429), Failure.rate_limited),
        (error(400, "bad image"), Failure.bad_image),
    ],
)
def test_failures_of_the_server_are_not_asked_again(failing, failure):
    result, _, stub = ask(failing, max_retries=1)
    assert result.failure == failure and result.calls == 1 and len(stub.requests) in (1, 2)


def test_jf10_the_validator_sets_the_type_of_the_failure():
    def level(found):
        if type(found.get("level")) is not int or not 1 <= found["level"] <= 5:
            raise BadAnswer(f"level {found.get('level')!r} is not an integer from 1 to 5", Failure.out_of_range)
        return found["level"]

    for bad in ("-3", "11", '"9/10"', "true", "4.0", "null"):
        result, _, stub = ask(completion(f'{{"level": {bad}}}'), validate=level)
        assert (result.value, result.failure, len(stub.requests)) == (None, Failure.out_of_range, 2), bad
        assert "from 1 to 5" in result.detail and "from 1 to 5" in stub.requests[1]["messages"][3]["content"]
    assert ask(completion('{"level": NaN}'), validate=level)[0].failure == Failure.unparsable
    assert ask(completion('{"level": 4}'), validate=level)[0].value == 4


def test_what_could_be_read_is_kept_when_the_second_answer_is_worse():
    result, _, _ = ask(completion('{"met": "yes", "extra": 1}'), completion("sorry"))
    assert (result.failure, result.found) == (Failure.unparsable, {"met": "yes", "extra": 1})


def test_jf43_the_key_is_that_of_the_request_that_got_the_answer():
    result, llm, _ = ask(completion("{}"), GOOD)
    assert result.sent == result.reply.sent != llm.sent(ASK)
    assert "fields [], expected met" in result.sent


def test_the_deadline_covers_second_chances():
    slow = completion("garbage")
    slow.delay = 0.5
    result, _, stub = ask(slow, re_asks=1000, deadline=2.0)
    # 2.0 / 0.5 = 4 answers at most
    assert result.failure == Failure.timeout and len(stub.requests) <= 4


def test_jf07_one_fence_or_prose_shell_is_taken_off():
    for text in (
        'Sure:\n```json\n{"met": "yes"}\n```',
        '```\n{"met": "yes"}\n```',
        '{"met": "yes"}',
        '\ufeff  {"met": "yes"}\n\n',
        'The answer is {"met": "yes"}. Anything else?',
    ):
        assert parse_object(text) == {"met": "yes"}
    assert ask(completion('Sure:\n```json\n{"met": "yes"}\n```'))[0].value == "yes"


def test_jf18_doubled_backslashes_and_blanks_in_a_fence():
    rubric = {"text": "a  b\\\\s  c\\n\n  {braces} and ``` fences"}
    assert parse_object(f"```json  \n\n  {json.dumps(rubric, indent=4)}  \n\n```") == rubric


def test_jf09_nothing_inside_strings_is_repaired():
    reason = "see note: http://a.b, it's {not: json} // no comment, True"
    assert parse_object(f"Here: {json.dumps({'reason': reason})}") == {"reason": reason}
    with pytest.raises(ValueError):
        parse_object('{reason: "see note: http://a.b"}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON object"),
        ("yes", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('[{"met": "yes"}]', "is a list"),
        ('{"met": "no"} or rather {"met": "yes"}', "more than one"),
        ('{"met": "no"}}', "more than one"),
        ('{"met": "no", "met": "yes"}', "'met' is given twice"),
        ('{"a": {"b": 1, "b": 1}}', "'b' is given twice"),
        ('{"level": NaN}', "NaN"),
        ('{"level": -Infinity}', "-Infinity"),
        ('{"level": 1e999}', "1e999 is too large"),
        ('{"reason": "\\ud800"}', "surrogates"),
        ('{"reason": "a\nb"}', "control character"),
        ('{"a": ' * 100_000, "nested"),
        ("{" + '"a": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_what_is_not_one_strict_object_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_object(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
PROSE = st.text(st.characters(exclude_characters="{}[", exclude_categories=["Cs"]))


@settings(deadline=None, max_examples=50)
@given(found=st.dictionaries(st.text(), JSON), before=PROSE, after=PROSE, indent=st.sampled_from([None, 2]))
def test_any_object_in_any_prose_is_read_as_it_is(found, before, after, indent):
    assert parse_object(before + json.dumps(found, indent=indent) + after) == found


@pytest.fixture
def asked(tmp_path):
    """What a new client gets past one store and one address, and how many requests that took."""
    request = replace(ASK, response_format={"type": "json_object"})
    with serve(Stub(error(500))) as stub, Store(tmp_path / "s.sqlite") as store:

        def one(*script, least):
            def read(found):
                if found["n"] < least:
                    raise BadAnswer(f"n is {found['n']}")
                return Reading(found["n"], found)

            stub.script, stub.requests = list(script), []
            llm = LLM(Endpoint(base_url=stub.base_url, model="m", max_retries=0), sleep=Clock())
            answer = asyncio.run(Asker(llm, store).json(request, read, None, re_asks=1))
            return answer.value, len(stub.requests)

        yield one


ONE, TWO, NO = completion('{"n": 1}'), completion('{"n": 2}'), error(400, "response_format is not supported")


@pytest.mark.parametrize(("script", "requests"), [([TWO], 1), ([ONE, TWO], 2), ([NO, TWO], 2)])
def test_a_stored_answer_that_cannot_be_used_gives_way_to_one_that_can(asked, script, requests):
    assert asked(ONE, least=1) == (1, 1)
    assert asked(*script, least=2) == (2, requests)
    assert asked(error(500), least=2) == (2, 0), "asked once, in whatever form it was answered"


def test_a_stored_answer_stays_while_nothing_better_comes(asked):
    assert asked(ONE, least=1) == (1, 1)
    assert asked(ONE, ONE, least=2) == (None, 2)
    assert asked(error(500), least=1) == (1, 0)
