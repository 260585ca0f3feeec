"""Helpers of the VLM judge's tests: a scripted server, and a judge that asks it without real waits."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import judges
from judges import JudgeRequest
from judges.vlm import Exemplar, RankExemplar, VLMJudge
from judges.vlm.questions import Questions
from judges.vlm.settings import Settings
from judges.vlm.showing import Shown, prepare
from judges.vlm.templates import Templates
from mmrubric.chat import Endpoint
from mmrubric.images import ImageOptions
from mmrubric.llm_pool import connect
from mmrubric.rubric import Criterion, Rubric
from mmrubric.store import Store
from tests.mmrubric.stub_server import Answer, Stub, completion, serve

RED, BLUE, GREEN = (np.full((8, 8, 3), colour, dtype=np.uint8) for colour in ((255, 0, 0), (0, 0, 255), (0, 255, 0)))


def rubric(*ids: str, prompt: str = "a red square", **fields: Any) -> Rubric:
    """Binary criteria whose text is 'there is <id>'."""
    return Rubric(prompt=prompt, criteria=[Criterion(id=id, text=f"there is {id}", **fields) for id in ids])


ONE = rubric("cat")
MIXED = Rubric(
    prompt="",
    criteria=[
        Criterion(id="cat", text="there is cat"),
        Criterion(id="sharp", text="Sharpness", scale="ordinal", anchors=["blurred", "soft", "sharp"]),
        Criterion(
            id="hue",
            text="Hue",
            scale="nominal",
            options=["red", "pink"],
            expected="red",
            extra={
                "required_elements": ["body", "wings"],
                "scoring_guide": {"red": "like blood"},
                "verification_cues": "at the middle",
                "theme": "SECRET",
            },
        ),
    ],
)


def judge_of(
    *stubs: Stub,
    store: Store | None = None,
    exemplars: list[Exemplar] | list[RankExemplar] | None = None,
    prompts: str = "vlm_v1",
    timeout: float = 30.0,
    max_retries: int = 3,
    **options: Any,
) -> VLMJudge:
    """A judge of the stubs whose waits between attempts take no time."""
    endpoints = [
        Endpoint(base_url=stub.base_url, model="m", timeout=timeout, max_retries=max_retries) for stub in stubs
    ]
    client = connect(endpoints, sleep=lambda seconds: asyncio.sleep(0))
    return VLMJudge(client, Settings(**options), Templates.load(prompts), exemplars or [], store)


def texts(body: dict[str, Any]) -> str:
    """Text of the question of a request: of its last user message that is no complaint about an answer."""
    turns = [_text(m["content"]) for m in body["messages"] if m["role"] == "user"]
    return next(turn for turn in reversed(turns) if not turn.startswith("This answer cannot be used"))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["type"] == "text")


def says(**fields: Any) -> Answer:
    """A reply that holds one JSON object."""
    return completion(json.dumps(fields))


def batch(*entries: tuple[str, str]) -> Answer:
    """A reply with a verdict for each (id, met)."""
    return says(verdicts=[{"id": id, "reason": f"seen {id}", "met": met} for id, met in entries])


def first_token(**shares: float) -> Answer:
    """A reply of one token with its alternatives."""
    top = [{"token": token, "logprob": math.log(share)} for token, share in shares.items()]
    return completion(top[0]["token"], "length", logprobs={"content": [{**top[0], "top_logprobs": top}]})


def truthful(yes: Callable[[str], bool]) -> Callable[[dict[str, Any]], Answer]:
    """A server that answers each 'there is X' of a question by `yes(X)`, as the question wants it."""

    def reply(body: dict[str, Any]) -> Answer:
        text = texts(body)
        if "logprobs" in body:
            holds = yes(_asked(text)[0])
            return first_token(**({"Yes": 0.9, "no": 0.06} if holds else {"no": 0.9, " yes": 0.06}))
        word = {True: "yes", False: "no"}
        if '"verdicts"' in text:
            return batch(*((id, word[yes(id)]) for id in _asked(text)))
        return says(reason="seen", met=word[yes(_asked(text)[0])])

    return reply


def _asked(text: str) -> list[str]:
    return re.findall(r"there is (\w+)", text)


def ask(*script: Answer, criteria: Rubric = ONE, candidate: Any = RED, reply: Any = None, **options: Any) -> Any:
    """Verdicts on one candidate, and the requests that it took."""
    with serve(Stub(*script, reply=reply)) as stub:
        judge = judge_of(stub, **options)
        [verdicts] = judge.score_sync([JudgeRequest(criteria, candidate, sample_id="s")])
        return verdicts, stub.requests


def ask_one(*script: Answer, **options: Any) -> Any:
    """`ask` with a rubric of one criterion: its verdict, and the requests."""
    [verdict], requests = ask(*script, **options)
    return verdict, requests


def questions(exemplars: Any = (), **options: Any) -> Questions:
    """The questions of a judge with these options."""
    return Questions(Settings(**options), Templates.load(), exemplars)


def shown(candidate: Any = RED, criteria: Rubric = ONE, **fields: Any) -> Shown:
    """What a judge is shown of a candidate."""
    return prepare(JudgeRequest(criteria, candidate, **fields), ImageOptions())


def judge_id(**options: Any) -> str:
    """Id of the judge that is built from these options."""
    return judges.build("vlm", **{"base_url": "http://a/v1", "model": "m", **options}).id
