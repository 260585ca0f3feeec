"""RuCL's pool (arXiv 2602.21628, stage one): the page's table, and the generator with scripted answers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import mmrubric.generators.global_pool  # noqa: F401 (registers it)
from mmrubric import Criterion, Rubric, generators, shapes
from mmrubric.errors import InputError, RunError
from mmrubric.generators.global_pool import PoolExample
from mmrubric.generators.llm import GenerationFailed
from mmrubric.generators.tiers import Rates, TieredRubric, rates_of, screen
from mmrubric.verdict import Failure
from tests.mmrubric.generators.scripted import Scripted, pictures_of, text_of
from tests.mmrubric.generators.worlds import ScriptedJudge, WordsToPixels

NAN = float("nan")
PAGE = (
    "99.1/98.3 99.4/99.4 18.8/98.1 78.1/99.3 71.0/96.7 22.9/87.3 100/86.1 93.2/35.4 9.7/90.7 83.9/52.2 "
    "100/69.4 78.4/94.8 99.2/68.6 34.0/90.4 27.3/98.2 33.5/85.8 99.9/91.7 97.5/66.4 96.7/27.7 100/47.9"
)
"""Applicability / pass rate in per cent of C01 to C20."""


def fixture():
    """Criteria and rates of the page; C20 is the correctness of the answer, which a verifier handles."""
    rates = [Rates(*(float(x) / 100 for x in pair.split("/"))) for pair in PAGE.split()]
    criteria = [
        Criterion(id=f"C{n:02}", text=f"Statement {n}.", category="correctness" if n == 20 else "process")
        for n in range(1, len(rates) + 1)
    ]
    return criteria, rates


@pytest.mark.parametrize("cut", [0.695, 0.8, 0.86])
def test_the_page_keeps_six_in_two_tiers(cut):
    rows = screen(*fixture(), cut=cut, exclude=["correctness"])
    kept = [row.criterion for row in rows if not row.why_not]
    assert [c.id for c in kept] == ["C01", "C02", "C07", "C11", "C13", "C17"]
    tiered = TieredRubric.of(kept)
    assert [c.id for c, easy in zip(kept, tiered.columns("easy"), strict=True) if easy] == ["C01", "C02", "C07", "C17"]
    assert [c.id for c, hard in zip(kept, tiered.columns("hard"), strict=True) if hard] == ["C11", "C13"]
    assert kept[3].extra == {"tier": "hard", "applicability": 1.0, "pass_rate": pytest.approx(0.694)}
    assert {row.criterion.id: row.why_not for row in rows}["C19"] == "applies to 96.7%, below 99.0%"
    assert "C20" in [row.criterion.id for row in screen(*fixture()) if not row.why_not], "nothing else drops it"


def test_an_empty_tier_is_an_error_when_the_tiered_set_is_made():
    for cut, tier in ((0.5, "hard"), (0.999, "easy")):
        kept = [r.criterion for r in screen(*fixture(), cut=cut, exclude=["correctness"]) if not r.why_not]
        with pytest.raises(InputError, match=rf"tier '{tier}' holds no criterion.*C11 0.694"):
            TieredRubric.of(kept)
    with pytest.raises(InputError, match="no criterion is left"):
        TieredRubric.of([])
    with pytest.raises(InputError, match=r"extra\.tier"):
        TieredRubric(Rubric(prompt="", criteria=(Criterion(id="a", text="A is there."),)))


def test_what_does_not_apply_changes_applicability_and_not_the_pass_rate():
    # Criterion 0: 3 of 4 pass; criterion 1: the same, and twice it does not apply; criterion 2: never applies.
    met = np.array([[1, 1, NAN], [1, 1, NAN], [0.4, 0.4, NAN], [0.5, 0.5, NAN], [NAN, NAN, NAN], [NAN, NAN, NAN]])
    failed = np.zeros(met.shape, bool)
    failed[4:, 0] = True
    plain, partly, never = rates_of(met, failed)
    assert (plain.applicability, plain.pass_rate, plain.failures) == (1.0, 0.75, 2), "a failure is outside both"
    assert (partly.applicability, partly.pass_rate) == (pytest.approx(4 / 6), 0.75)
    assert never.applicability == 0 and np.isnan(never.pass_rate)
    criteria = [Criterion(id=id, text=f"{id} holds.") for id in "abc"]
    assert [row.why_not != "" for row in screen(criteria, [plain, partly, never])] == [False, True, True]
    # Even with no bar, what was never seen to apply has no pass rate.
    assert screen(criteria, [plain, partly, never], applicable=0.0)[2].why_not == "applies to no answer"
    assert np.isnan(rates_of([[NAN]], [[True]])[0].applicability)


@given(arrays(np.float64, (8, 3), elements=st.one_of(st.floats(0, 1), st.just(NAN))), st.permutations(range(8)))
@settings(max_examples=30, deadline=None)
def test_rates_do_not_depend_on_the_order_of_answers_nor_on_answers_to_which_nothing_applies(met, order):
    none = np.zeros(met.shape, bool)
    rates, shuffled = rates_of(met, none), rates_of(met[list(order)], none)
    longer = rates_of(np.vstack([met, np.full((4, 3), NAN)]), np.zeros((12, 3), bool))
    for one, two, three in zip(rates, shuffled, longer, strict=True):
        assert (one.applicability, one.failures) == (two.applicability, two.failures)
        np.testing.assert_equal([one.pass_rate, one.pass_rate], [two.pass_rate, three.pass_rate])
        assert three.applicability == pytest.approx(one.applicability * 8 / 12)


STATEMENTS = ["It has a subject.", "Nothing is cut off.", "The light is soft.", "It reads as the prompt says."]


def listed(*texts, category="general"):
    return {"criteria": [{"key": "", "category": category, "criterion": text} for text in texts]}


def build(script=None, **options):
    client = Scripted([listed(*STATEMENTS)] if script is None else script)
    return client, generators.build("global_pool", client=client, **{"candidates": 4, **options})


EXAMPLES = [PoolExample(f"prompt {n}", f"answer {n}", answer="42" if n == 3 else "") for n in range(10)]


def say(candidate, text):
    """The first always holds, the second for 7 of 10, the third for half, the fourth does not apply to one."""
    number = int(candidate.split()[1])
    return {
        STATEMENTS[0]: 1.0,
        STATEMENTS[1]: float(number < 7),
        STATEMENTS[2]: float(number < 5),
        STATEMENTS[3]: None if number == 9 else 1.0,
    }[text]


def test_a_pool_is_written_measured_and_screened():
    client, pool = build(shots=10)
    pool.fit_sync(EXAMPLES, ScriptedJudge(say))
    rubric = pool.generate_sync("any prompt")
    assert [(c.text, c.extra["tier"], c.extra["pass_rate"]) for c in rubric.criteria] == [
        (STATEMENTS[0], "easy", 1.0),
        (STATEMENTS[1], "hard", 0.7),
        (STATEMENTS[2], "hard", 0.5),
    ]
    assert [row.rates.applicability for row in pool.table] == [1.0, 1.0, 1.0, 0.9]
    assert rubric.prompt == "any prompt" and rubric.provenance.extra == {
        "judge": "scripted/1",
        "answers": 10,
        "failures": 0,
    }
    assert "applies to 90.0%" in rubric.provenance.notes[0]
    question = text_of(client.asked[0])
    assert (
        "Write exactly 4 statements" in question
        and "answer 7\n</candidate-" in question
        and "42\n</answer-" in question
    )


def test_sources_are_shown_to_the_teacher_and_to_the_judge():
    pictures = [np.full((8, 8, 3), level, np.uint8) for level in (10, 20, 30)]
    one, two = tuple(pictures[:1]), tuple(pictures[1:])
    examples = [PoolExample("prompt 0", "answer 0", sources=one), PoolExample("prompt 1", "answer 1", sources=two)]
    client, pool = build(shots=2)
    judge = ScriptedJudge(lambda candidate, text: float(text != STATEMENTS[0] or candidate == "answer 0"))
    pool.fit_sync(examples, judge)
    assert [request.sources for request in judge.asked] == [one, two]
    text = text_of(client.asked[0])
    single = re.search(r"^Source (\d): the picture", text, re.MULTILINE)
    several = re.findall(r"^Source (\d\.\d): the picture", text, re.MULTILINE)
    assert single is not None and several == [f"{3 - int(single[1])}.{number}" for number in (1, 2)]


def test_the_draw_of_shots_and_answers_is_seeded_and_bounded():
    asked = []
    for seed in (0, 0, 1):
        client, pool = build(shots=2, answers=5, seed=seed, applicable=0.5)
        judge = ScriptedJudge(lambda c, t: say(c, t) if t != STATEMENTS[2] else 0.0)
        pool.fit_sync(EXAMPLES, judge)
        asked.append([request.candidate for request in judge.asked])
        assert text_of(client.asked[0]).count("<prompt-") == 2 + 1, "two shots, and the mention in the instruction"
    assert asked[0] == asked[1] != asked[2] and len(asked[0]) == 5


def test_a_category_that_is_verified_otherwise_is_dropped():
    answer = listed(*STATEMENTS)
    answer["criteria"][1]["category"] = "OCR"
    _, pool = build([answer], exclude=["text"])
    pool.fit_sync(EXAMPLES, ScriptedJudge(say))
    assert STATEMENTS[1] not in [c.text for c in pool.learned().criteria]
    assert "verified otherwise" in pool.table[1].why_not


def test_a_failing_judge_is_outside_the_rates_and_too_much_of_it_is_an_error():
    def failing(count):
        return lambda c, t: Failure.timeout if t == STATEMENTS[0] and int(c.split()[1]) < count else say(c, t)

    _, pool = build()
    pool.fit_sync(EXAMPLES, ScriptedJudge(failing(2)))
    first = pool.table[0].rates
    assert (first.failures, first.applicability, first.pass_rate) == (2, 1.0, 1.0)
    with pytest.raises(RunError, match=r"failed on 7\.5% of the verdicts; at most 5\.0%"):
        build()[1].fit_sync(EXAMPLES, ScriptedJudge(failing(3)))


def test_a_saved_pool_needs_no_model_and_must_have_tiers(tmp_path):
    _, pool = build()
    with pytest.raises(InputError, match="nothing is learned yet"):
        pool.generate_sync("p")
    with pytest.raises(InputError, match="nothing is learned yet"):
        pool.save(tmp_path / "pool.json")
    pool.fit_sync(EXAMPLES, ScriptedJudge(say))
    pool.save(tmp_path / "pool.json")
    loaded = generators.build("global_pool", pool=tmp_path / "pool.json")
    assert loaded.generate_sync("p") == pool.generate_sync("p")
    pool.learned().without("it_has_a_subject").save(tmp_path / "hard.yaml")
    with pytest.raises(InputError, match="tier 'easy' holds no criterion"):
        generators.build("global_pool", pool=tmp_path / "hard.yaml")


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (listed(*STATEMENTS[:3]), "3 statements; give exactly 4"),
        (listed(*STATEMENTS[:3], "it HAS a subject"), "statement 4 repeats statement 1"),
        (listed(*STATEMENTS[:3], " "), "statement 4 is blank"),
    ],
)
def test_a_bad_list_is_shown_to_the_teacher_once(bad, complaint):
    client, pool = build([bad, listed(*STATEMENTS)])
    pool.fit_sync(EXAMPLES, ScriptedJudge(say))
    assert complaint in text_of(client.asked[1])
    with pytest.raises(GenerationFailed, match=complaint):
        build([bad, bad])[1].fit_sync(EXAMPLES, ScriptedJudge(say))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "candidates"),
        ({"applicable": 2.0}, "applicable"),
        ({"exclude": "text"}, "list of categories"),
        ({"fallback": "template"}, "has none"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        build(**options)


def test_wrong_examples_are_refused():
    with pytest.raises(InputError, match="PoolExample, got str"):
        build()[1].fit_sync(["x"], ScriptedJudge(say))
    with pytest.raises(InputError, match="needs examples"):
        build()[1].fit_sync([], ScriptedJudge(say))
    with pytest.raises(InputError, match="judge that scores"):
        build()[1].fit_sync(EXAMPLES)


def test_shapes_what_need_not_be_there_is_dropped_and_the_rest_falls_into_tiers():
    checks = {
        "Something is visible.": {"check": "nothing_else", "shapes": list(shapes.SHAPES), "word": True},
        "Any circles are red.": {"check": "colour", "shape": "circle", "colour": "red", "if_any": True},
        "Exactly two shapes are visible.": {"check": "count", "number": 2},
        "The background is not plain black.": {"check": "background", "colour": "black"},
    }
    rng = np.random.default_rng(0)
    examples = [
        PoolExample(spec.text, shapes.render(shapes.scene_for(spec, rng)))
        for spec in shapes.draw_specs("train", 80, seed=2)
    ]
    client, pool = build([listed(*checks)], shots=3)
    pool.fit_sync(examples, WordsToPixels(checks))
    tiers = {c.text: c.extra["tier"] for c in pool.learned().criteria}
    assert tiers == {
        "Something is visible.": "easy",
        "Exactly two shapes are visible.": "hard",
        "The background is not plain black.": "hard",
    }
    assert "applies to" in pool.table[1].why_not and len(pictures_of(client.asked[0])) == 3
