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

from mmrubric.errors import InputError
from mmrubric.generators.base import RubricGenerator
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
    rows = [_row(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"{path}: holds no prompt")
    seen: dict[str, None] = {}
    for row in rows:
        if row.prompt.id in seen:
            raise InputError(f"{path}: id {row.prompt.id!r} is given twice")
        seen[row.prompt.id] = None
    return rows


def generate_all(
    generator: RubricGenerator,
    rows: Sequence[Row],
    *,
    width: int = 64,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Rubric]:
    """A rubric for each prompt, in order; the id of the prompt stands in `provenance.extra`.

    Args:
        generator: who writes them.
        rows: the prompts.
        width: prompts at a time.
        advance: gets the number of prompts that are done.

    Raises:
        RunError: the generator gave up on a prompt, or its server refuses every call; what was answered is in the
            store.
    """
    return run_sync(_all(generator, rows, width, advance))


async def _all(
    generator: RubricGenerator, rows: Sequence[Row], width: int, advance: Callable[[int], None]
) -> list[Rubric]:
    # Equal prompts at the same time would both be asked about, because neither is in the store yet.
    counts = Counter((row.prompt.text, row.source) for row in rows)
    left = iter({(row.prompt.text, row.source): row for row in reversed(rows)}.items())
    made: dict[tuple[str, Path | None], Rubric] = {}

    async def work() -> None:
        for key, row in left:
            made[key] = await generator.generate(row.prompt, source=row.source)
            advance(counts[key])
            # A generator that never waits would keep the others, and Ctrl-C, from their turn.
            await asyncio.sleep(0)

    await run_all(work() for _ in range(min(width, len(counts))))
    return [_named(made[row.prompt.text, row.source], row.prompt.id) for row in rows]


def _named(rubric: Rubric, prompt_id: str) -> Rubric:
    extra = {**rubric.provenance.extra, "prompt_id": prompt_id}
    return rubric.model_copy(update={"provenance": rubric.provenance.model_copy(update={"extra": extra})})


def fell_back(rubric: Rubric) -> str | None:
    """Why another generator wrote the rubric, or None."""
    return next((note for note in rubric.provenance.notes if note.startswith("written by ")), None)


def _row(line: str, path: Path, number: int) -> Row:
    where = f"{path}:{number}"
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
    return Row(Prompt(id=str(next(_values(data, _IDS), number)), text=text.strip()), source)


def _values(data: dict[str, Any], names: Sequence[str]) -> Iterator[Any]:
    return (data[name] for name in names if data.get(name) is not None)
