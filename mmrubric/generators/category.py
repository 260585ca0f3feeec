"""ATLAS's generator: a fixed number of weighted criteria in four fixed categories.

Source: ATLAS, arXiv 2603.06713. The counts and weight bands are the paper's for agents, ours for images.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from pydantic import BaseModel, Field

from mmrubric.chat import ImagePart
from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.items import slug
from mmrubric.generators.llm import Asked, Draft, LLMGenerator, fenced_prompt
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Criterion
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none)


@dataclass(frozen=True)
class Category:
    """One category of a preset."""

    name: str
    """As `Criterion.category` and the aggregator `category` have it."""
    count: int
    meaning: str
    aliases: tuple[str, ...] = ()
    """Other names that a model writes; case and punctuation do not matter."""


PRESETS: dict[str, tuple[Category, ...]] = {
    "agent": (
        Category(
            "TF",
            5,
            "task fulfilment: what of the task the run gets done, step by step",
            ("task fulfilment", "task fulfillment", "task fulfilment and quality", "task fulfillment and quality"),
        ),
        Category("TA", 3, "tool appropriateness: the right tools are chosen for each part", ("tool appropriateness",)),
        Category("TG", 2, "tool grounding: claims rest on what the tools returned", ("tool grounding", "grounding")),
        Category("PA", 2, "parameter accuracy: tools are called with the right arguments", ("parameter accuracy",)),
    ),
    "image": (
        Category("alignment", 5, "what the prompt asks to be seen", ("prompt alignment", "alignment with the prompt")),
        Category(
            "text", 2, "lettering: what is asked for stands there, and nothing else", ("ocr", "text ocr", "lettering")
        ),
        Category("quality", 3, "light, focus, composition, finish", ("visual quality", "image quality")),
        Category(
            "safety_realism",
            2,
            "fit for everyone; bodies, objects and physics are believable",
            ("safety and realism", "safety", "realism"),
        ),
    ),
}
"""Categories in their order. Names of `agent` are those of the aggregator's preset "atlas"."""


class WeightedItem(BaseModel):
    """One entry of the model's list."""

    category: str
    criterion: str
    weight: int = Field(ge=1, le=10)


class WeightedItems(BaseModel):
    """The model's list."""

    criteria: list[WeightedItem]


@registry.register("category", _TAGS)
@dataclass
class CategoryGenerator(LLMGenerator):
    """One call, a fixed number of criteria per category, weights from 1 to 10. A wrong number is asked for again.

    Takes one exemplar at most, a text or an image: a possible solution that shows what is involved, not the target.
    Repeats are allowed, as they shift weight inside their category only.

    Args:
        preset: "image" (alignment, text, quality, safety_realism) or "agent" (TF, TA, TG, PA, for trajectories).
        counts: criteria per category, in place of the preset's (5, 2, 3, 2 and 5, 3, 2, 2); 0 leaves a category out.
        fallback: as for all generators, but an error by default: another generator has other categories, for which
            the aggregator `category` holds no weights.

    Raises:
        InputError: see `LLMGenerator`, and an unknown preset or category, or a count that is no number of criteria.
    """

    NAME: ClassVar[str] = "category/1"
    PROMPTS: ClassVar[str] = "category_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "image": ("prompt", "solution", "categories", "total"),
        "agent": ("prompt", "solution", "categories", "total"),
    }
    TAKES: ClassVar[frozenset[str]] = frozenset({"exemplars"})

    _: KW_ONLY
    preset: str = "image"
    counts: Mapping[str, int] = field(default_factory=dict)
    fallback: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(f"{self._where}: preset", self.preset, PRESETS)
        self._categories = {category.name: category for category in PRESETS[self.preset]}
        self._names = {
            _plain(name): category.name
            for category in PRESETS[self.preset]
            for name in (category.name, *category.aliases)
        }
        self._counts = {category.name: category.count for category in PRESETS[self.preset]}
        for name, count in self.counts.items():
            if _plain(name) not in self._names:
                raise InputError(f"{self._where}: counts: unknown category {name!r}; known: {', '.join(self._counts)}")
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise InputError(f"{self._where}: counts: {name!r} must be an integer of at least 0, got {count!r}")
            self._counts[self._names[_plain(name)]] = count
        if not any(self._counts.values()):
            raise InputError(f"{self._where}: counts: every category has 0 criteria; give one at least 1")

    async def write(self, asked: Asked) -> Draft:
        solution, pictures = await self._solution(asked)
        written = await self.ask(
            self.preset,
            WeightedItems,
            pictures=pictures,
            check=self._check,
            prompt=fenced_prompt(asked.prompt),
            solution=solution,
            categories="\n".join(
                f"- {name}, {self._counts[name]} criteria: {category.meaning}"
                for name, category in self._categories.items()
                if self._counts[name]
            ),
            total=str(sum(self._counts.values())),
        )
        order = list(self._counts)
        items = sorted(written.criteria, key=lambda item: order.index(self._name(item)))
        return Draft([self._criterion(item) for item in items])

    async def _solution(self, asked: Asked) -> tuple[str, list[tuple[str, ImagePart]]]:
        given = list(asked.exemplars)
        if not given:
            return "No solution is at hand.", []
        if len(given) > 1:
            raise InputError(f"{self._where}: takes one exemplar, a possible solution; got {len(given)}")
        [solution] = given
        if isinstance(solution, str):
            return fenced("solution", solution), []
        return "It is the picture above.", [("A possible solution:", await asyncio.to_thread(ImagePart.of, solution))]

    def _name(self, item: WeightedItem) -> str:
        return self._names.get(_plain(item.category), "")

    def _check(self, written: WeightedItems) -> None:
        for number, item in enumerate(written.criteria, 1):
            if not item.criterion.strip():
                raise ValueError(f"criterion {number} is blank")
            if not self._name(item):
                raise ValueError(
                    f"category {item.category!r} of criterion {number}: known are {', '.join(self._counts)}"
                )
        found = Counter(map(self._name, written.criteria))
        wrong = [
            f"{name} has {found[name]}, needs {count}" for name, count in self._counts.items() if found[name] != count
        ]
        if wrong:
            raise ValueError(f"wrong numbers of criteria: {'; '.join(wrong)}")

    def _criterion(self, item: WeightedItem) -> Criterion:
        text = item.criterion.strip()
        return Criterion(id=slug(text), text=text, category=self._name(item), weight=float(item.weight))


def _plain(name: str) -> str:
    return " ".join(re.findall(r"\w+", name.casefold().replace("_", " ")))
