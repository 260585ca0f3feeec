"""Collects evidence on what an answer must be like, then writes criteria of which each points at evidence.

Source: DR-rubric, arXiv 2606.01091; the stages are the paper's, prompts and number of rounds ours.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.direct import DirectGenerator
from mmrubric.generators.items import capped, slug, without_repeats
from mmrubric.generators.llm import Asked, Draft, LLMGenerator, fenced_prompt
from mmrubric.generators.retrieval import BM25, Passage, Retriever
from mmrubric.generators.showing import check_wording
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Criterion
from mmrubric.similar import Encoder, normalise
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.evidence_driven, Optimisation.dedup, Signal.output_level, Loop.none)
_DRY = 2
"""Rounds in a row without a new passage after which the search ends."""
_LEAST = 4
"""Criteria that `direct` has to write at least."""


class Query(BaseModel):
    """What to look for first."""

    query: str


class Finding(BaseModel):
    """What a passage says about good answers."""

    evidence: str
    requirement: str


class Reflection(BaseModel):
    """What the last passages gave, and what to look for next."""

    findings: list[Finding]
    enough: bool
    query: str = ""


class CitedItem(BaseModel):
    """One entry of the model's list."""

    criterion: str
    category: str = "general"
    evidence: list[str]


class CitedItems(BaseModel):
    """The model's list."""

    criteria: list[CitedItem]


@dataclass
class Trace:
    """What was asked and found for one prompt."""

    queries: list[str] = field(default_factory=list)
    passages: dict[str, Passage] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, found: Sequence[Passage]) -> list[Passage]:
        """Keeps the passages that were not known, and returns them."""
        new = {passage.id: passage for passage in found if passage.id not in self.passages}
        self.passages |= new
        return list(new.values())

    def told(self) -> str:
        """What is known so far, as the model reads it."""
        lines = [f"[{one.evidence}] {' '.join(one.requirement.split())}" for one in self.findings]
        return fenced("findings", "\n".join(lines) or "Nothing yet.")


