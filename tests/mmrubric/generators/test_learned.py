"""What fine-tuned rubric models write: parse tables, and the generator with scripted answers.

Rubric-ARM, arXiv 2602.01511; Proxy-GRM, arXiv 2603.16600; RubricGen of Writer-R1, arXiv 2603.15061.
"""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmrubric import generators
from mmrubric.errors import InputError
from mmrubric.generators.learned import LearnedGenerator, question_of
from mmrubric.generators.learned_asking import ask_text
from mmrubric.generators.learned_formats import FORMATS, LearnedItem, parse_json, parse_proxy_grm, parse_rubric_arm
from mmrubric.generators.llm import GenerationFailed
from mmrubric.store import Store
from mmrubric.verdict import Failure
from tests.mmrubric.generators.scripted import Scripted, pictures_of, text_of

PROMPT = "three red apples on a table"
ARM = "1. Exactly three apples are visible. [Hard Rule]\n2. The light is soft. [Principle]\n"
GRM = "<rubric>\n1. Three apples are visible (60%)\n2. The light is soft (40%)\n<justify>As asked.</justify>\n</rubric>"
JSON = json.dumps({"criteria": [{"criterion": "Apples are red.", "weight": 2.0, "levels": ["None is.", "All are."]}]})
GOOD = {"rubric_arm": ARM, "proxy_grm": GRM, "json": JSON}


