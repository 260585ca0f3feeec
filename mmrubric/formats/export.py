"""What all exporters share: writing back what an import kept, and noticing what the target cannot hold."""

from __future__ import annotations

from typing import Any

from mmrubric.formats.base import Loss
from mmrubric.rubric import Criterion, Rubric

_REQUIRED = object()


def plain(weight: float) -> int | float:
    """Whole weights are written as integers, as the published files do."""
    return int(weight) if weight.is_integer() else weight


class Held:
    """What an import from `format` kept for writing the same record again.

    Attributes:
        leftovers: keys of the record that no rule read; None when the rubric comes from elsewhere.
        form: how the record was written (see `mmrubric.formats.fields`); empty when it comes from elsewhere.
        edited: whether the rubric is a later version, so that copies kept verbatim may be stale.
    """

    def __init__(self, rubric: Rubric, format: str) -> None:
        extra: dict[str, Any] = rubric.provenance.extra
        kept, form = extra.get(format), extra.get("form")
        self.leftovers: dict[str, Any] | None = dict(kept) if isinstance(kept, dict) else None
        self.form: dict[str, Any] = form if self.leftovers is not None and isinstance(form, dict) else {}
        self.edited = rubric.provenance.version > 1

    def record(self, fresh: dict[str, Any]) -> dict[str, Any]:
        """The keys beside prompt and criteria: those of the source, or `fresh` ones for a rubric from elsewhere."""
        return fresh if self.leftovers is None else dict(self.leftovers)


class Entry:
    """One criterion on its way out. Keys are put one by one; `done` adds what the source had beside them."""

    def __init__(self, held: Held, criterion: Criterion, index: int, loss: Loss) -> None:
        self.held, self.criterion, self.loss = held, criterion, loss
        self.data: dict[str, Any] = {}
        self._own: set[str] = set()
        self._default_id = f"c{index + 1}"

    def put(self, key: str, value: Any, default: Any = _REQUIRED) -> None:
        """Write a field; as the source wrote it while the value still is the default.

        An extra key of the same name that says something else would be overwritten, which is a loss.
        """
        self._own.add(key)
        if key in self.criterion.extra:
            if value == default:
                self.data[key] = self.criterion.extra[key]
                return
            if self.criterion.extra[key] is not None:
                self.loss.dropped.append((self.criterion.id, f"extra.{key}"))
        elif value == default and self.omitted(key):
            return
        self.data[key] = value

    def replace(self, key: str, value: Any) -> None:
        """Write a field in place of what `extra` holds under its key."""
        self._own.add(key)
        self.data[key] = value

    def omitted(self, key: str) -> bool:
        """Whether the source left this key out."""
        return key in self.held.form.get("omitted", {}).get(self.criterion.id, ())

    def explicit(self, key: str) -> bool:
        """Whether the source gave this key although its value is the default."""
        return key in self.held.form.get("explicit", {}).get(self.criterion.id, ())

    def put_extra(self, key: str, default: Any) -> None:
        """Write a field that lives in `extra`, or its default."""
        self.put(key, default, default)

    def put_id(self, key: str = "id", expected: bool = False) -> None:
        """Write the id. Where the format itself has none, a default id (`c1`, ...) needs no key."""
        id: str | int = self.criterion.id
        if id in self.held.form.get("numeric_ids", ()):
            id = int(id)
        if expected or id != self._default_id or self.explicit(key):
            self.put(key, id, self._default_id)

    def put_weight(self, key: str, default: float = 1.0) -> None:
        """Write the weight."""
        self.put(key, plain(self.criterion.weight), default)

    def put_labels(self, category: str | None = "category") -> None:
        """Write category and grain where they say something. They change no score: any reader may skip them."""
        if category is not None and (self.criterion.category != "general" or self.explicit(category)):
            self.put(category, self.criterion.category)
        if self.criterion.grain is not None:
            self.put("grain", self.criterion.grain)

    def done(self) -> dict[str, Any]:
        """The written criterion with the extra keys that are not the format's own."""
        extra = {key: value for key, value in self.criterion.extra.items() if key not in self._own}
        return {**self.data, **extra}
