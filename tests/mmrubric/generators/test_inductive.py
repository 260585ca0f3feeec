"""Induction from exemplars with scripted answers and judges (Writer-R1 / IRG, arXiv 2603.15061)."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from mmrubric import generators
from mmrubric.errors import InputError
from mmrubric.generators.inductive import Exemplar
from mmrubric.generators.llm import GenerationFailed
from mmrubric.judging import JudgeRequest, SyncMixin
from mmrubric.store import Store
from mmrubric.verdict import Failure, Verdict
from tests.mmrubric.generators.scripted import Scripted, pictures_of, step_of, text_of

PROMPT = "Write a short letter of thanks to a nurse."
TEXTS = ["Thanks for the care you gave.", "Dear nurse, you held my hand all night.", "Thank you. You are great. Bye."]
REQUIREMENTS = {
    "explicit": [{"requirement": "It thanks a nurse.", "quote": "thanks to a nurse"}],
    "implicit": ["It is warm."],
}
LEVELS = [f"Warmth of degree {name} is felt." for name in ("zero", "one", "two", "three", "four")]


def cluster(criterion, *members, conflicts=()):
    return {"criterion": criterion, "category": "tone", "members": list(members), "conflicts_with": list(conflicts)}


GOOD = {"clusters": [cluster("The thanks name a deed.", "e1", "o1", "o3"), cluster("The tone is warm.", "i1", "o2")]}


def quote_of(request):
    """Words of the first text that a request shows."""
    return re.search(r"<candidate-\w+>\n(.+)\n", text_of(request))[1].split(".")[0]


def in_order(request):
    """The letters of shuffled levels in the order of LEVELS."""
    lines = re.findall(r"^([a-j]): (.+)$", text_of(request), re.MULTILINE)
    return [letter for letter, text in sorted(lines, key=lambda line: LEVELS.index(line[1]))]


def answers(clusters=GOOD, levels=LEVELS, order=in_order, better="A"):
    def answer(request):
        step = step_of(request)
        if step == "recover":
            return REQUIREMENTS
        if step == "compare":
            quote = "top left" if pictures_of(request) else quote_of(request)
            return {"observations": [{"observation": "One names a deed.", "better": better, "quote": quote}]}
        if step == "describe":
            return {"observations": [{"observation": "It is warm.", "effect": "good", "quote": quote_of(request)}]}
        if step == "cluster":
            return clusters
        return {"levels": list(levels)} if step == "levels" else {"order": order(request)}

    return answer


def make(script=None, **options):
    client = Scripted(script or answers())
    return client, generators.build("inductive", client=client, **options)


@dataclass
class StubJudge(SyncMixin):
    """Gives each criterion, by id, a value per exemplar; None = a failure. Keeps what it saw."""

    values: dict[str, list[float | None]]
    seen: list[JudgeRequest] = field(default_factory=list)
    id: str = "stub/1"

    async def score(self, requests):
        self.seen += requests
        return [
            [
                Verdict(request.sample_id, c.id, met, failure=Failure.timeout if met is None else None)
                for c in request.rubric.criteria
                for met in [self.values[c.id][number]]
            ]
            for number, request in enumerate(requests)
        ]


def test_exemplars_become_ordinal_criteria_weighted_by_support():
    client, inductive = make()
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS)
    assert [c.text for c in rubric.criteria] == ["The thanks name a deed.", "The tone is warm."]
    # 3 of 5 members speak for the first, 2 for the second.
    assert [c.weight for c in rubric.criteria] == pytest.approx([0.6, 0.4])
    deed = rubric.criteria[0]
    assert deed.scale == "ordinal" and [anchor.text for anchor in deed.anchors] == LEVELS and deed.extra["support"] == 3
    # 3 exemplars give 3 pairs.
    asked = Counter(map(step_of, client.asked))
    assert asked == {"recover": 1, "compare": 3, "cluster": 1, "levels": 2, "order": 2}
    assert any("no judge" in note for note in rubric.provenance.notes) and rubric.provenance.verified_by == ""
    assert len(rubric.provenance.extra["exemplars"]) == 3


def test_five_levels_are_quarters_and_ten_are_ninths():
    _, inductive = make()
    five = inductive.generate_sync(PROMPT, exemplars=TEXTS).criteria[0]
    assert [five.met_of(level) for level in range(1, 6)] == [0, 0.25, 0.5, 0.75, 1]
    ten = [f"Step {chr(96 + number)} is reached." for number in range(1, 11)]
    _, inductive = make(
        answers(
            levels=ten,
            order=lambda request: [
                p[0]
                for p in sorted(
                    re.findall(r"^([a-j]): (.+)$", text_of(request), re.MULTILINE), key=lambda line: ten.index(line[1])
                )
            ],
        ),
        levels=10,
    )
    criterion = inductive.generate_sync(PROMPT, exemplars=TEXTS).criteria[0]
    # (score - 1) / 9 on a scale from 1 to 10
    assert criterion.met_of(1) == 0 and criterion.met_of(10) == 1 and criterion.met_of(4) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("how", "weights"), [("sum", [3 / 5, 2 / 5]), ("max", [2 / 4, 2 / 4])])
def test_two_wordings_of_a_criterion_become_one(how, weights):
    # Supports 2 and 1 of the same criterion, 2 of another: sum 3 : 2, max 2 : 2.
    twice = {
        "clusters": [
            cluster("The thanks name a deed.", "e1", "o1"),
            cluster("The tone is warm.", "i1", "o2"),
            cluster("the thanks NAME a deed", "o3"),
        ]
    }
    _, inductive = make(answers(twice), support=how)
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS)
    assert [c.weight for c in rubric.criteria] == pytest.approx(weights)
    assert "merged: 'the thanks NAME a deed' into 'The thanks name a deed.'" in rubric.provenance.notes


def test_of_two_contradicting_criteria_the_explicit_one_stays():
    both = {
        "clusters": [
            cluster("The letter tells a long story.", "o1", "o2", "o3", conflicts=[2]),
            cluster("The letter is short.", "e1"),
        ]
    }
    _, inductive = make(answers(both))
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS)
    assert [c.text for c in rubric.criteria] == ["The letter is short."] and rubric.criteria[0].weight == 1.0
    assert any("contradicts 'The letter is short.'" in note for note in rubric.provenance.notes)


def test_a_criterion_that_repeats_an_exemplar_is_dropped():
    copied = {"clusters": [*GOOD["clusters"], cluster("It says you held my hand all night.", "o3")]}
    copied["clusters"][0] = cluster("The thanks name a deed.", "e1", "o1")
    _, inductive = make(answers(copied))
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS)
    assert len(rubric.criteria) == 2
    assert any("repeats an exemplar: 'you held my hand all night'" in note for note in rubric.provenance.notes)


def test_levels_that_cannot_be_told_apart_drop_the_criterion():
    def order(request):
        right = in_order(request)
        return right[::-1] if "The tone is warm." in text_of(request) else right

    _, inductive = make(answers(order=order))
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS)
    assert [c.text for c in rubric.criteria] == ["The thanks name a deed."]
    assert "dropped: 'The tone is warm.', its levels cannot be put in order by their words" in rubric.provenance.notes


def test_the_levels_are_never_shown_in_their_order():
    client, inductive = make()
    inductive.generate_sync(PROMPT, exemplars=TEXTS)
    for request in (r for r in client.asked if step_of(r) == "order"):
        assert in_order(request) != list("abcde")


def test_a_judge_drops_constant_criteria_and_those_that_punish_the_better_exemplar():
    third = cluster("The letter is short.", "o3")
    clusters = {
        "clusters": [cluster("The thanks name a deed.", "e1", "o1"), cluster("The tone is warm.", "i1", "o2"), third]
    }
    judge = StubJudge(
        {
            "the_thanks_name_a_deed": [0.25, 1.0, 0.25],
            "the_tone_is_warm": [0.5, 0.5, 0.5],
            "the_letter_is_short": [1.0, 0.0, 0.5],
        }
    )
    exemplars = [Exemplar(TEXTS[0], 2.0), Exemplar(TEXTS[1], 9.0), Exemplar(TEXTS[2])]
    _, inductive = make(answers(clusters), judge=judge)
    rubric = inductive.generate_sync(PROMPT, exemplars=exemplars)
    assert rubric.ids == ("the_thanks_name_a_deed",) and rubric.criteria[0].weight == 1.0
    notes = rubric.provenance.notes
    assert "dropped: 'The tone is warm.', all exemplars score the same" in notes
    assert "dropped: 'The letter is short.', the better exemplar 2 scores lower than exemplar 1" in notes
    assert "validated on 3 exemplars by stub/1" in notes and rubric.provenance.verified_by == "label"
    assert [request.candidate for request in judge.seen] == TEXTS


def test_a_judge_that_fails_proves_nothing():
    judge = StubJudge({"the_thanks_name_a_deed": [0.0, 1.0, 0.5], "the_tone_is_warm": [None, 0.5, None]})
    _, inductive = make(judge=judge)
    exemplars = [Exemplar(text, score) for text, score in zip(TEXTS, (1, 3, 2), strict=True)]
    rubric = inductive.generate_sync(PROMPT, exemplars=exemplars)
    assert len(rubric.criteria) == 2 and rubric.provenance.verified_by == ""
    assert any("knows fewer than 2 exemplars" in note for note in rubric.provenance.notes)


def test_when_nothing_is_left_the_reasons_are_told():
    judge = StubJudge({"the_thanks_name_a_deed": [0.5] * 3, "the_tone_is_warm": [0.5] * 3})
    _, inductive = make(judge=judge)
    with pytest.raises(GenerationFailed, match=r"no criterion was left.*all exemplars score the same"):
        inductive.generate_sync(PROMPT, exemplars=TEXTS)


def test_one_exemplar_is_described_and_not_validated():
    clusters = {"clusters": [cluster("The tone is warm.", "i1", "o1")]}
    judge = StubJudge({})
    client, inductive = make(answers(clusters), judge=judge)
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS[:1])
    assert "describe" in map(step_of, client.asked) and not judge.seen
    assert any(note.startswith("not validated: one exemplar") for note in rubric.provenance.notes)


def test_pictures_are_compared_as_pictures():
    pictures = [np.full((8, 8, 3), shade, np.uint8) for shade in (0, 90, 200)]
    script = answers({"clusters": [cluster("The light is warm.", "i1", "o1")]})

    def answer(request):
        if step_of(request) == "recover":
            return {"explicit": [], "implicit": ["The light is warm."]}
        return script(request)

    client, inductive = make(answer)
    assert len(inductive.generate_sync("a warm light", exemplars=pictures).criteria) == 1
    assert [len(pictures_of(r)) for r in client.asked] == [0, 2, 2, 2, 0, 0, 0]


def test_who_sees_what():
    exemplars = [Exemplar(f"{text} TOKEN{n}", 7310.5 + n) for n, text in enumerate(TEXTS)]
    client, inductive = make()
    inductive.generate_sync(PROMPT, exemplars=exemplars)
    for request in client.asked:
        assert "7310" not in text_of(request) and "7311" not in text_of(request), "scores stay hidden"
        if step_of(request) in ("recover", "cluster", "order"):
            assert "TOKEN" not in text_of(request)
    for argument in ("source", "grounding"):
        with pytest.raises(InputError, match=f"takes no {argument}"):
            inductive.generate_sync(PROMPT, exemplars=TEXTS, **{argument: [b"x"]})


@pytest.mark.parametrize(
    ("step", "bad", "complaint"),
    [
        (
            "recover",
            {"explicit": [{"requirement": "r", "quote": "a poem"}], "implicit": []},
            "does not stand in the prompt",
        ),
        ("recover", {"explicit": [], "implicit": []}, "there is no requirement"),
        ("compare", {"observations": []}, "there is no observation"),
        (
            "compare",
            {"observations": [{"observation": "o", "better": "A", "quote": "xyzzy"}]},
            "does not stand in the text",
        ),
        ("compare", {"observations": [{"observation": "o", "better": "C", "quote": "x"}]}, "observations.0.better"),
        ("cluster", {"clusters": [cluster("It is warm.", "o99")]}, "members o99 are no ids"),
        (
            "cluster",
            {"clusters": [cluster("It is warm.", "o1"), cluster("It is kind.", "o1")]},
            "o1 stand in more than one",
        ),
        ("cluster", {"clusters": [cluster("It is warm.")]}, "cluster 1 has no members"),
        ("cluster", {"clusters": [cluster("It is warm.", "o1", conflicts=[1])]}, "no number of another cluster"),
        ("cluster", {"clusters": [cluster(" ", "o1")]}, "blank"),
        ("levels", {"levels": LEVELS[:4]}, "4 levels; give exactly 5"),
        ("levels", {"levels": [*LEVELS[:4], LEVELS[0].upper()]}, "words of its own"),
        ("order", {"order": ["a", "a", "b", "c", "d"]}, "each of a, b, c, d, e once"),
    ],
)
def test_a_bad_answer_is_shown_to_the_model_once(step, bad, complaint):
    good, told = answers(), []

    def answer(request):
        if step_of(request) != step:
            return good(request)
        if len(request.messages) == 2:
            return bad
        told.append(text_of(request))
        return good(request)

    _, inductive = make(answer)
    assert inductive.generate_sync(PROMPT, exemplars=TEXTS).criteria
    assert told and all(complaint in text for text in told)


def test_a_pair_that_fails_is_noted_and_the_others_go_on():
    good, pairs = answers({"clusters": [cluster("The tone is warm.", "i1", "o2")]}), []

    def answer(request):
        if step_of(request) == "compare":
            pairs.append(request)
            if len(pairs) == 1:
                return Failure.refused
        return good(request)

    _, inductive = make(answer)
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS)
    assert any("'compare': refused" in note for note in rubric.provenance.notes)
    _, inductive = make(lambda request: Failure.refused if step_of(request) == "compare" else good(request))
    with pytest.raises(GenerationFailed, match="no pair of exemplars"):
        inductive.generate_sync(PROMPT, exemplars=TEXTS)


def test_what_was_answered_is_not_asked_again(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        _, first = make(store=store)
        client, second = make(store=store)
        assert first.generate_sync(PROMPT, exemplars=TEXTS) == second.generate_sync(PROMPT, exemplars=TEXTS)
        assert not client.asked


@pytest.mark.parametrize(
    ("exemplars", "message"),
    [
        ((), "at least one"),
        (["a text", np.zeros((4, 4, 3), np.uint8)], "not both"),
        (["a", " "], "candidate is missing or blank"),
        ([b"no picture"], "exemplar 1"),
    ],
)
def test_bad_exemplars_are_refused(exemplars, message):
    _, inductive = make()
    with pytest.raises(InputError, match=message):
        inductive.generate_sync(PROMPT, exemplars=exemplars)


@pytest.mark.parametrize("score", [float("nan"), True])
def test_a_score_is_a_number(score):
    with pytest.raises(InputError, match="score must be a finite number"):
        Exemplar("a", score)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 1}, "levels from 2 to 10"),
        ({"levels": 11}, "levels from 2 to 10"),
        ({"max_criteria": 0}, "at least 1"),
        ({"support": "mean"}, "known: max, sum"),
        ({"judge": "strict"}, "judge must be a Judge"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        make(**options)


def test_the_rubric_survives_json():
    _, inductive = make()
    rubric = inductive.generate_sync(PROMPT, exemplars=TEXTS)
    assert type(rubric).model_validate(json.loads(rubric.model_dump_json())) == rubric
