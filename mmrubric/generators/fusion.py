"""Pools what several writers wrote: repeats are united, contradictions decided, in whatever order the writers came.

Merging is conservative (RubricHub, arXiv 2601.08430): texts that differ in a number, a colour, a direction or a quoted
string never become one, whoever says so. The order of pooled items is that of their content, not of their writers
(MRRG, arXiv 2607.01830; the procedure is ours).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from mmrubric.generators.llm import GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import numbered
from mmrubric.quality.rubric_rules import contradictions
from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import Encoder, content, duplicates, facts, normalise

Pair = tuple[int, int]


@dataclass(frozen=True)
class Item:
    """A statement, and who made it."""

    text: str
    category: str = "general"
    weight: float = 1.0
    sources: frozenset[str] = frozenset()
    """Names of the writers: roles, models or pairs."""
    title: str = ""

    @property
    def support(self) -> int:
        """How many writers proposed it."""
        return len(self.sources)


@dataclass(frozen=True)
class Pool:
    """Items that say different things, and what happened on the way."""

    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()


class Compared(BaseModel):
    """What a model says about a numbered list: groups that say the same, pairs that exclude each other."""

    same: list[list[int]] = []
    conflicts: list[tuple[int, int]] = []


def content_key(text: str) -> str:
    """A key that orders texts by nothing that a writer decides."""
    return hashlib.sha256(normalise(text).encode(errors="surrogatepass")).hexdigest()


def in_order(items: Iterable[Item]) -> list[Item]:
    """Those that say most come first, so that the vaguer one of two repeats is dropped; then by hash of the text."""

    def key(item: Item) -> tuple[object, ...]:
        words = len(set(content(item.text)))
        return -words, content_key(item.text), item.text, -item.weight, item.category, item.title, sorted(item.sources)

    return sorted(items, key=key)


def pooled(items: Iterable[Item], encoder: Encoder | None = None) -> Pool:
    """Repeats united by wording (and by meaning, with an encoder): sources joined, the highest weight kept."""
    return joined_to_earlier(in_order(items), encoder)


def joined_to_earlier(line: Sequence[Item], encoder: Encoder | None = None) -> Pool:
    """`pooled` for items in a given order: one that adds nothing to an earlier one joins it."""
    heads = dict(duplicates([item.text for item in line], encoder=encoder))
    return _united(line, heads)[0]


async def compare(generator: LLMGenerator, prompt: str, items: Sequence[Item]) -> Compared:
    """Asks the step `compare` of a generator about items in their order.

    Raises:
        GenerationFailed: no usable answer.
    """

    def check(reply: Compared) -> None:
        members = [number for group in reply.same for number in group]
        named = [*members, *(number for pair in reply.conflicts for number in pair)]
        if wrong := sorted({number for number in named if not 1 <= number <= len(items)}):
            raise ValueError(f"numbers {wrong} are not in the list; it has the numbers 1 to {len(items)}")
        if twice := sorted({number for number in members if members.count(number) > 1}):
            raise ValueError(f"same: {twice} are in two groups; give each number at most once")
        if any(first == second for first, second in reply.conflicts):
            raise ValueError("conflicts: a statement cannot exclude itself; give two different numbers")

    texts = numbered(item.text for item in items)
    return await generator.ask("compare", Compared, check=check, prompt=fenced_prompt(prompt), statements=texts)


async def fused(
    generator: LLMGenerator, prompt: str, pool: Pool, strength: Callable[[Item], Any], ask: bool = True
) -> Pool:
    """`united` and `settled` in one: nothing left says the same, and nothing left contradicts another item."""
    whole, conflicts = await united(generator, prompt, pool, ask)
    kept = settled(whole.items, conflicts, strength)
    return Pool(kept.items, (*whole.notes, *kept.notes))


async def united(generator: LLMGenerator, prompt: str, pool: Pool, ask: bool = True) -> tuple[Pool, set[Pair]]:
    """Unites what a model calls the same; and the pairs (positions) that contradict each other.

    Args:
        generator: has a step `compare` with the holes prompt and statements.
        prompt: what the items are about.
        pool: items united by wording.
        ask: whether a model is asked; if its answer fails, wording alone decides and a note says so.
    """
    if not ask or len(pool.items) < 2:
        return pool, clashes(pool.items)
    try:
        answer = await compare(generator, prompt, pool.items)
    except GenerationFailed as error:
        note = f"compared by wording alone, because the model failed: {error}"
        return Pool(pool.items, (*pool.notes, note)), clashes(pool.items)
    merged, place = _united(pool.items, _heads(pool.items, answer.same))
    said = {_pair(place[a - 1], place[b - 1]) for a, b in answer.conflicts}
    pairs = {pair for pair in said if pair[0] != pair[1]} | clashes(merged.items)
    return Pool(merged.items, (*pool.notes, *merged.notes)), pairs


def clashes(items: Sequence[Item]) -> set[Pair]:
    """Pairs of items that contradict each other by their wording, beyond doubt: two lamps may stand left and right."""
    if len(items) < 2:
        return set()
    criteria = tuple(Criterion(id=f"{index:06d}", text=item.text) for index, item in enumerate(items))
    found = contradictions(Rubric(prompt="", criteria=criteria), None)
    ids = (finding.criteria for finding in found if finding.rule == "contradiction" and finding.severity == "error")
    return {_pair(int(first), int(second)) for first, second in ids}


def settled(items: Sequence[Item], conflicts: Iterable[Pair], strength: Callable[[Item], Any]) -> Pool:
    """Of two items that exclude each other the stronger one stays; equally strong ones both go.

    The strongest are settled first: an item that has lost excludes nothing any more.
    """
    ranks = {value: rank for rank, value in enumerate(sorted({strength(item) for item in items}))}
    strong = [ranks[strength(item)] for item in items]
    out: set[int] = set()
    notes = []
    conflicts = sorted(set(conflicts))
    for level in sorted({max(strong[a], strong[b]) for a, b in conflicts}, reverse=True):
        live = [(a, b) for a, b in conflicts if max(strong[a], strong[b]) == level and not out & {a, b}]
        for a, b in live:
            losers = {one for one, other in ((a, b), (b, a)) if strong[one] <= strong[other]}
            out |= losers
            which = "both dropped" if len(losers) == 2 else f"dropped: {items[losers.pop()].text!r}"
            notes.append(f"{items[a].text!r} contradicts {items[b].text!r}; {which}")
    return Pool(tuple(item for index, item in enumerate(items) if index not in out), tuple(notes))


def _heads(items: Sequence[Item], same: Iterable[Sequence[int]]) -> dict[int, int]:
    """Index -> index that it joins, for the members of a group that state the same facts as its first."""
    heads = {}
    for group in same:
        first, *others = sorted(number - 1 for number in group) or [0]
        told = facts(items[first].text)
        heads |= {other: first for other in others if facts(items[other].text) == told}
    return heads


def _united(line: Sequence[Item], heads: Mapping[int, int]) -> tuple[Pool, list[int]]:
    """The items with those in `heads` joined to another one; and where each item went."""
    joined: dict[int, Item] = {index: item for index, item in enumerate(line) if index not in heads}
    notes = []
    for later, head in heads.items():
        old, new = joined[head], line[later]
        joined[head] = replace(old, sources=old.sources | new.sources, weight=max(old.weight, new.weight))
        notes.append(f"dropped: {new.text!r} repeats {old.text!r}")
    place = {index: position for position, index in enumerate(joined)}
    return Pool(tuple(joined.values()), tuple(notes)), [place[heads.get(i, i)] for i in range(len(line))]


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
