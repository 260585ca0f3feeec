"""The VLM judge and its verdict store: nothing is asked twice, nothing stale comes back (JF21, JF40 to JF44)."""

from __future__ import annotations

import asyncio

import pytest
from PIL import Image

from judges import JudgeRequest, PairRequest
from judges.vlm.questions import Questions
from judges.vlm.settings import Settings
from judges.vlm.templates import Templates
from mmrubric.chat import Endpoint
from mmrubric.group import PairVerdict
from mmrubric.llm_pool import connect
from mmrubric.rubric import Criterion, Rubric
from mmrubric.store import Store, request_key
from mmrubric.verdict import Failure
from tests.judges.vlm_stub import (
    BLUE,
    GREEN,
    ONE,
    RED,
    batch,
    first_token,
    judge_of,
    rubric,
    says,
    shown,
    texts,
    truthful,
)
from tests.mmrubric.stub_server import Stub, completion, error, serve

REQUEST = JudgeRequest(ONE, RED, sample_id="s")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "v.db") as store:
        yield store


@pytest.fixture
def server():
    """One address for all runs of a test: answers belong to the address that gave them."""
    with serve(Stub(error(500))) as stub:
        yield stub


@pytest.fixture
def ask(server, store):
    """Verdicts on one candidate by a new judge, and how many requests that took."""

    def one(*script, request=REQUEST, reply=None, **options):
        server.script, server.reply, server.requests = list(script), reply, []
        [verdicts] = judge_of(server, store=store, **options).score_sync([request])
        return verdicts, len(server.requests)

    return one


@pytest.mark.parametrize("options", [{}, {"mode": "batched"}, {"read": "logprob"}])
def test_a_finished_run_asks_nothing_and_says_so(ask, options):
    request = JudgeRequest(rubric("cat", "dog"), RED, sample_id="s")
    first, asked = ask(reply=truthful(lambda id: id == "cat"), request=request, **options)
    again, asked_again = ask(error(500), request=request, **options)
    assert asked == (1 if options.get("mode") == "batched" else 2) and asked_again == 0
    assert [(v.criterion_id, v.met, v.reason, v.read) for v in again] == [
        (v.criterion_id, v.met, v.reason, v.read) for v in first
    ]
    assert all(v.cost.cached and v.cost.calls == 0 for v in again) and not any(v.cost.cached for v in first)


def test_jf21_an_answer_that_cannot_be_read_is_not_kept(ask, store):
    assert ask(completion("?"))[0][0].failure == Failure.unparsable and len(store) == 0
    assert ask(error(500))[0][0].failure == Failure.server_error and len(store) == 0
    assert ask(says(met="yes"))[0][0].met == 1.0 and len(store) == 1


def test_jf40_other_servers_models_prompts_and_options_do_not_share_answers(ask, store):
    ask(says(met="yes"))
    with serve(Stub(says(met="no"))) as stub:
        judge = judge_of(stub, store=store)
        assert judge.score_sync([REQUEST])[0][0].met == 0.0
    for options in ({"temperature": 0.5}, {"max_tokens": 100}, {"extra_body": {"top_k": 1}}, {"repeat": 1}):
        assert ask(says(met="no"), **options)[0][0].met == 0.0, options


@pytest.mark.parametrize(
    ("sources", "prompts", "key"),
    [
        ((), "vlm_v1", "3c8c8fa3fbaad0f9e49424560d64c732202a50cad38070d46e36beb2c34949ba"),
        ((BLUE,), "vlm_v1", "9560476b1c7543d60431b84fce43b74b85f33372fcd64f8d04d9b0ee26cfd061"),
        ((), "shapes_v1", "f9ff343a19a3a22b105c0a4b3a39bd4fe941b05da8f34e348ffc92bd9eae58ed"),
        ((BLUE,), "shapes_v1", "fa0dd0ad93ed2b30836c37c201192f61d75ac0a9ef76d55a9cd90c99bfe27b8c"),
    ],
)
def test_the_key_of_a_question_stays_what_it_was_in_stores_of_earlier_versions(sources, prompts, key):
    """Computed when a request had one source at most. Another key loses the answers of every store that is there."""
    client = connect([Endpoint(base_url="http://a/v1", model="m")])
    asked = Questions(Settings(), Templates.load(prompts), ()).one(shown(RED, source=sources), ONE.criteria[0])
    assert request_key(client.sent(asked), 0) == key


def test_sources_are_part_of_a_question_and_so_is_their_order(ask):
    for sources in ((), (BLUE,), (GREEN,), (BLUE, GREEN), (GREEN, BLUE), (BLUE, BLUE)):
        request = JudgeRequest(ONE, RED, sources)
        assert ask(says(met="yes"), request=request)[1] == 1 and ask(error(500), request=request)[1] == 0


def test_jf41_pictures_count_by_their_pixels_and_names_do_not(ask, tmp_path):
    for folder, picture in (("a", RED), ("b", BLUE)):
        (tmp_path / folder).mkdir()
        Image.fromarray(picture).save(tmp_path / folder / "same.png")
    assert ask(says(met="yes"), request=JudgeRequest(ONE, tmp_path / "a" / "same.png"))[0][0].met == 1.0
    assert ask(says(met="no"), request=JudgeRequest(ONE, tmp_path / "b" / "same.png"))[0][0].met == 0.0
    # the same pixels under another name, sample id and criterion id: the stored answer, under the names of now
    other = Rubric(prompt=ONE.prompt, criteria=[Criterion(id="kitty", text="there is cat")])
    [verdict], asked = ask(error(500), request=JudgeRequest(other, RED, sample_id="t"))
    assert (verdict.sample_id, verdict.criterion_id, verdict.met, asked) == ("t", "kitty", 1.0, 0)


