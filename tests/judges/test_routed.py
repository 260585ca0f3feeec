"""The router: who judges what, at the same time, joined by id; pairs; what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import judges
from judges import ocr, routed
from judges.ocr import Line, OcrJudge
from mmrubric import PairVerdict
from mmrubric.errors import InputError, RunError
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import ScoreTable
from mmrubric.store import Store
from mmrubric.verdict import Failure, Verdict


@dataclass
class Bright(judges.SyncMixin):
    """A judge of criteria for a VLM: says yes to everything about pictures that are more white than black."""

    id: str = "bright/1"
    asked: list[list[str]] = field(default_factory=list)
    depends: list[tuple[str, ...]] = field(default_factory=list)
    seen: list[str | None] = field(default_factory=list)
    sources: list[tuple[object, ...]] = field(default_factory=list)

    async def score(self, requests: Sequence[judges.JudgeRequest]) -> list[list[Verdict]]:
        await asyncio.sleep(0)
        self.asked += [list(request.rubric.ids) for request in requests]
        self.depends += [criterion.depends_on for request in requests for criterion in request.rubric.criteria]
        self.seen += [request.sample_id for request in requests]
        self.sources += [request.sources for request in requests]
        return [self._row(request) for request in requests]

    def _row(self, request: judges.JudgeRequest) -> list[Verdict]:
        try:
            bright = judges.images.normalize(request.candidate).convert("L").resize((1, 1)).tobytes()[0] > 127
        except InputError as error:
            return [
                Verdict(str(request.sample_id), c.id, None, failure=Failure.bad_image, reason=str(error))
                for c in request.rubric.criteria
            ]
        # In reverse: joins go by id and never by position.
        return [
            Verdict(str(request.sample_id), c.id, float(bright), reason="looked", read="json")
            for c in reversed(request.rubric.criteria)
        ]


class Reader:
    """Reads OPEN in bright pictures."""

    id = "reader"

    def read(self, picture: Image.Image) -> list[Line]:
        return [Line("OPEN", 0.9, 0, 0, 9)] if np.asarray(picture).mean() > 127 else []


RUBRIC = Rubric(
    prompt="p",
    criteria=[
        Criterion(id="sign", text='A sign "OPEN"', verifier="ocr", depends_on=("nice",)),
        Criterion(id="nice", text="It looks nice"),
        Criterion(id="light", text="Light", verifier="rule:brightness", arguments={"min": 50.0}),
        Criterion(id="calm", text="Calm", depends_on=("nice",), weight=2.0),
        Criterion(id="blank", text="Blank", verifier="rule:blank", weight=-1.0),
    ],
)
WHITE, BLACK = Image.new("RGB", (16, 16), "white"), Image.new("RGB", (16, 16), "black")


def build(**parts: object) -> judges.Judge:
    return judges.build("routed", **{"vlm": Bright(), "ocr": OcrJudge(Reader()), **parts})


def test_each_criterion_goes_to_its_verifier_and_comes_back_in_rubric_order():
    vlm = Bright()
    judge = build(vlm=vlm)
    requests = [judges.JudgeRequest(RUBRIC, p, sample_id=s) for s, p in (("w", WHITE), ("b", BLACK))]
    white, black = judge.score_sync(requests)
    assert [v.criterion_id for v in white] == [v.criterion_id for v in black] == list(RUBRIC.ids)
    assert [v.met for v in white] == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert [v.met for v in black] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert {v.sample_id for v in white} == {"w"} and vlm.seen == ["w", "b"]
    assert vlm.asked == [["nice", "calm"]] * 2
    assert [v.read for v in white] == ["ocr", "json", "rule", "json", "rule"]
    ScoreTable.from_verdicts(RUBRIC, ["w", "b"], [white, black])  # joins without complaint


def test_each_verdict_says_who_judged_it():
    (row,) = build().score_sync([judges.JudgeRequest(RUBRIC, WHITE)])
    assert [v.reason.rpartition("[")[2] for v in row] == [
        "ocr/1:reader:0.5]", "bright/1]", "rules/1]", "bright/1]", "rules/1]",
    ]  # fmt: skip
    assert row[1].reason == "looked [bright/1]"


def test_a_share_keeps_only_the_dependencies_that_it_holds():
    vlm = Bright()
    build(vlm=vlm).score_sync([judges.JudgeRequest(RUBRIC, WHITE)])
    assert vlm.depends == [(), ("nice",)]


def test_requests_of_several_rubrics_and_a_route_that_only_some_need():
    only_rules = Rubric(prompt="q", criteria=RUBRIC.criteria[2:3])
    vlm = Bright()
    rows = build(vlm=vlm).score_sync(
        [judges.JudgeRequest(r, p, sample_id=str(k)) for k, (r, p) in enumerate([(only_rules, BLACK), (RUBRIC, WHITE)])]
    )
    assert [[v.criterion_id for v in row] for row in rows] == [["light"], list(RUBRIC.ids)]
    assert rows[0][0].met == 0.0 and vlm.seen == ["1"]
    assert build().score_sync([]) == []


def test_a_bad_picture_fails_in_every_route_and_alone():
    bad, good = build().score_sync([judges.JudgeRequest(RUBRIC, p, sample_id="s") for p in (b"no", WHITE)])
    assert {v.failure for v in bad} == {Failure.bad_image} and all(v.met is None for v in bad)
    assert all(v.met == 1.0 for v in good)


@pytest.mark.parametrize("waiting", ["vlm", "ocr"])
def test_routes_work_at_the_same_time(waiting: str):
    barrier = asyncio.Event()

    class Waits(Bright):
        async def score(self, requests: Sequence[judges.JudgeRequest]) -> list[list[Verdict]]:
            await asyncio.wait_for(barrier.wait(), timeout=60)
            return await super().score(requests)

    class Opens(Bright):
        async def score(self, requests: Sequence[judges.JudgeRequest]) -> list[list[Verdict]]:
            barrier.set()
            return await super().score(requests)

    parts = {name: Waits(name) if name == waiting else Opens(name) for name in ("vlm", "ocr")}
    (row,) = asyncio.run(build(**parts).score([judges.JudgeRequest(RUBRIC, WHITE)]))
    assert all(v.met == 1.0 for v in row)


def test_a_criterion_without_a_judge_is_refused_before_any_work():
    vlm = Bright()
    judge = build(vlm=vlm, ocr=None)
    with pytest.raises(InputError, match=r"'sign' asks for verifier 'ocr'.*pip install mmrubric\[ocr\]"):
        judge.score_sync([judges.JudgeRequest(RUBRIC, WHITE)])
    with pytest.raises(InputError, match=r"'nice' asks for verifier 'vlm'.*give routed vlm="):
        build(vlm=None).score_sync([judges.JudgeRequest(RUBRIC.without("sign"), WHITE)])
    clip = Rubric(prompt="p", criteria=[Criterion(id="c", text="t", verifier="clip"), RUBRIC.criteria[1]])
    with pytest.raises(InputError, match=r"'c' asks for verifier 'clip'.*give routed clip="):
        build(vlm=vlm).score_sync([judges.JudgeRequest(clip, WHITE)])
    assert vlm.asked == []


def test_arguments_of_one_route_are_checked_before_another_starts():
    vlm = Bright()
    wrong = RUBRIC.with_changed("light", arguments={"min": 300})
    with pytest.raises(InputError, match="criterion 'light', arguments of 'rule:brightness'"):
        build(vlm=vlm).score_sync([judges.JudgeRequest(wrong, WHITE)])
    with pytest.raises(InputError, match="the candidate is a text"):
        build(vlm=vlm).score_sync([judges.JudgeRequest(RUBRIC, "a text")])
    assert vlm.asked == []


def test_id_is_composed_of_the_parts():
    parts = "ocr=ocr/1:reader:0.5, rules=rules/1, shapes=shapes/1, shapes_edit=shapes_edit/1, vlm=bright/1"
    assert build().id == f"routed/1({parts})"
    assert build(vlm=Bright("other/2")).id != build().id
    assert isinstance(build(), judges.Judge) and isinstance(build(), judges.PairJudge)


def test_shapes_have_their_own_route():
    assert [routed.route_of(v) for v in ("vlm", "ocr", "clip", "rule:shapes", "rule:shapes2")] == [
        "vlm", "ocr", "clip", "shapes", "rules",
    ]  # fmt: skip
    white = {"check": "background", "colour": "white"}
    rubric = Rubric(
        prompt="p",
        criteria=[
            Criterion(id="bg", text="White ground", verifier="rule:shapes", arguments=white),
            Criterion(id="blank", text="Blank", verifier="rule:blank"),
        ],
    )
    (row,) = judges.build("routed", ocr=None).score_sync([judges.JudgeRequest(rubric, WHITE.resize((64, 64)))])
    assert [v.met for v in row] == [1.0, 1.0] and row[0].reason.endswith("[shapes/1]")


@pytest.mark.parametrize("wrong", ["few", "ids"])
def test_a_judge_that_answers_something_else_is_an_error(wrong: str):
    class Wrong(Bright):
        async def score(self, requests: Sequence[judges.JudgeRequest]) -> list[list[Verdict]]:
            rows = await super().score(requests)
            return [] if wrong == "few" else [row[1:] for row in rows]

    message = "1 requests, 0 answers" if wrong == "few" else r"asked about \['calm', 'nice'\], answered \['nice'\]"
    with pytest.raises(RunError, match=f"judge bright/1: {message}"):
        build(vlm=Wrong()).score_sync([judges.JudgeRequest(RUBRIC, WHITE)])


def test_compare_by_the_scores_of_both():
    plain = RUBRIC.without("blank")
    judge = build()
    pairs = [judges.PairRequest(plain, a, b) for a, b in ((WHITE, BLACK), (BLACK, WHITE), (WHITE, WHITE))]
    broken = judges.PairRequest(plain, WHITE, b"no", sample_ids=("x", "y"))
    assert judge.compare_sync([*pairs, broken]) == [  # pyright: ignore[reportAttributeAccessIssue]
        PairVerdict.WIN_A, PairVerdict.WIN_B, PairVerdict.TIE, PairVerdict.FAILED,
    ]  # fmt: skip
    looking = Bright()
    build(vlm=looking).compare_sync([judges.PairRequest(plain, WHITE, BLACK, (b"one", b"two"))])  # pyright: ignore[reportAttributeAccessIssue]
    assert looking.sources == [(b"one", b"two")] * 2
    # Soft comparison with a margin that the difference of 1 does not exceed
    loose = build(compare={"binarize": False, "margin": 1.0})
    assert loose.compare_sync(pairs[:1]) == [PairVerdict.TIE]  # pyright: ignore[reportAttributeAccessIssue]


def test_wrong_options():
    with pytest.raises(InputError, match="vlm must be a judge or a mapping of options, got 'http"):
        build(vlm="http://127.0.0.1:8000/v1")
    with pytest.raises(InputError, match="unknown option colour; known: threads"):
        build(rules={"colour": "red"})
    with pytest.raises(InputError, match="option of compare: unknown value 'margins'"):
        build(compare={"margins": 1})
    with pytest.raises(InputError, match="margin: give one when binarize is false"):
        build(compare={"binarize": False})
    with pytest.raises(InputError, match="dependencies: unknown value 'all'"):
        build(compare={"dependencies": "all"})


def test_ocr_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routed, "find_spec", lambda name: None)
    without = judges.build("routed")
    assert "ocr=" not in without.id
    monkeypatch.setattr(routed, "find_spec", lambda name: True)
    monkeypatch.setattr(ocr, "find_spec", lambda name: True)
    monkeypatch.setattr(ocr, "version", lambda name: "9.9")
    assert "ocr=ocr/1:rapidocr-9.9:0.5" in judges.build("routed").id


def test_the_store_reaches_the_parts_built_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ocr.READERS, "rapidocr", Reader)
    path = tmp_path / "answers.sqlite"
    judge = judges.build("routed", vlm=Bright(), ocr={"threads": 1}, store=path)
    judge.score_sync([judges.JudgeRequest(RUBRIC, WHITE)])
    with Store(path) as store:
        assert len(store) == 1
        with pytest.raises(InputError, match="no part keeps answers in a store"):
            build(store=store)
