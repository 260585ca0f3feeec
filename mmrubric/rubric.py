"""The checklist: `Criterion` and `Rubric`."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    StrictBool,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from mmrubric.dag import topological_order
from mmrubric.errors import InputError
from mmrubric.prompt import Prompt

Dependencies = Literal["none", "direct", "cascade"]
Number = Annotated[FiniteFloat, Field(strict=True)]
"""A finite number. Strict: the text "3" and the value true are refused, not turned into numbers."""
Share = Annotated[Number, Field(ge=0.0, le=1.0)]

_VERIFIER = re.compile(r"vlm|ocr|clip|rule:\S+")


def _word(value: object) -> object:
    """YAML reads a bare yes or no as a bool; where a label is meant, turn it back into the word."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Anchor(_Frozen):
    """One level of an ordinal scale, described in words."""

    text: StrictStr
    value: Share | None = None
    """Value of the level in [0, 1]; None = (level - 1) / (L - 1)."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return {"text": data} if isinstance(data, str) else data


class Option(_Frozen):
    """One answer of a nominal scale."""

    label: StrictStr
    value: Share | None = None
    """Value of the answer in [0, 1]; may be left out when the criterion names an expected label."""
    na: StrictBool = False
    """True: this answer means 'does not apply', whatever its value."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        data = _word(data)
        return {"label": data} if isinstance(data, str) else data

    @field_validator("label", mode="before")
    @classmethod
    def _label(cls, value: object) -> object:
        return _word(value)