def make(answers, **options):
    client = Scripted(answers)
    return client, generators.build("learned", client=client, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ARM, [("Exactly three apples are visible.", "hard_rule"), ("The light is soft.", "principle")]),
        ("Here is the rubric:\n\n1) A is seen [hard rule].", [("A is seen", "hard_rule")]),
        ("1. **A is seen** **[Hard Rule]**", [("A is seen", "hard_rule")]),
        ("**1. A is seen. [Principle]**", [("A is seen.", "principle")]),
        ("1. A is seen\n   on the left. [Principle]", [("A is seen on the left.", "principle")]),
        ("<think>1. no</think>\n1. A is seen. [Principle]", [("A is seen.", "principle")]),
        ('1. The sign reads "3. floor". [Hard Rule]', [('The sign reads "3. floor".', "hard_rule")]),
    ],
)
def test_rubric_arm_lists_are_read(text, expected):
    assert [(item.text, item.category) for item in parse_rubric_arm(text)] == expected
    assert all(item.weight == 1.0 and not item.levels for item in parse_rubric_arm(text))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "there is no list"),
        ("A is seen. [Hard Rule]", "there is no list"),
        ("1. A is seen.", "item 1 must end in one tag"),
        ("1. [Hard Rule] A is seen.", "item 1 must end in one tag"),
        ("1. [Hard Rule] A is seen [left]", "item 1 must end in one tag"),
        ("1. A is seen. [Hard Rule] [Principle]", "item 1 must end in one tag"),
        ("1. A is seen. [Taste]", "item 1 must end in one tag"),
        ("1. A is seen. [Hard Rule]\nThat is all.", "item 1 must end in one tag"),
        ("1. A is seen. [Hard Rule]\n3. B is seen. [Hard Rule]", "found 1, 3"),
        ("2. A is seen. [Hard Rule]", "found 2"),
        ("1. A. [Hard Rule]\n1. B. [Hard Rule]", "found 1, 1"),
        ("1. [Hard Rule]", "item 1 is blank"),
        ("1. ... [Hard Rule]", None),
    ],
)
def test_rubric_arm_faults_are_named(text, complaint):
    if complaint is None:  # punctuation alone is kept by `normalise`, and is text
        assert parse_rubric_arm(text)
    else:
        with pytest.raises(ValueError, match=complaint):
            parse_rubric_arm(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GRM, [("Three apples are visible", 0.6), ("The light is soft", 0.4)]),
        (
            f"<think>hm</think>{GRM}<eval>Response 1 has 3</eval><answer>1</answer>",
            [("Three apples are visible", 0.6), ("The light is soft", 0.4)],
        ),
        (
            "<rubric>- **Count** (70%): three apples\n- Light [Weight: 30%]: soft</rubric>",
            [("Count: three apples", 0.7), ("Light: soft", 0.3)],
        ),
        ("<rubric>1. Three apples, weight: 100%</rubric>", [("Three apples", 1.0)]),
        (
            "<rubric>1. Apples fill 50% of it (33.3%)\n2. b (33.3%)\n3. c (33.4%)</rubric>",
            [("Apples fill 50% of it", 0.333), ("b", 0.333), ("c", 0.334)],
        ),
        ("<rubric>1. a (33.3%)\n2. b (33.3%)\n3. c (33.3%)</rubric>", [("a", 0.333), ("b", 0.333), ("c", 0.333)]),
    ],
)
def test_proxy_grm_rubrics_are_read(text, expected):
    items = parse_proxy_grm(text)
    assert [item.text for item in items] == [text for text, _ in expected]
    assert [item.weight for item in items] == pytest.approx([weight for _, weight in expected])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1. a (100%)", "<rubric> must stand there once, it does 0 times"),
        ("<rubric>1. a (100%)", "</rubric> must stand there once, it does 0"),
        (GRM + GRM, "<rubric> must stand there once, it does 2"),
        ("</rubric>1. a (100%)<rubric>", "stands before <rubric>"),
        ("Sure! " + GRM, "nothing may stand before <rubric>"),
        ("<rubric></rubric>", "there is no list"),
        ("<rubric>1. a (60%)\n2. b (30%)</rubric>", "total 90 %"),
        ("<rubric>1. a (60%)\n2. b (41%)</rubric>", "total 101 %"),
        ("<rubric>1. a\n2. b (100%)</rubric>", "item 1 needs one weight"),
        ("<rubric>1. a (50%) (50%)</rubric>", "item 1 needs one weight"),
        ("<rubric>1. a (0%)\n2. b (100%)</rubric>", "above 0"),
        ("<rubric>1. a (400%)</rubric>", "at most 100"),
        ("<rubric>1. (100%)</rubric>", "item 1 is blank"),
        (
            "<rubric>1. a (60%)<justify>x</justify>\n2. b (40%)<justify>y</justify></rubric>",
            "weighted items behind <justify>",
        ),
    ],
)
def test_proxy_grm_faults_are_named(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_proxy_grm(text)


def test_no_reason_answer_or_evaluation_gets_into_a_criterion():
    text = f"{GRM}<eval>SENTINEL</eval><answer>2</answer>".replace("As asked.", "SENTINEL")
    assert "SENTINEL" not in repr(parse_proxy_grm(text))


def test_json_rubrics_are_read():
    assert parse_json(JSON) == [LearnedItem("Apples are red.", weight=2.0, levels=("None is.", "All are."))]
    assert parse_json('```json\n{"criteria": [{"criterion": "a"}]}\n```') == [LearnedItem("a")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no", "holds no JSON object"),
        ('{"criteria": []}', "criteria: List should have at least 1 item"),
        ('{"rubric": []}', "criteria: Field required"),
        ('{"criteria": [{"criterion": "a", "weight": 0}]}', "greater than 0"),
        ('{"criteria": [{"criterion": "a", "weight": -1}]}', "greater than 0"),
        ('{"criteria": [{"criterion": "a", "weight": "2"}]}', "valid number"),
        ('{"criteria": [{"criterion": "a", "score": 2}]}', "criteria.0.score"),
        ('{"criteria": [{"criterion": " "}]}', "item 1 is blank"),
        ('{"criteria": [{"criterion": "a", "levels": ["x"]}]}', "two or more"),
        ('{"criteria": [{"criterion": "a", "levels": ["x", "X"]}]}', "two or more different"),
    ],
)
def test_json_faults_are_named(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_json(text)


words = st.text("abcdefgh ", min_size=1, max_size=20).map(lambda text: " ".join(text.split())).filter(bool)


@settings(deadline=None)
@given(st.lists(st.tuples(words, st.sampled_from(["Hard Rule", "Principle"])), min_size=1, max_size=8))
def test_what_is_written_in_the_form_of_rubric_arm_is_read_back(items):
    text = "\n".join(f"{number}. {words} [{kind}]" for number, (words, kind) in enumerate(items, 1))
    assert [(item.text, item.category) for item in parse_rubric_arm(text)] == [
        (words, kind.lower().replace(" ", "_")) for words, kind in items
    ]


@settings(deadline=None)
@given(st.lists(words, min_size=1, max_size=6), st.data())
def test_what_is_written_in_the_form_of_proxy_grm_is_read_back(texts, data):
    cuts = sorted(
        data.draw(st.lists(st.integers(1, 99), min_size=len(texts) - 1, max_size=len(texts) - 1, unique=True))
    )
    shares = np.diff([0, *cuts, 100])
    lines = [f"{n}. {text} ({share}%)" for n, (text, share) in enumerate(zip(texts, shares, strict=True), 1)]
    items = parse_proxy_grm("<rubric>\n" + "\n".join(lines) + "\n</rubric>")
    assert [item.text for item in items] == texts and sum(item.weight for item in items) == pytest.approx(1.0)


marks = ["1. ", "2) ", "- ", "\n", "[Hard Rule]", "[Principle]", "<rubric>", "</rubric>", "<justify>", "(50%)", "100 %"]
pieces = st.sampled_from([*marks, "{", "}", '"criteria":', "[", "]", "</think>", "**", "a b", "\ud800", "９."])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.lists(pieces, max_size=14).map("".join) | st.text(max_size=40))
@example("rubric_arm", "٣. a [Hard Rule]")
def test_any_text_is_read_or_refused_and_what_is_read_is_sound(name, text):
    try:
        items = FORMATS[name](text)
    except ValueError:
        return
    assert items and all(item.text.strip() and item.weight > 0 for item in items)


