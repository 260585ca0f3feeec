"""Edits of the shapes world: grammar, split, prompts, what the criteria mean."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mmrubric import generators
from mmrubric.errors import InputError
from mmrubric.shapes import Item, Scene, Seen, SeenItem, render, seen_of
from mmrubric.shapes.edit_checks import edit_boxes, holds_after
from mmrubric.shapes.edits import (
    KIND_SHARES,
    Edit,
    EditCase,
    apply,
    draw_cases,
    draw_edit_prompts,
    edits_of,
    enumerate_edits,
    parse_edit,
    prompt_of,
)

SOURCE = Scene("white", (Item("circle", "blue", 20, 20, 6), Item("square", "green", 44, 44, 6)))


def after(scene: Scene, edit: Edit, source: Scene = SOURCE) -> dict[str, bool | None]:
    """Truth of each criterion of the edit by its id, for a scene that shows `scene` after the edit."""
    rubric = generators.build("shapes_edit").generate_sync(edit.text)
    return {
        c.id: holds_after(c.arguments, seen_of(source), seen_of(scene)) for c in rubric.criteria if c.id != "pixels"
    }


def wrong(verdicts: dict[str, bool | None]) -> set[str]:
    return {name for name, held in verdicts.items() if not held}


def test_every_instruction_is_read_as_what_wrote_it():
    edits = [edit for kind in KIND_SHARES for edit in enumerate_edits(kind)]
    # 4 shapes x (6 colours + 1 removal + 4 directions)
    assert len(edits) == len({edit.text for edit in edits}) == 44
    assert [parse_edit(edit.text) for edit in edits] == edits
    assert parse_edit(" Make the  circle RED. ") == Edit("recolour", "circle", "red")


@pytest.mark.parametrize("text", ["make the circle", "make the circle pink", "move the word left", "remove it", ""])
def test_an_instruction_outside_the_grammar_is_refused_with_examples(text: str):
    with pytest.raises(InputError, match=re.escape(repr(text)) + ".*'remove the square'"):
        parse_edit(text)


def test_an_edit_changes_the_named_shape_alone():
    circle, square = SOURCE.items
    assert apply(SOURCE, Edit("remove", "circle")).items == (square,)
    assert apply(SOURCE, Edit("recolour", "square", "red")).items == (circle, Item("square", "red", 44, 44, 6))
    assert apply(SOURCE, Edit("move", "circle", "down")).items == (Item("circle", "blue", 20, 36, 6), square)
    assert apply(seen_of(SOURCE), Edit("remove", "circle")) == seen_of(Scene("white", (square,)))
    with pytest.raises(InputError, match="exactly one cross in the source picture, which shows 0"):
        apply(SOURCE, Edit("remove", "cross"))


def test_edits_of_a_scene_change_it_and_fit():
    # the circle has 14 pixels to the left and top border, a move takes 16; the square as many to the right and bottom
    assert {edit.text for edit in edits_of(SOURCE, "move")} == {
        "move the circle right", "move the circle down", "move the square left", "move the square up",
    }  # fmt: skip
    assert Edit("recolour", "circle", "blue") not in edits_of(SOURCE, "recolour")
    assert len(edits_of(SOURCE, "recolour")) == 2 * 5
    # 20 + 16 = 36 is less than 1.1 (6 + 6) + 3 from the square at 44 along x, and they share the row
    row = Scene("white", (Item("circle", "blue", 20, 44, 6), Item("square", "green", 44, 44, 6)))
    assert "move the circle right" not in {edit.text for edit in edits_of(row, "move")}


def test_splits_share_no_combination_and_sources_show_each_shape_once():
    cases = {split: draw_cases(split, 300, np.random.default_rng(0)) for split in ("train", "heldout")}
    keys = {split: {case.combination for case in drawn} for split, drawn in cases.items()}
    assert not keys["train"] & keys["heldout"]
    for split, drawn in cases.items():
        assert {case.split for case in drawn} == {split}
        for case in drawn:
            shapes = [item.shape for item in case.source.items]
            assert 2 <= len(shapes) == len(set(shapes)) <= 3
            assert case.target != case.source
        share = np.mean([case.edit.kind == "remove" for case in drawn])
        # 300 draws at 0.2: four standard errors are 0.09
        assert share == pytest.approx(KIND_SHARES["remove"], abs=0.09)


def test_prompts_are_a_function_of_split_and_seed():
    first, again = (draw_edit_prompts("heldout", 20, seed=3) for _ in range(2))
    assert [p.id for p in first] == [p.id for p in again]
    pictures = [[np.asarray(prompt.sources[0]) for prompt in drawn] for drawn in (first, again)]
    assert np.array_equal(pictures[0], pictures[1])
    assert [p.id for p in draw_edit_prompts("heldout", 8, seed=3)] == [p.id for p in first[:8]]
    assert not {p.id for p in first} & {p.id for p in draw_edit_prompts("heldout", 20, seed=4)}
    assert len({p.id for p in first}) == 20
    assert pictures[0][0].shape == (64, 64, 3) and pictures[0][0].dtype == np.uint8
    with pytest.raises(InputError, match="unknown split 'test'"):
        draw_edit_prompts("test", 2)


def test_the_id_of_a_prompt_covers_its_picture():
    moved = Scene("white", (Item("circle", "blue", 28, 20, 6), SOURCE.items[1]))
    one, two = (prompt_of(EditCase(Edit("remove", "circle"), scene)) for scene in (SOURCE, moved))
    assert one.text == two.text and one.id != two.id


def test_the_wanted_picture_holds_everything():
    for case in draw_cases("heldout", 200, np.random.default_rng(1)):
        assert not wrong(after(case.target, case.edit, case.source)), case


RECOLOUR, REMOVE, MOVE = Edit("recolour", "circle", "red"), Edit("remove", "circle"), Edit("move", "circle", "right")
CIRCLE, SQUARE = SOURCE.items
RED = Item("circle", "red", 20, 20, 6)
MOVED = Item("circle", "blue", 36, 20, 6)


@pytest.mark.parametrize(
    ("edit", "items", "background", "expected"),
    [
        (RECOLOUR, (CIRCLE, SQUARE), "white", {"edit_done"}),
        (RECOLOUR, (Item("circle", "orange", 20, 20, 6), SQUARE), "white", {"edit_done"}),
        (RECOLOUR, (SQUARE,), "white", {"edit_done", "edited_place"}),
        (RECOLOUR, (RED, Item("square", "red", 44, 44, 6)), "white", {"others_colour"}),
        (RECOLOUR, (RED, Item("square", "green", 44, 38, 6)), "white", {"others_place"}),
        (RECOLOUR, (RED, Item("square", "green", 44, 40, 6)), "white", set()),
        (RECOLOUR, (Item("circle", "red", 26, 20, 6), SQUARE), "white", {"edited_place"}),
        (RECOLOUR, (RED, SQUARE), "gray", {"background"}),
        (RECOLOUR, (RED,), "white", {"others_there", "others_colour", "others_place"}),
        (RECOLOUR, (RED, SQUARE, Item("cross", "red", 20, 48, 6)), "white", {"nothing_new"}),
        (RECOLOUR, (RED, SQUARE, Item("circle", "red", 20, 48, 6)), "white", {"nothing_new"}),
        (REMOVE, (CIRCLE, SQUARE), "white", {"edit_done"}),
        (REMOVE, (), "white", {"others_there", "others_colour", "others_place"}),
        (MOVE, (CIRCLE, SQUARE), "white", {"edit_done"}),
        (MOVE, (CIRCLE, MOVED, SQUARE), "white", {"edit_done", "nothing_new"}),
        (MOVE, (Item("circle", "blue", 27, 20, 6), SQUARE), "white", {"edit_done"}),
        (MOVE, (Item("circle", "blue", 28, 25, 6), SQUARE), "white", set()),
        (MOVE, (Item("circle", "blue", 36, 26, 6), SQUARE), "white", {"edit_done"}),
        (MOVE, (Item("circle", "red", 36, 20, 6), SQUARE), "white", {"edited_colour"}),
    ],
)
def test_near_misses_fail_what_they_break_and_nothing_else(
    edit: Edit, items: tuple[Item, ...], background: str, expected: set[str]
):
    assert wrong(after(Scene(background, items), edit)) == expected


def test_a_smudge_is_new_and_not_plain():
    seen = Seen("white", (*seen_of(SOURCE).items[1:], SeenItem("other", "other", "small", 10, 10)))
    rubric = generators.build("shapes_edit").generate_sync(REMOVE.text)
    held = {c.id: holds_after(c.arguments, seen_of(SOURCE), seen) for c in rubric.criteria if c.id != "pixels"}
    assert wrong(held) == {"nothing_new", "plain"}


def test_a_source_without_the_named_shape_leaves_the_edit_unknown():
    held = after(SOURCE, Edit("recolour", "cross", "red"))
    assert held["edit_done"] is None and held["edited_place"] is None and held["background"] is True


def test_the_region_of_a_move_is_both_places():
    boxes = edit_boxes({"shape": "circle", "direction": "right"}, seen_of(SOURCE))
    # a small circle reaches 1.1 * 6.5 + 3 = 10.15 pixels around (20, 20) and (36, 20)
    expected = [(9.85 / 64, 9.85 / 64, 30.15 / 64, 30.15 / 64), (25.85 / 64, 9.85 / 64, 46.15 / 64, 30.15 / 64)]
    assert boxes is not None and np.allclose(boxes, expected)
    assert edit_boxes({"shape": "cross"}, seen_of(SOURCE)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"check": "turned", "shape": "circle"}, "unknown check 'turned'"),
        ({"check": "removed"}, "needs the argument 'shape'"),
        ({"check": "recoloured", "shape": "circle", "colour": "pink"}, "argument colour: unknown 'pink'"),
        ({"check": "moved", "shape": "disc", "direction": "up"}, "argument shape: unknown 'disc'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, message: str):
    with pytest.raises(InputError, match=message):
        holds_after(arguments, seen_of(SOURCE), seen_of(SOURCE))


def test_the_generator_groups_its_criteria_and_refuses_what_it_does_not_read():
    rubric = generators.build("shapes_edit", weights={"follow": 3.0}).generate_sync(MOVE.text, source=[render(SOURCE)])
    assert [c.category for c in rubric.criteria] == ["follow", *["keep"] * 6, *["quality"] * 2]
    assert [c.weight for c in rubric.criteria] == [3.0, *[1.0] * 8]
    hard = generators.build("shapes_edit", hard=True).generate_sync(MOVE.text)
    assert [c.id for c in hard.criteria if c.hard] == ["edit_done"] and not any(c.hard for c in rubric.criteria)
    with pytest.raises(InputError, match="unknown group 'style'"):
        generators.build("shapes_edit", weights={"style": 1.0})
    with pytest.raises(InputError, match="min_psnr must be above 0"):
        generators.build("shapes_edit", min_psnr=0.0)
    with pytest.raises(InputError, match="no grounding or exemplars"):
        generators.build("shapes_edit").generate_sync(MOVE.text, exemplars=["x"])
