"""Rubrics as Rewards rows (RaR-Medicine, RaR-Science).

Source: Rubrics as Rewards, arXiv 2507.17746. The category of a criterion is the prefix of its description.
"""

from __future__ import annotations

import re
from typing import Any

from mmrubric.formats.base import Loss, Place
from mmrubric.formats.export import Entry, Held
from mmrubric.formats.fields import Item, build, container, items_of, record, text_of, written_as
from mmrubric.rubric import Rubric

_NAME = "rar"
CATEGORIES = ("Essential", "Important", "Optional", "Pitfall")
_PREFIX = re.compile(rf"\s*({'|'.join(CATEGORIES)})(?: Criteri(?:a|on))?\s*: ?", re.IGNORECASE)


def _item(item: Item, prefixes: dict[str, str]) -> None:
    described = item.rest.get("description")
    described = described if isinstance(described, str) else ""
    prefix = _PREFIX.match(described)
    if prefix and "category" not in item.rest and described[prefix.end() :].strip():
        del item.rest["description"]
        item.fields |= {"text": described[prefix.end() :], "category": prefix[1].capitalize()}
        if prefix[0] != _prefix(item.fields["category"]):
            prefixes[item.fields["id"]] = prefix[0]
        item.labels(category=None)
    else:
        # A category in a field of its own says that no prefix is to be cut.
        item.text("description")
        described = item.fields["text"]
        item.labels()
    item.weight("weight")
    item.default("title", _title(item.fields["id"], described))


def from_rar(raw: Any, place: Place) -> list[Rubric]:
    """Read `{question, reference_answer, question_source, rubric[{title, description, weight}], ...}`."""
    data, place = record(raw, place)
    prefixes: dict[str, str] = {}
    items = items_of(data.pop("rubric", None), "rubric", place, lambda item: _item(item, prefixes))
    if items is None:
        return []
    prompt = text_of(data.pop("question", None), "question", place)
    listed = container(data.get("rubric_list"), "rubric_list", place)
    if listed is not None:
        data["rubric_list"] = listed
    return build(_NAME, prompt, items, data, place, prefixes=prefixes, **written_as(items))


def to_rar(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    """Write a RaR row. `rubric_list` and `rubric_count` are written anew when the rubric was edited."""
    held = Held(rubric, _NAME)
    fresh = {"reference_answer": "", "question_source": "", "rubric_list": [], "rubric_count": 0}
    out = held.record(fresh)
    items = [_entry(Entry(held, criterion, index, loss)) for index, criterion in enumerate(rubric.criteria)]
    if held.leftovers is None or held.edited:
        copies = {"rubric_list": [item["description"] for item in items], "rubric_count": len(items)}
        out |= {key: value for key, value in copies.items() if key in out}
    return {**out, "question": rubric.prompt, "rubric": items}


def _entry(entry: Entry) -> dict[str, Any]:
    criterion = entry.criterion
    entry.loss.check(criterion)
    if criterion.category in CATEGORIES:
        given = entry.held.form.get("prefixes", {}).get(criterion.id, "")
        same = given.strip().lower().startswith(criterion.category.lower())
        description = f"{given if same else _prefix(criterion.category)}{criterion.text}"
        entry.put_labels(category=None)
    else:
        description = criterion.text
        if _PREFIX.match(description):
            entry.put("category", criterion.category)
        entry.put_labels()
    if "description" in criterion.extra:  # the title was the longer of the two, so it is the text
        entry.put("title", description)
        entry.put_extra("description", "")
    else:
        entry.put("description", description)
        entry.put_extra("title", _title(criterion.id, description))
    entry.put_weight("weight")
    entry.put_id()
    return entry.done()


def _prefix(category: str) -> str:
    return f"{category} Criteria: "


def _title(id: str, description: str) -> str:
    # Not longer than the description, because the longer one of the two is the text.
    return id if len(id) <= len(description) else description
