"""Keep / Follow / Quality with scripted answers (groups of Edit-RRM, arXiv 2604.27505)."""

from __future__ import annotations

import numpy as np
import pytest

from judges.rules import rule_of
from mmrubric import generators
from mmrubric.chat import Endpoint
from mmrubric.errors import InputError
from mmrubric.generators import edit  # noqa: F401
from mmrubric.generators.llm import GenerationFailed
from mmrubric.images import content_hash
from mmrubric.llm_pool import connect
from mmrubric.prompt import Box, Grounding
from mmrubric.store import Store, request_key
from tests.mmrubric.generators.scripted import Scripted, pictures_of, text_of

PROMPT = "Make the car blue."
SOURCE = np.full((16, 16, 3), 200, np.uint8)
BOXES = Grounding(layout=(Box("edit", 0.25, 0.5, 0.75, 1.0),))


def written(keep=4, follow=3, quality=3):
    groups = {
        "keep": "Thing number {} of the source is unchanged.",
        "follow": "Part number {} of the car is blue.",
        "quality": "Seam number {} blends in.",
    }
    counts = {"follow": follow, "keep": keep, "quality": quality}
    return {
        "criteria": [
            {"key": f"{name}{number}", "group": name, "criterion": groups[name].format(number)}
            for name, count in counts.items()
            for number in range(1, count + 1)
        ]
    }


def make(answers, **options):
    client = Scripted(answers)
    return client, generators.build("edit", client=client, **options)


def test_ten_questions_in_three_groups_with_the_source_before_the_question():
    client, editor = make([written()])
    rubric = editor.generate_sync(PROMPT, source=[SOURCE])
    assert [c.category for c in rubric.criteria] == ["keep"] * 4 + ["follow"] * 3 + ["quality"] * 3
    assert {c.verifier for c in rubric.criteria} == {"vlm"} and {c.weight for c in rubric.criteria} == {1.0}
    [request] = client.asked
    assert len(pictures_of(request)) == 1 and PROMPT in text_of(request) and "8 to 12 statements" in text_of(request)


def test_several_sources_are_shown_in_their_order_and_numbered():
    asked = []
    for sources in ([SOURCE, SOURCE // 2], [SOURCE // 2, SOURCE]):
        client, editor = make([written()])
        editor.generate_sync(PROMPT, sources)
        [request] = client.asked
        assert [picture.sha256 for picture in pictures_of(request)] == [content_hash(source) for source in sources]
        text = text_of(request)
        assert text.index("Source picture 1 (to be edited") < text.index("Source picture 2 (to be edited")
        asked.append(client.sent(request))
    assert asked[0] != asked[1]


def test_a_single_source_is_asked_about_as_ever():
    """The key was computed when a generator had one source at most; another one loses the answers in every store."""
    client, editor = make([written()])
    editor.generate_sync(PROMPT, [np.full((8, 8, 3), (0, 0, 255), np.uint8)])
    sent = connect([Endpoint(base_url="http://a/v1", model="m")]).sent(client.asked[0])
    assert request_key(sent, 0) == "ae491d535d0ed5f696da98e735aa54f326f77cc02066028ff71399e6e30f33ce"


def test_the_source_is_needed():
    _, editor = make([])
    with pytest.raises(InputError, match="sources: give the picture"):
        editor.generate_sync(PROMPT)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (written(keep=0, follow=5), "no criterion in the group keep"),
        (written(follow=0, keep=7), "no criterion in the group follow"),
        (written(keep=1, follow=1, quality=1), "3 different criteria; give at least 8"),
        ({"criteria": [{"group": "mood", "criterion": "It is calm."}]}, "criteria.0.group"),
        ({"criteria": [{"group": "keep", "criterion": " "}]}, "statement 1 is blank"),
        ({"criteria": [{"group": "keep", "criterion": "The car of image 2 stays."}]}, "names another sample"),
    ],
)
def test_a_bad_list_is_asked_for_again_and_then_is_an_error(bad, complaint):
    client, editor = make([bad, written()])
    assert len(editor.generate_sync(PROMPT, source=[SOURCE]).criteria) == 10
    assert complaint in text_of(client.asked[1])
    _, editor = make([bad, bad])
    with pytest.raises(GenerationFailed):
        editor.generate_sync(PROMPT, source=[SOURCE])


