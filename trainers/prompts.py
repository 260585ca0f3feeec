"""Where a run's prompts come from, and which of them a step uses."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from mmrubric.errors import InputError, RunError
from mmrubric.rubric import Prompt

_SHAPES_COUNT = 1024


class _Line(BaseModel):
    """One line of a JSONL file; `prompt` is another name of `text`."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    text: str | None = None
    prompt: str | None = None
    negative: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class PromptSet:
    """Prompts with unique ids, in file order."""

    name: str
    """File path or list name, for messages."""
    prompts: tuple[Prompt, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def fingerprint(self) -> str:
        """sha256 of ids, texts and numbers of sources, in order; a resumed run must find the same."""
        rows = [[p.id, p.text, p.negative, len(p.sources)] for p in self.prompts]
        return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()

    @classmethod
    def of(cls, prompts: Iterable[Prompt], name: str = "prompts") -> Self:
        """From a list.

        Raises:
            InputError: no prompt, a blank text, or an id used twice.
        """
        return cls._checked(name, [(f"prompt {i + 1}", prompt) for i, prompt in enumerate(prompts)])

    @classmethod
    def _checked(cls, name: str, placed: list[tuple[str, Prompt]]) -> Self:
        if not placed:
            raise InputError(f"{name}: no prompts; give at least one")
        seen: dict[str, str] = {}
        for place, prompt in placed:
            if not prompt.text.strip():
                raise InputError(f"{name}, {place}: blank prompt text; remove it or write one")
            if prompt.id in seen:
                raise InputError(f"{name}, {place}: prompt id {prompt.id!r} is used already in {seen[prompt.id]}")
            seen[prompt.id] = place
        return cls(name, tuple(prompt for _, prompt in placed))


def load(spec: str | Path, count: int | None = None, seed: int = 0) -> PromptSet:
    """Prompts of a file or of the embedded world.

    A `.jsonl` file has one object per line: `text` (or `prompt`), and optionally `id`, `negative`, `sources`
    (image paths, relative to the file). A `.txt` file has one prompt per line. A prompt without id is named
    by the hash of its text. `shapes:train` and `shapes:heldout` draw prompts of the embedded world,
    `shapes-edit:train` and `shapes-edit:heldout` draw edits with the pictures they are about.

    Args:
        spec: path, `shapes:<split>` or `shapes-edit:<split>`.
        count: number of prompts; the first ones of a file (None = all), or as many drawn (None = 1,024).
        seed: of the draw; no effect on files, which keep their order.

    Raises:
        InputError: no such file or split, an empty file, broken JSON, unknown keys, blank text, duplicate
            ids, a missing source image, or fewer prompts than `count`. The message names file and line.
    """
    if count is not None and count < 1:
        raise InputError(f"{spec}: count {count} must be at least 1")
    text = str(spec)
    world, _, split = text.partition(":")
    if world in ("shapes", "shapes-edit"):
        # Imported here, so that runs on other prompts do not load the world.
        from mmrubric.shapes import draw_prompts
        from mmrubric.shapes.edits import draw_edit_prompts

        draw = draw_prompts if world == "shapes" else draw_edit_prompts
        return PromptSet.of(draw(split, _SHAPES_COUNT if count is None else count, seed), text)
    path = Path(text)
    readers = {".jsonl": _jsonl, ".txt": _txt}
    if path.suffix not in readers:
        raise InputError(
            f"{text}: prompts come from a .jsonl or .txt file, or from shapes:SPLIT or shapes-edit:SPLIT, "
            "where SPLIT is train or heldout"
        )
    if not path.is_file():
        raise InputError(f"{text}: no such file")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{text}: not UTF-8 text ({error})") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError(f"{text}: the file is empty; give at least one prompt")
    found = PromptSet._checked(
        text, [(f"line {n}", readers[path.suffix](text, n, line)) for n, line in enumerate(lines, 1)]
    )
    if count is None:
        return found
    if count > len(found):
        raise InputError(f"{text}: {count} prompts asked for, the file has {len(found)}")
    return PromptSet(text, found.prompts[:count])


def _name(text: str) -> str:
    return "p-" + hashlib.sha256(text.encode()).hexdigest()[:12]


def _txt(file: str, number: int, line: str) -> Prompt:
    text = line.strip()
    if not text:
        raise InputError(f"{file}, line {number}: blank prompt text; remove the line")
    return Prompt(id=_name(text), text=text)


def _jsonl(file: str, number: int, line: str) -> Prompt:
    place = f"{file}, line {number}"
    try:
        data: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not valid JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(data, dict):
        raise InputError(f'{place}: expected an object such as {{"id": ..., "text": ...}}, not {type(data).__name__}')
    try:
        row = _Line.model_validate(data)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(f"{place}: {faults} (known keys: {', '.join(_Line.model_fields)})") from error
    if (row.text is None) == (row.prompt is None):
        raise InputError(f"{place}: give the prompt under 'text' (or 'prompt', not both)")
    text = row.text if row.text is not None else row.prompt
    if text is None or not text.strip():
        raise InputError(f"{place}: blank prompt text; remove the line or write one")
    if row.id is not None and not row.id.strip():
        raise InputError(f"{place}: blank id; leave 'id' out or write one")
    sources = tuple(Path(file).parent / source for source in row.sources)
    for source in sources:
        if not source.is_file():
            raise InputError(f"{place}: no such source image: {source}")
    return Prompt(id=row.id or _name(text), text=text, negative=row.negative, sources=sources)


class PromptSampler:
    """Epoch-shuffled prompts: which ones a step uses depends on (seed, step) and on bans, never on ranks.

    Every prompt comes exactly once per epoch and never twice within a step. A step may span two epochs: the
    head of the second is then reordered so that it repeats no prompt of that step. Banned prompts are passed over, so
    that an epoch has fewer steps; one that then comes twice in a step waits for the next.
    """

    def __init__(self, prompts: PromptSet, per_step: int, seed: int = 0, shuffle: bool = True) -> None:
        """Args:
            prompts: at least `per_step` of them.
            per_step: distinct prompts of a step, over all ranks.
            seed: of the order.
            shuffle: a new order in each epoch; False = file order, over and over.

        Raises:
            InputError: `per_step` is below 1 or above the number of prompts.
        """
        if per_step < 1:
            raise InputError(f"prompts per step is {per_step}; it must be at least 1")
        if per_step > len(prompts):
            raise InputError(
                f"{prompts.name}: {len(prompts)} prompts cannot fill a step of {per_step} distinct ones; "
                "lower the prompts per step or add prompts"
            )
        self.prompts = prompts
        self.per_step = per_step
        self.seed = seed
        self.shuffle = shuffle
        self.step = 0
        """Step that `take` gives next."""
        self._position = 0
        """Place that `take` looks at next, in the epochs laid end to end."""
        self._waiting: list[int] = []
        """Indices that were passed since they were in the step already."""
        self._order = lru_cache(maxsize=4)(self._ordered)

    def at(self, step: int) -> list[int]:
        """Indices of the prompts of a step without bans, [per_step], prompt row by prompt row."""
        return [self._at(place) for place in range(step * self.per_step, (step + 1) * self.per_step)]

    def take(self, bans: Mapping[str, float] | None = None) -> list[Prompt]:
        """Prompts of the present step; moves on by one step.

        Args:
            bans: by prompt id, the first epoch in which a banned prompt may be drawn, infinity = never. Bans that end
                are waited for by passing over epochs.

        Raises:
            RunError: fewer prompts than a step needs are ever to be drawn again.
        """
        bans = bans or {}
        if (left := self.left(bans)) < self.per_step:
            raise RunError(f"{self.prompts.name}: all but {left} prompts are banned, a step needs {self.per_step}")
        chosen: dict[int, None] = {}
        waiting, self._waiting = self._waiting, []
        while len(chosen) < self.per_step:
            epoch = self.epoch
            if waiting:
                index = waiting.pop(0)
            else:
                index, self._position = self._at(self._position), self._position + 1
            if index in chosen:
                if index not in self._waiting:
                    self._waiting.append(index)
            elif epoch >= bans.get(self.prompts.prompts[index].id, 0):
                chosen[index] = None
        self._waiting += waiting
        self.step += 1
        return [self.prompts.prompts[index] for index in chosen]

    def left(self, bans: Mapping[str, float]) -> int:
        """Prompts that may be drawn now or in a later epoch; `bans` as in `take`."""
        return len(self.prompts) - sum(map(math.isinf, bans.values()))

    def banned(self, bans: Mapping[str, float]) -> int:
        """Prompts that may not be drawn in the present epoch; `bans` as in `take`."""
        return sum(epoch > self.epoch for epoch in bans.values())

    @property
    def epoch(self) -> int:
        """Epoch that the next step starts in."""
        return self._position // len(self.prompts)

    def _at(self, place: int) -> int:
        return int(self._order(place // len(self.prompts))[place % len(self.prompts)])

    def _ordered(self, epoch: int) -> np.ndarray:
        total = len(self.prompts)
        # Long epochs: reordering a head leaves tails alone, so one epoch back is enough.
        # Short ones build up from epoch 0.
        if total >= 3 * self.per_step or epoch == 0:
            return self._repaired(epoch, self._shuffled(epoch - 1) if epoch else None)
        order = self._repaired(0, None)
        for later in range(1, epoch + 1):
            order = self._repaired(later, order)
        return order

    def _shuffled(self, epoch: int) -> np.ndarray:
        total = len(self.prompts)
        return np.random.default_rng([self.seed, epoch]).permutation(total) if self.shuffle else np.arange(total)

    def _repaired(self, epoch: int, before: np.ndarray | None) -> np.ndarray:
        order, total = self._shuffled(epoch), len(self.prompts)
        used = epoch * total % self.per_step
        if before is None or used == 0 or not self.shuffle:
            return order
        head, taken = self.per_step - used, set(before[-used:].tolist())
        end = total - self.per_step if total >= 3 * self.per_step else total
        free = (i for i in range(head, end) if int(order[i]) not in taken)
        for i in range(head):
            if int(order[i]) in taken:
                j = next(free)
                order[i], order[j] = order[j], order[i]
        return order

    def state_dict(self) -> dict[str, Any]:
        """Position, and what it is a position in."""
        return {
            "step": self.step,
            "position": self._position,
            "waiting": list(self._waiting),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "per_step": self.per_step,
            "prompts": len(self.prompts),
            "fingerprint": self.prompts.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`.

        Raises:
            InputError: the checkpoint was made with other prompts, prompts per step or seed.
        """
        now = self.state_dict()
        for key in ("seed", "shuffle", "per_step", "prompts", "fingerprint"):
            if state.get(key) != now[key]:
                raise InputError(
                    f"checkpoint used {key}={state.get(key)!r} for its prompts, this run has {now[key]!r} "
                    f"({self.prompts.name}); resume with the same prompts and seed, or start a new run"
                )
        self.step, self._position = int(state["step"]), int(state["position"])
        self._waiting = [int(index) for index in state["waiting"]]
