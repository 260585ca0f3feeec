"""From verified statements to one hierarchical rubric: coarse alignment, then objects and relations, then detail.

Source: Auto-Rubric as Reward, arXiv 2605.08354; when structuring fails, a flat list stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import BaseModel, JsonValue

from mmrubric.generators.fusion import Item
from mmrubric.generators.items import category_of, slug
from mmrubric.generators.llm import GenerationFailed, LLMGenerator
from mmrubric.generators.showing import check_wording, numbered
from mmrubric.rubric import Criterion

Grain = Literal["coarse", "mid", "fine"]


class Tip(BaseModel):
    """A short clause, and the numbers of the statements that it stands for."""

    text: str
    statements: list[int]


class Theme(BaseModel):
    """An axis of quality."""

    theme: str
    grain: Grain
    tips: list[Tip]


class Structured(BaseModel):
    """The hierarchy, most telling axis first within its grain."""

    themes: list[Theme]


async def structured(
    asker: LLMGenerator, items: Sequence[Item], themes: int, tips: int
) -> tuple[list[Criterion], tuple[str, ...]]:
    """Criteria with `grain` and `extra.theme`, coarse before mid before fine, and notes.

    Args:
        asker: generator whose step `structure` is asked.
        items: verified statements; their sources are pair ids, which a criterion keeps in `extra.pairs`.
        themes, tips: at most so many axes, and clauses of one axis.
    """

    def check(reply: Structured) -> None:
        if not 1 <= len(reply.themes) <= themes:
            raise ValueError(f"{len(reply.themes)} themes; give 1 to {themes}")
        for theme in reply.themes:
            if not theme.theme.strip() or not 1 <= len(theme.tips) <= tips:
                raise ValueError(f"theme {theme.theme!r} needs a name and 1 to {tips} tips, got {len(theme.tips)}")
            wrong = [n for tip in theme.tips for n in tip.statements if not 1 <= n <= len(items)]
            if wrong or not all(tip.statements for tip in theme.tips):
                raise ValueError(f"theme {theme.theme!r}: name the statements of each tip, from 1 to {len(items)}")
        check_wording((tip.text for theme in reply.themes for tip in theme.tips), "")

    try:
        reply = await asker.ask(
            "structure",
            Structured,
            check=check,
            statements=numbered(item.text for item in items),
            themes=str(themes),
            tips=str(tips),
        )
    except GenerationFailed as error:
        return [_flat(item) for item in items], (f"a flat list, because structuring failed: {error}",)
    return _criteria(reply, items), _left_out(reply, items)


def _criteria(reply: Structured, items: Sequence[Item]) -> list[Criterion]:
    grains = get_args(Grain)
    return [
        Criterion(
            id=slug(tip.text),
            text=" ".join(tip.text.split()),
            category=category_of(theme.theme),
            grain=theme.grain,
            extra={"theme": theme.theme.strip(), "pairs": _pairs([items[n - 1] for n in tip.statements])},
        )
        for theme in sorted(reply.themes, key=lambda theme: grains.index(theme.grain))
        for tip in theme.tips
    ]


def _flat(item: Item) -> Criterion:
    return Criterion(id=slug(item.text), text=item.text, extra={"pairs": _pairs([item])})


def _pairs(items: Sequence[Item]) -> list[JsonValue]:
    return list(sorted({pair for item in items for pair in item.sources}))


def _left_out(reply: Structured, items: Sequence[Item]) -> tuple[str, ...]:
    used = {number for theme in reply.themes for tip in theme.tips for number in tip.statements}
    left = [item.text for number, item in enumerate(items, 1) if number not in used]
    return tuple(f"not in the structure: {text!r}" for text in left)
