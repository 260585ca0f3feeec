"""Import-only formats whose criteria are objects: verifiers, rubric-reward-lens, Vertex, ResearchRubrics.

Fields and mappings as in field notes 3.2.
"""

from __future__ import annotations

from typing import Any

from mmrubric.formats.base import Place
from mmrubric.formats.fields import Item, build, container, conversation, decoded, items_of, record, text_of
from mmrubric.rubric import Rubric

_IMPORTANCE = {"HIGH": 3.0, "MEDIUM": 2.0, "LOW": 1.0}
"""Our choice: the numeric meaning is not published."""


def from_verifiers(raw: Any, place: Place) -> list[Rubric]:
    """Read `criteria{name, text, weight, choices}` of a verifiers TOML or JSON file.

    Choices run from worst to best and give value index / (K - 1); the default, no and yes, is a binary scale.
    """
    data, place = record(raw, place)
    items = items_of(data.pop("criteria", None), "criteria", place, _verifiers_item, id_key="name")
    if items is None:
        return []
    return build("verifiers", data.pop("prompt", None) or "", items, data, place)


def _verifiers_item(item: Item) -> None:
    item.text("text")
    item.weight("weight")
    item.labels()
    choices = item.take("choices")
    if choices is None:
        return
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) for choice in choices):
        raise item.place.error(f"field 'choices': expected two or more texts, worst first, got {choices!r}")
    words = [choice.strip().lower() for choice in choices]
    if words == ["yes", "no"]:
        item.fields["expected"] = "no"
    elif words != ["no", "yes"]:
        item.fields |= {"scale": "ordinal", "anchors": choices}


def from_reward_lens(raw: Any, place: Place) -> list[Rubric]:
    """Read `{name, criteria[{id, text, weight, polarity}]}` of rubric-reward-lens; AVOID gives a negative weight."""
    data, place = record(raw, place)
    items = items_of(data.pop("criteria", None), "criteria", place, _lens_item)
    if items is None:
        return []
    return build("rubric_reward_lens", data.pop("prompt", None) or "", items, data, place)


def _lens_item(item: Item) -> None:
    item.text("text")
    item.weight("weight")
    item.labels()
    polarity = item.rest.get("polarity")
    if isinstance(polarity, str) and polarity.upper() == "AVOID":
        item.fields["weight"] = -abs(item.fields["weight"])


def from_vertex(raw: Any, place: Place) -> list[Rubric]:
    """Read `{rubricId, content.property.description, type, importance}`, as a list or under `rubrics`.

    HIGH, MEDIUM and LOW weigh 3, 2 and 1.
    """
    listed = decoded(raw)
    data, place = ({}, place) if isinstance(listed, list) else record(raw, place)
    found = listed if isinstance(listed, list) else data.pop("rubrics", None)
    items = items_of(found, "rubrics", place, _vertex_item, id_key="rubricId")
    if items is None:
        return []
    return build("vertex", data.pop("prompt", None) or "", items, data, place)


def _vertex_item(item: Item) -> None:
    content = container(item.take("content"), "content", item.place)
    inner = content.get("property") if isinstance(content, dict) else None
    description = inner.get("description") if isinstance(inner, dict) else None
    item.fields["text"] = text_of(description, "content.property.description", item.place)
    importance = item.take("importance")
    if importance is not None:
        if not isinstance(importance, str) or importance.upper() not in _IMPORTANCE:
            raise item.place.error(f"field 'importance': unknown value {importance!r}; known: {', '.join(_IMPORTANCE)}")
        item.fields["weight"] = _IMPORTANCE[importance.upper()]
    item.labels()


def from_researchrubrics(raw: Any, place: Place) -> list[Rubric]:
    """Read `{prompt, domain, sample_id, rubrics[{criterion, weight, axis}]}`; the axis is the category."""
    data, place = record(raw, place)
    items = items_of(data.pop("rubrics", None), "rubrics", place, _research_item)
    if items is None:
        return []
    prompt, turns = conversation(data.pop("prompt", None), "prompt", place)
    if isinstance(turns, list):
        data["prompt"] = turns
    return build("researchrubrics", prompt, items, data, place)


def _research_item(item: Item) -> None:
    item.text("criterion")
    item.weight("weight")
    item.labels("axis")
