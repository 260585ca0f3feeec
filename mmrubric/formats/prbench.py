"""PRBench rows (finance and law).

Source: hub and code scaleapi/PRBench. The weight stands under a key named after its class:
`critically important` is `critically_important_weight`, and so on.
"""

from __future__ import annotations

from typing import Any

from mmrubric.formats.base import Loss, Place
from mmrubric.formats.export import Entry, Held, plain
from mmrubric.formats.fields import Item, build, items_of, mapping, number, record, rendered, written_as
from mmrubric.rubric import Rubric

_NAME = "prbench"
_CLASSES = ("critically important", "important", "slightly important", "detrimental")
_TURNS = 10
_ROLES = (("prompt", "user"), ("response", "assistant"))


def _key(weight_class: str) -> str:
    return f"{weight_class.replace(' ', '_')}_weight"


def _class(weight: float) -> str:
    """The class whose published range holds the weight: 8-10, 4-7, up to 3, below 0."""
    if weight < 0:
        return "detrimental"
    if weight >= 8:
        return "critically important"
    return "important" if weight > 3 else "slightly important"


def _item(item: Item) -> None:
    item.text("title")
    notes = mapping(item.rest.pop("annotations", None), "annotations", item.place)
    weight_class = notes.get("weight_class")
    found = [key for key in map(_key, _CLASSES) if notes.get(key) is not None]
    if isinstance(weight_class, str):
        key = _key(weight_class)
        if notes.get(key) is None:
            raise item.place.error(
                f"field 'annotations.{key}': is missing, but weight_class is {weight_class!r}; found: {found}"
            )
        found = [key]
    else:
        item.omitted.append("weight_class")
    if found:
        weight = number(notes.pop(found[0]), f"annotations.{found[0]}", item.place)
        if weight > 0 and weight_class == "detrimental":
            item.place.warn(
                "detrimental with a positive weight", f"weight_class 'detrimental', but the weight {weight:g} is > 0"
            )
        item.fields["weight"] = weight
    else:
        item.weight("weight")
    item.labels(category=None)
    category = notes.get("criteria_category")
    if isinstance(category, str) and category.strip():
        item.fields["category"] = notes.pop("criteria_category")
        if category == "general":
            item.explicit.append("criteria_category")
    if weight_class == _class(item.fields["weight"]):
        del notes["weight_class"]
    if notes:
        item.rest["annotations"] = notes


def _conversation(data: dict[str, Any]) -> list[dict[str, str]]:
    keys = [(f"{name}_{turn}", role) for turn in range(_TURNS) for name, role in _ROLES]
    said = [(key, role) for key, role in keys if isinstance(data.get(key), str)]
    # Where absent turns are blank, only the first one counts.
    return [{"role": role, "content": data[key]} for key, role in said if data[key] or key == "prompt_0"]


def from_prbench(raw: Any, place: Place) -> list[Rubric]:
    """Read `{task, field, prompt_0..9, response_0..8, reference_texts_i, rubric[{id, title, annotations}]}`."""
    data, place = record(raw, place)
    items = items_of(data.pop("rubric", None), "rubric", place, _item, id_expected=True)
    if items is None:
        return []
    prompt = rendered(_conversation(data))
    if prompt is None:
        raise place.error("field 'prompt_0': is missing; it must hold the text of the first turn")
    return build(_NAME, prompt, items, data, place, **written_as(items))


def to_prbench(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    """Write a PRBench row; a new weight gets the class whose range holds it."""
    held = Held(rubric, _NAME)
    out = held.record({"task": "", "field": ""})
    if rendered(_conversation(out)) != rubric.prompt:
        turns = {f"{name}_{turn}" for turn in range(_TURNS) for name, _ in _ROLES}
        out = {key: value for key, value in out.items() if key not in turns} | {"prompt_0": rubric.prompt}
    entries = [Entry(held, criterion, index, loss) for index, criterion in enumerate(rubric.criteria)]
    return {**out, "rubric": [_entry(entry) for entry in entries]}


def _entry(entry: Entry) -> dict[str, Any]:
    criterion = entry.criterion
    entry.loss.check(criterion)
    kept = criterion.extra.get("annotations")
    notes: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
    given = notes.pop("weight_class", None)
    # The given class stays while its sign is right: published ranges have gaps.
    fits = isinstance(given, str) and (given == "detrimental") == (criterion.weight < 0)
    weight_class = str(given) if fits else _class(criterion.weight)
    if not entry.omitted("weight_class"):
        notes["weight_class"] = weight_class
    notes[_key(weight_class)] = plain(criterion.weight)
    if criterion.category != "general" or entry.explicit("criteria_category"):
        notes["criteria_category"] = criterion.category
    entry.put("title", criterion.text)
    entry.put_id(expected=True)
    entry.put_labels(category=None)
    entry.replace("annotations", notes)
    return entry.done()
