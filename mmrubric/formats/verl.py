"""Rows for reinforcement learning with verl: the RuscaRL row and RubricHub, which repeats its rubric thrice.

Source: RubricHub, arXiv 2601.08430; row layout of verl as used by RuscaRL. Criteria that a program checks
carry the tags `verifier:rule`, `function:<name>`, `parameters:<json>`; they become `rule:<name>` with arguments.
"""

from __future__ import annotations

import json
from typing import Any

from mmrubric.formats.base import Loss, Place
from mmrubric.formats.export import Entry, Held
from mmrubric.formats.fields import (
    Item,
    build,
    container,
    conversation,
    items_of,
    mapping,
    messages,
    record,
    rows,
    spoken,
    written_as,
)
from mmrubric.rubric import Rubric

_TAGS = ("verifier:", "function:", "parameters:")
_COPIES = ("reward_model.rubrics", "extra_info.reward_model.rubrics", "Rubrics")
"""Where a row may hold its rubric; the first one that is there wins."""
_BARE, _FULL = ["criterion", "points"], ["criterion", "points", "tags"]


def from_verl(raw: Any, place: Place) -> list[Rubric]:
    """Read `{data_source, prompt[], ability, reward_model{style, rubrics, ground_truth}, extra_info}`."""
    return _read("verl", raw, place)


def from_rubrichub(raw: Any, place: Place) -> list[Rubric]:
    """Read a RuRL row of RubricHub: a verl row with one more copy of the rubric under `Rubrics`."""
    return _read("rubrichub", raw, place)


