"""Rubrics that are plain text: numbered or bulleted lines, OpenRubrics, WildChecklists, Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mmrubric.formats.base import Place
from mmrubric.formats.fields import Item, build, container, record, text_of
from mmrubric.rubric import Rubric

_MARK = re.compile(r"\s*(?:\(?\d{1,3}[.):](?=\s|\D)|[-*•–](?=\s))\s*(?:\[[ xX]?\]\s*)?")
_TAG = re.compile(r"\s*\[\s*(hard[ _-]?rule|principle)\s*\]\s*", re.IGNORECASE)
_SCORE = re.compile(r"\s*(?:[-*#]\s*)?score\s+(\d+)\s*[:.)-]\s*", re.IGNORECASE)
_HEADING = re.compile(r"\s*#+\s*score rubrics?\s*:?\s*", re.IGNORECASE)
LEVELS = 5


def marked_lines(text: str) -> tuple[list[str], list[str]]:
    """Numbered or bulleted lines, without their marks, and the other lines.

    A line without a mark right below a criterion continues it, unless it ends with a colon (a heading).
    """
    found: list[str] = []
    others: list[str] = []
    joins = False
    for line in text.splitlines():
        mark, bare = _MARK.match(line), line.strip()
        if mark and line[mark.end() :].strip():
            found.append(line[mark.end() :].strip())
            joins = True
        elif not bare:
            joins = False
        elif joins and not bare.endswith(":"):
            found[-1] += f" {bare}"
        else:
            others.append(bare)
            joins = False
    return found, others


def text_items(lines: Iterable[Any], key: str, place: Place) -> list[Item]:
    """Criteria of weight 1 from texts; objects with a text of their own are read as well."""
    items = []
    for index, line in enumerate(lines):
        item = Item({"text": line} if isinstance(line, str) else line, index, key, place)
        item.text("text")
        item.weight("weight")
        item.labels()
        items.append(item)
    return items


def from_text(raw: Any, place: Place) -> list[Rubric]:
    """Read text with one criterion per numbered or bulleted line; or `{prompt, rubric}` with such text."""
    text, prompt, data, place = _block(raw, place)
    return _lines("text", prompt, text, "rubric", data, place)


def from_wildchecklists(raw: Any, place: Place) -> list[Rubric]:
    """Read `{prompt, requirements}` with the requirements as numbered text."""
    data, place = record(raw, place)
    text = _text_or_none(data.pop("requirements", None), "requirements", place)
    if text is None:
        return []
    return _lines(
        "wildchecklists", text_of(data.pop("prompt", None), "prompt", place), text, "requirements", data, place
    )


def from_openrubrics(raw: Any, place: Place) -> list[Rubric]:
    """Read `{instruction, rubric, source}`: numbered lines tagged [Hard Rule] (a gate) or [Principle].

    Source: OpenRubrics, arXiv 2510.07743; the spelling of the tags is reconstructed. The answers of the pair form
    stay in the provenance; `mmrubric.formats.read_pairs` reads them.
    """
    data, place = record(raw, place)
    text = _text_or_none(data.pop("rubric", None), "rubric", place)
    if text is None:
        return []
    prompt = text_of(data.pop("instruction", None), "instruction", place)
    return _lines("openrubrics", prompt, text, "rubric", data, place, tags=True)


def from_prometheus(raw: Any, place: Place) -> list[Rubric]:
    """Read a question and one description per `Score 1` ... `Score 5`: one ordinal criterion, value (k - 1) / 4."""
    text, prompt, data, place = _block(raw, place)
    question: list[str] = []
    levels: dict[int, str] = {}
    for line in text.splitlines():
        score = _SCORE.match(line)
        if score and int(score[1]) in levels:
            raise place.error(f"field 'rubric': 'Score {score[1]}' is given twice; one text holds one criterion")
        if score:
            levels[int(score[1])] = line[score.end() :].strip()
        elif levels and line.strip():
            last = next(reversed(levels))
            levels[last] = f"{levels[last]} {line.strip()}".strip()
        elif line.strip() and not _HEADING.fullmatch(line):
            question.append(line.strip())
    if sorted(levels) != list(range(1, LEVELS + 1)) or not all(levels.values()):
        raise place.error(f"field 'rubric': needs a text for each of Score 1 to Score {LEVELS}, found {sorted(levels)}")
    item = Item({"text": "\n".join(question).strip("[]")}, 0, "rubric", place)
    item.text("text")
    item.fields |= {"scale": "ordinal", "anchors": [levels[score] for score in sorted(levels)]}
    return build("prometheus", prompt, [item], data, place)


def is_prometheus(text: str) -> bool:
    """Whether the text has a line for each score."""
    return {int(score[1]) for line in text.splitlines() if (score := _SCORE.match(line))} >= set(range(1, LEVELS + 1))


def _block(raw: Any, place: Place) -> tuple[str, str, dict[str, Any], Place]:
    """Text, prompt, the other keys and the place of a record that is text or `{prompt, rubric}`."""
    if isinstance(raw, str):
        return raw, "", {}, place
    data, place = record(raw, place)
    return text_of(data.pop("rubric", None), "rubric", place), data.pop("prompt", None) or "", data, place


def _text_or_none(value: Any, key: str, place: Place) -> str | None:
    if value is None:
        place.warn(f"no rubric: {key} is absent", f"field {key!r} is null or missing: no rubric, row left out")
        return None
    if isinstance(value, str) and value.lstrip().startswith('["'):
        value = container(value, key, place)
    if isinstance(value, list):
        return "\n".join(f"- {line}" for line in value)
    return text_of(value, key, place)


def _lines(
    name: str, prompt: str, text: str, key: str, data: dict[str, Any], place: Place, tags: bool = False
) -> list[Rubric]:
    found, others = marked_lines(text)
    if not found:
        raise place.error(
            f"field {key!r}: no numbered or bulleted line; write one criterion per line, such as '1. ...'"
        )
    if others:
        place.warn("lines that are no criterion", f"field {key!r}: no criterion in the line {others[0]!r}; kept aside")
    bare = [_TAG.sub(" ", line).strip() for line in found] if tags else found
    items = text_items(bare, key, place)
    for item, line in zip(items, found, strict=True):
        tag = _TAG.search(line) if tags else None
        item.fields["hard"] = tag is not None and tag[1].lower().startswith("hard")
    return build(name, prompt, items, data, place, other_lines=others)
