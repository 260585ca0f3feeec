"""RubricHub's generator with scripted answers (arXiv 2601.08430)."""

from __future__ import annotations

import numpy as np
import pytest

from mmrubric import Failure, ScoreTable, Verdict, aggregate, generators
from mmrubric.errors import InputError
from mmrubric.generators import coarse2fine  # noqa: F401  (registers the name)
from mmrubric.generators.answers import ScoredAnswer
from mmrubric.generators.llm import GenerationFailed
from mmrubric.images import content_hash
from mmrubric.judging import SyncMixin
from mmrubric.prompt import Grounding
from mmrubric.store import Store
from tests.mmrubric.generators.scripted import Scripted, pictures_of, step_of, text_of
from tests.mmrubric.generators.worlds import ScriptedJudge

PROMPT = "a red cup on a table"
NOTHING = {"same": [], "conflicts": []}


def items(*rows):
    return {"items": [{"title": t, "criterion": c, "dimension": "object", "points": p} for t, c, p in rows]}


FIRST = items(("cup", "A cup is visible.", 10), ("red", "The cup is red.", 5), ("table", "A table is visible.", 3))
SECOND = items(
    ("red", "the cup  is RED", 8), ("light", "Light falls from the left.", 2), ("mat", "A mat lies there.", 1)
)
NEW = items(("steam", "Steam rises from the cup.", 4))


class Model(Scripted):
    """A named model; answers by step, a function of the text where one is given."""

    def __init__(self, model, **steps):
        steps = {"answer": {"answer": f"dense words of {model}"}, "compare": NOTHING, "evolve": NEW} | steps

        def answer(request):
            made = steps[step_of(request)]
            return made(text_of(request)) if callable(made) else made

        super().__init__(answer)
        self.model = model


def two(**steps):
    return [Model("alpha", candidates=FIRST, **steps), Model("beta", candidates=SECOND)]


def build(clients, **options):
    return generators.build("coarse2fine", clients=clients, **options)


def lines_of(text):
    """Statement -> number in the list of a question."""
    return {
        line.partition(". ")[2]: int(line.partition(". ")[0]) for line in text.splitlines() if line[:1].isdigit()
    }  # fmt: skip


def steps(client):
    return [step_of(request) for request in client.asked]


SCORED = [ScoredAnswer("poor", 0.2), ScoredAnswer("best", 0.9), ScoredAnswer("good", 0.8)]


def test_three_stages_give_a_union_without_repeats_and_keep_the_higher_points():
    clients = two()
    made = build(clients).generate_sync(PROMPT, exemplars=SCORED)
    # 'the cup  is RED' repeats 'The cup is red.' over case and spaces: 8 points stay.
    found = {c.text.casefold().strip("."): c.weight for c in made.criteria}
    assert found == {
        "a cup is visible": 10,
        "the cup is red": 8,
        "steam rises from the cup": 4,
        "a table is visible": 3,
        "light falls from the left": 2,
        "a mat lies there": 1,
    }
    assert [c.weight for c in made.criteria] == [10, 8, 4, 3, 2, 1] and 3 <= len(made.criteria) <= 25
    red, steam = made.criteria[1], made.criteria[2]
    assert red.extra["models"] == ["alpha", "beta"] and red.extra["stage"] == "base"
    assert steam.id == "steam" and steam.extra["stage"] == "evolution" and steam.extra["models"] == []
    assert steps(clients[0]) == ["answer", "candidates", "compare", "evolve", "compare"]
    assert steps(clients[1]) == ["answer", "candidates"]
    extra = made.provenance.extra
    assert extra["models"] == ["alpha", "beta"] and extra["stages"] == {"candidates": 5, "base": 5, "final": 6}
    assert extra["answers"] == [SCORED[1].id, SCORED[2].id]


def test_points_are_a_weighted_share():
    made = build([Model("a", candidates=FIRST)]).generate_sync(PROMPT)
    # w = [10, 5, 3], b = [1, 0, 1]: 13 / 18
    table = ScoreTable(made, [[1.0, 0.0, 1.0]])
    assert aggregate.build("weighted")(table) == pytest.approx([13 / 18], abs=1e-6)


def test_candidates_are_grounded_on_the_models_own_answer_or_on_the_reference():
    clients = two()
    build(clients).generate_sync(PROMPT)
    assert "dense words of alpha" in text_of(clients[0].asked[1]) and clients[0].asked[0].temperature == 1.0
    assert "dense words of beta" in text_of(clients[1].asked[1]) and clients[1].asked[1].temperature == 0.2
    clients = two()
    build(clients).generate_sync(PROMPT, grounding=Grounding(passage="a cup of coral red"))
    assert "a cup of coral red" in text_of(clients[0].asked[0]) and "answer" not in steps(clients[0])
    clients = two()
    grounding = Grounding(image=np.zeros((32, 32, 3), np.uint8))
    build(clients).generate_sync(PROMPT, source=[np.ones((32, 32, 3), np.uint8)], grounding=grounding)
    assert len(pictures_of(clients[0].asked[0])) == 2 and "answer" not in steps(clients[0])
    assert "Source picture (to be edited" in text_of(clients[0].asked[0])