@pytest.mark.parametrize("format", sorted(GOOD))
def test_every_format_becomes_a_rubric(format):
    client, learned = make([GOOD[format]], format=format)
    rubric = learned.generate_sync(PROMPT)
    assert rubric.provenance.generator == "learned/1" and not rubric.provenance.notes
    [request] = client.asked
    assert request.response_format is None and PROMPT in text_of(request)
    weights = {"rubric_arm": [1, 1], "proxy_grm": [0.6, 0.4], "json": [2]}[format]
    assert [c.weight for c in rubric.criteria] == pytest.approx(weights)
    assert [c.scale for c in rubric.criteria] == (["ordinal"] if format == "json" else ["binary"] * 2)


@pytest.mark.parametrize(("gates", "hard"), [(False, [False, False]), (True, [True, False])])
def test_hard_rules_are_gates_if_one_says_so(gates, hard):
    _, learned = make([ARM], gate_hard_rules=gates)
    rubric = learned.generate_sync(PROMPT)
    assert [c.hard for c in rubric.criteria] == hard
    assert [c.category for c in rubric.criteria] == ["hard_rule", "principle"]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("1. Apples.", "must end in one tag"),
        ("1. Response 1 mentions apples. [Hard Rule]", "names another sample"),
        ("", "there is no list"),
    ],
)
def test_a_bad_answer_is_shown_to_the_model_once_and_then_the_rules_write_it(bad, complaint):
    client, learned = make([bad, ARM])
    assert len(learned.generate_sync(PROMPT).criteria) == 2
    assert complaint in text_of(client.asked[1]) and (bad or "(no answer)") in text_of(client.asked[1])
    client, learned = make([bad, bad])
    rubric = learned.generate_sync(PROMPT)
    assert len(client.asked) == 2 and complaint in rubric.provenance.notes[0]
    assert rubric.provenance.notes[0].startswith("written by 'template', because learned/1 failed: unparsable")


