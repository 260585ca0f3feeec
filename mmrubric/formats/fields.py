"""The importer rules that all formats share: names of fields, signs, ids, decoding, what goes to `extra`.

Keys of a record that no rule reads go to `Provenance.extra[<format>]`, those of a criterion to
`Criterion.extra`. How a file was written, as far as its meaning does not tell it (a weight left to its default,
a list under `sections`), goes to `Provenance.extra["form"]`, which no hash covers; exporters use it to write the
same record again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mmrubric import rubric_io
from mmrubric.formats.base import Place
from mmrubric.rubric import Rubric

TEXT_KEYS = ("criterion", "requirement", "criterion_text", "description", "text", "title")
WEIGHT_KEYS = ("points", "weight")
_PLAIN = frozenset({str, int, float, bool, type(None)})
_RECORD_IDS = ("prompt_id", "id", "sample_id", "unique_id", "pair_id", "name")


def decoded(value: Any) -> Any:
    """Plain data: numpy arrays and tuples become lists, numpy numbers become numbers, at any depth."""
    if type(value) in _PLAIN:  # most values of a large file: no further question
        return value
    if isinstance(value, np.ndarray):
        return [decoded(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: decoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [decoded(item) for item in value]
    return value


def record(value: Any, place: Place) -> tuple[dict[str, Any], Place]:
    """A record as a mapping whose fields may be taken out, and its place with the record's id."""
    if not isinstance(value, Mapping):
        raise place.error(f"expected a record (an object of fields), got {type(value).__name__}")
    data = decoded(value)
    for key, cell in data.items():
        if isinstance(cell, float) and math.isnan(cell):  # pandas writes a missing cell so
            data[key] = None
    named = next((data[key] for key in _RECORD_IDS if isinstance(data.get(key), (str, int))), None)
    return data, place if named is None else place.inside(f"record {named!r}")


def container(value: Any, key: str, place: Place) -> Any:
    """A list or mapping that may be written as JSON text; None stays None (absent, not empty)."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise place.error(
            f"field {key!r}: text that is not JSON ({error}); give a list, an object or JSON text"
        ) from error


def mapping(value: Any, key: str, place: Place) -> dict[str, Any]:
    """A mapping, perhaps as JSON text; absent is an empty one."""
    data = container(value, key, place)
    if data is not None and not isinstance(data, dict):
        raise place.error(f"field {key!r}: expected an object, got {type(data).__name__}")
    return dict(data or {})


def rows(value: Any, key: str, place: Place, id_key: str = "id") -> list[Any] | None:
    """The criteria under `key` as a list; None when the record has none, which is counted.

    Lists, JSON text, one criterion alone, criteria by id, and columns (`{"text": [...], "weight": [...]}`, the
    way a sequence of structs is stored) are all read.
    """
    data = container(value, key, place)
    if isinstance(data, dict):
        cells = list(data.values())
        if cells and all(isinstance(cell, list) for cell in cells):
            if len({len(cell) for cell in cells}) > 1:
                raise place.error(f"field {key!r}: columns {sorted(data)} differ in length")
            data = [dict(zip(data, row, strict=True)) for row in zip(*cells, strict=True)]
        elif cells and all(isinstance(cell, dict) for cell in cells):
            data = [{id_key: id, **cell} for id, cell in data.items()]
        else:
            data = [data]
    if data is None:
        place.warn(f"no rubric: {key} is absent", f"field {key!r} is null or missing: no rubric, row left out")
        return None
    if not isinstance(data, list):
        raise place.error(f"field {key!r}: expected a list of criteria, got {type(data).__name__}")
    if not data:
        raise place.error(f"field {key!r}: is an empty list; a rubric needs at least one criterion")
    return data


def text_of(value: Any, key: str, place: Place) -> str:
    """A field that must be text."""
    if not isinstance(value, str):
        problem = "is missing" if value is None else f"must be text, got {type(value).__name__}"
        raise place.error(f"field {key!r}: {problem}")
    return value


def conversation(value: Any, key: str, place: Place) -> tuple[str, Any]:
    """The prompt that judges read, and the messages to keep (None when the prompt alone tells them).

    Args:
        value: text, a list of {role, content}, or that list as JSON text.
    """
    if value is None:
        raise place.error(f"field {key!r}: is missing; give text or a list of messages (role, content)")
    kept = _turns(value) if isinstance(value, str) else value
    prompt = rendered(kept)
    if prompt is None:
        raise place.error(f"field {key!r}: expected text or a list of messages (role, content)")
    return prompt, None if kept == messages(prompt) else kept


def _turns(text: str) -> Any:
    """The messages that the text is when it is JSON of messages; the text itself otherwise."""
    if not text.lstrip().startswith("["):
        return text
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text  # a prompt that begins with a bracket
    return data if rendered(data) is not None else text


def messages(prompt: str) -> list[dict[str, str]]:
    """A prompt as one message of the user."""
    return [{"role": "user", "content": prompt}]


def rendered(turns: Any) -> str | None:
    """Text of a conversation: one turn is its content, several are `role: content` blocks; None = malformed."""
    if isinstance(turns, str):
        return turns
    if not isinstance(turns, list) or not turns:
        return None
    contents = [text for turn in turns if (text := _content(turn)) is not None]
    if len(contents) < len(turns):
        return None
    if len(turns) == 1:
        return contents[0]
    return "\n\n".join(f"{turn.get('role', 'user')}: {text}" for turn, text in zip(turns, contents, strict=True))


def _content(turn: Any) -> str | None:
    content = turn.get("content") if isinstance(turn, dict) else None
    if isinstance(content, list):  # parts of a multimodal message
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else None


def spoken(prompt: str, kept: Any) -> Any:
    """The kept messages while they still say `prompt`, else the prompt as one message."""
    return kept if kept is not None and rendered(kept) == prompt else messages(prompt)


class Item:
    """One criterion of a foreign record. Its fields are taken one by one; what is left becomes `extra`.

    Null under a key that is read counts as absent and stays in `extra`, so that it is written again.
    """

    def __init__(
        self, raw: Any, index: int, key: str, place: Place, id_key: str = "id", id_expected: bool = False
    ) -> None:
        default = f"c{index + 1}"
        self.place = place.inside(f"criterion {default!r} ({key}[{index}])")
        if not isinstance(raw, dict):
            raise self.place.error(f"expected an object with text and weight, got {type(raw).__name__}")
        self.rest: dict[str, Any] = dict(raw)
        self.omitted: list[str] = []
        """Keys of the format that the source left to their default."""
        self.explicit: list[str] = []
        """Keys that the format does without, given with their default value."""
        self.numeric = False
        """Whether the source's id is a number."""
        self.fields: dict[str, Any] = {"id": default}
        given = raw.get(id_key)
        if isinstance(given, str) and given.strip():
            self.fields["id"] = self.rest.pop(id_key)
            if given == default and not id_expected:
                self.explicit.append(id_key)
        elif isinstance(given, int) and not isinstance(given, bool):
            self.fields["id"] = str(self.rest.pop(id_key))
            self.numeric = True
        elif id_key not in raw and id_expected:
            self.omitted.append(id_key)
        self.place = place.inside(f"criterion {self.fields['id']!r} ({key}[{index}])")

    def take(self, key: str) -> Any:
        """Take a field out; None when it is absent (or null, which stays)."""
        if key not in self.rest:
            self.omitted.append(key)
            return None
        return None if self.rest[key] is None else self.rest.pop(key)

    def default(self, key: str, value: Any) -> None:
        """Leave a field in `extra` unless it has its default value."""
        if key not in self.rest:
            self.omitted.append(key)
        elif self.rest[key] == value:
            del self.rest[key]

    def text(self, first: str) -> None:
        """Take the text: the format's own key first, then the names that other formats use.

        Of a title and a description the longer one is the text; the other stays as a label in `extra`.
        """
        keys = (first, *TEXT_KEYS)
        found = [key for key in keys if isinstance(self.rest.get(key), str) and self.rest[key].strip()]
        if not found:
            wrong = next((key for key in keys if self.rest.get(key) is not None), None)
            if wrong is None:
                raise self.place.error(f"field {first!r}: is missing; the statement to check must be given")
            raise self.place.error(f"field {wrong!r}: must be text that is not blank, got {self.rest[wrong]!r}")
        key = found[0]
        if "title" in found and "description" in found:
            key = "title" if len(self.rest["title"]) > len(self.rest["description"]) else "description"
        self.fields["text"] = self.rest.pop(key)

    def weight(self, first: str, default: float = 1.0) -> None:
        """Take the weight: sign kept, numeric text read with a warning, 0 refused."""
        key = next((key for key in (first, *WEIGHT_KEYS) if self.rest.get(key) is not None), first)
        value = self.take(key)
        self.fields["weight"] = default if value is None else number(value, key, self.place)

    def labels(self, category: str | None = "category") -> None:
        """Take category and grain where they are what we mean by them; anything else stays in `extra`."""
        if category is not None:
            value = self.rest.get(category)
            if isinstance(value, str) and value.strip():
                self.fields["category"] = self.rest.pop(category)
                if value == "general":
                    self.explicit.append(category)
        if self.rest.get("grain") in ("coarse", "mid", "fine"):
            self.fields["grain"] = self.rest.pop("grain")


