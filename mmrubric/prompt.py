"""What a policy sees (`Prompt`), and what only judges see (`Task`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mmrubric.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from mmrubric.rubric import Rubric

    Media: TypeAlias = np.ndarray | Image.Image | Path | bytes
    Sources: TypeAlias = Media | Sequence[Media] | None
else:
    Media = Any
    """An image: uint8 array [H, W, 3], PIL image, path or encoded bytes."""
    Sources = Any
    """No source image, one, or several in order, the one that is edited first."""


@dataclass(frozen=True)
class Prompt:
    """All that a policy sees. Never holds a rubric or grounding: those live in `Task`."""

    id: str
    """Key of the prompt; unique within a run."""
    text: str
    negative: str = ""
    """Negative prompt of classifier-free guidance."""
    sources: tuple[Media, ...] = ()
    """Source images of an editing prompt, in order."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():
            raise InputError(f"prompt: field id must be text that is not blank, got {self.id!r}")
        for name in ("text", "negative"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"prompt {self.id!r}: field {name} must be text, got {getattr(self, name)!r}")
        object.__setattr__(self, "sources", checked_sources(self.sources, f"prompt {self.id!r}"))


def checked_sources(sources: object, where: str) -> tuple[Media, ...]:
    """Source images as a tuple.

    Raises:
        InputError: one image in place of a sequence, or a missing one among them; the message begins with `where`.
    """
    # An array would be taken apart into its rows, bytes into numbers.
    if not isinstance(sources, Sequence) or isinstance(sources, (str, bytes, bytearray)):
        raise InputError(
            f"{where}: field sources must be a sequence of images, got {type(sources).__name__}; write [image] "
            "for a single one"
        )
    if any(source is None for source in sources):
        raise InputError(f"{where}: field sources holds None; leave out what is missing")
    return tuple(sources)


def sources_of(source: Sources, where: str) -> tuple[Media, ...]:
    """Source images as a tuple: of None, of one image, or of several in order.

    Raises:
        InputError: a missing one among them; the message begins with `where`.
    """
    if source is None:
        return ()
    several = isinstance(source, Sequence) and not isinstance(source, (str, bytes, bytearray))
    return checked_sources(source if several else (source,), where)


@dataclass(frozen=True)
class Box:
    """A labelled box of a layout, in fractions of the image, origin at the top left."""

    label: str
    left: float
    top: float
    right: float
    bottom: float

    def __post_init__(self) -> None:
        if not (0.0 <= self.left < self.right <= 1.0 and 0.0 <= self.top < self.bottom <= 1.0):
            raise InputError(f"box {self.label!r}: needs 0 <= left < right <= 1 and 0 <= top < bottom <= 1")


@dataclass(frozen=True)
class Grounding:
    """What a judge may consult beside the rubric."""

    image: Media | None = None
    """Reference image."""
    passage: str = ""
    """Hidden reference text."""
    layout: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Task:
    """A prompt with everything that judges need. A policy takes a `Prompt`; a `Task` is not one."""

    prompt: Prompt
    rubric: Rubric
    grounding: Grounding | None = None
    edit_mask: Media | None = None
    """Region that an edit may change."""
    targets: tuple[Media | str, ...] = ()
    """Known good outputs."""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, Prompt):
            raise InputError(f"task: field prompt must be a Prompt, got {type(self.prompt).__name__}")
