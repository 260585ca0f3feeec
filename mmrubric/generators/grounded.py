"""Criteria from a hidden passage or reference image, and whole tasks: passage -> question + rubric.

The policy sees a `Prompt`, which has no room for either; judges get a `Task` (rubric-grounded RL, arXiv 2605.08061; the
procedure is ours).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from pydantic import BaseModel, Field

from mmrubric.chat import ImagePart
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.items import capped, check_enough, slug, without_repeats
from mmrubric.generators.leaks import shared_run, states
from mmrubric.generators.llm import Asked, Draft, LLMGenerator, fenced_prompt
from mmrubric.judging import run_sync
from mmrubric.prompt import Box, Grounding, Prompt, Task
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Anchor, Criterion
from mmrubric.similar import normalise
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.evidence_driven, Optimisation.verify, Signal.output_level, Loop.none)


class GroundedItem(BaseModel):
    """One entry of the model's list."""

    key: str = ""
    criterion: str
    category: str = "general"
    weight: float = Field(gt=0, le=10)
    required_elements: list[str] = Field(min_length=1)
    levels: list[str] = Field(min_length=2, max_length=10)
    verification_cues: list[str] = Field(min_length=1)


class GroundedItems(BaseModel):
    """The model's list."""

    criteria: list[GroundedItem]


class BuiltTask(GroundedItems):
    """A question that a passage answers, and how to grade answers."""

    question: str


