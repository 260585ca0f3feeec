"""A bank of criteria that proved to tell good answers from weaker ones, kept in a JSONL file.

Source: SibylSense, arXiv 2602.20751; the operations are reconstructed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from mmrubric.atomic import write_text
from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.generators.items import with_unique_ids
from mmrubric.rubric import Criterion
from mmrubric.similar import Encoder, duplicates

Line = TypeVar("Line", bound=BaseModel)
CONFIRMED = 2
"""Queries on which a criterion that states facts of one answer must recur to be kept."""


class BankItem(BaseModel):
    """One criterion and what is known of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    criterion: Criterion
    mean: Annotated[FiniteFloat, Field(ge=-2.0, le=1.0)]
    """Mean of alpha."""
    count: Annotated[int, Field(ge=1)] = 1
    """Evaluations behind the mean."""
    evidence: tuple[str, ...] = ()
    """Queries on which it was evaluated, each once."""
    specific: bool = False
    """It states facts that the query does not; such an item waits until `CONFIRMED` queries have it."""
    retired: bool = False
    """Saturated: candidates meet it as well as references do."""

    @property
    def usable(self) -> bool:
        """Whether it may be shown as an example to follow."""
        return not self.retired and self.confirmed

    @property
    def confirmed(self) -> bool:
        """Whether it is not bound to one query."""
        return not self.specific or len(self.evidence) >= CONFIRMED