def test_over_the_cap_no_group_vanishes_and_the_cut_is_noted():
    _, editor = make([written(keep=9, follow=1, quality=1)], min_criteria=3, max_criteria=5)
    rubric = editor.generate_sync(PROMPT, source=[SOURCE])
    # Round-robin: keep1, follow1, quality1, keep2, keep3.
    assert rubric.ids == ("keep1", "keep2", "keep3", "follow1", "quality1")
    assert sum("over max_criteria" in note for note in rubric.provenance.notes) == 6


def test_weights_are_per_group():
    _, editor = make([written()], weights={"keep": 2.0, "follow": 3})
    weights = [c.weight for c in editor.generate_sync(PROMPT, source=[SOURCE]).criteria]
    assert weights == [2.0] * 4 + [3.0] * 3 + [1.0] * 3


def test_pixels_can_answer_one_criterion():
    _, editor = make([written()] * 2, keep_rule={"min_ssim": 0.9, "min_psnr": 30}, weights={"keep": 2.0})
    rubric = editor.generate_sync(PROMPT, source=[SOURCE], grounding=BOXES)
    rule = rubric.criterion("pixels_outside_the_edit")
    assert rule.verifier == "rule:keep" and rule.category == "keep" and rule.weight == 2.0
    assert rule.arguments == {"min_ssim": 0.9, "min_psnr": 30.0, "boxes": [[0.25, 0.5, 0.75, 1.0]]}
    rule_of(rule)  # the judge of rules takes these arguments
    # Without boxes the layout of the judge's request says what may change.
    assert "boxes" not in editor.generate_sync(PROMPT, source=[SOURCE]).criterion("pixels_outside_the_edit").arguments


def test_the_model_never_sees_the_grounding():
    client, editor = make([written()], keep_rule={"min_ssim": 0.9})
    editor.generate_sync(PROMPT, source=[SOURCE], grounding=BOXES)
    assert "0.25" not in text_of(client.asked[0]) and len(pictures_of(client.asked[0])) == 1


@pytest.mark.parametrize(
    ("grounding", "options", "message"),
    [
        (Grounding(passage="SENTINEL"), {"keep_rule": {"min_ssim": 0.9}}, "only layout boxes"),
        (Grounding(image=SOURCE), {"keep_rule": {"min_ssim": 0.9}}, "only layout boxes"),
        (Grounding(layout=(Box("car", 0, 0, 1, 1),)), {"keep_rule": {"min_ssim": 0.9}}, "only layout boxes"),
        (BOXES, {}, "serve keep_rule, which is not set"),
    ],
)
def test_grounding_that_would_do_nothing_is_refused(grounding, options, message):
    client, editor = make([], **options)
    with pytest.raises(InputError, match=message):
        editor.generate_sync(PROMPT, source=[SOURCE], grounding=grounding)
    assert not client.asked


def test_what_was_answered_is_not_asked_again_and_the_source_is_part_of_the_question(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        _, first = make([written()], store=store)
        client, second = make([written()], store=store)
        assert first.generate_sync(PROMPT, source=[SOURCE]) == second.generate_sync(PROMPT, source=[SOURCE])
        assert not client.asked
        second.generate_sync(PROMPT, source=[SOURCE // 2])
        assert len(client.asked) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"style": 1.0}}, "unknown style"),
        ({"weights": {"keep": 0}}, "above 0"),
        ({"keep_rule": {"ssim": 0.9}}, "known: min_ssim, min_psnr"),
        ({"keep_rule": {"min_ssim": 2.0}}, "outside"),
        ({"min_criteria": 2}, "3 <= min_criteria"),
        ({"min_criteria": 9, "max_criteria": 8}, "3 <= min_criteria"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        make([], **options)