@registry.register("grounded", _TAGS)
@dataclass
class GroundedGenerator(LLMGenerator):
    """Writes ordinal criteria from a `Grounding`: a passage, a reference image, a layout, or several of them.

    `Criterion.extra` holds required_elements, scoring_guide (level from 0 to its text) and verification_cues, which
    judges are shown, and the hash of the grounding, so that another passage never gives the same rubric.
    `task` also writes the question.

    Args:
        min_criteria: fewer than this is asked for again.
        max_criteria: more than this is cut, round-robin over the categories.
        context: characters of grounding that judge and generator can read; more is refused, never cut.
        leak_words: so many words in a row from the passage are a leak.
        facts_in_text: False = the text of a criterion may not state a required element, nor so many words in a row
            from the passage, unless the prompt does: it can then be shown to a policy. The facts stay in `extra`.
        fallback: as for all generators, but an error by default: no other generator reads the grounding.

    Raises:
        InputError: see `LLMGenerator`, and bounds that cross or are not positive.
    """

    NAME: ClassVar[str] = "grounded/1"
    PROMPTS: ClassVar[str] = "grounded_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "write": ("prompt", "grounding", "least", "most"),
        "task": ("grounding", "least", "most"),
    }
    TAKES: ClassVar[frozenset[str]] = frozenset({"grounding"})

    _: KW_ONLY
    min_criteria: int = 2
    max_criteria: int = 8
    context: int = 24_000
    leak_words: int = 6
    facts_in_text: bool = False
    fallback: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_criteria <= self.max_criteria:
            raise InputError(
                f"{self._where}: needs 1 <= min_criteria <= max_criteria, got {self.min_criteria} and "
                f"{self.max_criteria}"
            )
        for name in ("context", "leak_words"):
            if getattr(self, name) < 1:
                raise InputError(f"{self._where}: {name} must be at least 1, got {getattr(self, name)!r}")

    async def write(self, asked: Asked) -> Draft:
        grounding = asked.grounding
        if grounding is None or not (grounding.passage.strip() or grounding.layout or grounding.image is not None):
            raise InputError(f"{self._where}: grounding: give a passage, a reference image or a layout")
        text = self._shown(grounding)
        picture = None if grounding.image is None else await asyncio.to_thread(ImagePart.of, grounding.image)
        written = await self.ask(
            "write",
            GroundedItems,
            pictures=[] if picture is None else [("Reference picture (hidden from whoever answers):", picture)],
            check=lambda found: self._check(found, asked.prompt, grounding.passage),
            prompt=fenced_prompt(asked.prompt),
            grounding=text,
            least=str(self.min_criteria),
            most=str(self.max_criteria),
        )
        return self._draft(written, _hash(grounding, picture))

    async def task(self, passage: str, id: str = "") -> Task:
        """A task whose answer stands in the passage: the question for the policy, the rest for judges.

        Args:
            passage: hidden reference text.
            id: of the prompt; "" = from the hash of the passage.

        Raises:
            InputError: the passage is blank or longer than `context`.
            GenerationFailed: no usable question. With another `fallback` than "none" it still is: nothing else could
                write one.
        """
        if not passage.strip():
            raise InputError(f"{self._where}: passage is blank; give a text that answers a question")
        grounding = Grounding(passage=passage)
        built = await self.ask(
            "task",
            BuiltTask,
            check=lambda found: self._check_task(found, passage),
            grounding=self._shown(grounding),
            least=str(self.min_criteria),
            most=str(self.max_criteria),
        )
        digest = _hash(grounding, None)
        question = built.question.strip()
        rubric = await self.finish(question, _done(self._draft(built, digest)))
        return Task(Prompt(id or f"grounded-{digest[:12]}", question), rubric, grounding)

    def task_sync(self, passage: str, id: str = "") -> Task:
        """`task`, also from inside a running event loop."""
        return run_sync(self.task(passage, id))

    def _shown(self, grounding: Grounding) -> str:
        """The grounding as the model reads it. Too long: `InputError`."""
        parts = [fenced("passage", grounding.passage)] if grounding.passage.strip() else []
        if grounding.layout:
            parts.append(fenced("layout", "\n".join(map(_box, grounding.layout))))
        if grounding.image is not None:
            parts.append("The reference picture above.")
        size = len(grounding.passage)
        if size > self.context:
            raise InputError(
                f"{self._where}: passage has {size} characters, more than context = {self.context}; split it or raise "
                "context to what generator and judge can read"
            )
        return "\n".join(parts)

    def _check_task(self, built: BuiltTask, passage: str) -> None:
        if not built.question.strip():
            raise ValueError("the question is blank")
        if run := shared_run(built.question, passage, self.leak_words):
            raise ValueError(f"the question gives words of the passage away: {run!r}; ask without them")
        for element in (element for item in built.criteria for element in item.required_elements):
            if states(built.question, element):
                raise ValueError(f"the question gives a required element away: {element!r}; ask without it")
        self._check(built, built.question, passage)

    def _check(self, written: GroundedItems, prompt: str, passage: str) -> None:
        check_enough([item.criterion for item in written.criteria], self.min_criteria)
        for number, item in enumerate(written.criteria, 1):
            words = [item.criterion, *item.required_elements, *item.levels, *item.verification_cues]
            if not all(word.strip() for word in words):
                raise ValueError(f"criterion {number} holds a blank text")
            if len(set(map(normalise, item.levels))) < len(item.levels):
                raise ValueError(f"criterion {number}: two levels have the same words")
            if not self.facts_in_text:
                self._check_text(item, prompt, passage)

    def _check_text(self, item: GroundedItem, prompt: str, passage: str) -> None:
        for element in item.required_elements:
            if states(item.criterion, element) and not states(prompt, element):
                raise ValueError(
                    f"{item.criterion!r} gives the required element {element!r} away; say what is asked for in general "
                    "terms and leave the fact to required_elements"
                )
        if run := shared_run(item.criterion, passage, self.leak_words, prompt):
            raise ValueError(f"{item.criterion!r} gives words of the passage away: {run!r}; say it in general terms")

    def _draft(self, written: GroundedItems, digest: str) -> Draft:
        made, repeats = without_repeats([_criterion(item, digest) for item in written.criteria])
        notes = [f"dropped: {later.text!r} repeats {earlier.text!r}" for later, earlier in repeats]
        kept = capped(made, self.max_criteria)
        notes += [f"dropped: {criterion.text!r}, over max_criteria" for criterion in made if criterion not in kept]
        return Draft(kept, tuple(notes), {"evidence": (f"sha256:{digest}",)})


async def _done(draft: Draft) -> Draft:
    return draft


def _criterion(item: GroundedItem, digest: str) -> Criterion:
    levels = [level.strip() for level in item.levels]
    return Criterion(
        id=slug(item.key or item.criterion),
        text=item.criterion.strip(),
        category=item.category.strip() or "general",
        weight=item.weight,
        scale="ordinal",
        anchors=tuple(Anchor(text=level) for level in levels),
        extra={
            "required_elements": list(item.required_elements),
            "scoring_guide": {str(level): text for level, text in enumerate(levels)},
            "verification_cues": list(item.verification_cues),
            "grounding": digest,
        },
    )


def _box(box: Box) -> str:
    sides = ", ".join(f"{name} {getattr(box, name):.2f}" for name in ("left", "top", "right", "bottom"))
    return f"{box.label}: {sides}"


def _hash(grounding: Grounding, picture: ImagePart | None) -> str:
    """sha256 hex of all that the grounding holds; of a passage alone, that of its text."""
    parts = [grounding.passage] if grounding.passage else []
    parts += ["\n".join(map(_box, grounding.layout))] if grounding.layout else []
    parts += [picture.sha256] if picture is not None else []
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
