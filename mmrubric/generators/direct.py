"""RubricRL's generator: one call writes a prompt's own yes/no criteria, within dimensions that a user controls.

Source: RubricRL, arXiv 2511.20651; the paper gives the dimensions, the procedure is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from pydantic import BaseModel

from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.items import CATEGORIES, capped, category_of, slug, without_repeats
from mmrubric.generators.llm import Asked, Draft, LLMGenerator, fenced_prompt
from mmrubric.rubric import Criterion
from mmrubric.similar import Encoder, duplicates, quoted
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.llm_direct, Optimisation.dedup, Signal.output_level, Loop.none)
_DIMENSIONS = tuple(name for name in CATEGORIES if name != "aesthetics")


class WrittenItem(BaseModel):
    """One entry of the model's list."""

    criterion: str
    dimension: str = "general"
    key: str = ""


class Written(BaseModel):
    """The model's list."""

    criteria: list[WrittenItem]


@registry.register("direct", _TAGS)
@dataclass
class DirectGenerator(LLMGenerator):
    """One call, a list of statements; repeats dropped, then capped so that no dimension vanishes.

    Args:
        dimensions: names that criteria may have, or name to weight; a dimension left out is switched off. RubricRL's
            names spatial and ocr are read as relation and text.
        min_criteria: fewer than this is asked for again.
        max_criteria: more than this is cut, round-robin over the dimensions.
        always: statements that every rubric gets, such as "No watermark is visible."; they count towards
            `max_criteria`, and the model's own make room.
        encoder: finds repeats by meaning; None = by words.

    Raises:
        InputError: see `LLMGenerator`, and an unknown dimension, a weight of 0, or bounds that cross.
    """

    NAME: ClassVar[str] = "direct/1"
    PROMPTS: ClassVar[str] = "direct_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {"write": ("prompt", "least", "most", "dimensions")}

    _: KW_ONLY
    dimensions: Sequence[str] | Mapping[str, float] = _DIMENSIONS
    min_criteria: int = 4
    max_criteria: int = 12
    always: Sequence[str] = ()
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dimensions", "always"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{self._where}: {name}: give a list, not the text {getattr(self, name)!r}")
        given = self.dimensions if isinstance(self.dimensions, Mapping) else dict.fromkeys(self.dimensions, 1.0)
        self._weights = {
            category_of(name): number(f"{self._where}: dimensions, {name}", weight) for name, weight in given.items()
        }
        unknown = sorted(set(self._weights) - set(CATEGORIES))
        if unknown or not self._weights:
            raise InputError(f"{self._where}: dimensions {unknown}: known are {', '.join(CATEGORIES)}")
        if min(self._weights.values()) <= 0:
            raise InputError(f"{self._where}: weights of dimensions must be above 0; leave one out to switch it off")
        self._always = [Criterion(id=slug(text), text=text, category="realism") for text in self.always if text.strip()]
        if len(without_repeats(self._always)[0]) < len(self.always):
            raise InputError(f"{self._where}: always: {list(self.always)} holds a blank statement or a repeat")
        if not 1 <= self.min_criteria <= self.max_criteria - len(self.always):
            raise InputError(
                f"{self._where}: needs 1 <= min_criteria <= max_criteria, less those that are always on, got "
                f"{self.min_criteria} and {self.max_criteria}"
            )

    async def write(self, asked: Asked) -> Draft:
        written = await self.ask(
            "write",
            Written,
            check=self._check,
            prompt=fenced_prompt(asked.prompt),
            least=str(self.min_criteria),
            most=str(self.max_criteria),
            dimensions=", ".join(self._weights),
        )
        made, notes = [], []
        for item in written.criteria:
            if (category := category_of(item.dimension)) in self._weights:
                made.append(self._criterion(item, category))
            else:
                notes.append(f"dropped: {item.criterion!r}, its dimension {item.dimension!r} is not switched on")
        always = len(self._always)
        kept, repeats = without_repeats([*self._always, *made], self.encoder)
        notes += [f"dropped: {later.text!r} repeats {earlier.text!r}" for later, earlier in repeats]
        return Draft([*capped(kept[always:], self.max_criteria - always), *self._always], tuple(notes))

    def _check(self, written: Written) -> None:
        blank = [count for count, item in enumerate(written.criteria, 1) if not item.criterion.strip()]
        if blank:
            raise ValueError(f"criterion {blank[0]} is blank")
        usable = [item for item in written.criteria if category_of(item.dimension) in self._weights]
        distinct = len(usable) - len(duplicates([item.criterion for item in usable], encoder=self.encoder))
        if distinct < self.min_criteria:
            raise ValueError(
                f"{distinct} different criteria with a dimension of {', '.join(self._weights)}; give at least "
                f"{self.min_criteria}"
            )
        for item in usable:
            if category_of(item.dimension) == "text" and not quoted(item.criterion):
                raise ValueError(f"{item.criterion!r} must quote the string that should be written")

    def _criterion(self, item: WrittenItem, category: str) -> Criterion:
        return Criterion(
            id=slug(item.key or item.criterion),
            text=item.criterion.strip(),
            category=category,
            weight=self._weights[category],
        )