def test_the_answers_are_seen_by_the_evolution_alone():
    clients = two()
    pictures = [ScoredAnswer(np.full((32, 32, 3), value, np.uint8), value) for value in (10, 200, 90)]
    build(clients).generate_sync(PROMPT, exemplars=pictures)
    for client in clients:
        for request in client.asked:
            assert len(pictures_of(request)) == (2 if step_of(request) == "evolve" else 0)
    [evolve] = [request for request in clients[0].asked if step_of(request) == "evolve"]
    assert "Answer 1 got the higher score." in text_of(evolve)


def test_the_merge_is_conservative():
    first = items(("a", "Exactly two cups are visible.", 5), ("b", "A mug is red.", 4), ("c", "A table is visible.", 1))
    second = items(("d", "Exactly three cups are visible.", 5), ("e", "The beaker is red.", 9), ("f", "It is dark.", 1))

    def compare(text):
        place = lines_of(text)
        pair = ("Exactly two cups are visible.", "Exactly three cups are visible.")
        return {
            "same": [[place["A mug is red."], place["The beaker is red."]], [place[one] for one in pair]],
            "conflicts": [],
        }

    clients = [Model("alpha", candidates=first, compare=compare), Model("beta", candidates=second)]
    made = build(clients).generate_sync(PROMPT)
    texts = {c.text: c.weight for c in made.criteria}
    assert 9 in texts.values() and len({"A mug is red.", "The beaker is red."} & set(texts)) == 1
    # Two and three are never one; equally strong, they contradict each other and both go.
    assert not any("cups" in text for text in texts)


@pytest.mark.parametrize(
    ("evolved", "stays"),
    [
        ("The cup is  RED", False),
        ("The cup is blue.", False),
        ("A table is visible!", False),
        ("A wooden table is visible.", True),
    ],
)
def test_evolved_items_neither_repeat_nor_contradict_the_base(evolved, stays):
    client = Model("a", candidates=FIRST, evolve=items(("new", evolved, 10)))
    made = build([client]).generate_sync(PROMPT, exemplars=SCORED)
    assert [c.text for c in made.criteria if c.extra["stage"] == "evolution"] == [evolved] * stays
    assert len(made.criteria) == 3 + stays
    assert {"A cup is visible.", "The cup is red.", "A table is visible."} <= {c.text for c in made.criteria}


def test_a_repeat_with_more_points_raises_the_base():
    client = Model("a", candidates=FIRST, evolve=items(("new", "the cup is red", 9)))
    made = build([client]).generate_sync(PROMPT, exemplars=SCORED)
    assert {c.text: c.weight for c in made.criteria}["The cup is red."] == 9


def test_the_model_finds_an_evolved_contradiction_and_the_base_stays_whole():
    def compare(text):
        place = lines_of(text)
        # A quarrel within the base is none of the evolution's business.
        base = [place["A cup is visible."], place["A table is visible."]]
        return {"same": [], "conflicts": [base, [place["The cup is red."], place["Steam rises from the cup."]]]}

    made = build([Model("a", candidates=FIRST, compare=compare)]).generate_sync(PROMPT, exemplars=SCORED)
    assert [c.text for c in made.criteria] == ["A cup is visible.", "The cup is red.", "A table is visible."]


class Words(SyncMixin):
    """A judge that knows which criteria hold for which text."""

    id = "words"

    def __init__(self, good):
        self.good = good

    async def score(self, requests):
        return [[self._verdict(request, criterion) for criterion in request.rubric.criteria] for request in requests]

    def _verdict(self, request, criterion):
        met = self.good.get(request.candidate)
        failure = Failure.refused if met is None else None
        return Verdict(request.sample_id, criterion.id, met=met, failure=failure)


def test_without_scores_the_judges_decide_by_consensus():
    # Means: a (1 + .2) / 2 = .6, b (.4 + .9) / 2 = .65, c .1 from one judge, d unknown to both.
    judges = [Words({"a": 1.0, "b": 0.4, "c": 0.1}), Words({"a": 0.2, "b": 0.9})]
    client = Model("m", candidates=FIRST)
    made = build([client], judges=judges).generate_sync(PROMPT, exemplars=["a", "b", "c", "d"])
    assert made.provenance.extra["answers"] == [ScoredAnswer("b").id, ScoredAnswer("a").id]


def test_the_judges_are_shown_the_sources():
    judge = ScriptedJudge(lambda candidate, text: float(candidate == "a"))
    sources = [np.full((8, 8, 3), level, np.uint8) for level in (1, 2)]
    build([Model("m", candidates=FIRST)], judges=[judge]).generate_sync(PROMPT, sources, exemplars=["a", "b"])
    assert len(judge.asked) == 2
    for request in judge.asked:
        assert [content_hash(source) for source in request.sources] == [content_hash(source) for source in sources]


