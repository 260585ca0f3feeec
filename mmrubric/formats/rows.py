"""Import-only rows whose rubric is a list of texts: AdvancedIF and Auto-Rubric. Fields as in field notes 3.2."""

from __future__ import annotations

from typing import Any

from mmrubric.formats.base import Place
from mmrubric.formats.fields import build, conversation, mapping, record, rows
from mmrubric.formats.texts import text_items
from mmrubric.rubric import Rubric


def from_advancedif(raw: Any, place: Place) -> list[Rubric]:
    """Read `{conversation_history, prompt_metadata}` with `rubrics` inside the metadata; either may be JSON text."""
    data, place = record(raw, place)
    notes = mapping(data.pop("prompt_metadata", None), "prompt_metadata", place)
    found = rows(notes.pop("rubrics", None), "prompt_metadata.rubrics", place)
    if found is None:
        return []
    prompt, turns = conversation(data.pop("conversation_history", None), "conversation_history", place)
    if turns is not None:
        data["conversation_history"] = turns
    items = text_items(found, "prompt_metadata.rubrics", place)
    return build("advancedif", prompt, items, {**data, "prompt_metadata": notes}, place)


def from_auto_rubric(raw: Any, place: Place) -> list[Rubric]:
    """Read `{unique_id, source, rubrics[str], rubric_valid, rubric_epoch, input, output}`.

    A row whose `rubric_valid` is not "True" gives no rubric and is counted.
    """
    data, place = record(raw, place)
    if str(data.get("rubric_valid")) != "True":
        place.warn("rubric_valid is not True", f"field 'rubric_valid' is {data.get('rubric_valid')!r}: row left out")
        return []
    found = rows(data.pop("rubrics", None), "rubrics", place)
    if found is None:
        return []
    prompt, turns = conversation(data.pop("input", None), "input", place)
    if isinstance(turns, list):
        data["input"] = turns
    return build("auto_rubric", prompt, text_items(found, "rubrics", place), data, place)
