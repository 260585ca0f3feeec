import asyncio
import json

import pytest

import judges
from mmrubric import aggregate
from mmrubric.errors import RunError
from mmrubric.judging import SyncMixin
from mmrubric.rubric import Criterion, Rubric
from tests.mmrubric.stub_server import Stub, completion, error, serve
from trainers.text_reward import RubricReward, text_of

MEAN = aggregate.build("mean")


def rubric_of(prompt: str, columns: dict) -> Rubric:
    words = columns.get("words") or ["polite", "short"]
    return Rubric(prompt=prompt, criteria=[Criterion(id=word, text=f"It is {word}.") for word in words])


def reply(body: dict):
    """Yes where the answer contains the criterion's word; the server fails on answers that say so."""
    text = body["messages"][-1]["content"]
    answer = text.split("Text:\n")[1].split("\nStatement:")[0]
    if "outage" in answer:
        return error(500)
    word = text.split("Statement: It is ")[1].split(".")[0]
    return completion(json.dumps({"reason": "", "met": "yes" if word in answer else "no"}))


@pytest.fixture(scope="module")
def judge():
    with serve(Stub(reply=reply)) as stub:
        yield judges.build("vlm", base_url=stub.base_url, model="m", max_retries=0)


def test_jf58_one_reward_per_completion_and_none_where_nothing_is_known(judge):
    reward = RubricReward(judge, rubric_of, MEAN)
    given = reward(
        ["hi"] * 4, ["polite", "polite and short", "rude", "outage"], completion_ids=[[1]] * 4, trainer_state=1
    )
    assert given == [0.5, 1.0, 0.0, None]


def test_jf58_both_call_styles_and_chats(judge):
    reward = RubricReward(judge, rubric_of, MEAN)
    prompts = [[{"role": "user", "content": "hi"}]] * 2
    answers = [
        [{"role": "assistant", "content": "short"}],
        [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}],
    ]
    assert asyncio.run(reward.aio(prompts, answers)) == reward(prompts, answers) == [0.5, 0.0]
    assert text_of(prompts[0]) == "hi"


def test_tf38_the_reward_has_a_name_to_log_it_by(judge):
    assert RubricReward(judge, rubric_of, MEAN).__name__ == "rubric_reward"


def test_columns_reach_the_rubric_of_their_own_row(judge):
    reward = RubricReward(judge, rubric_of, MEAN)
    assert reward(["a", "b"], ["polite", "polite"], words=[["polite"], ["short"]]) == [1.0, 0.0]


def test_jf58_a_judge_that_answers_too_little_is_an_error_and_not_broadcast():
    class One(SyncMixin):
        id = "one/1"

        async def score(self, requests):
            return []

    with pytest.raises(RunError, match="2 requests, 0 answers"):
        RubricReward(One(), rubric_of, MEAN)(["a", "b"], ["c", "d"])
    with pytest.raises(RunError, match="1 prompts for 2 completions"):
        RubricReward(One(), rubric_of, MEAN)(["a"], ["c", "d"])
