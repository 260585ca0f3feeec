"""The judge's prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from mmrubric.prompt_file import PromptFile

FOLDER = Path(__file__).resolve().parent.parent / "prompts"
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


class Templates(PromptFile):
    """The texts of one prompt file of a judge."""

    @classmethod
    def load(cls, source: str | Path = "vlm_v1") -> Self:
        """The prompts of a name in `judges/prompts`, or of a YAML file of the same form.

        A blank system text means that no system message is sent.

        Raises:
            InputError: see `PromptFile.read`.
        """
        return cls.read(source, FOLDER, _HOLES, _NEEDED)