class _Header(BaseModel):
    """First line of a bank's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bank: int
    version: Annotated[int, Field(ge=0)]
    generator: str
    capacity: int
    ema: float | None


@dataclass(frozen=True)
class Finding:
    """What one evaluation says of a criterion."""

    criterion: Criterion
    alpha: float
    query: str
    valid: bool
    """Whether a criterion that is new to the bank may enter."""
    specific: bool = False


@dataclass(frozen=True)
class Retrieved:
    """Items to show to a generator."""

    high: tuple[BankItem, ...]
    """To follow: highest mean first within the turns of the categories."""
    low: tuple[BankItem, ...]
    """To avoid: lowest mean first."""

    @property
    def items(self) -> tuple[BankItem, ...]:
        """All, those to follow first."""
        return (*self.high, *self.low)


class Bank:
    """Items in the order in which they came; near duplicates (`mmrubric.similar`) are one item.

    Args:
        generator: id of the generator that it was tuned for.
        capacity: most items; beyond it the retired, then the unconfirmed, then those of the lowest mean leave.
        ema: weight of the newest alpha in (0, 1]; None = plain running mean.
        encoder: finds near duplicates by meaning; None = by words. It is not saved.

    Raises:
        InputError: a value out of range.
    """

    def __init__(
        self, generator: str = "", capacity: int = 200, ema: float | None = None, encoder: Encoder | None = None
    ) -> None:
        self.generator = generator
        self.capacity = int(number("capacity", capacity, low=1))
        if ema is not None and number("ema", ema, 0.0, 1.0) == 0.0:
            raise InputError("ema: must be above 0; None gives the plain mean")
        self.ema = ema
        self.version = 0
        """Counts changes."""
        self._encoder = encoder
        self._items: list[BankItem] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[BankItem, ...]:
        """All items, retired ones as well, oldest first."""
        return tuple(self._items)

    def item(self, id: str) -> BankItem:
        """The item with this criterion id; `InputError` when there is none."""
        return self._items[self._index(id)]

    def match(self, texts: Sequence[str]) -> list[BankItem | None]:
        """For each text the item that says the same, or more."""
        known = [item.criterion.text for item in self._items]
        repeats = dict(duplicates([*known, *texts], encoder=self._encoder))
        places = [repeats.get(len(known) + index, len(known)) for index in range(len(texts))]
        return [self._items[place] if place < len(known) else None for place in places]

    def learn(self, findings: Sequence[Finding]) -> list[BankItem]:
        """Update the items that the findings repeat, insert the valid new ones, then evict beyond capacity.

        A valid finding brings a retired item back.

        Returns:
            The items that are new, evicted or not.
        """
        matches = self.match([finding.criterion.text for finding in findings])
        new = []
        for finding, match in zip(findings, matches, strict=True):
            if match is not None:
                self._change(match.criterion.id, finding.alpha, finding.query, match.retired and not finding.valid)
            elif finding.valid:
                new.append(self._insert(finding))
        self._evict()
        self.version += bool(findings)
        return new

    def rescore(self, id: str, alpha: float, *, retired: bool) -> BankItem:
        """Fold a new alpha into an item's mean, and retire it if it is saturated."""
        self._change(id, alpha, None, retired)
        self.version += 1
        return self.item(id)

    def drop_unconfirmed(self) -> list[BankItem]:
        """Remove the items that are bound to one query; call it when tuning ends."""
        gone = [item for item in self._items if not item.confirmed]
        self._items = [item for item in self._items if item.confirmed]
        self.version += bool(gone)
        return gone

    def retrieve(self, k: int = 8, low: int = 2) -> Retrieved:
        """At most k items: usable ones by mean, the categories in turn, and `low` whose mean is not above 0.

        Fewer of one kind leave room for the other. Equal means: the older item first.
        """
        good = [item for item in self._items if item.usable and item.mean > 0.0]
        bad = [item for item in self._items if item.confirmed and (item.retired or item.mean <= 0.0)]
        worst = sorted(bad, key=lambda item: item.mean)[: max(min(low, k), k - len(good))]
        turns: Counter[str] = Counter()
        ranks = []
        for item in sorted(good, key=lambda item: -item.mean):
            ranks.append((turns[item.criterion.category], -item.mean, len(ranks)))
            turns[item.criterion.category] += 1
        best = sorted(good, key=lambda item: -item.mean)
        chosen = [best[place] for _, _, place in sorted(ranks)[: k - len(worst)]]
        return Retrieved(tuple(chosen), tuple(worst))

    def save(self, path: str | Path) -> None:
        """Write a .jsonl file, whole or not at all: a line on the bank, then one per item."""
        header = _Header(
            bank=1, version=self.version, generator=self.generator, capacity=self.capacity, ema=self.ema
        ).model_dump()
        lines = [header, *(item.model_dump(mode="json", exclude_defaults=True) for item in self._items)]
        write_text(Path(path), "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    @classmethod
    def load(cls, path: str | Path, encoder: Encoder | None = None) -> Self:
        """Read what `save` wrote.

        Raises:
            InputError: no such file, or a line that does not fit; the message names file and line.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read as a bank: {error}") from error
        header = _read(_Header, lines[0], f"{path}, line 1")
        if header.bank != 1:
            raise InputError(f"{path}: bank format {header.bank} is not known; known: 1")
        bank = cls(header.generator, header.capacity, header.ema, encoder)
        bank.version = header.version
        bank._items = [
            _read(BankItem, line, f"{path}, line {number}") for number, line in enumerate(lines[1:], 2) if line.strip()
        ]
        return bank

    def _index(self, id: str) -> int:
        for index, item in enumerate(self._items):
            if item.criterion.id == id:
                return index
        raise InputError(f"bank has no item {id!r}; known: {', '.join(i.criterion.id for i in self._items)}")

    def _change(self, id: str, alpha: float, query: str | None, retired: bool) -> None:
        index = self._index(id)
        old = self._items[index]
        share = 1.0 / (old.count + 1) if self.ema is None else self.ema
        self._items[index] = old.model_copy(
            update={
                "mean": old.mean + share * (alpha - old.mean),
                "count": old.count + 1,
                "evidence": tuple(dict.fromkeys((*old.evidence, *([] if query is None else [query])))),
                "retired": retired,
            }
        )

    def _insert(self, finding: Finding) -> BankItem:
        criterion = with_unique_ids([*(item.criterion for item in self._items), finding.criterion])[-1]
        item = BankItem(criterion=criterion, mean=finding.alpha, evidence=(finding.query,), specific=finding.specific)
        self._items.append(item)
        return item

    def _evict(self) -> None:
        excess = len(self._items) - self.capacity
        if excess > 0:
            order = sorted(self._items, key=lambda item: (not item.retired, item.confirmed, item.mean))
            gone = {item.criterion.id for item in order[:excess]}
            self._items = [item for item in self._items if item.criterion.id not in gone]


def _read(kind: type[Line], line: str, where: str) -> Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise InputError(f"{where}: no line of a bank: {error}") from error