def test_an_answer_that_was_cut_off_gets_more_room_and_a_refusal_no_second_call():
    client, learned = make([Failure.truncated, ARM], max_tokens=100)
    learned.generate_sync(PROMPT)
    assert [r.max_tokens for r in client.asked] == [100, 400] and len(client.asked[1].messages) == 2
    client, learned = make([Failure.refused], fallback="none")
    with pytest.raises(GenerationFailed, match="refused"):
        learned.generate_sync(PROMPT)


@pytest.mark.parametrize("format", sorted(GOOD))
def test_the_question_for_training_is_the_one_that_is_asked(format):
    client, learned = make([GOOD[format]], format=format)
    learned.generate_sync(PROMPT)
    assert question_of(format)(PROMPT) == [message.wire() for message in client.asked[0].messages]


def test_a_question_of_no_format_is_refused():
    with pytest.raises(InputError, match="known: json, proxy_grm, rubric_arm"):
        question_of("xml")


def test_an_item_may_be_long():
    long = f"The picture shows {'a very ' * 60}red apple."
    _, learned = make([f"1. {long} [Principle]"])
    assert learned.generate_sync(PROMPT).criteria[0].text == long


def test_repeats_are_dropped():
    _, learned = make(["1. Apples are red. [Hard Rule]\n2. apples ARE red [Principle]"])
    rubric = learned.generate_sync(PROMPT)
    assert len(rubric.criteria) == 1 and "repeats" in rubric.provenance.notes[0]


def test_what_was_answered_is_not_asked_again_also_after_a_second_chance(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        one, first = make(["bad", ARM], store=store)
        two, second = make([], store=store)
        assert first.generate_sync(PROMPT) == second.generate_sync(PROMPT)
        assert len(one.asked) == 2 and not two.asked
        # The stored list is no JSON: another format is another question.
        three, third = make([JSON], store=store, format="json")
        third.generate_sync(PROMPT)
        assert len(three.asked) == 1


@pytest.mark.parametrize("answers", [[ARM], ["bad", ARM]])
def test_a_stored_answer_that_can_no_longer_be_read_is_replaced(tmp_path, answers):
    with Store(tmp_path / "s.sqlite") as store:
        client, learned = make([ARM])
        learned.generate_sync(PROMPT)
        # A parser that took anything has kept this one.
        loose = Scripted(["anything at all"])
        assert asyncio.run(ask_text(loose, store, client.asked[0], str.strip, 0)) == "anything at all"
        two, strict = make(answers, store=store)
        strict.generate_sync(PROMPT)
        assert len(two.asked) == len(answers)
        three, again = make([], store=store)
        again.generate_sync(PROMPT)
        assert not three.asked


def test_a_failure_is_not_stored(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        _, first = make(["bad", "bad"], store=store)
        first.generate_sync(PROMPT)
        assert len(store) == 0


def test_only_the_format_of_pairs_sees_candidates():
    pictures = [np.full((8, 8, 3), shade, np.uint8) for shade in (0, 200)]
    client, learned = make([GRM, GRM], format="proxy_grm")
    learned.generate_sync(PROMPT, exemplars=pictures)
    learned.generate_sync(PROMPT, exemplars=["SENTINEL one", "two"])
    assert len(pictures_of(client.asked[0])) == 2 and "SENTINEL one\n</candidate-" in text_of(client.asked[1])
    for format, exemplars in (("rubric_arm", ["a", "b"]), ("json", ["a", "b"]), ("proxy_grm", ["a"])):
        client, learned = make([], format=format)
        with pytest.raises(InputError, match="two candidates of a pair"):
            learned.generate_sync(PROMPT, exemplars=exemplars)
        assert not client.asked


def test_temperature_brings_the_seed_along():
    client, learned = make([ARM], temperature=0.5, seed=7)
    learned.generate_sync(PROMPT)
    assert (client.asked[0].temperature, client.asked[0].seed) == (0.5, 7)
    assert isinstance(learned, LearnedGenerator)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, "known: json, proxy_grm, rubric_arm"),
        ({"format": "json", "gate_hard_rules": True}, "no hard"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        make([], **options)
