"""Rubrics of edits in the shapes world, by rules: what must be done, what must stay, and how well it is made.

The groups Keep / Follow / Quality are those of Edit-RRM, arXiv 2604.27505.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrubric.checks import number, switch
from mmrubric.errors import InputError
from mmrubric.generators.base import RubricGenerator, registry
from mmrubric.prompt import Grounding, Prompt, Sources
from mmrubric.rubric import Criterion, Provenance, Rubric
from mmrubric.shapes.edits import Edit, parse_edit
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

VERIFIER = "rule:shapes_edit"
GROUPS = ("follow", "keep", "quality")
_TAGS = Tags(Construction.human_expert, Optimisation.none, Signal.output_level, Loop.none)
_WHERE = {"left": "to the left", "right": "to the right", "up": "up", "down": "down"}
_MIN_PSNR = 25.0
"""dB outside the edited region; what the shipped VAE alone does to a source is above 31."""


@registry.register("shapes_edit", _TAGS)
@dataclass
class ShapesEditGenerator(RubricGenerator):
    """8 or 9 criteria in the categories follow, keep and quality. The judge compares with the source picture; the
    rubric itself depends on the instruction alone.

    A statement about something that got lost is false, not unknown.

    Args:
        hard: whether a failed edit makes the score 0. Preferences then say nothing about pictures that all miss the
            edit.
        min_psnr: least PSNR in dB to the source outside the edited region, for the criterion `pixels`.
        weights: weight of the criteria of a group, where it is not 1.

    Raises:
        InputError: an unknown group, a number that is not above 0, or `hard` is no bool.
    """

    hard: bool = False
    min_psnr: float = _MIN_PSNR
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        switch("generator 'shapes_edit': hard", self.hard)
        for name, value in (("min_psnr", self.min_psnr), *self.weights.items()):
            if name not in ("min_psnr", *GROUPS):
                raise InputError(
                    f"generator 'shapes_edit': weights: unknown group {name!r}; known: {', '.join(GROUPS)}"
                )
            number(f"generator 'shapes_edit': {name}", value)
            if value <= 0:
                raise InputError(f"generator 'shapes_edit': {name} must be above 0, got {value:g}")

    async def generate(
        self,
        prompt: Prompt | str,
        source: Sources = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        if grounding is not None or exemplars:
            raise InputError("generator 'shapes_edit' takes an instruction with its source: no grounding or exemplars")
        text = prompt.text if isinstance(prompt, Prompt) else prompt
        criteria = tuple(
            criterion.model_copy(
                update={
                    "weight": float(self.weights.get(criterion.category, 1.0)),
                    "hard": self.hard and criterion.category == "follow",
                }
            )
            for criterion in criteria_of(parse_edit(text), self.min_psnr)
        )
        return Rubric(prompt=text, criteria=criteria, provenance=Provenance(generator="shapes_edit/1"))


def criteria_of(edit: Edit, min_psnr: float = _MIN_PSNR) -> list[Criterion]:
    """The criteria of an edit: follow first, quality last."""
    shape = edit.shape

    def criterion(
        id: str, category: str, text: str, check: str = "", parents: tuple[str, ...] = (), **more: Any
    ) -> Criterion:
        arguments: dict[str, Any] = {"check": check or id, "shape": shape, **more}
        return Criterion(
            id=id, text=text, category=category, depends_on=parents, verifier=VERIFIER, arguments=arguments
        )

    done: dict[str, tuple[str, str, dict[str, Any]]] = {
        "recolour": ("recoloured", f"The {shape} is {edit.to}.", {"colour": edit.to}),
        "remove": ("removed", f"No {shape} is visible.", {}),
        "move": (
            "moved",
            f"The {shape} has moved {_WHERE.get(edit.to, '')} from where it was.",
            {"direction": edit.to},
        ),
    }
    check, text, more = done[edit.kind]
    there = ("others_there",)
    criteria = [
        criterion("edit_done", "follow", text, check, **more),
        criterion("others_there", "keep", f"Every shape but the {shape} is still there."),
        criterion("others_colour", "keep", f"Every shape but the {shape} has the colour it had.", parents=there),
        criterion("others_place", "keep", f"Every shape but the {shape} is where it was.", parents=there),
    ]
    if edit.kind == "recolour":
        criteria.append(criterion("edited_place", "keep", f"The {shape} is where it was."))
    if edit.kind == "move":
        criteria.append(criterion("edited_colour", "keep", f"The {shape} has the colour it had."))
    outside: dict[str, Any] = {"direction": edit.to} if edit.kind == "move" else {}
    return [
        *criteria,
        criterion("background", "keep", "The background is that of the source picture."),
        criterion(
            "pixels", "keep", "Outside the edited region the picture is unchanged.", min_psnr=min_psnr, **outside
        ),
        criterion("nothing_new", "quality", "Nothing is in the picture that was not in the source picture."),
        criterion("plain", "quality", "Every shape is a known one of one colour."),
    ]
