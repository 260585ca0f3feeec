"""MRRG's generator: one model plays several roles, each writes its own statements, and what they say is fused.

Source: Many Voices, One Reward, arXiv 2607.01830. No code is public; roles, prompts, fusion and defaults are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from mmrubric.checks import one_of, switch, whole
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.fusion import Item, Pool, content_key, fused, pooled
from mmrubric.generators.items import CATEGORIES, capped, category_of, slug
from mmrubric.generators.llm import Asked, Draft, GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import check_wording, sources_shown
from mmrubric.judging import run_all
from mmrubric.rubric import Criterion
from mmrubric.similar import Encoder
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.llm_direct, Optimisation.dedup, Signal.output_level, Loop.none)
ROLES: Mapping[str, Mapping[str, str]] = {
    "image": {
        "author": "the person who wrote the prompt: whether everything that was asked for is there, as it was meant",
        "photographer": "a photographer and art director: composition, viewpoint, light, style and palette",
        "specialist": "a specialist in what is depicted: facts, anatomy, construction, physics, place and period",
        "typographer": "a typographer: lettering, spelling, legibility and placement of anything written",
        "reviewer": "a reviewer of accessibility and safety: legible contrast, dignity, nothing harmful or misleading",
        "viewer": "a plain viewer: whether the result looks whole, without deformed, doubled or garbled parts",
    },
    "text": {
        "user": "the person who asked: whether the answer does what was asked for and can be used",
        "expert": "an expert in the field: facts, completeness, and what a professional would not leave out",
        "educator": "an educator: order, examples, and whether the intended reader can follow",
        "scientist": "a scientist: evidence, sound reasoning, and honest limits",
        "linguist": "a linguist: grammar, register, and clear wording",
        "editor": "an editor: structure, length, form, and any format that was demanded",
    },
}
"""Shipped sets of roles: name -> who it is and what it looks at."""


class RoleItem(BaseModel):
    """One statement of a role."""

    criterion: str
    dimension: str = "general"
    importance: int = Field(default=1, ge=1, le=3)


class RoleItems(BaseModel):
    """What a role says; an empty list is a valid answer."""

    items: list[RoleItem]


@registry.register("multi_role", _TAGS)
@dataclass
class MultiRoleGenerator(LLMGenerator):
    """Every role is asked about the prompt alone; the pool is united, freed of contradictions, and capped.

    The rubric does not depend on the order of the roles. Each criterion names the roles behind it in `extra.roles`.

    Args:
        roles: "image" or "text" for a shipped set (`ROLES`), or name -> who it is and what it looks at; two or more.
        per_role: statements of one role that count, the first ones; so that no role dominates.
        max_criteria: cap after fusion, round-robin over the categories, those with most support first.
        importance: True: a role may give a statement weight 2 or 3; False: every weight is 1. A fused statement keeps
            the highest weight.
        support_weights: multiply a weight by the share of roles (of those that answered) that proposed the statement.
        contradictions: "support" keeps the statement of more roles, and none on a tie; "drop" never keeps one.
        fuse: "llm" asks the model which statements mean the same or exclude each other; "words" compares wording.
        encoder: finds repeats by meaning; None = by words.

    Raises:
        InputError: see `LLMGenerator`, and fewer than two roles, or a bad value.
    """

    NAME: ClassVar[str] = "multi_role/1"
    PROMPTS: ClassVar[str] = "multi_role_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "role": ("prompt", "role", "most", "dimensions", "importance"),
        "importance": (),
        "compare": ("prompt", "statements"),
    }
    TAKES: ClassVar[frozenset[str]] = frozenset({"source"})

    _: KW_ONLY
    temperature: float = 0.3
    roles: str | Mapping[str, str] = "image"
    per_role: int = 5
    max_criteria: int = 20
    importance: bool = False
    support_weights: bool = False
    contradictions: Literal["support", "drop"] = "support"
    fuse: Literal["llm", "words"] = "llm"
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self._where
        self._roles = dict(
            ROLES[one_of(f"{where}: roles", self.roles, ROLES)] if isinstance(self.roles, str) else self.roles
        )
        if len(self._roles) < 2 or not all(name.strip() and who.strip() for name, who in self._roles.items()):
            raise InputError(f"{where}: roles: give two or more, each with a name and what it looks at")
        for name in ("per_role", "max_criteria"):
            whole(f"{where}: {name}", getattr(self, name), 1)
        one_of(f"{where}: contradictions", self.contradictions, ("support", "drop"))
        one_of(f"{where}: fuse", self.fuse, ("llm", "words"))
        switch(f"{where}: importance", self.importance)
        switch(f"{where}: support_weights", self.support_weights)

    async def write(self, asked: Asked) -> Draft:
        names = list(self._roles)
        answers = await run_all(self._role(name, asked) for name in names)
        spoke = {name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, Pool)}
        silent = {name: answer for name, answer in zip(names, answers, strict=True) if not isinstance(answer, Pool)}
        lost = [f"role {name!r} gave no usable answer: {error}" for name, error in sorted(silent.items())]
        if len(spoke) < 2:
            raise GenerationFailed(f"fewer than two roles answered; {'; '.join(lost)}")
        pool = pooled((item for answer in spoke.values() for item in answer.items), self.encoder)
        kept = await fused(self, asked.prompt, pool, self._strength, self.fuse == "llm")
        best = sorted(kept.items, key=lambda item: (-item.support, -item.weight, content_key(item.text)))
        criteria = capped([self._criterion(item, len(spoke)) for item in best], self.max_criteria)
        cut = len(best) - len(criteria)
        notes = [*lost, *(note for name in sorted(spoke) for note in spoke[name].notes), *kept.notes]
        notes += [f"dropped: {cut} statements beyond max_criteria"] if cut else []
        return Draft(criteria, tuple(notes), {"roles": tuple(sorted(spoke))})

    async def _role(self, name: str, asked: Asked) -> Pool | GenerationFailed:
        """What a role says, up to its cap; or why it says nothing."""
        try:
            said = await self.ask(
                "role",
                RoleItems,
                pictures=sources_shown(asked.sources),
                check=lambda reply: check_wording((item.criterion for item in reply.items), asked.prompt),
                prompt=fenced_prompt(asked.prompt),
                role=self._roles[name],
                most=str(self.per_role),
                dimensions=", ".join((*CATEGORIES, "general")),
                importance=self.texts.fill("importance", "question") if self.importance else "",
            )
        except GenerationFailed as error:
            return error
        extra = len(said.items) - self.per_role
        notes = (f"role {name!r}: the last {extra} statements are beyond per_role",) if extra > 0 else ()
        return Pool(tuple(self._item(item, name) for item in said.items[: self.per_role]), notes)

    def _item(self, item: RoleItem, role: str) -> Item:
        category = category_of(item.dimension)
        return Item(
            text=" ".join(item.criterion.split()),
            category=category if category in CATEGORIES else "general",
            weight=float(item.importance) if self.importance else 1.0,
            sources=frozenset({role}),
        )

    def _strength(self, item: Item) -> int:
        return item.support if self.contradictions == "support" else 0

    def _criterion(self, item: Item, roles: int) -> Criterion:
        share = item.support / roles if self.support_weights else 1.0
        return Criterion(
            id=slug(item.text),
            text=item.text,
            category=item.category,
            weight=item.weight * share,
            extra={"roles": list(sorted(item.sources))},
        )
