"""What a question is about, made ready to send: pictures encoded and labelled, texts fenced."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from PIL import Image

from judges.vlm.templates import Templates
from mmrubric.chat import ImagePart, TextPart
from mmrubric.errors import InputError
from mmrubric.images import ImageOptions
from mmrubric.judging import Candidate, JudgeRequest, PairRequest
from mmrubric.prompt import Box, Media
from mmrubric.prompt_file import fenced, numbered_label

Part = TextPart | ImagePart
_reading = threading.Lock()


@dataclass(frozen=True)
class Shown:
    """Everything that a judge is shown beside the question."""

    thing: str
    """What the candidates are: image, edited image or text."""
    candidates: tuple[ImagePart | str, ...]
    """One to score, or two to rank in the order in which they are shown."""
    prompt: str = ""
    sources: tuple[ImagePart, ...] = ()
    reference: ImagePart | None = None
    passage: str = ""
    layout: tuple[Box, ...] = ()

    @property
    def hashes(self) -> tuple[str, ...]:
        """Content hash of each candidate; they seed random orders."""
        return tuple(c.sha256 if isinstance(c, ImagePart) else _sha256(c) for c in self.candidates)

    @property
    def route(self) -> str:
        """What equal candidates have in common, in either order: requests go to the server that holds them."""
        return "+".join(sorted(self.hashes))


def candidates_of(request: JudgeRequest | PairRequest) -> tuple[Candidate, ...]:
    """The one candidate to score, or the two to compare."""
    return (request.candidate,) if isinstance(request, JudgeRequest) else (request.a, request.b)


def thing_of(request: JudgeRequest | PairRequest) -> str:
    """What the candidates of a request are: image, edited image or text.

    Raises:
        InputError: a pair of a text and an image.
    """
    texts = [isinstance(candidate, str) for candidate in candidates_of(request)]
    if all(texts):
        return "text"
    if any(texts):
        raise InputError("pair request: one candidate is a text (str), the other an image; give image files as Path")
    return "edited image" if request.sources else "image"


def prepare(request: JudgeRequest | PairRequest, options: ImageOptions) -> Shown:
    """Normalise and encode what a request shows. Slow for large pictures: call it off the event loop.

    Raises:
        InputError: a picture cannot be read; the message says which one.
    """

    def picture(what: str, image: Media) -> ImagePart:
        _read_file(image)
        try:
            return ImagePart.of(image, options)
        except InputError as error:
            raise InputError(f"{what}: {error}") from error

    grounding, count = request.grounding, len(request.sources)
    reference = None if grounding is None else grounding.image
    return Shown(
        thing=thing_of(request),
        candidates=tuple(c if isinstance(c, str) else picture("candidate", c) for c in candidates_of(request)),
        prompt=request.rubric.prompt,
        sources=tuple(
            picture(numbered_label("source", number, count), source) for number, source in enumerate(request.sources, 1)
        ),
        reference=None if reference is None else picture("grounding image", reference),
        passage="" if grounding is None else grounding.passage,
        layout=() if grounding is None else grounding.layout,
    )


def _read_file(image: Media) -> None:
    """Reads a picture that PIL has opened but not read: the samples of a group share their sources, and two threads
    must not read one file object at once."""
    if isinstance(image, Image.Image):
        # What is wrong with it, the normaliser says.
        with _reading, suppress(Exception):
            image.load()


def parts_of(shown: Shown, question: str, templates: Templates) -> tuple[Part, ...]:
    """The user message: pictures first, each right after its label; then texts; the question last.

    Several sources are numbered. What many questions share comes early (sources and reference of a group, the
    candidate, the prompt), so that a server's prefix cache holds it.
    """
    pictures: list[Part] = []
    for number, source in enumerate(shown.sources, 1):
        label = numbered_label(templates.fill("label", "source"), number, len(shown.sources))
        pictures += [TextPart(label), source]
    if shown.reference is not None:
        pictures += [TextPart(templates.fill("label", "reference")), shown.reference]
    texts: list[str] = []
    for name, text in (("passage", shown.passage), ("layout", _listed(shown.layout)), ("prompt", shown.prompt)):
        if text.strip():
            label = f"{shown.thing} prompt" if name == "prompt" else name
            texts.append(f"{templates.fill('label', label)}\n{fenced(name, text)}")
    for number, candidate in enumerate(shown.candidates, 1):
        numbered = "numbered " if len(shown.candidates) > 1 else ""
        label = templates.fill("label", numbered + shown.thing, number=str(number))
        if isinstance(candidate, str):
            texts.append(f"{label}\n{fenced('text', candidate)}")
        else:
            pictures += [TextPart(label), candidate]
    # One text part: a request without pictures then works on servers that take plain strings only.
    return (*pictures, TextPart("\n\n".join([*texts, question])))


def _listed(boxes: Sequence[Box]) -> str:
    return "\n".join(f"{b.label}: {b.left:g}, {b.top:g}, {b.right:g}, {b.bottom:g}" for b in boxes)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
