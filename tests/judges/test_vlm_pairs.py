"""The VLM judge comparing two candidates: both orders, ties, inconsistency (JF17, JF60, JF61, TF33)."""

from __future__ import annotations

import pytest

from judges import JudgeRequest, PairRequest
from judges.vlm import RankExemplar
from mmrubric import preference
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.images import data_url
from mmrubric.judging import run_sync
from mmrubric.verdict import Failure
from tests.judges.vlm_stub import BLUE, GREEN, ONE, RED, judge_of, rubric, says, texts, truthful
from tests.mmrubric.stub_server import Stub, completion, error, serve

PAIR = PairRequest(ONE, "good text", "bad text")


def fair(body):
    """Ranks 'good' before 'bad' wherever they stand, and says a tie when both or neither are there."""
    text = texts(body)
    first, second = text.index("Text 1:"), text.index("Text 2:")
    good = ["good" in text[first:second], "good" in text[second:]]
    return says(reason="r", rank=[1, 1] if good[0] == good[1] else [1, 2] if good[0] else [2, 1])


def compare(*script, request=PAIR, reply=None, mode="joint_rank", **options):
    with serve(Stub(*script, reply=reply)) as stub:
        [verdict] = judge_of(stub, mode=mode, **options).compare_sync([request])
        return verdict, stub.requests


def test_both_orders_are_asked_and_agree_on_the_winner():
    verdict, requests = compare(reply=fair)
    assert verdict == PairVerdict.WIN_A and len(requests) == 2
    orders = sorted(texts(body).index("good text") < texts(body).index("bad text") for body in requests)
    assert orders == [False, True]
    assert compare(request=PAIR.swapped(), reply=fair)[0] == PairVerdict.WIN_B


def test_scores_are_asked_for_once_however_often_a_candidate_is_compared():
    texts_ = ["good text", "bad text", "worse text", "other text"]
    pairs = [PairRequest(ONE, a, b) for k, a in enumerate(texts_) for b in texts_[k + 1 :]]
    with serve(Stub(says(met="yes"))) as stub:
        verdicts = judge_of(stub, mode="per_criterion").compare_sync(pairs)
        assert len(verdicts) == 6 and len(stub.requests) == 4


def test_the_first_failure_of_each_kind_is_logged(caplog):
    with serve(Stub(error(400))) as stub:
        pairs = [PairRequest(ONE, f"x {k}", "y") for k in range(5)]
        assert set(judge_of(stub, mode="joint_rank").compare_sync(pairs)) == {PairVerdict.FAILED}
    assert [record.message.startswith("a comparison failed (server_error): ") for record in caplog.records] == [True]


def test_jf60_winner_tie_and_disagreement_are_three_outcomes():
    two = PairRequest(ONE, "one text", "other text")
    assert compare(reply=fair)[0] == PairVerdict.WIN_A
    assert compare(reply=fair, request=two)[0] == PairVerdict.TIE
    assert compare(says(rank=[1, 2]))[0] == PairVerdict.INCONSISTENT
    assert preference.advantages(PairVerdict.INCONSISTENT) == (0.0, 0.0)
    # a win in one order and a tie in the other disagree as well
    assert compare(says(rank=[1, 2]), says(rank=[1, 1]))[0] == PairVerdict.INCONSISTENT


def test_jf61_an_always_first_judge_gives_no_preference_and_its_bias_can_be_measured():
    with serve(Stub(says(reason="the first", rank=[1, 2]))) as stub:
        judge = judge_of(stub, mode="joint_rank")
        pairs = [PairRequest(ONE, f"text {k}", f"note {k}") for k in range(4)]
        assert set(judge.compare_sync(pairs)) == {PairVerdict.INCONSISTENT}
        forward, back = (judge_rank(judge, order) for order in (pairs, [pair.swapped() for pair in pairs]))
        consistent = [f.verdict == b.verdict.flipped() for f, b in zip(forward, back, strict=True)]
        first = [r.verdict == PairVerdict.WIN_A for r in (*forward, *back)]
    assert sum(consistent) == 0 and sum(first) / len(first) == 1.0
    assert forward[0].reason == "the first" and forward[0].cost.calls == 1


def judge_rank(judge, pairs):
    return run_sync(judge.rank(pairs))


@pytest.mark.parametrize("rank", [[2, 2], [1], [1, 2, 3], [3, 1], ["1", "2"], None])
def test_jf17_a_rank_that_is_none_is_asked_again_once_and_then_failed(rank):
    verdict, requests = compare(says(rank=rank))
    assert verdict == PairVerdict.FAILED and len(requests) == 4
    verdict, requests = compare(says(rank=rank), says(rank=[1, 1]), position="first")
    assert verdict == PairVerdict.TIE and len(requests) == 2


def test_jf14_one_failed_order_fails_the_pair():
    def half(body):
        text = texts(body)
        return fair(body) if text.index("good text") < text.index("bad text") else error(400, "no")

    assert compare(reply=half)[0] == PairVerdict.FAILED
    with serve(Stub(error(500))) as stub:
        [ranking] = judge_rank(judge_of(stub, mode="joint_rank"), [PAIR])
    assert (ranking.verdict, ranking.failure) == (PairVerdict.FAILED, Failure.server_error)
    assert ranking.cost.calls == 4


