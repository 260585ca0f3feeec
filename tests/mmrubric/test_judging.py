"""Judge protocols, requests, and sync calls from anywhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mmrubric import Criterion, InputError, PairVerdict, Rubric, Verdict
from mmrubric.judging import (
    Judge,
    JudgeRequest,
    PairJudge,
    PairRequest,
    SyncMixin,
    background_loop,
    candidate_id,
    run_sync,
)
from mmrubric.prompt import Prompt

RUBRIC = Rubric(prompt="p", criteria=[Criterion(id="long", text="The text has more than 3 letters")])


class LengthJudge(SyncMixin):
    """Judges texts by their length."""

    id = "length-1"

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        await asyncio.sleep(0)
        return [
            [Verdict(str(r.sample_id), c.id, float(len(str(r.candidate)) > 3)) for c in r.rubric.criteria]
            for r in requests
        ]

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        await asyncio.sleep(0)
        return [
            PairVerdict.TIE
            if r.identical
            else PairVerdict.WIN_A
            if len(str(r.a)) > len(str(r.b))
            else PairVerdict.WIN_B
            for r in requests
        ]


def test_protocols_are_structural() -> None:
    judge = LengthJudge()
    assert isinstance(judge, Judge) and isinstance(judge, PairJudge)
    assert not isinstance(object(), Judge)


def test_sync_twins_equal_the_coroutines_also_inside_a_running_loop() -> None:
    judge = LengthJudge()
    requests = [JudgeRequest(RUBRIC, text) for text in ("ab", "abcdef")]
    pairs = [PairRequest(RUBRIC, "ab", "abcdef"), PairRequest(RUBRIC, "x", "x")]

    async def inside() -> None:
        assert judge.score_sync(requests) == await judge.score(requests)
        assert judge.compare_sync(pairs) == await judge.compare(pairs)

    assert [[v.met for v in verdicts] for verdicts in judge.score_sync(requests)] == [[0.0], [1.0]]
    assert judge.compare_sync(pairs) == [PairVerdict.WIN_B, PairVerdict.TIE]
    asyncio.run(inside())
    asyncio.run(inside())


def test_one_loop_serves_every_thread() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def here() -> None:
        loops.append(asyncio.get_running_loop())

    threads = [threading.Thread(target=lambda: run_sync(here())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loops == [background_loop()] * 4


def test_errors_of_the_coroutine_reach_the_caller() -> None:
    async def broken() -> None:
        raise InputError("no such image")

    with pytest.raises(InputError, match="no such image"):
        run_sync(broken())


def test_a_sync_call_from_the_judging_loop_is_an_error_and_no_deadlock() -> None:
    judge = LengthJudge()

    async def nested() -> None:
        judge.score_sync([])

    with pytest.raises(RuntimeError, match="await the async method"):
        run_sync(nested())


def test_sample_id_defaults_to_the_content() -> None:
    assert JudgeRequest(RUBRIC, "abc").sample_id == candidate_id("abc") != candidate_id("abd")
    assert JudgeRequest(RUBRIC, "abc", sample_id="s1").sample_id == "s1"
    red, same, blue = (np.full((64, 64, 3), (r, 0, b), dtype=np.uint8) for r, b in ((255, 0), (255, 0), (0, 255)))
    assert JudgeRequest(RUBRIC, red).sample_id == JudgeRequest(RUBRIC, same).sample_id
    assert JudgeRequest(RUBRIC, red).sample_id != JudgeRequest(RUBRIC, blue).sample_id
    pair = PairRequest(RUBRIC, "abc", "abd")
    assert not pair.identical and pair.swapped().sample_ids == (candidate_id("abd"), candidate_id("abc"))


def test_requests_are_checked() -> None:
    with pytest.raises(InputError, match="field rubric must be a Rubric, got str"):
        JudgeRequest("rubric", "abc")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="field candidate is missing"):
        JudgeRequest(RUBRIC, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="field b is missing"):
        PairRequest(RUBRIC, "abc", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="judge request: field sources holds None"):
        JudgeRequest(RUBRIC, "abc", [None])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pair request: field sources holds None"):
        PairRequest(RUBRIC, "abc", "abd", [None])  # type: ignore[arg-type]
    one = np.zeros((8, 8, 3), np.uint8)
    for sources, message in ((one, "sequence of images, got ndarray"), (b"png", "got bytes"), ([None], "holds None")):
        with pytest.raises(InputError, match=f"prompt 'p': field sources .*{message}"):
            Prompt("p", "abc", sources=sources)  # type: ignore[arg-type]


@pytest.mark.parametrize(("source", "count"), [(None, 0), (b"png", 1), ([b"png"], 1), ((b"a", b"b"), 2), ([], 0)])
def test_a_request_takes_no_source_one_or_several(source: Any, count: int) -> None:
    assert len(JudgeRequest(RUBRIC, "abc", source=source).sources) == count
    assert len(PairRequest(RUBRIC, a="abc", b="abd", source=source).swapped().sources) == count
    picture = np.zeros((8, 8, 3), np.uint8)
    assert JudgeRequest(RUBRIC, "abc", picture).sources[0] is picture


def test_a_request_about_a_sample_has_all_sources_of_its_prompt() -> None:
    request = JudgeRequest.of_sample(Prompt("p", "swap", sources=(b"one", b"two")), RUBRIC, "abc", "s1")
    assert request == JudgeRequest(RUBRIC, "abc", (b"one", b"two"), sample_id="s1")
    pair = PairRequest(RUBRIC, "abc", "abd", (b"one", b"two"))
    assert pair.swapped() == PairRequest(RUBRIC, "abd", "abc", (b"one", b"two"))
