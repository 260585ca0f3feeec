"""About ten questions on an edit: what must stay, what must change, and whether the result is a good picture.

Source: the groups Keep / Follow / Quality are those of Edit-RRM, arXiv 2604.27505; the procedure is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.items import capped, check_enough, slug, without_repeats
from mmrubric.generators.llm import Asked, Draft, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import check_wording, sources_shown
from mmrubric.prompt import Grounding
from mmrubric.rubric import Criterion
from mmrubric.similar import Encoder
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.llm_direct, Optimisation.dedup, Signal.output_level, Loop.none)
GROUPS = ("keep", "follow", "quality")
EDIT_LABEL = "edit"
"""Label of layout boxes that an edit may change; the pixel rule `keep` looks for the same one."""
_KEEP_LIMITS = {"min_ssim": (-1.0, 1.0), "min_psnr": (0.0, 100.0)}


class EditItem(BaseModel):
    """One entry of the model's list."""

    key: str = ""
    group: Literal["keep", "follow", "quality"]
    criterion: str


class EditItems(BaseModel):
    """The model's list."""

    criteria: list[EditItem]


@registry.register("edit", _TAGS)
@dataclass
class EditGenerator(LLMGenerator):
    """One call with the source pictures; every group is present. `Criterion.category` is keep, follow or quality.

    Of a grounding it takes the layout alone: the boxes labelled "edit", which may change.

    Args:
        min_criteria: fewer than this is asked for again.
        max_criteria: more than this is cut, round-robin over the groups.
        weights: weight of the criteria of a group, where it is not 1.
        keep_rule: limits of one more criterion that pixels answer (`rule:keep`): {"min_ssim": 0.9}, {"min_psnr": 30}
            or both. What may change are the boxes of the grounding, else those of the judge's request. {} = none.
        encoder: finds repeats by meaning; None = by words.
        fallback: as for all generators, but an error by default: no other generator sees the sources.

    Raises:
        InputError: see `LLMGenerator`, and an unknown group or limit, a weight not above 0, or bounds that cross.
    """

    NAME: ClassVar[str] = "edit/1"
    PROMPTS: ClassVar[str] = "edit_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {"write": ("prompt", "least", "most")}
    TAKES: ClassVar[frozenset[str]] = frozenset({"source", "grounding"})

    _: KW_ONLY
    min_criteria: int = 8
    max_criteria: int = 12
    weights: Mapping[str, float] = field(default_factory=dict)
    keep_rule: Mapping[str, float] = field(default_factory=dict)
    encoder: Encoder | None = None
    fallback: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 3 <= self.min_criteria <= self.max_criteria:
            raise InputError(
                f"{self._where}: needs 3 <= min_criteria <= max_criteria, got {self.min_criteria} and "
                f"{self.max_criteria}"
            )
        for name, known in (("weights", GROUPS), ("keep_rule", _KEEP_LIMITS)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise InputError(f"{self._where}: {name}: unknown {', '.join(unknown)}; known: {', '.join(known)}")
        for name, weight in self.weights.items():
            if not number(f"{self._where}: weights: {name}", weight) > 0:
                raise InputError(f"{self._where}: weights: {name} must be above 0, got {weight!r}")
        for name, limit in self.keep_rule.items():
            number(f"{self._where}: keep_rule: {name}", limit, *_KEEP_LIMITS[name])

    async def write(self, asked: Asked) -> Draft:
        if not asked.sources:
            raise InputError(f"{self._where}: sources: give the picture that is to be edited")
        boxes = self._boxes(asked.grounding)
        written = await self.ask(
            "write",
            EditItems,
            pictures=sources_shown(asked.sources),
            check=lambda found: self._check(found, asked.prompt),
            prompt=fenced_prompt(asked.prompt),
            least=str(self.min_criteria),
            most=str(self.max_criteria),
        )
        ordered = sorted(written.criteria, key=lambda item: GROUPS.index(item.group))
        kept, repeats = without_repeats([self._criterion(item) for item in ordered], self.encoder)
        notes = [f"dropped: {later.text!r} repeats {earlier.text!r}" for later, earlier in repeats]
        chosen = capped(kept, self.max_criteria)
        notes += [f"dropped: {criterion.text!r}, over max_criteria" for criterion in kept if criterion not in chosen]
        return Draft([*self._pixels(boxes), *chosen], tuple(notes))

    def _boxes(self, grounding: Grounding | None) -> list[list[float]]:
        if grounding is None:
            return []
        boxes = [[box.left, box.top, box.right, box.bottom] for box in grounding.layout if box.label == EDIT_LABEL]
        if grounding.image is not None or grounding.passage or len(boxes) < len(grounding.layout):
            raise InputError(
                f"{self._where}: grounding: only layout boxes labelled {EDIT_LABEL!r} are taken; leave the rest to the "
                "judge's request"
            )
        if not self.keep_rule:
            raise InputError(f"{self._where}: grounding: its boxes serve keep_rule, which is not set")
        return boxes

    def _check(self, written: EditItems, prompt: str) -> None:
        check_wording([item.criterion for item in written.criteria], prompt)
        found = Counter(item.group for item in written.criteria)
        missing = [name for name in GROUPS if not found[name]]
        if missing:
            raise ValueError(f"no criterion in the group {', '.join(missing)}; every group needs one")
        check_enough([item.criterion for item in written.criteria], self.min_criteria, self.encoder)

    def _criterion(self, item: EditItem) -> Criterion:
        return Criterion(
            id=slug(item.key or item.criterion),
            text=item.criterion.strip(),
            category=item.group,
            weight=self.weights.get(item.group, 1.0),
        )

    def _pixels(self, boxes: list[list[float]]) -> list[Criterion]:
        """The criterion that pixels answer, if it is switched on."""
        if not self.keep_rule:
            return []
        arguments: dict[str, Any] = {name: float(limit) for name, limit in self.keep_rule.items()}
        if boxes:
            arguments["boxes"] = boxes
        return [
            Criterion(
                id="pixels_outside_the_edit",
                text="Outside the edited region the picture is unchanged.",
                category="keep",
                weight=self.weights.get("keep", 1.0),
                verifier="rule:keep",
                arguments=arguments,
            )
        ]