class Criterion(_Frozen):
    """One checkable statement about a sample.

    Raises:
        pydantic.ValidationError: (a ValueError) a field is unknown or wrong. `Rubric.load` and `Rubric.parse`
        turn
            it into an `InputError` that names file, criterion and field.
    """

    id: StrictStr
    """Key of the verdict; unique within the rubric."""
    text: StrictStr
    """The statement, as the judge reads it; never blank."""
    category: StrictStr = "general"
    """Group of the criterion, such as object, count, attribute, relation, text, realism."""
    weight: Number = 1.0
    """Share of the score; finite, not 0. A negative weight marks something that should not be there."""
    scale: Literal["binary", "ordinal", "nominal"] = "binary"
    anchors: tuple[Anchor, ...] = ()
    """Levels of an ordinal scale, lowest first; each a text, or text and value."""
    options: tuple[Option, ...] = ()
    """Answers of a nominal scale."""
    expected: StrictStr | None = None
    """Answer that counts as met: "yes" (default) or "no" on a binary scale, a label on a nominal one."""
    hard: StrictBool = False
    """A gate: when it fails, the score is 0."""
    depends_on: tuple[StrictStr, ...] = ()
    """Ids of criteria that must hold for this one to make sense."""
    grain: Literal["coarse", "mid", "fine"] | None = None
    verifier: StrictStr = "vlm"
    """Who judges it: vlm, ocr, clip or rule:<name>."""
    arguments: dict[str, JsonValue] = {}
    """Arguments of the verifier."""
    extra: dict[str, JsonValue] = {}
    """Fields of methods and file formats: theme, required_elements, scoring_guide, verification_cues, ..."""

    @field_validator("id", "text", "category")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value

    @field_validator("expected", mode="before")
    @classmethod
    def _expected_word(cls, value: object) -> object:
        return _word(value)

    @field_validator("weight")
    @classmethod
    def _not_zero(cls, value: float) -> float:
        if value == 0:
            raise ValueError("must not be 0; remove the criterion instead")
        return value

    @field_validator("verifier")
    @classmethod
    def _known_verifier(cls, value: str) -> str:
        if not _VERIFIER.fullmatch(value):
            raise ValueError(f"unknown verifier {value!r}; known: vlm, ocr, clip, rule:<name>")
        return value

    @field_validator("arguments", "extra")
    @classmethod
    def _finite_json(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        json.dumps(value, allow_nan=False)  # a ValueError of its own: the content hash needs real JSON
        return value

    @model_validator(mode="after")
    def _scale_is_complete(self) -> Criterion:
        if (self.scale == "ordinal") != bool(self.anchors) or (self.anchors and len(self.anchors) < 2):
            raise ValueError("an ordinal scale needs at least 2 anchors, and only an ordinal scale has anchors")
        if (self.scale == "nominal") != bool(self.options) or (self.options and len(self.options) < 2):
            raise ValueError("a nominal scale needs at least 2 options, and only a nominal scale has options")
        labels = [option.label for option in self.options]
        if len(set(labels)) < len(labels):
            raise ValueError(f"options: labels must be unique, got {labels}")
        allowed = {
            "binary": ["yes", "no"],
            "ordinal": [],
            "nominal": [option.label for option in self.options if not option.na],
        }[self.scale]
        if self.expected is not None and self.expected not in allowed:
            listed = ", ".join(allowed) if allowed else "none (the anchors say what is good)"
            raise ValueError(f"expected: {self.expected!r} is no answer of this {self.scale} scale; known: {listed}")
        if self.scale == "nominal" and self.expected is None:
            bare = [option.label for option in self.options if option.value is None and not option.na]
            if bare:
                raise ValueError(f"options {bare} need a value, or the criterion needs an expected label")
        return self

    def met_of(self, answer: str | int | bool) -> float | None:
        """Turn a judge's answer into `met` in [0, 1], or None when the question does not apply.

        Args:
            answer: "yes", "no", "unknown" or a bool (binary), a level counted from 1 (ordinal), a label
                (nominal).

        Raises:
            InputError: the answer is not one of the scale.
        """
        where = f"criterion {self.id!r}: answer {answer!r}"
        if self.scale == "ordinal":
            levels = len(self.anchors)
            if isinstance(answer, bool) or not isinstance(answer, int) or not 1 <= answer <= levels:
                raise InputError(f"{where} is not a level from 1 to {levels}")
            value = self.anchors[answer - 1].value
            return (answer - 1) / (levels - 1) if value is None else value
        word = _word(answer)
        if self.scale == "nominal":
            option = next((option for option in self.options if option.label == word), None)
            if option is None:
                raise InputError(f"{where} is no option; known: {', '.join(o.label for o in self.options)}")
            if option.na:
                return None
            if self.expected is not None and option.value is None:
                return float(option.label == self.expected)
            return option.value
        if word == "unknown":
            return None
        if word not in ("yes", "no"):
            raise InputError(f"{where} is neither yes nor no nor unknown")
        return float(word == (self.expected or "yes"))

    def met_of_probability(self, yes: float) -> float:
        """Turn P(yes) in [0, 1] of a binary criterion into `met`; flips when the expected answer is "no"."""
        if self.scale != "binary":
            raise InputError(f"criterion {self.id!r}: P(yes) needs a binary scale, this one is {self.scale}")
        return 1.0 - yes if self.expected == "no" else yes


class Provenance(_Frozen):
    """How a rubric came to be. Not part of its hash."""

    generator: StrictStr = ""
    model: StrictStr = ""
    template_hash: StrictStr = ""
    evidence: tuple[StrictStr, ...] = ()
    verified_by: StrictStr = ""
    """How it was verified: label, consistency, proxy, human, or "" for not at all."""
    pair_id: StrictStr = ""
    refinements: int | None = None
    roles: tuple[StrictStr, ...] = ()
    round: int | None = None
    policy_hash: StrictStr = ""
    version: int = 1
    """Counts edits."""
    parent: StrictStr = ""
    """Hash of the version that was edited."""
    notes: tuple[StrictStr, ...] = ()
    """Fallbacks and repairs, in words."""
    extra: dict[str, JsonValue] = {}


class Rubric(_Frozen):
    """Criteria for one prompt (or, with an empty prompt, for a whole data set).

    Raises:
        pydantic.ValidationError: (a ValueError) no criteria, duplicate ids, unknown or cyclic dependencies.
    """

    prompt: StrictStr
    """Text of the prompt; a `Prompt` is accepted and gives its text."""
    criteria: tuple[Criterion, ...]
    provenance: Provenance = Provenance()

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt_text(cls, value: object) -> object:
        return value.text if isinstance(value, Prompt) else value

    @field_validator("criteria")
    @classmethod
    def _consistent(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        if not criteria:
            raise ValueError("a rubric needs at least one criterion")
        ids = [criterion.id for criterion in criteria]
        twice = sorted({id for id in ids if ids.count(id) > 1})
        if twice:
            raise ValueError(f"ids must be unique; used more than once: {', '.join(map(repr, twice))}")
        for criterion in criteria:
            unknown = [parent for parent in criterion.depends_on if parent not in ids]
            if unknown:
                raise ValueError(
                    f"criterion {criterion.id!r}: depends_on names {unknown}, not in the rubric; known: {ids}"
                )
        try:
            topological_order({criterion.id: criterion.depends_on for criterion in criteria})
        except ValueError as error:
            raise ValueError(f"depends_on has {error}") from None
        texts = [criterion.text.strip().casefold() for criterion in criteria]
        same = sorted({criterion.id for criterion, text in zip(criteria, texts, strict=True) if texts.count(text) > 1})
        if same:
            warnings.warn(f"criteria {same} repeat each other's text, which doubles its weight", stacklevel=2)
        return criteria

    @property
    def hash(self) -> str:
        """sha256 (hex) of prompt and criteria, not of the provenance. 1 and 1.0 are the same number."""
        # Defaults are left out, so that a later version with one more field keeps today's hashes.
        content = self.model_dump(mode="json", include={"prompt", "criteria"}, exclude_defaults=True)
        text = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the criteria, in order."""
        return tuple(criterion.id for criterion in self.criteria)

    def criterion(self, id: str) -> Criterion:
        """The criterion `id`; `InputError` that lists the known ids otherwise."""
        for criterion in self.criteria:
            if criterion.id == id:
                return criterion
        raise InputError(f"rubric has no criterion {id!r}; known: {', '.join(self.ids)}")

    def edited(self, criteria: Iterable[Criterion]) -> Rubric:
        """A new version with these criteria; its provenance counts the edit and names its parent."""
        provenance = self.provenance.model_copy(update={"version": self.provenance.version + 1, "parent": self.hash})
        try:
            return Rubric(prompt=self.prompt, criteria=tuple(criteria), provenance=provenance)
        except ValidationError as error:
            from mmrubric.rubric_io import explain

            raise InputError(explain(error, None, "edited rubric")) from error

    def with_added(self, criterion: Criterion) -> Rubric:
        """A new version with one more criterion."""
        return self.edited((*self.criteria, criterion))

    def with_changed(self, id: str, **changes: Any) -> Rubric:
        """A new version in which fields of the criterion `id` are changed, for example `weight=2.0`."""
        old = self.criterion(id)
        try:
            new = Criterion.model_validate({**old.model_dump(), **changes})
        except ValidationError as error:
            from mmrubric.rubric_io import explain

            raise InputError(explain(error, None, f"criterion {id!r}")) from error
        return self.edited(new if criterion.id == id else criterion for criterion in self.criteria)

    def without(self, *ids: str) -> Rubric:
        """A new version without these criteria."""
        for id in ids:
            self.criterion(id)
        return self.edited(criterion for criterion in self.criteria if criterion.id not in ids)

    @classmethod
    def parse(cls, data: Any, where: str = "rubric") -> Rubric:
        """Build from plain data; an `InputError` begins with `where` and names criterion and field."""
        from mmrubric.rubric_io import parse

        return parse(data, where)

    @classmethod
    def load(cls, path: str | Path) -> Rubric:
        """Read one rubric from a .yaml, .yml or .json file; `InputError` names file, criterion and field."""
        from mmrubric.rubric_io import load

        return load(Path(path))

    def save(self, path: str | Path) -> None:
        """Write to a .yaml, .yml or .json file, whole or not at all."""
        from mmrubric.rubric_io import save

        save(self, Path(path))

    @classmethod
    def load_many(cls, path: str | Path) -> list[Rubric]:
        """Read a .jsonl file, one rubric per line; `InputError` names file, line, criterion and field."""
        from mmrubric.rubric_io import load_many

        return load_many(Path(path))

    @staticmethod
    def save_many(rubrics: Iterable[Rubric], path: str | Path) -> None:
        """Write a .jsonl file, one rubric per line, whole or not at all."""
        from mmrubric.rubric_io import save_many

        save_many(rubrics, Path(path))


def _canonical(value: Any) -> Any:
    """Whole floats become ints, so that 1 and 1.0 hash alike; bools stay bools."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return value
