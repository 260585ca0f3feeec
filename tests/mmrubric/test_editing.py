"""A person's edits of a rubric, and the difference of two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrubric import editing
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric

RUBRIC = Rubric(
    prompt="a red cup",
    criteria=(
        Criterion(id="cup", text="A cup is visible.", category="object"),
        Criterion(id="red", text="The cup is red.", category="attribute", weight=2.0, depends_on=("cup",)),
        Criterion(id="mark", text="A watermark is visible.", category="realism", weight=-3.0),
        Criterion(id="whole", text="Nothing is deformed.", category="realism"),
    ),
)


def weights(rubric: Rubric) -> dict[str, float]:
    return {criterion.id: criterion.weight for criterion in rubric.criteria}


def test_every_edit_is_a_new_version_that_names_its_parent():
    edited = editing.set_weight(RUBRIC, "cup", 5)
    assert edited.provenance.version == 2 and edited.provenance.parent == RUBRIC.hash and edited.hash != RUBRIC.hash
    assert editing.remove(edited, "mark").provenance.version == 3


def test_a_weight_is_a_magnitude_and_polarity_the_sign():
    assert weights(editing.set_weight(RUBRIC, "mark", 4))["mark"] == -4
    assert weights(editing.set_weight(RUBRIC, "category:realism", 4)) == {"cup": 1, "red": 2, "mark": -4, "whole": 4}
    assert weights(editing.set_polarity(RUBRIC, "mark", "wanted"))["mark"] == 3
    assert weights(editing.set_polarity(RUBRIC, "category:realism", "unwanted"))["whole"] == -1


def test_what_is_switched_off_comes_back_as_it_was():
    off = editing.disable(RUBRIC, "cup")
    assert off.ids == ("red", "mark", "whole") and off.criterion("red").depends_on == ()
    assert [criterion.id for criterion in editing.disabled(off)] == ["cup"]
    on = editing.enable(off, "cup")
    assert on.criterion("cup") == RUBRIC.criterion("cup") and editing.disabled(on) == []


def test_switched_off_criteria_survive_a_file(tmp_path):
    off = editing.disable(RUBRIC, "category:realism")
    off.save(tmp_path / "r.yaml")
    assert editing.enable(Rubric.load(tmp_path / "r.yaml"), "mark").criterion("mark").weight == -3


def test_what_is_locked_stays_through_edits_and_drafts():
    locked = editing.set_locked(RUBRIC, "red", True)
    for edit in (editing.remove, editing.disable, lambda r, s: editing.set_weight(r, s, 2)):
        with pytest.raises(InputError, match="locked: red; unlock first"):
            edit(locked, "red")
    with pytest.raises(InputError, match="locked"):
        editing.remove(locked, "category:attribute")
    draft = Rubric(
        prompt="a red cup", criteria=(Criterion(id="red", text="It is red."), Criterion(id="new", text="New."))
    )
    merged = editing.keep_locked(locked, draft)
    assert [(c.id, c.text) for c in merged.criteria] == [("red", "The cup is red."), ("new", "New.")]
    assert merged.provenance.parent == locked.hash
    assert editing.set_weight(editing.set_locked(locked, "red", False), "red", 9).criterion("red").weight == 9


def test_what_is_switched_off_stays_off_in_a_new_draft():
    off = editing.disable(RUBRIC, "mark")
    merged = editing.keep_locked(off, RUBRIC)
    assert merged.ids == ("cup", "red", "whole") and [c.id for c in editing.disabled(merged)] == ["mark"]


def test_always_on_criteria_are_added_once():
    always = [Criterion(id="mark", text="Other."), Criterion(id="bright", text="The picture is bright.")]
    assert editing.with_always(RUBRIC, always).ids == (*RUBRIC.ids, "bright")
    assert editing.with_always(RUBRIC, always).criterion("mark").text == "A watermark is visible."
    assert editing.with_always(RUBRIC, always[:1]) is RUBRIC


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: editing.remove(RUBRIC, "cups"), "known: cup, red, mark, whole, category:attribute"),
        (lambda: editing.set_weight(RUBRIC, "cup", 0), "above 0"),
        (lambda: editing.set_weight(RUBRIC, "cup", float("nan")), "not a finite number"),
        (lambda: editing.set_weight(RUBRIC, "cup", float("inf")), "not a finite number"),
        (lambda: editing.set_polarity(RUBRIC, "cup", "good"), "wanted or unwanted"),
        (lambda: editing.enable(RUBRIC, "cup"), "switched off: nothing"),
        (lambda: editing.add(RUBRIC, Criterion(id="cup", text="Again.")), "unique"),
        (lambda: editing.remove(editing.remove(RUBRIC, "category:realism").without("cup", "red"), "x"), "at least one"),
        (lambda: editing.parse_criterion("  ", id="x"), "must not be blank"),
        (lambda: editing.keep_locked(RUBRIC, RUBRIC.model_copy(update={"prompt": "a dog"})), "different prompts"),
    ],
)
def test_bad_edits_say_what_is_wrong(edit, message):
    with pytest.raises(InputError, match=message):
        edit()


def test_the_last_criterion_stays():
    one = RUBRIC.without("red", "mark", "whole")
    with pytest.raises(InputError, match="no criterion would be left"):
        editing.disable(one, "cup")


def test_a_difference_is_by_id_and_field():
    other = editing.add(editing.set_weight(editing.remove(RUBRIC, "mark"), "red", 5), Criterion(id="new", text="New."))
    found = editing.diff(RUBRIC, other)
    assert [c.id for c in found.added] == ["new"] and [c.id for c in found.removed] == ["mark"]
    assert found.changed == (editing.Change("red", "weight", 2.0, 5.0),) and found.prompts is None
    assert editing.diff(RUBRIC, RUBRIC.model_copy(update={"prompt": "x"})).prompts == ("a red cup", "x")


@given(st.permutations(RUBRIC.criteria))
def test_order_is_no_difference(criteria):
    assert editing.diff(RUBRIC, RUBRIC.model_copy(update={"criteria": tuple(criteria)})).empty
