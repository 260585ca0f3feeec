"""Rubrics for many prompts: several at a time, in a file of prompts, in an order that does not depend on speed.

Nothing is kept beside the store of answers: a run that was killed asks for what is missing there, and the rest is
put together again without a call.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrubric.checks import number
from mmrubric.errors import InputError, RunError
from mmrubric.generators.base import RubricGenerator
from mmrubric.generators.llm import GenerationFailed
from mmrubric.judging import run_all, run_sync
from mmrubric.prompt import Media, Prompt
from mmrubric.rubric import Rubric

_TEXTS = ("prompt", "text", "caption", "instruction")
_IDS = ("id", "prompt_id", "item_id")


_SOURCES = ("sources", "source")


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a .jsonl file (objects with `prompt` and perhaps `id` and `sources`, or texts) or a .txt file.

    Ids that are not given are line numbers. Sources are paths, from the file's folder on; a single one (`source`) needs
    no list.

    Raises:
        InputError: the file cannot be read, is empty, or a line has no prompt, or an id of an earlier one.
    """
    if path.suffix not in (".jsonl", ".txt"):
        raise InputError(f"{path}: unknown file type {path.suffix!r}; give a .jsonl or .txt file of prompts")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    prompts = [_prompt(line, path, count) for count, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{path}: holds no prompt")
    twice = [id for id, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise InputError(f"{path}: id {twice[0]!r} is given twice")
    return prompts


@dataclass
class Generated:
    """Rubrics for the prompts of a file."""

    rubrics: list[Rubric]
    """In the order of the prompts, without those of `failed`; the id of the prompt stands in `provenance.extra`."""
    failed: dict[str, str]
    """Ids of the prompts for which there is none, and why."""
    fell_back: dict[str, str]
    """Ids of the prompts for which another generator wrote the rubric, and why."""


def generate_all(
    generator: RubricGenerator,
    prompts: Sequence[Prompt],
    *,
    width: int = 64,
    max_failure_share: float = 0.2,
    advance: Callable[[int], None] = lambda count: None,
) -> Generated:
    """A rubric for each prompt.

    Args:
        generator: who writes them.
        prompts: the prompts; their sources, if any, are paths.
        width: prompts at a time.
        max_failure_share: it stops as soon as the generator has failed on more than this share of the prompts, whether
            a fallback wrote their rubrics or nobody.
        advance: gets the number of prompts that are done.

    Raises:
        RunError: too many failures, or the server refuses every call; what was answered is in the store.
    """
    return run_sync(_all(generator, prompts, width, number("max_failure_share", max_failure_share, 0.0, 1.0), advance))


async def _all(
    generator: RubricGenerator, prompts: Sequence[Prompt], width: int, share: float, advance: Callable[[int], None]
) -> Generated:
    # Equal prompts at the same time would both be asked about, because neither is in the store yet.
    keyed = [((prompt.text, prompt.sources), prompt) for prompt in prompts]
    counts = Counter(key for key, _ in keyed)
    left = iter(dict(reversed(keyed)).items())
    made: dict[tuple[str, tuple[Media, ...]], Rubric] = {}
    why: dict[tuple[str, tuple[Media, ...]], str] = {}

    async def work() -> None:
        for key, prompt in left:
            try:
                made[key] = await generator.generate(prompt, prompt.sources)
                reason = fell_back(made[key])
            except GenerationFailed as error:
                reason = str(error)
            if reason is not None:
                why[key] = reason
                if sum(counts[one] for one in why) > share * len(prompts):
                    raise RunError(
                        f"the generator failed on {len(why)} prompts, more than max_failure_share={share:g} of "
                        f"{len(prompts)} allows; the last: {reason}"
                    )
            advance(counts[key])
            # A generator that never waits would keep the others, and Ctrl-C, from their turn.
            await asyncio.sleep(0)

    await run_all(work() for _ in range(min(width, len(counts))))
    return Generated(
        [_named(made[key], prompt.id) for key, prompt in keyed if key in made],
        {prompt.id: why[key] for key, prompt in keyed if key not in made},
        {prompt.id: why[key] for key, prompt in keyed if key in made and key in why},
    )


def _named(rubric: Rubric, prompt_id: str) -> Rubric:
    extra = {**rubric.provenance.extra, "prompt_id": prompt_id}
    return rubric.model_copy(update={"provenance": rubric.provenance.model_copy(update={"extra": extra})})


def fell_back(rubric: Rubric) -> str | None:
    """Why another generator wrote the rubric, or None."""
    return next((note for note in rubric.provenance.notes if note.startswith("written by ")), None)


def _prompt(line: str, path: Path, count: int) -> Prompt:
    where = f"{path}:{count}"
    data: Any = line.strip()
    if path.suffix == ".jsonl":
        try:
            data = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not valid JSON: {error}") from error
    if isinstance(data, str):
        data = {"prompt": data}
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected an object with prompt, or a text, got {type(data).__name__}")
    text = next(_values(data, _TEXTS), None)
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: no prompt; give it as {', '.join(_TEXTS)}")
    given = list(_values(data, _SOURCES))
    if len(given) > 1:
        raise InputError(f"{where}: give source or sources, not both")
    listed = given[0] if given and isinstance(given[0], list) else given
    sources = tuple(path.parent / str(source) for source in listed)
    for source in sources:
        if not source.is_file():
            raise InputError(f"{where}: field sources: there is no file {source}")
    return Prompt(id=str(next(_values(data, _IDS), count)), text=text.strip(), sources=sources)


def _values(data: dict[str, Any], names: Sequence[str]) -> Iterator[Any]:
    return (data[name] for name in names if data.get(name) is not None)
