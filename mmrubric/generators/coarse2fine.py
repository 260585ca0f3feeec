"""RubricHub's generator: candidates of several models, one conservative merge, then stricter items from good answers.

Source: RubricHub, arXiv 2601.08430: the stages, the conservative merge and the size. Prompts, and the check of evolved
items against those that are there, are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from pydantic import BaseModel, Field

from mmrubric.chat import ImagePart
from mmrubric.chat_client import ChatClient
from mmrubric.checks import number, whole
from mmrubric.errors import InputError
from mmrubric.generators.answers import ScoredAnswer, ranked_answers, two_best
from mmrubric.generators.base import registry
from mmrubric.generators.fusion import Item, Pool, content_key, fused, joined_to_earlier, pooled, settled, united
from mmrubric.generators.items import CATEGORIES, capped, category_of, slug, with_unique_ids
from mmrubric.generators.llm import Asked, Draft, GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import Pictures, check_wording, display, numbered, part_of, sources_shown, through
from mmrubric.judging import Judge, run_all
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import Encoder
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.response_grounded, Optimisation.refine, Signal.output_level, Loop.none)
_EVOLVED = "evolution"
_DIMENSIONS = ", ".join((*CATEGORIES, "general"))


class HubItem(BaseModel):
    """One entry of a model's list."""

    title: str = ""
    criterion: str
    dimension: str = "general"
    points: int = Field(ge=1, le=10)


class HubItems(BaseModel):
    """A model's list."""

    items: list[HubItem]


class Reference(BaseModel):
    """A model's own idea of the best answer."""

    answer: str