def test_answers_that_cannot_be_scored_leave_the_base():
    client = Model("m", candidates=FIRST)
    made = build([client], judges=[Words({"a": 1.0})]).generate_sync(PROMPT, exemplars=["a", "b"])
    assert len(made.criteria) == 3 and "evolve" not in steps(client)
    assert any("not evolved: the judges could score 1 of 2" in note for note in made.provenance.notes)


def test_without_answers_there_is_no_third_stage_and_the_rubric_says_so():
    client = Model("m", candidates=FIRST)
    made = build([client]).generate_sync(PROMPT)
    assert steps(client) == ["answer", "candidates"] and "not evolved: no answers were given" in made.provenance.notes


def test_equal_scores_are_told_as_equal():
    client = Model("m", candidates=FIRST)
    made = build([client]).generate_sync(PROMPT, exemplars=[ScoredAnswer("a", 1), ScoredAnswer("b", 1)])
    [evolve] = [request for request in client.asked if step_of(request) == "evolve"]
    assert "Both got the same score." in text_of(evolve)
    assert made.provenance.extra["answers"] == [ScoredAnswer("a").id, ScoredAnswer("b").id]


def test_a_model_that_fails_is_left_out_and_all_failing_is_an_error():
    clients = [Model("alpha", candidates=FIRST), Model("beta", candidates=Failure.refused)]
    made = build(clients).generate_sync(PROMPT)
    assert len(made.criteria) == 3
    assert any("model 'beta' wrote no candidates" in note for note in made.provenance.notes)
    with pytest.raises(GenerationFailed, match="no model wrote candidates"):
        build([clients[1]], fallback="none").generate_sync(PROMPT)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (items(("a", "A cup is visible.", 1)), "1 items; give at least 3"),
        (items(*[("a", "A cup is visible." + n * 300, 1) for n in "abc"]), "one fact in at most 300"),
        (items(*[("a", f"Response 1 mentions {n}.", 1) for n in "abc"]), "names another sample"),
        (items(*[("a", f"A {n} is visible.", 11) for n in "abc"]), "less than or equal to 10"),
        (items(*[("a", " ", 1)] * 3), "statement 1 is blank"),
    ],
)
def test_abnormal_lengths_and_formats_are_shown_to_the_model_and_kept_out(bad, complaint):
    client = Model("m", candidates=lambda text: FIRST if "cannot be used" in text else bad)
    made = build([client]).generate_sync(PROMPT)
    assert len(made.criteria) == 3 and complaint in text_of(client.asked[2])


def test_size_is_bounded():
    things = ["cup", "plate", "fork", "knife", "spoon"]
    first = items(*[(n, f"A {n} is visible.", 5 - place) for place, n in enumerate(things)])
    made = build([Model("m", candidates=first)], max_criteria=4).generate_sync(PROMPT)
    assert [c.weight for c in made.criteria] == [5, 4, 3, 2]
    assert "dropped: 1 criteria beyond max_criteria" in made.provenance.notes
    same = items(*[(str(n), "A cup is visible." + " " * n, 1) for n in range(3)])
    with pytest.raises(GenerationFailed, match="1 criteria are fewer than min_criteria=3"):
        build([Model("m", candidates=same)], fallback="none").generate_sync(PROMPT)


def test_equal_models_are_told_apart():
    made = build([Model("m", candidates=FIRST), Model("m", candidates=SECOND)]).generate_sync(PROMPT)
    assert made.provenance.extra["models"] == ["m", "m #2"]


def test_models_by_name_are_served_at_one_address():
    made = generators.build("coarse2fine", base_url="http://127.0.0.1:9/v1", models=["x", "y"])
    assert made.chat.model == "x" and made._labels == ["x", "y"]


def test_a_killed_run_asks_nothing_again(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        clients = two()
        first = build(clients, store=store).generate_sync(PROMPT, exemplars=SCORED)
        again = [Model(name, candidates=lambda text: pytest.fail("asked again")) for name in ("alpha", "beta")]
        assert build(again, store=store).generate_sync(PROMPT, exemplars=SCORED) == first
        assert not any(client.asked for client in again)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": [Model("m")], "models": ["x"]}, "not both"),
        ({"client": Model("m"), "models": ["x"]}, "give clients"),
        ({}, "give base_url"),
        ({"clients": [Model("m")], "min_criteria": 5, "max_criteria": 4}, "max_criteria"),
        ({"clients": [Model("m")], "max_evolved": -1}, "max_evolved"),
        ({"clients": [Model("m")], "judges": [object()]}, "judges"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        generators.build("coarse2fine", **options)


@pytest.mark.parametrize(
    ("exemplars", "message"),
    [
        (["one"], "nothing to differ from"),
        (["a", ScoredAnswer("b", 1)], "some have a score"),
        (["a", "b"], "option judges"),
        ([ScoredAnswer("a", 1), ScoredAnswer(b"no picture", 2)], "exemplar 1"),
    ],
)
def test_bad_exemplars_are_refused(exemplars, message):
    with pytest.raises(InputError, match=message):
        build([Model("m", candidates=FIRST)]).generate_sync(PROMPT, exemplars=exemplars)
