"""MRRG's generator with scripted answers (arXiv 2607.01830)."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from mmrubric import PairVerdict, Rubric, ScoreTable, aggregate, generators, preference
from mmrubric.errors import InputError
from mmrubric.generators import multi_role  # noqa: F401  (registers the name)
from mmrubric.generators.llm import GenerationFailed
from mmrubric.generators.multi_role import ROLES
from mmrubric.store import Store
from mmrubric.verdict import Failure
from tests.mmrubric.generators.scripted import Scripted, pictures_of, step_of, text_of

PROMPT = "a red cup on a table"
NOTHING = {"same": [], "conflicts": []}
FOUR = {name: f"looks at {name}" for name in ("one", "two", "three", "four")}


def items(*texts, dimension="object", **more):
    return {"items": [{"criterion": text, "dimension": dimension, **more} for text in texts]}


class Roles:
    """Answers each role by its name, and the comparison by a function of the statements in their order."""

    def __init__(self, said, compared=lambda lines: NOTHING):
        self.said, self.compared = said, compared

    def __call__(self, request):
        text = text_of(request)
        if step_of(request) == "compare":
            lines = [line for line in text.splitlines() if line[:1].isdigit()]
            return self.compared([line.partition(". ")[2] for line in lines])
        name = text.partition("Look at it as looks at ")[2].partition(".")[0]
        return self.said.get(name, items())


def make(answers, **options):
    client = Scripted(answers)
    return client, generators.build("multi_role", client=client, **options)


SAID = {
    "one": items("The cup is red.", "The table is wooden."),
    "two": items("the cup is RED", "Light falls from the left."),
    "three": items("The cup is red.", "Nothing is deformed."),
}


def test_overlapping_roles_give_a_set_without_repeats_that_covers_them_all():
    client, mrrg = make(Roles(SAID), roles=FOUR)
    made = mrrg.generate_sync(PROMPT)
    assert {c.text.casefold().strip(".") for c in made.criteria} == {
        "the cup is red",
        "the table is wooden",
        "light falls from the left",
        "nothing is deformed",
    }
    # The statement of three roles comes first, with all of them; role four had nothing to say, which is valid.
    assert made.criteria[0].extra["roles"] == ["one", "three", "two"]
    assert made.provenance.roles == ("four", "one", "three", "two")
    assert [step_of(request) for request in client.asked] == ["role"] * 4 + ["compare"]


def test_the_rubric_does_not_depend_on_the_order_of_the_roles():
    def rubric(names):
        said = SAID | {"four": items("The cup is blue.", dimension="attribute", importance=3)}
        return make(Roles(said), roles={n: FOUR[n] for n in names}, importance=True)[1].generate_sync(PROMPT)

    first, *others = [rubric(names) for names in itertools.permutations(FOUR)]
    assert all(other.criteria == first.criteria and other.provenance.roles == first.provenance.roles
               for other in others)  # fmt: skip


def test_support_weights():
    # Our example: w = [1, 1], supports 3 and 1 of M = 4, b = [1, 0]: .75 / (.75 + .25) = .75, off: .5
    said = {name: items("The cup is red.") for name in ("one", "two", "three")} | {"four": items("It is dark.")}
    for on, expected in ((True, 0.75), (False, 0.5)):
        made = make(Roles(said), roles=FOUR, support_weights=on)[1].generate_sync(PROMPT)
        table = ScoreTable(made, [[1.0 if "cup" in c.text else 0.0 for c in made.criteria]])
        assert aggregate.build("weighted")(table) == pytest.approx([expected])


def test_a_pair_that_differs_on_the_second_role_only():
    made = make(Roles(SAID), roles=FOUR, fuse="words")[1].generate_sync(PROMPT)
    met = np.array([[1.0] * 4, [0.0 if "Light" in c.text else 1.0 for c in made.criteria]])
    assert preference.compare(ScoreTable(made, met), 0, 1) is PairVerdict.WIN_A
    assert preference.compare(ScoreTable(made, met[::-1]), 0, 1) is PairVerdict.WIN_B
    alone = [index for index, c in enumerate(made.criteria) if "one" in c.extra["roles"]]
    single = Rubric(prompt=PROMPT, criteria=tuple(made.criteria[index] for index in alone))
    assert preference.compare(ScoreTable(single, met[:, alone]), 0, 1) is PairVerdict.TIE


def test_a_role_sees_the_prompt_and_its_view_alone():
    client, mrrg = make(Roles(SAID), roles=FOUR)
    mrrg.generate_sync(PROMPT + " {{most}}")
    for request, view in zip(client.asked, FOUR.values(), strict=False):
        text = text_of(request)
        assert view in text and PROMPT + " {{most}}" in text and not pictures_of(request)
        assert not any(other in text for other in FOUR.values() if other != view)
    with pytest.raises(InputError, match="takes no exemplars"):
        mrrg.generate_sync(PROMPT, exemplars=[np.zeros((4, 4, 3), np.uint8)])


def test_the_source_of_an_edit_is_shown_to_every_role():
    client, mrrg = make(Roles(SAID), roles=FOUR)
    mrrg.generate_sync(PROMPT, source=[np.zeros((32, 32, 3), np.uint8)])
    assert [len(pictures_of(request)) for request in client.asked] == [1, 1, 1, 1, 0]


def test_no_role_counts_beyond_its_cap():
    chatty = SAID | {"one": items(*(f"Some {n} are visible." for n in ["apples", "pears", "nuts", "figs", "plums"]))}
    made = make(Roles(chatty), roles=FOUR, per_role=2)[1].generate_sync(PROMPT)
    assert sum(c.text.startswith("Some") for c in made.criteria) == 2
    assert "role 'one': the last 3 statements are beyond per_role" in made.provenance.notes


def test_the_cap_after_fusion_keeps_every_category_and_the_most_supported():
    said = {
        "one": items("The cup is red.", "A spoon is visible.", "A plate is visible."),
        "two": items("The cup is red.", "A fork is visible."),
        "three": items("Nothing is deformed.", dimension="realism"),
    }
    made = make(Roles(said), roles=FOUR, max_criteria=2)[1].generate_sync(PROMPT)
    assert [c.text for c in made.criteria] == ["The cup is red.", "Nothing is deformed."]
    assert "dropped: 3 statements beyond max_criteria" in made.provenance.notes


@pytest.mark.parametrize(
    ("backers", "policy", "kept"),
    [(2, "support", {"The cup is red."}), (1, "support", set()), (2, "drop", set())],
)
def test_contradictions(backers, policy, kept):
    said = {name: items("The cup is red.") for name in ("one", "two")[:backers]}
    said |= {"three": items("The cup is blue."), "four": items("A table is visible.")}
    made = make(Roles(said), roles=FOUR, contradictions=policy)[1].generate_sync(PROMPT)
    assert {c.text for c in made.criteria} == kept | {"A table is visible."}
    assert any("contradicts" in note for note in made.provenance.notes)


def test_the_model_finds_what_wording_does_not():
    said = {
        "one": items("The cup is made of clay.", "It is night."),
        "two": items("The mug is ceramic.", "Exactly two cups are visible."),
        "three": items("The sun shines.", "It is night.", "A pair of three cups is visible."),
    }

    def compared(lines):
        place = {line: number for number, line in enumerate(lines, 1)}
        return {
            "same": [
                [place["The cup is made of clay."], place["The mug is ceramic."]],
                [place["Exactly two cups are visible."], place["A pair of three cups is visible."]],
            ],
            "conflicts": [[place["It is night."], place["The sun shines."]]],
        }

    made = make(Roles(said, compared), roles=FOUR)[1].generate_sync(PROMPT)
    texts = {c.text: c.extra["roles"] for c in made.criteria}
    assert texts["The cup is made of clay."] == ["one", "two"] and "The mug is ceramic." not in texts
    assert "The sun shines." not in texts and "It is night." in texts
    # Numbers differ, so the model's word for it is not taken.
    assert {"Exactly two cups are visible.", "A pair of three cups is visible."} <= set(texts)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"same": [[1, 99]], "conflicts": []}, r"numbers \[99\] are not in the list"),
        ({"same": [[1, 2], [2, 3]], "conflicts": []}, r"\[2\] are in two groups"),
        ({"same": [], "conflicts": [[1, 1]]}, "cannot exclude itself"),
    ],
)
def test_a_bad_comparison_is_asked_again_and_then_wording_decides(bad, complaint):
    client, mrrg = make(Roles(SAID, lambda lines: bad), roles=FOUR)
    made = mrrg.generate_sync(PROMPT)
    assert len(made.criteria) == 4 and len(client.asked) == 6
    [note] = [note for note in made.provenance.notes if "compared by wording alone" in note]
    assert re.search(complaint, note)


def test_an_unreadable_role_is_left_out_and_recorded():
    def model(request):
        if "looks at two" in text_of(request):
            return "no JSON"
        return Roles(SAID)(request)

    made = make(model, roles=FOUR, support_weights=True)[1].generate_sync(PROMPT)
    assert made.provenance.roles == ("four", "one", "three")
    assert any("role 'two' gave no usable answer" in note for note in made.provenance.notes)
    # Supported by two of the three that answered.
    assert made.criteria[0].weight == pytest.approx(2 / 3)


def test_blanks_and_line_breaks_in_a_statement_are_single_blanks():
    said = {"one": items(" The cup\n is  red. ")}
    assert make(Roles(said), roles=FOUR)[1].generate_sync(PROMPT).criteria[0].text == "The cup is red."


def test_fewer_than_two_roles_left_is_an_error():
    def model(request):
        return Roles(SAID)(request) if "looks at one" in text_of(request) else Failure.server_error

    with pytest.raises(GenerationFailed, match=r"fewer than two roles answered.*'two'"):
        make(model, roles=FOUR, fallback="none")[1].generate_sync(PROMPT)


def test_importance_is_read_only_when_it_is_asked_for():
    said = {"one": items("The cup is red.", importance=1), "two": items("The cup is red.", importance=3)}
    client, mrrg = make(Roles(said), roles=FOUR, importance=True)
    assert mrrg.generate_sync(PROMPT).criteria[0].weight == 3, "the highest weight stays"
    assert "importance is 1; 2 if" in text_of(client.asked[0])
    client, mrrg = make(Roles(said), roles=FOUR)
    assert mrrg.generate_sync(PROMPT).criteria[0].weight == 1
    assert "importance is 1; 2 if" not in text_of(client.asked[0])


def test_shipped_roles():
    assert all(len(roles) == 6 for roles in ROLES.values())
    client, mrrg = make(lambda request: items("The cup is red.") if step_of(request) == "role" else NOTHING)
    assert mrrg.generate_sync(PROMPT).provenance.roles == tuple(sorted(ROLES["image"]))
    assert client.asked[0].temperature == 0.3


def test_an_encoder_finds_repeats_by_meaning():
    said = {"one": items("A mug is visible."), "two": items("A beaker can be seen.")}
    made = make(Roles(said), roles=FOUR, encoder=lambda texts: np.ones((len(texts), 2)))[1].generate_sync(PROMPT)
    assert len(made.criteria) == 1 and made.criteria[0].extra["roles"] == ["one", "two"]


def test_a_killed_run_asks_nothing_again(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        one, first = make(Roles(SAID), roles=FOUR, store=store)
        two, second = make(lambda request: pytest.fail("asked again"), roles=FOUR, store=store)
        assert first.generate_sync(PROMPT) == second.generate_sync(PROMPT) and one.asked and not two.asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roles": "music"}, "known: image, text"),
        ({"roles": {"one": "x"}}, "two or more"),
        ({"roles": {"one": "x", "two": " "}}, "two or more"),
        ({"per_role": 0}, "per_role"),
        ({"max_criteria": True}, "max_criteria"),
        ({"contradictions": "both"}, "known: drop, support"),
        ({"fuse": "magic"}, "known: llm, words"),
        ({"importance": 1}, "neither true nor false"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        make([], **options)