def number(value: Any, key: str, place: Place) -> float:
    """A weight: finite, not 0; numeric text gives a warning."""
    found = value
    if isinstance(value, str):
        try:
            found = float(value)
        except ValueError:
            raise place.error(f"field {key!r}: {value!r} is no number; write it as one") from None
        place.warn("weights written as text", f"field {key!r}: text {value!r} is read as a number")
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        raise place.error(f"field {key!r}: {value!r} is not a finite number")
    if found == 0:
        raise place.error(f"field {key!r}: must not be 0; remove the criterion or give it a weight")
    return float(found)


def build(
    format: str, prompt: str, items: list[Item], leftovers: dict[str, Any], place: Place, **form: Any
) -> list[Rubric]:
    """The rubric of one record, with what no rule read.

    Args:
        leftovers: keys of the record, for `Provenance.extra[format]`.
        form: how the record was written, for `Provenance.extra["form"]`.
    """
    form = {key: value for key, value in form.items() if value}
    data = {
        "prompt": prompt,
        "criteria": [{**item.fields, "extra": item.rest} for item in items],
        "provenance": {"extra": {format: leftovers, **({"form": form} if form else {})}},
    }
    return [rubric_io.parse(data, place.text)]


def written_as(items: list[Item]) -> dict[str, Any]:
    """How the criteria of a record were written, for formats that can be exported again."""
    return {
        "omitted": {item.fields["id"]: item.omitted for item in items if item.omitted},
        "explicit": {item.fields["id"]: item.explicit for item in items if item.explicit},
        "numeric_ids": [item.fields["id"] for item in items if item.numeric],
    }


def items_of(
    value: Any,
    key: str,
    place: Place,
    read: Callable[[Item], None],
    id_key: str = "id",
    id_expected: bool = False,
) -> list[Item] | None:
    """`read` applied to every criterion under `key`; None when the record has no rubric.

    `id_expected`: whether the format itself has ids.
    """
    found = rows(value, key, place, id_key)
    if found is None:
        return None
    items = [Item(raw, index, key, place, id_key, id_expected) for index, raw in enumerate(found)]
    for item in items:
        read(item)
    return items
