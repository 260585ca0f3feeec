"""ARR's generator: a rubric learnt from preference pairs, or five criteria of a prompt alone, each verified.

Source: Auto-Rubric as Reward, arXiv 2605.08354.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

from mmrubric.chat_client import ChatClient
from mmrubric.checks import number, one_of, switch, whole
from mmrubric.errors import InputError
from mmrubric.generators.auto_rubric_pairs import Outcome, PairWriter, named, warn_of
from mmrubric.generators.auto_rubric_prompt import PromptWriter
from mmrubric.generators.auto_rubric_structure import structured
from mmrubric.generators.auto_rubric_verify import ShownPair, Verifier, shown_pairs
from mmrubric.generators.base import registry
from mmrubric.generators.fusion import Item, pooled
from mmrubric.generators.items import with_unique_ids
from mmrubric.generators.llm import Asked, Draft, GenerationFailed, LLMGenerator
from mmrubric.generators.mcr2 import Selection
from mmrubric.generators.showing import through
from mmrubric.judging import run_all
from mmrubric.rubric import Rubric
from mmrubric.similar import Encoder, ngram_encoder
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.contrastive_pairs, Optimisation.verify, Signal.output_level, Loop.none)
ALL_AT_ONCE = 100
"""Pairs up to which all are used; more go in batches, until further ones add nothing."""


@registry.register("auto_rubric", _TAGS)
@dataclass
class AutoRubricGenerator(LLMGenerator):
    """`fit(pairs)` learns one rubric for every prompt; without it `generate` writes one for each prompt.

    Fitted: each pair gives statements that tell its candidates apart; they are verified on that pair, refined, or
    discarded, and what is left is put in order from coarse to fine (`rubric`, with an empty prompt). Not fitted:
    statements from the prompt alone, or with `exemplars` (`PreferencePair`) shown as they are; several samples of the
    model then say which of them follow from the prompt and can be decided, and the others are written anew.

    Args:
        criteria: statements of a prompt, exactly; of a pair, at most.
        verify: how `fit` verifies: "label" (the rubric must pick what people preferred; a tie fails), "consistency"
            (labels are not looked at: the verdict must follow the candidates when they are swapped, and more than half
            of `samples` must repeat it) or "proxy" (as label, in both orders, by the other model).
        position: "both" verifies by label in both orders, "first" in the order of the pair alone.
        proxy: client of the other model; or `proxy_base_url` and `proxy_model`.
        max_refinements: of a rubric that failed, before it is discarded.
        samples: of self-agreement, 3 or more; for `generate` also 0 = no check.
        sample_temperature: of these, and of further tries.
        empty_tries: how often an empty list is asked for.
        max_themes, max_tips: size of the hierarchy: axes, and clauses of each.
        batch: pairs of one round when there are more than 100.
        encoder: finds repeats by meaning and spans the space of the selection; None = by words, and n-grams.
        max_failure_share: largest share of pairs on which the model may fail.
        allow_no_rubric: when no pair's rubric is verified, write rubrics by prompt instead of raising an error.

    Raises:
        InputError: see `LLMGenerator`, a bad value, or a proxy that is missing, unused, or the same model.
    """

    NAME: ClassVar[str] = "auto_rubric/1"
    PROMPTS: ClassVar[str] = "auto_rubric_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "write": ("prompt", "examples", "count"),
        "examples": ("examples",),
        "check": ("prompt", "statements"),
        "amend": ("prompt", "statements", "faults", "count"),
        "contrast": ("prompt", "candidates", "preference", "most"),
        "apply": ("prompt", "candidates", "statements"),
        "refine": ("prompt", "candidates", "preference", "statements", "critique", "most"),
        "structure": ("statements", "themes", "tips"),
    }
    TAKES: ClassVar[frozenset[str]] = frozenset({"source", "exemplars"})

    _: KW_ONLY
    criteria: int = 5
    verify: Literal["label", "consistency", "proxy"] = "label"
    position: Literal["both", "first"] = "both"
    proxy: ChatClient | None = None
    proxy_base_url: str | Sequence[str] = ()
    proxy_model: str = ""
    max_refinements: int = 5
    samples: int = 3
    sample_temperature: float = 0.7
    empty_tries: int = 5
    max_themes: int = 5
    max_tips: int = 4
    batch: int = 10
    encoder: Encoder | None = None
    max_failure_share: float = 0.2
    allow_no_rubric: bool = False
    rubric: Rubric | None = field(default=None, init=False)
    """What `fit` has learnt; its prompt is empty, since it holds for every prompt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self._where
        one_of(f"{where}: verify", self.verify, ("label", "consistency", "proxy"))
        one_of(f"{where}: position", self.position, ("both", "first"))
        if self.position == "first" and self.verify != "label":
            raise InputError(f"{where}: position='first' is for verify='label'; {self.verify} needs both orders")
        least = {"criteria": 1, "max_refinements": 0, "empty_tries": 1, "max_themes": 1, "max_tips": 1, "batch": 1}
        for name, low in least.items():
            whole(f"{where}: {name}", getattr(self, name), low)
        whole(f"{where}: samples", self.samples, 0)
        if self.samples < 3 and (self.samples != 0 or self.verify == "consistency"):
            raise InputError(f"{where}: samples: self-agreement needs 3 or more, got {self.samples}")
        number(f"{where}: sample_temperature", self.sample_temperature, low=1e-6)
        number(f"{where}: max_failure_share", self.max_failure_share, 0.0, 1.0)
        switch(f"{where}: allow_no_rubric", self.allow_no_rubric)
        self._verifier = Verifier(
            self._asker(), self.verify, self.position == "both", self.samples, self.sample_temperature
        )
        self._without_rubric = ""

    async def fit(self, examples: Sequence[Any], judge: Any = None) -> None:
        """Learns the rubric of a data set of `PreferencePair`s; `rubric` holds it.

        Raises:
            InputError: no pairs, wrong ones, or a judge, which is not used: see `verify`.
            GenerationFailed: no pair's rubric was verified, or the model failed on too many pairs.
        """
        if judge is not None:
            raise InputError(f"{self._where}: fit takes no judge; verify='proxy' lets another model verify")
        pairs = named(examples, f"{self._where}: fit")
        if not pairs:
            raise InputError(f"{self._where}: fit: give at least one pair")
        labelled = self.verify != "consistency"
        warn_of(pairs, labelled)
        shown = await shown_pairs(pairs, labelled)
        writer = PairWriter(
            self,
            self._verifier,
            self.criteria,
            self.max_refinements,
            self.empty_tries,
            self.sample_temperature,
        )
        if len(shown) <= ALL_AT_ONCE:
            outcomes = await run_all(writer.outcome(pair) for pair in shown)
            self._guard(outcomes)
            chosen, facts = None, {}
        else:
            outcomes, selection = await self._in_rounds(writer, shown)
            chosen, facts = set(selection.chosen), {"rounds": len(selection.gains), "stopped": selection.stopped}
        items = _items(outcomes, chosen)
        if items:
            self.rubric, self._without_rubric = await self._structured(items, outcomes, facts), ""
            return
        why = "; ".join(f"{outcome.pair}: {outcome.why}" for outcome in outcomes[:5])
        if not self.allow_no_rubric:
            raise GenerationFailed(
                f"{self._where}: of {len(outcomes)} pairs no rubric was verified ({why}); give other pairs "
                "or a stronger model, or set allow_no_rubric to write rubrics by prompt"
            )
        self.rubric, self._without_rubric = None, f"fit verified no rubric ({why}); written by prompt"

    def models_asked(self) -> list[ChatClient]:
        return [self.chat, self._verifier.asker.chat]

    async def write(self, asked: Asked) -> Draft:
        if self.rubric is not None:
            if asked.exemplars:
                raise InputError(f"{self._where}: takes no exemplars once it is fitted: its rubric is the same for all")
            known = self.rubric.provenance
            kept = {name: getattr(known, name) for name in ("evidence", "verified_by", "refinements", "extra")}
            return Draft(self.rubric.criteria, known.notes, kept)
        exemplars = await shown_pairs(named(asked.exemplars, f"{self._where}: exemplars"))
        writer = PromptWriter(
            self, self.criteria, self.samples, self.sample_temperature, self.max_refinements, self.encoder
        )
        draft = await writer.draft(asked, exemplars)
        notes = (self._without_rubric, *draft.notes) if self._without_rubric else draft.notes
        return Draft(draft.criteria, notes, draft.provenance)

    async def _in_rounds(self, writer: PairWriter, pairs: Sequence[ShownPair]) -> tuple[list[Outcome], Selection]:
        """Batches of pairs, until what they add to the chosen statements is too little."""
        selection, outcomes = Selection(self.encoder or ngram_encoder), list[Outcome]()
        for begin in range(0, len(pairs), self.batch):
            new = await run_all(writer.outcome(pair) for pair in pairs[begin : begin + self.batch])
            outcomes += new
            self._guard(outcomes, of=len(pairs))
            selection.offer([text for outcome in new for text in outcome.statements])
            if selection.stopped:
                break
        self._guard(outcomes)
        return outcomes, selection

    def _guard(self, outcomes: Sequence[Outcome], of: int | None = None) -> None:
        """Stops when the model fails on more pairs than `max_failure_share` of all allows."""
        failed = [outcome for outcome in outcomes if outcome.failed]
        if len(failed) > math.floor(self.max_failure_share * (of or len(outcomes))):
            raise GenerationFailed(
                f"{self._where}: the model failed on {len(failed)} of {of or len(outcomes)} pairs, more than "
                f"max_failure_share={self.max_failure_share:g} allows; the first was {failed[0].pair!r}: "
                f"{failed[0].why}"
            )

    async def _structured(self, items: Sequence[Item], outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> Rubric:
        pool = pooled(items, self.encoder)
        criteria, notes = await structured(self, pool.items, self.max_themes, self.max_tips)
        used = {pair for item in items for pair in item.sources}
        kept = [outcome for outcome in outcomes if outcome.pair in used]
        lost = [outcome for outcome in outcomes if not outcome.statements]
        extra = {
            "pairs": len(outcomes),
            "refinements": {outcome.pair: outcome.refinements for outcome in kept},
            "discarded": {outcome.pair: outcome.why for outcome in lost if not outcome.failed},
            "failed": {outcome.pair: outcome.why for outcome in lost if outcome.failed},
            **facts,
        }
        if self.verify == "proxy":
            extra["proxy_model"] = self._verifier.asker.chat.model
        provenance = self._provenance(
            (*pool.notes, *notes),
            evidence=tuple(outcome.pair for outcome in kept),
            verified_by=self.verify,
            refinements=sum(outcome.refinements for outcome in kept),
            extra=extra,
        )
        return Rubric(prompt="", criteria=tuple(with_unique_ids(criteria)), provenance=provenance)

    def _asker(self) -> LLMGenerator:
        """Who applies rubrics: this generator, or the same with the proxy's client."""
        given = self.proxy is not None or bool(self.proxy_base_url or self.proxy_model)
        if self.verify != "proxy":
            if given:
                raise InputError(f"{self._where}: a proxy is used by verify='proxy' only; leave it out")
            return self
        if self.proxy is not None and (self.proxy_base_url or self.proxy_model):
            raise InputError(f"{self._where}: give proxy, or proxy_base_url and proxy_model, not both")
        client = self.proxy or self.client_for(self.proxy_base_url, self.proxy_model, f"{self._where}: proxy")
        if client.model == self.chat.model:
            raise InputError(f"{self._where}: the proxy must be another model than {self.chat.model!r}, which writes")
        return through(self, client)


def _items(outcomes: Sequence[Outcome], chosen: set[str] | None) -> list[Item]:
    """The verified statements, with the pairs that each came from; those that the selection chose."""
    return [
        Item(text=" ".join(text.split()), sources=frozenset({outcome.pair}))
        for outcome in outcomes
        for text in outcome.statements
        if chosen is None or text in chosen
    ]
