"""What fine-tuned rubric models write, read strictly: three formats, each a pure function from text to items.

A parser raises ValueError with a complaint that a model can act on. Nothing is guessed. Sources: Rubric-ARM, arXiv
2602.01511; Proxy-GRM, arXiv 2603.16600; RubricGen (Writer-R1), arXiv 2603.15061, whose JSON is not published, so its
fields are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmrubric.generators.llm import complaint
from mmrubric.llm_json import parse_object
from mmrubric.similar import normalise

_NUMBERED = re.compile(r"\s*(?:[-*]\s+)?(?:\*\*)?([0-9]{1,3})[.)]\s+(.*)")
_BULLET = re.compile(r"\s*[-*•]\s+(.*)")
_KIND = re.compile(r"\[\s*(hard rule|principle)\s*\]", re.IGNORECASE)
_KIND_AT_END = re.compile(_KIND.pattern + r"\Z", re.IGNORECASE)
_BRACKETED_SHARE = re.compile(r"[(\[]\s*(?:weight\s*[:=]?\s*)?([0-9]+(?:\.[0-9]+)?)\s*%\s*[)\]]", re.IGNORECASE)
_BARE_SHARE = re.compile(r"[-–—:,]?\s*\b(?:weight\s*[:=]?\s*)?([0-9]+(?:\.[0-9]+)?)\s*%", re.IGNORECASE)
_WHOLE, _ROUNDING = 100.0, 0.5
"""Weights of Proxy-GRM total 100 %, up to their rounding."""


@dataclass(frozen=True)
class LearnedItem:
    """One criterion as the model wrote it."""

    text: str
    category: str = "general"
    weight: float = 1.0
    levels: tuple[str, ...] = ()
    """Anchors, worst first; () = yes or no."""


def parse_rubric_arm(text: str) -> list[LearnedItem]:
    """A numbered list of which each item ends in [Hard Rule] or [Principle], which become its category.

    What stands before the first number, such as a heading, is passed over.
    """
    items = []
    for number, line in enumerate(_numbered(_without_thoughts(text)), 1):
        kinds = _KIND.findall(line)
        plain = line.rstrip(" .*")
        if len(kinds) != 1 or not _KIND_AT_END.search(plain):
            raise ValueError(f"item {number} must end in one tag, [Hard Rule] or [Principle]: {line!r}")
        statement = _tidy(_KIND.sub("", plain))
        items.append(LearnedItem(_not_blank(statement, number), kinds[0].casefold().replace(" ", "_")))
    return items


def parse_proxy_grm(text: str) -> list[LearnedItem]:
    """The list between <rubric> and </rubric>, up to <justify>; each item has its weight in per cent, in all 100.

    Of the rest of the answer, such as <eval> and <answer>, nothing is read.
    """
    body = _body(_without_thoughts(text))
    listed, _, reasons = body.partition("<justify>")
    if any(_BRACKETED_SHARE.search(line) for line in reasons.partition("</justify>")[2].split("\n")):
        raise ValueError("there are weighted items behind <justify>; give all items first, then one <justify>")
    items = []
    for number, line in enumerate(_listed(listed), 1):
        share, statement = _share(line, number)
        items.append(LearnedItem(_not_blank(_tidy(statement), number), weight=share / _WHOLE))
    total = sum(item.weight for item in items) * _WHOLE
    if abs(total - _WHOLE) > _ROUNDING:
        raise ValueError(f"the weights total {total:g} %; they must total 100 %")
    return items


class _JsonItem(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    criterion: str
    category: str = "general"
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    levels: list[str] = []


class _JsonRubric(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    criteria: list[_JsonItem] = Field(min_length=1)


def parse_json(text: str) -> list[LearnedItem]:
    """{"criteria": [{"criterion": text, "category": text, "weight": number > 0, "levels": [worst, ..., best]}]}; all
    but the first may be left out."""
    try:
        rubric = _JsonRubric.model_validate(parse_object(_without_thoughts(text)))
    except ValidationError as error:
        raise ValueError(complaint(error)) from None
    items = []
    for number, item in enumerate(rubric.criteria, 1):
        levels = tuple(level.strip() for level in item.levels)
        if len(levels) == 1 or len(set(map(normalise, levels))) < len(levels) or not all(levels):
            raise ValueError(f"item {number}: levels must be two or more different texts, or left out")
        category = item.category.strip() or "general"
        items.append(LearnedItem(_not_blank(_tidy(item.criterion), number), category, item.weight, levels))
    return items


FORMATS: dict[str, Callable[[str], list[LearnedItem]]] = {
    "rubric_arm": parse_rubric_arm,
    "proxy_grm": parse_proxy_grm,
    "json": parse_json,
}


def _without_thoughts(text: str) -> str:
    """What stands behind the last </think>."""
    return text.rpartition("</think>")[2]


def _body(text: str) -> str:
    for tag in ("<rubric>", "</rubric>"):
        if text.count(tag) != 1:
            raise ValueError(f"{tag} must stand there once, it does {text.count(tag)} times")
    before, _, rest = text.partition("<rubric>")
    body, closed, _ = rest.partition("</rubric>")
    if not closed:
        raise ValueError("</rubric> stands before <rubric>")
    if before.strip():
        raise ValueError("nothing may stand before <rubric>")
    return body


def _listed(text: str) -> list[str]:
    """Items of a numbered list, or of a list with bullets."""
    lines = [line for line in text.split("\n") if line.strip()]
    return _numbered(text) if any(_NUMBERED.fullmatch(line) for line in lines) else _items(lines, _BULLET)


def _numbered(text: str) -> list[str]:
    lines = [line for line in text.split("\n") if line.strip()]
    numbers = [int(found[1]) for line in lines if (found := _NUMBERED.fullmatch(line))]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ValueError(f"items must be numbered 1, 2, 3, ...; found {', '.join(map(str, numbers))}")
    return _items(lines, _NUMBERED)


def _items(lines: list[str], start: re.Pattern[str]) -> list[str]:
    """Lines that begin an item, each with the lines that go on with it."""
    items: list[str] = []
    for line in lines:
        found = start.fullmatch(line)
        if found:
            items.append(found[found.re.groups])
        elif items:
            items[-1] += f" {line.strip()}"
    if not items:
        raise ValueError("there is no list; give one item on each line, numbered from 1")
    return items


def _share(line: str, number: int) -> tuple[float, str]:
    """The weight of an item in per cent, and the item without it."""
    for pattern in (_BRACKETED_SHARE, _BARE_SHARE):
        found = list(pattern.finditer(line))
        if len(found) == 1:
            share = float(found[0][1])
            if not 0 < share <= _WHOLE:
                raise ValueError(f"the weight of item {number} is {share:g} %; it must be above 0 and at most 100")
            return share, f"{line[: found[0].start()]} {line[found[0].end() :]}"
        if found:
            break
    raise ValueError(f"item {number} needs one weight in per cent, such as (25%): {line!r}")


def _tidy(text: str) -> str:
    """Without bold marks, double blanks, and punctuation that lost its word."""
    plain = " ".join(text.replace("**", "").split())
    return re.sub(r"\s+([:;,.])", r"\1", plain).strip(" :-–—")


def _not_blank(text: str, number: int) -> str:
    if not normalise(text):
        raise ValueError(f"item {number} is blank")
    return text
