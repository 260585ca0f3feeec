"""Prompts for models: versioned YAML files of texts with holes, and fences around what strangers wrote."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from mmrubric.errors import InputError
from mmrubric.store import canonical_json

_HOLE = re.compile(r"\{\{(\w+)\}\}")
_HEAD = re.compile(r"[^,.:;(，：（]*[^\s,.:;(，：（]")
"""What a label names, up to a comma, colon or bracket."""
Holes = Mapping[str, Mapping[str, Collection[str]]]
"""Sections, their texts, and the holes that each text may have."""


@dataclass(frozen=True)
class PromptFile:
    """The texts of one prompt file."""

    name: str
    hash: str
    """sha256 hex of the texts, not of their comments or their order."""
    texts: Mapping[str, Mapping[str, str]]

    def fill(self, section: str, name: str, **values: str) -> str:
        """A text with its holes filled. Values go in as they are: what looks like a hole in them stays."""
        return _HOLE.sub(lambda hole: values[hole[1]], self.texts[section][name]).strip("\n")

    @classmethod
    def read(cls, source: str | Path, folder: Path, holes: Holes, needed: Collection[str] | None = None) -> Self:
        """The prompts of a name in `folder`, or of a YAML file of the same form.

        Args:
            source: name, or path.
            folder: where the named files are.
            holes: sections, texts and holes that the file must have.
            needed: holes that may not be left out; None = none of them may.

        Raises:
            InputError: no such file, or a text that is missing, unknown, or lacks or invents a hole.
        """
        path = folder / f"{source}.yaml" if re.fullmatch(r"\w+", str(source)) else Path(source)
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
            raise InputError(f"prompts: {str(source)!r} is neither a prompt set ({known}) nor a YAML file")
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not readable as YAML: {error}") from error
        texts = _checked(data, path, holes, needed)
        return cls(path.stem, hashlib.sha256(canonical_json(texts).encode()).hexdigest(), texts)


def fenced(name: str, text: str) -> str:
    """The text between two lines that it does not itself contain, so that it cannot pretend to have ended."""
    tag = _sha256(text)[:8]
    while tag in text:
        tag = _sha256(tag)[:8]
    return f"<{name}-{tag}>\n{text}\n</{name}-{tag}>"


def numbered_label(label: str, number: int, count: int) -> str:
    """The label of one of `count` things: 'Source, before:' becomes 'Source 2, before:'; a single one keeps its own.

    A text of its own for it in a prompt file would change the file's hash, and with it the id of every judge and the
    prompts that a shipped model was trained with.
    """
    return label if count == 1 else _HEAD.sub(lambda head: f"{head[0]} {number}", label, count=1)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _checked(data: object, path: Path, holes: Holes, needed: Collection[str] | None) -> dict[str, dict[str, str]]:
    if not isinstance(data, dict) or set(data) != set(holes):
        raise InputError(f"{path}: expected the sections {', '.join(holes)}")
    for section, texts in data.items():
        if not isinstance(texts, dict) or set(texts) != set(holes[section]):
            raise InputError(f"{path}: section {section} must hold these texts: {', '.join(holes[section])}")
        for name, text in texts.items():
            if not isinstance(text, str):
                raise InputError(f"{path}: {section}, {name}: must be text, got {text!r}")
            found, allowed = set(_HOLE.findall(text)), set(holes[section][name])
            required = allowed if needed is None else allowed & set(needed)
            if found - allowed or required - found:
                raise InputError(
                    f"{path}: {section}, {name}: has the holes {sorted(found)}; allowed are {sorted(allowed)}, "
                    f"needed are {sorted(required)}"
                )
    return data