def test_jf42_after_an_edit_only_the_edited_criterion_is_asked_again(ask):
    ask(says(met="yes"), request=JudgeRequest(rubric("cat", "dog"), RED))
    edited = rubric("cat", "dog").with_changed("dog", text="there is a dog")
    verdicts, asked = ask(says(met="no"), request=JudgeRequest(edited, RED))
    assert [v.met for v in verdicts] == [1.0, 0.0] and asked == 1


@pytest.mark.parametrize(
    ("answer", "before", "after", "met"),
    [
        (says(met="yes"), {}, {"expected": "no"}, 0.0),
        (says(level=2), {"scale": "ordinal", "anchors": ("a", "b", "c")},
         {"anchors": ("a", {"text": "b", "value": 0.9}, "c")}, 0.9),
    ],
)  # fmt: skip
def test_jf42_what_an_answer_is_worth_is_not_part_of_the_stored_answer(ask, answer, before, after, met):
    criterion = {"id": "cat", "text": "there is cat", **before}
    old, new = (Rubric.parse({"prompt": "", "criteria": [fields]}) for fields in (criterion, criterion | after))
    assert ask(answer, request=JudgeRequest(old, RED))[0][0].met != met
    [verdict], asked = ask(error(500), request=JudgeRequest(new, RED))
    assert (verdict.met, asked) == (met, 0)


def test_jf43_an_answer_to_a_second_chance_stands_under_that_request_and_is_found_again(ask, store):
    for first in (completion("?"), completion('{"met": tr', "length")):
        text = f"text {first.body['choices'][0]['message']['content']}"
        request = JudgeRequest(ONE, text)
        before = len(store)
        [verdict], asked = ask(first, says(met="yes"), request=request)
        assert (verdict.met, asked, len(store)) == (1.0, 2, before + 2)
        [verdict], asked = ask(error(500), request=request)
        assert (verdict.met, asked, verdict.cost.cached) == (1.0, 0, True)


def test_jf43_an_answer_in_a_plainer_format_is_found_by_a_run_that_does_not_know_of_it(ask):
    def picky(body):
        return error(400, "response_format is not supported") if "response_format" in body else says(met="yes")

    assert ask(reply=picky)[1] == 3
    assert ask(error(500))[1] == 0


def test_jf44_failed_questions_are_asked_again_and_the_good_part_of_a_batch_is_not(ask):
    request = JudgeRequest(rubric("cat", "dog", "cup"), RED)
    partial = batch(("cat", "yes"), ("cup", "no"))
    verdicts, asked = ask(partial, says(verdicts=[]), request=request, mode="batched")
    assert [v.met for v in verdicts] == [1.0, None, 0.0] and asked == 2
    sent = []

    def reply(body):
        sent.append(texts(body))
        return batch(("dog", "yes"))

    verdicts, asked = ask(reply=reply, request=request, mode="batched")
    assert [v.met for v in verdicts] == [1.0, 1.0, 0.0] and asked == 1
    assert "there is dog" in sent[0] and "there is cat" not in sent[0]
    assert ask(error(500), request=request, mode="batched")[1] == 0


def test_a_stricter_reader_asks_again(ask):
    unsure = first_token(yes=0.6, no=0.2, It=0.2)
    assert ask(unsure, read="logprob", off_mass=0.3)[0][0].met == pytest.approx(0.75)
    verdicts, asked = ask(unsure, read="logprob")
    assert (verdicts[0].failure, asked) == (Failure.unparsable, 1)
    assert ask(error(500), read="logprob", off_mass=0.3)[1] == 0


def test_jf59_repeats_are_asked_and_kept_apart(ask):
    for repeat, met in ((0, "yes"), (1, "no")):
        assert ask(says(met=met), repeat=repeat)[1] == 1
    assert [ask(error(500), repeat=k)[0][0].met for k in (0, 1)] == [1.0, 0.0]


def test_ranks_are_kept_for_each_order(server, store):
    request = PairRequest(ONE, "a text", "b text")
    for answer, expected in ((says(rank=[1, 1]), 2), (error(500), 2)):
        server.script = [answer]
        assert judge_of(server, store=store, mode="joint_rank").compare_sync([request]) == [PairVerdict.TIE]
        assert len(server.requests) == expected


def test_cancelled_work_keeps_the_finished_verdicts(ask, server, store):
    hang = says(met="yes")
    hang.delay = 30.0
    hanging = []

    def reply(body):
        if "there is slow" not in texts(body):
            return says(met="yes")
        hanging.append(body)
        return hang

    criteria = rubric("cat", "dog", "slow")

    async def cancelled(judge):
        work = asyncio.ensure_future(judge.score([JudgeRequest(criteria, RED)]))
        while len(store) < 2 or not hanging:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    server.reply = reply
    asyncio.run(asyncio.wait_for(cancelled(judge_of(server, store=store)), 60))
    assert len(store) == 2
    verdicts, asked = ask(says(met="no"), request=JudgeRequest(criteria, RED))
    assert [v.met for v in verdicts] == [1.0, 1.0, 0.0] and asked == 1
