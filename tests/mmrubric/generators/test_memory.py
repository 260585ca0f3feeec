"""SibylSense's generator (arXiv 2602.20751) with scripted answers; counts and colours of shapes by real pixels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mmrubric.generators.memory  # noqa: F401 (registers it)
from mmrubric import generators, shapes
from mmrubric.errors import InputError
from mmrubric.generators.llm import GenerationFailed
from mmrubric.generators.measuring import MemoryExample, states_more
from mmrubric.generators.shapes import criteria_of
from mmrubric.memory import Bank
from mmrubric.pairs import PreferencePair
from mmrubric.verdict import Failure
from tests.mmrubric.generators.scripted import Scripted, text_of
from tests.mmrubric.generators.worlds import ScriptedJudge, WordsToPixels

SHARP, TRUE, THIRD, FOURTH = "It is sharp.", "It is a picture.", "It is bright.", "It looks calm."


def written(*texts, weight=1.0):
    return {"criteria": [{"criterion": text, "weight": weight, "category": "x"} for text in texts]}


def build(answers=None, **options):
    client = Scripted(answers or (lambda request: written(SHARP, TRUE, THIRD, FOURTH)))
    return generators.build("memory", client=client, **{"inner": 1, "outer": 1, "fallback": "none", **options})


def fit(generator, say, examples=None):
    judge = ScriptedJudge(say)
    generator.fit_sync(examples or [MemoryExample("a cat", "reference", ("one", "two", "three"))], judge)
    return judge


def means(generator):
    return {item.criterion.text: item.mean for item in generator.memory.items}


def table(**of_reference):
    """Scores of the candidates one, two, three and of the reference by criterion; .5 where nothing is said."""

    def say(candidate, text):
        scores = {SHARP: (0.967, 0.2, 0.4, 0.6), TRUE: (1.0, 1.0, 1.0, 1.0)}.get(text, (0.5, 0.5, 0.5, 0.5))
        return scores[["reference", "one", "two", "three"].index(candidate)]

    return say


def test_a_discriminating_criterion_enters_and_one_that_is_always_true_does_not():
    memory = build(repeats=1)
    fit(memory, table())
    assert means(memory) == {SHARP: pytest.approx(0.567, abs=1e-4)}
    counts = memory.report.counts
    assert (counts["proposed"], counts["promoted"], counts["no_gap"], counts["unknown"]) == (4, 1, 3, 0)
    assert memory.memory.version == 1 and memory.memory.generator == "memory/1 scripted"


def test_what_the_reference_fails_is_rejected_and_a_better_candidate_is_flagged():
    memory = build(repeats=1)
    fit(
        memory,
        lambda c, t: {SHARP: 0.4 if c == "reference" else 0.0, TRUE: 0.3 if c == "reference" else 0.9}.get(t, 0.9),
    )
    assert not len(memory.memory) and memory.report.counts["fails_reference"] == 2
    assert memory.report.better_candidates == [("a cat", TRUE, pytest.approx(-0.6))]


def noisy(swing):
    """The first criterion swings about .9, the second is steady at .9; candidates score .3."""
    turns = {text: itertools.cycle((1, -1)) for text in (SHARP, TRUE)}

    def say(candidate, text):
        if candidate != "reference":
            return 0.3 if text in (SHARP, TRUE) else 0.5
        return 0.6 + swing * next(turns[text]) if text == SHARP else 0.6 if text == TRUE else 0.5

    return say


def test_a_noisy_criterion_ranks_below_a_steady_one_of_equal_gap():
    memory = build(lam=0.5)
    judge = fit(memory, noisy(0.3))
    # sigma of the reference: +-.3 four times, ddof 1: .3464; over 4 answers / 4 = .0866; alpha = .3 - .5 x .0866.
    assert means(memory) == {SHARP: pytest.approx(0.3 - 0.0433, abs=1e-4), TRUE: pytest.approx(0.3)}
    assert [item.criterion.text for item in memory.memory.retrieve().high] == [TRUE, SHARP]
    assert len(judge.asked) == 4 * 4
    one = build(lam=0.0)
    assert len(fit(one, noisy(0.0)).asked) == 4, "without a penalty there is nothing to repeat"


def test_the_penalty_has_no_effect_for_a_binary_judge():
    answers = []
    for lam in (0.0, 5.0):
        memory = build(lam=lam)
        judge = fit(memory, lambda c, t: float(c == "reference" or (c == "one" and t != TRUE)))
        answers.append((means(memory), len(judge.asked)))
    assert answers[0] == answers[1] and answers[0][0][TRUE] == 1.0


def test_a_judge_failure_skips_the_criterion_and_is_not_an_alpha_of_zero():
    memory = build(repeats=1)
    fit(memory, table())
    fit(memory, lambda c, t: Failure.timeout if t == SHARP and c == "two" else 0.5)
    assert means(memory) == {SHARP: pytest.approx(0.567, abs=1e-4)} and memory.report.counts["unknown"] == 1
    # A candidate to which it does not apply is left out: .967 - mean(.2, .6).
    fresh = build(repeats=1)
    fit(fresh, lambda c, t: None if t == SHARP and c == "two" else table()(c, t))
    assert means(fresh) == {SHARP: pytest.approx(0.567, abs=1e-4)}


def test_an_adversary_lowers_the_mean_and_a_second_dimension_is_added():
    def say(candidate, text):
        if candidate == "reference":
            return 1.0
        return {SHARP: float("sharp" in candidate), THIRD: float("sharp" not in candidate)}.get(text, 1.0)

    seen = {}

    def refresh(rubrics):
        seen.update(rubrics)
        return {prompt: ["sharp 1", "sharp 2", "sharp 3", "sharp 4"] for prompt in rubrics}

    memory = build(outer=2, refresh=refresh, replay=0.0)
    fit(memory, say, [MemoryExample("a cat", "reference", ("plain 1", "plain 2"))])
    first, second = memory.memory.items
    # Round 1: alpha 1; after the refresh 0; proposed again 0; rescored no more, because it is retired: 1/3.
    assert first.criterion.text == SHARP and first.mean == pytest.approx(1 / 3) and first.retired
    assert second.criterion.text == THIRD and second.mean == 1.0 and second.usable
    assert SHARP in [criterion.text for criterion in seen["a cat"].criteria]
    assert memory.report.counts["retired"] == 1
    shown = text_of(memory.client.asked[-1])
    assert shown.index(THIRD) < shown.index("avoid what is like them") < shown.index(SHARP)


def test_a_quarter_of_later_candidates_is_replayed():
    judged = []
    for replay in (0.25, 0.0):
        memory = build(
            outer=2, refresh=lambda rubrics: {p: [f"new {n}" for n in range(4)] for p in rubrics}, replay=replay
        )
        judge = fit(
            memory, lambda c, t: float(c == "reference"), [MemoryExample("a cat", "reference", ("old 1", "old 2"))]
        )
        later = [request.candidate for request in judge.asked][3:8]
        judged.append((sum("old" in c for c in later), sum("new" in c for c in later)))
    assert judged == [(1, 3), (0, 4)]


def test_a_refresh_for_another_prompt_is_an_error():
    with pytest.raises(InputError, match="not in the examples"):
        fit(build(refresh=lambda rubrics: {"a dog": ["x"]}), table())
    with pytest.raises(InputError, match="field candidates is empty"):
        fit(build(refresh=lambda rubrics: {"a cat": []}), table())


def test_an_empty_memory_gives_the_plain_rubric():
    memory = build()
    rubric = memory.generate_sync("a cat")
    assert [c.text for c in rubric.criteria] == [SHARP, TRUE, THIRD, FOURTH] and not rubric.provenance.notes
    assert rubric.provenance.extra == {"bank_version": 0, "bank_items": 0}
    assert text_of(memory.client.asked[0]).count("none yet") == 2
    assert "reference" not in text_of(memory.client.asked[0])


def test_weights_come_from_the_bank_or_from_the_model():
    memory = build(repeats=1)
    fit(memory, lambda c, t: {SHARP: 0.9, TRUE: 0.7}.get(t, 0.5) if c == "reference" else 0.5)
    # Known: .4 and .2; the other two get their mean .3; sum 1.2.
    weights = {c.text: c.weight for c in memory.generate_sync("a cat").criteria}
    assert weights == pytest.approx({SHARP: 0.4 / 1.2, TRUE: 0.2 / 1.2, THIRD: 0.3 / 1.2, FOURTH: 0.3 / 1.2})
    memory.memory.rescore("it_is_a_picture", -0.8, retired=False)
    rubric = memory.generate_sync("a dog")
    assert TRUE not in [c.text for c in rubric.criteria] and "no positive reward" in rubric.provenance.notes[0]
    assert sum(c.weight for c in rubric.criteria) == pytest.approx(1)
    memory.memory.rescore("it_is_sharp", -0.8, retired=False)
    plain = memory.generate_sync("a bird")
    assert len(plain.criteria) == 4 and {c.weight for c in plain.criteria} == {1.0}
    assert "plain rubric" in plain.provenance.notes[0]
    own = build(weights="generator", bank=memory.memory)
    assert {c.weight for c in own.generate_sync("a cat").criteria} == {1.0}


def test_a_saved_bank_is_taken_up_again(tmp_path):
    memory = build(repeats=1)
    fit(memory, table())
    memory.memory.save(tmp_path / "bank.jsonl")
    again = build(bank=tmp_path / "bank.jsonl")
    assert again.memory.items == memory.memory.items
    assert again.generate_sync("a cat") == memory.generate_sync("a cat")
    foreign = Bank("memory/1 another")
    assert any("tuned for" in n for n in build(bank=foreign).generate_sync("a cat").provenance.notes)


def test_facts_that_the_prompt_does_not_state_are_instance_specific():
    assert states_more("It mentions 12.5 mg.", "How much of it?", "Take 12.5 mg.")
    assert not states_more("It mentions 99 mg.", "How much of it?", "Take 12.5 mg."), "not the reference's"
    assert not states_more("Exactly three cats are visible.", "three cats", np.zeros((4, 4, 3), np.uint8))
    assert states_more("A red ball is visible.", "three cats", np.zeros((4, 4, 3), np.uint8))
    memory = build(lambda request: written("It mentions 12.5 mg.", TRUE, THIRD, FOURTH), repeats=1)
    say = lambda c, t: float(c.startswith("Take")) if "mg" in t else 0.5  # noqa: E731
    fit(memory, say, [MemoryExample("How much?", "Take 12.5 mg.", ("Ask.",))])
    assert not len(memory.memory) and memory.report.counts["dropped_specific"] == 1


def test_pairs_are_examples_and_other_things_are_not():
    memory = build(repeats=1)
    fit(memory, lambda c, t: float(c == "good"), [PreferencePair("a cat", ("bad", "good"), 1)])
    assert means(memory)[SHARP] == 1.0
    with pytest.raises(InputError, match="got str"):
        fit(memory, table(), ["x"])
    with pytest.raises(InputError, match="judge that scores"):
        memory.fit_sync([MemoryExample("a", "b", ("c",))])


def test_steps_without_an_answer_are_counted_and_too_many_are_an_error():
    lazy = lambda bad: iter([Failure.refused] * bad + [written(SHARP, TRUE, THIRD, FOURTH)] * 10)  # noqa: E731
    one, two = lazy(1), lazy(2)
    memory = build(lambda request: next(one), inner=5, repeats=1)
    fit(memory, table())
    assert memory.report.counts["unanswered"] == 1 and len(memory.memory) == 1
    with pytest.raises(GenerationFailed, match="steps gave nothing"):
        fit(build(lambda request: next(two), inner=5), table())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "mine"}, "weights"),
        ({"low": 9}, "low <= k"),
        ({"min_criteria": 9}, "min_criteria <= max_criteria"),
        ({"lam": -1.0}, "lam"),
        ({"replay": 2.0}, "replay"),
        ({"bank": Bank(), "capacity": 5}, "leave them out"),
        ({"bank": "nowhere.jsonl"}, "cannot be read"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        build(**options)


# The world of shapes.

SPECS = [spec for spec in shapes.draw_specs("train", 60, seed=4) if spec.kind == "count"][:6]


def pictures(spec, change, rng, count=4):
    return tuple(shapes.render(shapes.near_miss(spec, change, rng)) for _ in range(count))


def test_shapes_a_count_is_promoted_then_retired_when_the_policy_counts_and_its_colours_go_wrong():
    rng = np.random.default_rng(0)
    by_prompt = {spec.text: spec for spec in SPECS}
    checks = {c.text: dict(c.arguments) for spec in SPECS for c in criteria_of(spec)}

    def answer(request):
        spec = next(spec for text, spec in by_prompt.items() if text in text_of(request))
        return written(
            *(c.text for c in criteria_of(spec) if c.id.split("_")[0] in ("object", "count", "colour", "background"))
        )

    examples = [
        MemoryExample(s.text, shapes.render(shapes.scene_for(s, rng)), pictures(s, "count", rng)) for s in SPECS
    ]
    calls = []

    def refresh(rubrics):
        calls.append({item.criterion.text: item for item in memory.memory.items})
        return {prompt: pictures(by_prompt[prompt], "colour", rng) for prompt in rubrics}

    memory = build(answer, inner=len(SPECS), outer=2, refresh=refresh, replay=0.0)
    memory.fit_sync(examples, WordsToPixels(checks))
    counts = {c.text for spec in SPECS for c in criteria_of(spec) if c.id == "count"}
    colours = {c.text for spec in SPECS for c in criteria_of(spec) if c.id.startswith("colour")}
    # Round 1: only the counts tell references from candidates; objects and backgrounds are always true.
    assert set(calls[0]) == counts and all(item.mean == 1.0 for item in calls[0].values())
    items = {item.criterion.text: item for item in memory.memory.items}
    assert set(items) == counts | colours
    assert all(items[text].retired and items[text].mean <= 0.5 for text in counts)
    assert all(items[text].usable and items[text].mean == 1.0 for text in colours)
    assert memory.report.counts["promoted"] == len(counts) + len(colours)
    assert memory.report.counts["retired"] == len(counts)
