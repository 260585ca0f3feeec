"""Dependencies between the questions of an item, as benchmarks really hold them, made into a DAG."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence


def clean(raw: Mapping[str, Sequence[object]], where: str) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Parents that exist and form a DAG; 0 means none.

    Dropped: what is no number, a question's dependency on itself, a parent given twice, a parent that the item
    does not have (such a parent counts as satisfied), and a later parent that would close a cycle. Other later
    parents are kept.

    Args:
        raw: question id to the ids it depends on, in file order.
        where: begins the warning about parents that the item does not have.

    Returns:
        Question id to its parents, and notes on what was dropped and which parents stand later.
    """
    notes: list[str] = []
    absent: set[str] = set()
    order = {id: place for place, id in enumerate(raw)}
    found = {id: _known(id, tokens, order, notes, absent) for id, tokens in raw.items()}
    if absent:
        warnings.warn(
            f"{where}: no question {', '.join(sorted(absent))}; as a parent it counts as satisfied", stacklevel=2
        )
    # Edges to earlier questions cannot form a cycle, so only an edge to a later one is ever to blame.
    kept = {id: [p for p in parents if order[p] < order[id]] for id, parents in found.items()}
    for id, parents in found.items():
        for parent in parents:
            if order[parent] < order[id]:
                continue
            if _reaches(parent, id, kept):
                notes.append(f"question {id}: its later parent {parent} closes a cycle; dropped")
            else:
                kept[id].append(parent)
                notes.append(f"question {id}: its parent {parent} stands later; kept")
    return {id: tuple(parent for parent in found[id] if parent in kept[id]) for id in raw}, notes


def _known(
    id: str, tokens: Sequence[object], order: Mapping[str, int], notes: list[str], absent: set[str]
) -> list[str]:
    parents: list[str] = []
    for token in (str(token).strip() for token in tokens):
        parent = str(int(token)) if token.isdecimal() else token
        if parent == "0" and len(tokens) == 1:
            continue
        if parent == "0":
            note = "0 beside other parents means nothing"
        elif not token.isdecimal():
            note = f"parent {token!r} is no number"
        elif parent == id:
            note = "it depends on itself"
        elif parent in parents:
            note = f"parent {parent} is given twice"
        elif parent not in order:
            note = f"the item has no question {parent}, which counts as satisfied"
            absent.add(parent)
        else:
            parents.append(parent)
            continue
        notes.append(f"question {id}: {note}; dropped")
    return parents


def _reaches(start: str, goal: str, parents: Mapping[str, Sequence[str]]) -> bool:
    """Whether `goal` is among the ancestors of `start`."""
    seen, todo = {start}, [start]
    while todo:
        new = [parent for parent in parents[todo.pop()] if parent not in seen]
        seen.update(new)
        todo += new
    return goal in seen
