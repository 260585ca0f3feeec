"""ATLAS's generator with scripted answers (arXiv 2603.06713)."""

from __future__ import annotations

import numpy as np
import pytest

from mmrubric import ScoreTable, aggregate, generators
from mmrubric.errors import InputError
from mmrubric.generators import category  # noqa: F401
from mmrubric.generators.llm import GenerationFailed
from mmrubric.store import Store
from tests.mmrubric.generators.scripted import Scripted, pictures_of, step_of, text_of

TASK = "Book the cheapest train to Ghent tomorrow."
WEIGHTS = {"TF": [10, 10, 9, 9, 8], "TA": [7, 8, 8], "TG": [6, 7], "PA": [5, 6]}
IMAGE = {"alignment": [9, 9, 8, 7, 7], "text": [6, 5], "quality": [5, 4, 4], "safety_realism": [6, 3]}


def written(weights, names=None):
    return {
        "criteria": [
            {"category": (names or {}).get(name, name), "criterion": f"{name} point {number} holds.", "weight": weight}
            for name, values in weights.items()
            for number, weight in enumerate(values)
        ]
    }


def make(answers, **options):
    client = Scripted(answers)
    return client, generators.build("category", client=client, **options)


def test_the_twelve_items_of_an_agent_give_the_papers_reward():
    client, atlas = make([written(WEIGHTS)], preset="agent")
    rubric = atlas.generate_sync(TASK)
    assert [c.category for c in rubric.criteria] == ["TF"] * 5 + ["TA"] * 3 + ["TG"] * 2 + ["PA"] * 2
    met = [1, 0.5, 1, 1, 0, 1, 1, 0, 0.5, 0.5, 0, 1]
    # S = 33/46 = .7174, 15/23 = .6522, .5, 6/11 = .5455; R = .4 S_TF + .25 S_TA + .2 S_TG + .15 S_PA = .6318
    reward = aggregate.build("category", alpha="atlas")(ScoreTable(rubric, [met]))
    np.testing.assert_allclose(reward, [0.631818], atol=1e-6)
    [request] = client.asked
    assert step_of(request) == "agent" and "exactly 12 statements" in text_of(request)
    assert "TF, 5 criteria" in text_of(request) and TASK in text_of(request)


def test_images_have_a_preset_of_their_own():
    client, images = make([written(IMAGE)])
    rubric = images.generate_sync("a red kite")
    assert [c.category for c in rubric.criteria] == (
        ["alignment"] * 5 + ["text"] * 2 + ["quality"] * 3 + ["safety_realism"] * 2
    )
    assert step_of(client.asked[0]) == "image"


@pytest.mark.parametrize(
    "names",
    [
        {"TF": "Task Fulfillment and Quality", "TA": "tool appropriateness", "PA": "Parameter-Accuracy"},
        {"TF": "task_fulfilment", "TG": "TOOL GROUNDING"},
    ],
)
def test_other_names_of_a_category_are_understood(names):
    _, atlas = make([written(WEIGHTS, names)], preset="agent")
    assert {c.category for c in atlas.generate_sync(TASK).criteria} == {"TF", "TA", "TG", "PA"}


def test_items_come_in_the_order_of_the_categories():
    mixed = written(WEIGHTS)
    mixed["criteria"].reverse()
    _, atlas = make([mixed], preset="agent")
    rubric = atlas.generate_sync(TASK)
    assert [c.category for c in rubric.criteria][:5] == ["TF"] * 5 and rubric.criteria[0].weight == 8


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (written(WEIGHTS | {"PA": [5]}), "PA has 1, needs 2"),
        (written(WEIGHTS | {"TF": [9] * 6}), "TF has 6, needs 5"),
        (written(WEIGHTS | {"TF": [9] * 4, "TA": [9] * 4}), "TF has 4, needs 5; TA has 4, needs 3"),
        (written(WEIGHTS, {"PA": "style"}), "category 'style' of criterion 11: known are TF, TA, TG, PA"),
        (written(WEIGHTS | {"PA": [5, 11]}), "less than or equal to 10"),
        (written(WEIGHTS | {"PA": [5, 0]}), "greater than or equal to 1"),
        ({"criteria": [{"category": "TF", "criterion": " ", "weight": 5}]}, "criterion 1 is blank"),
    ],
)
def test_wrong_numbers_are_asked_for_again_and_never_padded_or_cut(bad, complaint):
    client, atlas = make([bad, written(WEIGHTS)], preset="agent")
    assert len(atlas.generate_sync(TASK).criteria) == 12
    assert complaint in text_of(client.asked[1])
    _, atlas = make([bad, bad], preset="agent")
    with pytest.raises(GenerationFailed, match="unparsable"):
        atlas.generate_sync(TASK)


def test_repeats_are_allowed():
    twice = written(WEIGHTS)
    twice["criteria"][1]["criterion"] = twice["criteria"][0]["criterion"]
    _, atlas = make([twice], preset="agent")
    with pytest.warns(UserWarning, match="repeat each other"):
        rubric = atlas.generate_sync(TASK)
    assert rubric.ids[0] == "tf_point_0_holds" and rubric.ids[1] == "tf_point_0_holds_2"


def test_counts_can_be_chosen():
    client, images = make(
        [written({"alignment": [9], "quality": [5]})], counts={"OCR": 0, "safety": 0, "quality": 1, "alignment": 1}
    )
    assert len(images.generate_sync("a kite").criteria) == 2
    assert "exactly 2 statements" in text_of(client.asked[0]) and "lettering: " not in text_of(client.asked[0])


def test_a_possible_solution_is_shown_and_nothing_else():
    client, atlas = make([written(WEIGHTS)] * 2, preset="agent")
    atlas.generate_sync(TASK, exemplars=["search, then book SENTINEL"])
    assert "search, then book SENTINEL\n</solution-" in text_of(client.asked[0])
    client, images = make([written(IMAGE)])
    images.generate_sync("a kite", exemplars=[np.zeros((8, 8, 3), np.uint8)])
    assert len(pictures_of(client.asked[0])) == 1
    with pytest.raises(InputError, match="takes one exemplar"):
        images.generate_sync("a kite", exemplars=["a", "b"])
    with pytest.raises(InputError, match="takes no source"):
        images.generate_sync("a kite", source=[b"x"])


def test_what_was_answered_is_not_asked_again(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        _, first = make([written(IMAGE)], store=store)
        client, second = make([], store=store)
        assert first.generate_sync("a kite") == second.generate_sync("a kite") and not client.asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "music"}, "known: agent, image"),
        ({"counts": {"taste": 1}}, "unknown category 'taste'"),
        ({"counts": {"text": -1}}, "integer of at least 0"),
        ({"counts": {"text": True}}, "integer of at least 0"),
        ({"counts": dict.fromkeys(IMAGE, 0)}, "at least 1"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        make([], **options)