@pytest.mark.parametrize("text", ["[[A]] Image 1 is better", '{"rank": [1, 2]} {"rank": [2, 1]}'])
def test_jf11_prose_and_several_objects_choose_no_winner(text):
    assert compare(completion(text))[0] == PairVerdict.FAILED


def test_one_order_as_given_or_at_random_but_the_same_whoever_is_called_a():
    verdict, requests = compare(says(rank=[1, 2]), position="first")
    assert verdict == PairVerdict.WIN_A and len(requests) == 1
    pairs = [PairRequest(ONE, f"text {k}", f"note {k}") for k in range(12)]
    with serve(Stub(says(rank=[1, 2]))) as stub:
        judge = judge_of(stub, mode="joint_rank", position="random")
        forward = judge.compare_sync(pairs)
        assert len(stub.requests) == 12
        assert judge.compare_sync([pair.swapped() for pair in pairs]) == [v.flipped() for v in forward]
    assert set(forward) == {PairVerdict.WIN_A, PairVerdict.WIN_B}


def test_equal_candidates_tie_without_being_asked_about():
    same = PairRequest(ONE, RED, RED.copy(), sample_ids=("x", "y"))
    for mode in ("joint_rank", "batched"):
        verdict, requests = compare(reply=lambda body: error(500), request=same if mode == "joint_rank" else
                                    PairRequest(ONE, RED, RED.copy()), mode=mode)  # fmt: skip
        assert verdict == PairVerdict.TIE and requests == []


def test_an_edit_shows_its_source_first_and_never_ranks_it():
    verdict, requests = compare(
        says(rank=[1, 1]), request=PairRequest(ONE, RED, BLUE, source=(GREEN,)), position="first"
    )
    assert verdict == PairVerdict.TIE
    parts = requests[0]["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"] * 3 + ["text"]
    assert [part["text"] for part in parts[:-1:2]] == [
        "Source image, before the edit (shown for comparison only):",
        "Edited image 1:",
        "Edited image 2:",
    ]
    assert "edited by this instruction" in parts[-1]["text"]


@pytest.mark.parametrize("options", [{"mode": "joint_rank", "position": "both"}, {"mode": "per_criterion"}])
def test_both_orders_and_both_candidates_are_shown_all_sources(options):
    request = PairRequest(ONE, RED, BLUE, (GREEN, BLUE))
    answer = says(rank=[1, 1]) if options["mode"] == "joint_rank" else says(met="yes")
    verdict, requests = compare(reply=lambda body: answer, request=request, **options)
    assert verdict == PairVerdict.TIE and len(requests) == 2
    for parts in (body["messages"][-1]["content"] for body in requests):
        labels = [part["text"].partition(",")[0] for part in parts[0:4:2]]
        assert labels == ["Source image 1", "Source image 2"]
        assert [part["image_url"]["url"] for part in parts[1:4:2]] == [data_url(GREEN), data_url(BLUE)]


@pytest.mark.parametrize("options", [{}, {"mode": "batched"}, {"read": "logprob"}])
def test_other_modes_score_both_and_compare_the_scores(options):
    criteria = rubric("cat", "dog", "cup")

    def reply(body):
        good = "good text" in texts(body)
        return truthful(lambda id: id == "cat" or good)(body)

    options = {"mode": "per_criterion", **options}
    verdict, requests = compare(reply=reply, request=PairRequest(criteria, "bad text", "good text"), **options)
    assert verdict == PairVerdict.WIN_B and len(requests) == (2 if options["mode"] == "batched" else 6)
    assert compare(error(400), request=PairRequest(criteria, "x", "y"), **options)[0] == PairVerdict.FAILED


def test_joint_rank_does_not_score_and_the_others_do_not_rank():
    with serve(Stub(says(rank=[1, 2]))) as stub:
        with pytest.raises(InputError, match="ranks two candidates; call compare"):
            judge_of(stub, mode="joint_rank").score_sync([JudgeRequest(ONE, "x")])
        with pytest.raises(InputError, match="build it with mode joint_rank"):
            judge_rank(judge_of(stub), [PAIR])
        with pytest.raises(InputError, match="one candidate is a text"):
            judge_of(stub, mode="joint_rank").compare_sync([PairRequest(ONE, "x", RED)])
        assert stub.requests == []


def test_a_broken_picture_fails_its_pair_alone():
    broken = PairRequest(ONE, b"not a picture", RED, sample_ids=("a", "b"))
    with serve(Stub(says(rank=[1, 1]))) as stub:
        judge = judge_of(stub, mode="joint_rank")
        assert judge.compare_sync([broken, PairRequest(ONE, RED, BLUE)]) == [PairVerdict.FAILED, PairVerdict.TIE]
        [ranking] = judge_rank(judge, [broken])
    assert ranking.failure == Failure.bad_image


def test_worked_examples_come_before_the_question():
    example = RankExemplar(PairRequest(rubric("dog"), "a dog", "a log"), (1, 2), "the second has no dog")
    _, requests = compare(says(rank=[1, 1]), exemplars=[example], position="first")
    assert [m["role"] for m in requests[0]["messages"]] == ["system", "user", "assistant", "user"]
    assert requests[0]["messages"][2]["content"] == '{"reason": "the second has no dog", "rank": [1, 2]}'
