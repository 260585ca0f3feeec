"""HealthBench rows, the published one and the professional variant.

Source: HealthBench, arXiv 2505.08775; fields as in field notes 2.1. A weight is called `points`.
"""

from __future__ import annotations

from typing import Any

from mmrubric.formats.base import Loss, Place
from mmrubric.formats.export import Entry, Held
from mmrubric.formats.fields import Item, build, conversation, items_of, mapping, record, spoken, written_as
from mmrubric.rubric import Rubric

_NAME, _PROFESSIONAL = "healthbench", "healthbench_professional"


def _item(item: Item) -> None:
    item.text("criterion")
    item.weight("points")
    item.default("tags", [])
    item.labels()


def from_healthbench(raw: Any, place: Place) -> list[Rubric]:
    """Read `{prompt_id, prompt[], rubrics[{criterion, points, tags}], example_tags, ideal_completions_data}`."""
    data, place = record(raw, place)
    items = items_of(data.pop("rubrics", None), "rubrics", place, _item)
    if items is None:
        return []
    prompt, turns = conversation(data.pop("prompt", None), "prompt", place)
    if turns is not None:
        data["prompt"] = turns
    return build(_NAME, prompt, items, data, place, **written_as(items))


def to_healthbench(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    """Write a HealthBench row; a rubric from elsewhere gets its content hash as `prompt_id`."""
    held = Held(rubric, _NAME)
    out = held.record({"prompt_id": rubric.hash, "example_tags": [], "ideal_completions_data": None})
    out["prompt"] = spoken(rubric.prompt, out.get("prompt"))
    out["rubrics"] = []
    for index, criterion in enumerate(rubric.criteria):
        loss.check(criterion)
        entry = Entry(held, criterion, index, loss)
        entry.put("criterion", criterion.text)
        entry.put_weight("points")
        entry.put_extra("tags", [])
        entry.put_id()
        entry.put_labels()
        out["rubrics"].append(entry.done())
    return out


def _professional_item(item: Item) -> None:
    item.text("criterion_text")
    item.weight("points")
    item.labels()


def from_professional(raw: Any, place: Place) -> list[Rubric]:
    """Read `{id, use_case, type, ..., conversation{messages[]}, rubric_items[{criterion_text, points}]}`."""
    data, place = record(raw, place)
    items = items_of(data.pop("rubric_items", None), "rubric_items", place, _professional_item)
    if items is None:
        return []
    data["conversation"] = mapping(data.get("conversation"), "conversation", place)
    prompt, turns = conversation(data["conversation"].pop("messages", None), "conversation.messages", place)
    if turns is not None:
        data["conversation"]["messages"] = turns
    return build(_PROFESSIONAL, prompt, items, data, place, **written_as(items))


def to_professional(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    """Write a row of the professional variant; a rubric from elsewhere gets its content hash as `id`."""
    held = Held(rubric, _PROFESSIONAL)
    blank = {"use_case": "", "type": "", "difficulty": "", "specialty": ""}
    out = held.record({"id": rubric.hash, **blank, "conversation": {}})
    kept = out["conversation"]
    out["conversation"] = {**kept, "messages": spoken(rubric.prompt, kept.get("messages"))}
    out["rubric_items"] = []
    for index, criterion in enumerate(rubric.criteria):
        loss.check(criterion)
        entry = Entry(held, criterion, index, loss)
        entry.put("criterion_text", criterion.text)
        entry.put_weight("points")
        entry.put_id()
        entry.put_labels()
        out["rubric_items"].append(entry.done())
    return out
