"""The judge's prompts: a versioned YAML file, filled by one pass over its own text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from mmrubric.errors import InputError
from mmrubric.store import canonical_json

FOLDER = Path(__file__).resolve().parent.parent / "prompts"
_HOLE = re.compile(r"\{\{(\w+)\}\}")
_THINGS = ("image", "edited image", "text")
_SCALES = ("binary", "ordinal", "nominal")
_HOLES: dict[str, dict[str, set[str]]] = {
    "system": {"score": set(), "rank": {"things"}},
    "label": {
        **{thing: set() for thing in (*_THINGS, *(f"{thing} prompt" for thing in _THINGS))},
        **{f"numbered {thing}": {"number"} for thing in _THINGS},
        **{name: set() for name in ("source", "reference", "passage", "layout", "wanted", "unwanted", "order")},
        **{name: set() for name in ("required elements", "scoring guide", "verification cues")},
    },
    "question": {
        "binary": {"criterion", "thing"},
        "ordinal": {"criterion", "thing", "answers"},
        "nominal": {"criterion", "thing", "answers"},
        "batch": {"criteria", "thing"},
        "rank": {"criteria", "things"},
    },
    "reply": {
        **{f"{scale} json": {"thing"} for scale in _SCALES},
        "binary logprob": {"thing"},
        **{f"{scale} logprob": {"thing", "codes"} for scale in _SCALES[1:]},
        "batch": {"thing"},
        "rank": set(),
    },
}
"""Sections, their texts, and the holes that each text may have."""
_NEEDED = {"criterion", "criteria", "answers", "codes", "number"}
"""Holes without which a question would not ask what it is about."""


@dataclass(frozen=True)
class Templates:
    """The texts of one prompt file."""

    name: str
    hash: str
    """sha256 hex of the texts, not of their comments or their order."""
    texts: Mapping[str, Mapping[str, str]]

    def fill(self, section: str, name: str, **values: str) -> str:
        """A text with its holes filled. Values go in as they are: what looks like a hole in them stays."""
        return _HOLE.sub(lambda hole: values[hole[1]], self.texts[section][name]).strip("\n")

    @classmethod
    def load(cls, source: str | Path = "vlm_v1") -> Templates:
        """The prompts of a name in `judges/prompts`, or of a YAML file of the same form.

        A blank system text means that no system message is sent.

        Raises:
            InputError: no such file, or a text that is missing, unknown, or lacks or invents a hole.
        """
        path = FOLDER / f"{source}.yaml" if re.fullmatch(r"\w+", str(source)) else Path(source)
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
            raise InputError(f"prompts: {str(source)!r} is neither a prompt set ({known}) nor a YAML file")
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not readable as YAML: {error}") from error
        texts = _checked(data, path)
        return cls(path.stem, hashlib.sha256(canonical_json(texts).encode()).hexdigest(), texts)


def _checked(data: object, path: Path) -> dict[str, dict[str, str]]:
    if not isinstance(data, dict) or set(data) != set(_HOLES):
        raise InputError(f"{path}: expected the sections {', '.join(_HOLES)}")
    for section, texts in data.items():
        if not isinstance(texts, dict) or set(texts) != set(_HOLES[section]):
            raise InputError(f"{path}: section {section} must hold these texts: {', '.join(_HOLES[section])}")
        for name, text in texts.items():
            if not isinstance(text, str):
                raise InputError(f"{path}: {section}, {name}: must be text, got {text!r}")
            holes, allowed = set(_HOLE.findall(text)), _HOLES[section][name]
            if holes - allowed or (allowed & _NEEDED) - holes:
                raise InputError(
                    f"{path}: {section}, {name}: has the holes {sorted(holes)}; allowed are {sorted(allowed)}, "
                    f"needed are {sorted(allowed & _NEEDED)}"
                )
    return data