@registry.register("evidence", _TAGS)
@dataclass
class EvidenceGenerator(LLMGenerator):
    """Searches for at most `rounds` rounds, then writes unweighted criteria that cite passages by id.

    The search ends when the model has enough, when two rounds in a row found nothing new, or after `rounds`. What no
    passage, or an unknown one, is cited for is dropped. Without any evidence `direct` writes the rubric with the same
    model, and the first note says 'ungrounded'.

    Args:
        retriever: a `Retriever`, or the path of a .jsonl or .txt corpus for `BM25.load`.
        rounds: searches at most (the paper's k).
        per_query: passages per search.
        max_criteria: more than this is cut, round-robin over the categories (the paper's n_max).
        encoder: finds repeats by meaning; None = by words.

    Raises:
        InputError: see `LLMGenerator` and `BM25`, and a retriever that is none, or a number below 1.
    """

    NAME: ClassVar[str] = "evidence/1"
    PROMPTS: ClassVar[str] = "evidence_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "query": ("prompt",),
        "reflect": ("prompt", "findings", "query", "passages", "left", "asked"),
        "write": ("prompt", "findings", "passages", "most"),
    }

    _: KW_ONLY
    retriever: Retriever | str | Path | None = None
    rounds: int = 6
    per_query: int = 3
    max_criteria: int = 24
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "per_query", "max_criteria"):
            if getattr(self, name) < 1:
                raise InputError(f"{self._where}: {name} must be at least 1, got {getattr(self, name)!r}")
        if isinstance(self.retriever, (str, Path)):
            self._retriever: Retriever = BM25.load(self.retriever)
        elif isinstance(self.retriever, Retriever):
            self._retriever = self.retriever
        else:
            raise InputError(f"{self._where}: give retriever, a Retriever or the path of a .jsonl or .txt corpus")

    async def write(self, asked: Asked) -> Draft:
        trace = await self._collect(asked.prompt)
        extra = {"queries": list(trace.queries), "found": list(trace.passages)}
        if not trace.findings:
            return await self._ungrounded(asked, trace, extra)
        written = await self.ask(
            "write",
            CitedItems,
            check=lambda found: _check(found, trace, asked.prompt),
            prompt=fenced_prompt(asked.prompt),
            findings=trace.told(),
            passages=_shown(list(trace.passages.values())),
            most=str(self.max_criteria),
        )
        grounded = [item for item in written.criteria if not _uncited(item, trace)]
        notes = [
            f"dropped: {item.criterion!r}, {_uncited(item, trace)}" for item in written.criteria if item not in grounded
        ]
        made, repeats = without_repeats([_criterion(item, trace) for item in grounded], self.encoder)
        notes += [f"dropped: {later.text!r} repeats {earlier.text!r}" for later, earlier in repeats]
        kept = capped(made, self.max_criteria)
        notes += [f"dropped: {criterion.text!r}, over max_criteria" for criterion in made if criterion not in kept]
        cited = {id for item in kept for id in item.extra["evidence"]}  # pyright: ignore
        return Draft(
            kept, tuple(notes), {"evidence": tuple(id for id in trace.passages if id in cited), "extra": extra}
        )

    async def _collect(self, prompt: str) -> Trace:
        """Query, fetch, reflect, until a stop."""
        trace = Trace()
        first = await self.ask("query", Query, check=_check_query, prompt=fenced_prompt(prompt))
        query, dry = first.query.strip(), 0
        for left in range(self.rounds - 1, -1, -1):
            trace.queries.append(query)
            found = await self._retriever.search(query, self.per_query)
            new = trace.add(found[: self.per_query])
            dry = 0 if new else dry + 1
            if dry == _DRY or (not new and not left):
                break
            reflection = await self._reflect(prompt, trace, new, left)
            trace.findings += [
                one.model_copy(update={"evidence": _meant(one.evidence, trace.passages)}) for one in reflection.findings
            ]
            if reflection.enough:
                break
            query = reflection.query.strip()
        return trace

    async def _reflect(self, prompt: str, trace: Trace, new: Sequence[Passage], left: int) -> Reflection:
        def check(found: Reflection) -> None:
            known = [passage.id for passage in new]
            for finding in found.findings:
                if _meant(finding.evidence, known) not in known:
                    raise ValueError(f"evidence {finding.evidence!r} is no id of these passages: {', '.join(known)}")
                if not finding.requirement.strip():
                    raise ValueError("a requirement is blank")
            if left and not found.enough:
                if not found.query.strip():
                    raise ValueError("give the next query, or say that there is enough")
                if normalise(found.query) in map(normalise, trace.queries):
                    raise ValueError(f"the query {found.query!r} was asked before; ask another one")

        return await self.ask(
            "reflect",
            Reflection,
            check=check,
            prompt=fenced_prompt(prompt),
            findings=trace.told(),
            query=fenced("query", trace.queries[-1]),
            asked=fenced("queries", "\n".join(trace.queries)),
            passages=_shown(new),
            left=str(left),
        )

    async def _ungrounded(self, asked: Asked, trace: Trace, extra: Mapping[str, Any]) -> Draft:
        direct = DirectGenerator(
            client=self.chat,
            store=self._store,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            re_asks=self.re_asks,
            min_criteria=min(_LEAST, self.max_criteria),
            max_criteria=self.max_criteria,
            encoder=self.encoder,
        )
        draft = await direct.write(asked)
        note = f"ungrounded: {len(trace.queries)} searches gave no evidence, so {direct.NAME} wrote it"
        return Draft(draft.criteria, (note, *draft.notes), {"extra": dict(extra)})


def _check_query(found: Query) -> None:
    if not found.query.strip():
        raise ValueError("the query is blank")


def _check(written: CitedItems, trace: Trace, prompt: str) -> None:
    check_wording([item.criterion for item in written.criteria], prompt)
    if all(_uncited(item, trace) for item in written.criteria):
        raise ValueError(f"no criterion cites evidence by its id; known: {', '.join(trace.passages)}")


def _uncited(item: CitedItem, trace: Trace) -> str:
    """What is wrong with the evidence of an entry; "" = nothing."""
    unknown = [id for id in item.evidence if _meant(id, trace.passages) not in trace.passages]
    if unknown:
        return f"its evidence {', '.join(unknown)} is unknown"
    return "" if item.evidence else "it cites no evidence"


def _meant(cited: str, known: Container[str]) -> str:
    """The id that a model cites, which it may write as it was shown: in brackets."""
    plain = cited.strip()
    inside = plain.removeprefix("[").removesuffix("]").strip()
    return next((id for id in (cited, plain, inside) if id in known), cited)


def _criterion(item: CitedItem, trace: Trace) -> Criterion:
    text = item.criterion.strip()
    extra: dict[str, Any] = {"evidence": list(dict.fromkeys(_meant(id, trace.passages) for id in item.evidence))}
    return Criterion(id=slug(text), text=text, category=item.category.strip() or "general", extra=extra)


def _shown(passages: Sequence[Passage]) -> str:
    lines = [f"[{passage.id}]\n{passage.text}" for passage in passages]
    return fenced("passages", "\n\n".join(lines) or "Nothing new was found.")
