"""The VLM judge scoring candidates on a scripted server: the wire, scales, servers, groundings."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from PIL import Image

import judges
from judges import JudgeRequest
from judges.vlm import Exemplar
from mmrubric.prompt import Grounding
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import ScoreTable
from tests.judges.vlm_stub import (
    BLUE,
    ONE,
    RED,
    ask,
    ask_one,
    first_token,
    judge_of,
    rubric,
    says,
    texts,
    truthful,
)
from tests.mmrubric.stub_server import Stub, serve


def test_built_by_name_asks_and_reads_json():
    with serve(Stub(says(reason="it sits there", met="yes"))) as stub:
        judge = judges.build("vlm", base_url=stub.base_url, model="m", mode="per_criterion", read="json")
        assert isinstance(judge, judges.Judge) and isinstance(judge, judges.PairJudge)
        [[verdict]] = judge.score_sync([JudgeRequest(ONE, RED, sample_id="s")])
    assert (verdict.sample_id, verdict.criterion_id, verdict.met, verdict.read) == ("s", "cat", 1.0, "json")
    assert verdict.reason == "it sits there" and verdict.failure is None
    assert (verdict.cost.calls, verdict.cost.prompt_tokens, verdict.cost.completion_tokens) == (1, 10, 2)
    [sent] = stub.requests
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("m", 0.0, 512) and "seed" not in sent
    schema = sent["response_format"]["json_schema"]["schema"]
    # the reason is declared first, so that the verdict follows from it
    assert list(schema["properties"]) == ["reason", "met"] and schema["additionalProperties"] is False
    assert schema["properties"]["met"] == {"type": "string", "enum": ["yes", "no", "unknown"]}


def test_one_token_is_asked_without_constraints_and_read_as_a_probability():
    verdict, [sent] = ask_one(first_token(Yes=0.6, no=0.3, It=0.1), read="logprob")
    assert verdict.met == pytest.approx(0.6 / 0.9) and verdict.read == "logprob"
    assert (sent["max_tokens"], sent["logprobs"], sent["top_logprobs"]) == (1, True, 20)
    assert "response_format" not in sent and "structured_outputs" not in sent
    assert verdict.reason == "P(yes) 0.667, P(no) 0.333, elsewhere 0.1"


@pytest.mark.parametrize("options", [{}, {"read": "logprob"}, {"mode": "batched"}])
def test_every_way_of_asking_finds_the_truth(options):
    criteria = Rubric(
        prompt="x",
        criteria=[
            Criterion(id="cat", text="there is cat"),
            Criterion(id="dog", text="there is dog", weight=-2.0),
            Criterion(id="cup", text="there is cup", expected="no"),
        ],
    )
    verdicts, requests = ask(criteria=criteria, reply=truthful(lambda id: id == "cat"), **options)
    assert [v.criterion_id for v in verdicts] == ["cat", "dog", "cup"]
    assert [round(v.met) for v in verdicts] == [1, 0, 1]
    table = ScoreTable.from_verdicts(criteria, ["s"], verdicts)
    assert (table.passed == 1.0).all()
    assert len(requests) == (1 if options.get("mode") == "batched" else 3)
    assert sum(v.cost.calls for v in verdicts) == len(requests)


def test_ordinal_and_nominal_scales_in_each_way():
    criteria = Rubric(
        prompt="",
        criteria=[
            Criterion(id="sharp", text="Sharpness", scale="ordinal", anchors=["blurred", "soft", "sharp"]),
            Criterion(id="hue", text="Hue", scale="nominal", options=["red", "pink"], expected="red"),
        ],
    )

    def written(body):
        return says(reason="", level=2) if "Sharpness" in texts(body) else says(reason="", label="pink")

    def probable(body):
        # .5 x .2 + 1 x .8 = .9; red is code A
        return first_token(**({"2": 0.2, "3": 0.8} if "Sharpness" in texts(body) else {"A": 0.75, "B": 0.25}))

    both = says(verdicts=[{"id": "hue", "label": "red"}, {"id": "sharp", "reason": "x", "level": 3}])
    assert [v.met for v in ask(criteria=criteria, reply=written)[0]] == [0.5, 0.0]
    assert [v.met for v in ask(criteria=criteria, reply=probable, read="logprob")[0]] == pytest.approx([0.9, 0.75])
    assert [v.met for v in ask(both, criteria=criteria, mode="batched")[0]] == [1.0, 1.0]


def test_unknown_means_does_not_apply_and_is_no_failure():
    verdict, _ = ask_one(says(reason="no cat here", met="unknown"))
    assert (verdict.met, verdict.applicable, verdict.failure) == (None, False, None)


def test_jf50_sync_calls_work_from_anywhere_and_more_than_once():
    with serve(Stub(says(met="yes"))) as stub:
        judge = judge_of(stub)
        request = JudgeRequest(ONE, RED)

        async def inside():
            return judge.score_sync([request]), await judge.score([request])

        assert [v.met for [[v]] in asyncio.run(inside())] == [1.0, 1.0]
        assert judge.score_sync([request, request])[1][0].met == 1.0


def test_jf52_a_thousand_questions_stay_within_the_concurrency():
    def reply(body):
        answer = says(met="yes")
        answer.delay = 0.001
        return answer

    with serve(Stub(reply=reply)) as stub:
        judge = judges.build("vlm", base_url=stub.base_url, model="m", concurrency=4)
        many = rubric(*(f"c{k}" for k in range(20)))
        rows = judge.score_sync([JudgeRequest(many, f"text {k}") for k in range(10)])
        assert all(v.met == 1.0 for row in rows for v in row) and len(stub.requests) == 200
        assert stub.most_in_flight <= 4


def test_the_samples_of_a_group_may_share_a_source_that_is_not_read_yet(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "s.png")
    source = Image.open(tmp_path / "s.png")
    with serve(Stub(says(met="yes"))) as stub:
        rows = judge_of(stub).score_sync([JudgeRequest(ONE, RED, source=(source,), sample_id=str(k)) for k in range(8)])
        sent = {body["messages"][-1]["content"][1]["image_url"]["url"] for body in stub.requests}
    assert all(row[0].met == 1.0 for row in rows) and len(sent) == 1


def test_empty_in_empty_out():
    with serve(Stub(says(met="yes"))) as stub:
        judge = judge_of(stub)
        assert judge.score_sync([]) == [] and judge.compare_sync([]) == [] and stub.requests == []


def test_equal_pictures_go_to_the_same_of_several_servers():
    with serve(Stub(says(met="yes"))) as one, serve(Stub(says(met="yes"))) as two:
        judge = judge_of(one, two)
        # The ports are random, and so is the split: of a few pictures all might go to one server.
        shades = [np.full((8, 8, 3), k, dtype=np.uint8) for k in range(32)]
        judge.score_sync([JudgeRequest(rubric("a", "b", "c"), shade) for shade in shades])

        def seen(stub):
            return {r["messages"][-1]["content"][1]["image_url"]["url"] for r in stub.requests}

        assert seen(one) and seen(two) and not seen(one) & seen(two)
        # a busy machine may drop a connection, and what went through it is sent again
        assert judge.usage.calls == 96 <= len(one.requests) + len(two.requests) <= judge.usage.attempts


def test_grounding_and_exemplars_reach_the_judge():
    shown = Exemplar(JudgeRequest(rubric("dog"), BLUE), {"dog": "no"}, {"dog": "all is blue"})
    with serve(Stub(says(met="yes"))) as stub:
        judge = judge_of(stub, exemplars=[shown])
        request = JudgeRequest(ONE, RED, grounding=Grounding(image=BLUE, passage="The cat is called Sentinel."))
        judge.score_sync([request])
        [sent] = stub.requests
    system, example, answer, question = sent["messages"]
    assert [m["role"] for m in sent["messages"]] == ["system", "user", "assistant", "user"]
    assert "there is dog" in json.dumps(example) and answer["content"] == '{"reason": "all is blue", "met": "no"}'
    assert [part["type"] for part in question["content"]] == ["text", "image_url", "text", "image_url", "text"]
    assert "Reference image" in question["content"][0]["text"]
    assert "Sentinel" in question["content"][-1]["text"] and "Sentinel" not in json.dumps(system)