@registry.register("coarse2fine", _TAGS)
@dataclass
class Coarse2FineGenerator(LLMGenerator):
    """Three stages: grounded candidates of every model, a conservative merge, evolution against the two best answers.

    Candidates are grounded on the reference in `grounding` (a dense caption as passage, a picture, or both), or else
    on an answer that each model first describes itself. The third stage needs `exemplars`: pictures or texts, each
    alone or as `mmrubric.generators.answers.ScoredAnswer`; without them it is left out, and the rubric says so.

    Args:
        clients: models that write candidates; the first one also merges and evolves, unless `client` is given.
        models: the same by name, all served at `base_url`; the first one is `model`, unless that is given.
        min_criteria, max_criteria: fewer is a failure; of more, those with most points stay, round-robin over the
            categories.
        max_evolved: evolved items that are asked for, at most; 0 = no third stage.
        answer_temperature: of the answers that models describe when no reference is given.
        judges: score exemplars that came without scores, by the base rubric: the consensus is the mean over judges.
        encoder: finds repeats by meaning; None = by words.

    Raises:
        InputError: see `LLMGenerator`, and clients given along with models, or bounds that cross.
    """

    NAME: ClassVar[str] = "coarse2fine/1"
    PROMPTS: ClassVar[str] = "coarse2fine_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "answer": ("prompt",),
        "candidates": ("prompt", "reference", "least", "most", "dimensions"),
        "compare": ("prompt", "statements"),
        "evolve": ("prompt", "statements", "answers", "standing", "most", "dimensions"),
    }
    TAKES: ClassVar[frozenset[str]] = frozenset({"source", "grounding", "exemplars"})

    _: KW_ONLY
    temperature: float = 0.2
    clients: Sequence[ChatClient] = ()
    models: Sequence[str] = ()
    min_criteria: int = 3
    max_criteria: int = 25
    max_evolved: int = 5
    answer_temperature: float = 1.0
    judges: Sequence[Judge] = ()
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        if self.clients and (self.models or self.base_url or self.model):
            raise InputError("generator 'coarse2fine': give clients, or base_url and models, not both")
        if self.client is not None and self.models:
            raise InputError("generator 'coarse2fine': models are served at base_url; beside a client give clients")
        if self.client is None and self.clients:
            self.client = self.clients[0]
        if not self.model and self.models:
            self.model = self.models[0]
        super().__post_init__()
        where = self._where
        whole(f"{where}: max_criteria", self.max_criteria, whole(f"{where}: min_criteria", self.min_criteria, 1))
        whole(f"{where}: max_evolved", self.max_evolved, 0)
        number(f"{where}: answer_temperature", self.answer_temperature, low=0.0)
        if not all(isinstance(judge, Judge) for judge in self.judges):
            raise InputError(f"{where}: judges: each must have score(requests), as judges.build gives them")
        self._writers = [through(self, client) for client in self._many_clients()]
        seen = Counter[str]()
        self._labels = []
        for writer in self._writers:
            seen[writer.chat.model] += 1
            again = seen[writer.chat.model]
            self._labels.append(writer.chat.model + (f" #{again}" if again > 1 else ""))

    def models_asked(self) -> list[ChatClient]:
        return [self.chat, *(writer.chat for writer in self._writers)]

    async def write(self, asked: Asked) -> Draft:
        answers = ranked_answers(asked.exemplars, bool(self.judges))
        pool = await self._candidates(asked)
        base = await fused(self, asked.prompt, pool, lambda item: (item.support, item.weight), len(self._writers) > 1)
        if not base.items:
            raise GenerationFailed(f"no candidate was left after the merge; {'; '.join(base.notes)}")
        whole, extra = await self._evolved(asked, base.items, answers)
        criteria, cut = self._final(whole.items)
        notes = (*base.notes, *whole.notes, *cut)
        if len(criteria) < self.min_criteria:
            raise GenerationFailed(
                f"{len(criteria)} criteria are fewer than min_criteria={self.min_criteria}; {'; '.join(notes)}"
            )
        counts = {"candidates": len(pool.items), "base": len(base.items), "final": len(criteria)}
        return Draft(criteria, notes, {"extra": {"models": list(self._labels), "stages": counts, **extra}})

    async def _candidates(self, asked: Asked) -> Pool:
        """Stage 1: what all models write, repeats by wording united."""
        pictures = sources_shown(asked.sources)
        if asked.grounding is not None and asked.grounding.image is not None:
            part = await part_of(asked.grounding.image, "grounding: field image")
            assert isinstance(part, ImagePart)
            pictures += (("Reference picture", part),)
        lists = await run_all(self._by_one(index, asked, pictures) for index in range(len(self._writers)))
        if all(isinstance(found, GenerationFailed) for found in lists):
            raise GenerationFailed(f"no model wrote candidates; {'; '.join(map(str, lists))}")
        notes, items = [], []
        for label, found in zip(self._labels, lists, strict=True):
            if isinstance(found, GenerationFailed):
                notes.append(f"model {label!r} wrote no candidates: {found}")
            else:
                items += found
        pool = pooled(items, self.encoder)
        return Pool(pool.items, (*notes, *pool.notes))

    async def _by_one(self, index: int, asked: Asked, pictures: Pictures) -> list[Item] | GenerationFailed:
        """The candidates of one model, or why there are none."""
        writer, label = self._writers[index], self._labels[index]
        try:
            reply = await writer.ask(
                "candidates",
                HubItems,
                pictures=pictures,
                check=lambda reply: self._check(reply, asked.prompt),
                prompt=fenced_prompt(asked.prompt),
                reference=await self._reference(writer, asked),
                least=str(self.min_criteria),
                most=str(self.max_criteria),
                dimensions=_DIMENSIONS,
            )
        except GenerationFailed as error:
            return error
        return [_item(item, label) for item in reply.items]

    async def _reference(self, writer: LLMGenerator, asked: Asked) -> str:
        """Fenced text of the reference answer; what the model shows as a picture needs no words."""
        if asked.grounding is not None and asked.grounding.passage:
            return fenced("reference", asked.grounding.passage)
        if asked.grounding is not None and asked.grounding.image is not None:
            return "the reference picture above"
        made = await writer.ask(
            "answer",
            Reference,
            pictures=sources_shown(asked.sources),
            temperature=self.answer_temperature,
            prompt=fenced_prompt(asked.prompt),
        )
        return fenced("reference", made.answer)

    async def _evolved(
        self, asked: Asked, base: Sequence[Item], answers: Sequence[ScoredAnswer]
    ) -> tuple[Pool, dict[str, list[str]]]:
        """Stage 3: the base and new items that tell the two best answers apart; and the ids of these answers."""
        if not answers or not self.max_evolved:
            why = "no answers were given" if self.max_evolved else "max_evolved is 0"
            return Pool(tuple(base), (f"not evolved: {why}",)), {}
        try:
            best = await two_best(answers, self.judges, self._rubric(asked.prompt, base), asked)
            reply = await self._ask_evolution(asked, base, best)
        except GenerationFailed as error:
            return Pool(tuple(base), (f"not evolved: {error}",)), {}
        items = [_item(item, _EVOLVED) for item in reply.items[: self.max_evolved]]
        return await self._checked(asked.prompt, base, items), {"answers": [answer.id for answer in best]}

    async def _ask_evolution(
        self, asked: Asked, base: Sequence[Item], best: tuple[ScoredAnswer, ScoredAnswer]
    ) -> HubItems:
        parts = [await part_of(answer.candidate, f"exemplar {number}") for number, answer in enumerate(best, 1)]
        shown = display([(f"Answer {number}", part) for number, part in enumerate(parts, 1)])
        first, second = (answer.score for answer in best)
        return await self.ask(
            "evolve",
            HubItems,
            pictures=(*sources_shown(asked.sources), *shown.pictures),
            check=lambda reply: self._check(reply, asked.prompt, least=0),
            prompt=fenced_prompt(asked.prompt),
            statements=numbered(item.text for item in base),
            answers=shown.text,
            standing="Both got the same score." if first == second else "Answer 1 got the higher score.",
            most=str(self.max_evolved),
            dimensions=_DIMENSIONS,
        )

    async def _checked(self, prompt: str, base: Sequence[Item], items: Sequence[Item]) -> Pool:
        """The base and the items that neither repeat nor contradict it; a repeat with more points raises its own.

        Vaguer statements do not swallow stricter ones: evolved items stand behind the base.
        """
        line = joined_to_earlier([*base, *items], self.encoder)
        whole, conflicts = await united(self, prompt, line, bool(items))
        evolved = [item.sources == {_EVOLVED} for item in whole.items]
        # The base was settled before; looking at it again must not free an item that contradicts it.
        new = {pair for pair in conflicts if evolved[pair[0]] or evolved[pair[1]]}
        kept = settled(whole.items, new, lambda item: (item.sources != {_EVOLVED}, item.weight))
        return Pool(kept.items, (*whole.notes, *kept.notes))

    def _final(self, items: Sequence[Item]) -> tuple[list[Criterion], tuple[str, ...]]:
        """The rubric, most points first; and what the cap cut off."""
        line = sorted(items, key=lambda item: (-item.weight, -item.support, content_key(item.text)))
        kept = capped([_criterion(item) for item in line], self.max_criteria)
        cut = len(line) - len(kept)
        return kept, (f"dropped: {cut} criteria beyond max_criteria",) if cut else ()

    def _check(self, reply: HubItems, prompt: str, least: int | None = None) -> None:
        least = self.min_criteria if least is None else least
        if len(reply.items) < least:
            raise ValueError(f"{len(reply.items)} items; give at least {least}")
        check_wording((item.criterion for item in reply.items), prompt)

    def _many_clients(self) -> list[ChatClient]:
        if self.clients:
            return list(self.clients)
        return [
            self.chat if name == self.model else self.client_for(self.base_url, name, f"{self._where}: models")
            for name in self.models or (self.model,)
        ]

    def _rubric(self, prompt: str, items: Sequence[Item]) -> Rubric:
        return Rubric(prompt=prompt, criteria=tuple(with_unique_ids(_criterion(item) for item in items)))


def _item(item: HubItem, writer: str) -> Item:
    category = category_of(item.dimension)
    return Item(
        text=" ".join(item.criterion.split()),
        category=category if category in CATEGORIES else "general",
        weight=float(item.points),
        sources=frozenset({writer}),
        title=item.title.strip(),
    )


def _criterion(item: Item) -> Criterion:
    return Criterion(
        id=slug(item.title or item.text),
        text=item.text,
        category=item.category,
        weight=item.weight,
        extra={
            "title": item.title,
            "stage": _EVOLVED if item.sources == {_EVOLVED} else "base",
            "models": list(sorted(item.sources - {_EVOLVED})),
        },
    )
