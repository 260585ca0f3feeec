"""Edits of a rubric by a person: each is a new version, and what is locked stays.

A selector names what an edit applies to: the id of a criterion, or `category:NAME` for a whole dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric
from mmrubric.rubric_io import explain

LOCKED = "locked"
"""Key in `Criterion.extra` of a criterion that edits and new drafts leave alone."""
_DISABLED = "disabled"
"""Key in `Provenance.extra` under which criteria wait that are switched off."""
_CATEGORY = "category:"


def is_locked(criterion: Criterion) -> bool:
    """Whether edits leave the criterion alone."""
    return criterion.extra.get(LOCKED) is True


def disabled(rubric: Rubric) -> list[Criterion]:
    """Criteria that are switched off; judges do not see them."""
    kept: Any = rubric.provenance.extra.get(_DISABLED, [])
    return [Criterion.model_validate(row) for row in kept]


def set_weight(rubric: Rubric, selector: str, weight: float) -> Rubric:
    """A new version with this magnitude of weight; the sign stays what it was."""
    number(f"weight of {selector!r}", weight)
    if not weight > 0:
        raise InputError(f"weight of {selector!r}: must be above 0, got {weight!r}; polarity is an edit of its own")
    return _changed(rubric, selector, lambda c: {"weight": float(weight if c.weight > 0 else -weight)})


def set_polarity(rubric: Rubric, selector: str, polarity: Literal["wanted", "unwanted"]) -> Rubric:
    """A new version in which the things described should be there (`wanted`) or should not (`unwanted`)."""
    if polarity not in ("wanted", "unwanted"):
        raise InputError(f"polarity of {selector!r}: must be wanted or unwanted, got {polarity!r}")
    sign = 1.0 if polarity == "wanted" else -1.0
    return _changed(rubric, selector, lambda c: {"weight": sign * abs(c.weight)})


def set_locked(rubric: Rubric, selector: str, locked: bool) -> Rubric:
    """A new version in which these criteria are locked, or free again."""

    def extra(criterion: Criterion) -> dict[str, Any]:
        kept = {key: value for key, value in criterion.extra.items() if key != LOCKED}
        return {"extra": kept | {LOCKED: True} if locked else kept}

    return _changed(rubric, selector, extra, touch_locked=True)


def disable(rubric: Rubric, selector: str) -> Rubric:
    """A new version without these criteria; `enable` brings them back. Children lose them as parents.

    Raises:
        InputError: nothing is selected, something locked is, or no criterion would be left.
    """
    chosen = _selected(rubric, selector)
    left = _removed(rubric, chosen)
    return _with_disabled(left, [*disabled(rubric), *chosen])


def enable(rubric: Rubric, selector: str) -> Rubric:
    """A new version with criteria that were switched off, at the end."""
    waiting = disabled(rubric)
    chosen = [criterion for criterion in waiting if _matches(criterion, selector)]
    if not chosen:
        raise InputError(f"nothing that is switched off is {selector!r}; switched off: {_names(waiting)}")
    known = {*rubric.ids, *(criterion.id for criterion in chosen)}
    back = [c.model_copy(update={"depends_on": tuple(id for id in c.depends_on if id in known)}) for c in chosen]
    return _with_disabled(rubric.edited((*rubric.criteria, *back)), [c for c in waiting if c not in chosen])


def remove(rubric: Rubric, selector: str) -> Rubric:
    """A new version without these criteria, for good. Children lose them as parents."""
    return _removed(rubric, _selected(rubric, selector))


def add(rubric: Rubric, criterion: Criterion) -> Rubric:
    """A new version with one more criterion."""
    return rubric.with_added(criterion)


def with_always(rubric: Rubric, always: Iterable[Criterion]) -> Rubric:
    """A new version with criteria that every rubric of a project has; those that are there by id stay as they are."""
    missing = [criterion for criterion in always if criterion.id not in rubric.ids]
    return rubric.edited((*rubric.criteria, *missing)) if missing else rubric


def keep_locked(old: Rubric, new: Rubric) -> Rubric:
    """A new draft of a rubric that keeps the locked criteria of the old one, first and as they were.

    What was switched off in the old one, by id, stays switched off.

    Raises:
        InputError: the drafts are for different prompts.
    """
    if old.prompt != new.prompt:
        raise InputError(f"the drafts are for different prompts: {old.prompt[:60]!r} and {new.prompt[:60]!r}")
    locked = [criterion for criterion in old.criteria if is_locked(criterion)]
    ids = {criterion.id for criterion in locked}
    rest = [criterion for criterion in new.criteria if criterion.id not in ids]
    off = {criterion.id for criterion in disabled(old)}
    kept = [criterion for criterion in (*locked, *rest) if criterion.id not in off]
    if not kept:
        raise InputError("every criterion of the new draft was switched off in the old one")
    known = {criterion.id for criterion in kept}
    merged = old.edited(
        c.model_copy(update={"depends_on": tuple(id for id in c.depends_on if id in known)}) for c in kept
    )
    version = {"version": merged.provenance.version, "parent": merged.provenance.parent}
    return _with_disabled(
        merged.model_copy(update={"provenance": new.provenance.model_copy(update=version)}), disabled(old)
    )


@dataclass(frozen=True)
class Change:
    """One field of one criterion that differs."""

    id: str
    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class RubricDiff:
    """What leads from one rubric to another; criteria are matched by id, and order does not count."""

    added: tuple[Criterion, ...]
    removed: tuple[Criterion, ...]
    changed: tuple[Change, ...]
    prompts: tuple[str, str] | None = None
    """Both prompts, where they differ."""

    @property
    def empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.added or self.removed or self.changed or self.prompts)


def diff(before: Rubric, after: Rubric) -> RubricDiff:
    """Added, removed and changed criteria."""
    old = {criterion.id: criterion for criterion in before.criteria}
    new = {criterion.id: criterion for criterion in after.criteria}
    changes = [
        Change(id, field, getattr(old[id], field), getattr(criterion, field))
        for id, criterion in new.items()
        if id in old
        for field in Criterion.model_fields
        if getattr(old[id], field) != getattr(criterion, field)
    ]
    return RubricDiff(
        added=tuple(criterion for id, criterion in new.items() if id not in old),
        removed=tuple(criterion for id, criterion in old.items() if id not in new),
        changed=tuple(changes),
        prompts=None if before.prompt == after.prompt else (before.prompt, after.prompt),
    )


def _matches(criterion: Criterion, selector: str) -> bool:
    if selector.startswith(_CATEGORY):
        return criterion.category == selector.removeprefix(_CATEGORY)
    return criterion.id == selector


def _selected(rubric: Rubric, selector: str, touch_locked: bool = False) -> list[Criterion]:
    chosen = [criterion for criterion in rubric.criteria if _matches(criterion, selector)]
    if not chosen:
        categories = sorted({_CATEGORY + criterion.category for criterion in rubric.criteria})
        raise InputError(f"nothing in the rubric is {selector!r}; known: {', '.join((*rubric.ids, *categories))}")
    locked = [criterion.id for criterion in chosen if is_locked(criterion)]
    if locked and not touch_locked:
        raise InputError(f"locked: {', '.join(locked)}; unlock first")
    return chosen


def _changed(
    rubric: Rubric, selector: str, changes: Callable[[Criterion], dict[str, Any]], touch_locked: bool = False
) -> Rubric:
    chosen = {criterion.id for criterion in _selected(rubric, selector, touch_locked)}
    return rubric.edited(c.model_copy(update=changes(c)) if c.id in chosen else c for c in rubric.criteria)


def _removed(rubric: Rubric, chosen: Sequence[Criterion]) -> Rubric:
    gone = {criterion.id for criterion in chosen}
    left = [criterion for criterion in rubric.criteria if criterion.id not in gone]
    if not left:
        raise InputError("no criterion would be left, and an empty rubric judges nothing")
    return rubric.edited(
        c.model_copy(update={"depends_on": tuple(id for id in c.depends_on if id not in gone)}) for c in left
    )


def _with_disabled(rubric: Rubric, waiting: Sequence[Criterion]) -> Rubric:
    extra = {key: value for key, value in rubric.provenance.extra.items() if key != _DISABLED}
    if waiting:
        extra[_DISABLED] = [criterion.model_dump(mode="json", exclude_defaults=True) for criterion in waiting]
    return rubric.model_copy(update={"provenance": rubric.provenance.model_copy(update={"extra": extra})})


def _names(criteria: Sequence[Criterion]) -> str:
    return ", ".join(criterion.id for criterion in criteria) or "nothing"


def parse_criterion(text: str, **fields: Any) -> Criterion:
    """A criterion from a statement that a person typed."""
    try:
        return Criterion(text=text.strip(), **fields)
    except ValidationError as error:
        raise InputError(explain(error, None, "new criterion")) from error
