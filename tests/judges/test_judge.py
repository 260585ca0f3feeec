"""The judges of shapes as judges: protocol, ids, routing, failures, inputs."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import judges
from mmrubric import generators, images
from mmrubric.errors import InputError
from mmrubric.rubric import Anchor, Criterion, Rubric
from mmrubric.shapes import render
from tests.judges.pictures import cases, plain, rubric, scene

BOTH = ["shapes", "shapes_second"]
RED_CIRCLE = scene("white", ("circle", "red", 30, 30, 10.5))
PROMPT = "a large red circle on a white background"


def _png(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def _ask(name: str, picture: object, criteria: Rubric, sample_id: str | None = "s") -> list[judges.Verdict]:
    request = judges.JudgeRequest(rubric=criteria, candidate=picture, sample_id=sample_id)  # pyright: ignore[reportArgumentType]
    return judges.build(name).score_sync([request])[0]


def test_registry_lists_and_refuses():
    assert set(BOTH) <= set(judges.names())
    with pytest.raises(InputError, match=r"unknown judge 'shape'; known: .*shapes"):
        judges.build("shape")
    with pytest.raises(InputError, match=r"unknown option strict; known: none"):
        judges.build("shapes", strict=True)


@pytest.mark.parametrize("name", BOTH)
def test_protocol_and_versioned_id(name: str):
    judge = judges.build(name)
    assert isinstance(judge, judges.Judge) and judge.id.startswith(f"{name}/")
    assert judges.build("shapes").id != judges.build("shapes_second").id
    assert judges.images is images


@pytest.mark.parametrize("name", BOTH)
def test_all_criteria_of_a_true_picture_are_met_with_reasons(name: str):
    criteria = generators.build("shapes").generate_sync(PROMPT)
    verdicts = _ask(name, RED_CIRCLE, criteria)
    assert [v.criterion_id for v in verdicts] == [c.id for c in criteria.criteria]
    assert all(v.met == 1.0 and v.read == "rule" and v.sample_id == "s" and v.reason for v in verdicts)


def test_reasons_say_what_is_seen():
    picture = scene("black", ("circle", "red", 14, 14, 6), ("circle", "blue", 46, 20, 6))
    (verdict,) = _ask("shapes", picture, rubric("count", shape="circle", number=3))
    assert (verdict.met, verdict.reason) == (0.0, "2 circles seen: red, blue")
    (verdict,) = _ask("shapes", picture, rubric("nothing_else", shapes=["square"], word=False))
    assert (verdict.met, verdict.reason) == (0.0, "also seen: red circle, blue circle")
    (verdict,) = _ask("shapes", picture, rubric("object", shape="cross"))
    assert (verdict.met, verdict.reason) == (0.0, "0 crosses seen")


@pytest.mark.parametrize("name", BOTH)
def test_unknown_only_where_the_question_does_not_apply(name: str):
    (open_question,) = _ask(name, RED_CIRCLE, rubric("colour", shape="cross", colour="red", if_any=True))
    assert open_question.met is None and not open_question.applicable and open_question.failure is None
    (closed,) = _ask(name, RED_CIRCLE, rubric("colour", shape="cross", colour="red"))
    assert closed.met == 0.0 and closed.applicable


def test_expected_no_is_met_when_the_statement_is_false():
    criterion = Criterion(
        id="c",
        text="t",
        verifier="rule:shapes",
        expected="no",
        arguments={"check": "object", "shape": "cross"},
    )
    (verdict,) = _ask("shapes", RED_CIRCLE, Rubric(prompt="p", criteria=(criterion,)))
    assert verdict.met == 1.0


@pytest.mark.parametrize("name", BOTH)
def test_other_verifiers_scales_and_arguments_are_refused_before_any_work(name: str, monkeypatch):
    monkeypatch.setattr(images, "normalize", lambda *_: pytest.fail("a picture was read"))
    with pytest.raises(InputError, match=r"criterion 'c' asks for verifier 'vlm'.*rule:shapes"):
        _ask(name, RED_CIRCLE, rubric("object", verifier="vlm", shape="circle"))
    with pytest.raises(InputError, match=r"criterion 'c', arguments: unknown check 'colours'"):
        _ask(name, RED_CIRCLE, rubric("colours", shape="circle"))
    with pytest.raises(InputError, match=r"criterion 'c', arguments: .*'number'"):
        _ask(name, RED_CIRCLE, rubric("count", shape="circle"))
    ordinal = Criterion(
        id="o",
        text="t",
        scale="ordinal",
        anchors=(Anchor(text="bad"), Anchor(text="good")),
        verifier="rule:shapes",
        arguments={"check": "writing"},
    )
    with pytest.raises(InputError, match=r"criterion 'o' has the scale 'ordinal'"):
        _ask(name, RED_CIRCLE, Rubric(prompt="p", criteria=(ordinal,)))


def test_a_text_candidate_is_refused():
    with pytest.raises(InputError, match="candidate is a text"):
        _ask("shapes", "a red circle", rubric("object", shape="circle"))


@pytest.mark.parametrize("bad", [b"not a picture", np.zeros((20, 20, 3), np.uint8), np.zeros((64, 90, 3), np.uint8)])
@pytest.mark.parametrize("name", BOTH)
def test_bad_pictures_are_typed_failures_and_spare_the_others(name: str, bad: object):
    criteria = rubric("object", shape="circle")
    requests = [judges.JudgeRequest(criteria, p, sample_id=s) for s, p in (("bad", bad), ("good", RED_CIRCLE))]  # pyright: ignore[reportArgumentType]
    (broken,), (sound,) = judges.build(name).score_sync(requests)
    assert broken.met is None and broken.failure is judges.Failure.bad_image and broken.reason
    assert sound.met == 1.0


@pytest.mark.parametrize("size", [32, 96, 128, 512])
@pytest.mark.parametrize("name", BOTH)
def test_other_sizes_are_resized(name: str, size: int):
    large = Image.fromarray(RED_CIRCLE).resize((size, size), Image.Resampling.BICUBIC)
    criteria = generators.build("shapes").generate_sync(PROMPT)
    assert all(v.met == 1.0 for v in _ask(name, large, criteria))


@pytest.mark.parametrize("name", BOTH)
def test_array_pil_bytes_and_path_give_the_same_verdicts(name: str, tmp_path):
    criteria = generators.build("shapes").generate_sync("a small red circle on a white background")
    path = tmp_path / "picture.png"
    path.write_bytes(_png(RED_CIRCLE))
    inputs = [RED_CIRCLE, Image.fromarray(RED_CIRCLE), _png(RED_CIRCLE), path]
    answers = [_ask(name, picture, criteria, sample_id=None) for picture in inputs]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0].sample_id == images.content_hash(RED_CIRCLE)


@pytest.mark.parametrize("name", BOTH)
def test_async_sync_and_threads_agree(name: str):
    judge = judges.build(name)
    requests = [judges.JudgeRequest(c.rubric, render(c.scene), sample_id=str(k)) for k, c in enumerate(cases()[:24])]
    expected = judge.score_sync(requests)

    async def inside_a_loop() -> list[list[judges.Verdict]]:
        return [*(await judge.score(requests[:12])), *judge.score_sync(requests[12:])]

    assert asyncio.run(inside_a_loop()) == expected
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: judge.score_sync(requests), range(4)):
            assert answer == expected


def test_one_reading_for_all_requests_that_show_a_picture(monkeypatch):
    judge = judges.build("shapes")
    assert isinstance(judge, judges.ShapesJudge)
    numbers: list[int] = []
    reader = judge._reader

    def counted(pixels: np.ndarray):
        numbers.append(len(pixels))
        return reader(pixels)

    monkeypatch.setattr(judge, "_reader", counted)
    criteria = generators.build("shapes").generate_sync(PROMPT)
    request = judges.JudgeRequest(criteria, RED_CIRCLE, sample_id="a")
    judge.score_sync([request, request, judges.JudgeRequest(criteria, plain(), sample_id="b")])
    assert numbers == [2]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(BOTH), st.integers(1, 8))
def test_small_noise_changes_nothing(seed: int, name: str, amplitude: int):
    rng = np.random.default_rng(seed)
    start = seed % 290
    judge = judges.build(name)
    for case in cases()[start : start + 5]:
        picture = render(case.scene)
        noise = rng.integers(-amplitude, amplitude + 1, picture.shape)
        noisy = np.clip(picture.astype(int) + noise, 0, 255).astype(np.uint8)
        clean, disturbed = judge.score_sync(
            [judges.JudgeRequest(case.rubric, p, sample_id="s") for p in (picture, noisy)]
        )
        assert [v.met for v in clean] == [v.met for v in disturbed], case.spec.text


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(BOTH))
def test_order_of_criteria_and_of_requests_changes_nothing(data: st.DataObject, name: str):
    start = data.draw(st.integers(0, 290))
    drawn = cases()[start : start + 6]
    judge = judges.build(name)
    pictures = [render(c.scene) for c in drawn]
    plain_answer = judge.score_sync(
        [judges.JudgeRequest(c.rubric, p, sample_id="s") for c, p in zip(drawn, pictures, strict=True)]
    )
    order = data.draw(st.permutations(range(6)))
    requests = []
    for k in order:
        criteria = data.draw(st.permutations(drawn[k].rubric.criteria))
        shuffled = Rubric(prompt=drawn[k].spec.text, criteria=tuple(criteria))
        requests.append(judges.JudgeRequest(shuffled, pictures[k], sample_id="s"))
    for k, verdicts in zip(order, judge.score_sync(requests), strict=True):
        expected = {v.criterion_id: (v.met, v.reason) for v in plain_answer[k]}
        assert {v.criterion_id: (v.met, v.reason) for v in verdicts} == expected
