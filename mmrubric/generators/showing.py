"""How generators show a model what they are given: candidates, source pictures, numbered statements; and to whom."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from mmrubric.chat import ImagePart
from mmrubric.chat_client import ChatClient
from mmrubric.errors import InputError
from mmrubric.generators.llm import LLMGenerator
from mmrubric.judging import Candidate
from mmrubric.prompt_file import fenced, numbered_label
from mmrubric.quality.criterion_rules import leak, non_comparative
from mmrubric.rubric import Criterion, Rubric

G = TypeVar("G", bound=LLMGenerator)
P = TypeVar("P")
Pictures: TypeAlias = tuple[tuple[str, ImagePart], ...]
"""(label, picture) pairs, as `LLMGenerator.ask` takes them."""
Part: TypeAlias = ImagePart | str
"""A candidate that is ready to be shown."""
LONGEST = 300
"""Characters of a statement; a longer one holds more than one fact."""


@dataclass(frozen=True)
class Display:
    """Candidates as a model sees them: pictures before the question, and the lines of the question that hold them."""

    pictures: Pictures
    text: str


def display(parts: Sequence[tuple[str, Part]]) -> Display:
    """(label, candidate) pairs in the order in which they are to be seen."""
    lines = [
        f"{label}: the picture of that name above."
        if isinstance(part, ImagePart)
        else f"{label}:\n{fenced('candidate', part)}"
        for label, part in parts
    ]
    return Display(tuple((label, part) for label, part in parts if isinstance(part, ImagePart)), "\n".join(lines))


async def part_of(candidate: Candidate, where: str) -> Part:
    """A text as it is, a picture normalised and encoded.

    Raises:
        InputError: neither a text nor a readable picture; the message begins with `where`.
    """
    if isinstance(candidate, str):
        return candidate
    try:
        return await asyncio.to_thread(ImagePart.of, candidate)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def labelled(label: str, parts: Sequence[P]) -> list[tuple[str, P]]:
    """Parts with one label, which is numbered where there are several."""
    return [(numbered_label(label, number, len(parts)), part) for number, part in enumerate(parts, 1)]


def sources_shown(sources: Sequence[ImagePart]) -> Pictures:
    """The pictures that an editing prompt starts from, in their order."""
    return tuple(labelled("Source picture (to be edited, not judged)", sources))


def numbered(texts: Iterable[str]) -> str:
    """Statements as a fenced list, each on a line of its own, counted from 1."""
    lines = [f"{number}. {' '.join(text.split())}" for number, text in enumerate(texts, 1)]
    return fenced("statements", "\n".join(lines))


def check_wording(texts: Iterable[str], prompt: str) -> None:
    """Refuses statements that cannot be judged on one candidate alone.

    Raises:
        ValueError: the first statement that is blank, too long, names another candidate or tells the result, in words
            that the model can act on.
    """
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise ValueError(f"statement {number} is blank")
        if len(text) > LONGEST:
            raise ValueError(f"statement {number} has {len(text)} characters; state one fact in at most {LONGEST}")
        criterion = Criterion(id="statement", text=text)
        rubric = Rubric(prompt=prompt, criteria=(criterion,))
        for rule in (non_comparative, leak):
            errors = [found.message for found in rule(criterion, rubric) if found.severity == "error"]
            if errors:
                raise ValueError(f"statement {number}, {text!r}: {errors[0]}")


def through(generator: G, client: ChatClient) -> G:
    """The same generator, with the same prompts and store, asking another model."""
    twin = copy.copy(generator)
    twin.chat = client
    return twin
