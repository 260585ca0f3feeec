"""Edits of the embedded world: an instruction, the source picture it is about, and the picture that it asks for.

Three kinds: 'make the circle red', 'remove the square', 'move the triangle left'. A source shows two or three
different shapes on a plain background, so that an instruction names one of them. A *combination* is an instruction with
the shapes and colours of its source; held-out prompts use combinations that no training prompt uses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from mmrubric.errors import InputError
from mmrubric.prompt import Prompt
from mmrubric.shapes.checks import Seen
from mmrubric.shapes.grammar import SPLITS, Spec, Subject, split_of
from mmrubric.shapes.sampling import scene_for
from mmrubric.shapes.world import BACKGROUNDS, COLOURS, SHAPES, Scene, clear_of, render

KIND_SHARES = {"recolour": 0.4, "remove": 0.2, "move": 0.4}
"""Share of each kind in drawn prompts."""
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Unit steps (x, y) of the words, y down."""
MOVE = 16.0
"""How far a moved shape goes in the wanted picture, in pixels."""
_EXAMPLE = "'make the circle red', 'remove the square' or 'move the triangle left'"
_SHAPE = rf"the (?P<shape>{'|'.join(SHAPES)})"
_FORMS = {
    "recolour": re.compile(rf"make {_SHAPE} (?P<to>{'|'.join(COLOURS)})\.?"),
    "remove": re.compile(rf"remove {_SHAPE}\.?"),
    "move": re.compile(rf"move {_SHAPE} (?P<to>{'|'.join(DIRECTIONS)})\.?"),
}
Picture = TypeVar("Picture", Scene, Seen)
"""A scene, or what is seen in a picture."""


@dataclass(frozen=True)
class Edit:
    """What an instruction asks for; `to` is the new colour, the direction, or '' for a removal."""

    kind: str
    shape: str
    to: str = ""

    @property
    def text(self) -> str:
        verb = "make" if self.kind == "recolour" else self.kind
        return f"{verb} the {self.shape} {self.to}".rstrip()


@dataclass(frozen=True)
class EditCase:
    """An edit with the scene it is about."""

    edit: Edit
    source: Scene

    @property
    def combination(self) -> str:
        """Key of the data split: the instruction, and the shapes with their colours in a fixed order."""
        return f"{self.edit.text} of {' + '.join(sorted(f'{i.colour} {i.shape}' for i in self.source.items))}"

    @property
    def split(self) -> str:
        return split_of(self.combination)

    @property
    def target(self) -> Scene:
        """The scene that the edit asks for."""
        return apply(self.source, self.edit)


def parse_edit(text: str) -> Edit:
    """Read an instruction.

    Raises:
        InputError: it is outside the grammar; the message shows what an instruction looks like.
    """
    words = " ".join(text.lower().split())
    for kind, form in _FORMS.items():
        if (match := form.fullmatch(words)) is not None:
            return Edit(kind, match["shape"], match.groupdict().get("to") or "")
    raise InputError(
        f"instruction {text!r} is no edit of the world of shapes. Write, for example, {_EXAMPLE}. Shapes: "
        f"{', '.join(SHAPES)}; colours: {', '.join(COLOURS)}; directions: {', '.join(DIRECTIONS)}"
    )


def apply(picture: Picture, edit: Edit) -> Picture:
    """What a scene, or what is seen in a picture, becomes.

    Raises:
        InputError: the shape is not there exactly once.
    """
    count = sum(item.shape == edit.shape for item in picture.items)
    if count != 1:
        raise InputError(f"{edit.text!r} needs exactly one {edit.shape} in the source picture, which shows {count}")
    dx, dy = DIRECTIONS.get(edit.to, (0, 0))
    items = []
    for item in picture.items:
        if item.shape != edit.shape:
            items.append(item)
        elif edit.kind == "recolour":
            items.append(replace(item, colour=edit.to))
        elif edit.kind == "move":
            items.append(replace(item, x=item.x + MOVE * dx, y=item.y + MOVE * dy))
    return replace(picture, items=tuple(items))


def enumerate_edits(kind: str) -> Iterator[Edit]:
    """Every instruction of one kind, in a fixed order."""
    options = {"recolour": tuple(COLOURS), "remove": ("",), "move": tuple(DIRECTIONS)}
    for shape in SHAPES:
        for to in options[kind]:
            yield Edit(kind, shape, to)


def edits_of(scene: Scene, kind: str) -> list[Edit]:
    """The edits of one kind that change a scene and leave every shape clear of the others and of the border."""
    return [edit for edit in enumerate_edits(kind) if _fits(scene, edit)]


def _fits(scene: Scene, edit: Edit) -> bool:
    found = [item for item in scene.items if item.shape == edit.shape]
    if len(found) != 1 or found[0].colour == edit.to:
        return False
    if edit.kind != "move":
        return True
    moved = next(item for item in apply(scene, edit).items if item.shape == edit.shape)
    return clear_of(moved, [item for item in scene.items if item.shape != edit.shape])


def draw_source(rng: np.random.Generator) -> Scene:
    """A random scene of two or three different shapes, on the grid and with the radii of `scene_for(grid=True)`."""
    shapes = rng.choice(SHAPES, int(rng.integers(2, 4)), replace=False).tolist()
    subjects = tuple(Subject(shape, str(rng.choice(list(COLOURS)))) for shape in shapes)
    return scene_for(Spec(str(rng.choice(list(BACKGROUNDS))), subjects), rng, grid=True)


def draw_cases(split: str, count: int, rng: np.random.Generator) -> list[EditCase]:
    """Random cases of one split, kinds in the proportions of `KIND_SHARES`.

    Raises:
        InputError: unknown split.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    kinds = list(KIND_SHARES)
    shares = list(KIND_SHARES.values())
    cases: list[EditCase] = []
    while len(cases) < count:
        kind, scene = str(rng.choice(kinds, p=shares)), draw_source(rng)
        # Until the kind fits: otherwise crowded scenes, which leave no room to move, would change the shares.
        while not (options := edits_of(scene, kind)):
            scene = draw_source(rng)
        case = EditCase(options[int(rng.integers(len(options)))], scene)
        if case.split == split:
            cases.append(case)
    return cases


def draw_edit_prompts(split: str, count: int, seed: int = 0) -> list[Prompt]:
    """Distinct cases of one split as prompts with their rendered source; the id is the split and a hash of instruction
    and pixels, so that it is the same wherever the prompt is drawn.

    Raises:
        InputError: unknown split.
    """
    rng = np.random.default_rng([seed, len(SPLITS) + SPLITS.index(split) if split in SPLITS else 0])
    prompts: dict[str, Prompt] = {}
    while len(prompts) < count:
        for case in draw_cases(split, count - len(prompts), rng):
            prompt = prompt_of(case)
            prompts.setdefault(prompt.id, prompt)
    return list(prompts.values())


def prompt_of(case: EditCase) -> Prompt:
    """The prompt of a case: instruction and rendered source, uint8 [64, 64, 3]."""
    pixels, text = render(case.source), case.edit.text
    digest = hashlib.sha256(text.encode() + b"\n" + pixels.tobytes()).hexdigest()
    return Prompt(id=f"edit-{case.split}-{digest[:12]}", text=text, sources=(pixels,))