def to_verl(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    """Write a verl row, with the rubric in `reward_model` and in `extra_info`."""
    return _write("verl", rubric, loss, dict.fromkeys(_COPIES[:2], _FULL))


def to_rubrichub(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    """Write a RubricHub row; the copy under `Rubrics` has no tags, as published."""
    return _write("rubrichub", rubric, loss, {**dict.fromkeys(_COPIES[:2], _FULL), _COPIES[2]: _BARE})


def _read(name: str, raw: Any, place: Place) -> list[Rubric]:
    data, place = record(raw, place)
    reward = mapping(data.get("reward_model"), "reward_model", place)
    info = mapping(data.get("extra_info"), "extra_info", place)
    inner = mapping(info.get("reward_model"), "extra_info.reward_model", place)
    found = (reward.pop("rubrics", None), inner.pop("rubrics", None), data.pop("Rubrics", None))
    copies = {
        key: rows(value, key, place) or [] for key, value in zip(_COPIES, found, strict=True) if value is not None
    }
    winner = next(iter(copies), _COPIES[0])
    items = items_of(_merged(copies, winner, place), winner, place, _item)
    if items is None:
        return []
    if info.get("reward_model") is not None:
        info["reward_model"] = inner
    # An absent or null column stays as it is.
    data |= {key: value for key, value in (("reward_model", reward), ("extra_info", info)) if data.get(key) is not None}
    prompt, turns = conversation(data.get("prompt"), "prompt", place)
    data["prompt"] = messages(prompt) if turns is None else turns
    keys = {
        key: sorted({name for row in copy if isinstance(row, dict) for name in row}) for key, copy in copies.items()
    }
    return build(name, prompt, items, data, place, copies=keys, **written_as(items))


def _merged(copies: dict[str, list[Any]], winner: str, place: Place) -> list[Any] | None:
    """The winning copy, with the fields (such as tags) that only another copy has; None when there is no copy."""
    merged = copies.get(winner)
    for key, copy in copies.items():
        if merged is None or key == winner:
            continue
        if _core(copy) != _core(merged):
            place.warn("copies disagree", f"{winner} and {key} disagree; {winner} is used and is written to both")
            continue
        pairs = list(zip(merged, copy, strict=True))
        if any(one.get(name) not in (None, value) for one, other in pairs for name, value in other.items()):
            place.warn("copies disagree", f"further fields of {winner} and {key} disagree; {winner} is used")
        merged = [{**other, **{name: v for name, v in one.items() if v is not None}} for one, other in pairs]
    return merged


def _core(rows: list[Any]) -> list[Any]:
    return [(row.get("criterion"), row.get("points")) if isinstance(row, dict) else None for row in rows]


def _item(item: Item) -> None:
    item.text("criterion")
    item.weight("points")
    item.labels()
    tags = container(item.rest.get("tags"), "tags", item.place)
    if tags is not None:
        item.rest["tags"] = tags
    verifier, arguments = _rule(tags, item.place)
    item.fields |= {"verifier": verifier, "arguments": arguments}
    item.default("tags", _rule_tags(verifier, arguments))


def _rule(tags: Any, place: Place) -> tuple[str, dict[str, Any]]:
    """Verifier and arguments that the tags name; vlm unless they say `verifier:rule`."""
    words = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    verifier, function, parameters = (
        next((word.removeprefix(prefix).strip() for word in words if word.startswith(prefix)), "") for prefix in _TAGS
    )
    if verifier != "rule":
        return "vlm", {}
    if not function:
        raise place.error("field 'tags': verifier:rule needs a tag function:<name>")
    arguments = container(parameters or "{}", "tags.parameters", place) or {}
    if not isinstance(arguments, dict):
        raise place.error(f"field 'tags': parameters must be a JSON object, got {parameters!r}")
    return f"rule:{function}", arguments


def _rule_tags(verifier: str, arguments: dict[str, Any]) -> list[str]:
    if not verifier.startswith("rule:"):
        return []
    parameters = json.dumps(arguments, ensure_ascii=False)
    return ["verifier:rule", f"function:{verifier.removeprefix('rule:')}", f"parameters:{parameters}"]


def _write(name: str, rubric: Rubric, loss: Loss, fresh_copies: dict[str, list[str]]) -> dict[str, Any]:
    held = Held(rubric, name)
    reward = {"style": "rubric", "ground_truth": ""}
    turns = messages(rubric.prompt)
    out = held.record(
        {
            "data_source": "mmrubric",
            "ability": "mmrubric",
            "prompt": turns,
            "reward_model": reward,
            "extra_info": {"prompt": turns, "reward_model": reward},
        }
    )
    kept = out["prompt"]
    out["prompt"] = spoken(rubric.prompt, kept)
    if out["prompt"] is not kept and "prompt" in (out.get("extra_info") or {}):
        out["extra_info"] = {**out["extra_info"], "prompt": out["prompt"]}
    items = [_entry(Entry(held, criterion, index, loss)) for index, criterion in enumerate(rubric.criteria)]
    copies = held.form.get("copies", fresh_copies)
    known = {key for keys in copies.values() for key in keys}
    for key, keys in copies.items():
        # A key that no copy had (a new id, say) goes into all of them.
        copy = [{k: v for k, v in item.items() if k in keys or k not in known} for item in items]
        if key == "Rubrics":
            out["Rubrics"] = copy
        elif key == "reward_model.rubrics":
            out["reward_model"] = {**out["reward_model"], "rubrics": copy}
        else:
            inner = {**out["extra_info"]["reward_model"], "rubrics": copy}
            out["extra_info"] = {**out["extra_info"], "reward_model": inner}
    return out


def _entry(entry: Entry) -> dict[str, Any]:
    criterion = entry.criterion
    rule = criterion.verifier.startswith("rule:")
    entry.loss.check(criterion, frozenset({"verifier", "arguments"}) if rule else frozenset())
    entry.put("criterion", criterion.text)
    entry.put_weight("points")
    tags = criterion.extra.get("tags", [])
    said = _rule(tags, Place(f"criterion {criterion.id!r}"))
    if said == (criterion.verifier, criterion.arguments):
        entry.put_extra("tags", [])
    else:
        listed = tags if isinstance(tags, list) else []
        others = [tag for tag in listed if not (isinstance(tag, str) and tag.startswith(_TAGS))]
        entry.replace("tags", _rule_tags(criterion.verifier, criterion.arguments) + others)
    entry.put_id()
    entry.put_labels()
    return entry.done()
