"""Rubrics from a model that was fine-tuned to write them, in the format that it was taught.

Sources: Rubric-ARM, arXiv 2602.01511; Proxy-GRM, arXiv 2603.16600; RubricGen of Writer-R1, arXiv 2603.15061.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmrubric.chat import ChatRequest, Message
from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.items import slug, without_repeats
from mmrubric.generators.learned_asking import ask_text
from mmrubric.generators.learned_formats import FORMATS, LearnedItem
from mmrubric.generators.llm import FOLDER, Asked, Draft, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import Pictures, display, part_of
from mmrubric.prompt_file import Holes, PromptFile
from mmrubric.quality.criterion_rules import leak, non_comparative
from mmrubric.rubric import Anchor, Criterion, Rubric
from mmrubric.similar import Encoder
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.model_internal, Optimisation.co_trained, Signal.output_level, Loop.none)
_HARD = "hard_rule"
_OF_A_PAIR = "proxy_grm"


@registry.register("learned", _TAGS)
@dataclass
class LearnedGenerator(LLMGenerator):
    """One call to a rubric model; its text is read strictly, asked for again once, and then `fallback` takes over.

    In the format proxy_grm it takes two exemplars, the candidates of a pair, because such models were taught on
    pairs; without them it asks about the prompt alone. Rubric-ARM's generator must never see candidates. A criterion
    that names one of the two is refused.

    Args:
        format: "rubric_arm" (numbered list with [Hard Rule] and [Principle]), "proxy_grm" (<rubric> with weights that
            total 100 %), or "json" (RubricGen).
        gate_hard_rules: items marked [Hard Rule] become gates (rubric_arm only).
        encoder: finds repeats by meaning; None = by words.

    Raises:
        InputError: see `LLMGenerator`, and an unknown format, or gates in a format without hard rules.
    """

    NAME: ClassVar[str] = "learned/1"
    PROMPTS: ClassVar[str] = "learned_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "rubric_arm": ("prompt",),
        "proxy_grm": ("prompt",),
        "proxy_grm_pair": ("prompt", "candidates"),
        "json": ("prompt",),
    }
    TAKES: ClassVar[frozenset[str]] = frozenset({"exemplars"})

    _: KW_ONLY
    format: str = "rubric_arm"
    gate_hard_rules: bool = False
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(f"{self._where}: format", self.format, FORMATS)
        if self.gate_hard_rules and self.format != "rubric_arm":
            raise InputError(f"{self._where}: gate_hard_rules: the format {self.format!r} marks no hard rules")

    async def write(self, asked: Asked) -> Draft:
        step, pictures, values = await self._question(asked)
        request = ChatRequest(
            messages=self._messages(step, pictures, values),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed if self.temperature > 0 else None,
        )

        def read(text: str) -> list[LearnedItem]:
            items = FORMATS[self.format](text)
            _check_wording(items, asked.prompt)
            return items

        items = await ask_text(self.chat, self._store, request, read, self.re_asks)
        kept, repeats = without_repeats([self._criterion(item) for item in items], self.encoder)
        return Draft(kept, tuple(f"dropped: {later.text!r} repeats {earlier.text!r}" for later, earlier in repeats))

    async def _question(self, asked: Asked) -> tuple[str, Pictures, dict[str, str]]:
        values = {"prompt": fenced_prompt(asked.prompt)}
        if not asked.exemplars:
            return self.format, (), values
        if self.format != _OF_A_PAIR or len(asked.exemplars) != 2:
            raise InputError(
                f"{self._where}: exemplars: only the format {_OF_A_PAIR!r} takes any, the two candidates of a pair; "
                f"got {len(asked.exemplars)} in the format {self.format!r}"
            )
        parts = [
            (f"Response {number}", await part_of(candidate, f"{self._where}: exemplar {number}"))
            for number, candidate in enumerate(asked.exemplars, 1)
        ]
        shown = display(parts)
        return f"{_OF_A_PAIR}_pair", shown.pictures, values | {"candidates": shown.text}

    def _criterion(self, item: LearnedItem) -> Criterion:
        return Criterion(
            id=slug(item.text),
            text=item.text,
            category=item.category,
            weight=item.weight,
            hard=self.gate_hard_rules and item.category == _HARD,
            scale="ordinal" if item.levels else "binary",
            anchors=tuple(Anchor(text=level) for level in item.levels),
        )


def question_of(format: str, prompts: str | Path = "") -> Callable[[str], list[dict[str, Any]]]:
    """From a prompt to the chat in which `learned` asks about it, as the wire has it: for training such a model.

    Args:
        format: as the option of `LearnedGenerator`.
        prompts: prompt set or file; "" = that of `learned`.

    Raises:
        InputError: unknown format, or a bad prompt file.
    """
    one_of("generator 'learned': format", format, FORMATS)
    holes: Holes = {step: {"system": (), "question": names} for step, names in LearnedGenerator.HOLES.items()}
    texts = PromptFile.read(prompts or LearnedGenerator.PROMPTS, FOLDER, holes)

    def chat(prompt: str) -> list[dict[str, Any]]:
        system = texts.fill(format, "system")
        question = Message.of("user", texts.fill(format, "question", prompt=fenced_prompt(prompt)))
        messages = [Message.of("system", system), question] if system.strip() else [question]
        return [message.wire() for message in messages]

    return chat


def _check_wording(items: Sequence[LearnedItem], prompt: str) -> None:
    """Refuses items that name a candidate or tell the result; of any length, as the model was taught.

    Raises:
        ValueError: the first such item, in words that the model can act on.
    """
    for number, item in enumerate(items, 1):
        criterion = Criterion(id="item", text=item.text)
        rubric = Rubric(prompt=prompt, criteria=(criterion,))
        for finding in (*non_comparative(criterion, rubric), *leak(criterion, rubric)):
            if finding.severity == "error":
                raise ValueError(f"item {number}, {item.text!r}: {finding.message}")
