"""Worked examples of the VLM judge: their turns, their file, their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from judges import JudgeRequest, PairRequest
from judges.vlm import Exemplar, RankExemplar
from judges.vlm.exemplars import load
from mmrubric.errors import InputError
from tests.judges.vlm_stub import MIXED, RED, judge_id, questions, rubric, shown


def test_worked_examples_answer_in_the_form_of_their_mode():
    request = JudgeRequest(MIXED, "text")
    example = Exemplar(request, {"sharp": 2, "cat": "yes"}, {"cat": "whiskers"})
    cat = rubric("cat").criteria[0]
    turns = questions([example]).one(shown(), cat).messages[1:-1]
    assert [json.loads(turn.parts[0].text) for turn in turns[1::2]] == [
        {"reason": "whiskers", "met": "yes"},
        {"reason": "", "level": 2},
    ]
    turns = questions([example], read="logprob").one(shown(), cat).messages[1:-1]
    assert [turn.parts[0].text for turn in turns[1::2]] == ["yes", "2"]
    [_, answer] = questions([example], mode="batched").batch(shown(), [cat]).messages[1:-1]
    assert [entry["id"] for entry in json.loads(answer.parts[0].text)["verdicts"]] == ["cat", "sharp"]
    with pytest.raises(InputError, match="exemplar 0: criterion 'cat': answer 'unknown' cannot be given"):
        questions([Exemplar(request, {"cat": "unknown"})], read="logprob")
    with pytest.raises(InputError, match="exemplar 0: candidate: "):
        questions([Exemplar(JudgeRequest(MIXED, b"x", sample_id="s"), {"cat": "no"})])


def test_bad_worked_examples_are_refused():
    request = JudgeRequest(MIXED, "text")
    for answers, message in (({}, "empty"), ({"dog": "yes"}, "no criterion 'dog'"), ({"sharp": 4}, "none of"),
                             ({"sharp": True}, "none of"), ({"cat": "perhaps"}, "none of")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            Exemplar(request, answers)
    with pytest.raises(InputError, match="have no answer"):
        Exemplar(request, {"cat": "yes"}, {"hue": "x"})
    with pytest.raises(InputError, match="rank"):
        RankExemplar(PairRequest(MIXED, "x", "y"), (2, 2))


def test_worked_examples_from_a_file(tmp_path: Path):
    Image.fromarray(RED).save(tmp_path / "red.png")
    plain = {"prompt": "p", "criteria": [{"id": "cat", "text": "there is cat"}]}
    lines = [
        {"rubric": plain, "image": "red.png", "source": "red.png", "answers": {"cat": "no"}, "reasons": {"cat": "r"}},
        {"rubric": plain, "text": "red.png", "answers": {"cat": "yes"}},
        {"rubric": plain, "texts": ["x", "y"], "rank": [2, 1], "reason": "r"},
    ]
    path = tmp_path / "e.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    image, text, rank = load(path)
    assert image.request.candidate == tmp_path / "red.png" == image.request.sources[0]
    assert text.request.candidate == "red.png" and text.answers == {"cat": "yes"}
    assert rank.rank == (2, 1) and (rank.request.a, rank.request.b) == ("x", "y")
    scored = tmp_path / "s.jsonl"
    scored.write_text(json.dumps(lines[0]), encoding="utf-8")
    assert judge_id(exemplars=scored) == judge_id(exemplars=[image])
    several = {**lines[0], "sources": ["a.png", "b.png"]}
    del several["source"]
    path.write_text(json.dumps(several), encoding="utf-8")
    assert load(path)[0].request.sources == (tmp_path / "a.png", tmp_path / "b.png")
    for line, message in (
        ({**lines[0], "sources": ["a.png"]}, "source or sources, not both"),
        ({**several, "sources": "a.png"}, "sources must be a list of paths, got 'a.png'"),
        ({"rubric": plain, "image": "none.png", "answers": {"cat": "no"}}, r"none\.png"),
        ({"rubric": plain, "answers": {"cat": "no"}}, "needs either image or text"),
        ({"rubric": plain, "text": "x"}, "needs answers"),
        ({"rubric": plain, "text": "x", "answers": {"cat": "no"}, "weight": 1}, "unknown fields"),
        ({"rubric": plain, "texts": ["x"], "rank": [1, 2]}, "list of two"),
        ({"rubric": plain, "text": "x", "answers": ["no"]}, "answers must be of type dict"),
        ({"rubric": {"prompt": "p", "criteria": []}, "text": "x", "answers": {"cat": "no"}}, "rubric"),
        (["x"], "JSON object"),
    ):
        path.write_text("\n" + json.dumps(line), encoding="utf-8")
        with pytest.raises(InputError, match=rf"e\.jsonl:2: .*{message}"):
            load(path)
    with pytest.raises(InputError, match=r"no\.jsonl cannot be read"):
        judge_id(exemplars=tmp_path / "no.jsonl")
