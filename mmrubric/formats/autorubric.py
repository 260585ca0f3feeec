"""autorubric YAML and its data sets, and the lists of the `rubric` package, which have the same layout.

A rubric is a list of criteria, or that list under `criteria` or `rubric`, or lists under `sections`. Options of a
criterion become ordinal anchors, lowest value first; an option with `na: true` means 'does not apply'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmrubric.formats.base import Loss, Place
from mmrubric.formats.export import Entry, Held
from mmrubric.formats.fields import Item, build, container, decoded, record, rows, written_as
from mmrubric.rubric import Criterion, Rubric

_NAME, _DATASET, _LIST = "autorubric", "autorubric_dataset", "rubric_2_2"
_DEFAULT_WEIGHT = 10.0
_HOLDS = frozenset({"scale", "anchors", "options"})
_SHAPES = ("sections", "criteria", "rubric")


def from_autorubric(raw: Any, place: Place) -> list[Rubric]:
    """Read one rubric; criteria without a weight have weight 10, as autorubric scores them."""
    return _rubrics(_NAME, raw, place)


def from_rubric_2_2(raw: Any, place: Place) -> list[Rubric]:
    """Read `[{weight, requirement}]`, `{sections: [{criteria}]}` or `{rubric: [...]}`."""
    return _rubrics(_LIST, raw, place)


def from_dataset(raw: Any, place: Place) -> list[Rubric]:
    """Read `{name, prompt, rubric, items[{submission, prompt, rubric, ...}]}`.

    Returns:
        The rubric of the data set, then those of the items that have one of their own. Submissions and ground
        truth are kept in the provenance.
    """
    data, place = record(raw, place)
    prompt = data.pop("prompt", None) or ""
    whole = data.pop("rubric", None)
    parts = [(whole, prompt, data, place)]
    for index, item in enumerate(container(data.get("items"), "items", place) or []):
        if isinstance(item, dict) and item.get("rubric") is not None:
            rest = {key: value for key, value in item.items() if key not in ("rubric", "prompt")}
            parts.append((item["rubric"], item.get("prompt") or prompt, rest, place.inside(f"items[{index}]")))
    found = []
    for part, text, rest, inside in parts:
        layout = None if part is None else _layout(_NAME, part, inside)
        if layout is not None:
            found += build(_DATASET, text, layout.items, {**rest, **layout.leftovers}, inside)
    if not found:
        raise place.error("field 'rubric': neither the data set nor one of its items has a rubric")
    return found


def to_autorubric(rubric: Rubric, loss: Loss) -> Any:
    """Write a list of criteria, or a mapping with it where the source had one or there is a prompt to hold."""
    held = Held(rubric, _NAME)
    sections = held.form.get("sections", [])
    entries = [Entry(held, criterion, index, loss) for index, criterion in enumerate(rubric.criteria)]
    items = [_entry(entry, bool(sections)) for entry in entries]
    body = _regrouped(items, rubric, sections) if sections else items
    out = held.record({})
    if rubric.prompt:
        out["prompt"] = rubric.prompt
    shape = held.form.get("shape", "criteria" if out else "")
    return {**out, shape: body} if shape else body


@dataclass(frozen=True)
class _Layout:
    items: list[Item]
    leftovers: dict[str, Any]
    shape: str
    """Key of the list; "" = the record is the list."""
    sections: list[dict[str, Any]]
    """Fields of each section beside its criteria; none when the list is flat."""


def _rubrics(name: str, raw: Any, place: Place) -> list[Rubric]:
    layout = _layout(name, raw, place)
    if layout is None:
        return []
    prompt = layout.leftovers.pop("prompt", None) or ""
    form = {"shape": layout.shape, "sections": layout.sections, **written_as(layout.items)}
    return build(name, prompt, layout.items, layout.leftovers, place, **(form if name == _NAME else {}))


def _layout(name: str, raw: Any, place: Place) -> _Layout | None:
    raw = container(decoded(raw), "rubric", place)
    shape = next((key for key in _SHAPES if isinstance(raw, dict) and key in raw), "")
    if isinstance(raw, dict) and not shape:
        raise place.error(f"expected a list of criteria, or one under {', '.join(_SHAPES)}; got keys {sorted(raw)}")
    found = rows(raw[shape] if shape else raw, shape or "criteria", place, "name")
    if found is None:
        return None
    leftovers = {key: value for key, value in raw.items() if key != shape} if shape else {}
    sections: list[dict[str, Any]] = []
    placed: list[tuple[Any, str | None]] = [(row, None) for row in found]
    if all(isinstance(row, dict) and "criteria" in row for row in found):
        placed = []
        for index, section in enumerate(found):
            inside = rows(section["criteria"], "criteria", place.inside(f"{shape or 'sections'}[{index}]"), "name")
            sections.append({key: value for key, value in section.items() if key != "criteria"})
            placed += [(row, _title(section)) for row in inside or []]
    items = [_item(name, row, index, category, place) for index, (row, category) in enumerate(placed)]
    return _Layout(items, leftovers, shape, sections)


def _title(section: dict[str, Any]) -> str:
    names = (section.get(key) for key in ("name", "title"))
    return next((name for name in names if isinstance(name, str) and name.strip()), "general")


def _item(name: str, raw: Any, index: int, category: str | None, place: Place) -> Item:
    item = Item(raw, index, "criteria", place, id_key="name", id_expected=name == _NAME)
    item.text("requirement")
    item.weight("weight", _DEFAULT_WEIGHT if name == _NAME else 1.0)
    if category is None:
        item.labels()
    else:
        item.labels(category=None)
        item.fields["category"] = category
    if name == _NAME and item.rest.get("options") is not None:
        scale = _scale(item.rest["options"], item.rest.get("scale_type"), item.place)
        item.fields |= scale
        if scale:
            item.default("options", _written(scale))
            item.default("scale_type", scale["scale"])
    return item


def _scale(options: Any, scale_type: Any, place: Place) -> dict[str, Any]:
    """The fields of a scale; none when the scale type is one that we do not know, such as binary."""
    if not isinstance(options, list) or not all(isinstance(option, dict) for option in options):
        raise place.error("field 'options': expected a list of objects (label, value, na)")
    for option in options:
        value = option.get("value")
        if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise place.error(f"field 'options': the value of {option.get('label')!r} must be a number, got {value!r}")
    rows = [(_label(option.get("label")), option.get("value"), bool(option.get("na"))) for option in options]
    if scale_type == "nominal":
        # The value of 'does not apply' says nothing.
        return {
            "scale": "nominal",
            "options": [{"label": label, "value": None if na else value, "na": na} for label, value, na in rows],
        }
    if scale_type not in (None, "ordinal"):
        return {}
    levels = [(label, value) for label, value, na in rows if not na]
    if all(value is not None for _, value in levels):
        levels.sort(key=lambda level: level[1])
    # Our anchors leave the value out where it is the even one.
    anchors = [
        {"text": label, "value": None if value == _even(level, len(levels)) else value}
        for level, (label, value) in enumerate(levels)
    ]
    return {"scale": "ordinal", "anchors": anchors}


def _label(label: Any) -> Any:
    """YAML reads a bare yes, no or 1 as something else than the word that was meant."""
    if isinstance(label, bool):
        return "yes" if label else "no"
    return str(label) if isinstance(label, (int, float)) else label


def _even(level: int, levels: int) -> float:
    return level / max(levels - 1, 1)


def _written(scale: dict[str, Any]) -> list[dict[str, Any]]:
    """The options of a scale, each with a value, which autorubric needs."""
    if scale["scale"] == "ordinal":
        anchors = scale["anchors"]
        values = [_even(k, len(anchors)) if a["value"] is None else a["value"] for k, a in enumerate(anchors)]
        return [{"label": anchor["text"], "value": value} for anchor, value in zip(anchors, values, strict=True)]
    expected = scale.get("expected")
    return [
        {"label": o["label"], "value": 0, "na": True}
        if o["na"]
        else {"label": o["label"], "value": float(o["label"] == expected) if o["value"] is None else o["value"]}
        for o in scale["options"]
    ]


def _entry(entry: Entry, sectioned: bool) -> dict[str, Any]:
    criterion = entry.criterion
    # The values of nominal options say which label is expected.
    entry.loss.check(criterion, _HOLDS | {"expected"} if criterion.scale == "nominal" else _HOLDS)
    entry.put_id("name", expected=True)
    entry.put("requirement", criterion.text)
    entry.put_weight("weight", _DEFAULT_WEIGHT)
    entry.put_labels(category=None if sectioned else "category")
    if criterion.scale != "binary":
        kept = criterion.extra.get("options") if entry.held.leftovers is not None else None
        if kept is not None and _says(kept, criterion):
            entry.put_extra("options", None)
        else:
            entry.replace("options", _written(criterion.model_dump()))
        entry.put("scale_type", criterion.scale, criterion.scale)
    return entry.done()


def _says(options: Any, criterion: Criterion) -> bool:
    """Whether the options that the source wrote still are the scale of the criterion."""
    scale = _scale(options, criterion.scale, Place(f"criterion {criterion.id!r}"))
    kinds = {"ordinal": ("anchors", criterion.anchors), "nominal": ("options", criterion.options)}
    key, levels = kinds[criterion.scale]
    return scale[key] == [level.model_dump() for level in levels]


def _regrouped(items: list[dict[str, Any]], rubric: Rubric, sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sections as the source had them, each with the criteria of its category; a new category makes a new one."""
    groups = [(_title(section), dict(section), []) for section in sections]
    for item, criterion in zip(items, rubric.criteria, strict=True):
        group = next((group for group in groups if group[0] == criterion.category), None)
        if group is None:
            group = (criterion.category, {"name": criterion.category}, [])
            groups.append(group)
        group[2].append(item)
    return [{**section, "criteria": criteria} for _, section, criteria in groups if criteria]
