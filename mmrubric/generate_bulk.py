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
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric

_TEXTS = ("prompt", "text", "caption", "instruction")
_IDS = ("id", "prompt_id", "item_id")


@dataclass(frozen=True)
class Row:
    """A prompt of a file, with the source image of an edit."""

    prompt: Prompt
    source: Path | None = None


def read_prompts(path: Path) -> list[Row]:
    """Prompts of a .jsonl file (objects with `prompt` and perhaps `id` and `source`, or texts) or a .txt file.

    Ids that are not given are line numbers. A source is a path, from the file's folder on.

    Raises:
        InputError: the file cannot be read, is empty, or a line has no prompt, or an id of an earlier one.
    """
    if path.suffix not in (".jsonl", ".txt"):
        raise InputError(f"{path}: unknown file type {path.suffix!r}; give a .jsonl or .txt file of prompts")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    rows = [_row(line, path, count) for count, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"{path}: holds no prompt")
    seen: dict[str, None] = {}
    for row in rows:
        if row.prompt.id in seen:
            raise InputError(f"{path}: id {row.prompt.id!r} is given twice")
        seen[row.prompt.id] = None
    return rows


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
    rows: Sequence[Row],
    *,
    width: int = 64,
    max_failure_share: float = 0.2,
    advance: Callable[[int], None] = lambda count: None,
) -> Generated:
    """A rubric for each prompt.

    Args:
        generator: who writes them.
        rows: the prompts.
        width: prompts at a time.
        max_failure_share: it stops as soon as the generator has failed on more than this share of the prompts, whether
            a fallback wrote their rubrics or nobody.
        advance: gets the number of prompts that are done.

    Raises:
        RunError: too many failures, or the server refuses every call; what was answered is in the store.
    """
    return run_sync(_all(generator, rows, width, number("max_failure_share", max_failure_share, 0.0, 1.0), advance))


async def _all(
    generator: RubricGenerator, rows: Sequence[Row], width: int, share: float, advance: Callable[[int], None]
) -> Generated:
    # Equal prompts at the same time would both be asked about, because neither is in the store yet.
    counts = Counter((row.prompt.text, row.source) for row in rows)
    left = iter({(row.prompt.text, row.source): row for row in reversed(rows)}.items())
    made: dict[tuple[str, Path | None], Rubric] = {}
    why: dict[tuple[str, Path | None], str] = {}

    async def work() -> None:
        for key, row in left:
            try:
                made[key] = await generator.generate(row.prompt, source=row.source)
                reason = fell_back(made[key])
            except GenerationFailed as error:
                reason = str(error)
            if reason is not None:
                why[key] = reason
                if sum(counts[one] for one in why) > share * len(rows):
                    raise RunError(
                        f"the generator failed on {len(why)} prompts, more than max_failure_share={share:g} of "
                        f"{len(rows)} allows; the last: {reason}"
                    )
            advance(counts[key])
            # A generator that never waits would keep the others, and Ctrl-C, from their turn.
            await asyncio.sleep(0)

    await run_all(work() for _ in range(min(width, len(counts))))
    keyed = [(row.prompt.id, (row.prompt.text, row.source)) for row in rows]
    return Generated(
        [_named(made[key], id) for id, key in keyed if key in made],
        {id: why[key] for id, key in keyed if key not in made},
        {id: why[key] for id, key in keyed if key in made and key in why},
    )


def _named(rubric: Rubric, prompt_id: str) -> Rubric:
    extra = {**rubric.provenance.extra, "prompt_id": prompt_id}
    return rubric.model_copy(update={"provenance": rubric.provenance.model_copy(update={"extra": extra})})


def fell_back(rubric: Rubric) -> str | None:
    """Why another generator wrote the rubric, or None."""
    return next((note for note in rubric.provenance.notes if note.startswith("written by ")), None)


def _row(line: str, path: Path, count: int) -> Row:
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
    source = data.get("source")
    if source is not None:
        source = path.parent / str(source)
        if not source.is_file():
            raise InputError(f"{where}: field source: there is no file {source}")
    return Row(Prompt(id=str(next(_values(data, _IDS), count)), text=text.strip()), source)


def _values(data: dict[str, Any], names: Sequence[str]) -> Iterator[Any]:
    return (data[name] for name in names if data.get(name) is not None)
