"""SibylSense's generator: a frozen model that writes rubrics in the light of a bank of criteria that proved useful.

Source: SibylSense, arXiv 2602.20751; bank operations and constants are reconstructed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import BaseModel, Field

from mmrubric.checks import number, one_of
from mmrubric.errors import InputError
from mmrubric.generators.base import registry
from mmrubric.generators.fitting import MOST_FAILED, needs_judge
from mmrubric.generators.items import category_of, check_enough, slug, with_unique_ids, without_repeats
from mmrubric.generators.llm import Asked, Draft, GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.measuring import MemoryExample, measure, states_more
from mmrubric.generators.showing import check_wording
from mmrubric.judging import Candidate, Judge, candidate_id
from mmrubric.memory.bank import Bank, BankItem, Finding, Retrieved
from mmrubric.pairs import PreferencePair
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import Encoder
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.contrastive_pairs, Optimisation.memory, Signal.output_level, Loop.none)
Weights = Literal["alpha", "generator"]
Refresh = Callable[[Mapping[str, Rubric]], Mapping[str, Sequence[Candidate]]]
"""The adversary: takes the rubric of each prompt, makes candidates that satisfy it (such as a few GRPO steps on the
policy, then a sample), and returns new candidates by prompt."""


class WeightedItem(BaseModel):
    """One entry of the model's list."""

    criterion: str
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    category: str = "general"


class WeightedList(BaseModel):
    """The model's list."""

    criteria: list[WeightedItem]


@dataclass
class MemoryReport:
    """What `fit` saw."""

    counts: Counter[str] = field(default_factory=Counter)
    """proposed, promoted, updated, no_gap, fails_reference, unknown, unanswered, retired, dropped_specific."""
    better_candidates: list[tuple[str, str, float]] = field(default_factory=list)
    """(prompt, criterion, gap) where the candidates beat the reference."""


@registry.register("memory", _TAGS)
@dataclass
class MemoryGenerator(LLMGenerator):
    """`fit(examples, judge)` fills the bank, `generate` writes with it; an empty bank is fine.

    Args:
        bank: a `Bank`, or the path of a saved one; None = empty. `generator.memory.save(path)` writes the one in use.
        capacity, ema: of a new bank, see `Bank`; None = 200 items and the plain mean.
        k, low: items shown to the model, and how many of these it should avoid.
        min_criteria: fewer than this is asked for again.
        max_criteria: more than this is cut.
        weights: "alpha" weighs what the bank knows by max(mean, 0), and what it does not know by the mean of these;
            "generator" takes the model's weights.
        lam: penalty for noise, in alpha = gap - lam sigma; without effect where a judge says only yes or no.
        repeats: evaluations for sigma; 1 = not measured. A judge that gives equal answers to equal requests needs one.
        delta: least gap of a criterion that enters; an item whose gap falls to it or below is retired.
        tau_ref: least score of the reference under a criterion that enters, in [0, 1].
        inner: steps on the examples, in turn, in each round.
        outer: rounds; after each the adversary acts and the bank is scored anew.
        explore: temperature while the bank is filled.
        refresh: the adversary, see `Refresh`; None = the candidates stay.
        replay: share of the candidates of a later round that come from earlier rounds, in [0, 1].
        encoder: finds repeats by meaning; None = by words.

    Raises:
        InputError: see `LLMGenerator`, or a value out of range.
    """

    NAME: ClassVar[str] = "memory/1"
    PROMPTS: ClassVar[str] = "memory_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {"write": ("prompt", "follow", "avoid", "least", "most")}

    _: KW_ONLY
    bank: Bank | str | Path | None = None
    capacity: int | None = None
    ema: float | None = None
    k: int = 8
    low: int = 2
    min_criteria: int = 4
    max_criteria: int = 8
    weights: Weights = "alpha"
    lam: float = 0.1
    repeats: int = 4
    delta: float = 0.05
    tau_ref: float = 0.5
    inner: int = 20
    outer: int = 3
    explore: float = 0.7
    refresh: Refresh | None = None
    replay: float = 0.25
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(f"{self._where}, weights", self.weights, get_args(Weights))
        for name in ("k", "min_criteria", "repeats", "inner", "outer"):
            number(f"{self._where}, {name}", getattr(self, name), low=1)
        for name in ("lam", "explore"):
            number(f"{self._where}, {name}", getattr(self, name), low=0.0)
        for name in ("delta", "tau_ref", "replay"):
            number(f"{self._where}, {name}", getattr(self, name), 0.0, 1.0)
        if not 0 <= self.low <= self.k or self.max_criteria < self.min_criteria:
            raise InputError(f"{self._where}: needs 0 <= low <= k, and min_criteria <= max_criteria")
        self.id = f"{self.NAME} {self.chat.model}"
        self._bank = self._opened()
        self.report = MemoryReport()

    @property
    def memory(self) -> Bank:
        """The bank in use."""
        return self._bank

    async def fit(self, examples: Sequence[MemoryExample | PreferencePair], judge: Any = None) -> None:
        """Fill the bank; see `report` for what happened.

        Args:
            examples: a handful of prompts, each with a reference and candidates. The model never sees these.
            judge: a `Judge`.

        Raises:
            InputError: examples or judge are of the wrong kind, or `refresh` returned something unusable.
            GenerationFailed: the model failed in too many steps.
        """
        judge = needs_judge(judge, self._where)
        current = [MemoryExample.of(example) for example in examples]
        if not current:
            raise InputError(f"{self._where}: fit needs at least one example")
        earlier: dict[str, dict[str, Candidate]] = defaultdict(dict)
        self.report, self._bank.generator = MemoryReport(), self.id
        for round in range(self.outer):
            for step in range(self.inner):
                await self._step(current[step % len(current)], judge, round * self.inner + step)
            if self.refresh is not None:
                current = await self._refreshed(self.refresh, current, earlier, round)
                await self._rescore(current, judge)
        self.report.counts["dropped_specific"] = len(self._bank.drop_unconfirmed())

    async def write(self, asked: Asked) -> Draft:
        shown = self._bank.retrieve(self.k, self.low)
        criteria, notes = self._weighed(await self._written(asked.prompt, shown))
        if self._bank.generator not in ("", self.id):
            notes.append(f"the bank was tuned for {self._bank.generator!r}")
        return Draft(
            criteria,
            tuple(notes),
            {
                "evidence": tuple(item.criterion.id for item in shown.items),
                "extra": {"bank_version": self._bank.version, "bank_items": len(self._bank)},
            },
        )

    async def _written(
        self, prompt: str, shown: Retrieved, temperature: float | None = None, repeat: int = 0
    ) -> list[Criterion]:
        def check(reply: WeightedList) -> None:
            texts = [item.criterion for item in reply.criteria]
            check_enough(texts, self.min_criteria, self.encoder)
            check_wording(texts, prompt)

        reply = await self.ask(
            "write",
            WeightedList,
            check=check,
            temperature=temperature,
            repeat=repeat,
            prompt=fenced_prompt(prompt),
            follow=_lines(shown.high),
            avoid=_lines(shown.low),
            least=str(self.min_criteria),
            most=str(self.max_criteria),
        )
        made = [
            Criterion(
                id=slug(item.criterion),
                text=item.criterion.strip(),
                category=category_of(item.category),
                weight=item.weight,
            )
            for item in reply.criteria
        ]
        kept, _ = without_repeats(made, self.encoder)
        return with_unique_ids(kept[: self.max_criteria])

    def _weighed(self, criteria: list[Criterion]) -> tuple[list[Criterion], list[str]]:
        """Criteria with the weights that the bank gives them, which sum to 1, and notes."""
        matches = self._bank.match([criterion.text for criterion in criteria])
        known = [match.mean for match in matches if match is not None and match.mean > 0.0]
        if self.weights == "generator" or not any(matches):
            return criteria, []
        if not known:
            return criteria, ["plain rubric: all that the bank knows of it has no positive reward"]
        usual = sum(known) / len(known)
        weights = [usual if match is None else max(match.mean, 0.0) for match in matches]
        total = sum(weights)
        kept = [
            criterion.model_copy(update={"weight": weight / total})
            for criterion, weight in zip(criteria, weights, strict=True)
            if weight > 0.0
        ]
        dropped = [criterion for criterion, weight in zip(criteria, weights, strict=True) if weight == 0.0]
        return kept, [f"dropped: {criterion.text!r} has no positive reward in the bank" for criterion in dropped]

    async def _step(self, example: MemoryExample, judge: Judge, step: int) -> None:
        """One prompt: write, measure, learn."""
        counts = self.report.counts
        shown = self._bank.retrieve(self.k, self.low)
        try:
            criteria = await self._written(example.prompt, shown, self.explore, step)
        except GenerationFailed as failure:
            counts["unanswered"] += 1
            if counts["unanswered"] > MOST_FAILED * self.inner * self.outer:
                raise GenerationFailed(
                    f"{self._where}: {counts['unanswered']} steps gave nothing: {failure}"
                ) from failure
            return
        measured = await measure(judge, example, criteria, self.lam, self.repeats)
        findings = []
        for column in np.flatnonzero(measured.known):
            criterion = criteria[column]
            wide, sound = measured.gap[column] > self.delta, measured.reference[column] >= self.tau_ref
            counts["fails_reference"] += not sound
            counts["no_gap"] += bool(sound and not wide)
            if measured.gap[column] < 0.0:
                self.report.better_candidates.append((example.prompt, criterion.text, float(measured.gap[column])))
            specific = states_more(criterion.text, example.prompt, example.reference)
            findings.append(
                Finding(criterion, float(measured.alpha[column]), example.prompt, bool(wide and sound), specific)
            )
        matched = sum(match is not None for match in self._bank.match([found.criterion.text for found in findings]))
        counts.update(
            proposed=len(criteria),
            unknown=int((~measured.known).sum()),
            updated=matched,
            promoted=len(self._bank.learn(findings)),
        )

    async def _refreshed(
        self, refresh: Refresh, current: list[MemoryExample], earlier: dict[str, dict[str, Candidate]], round: int
    ) -> list[MemoryExample]:
        """The examples with the adversary's candidates, some of them replaced by those of earlier rounds."""
        prompts = list(dict.fromkeys(example.prompt for example in current))
        made = await asyncio.to_thread(refresh, {prompt: await self.generate(prompt) for prompt in prompts})
        unknown = sorted(set(made) - set(prompts))
        if unknown:
            raise InputError(f"{self._where}, refresh: returned candidates for prompts not in the examples: {unknown}")
        rng = np.random.default_rng([self.seed, round])
        examples = []
        for example in current:
            if example.prompt not in made:
                examples.append(example)
                continue
            earlier[example.prompt] |= {candidate_id(candidate): candidate for candidate in example.candidates}
            new, old = list(made[example.prompt]), list(earlier[example.prompt].values())
            count = min(int(self.replay * len(new) + 0.5), len(old))
            replayed = [old[index] for index in rng.permutation(len(old))[:count]]
            examples.append(replace(example, candidates=(*new[: len(new) - count], *replayed)))
        return examples

    async def _rescore(self, examples: Sequence[MemoryExample], judge: Judge) -> None:
        """Every item in use on the examples that it was found on; what no longer tells answers apart is retired."""
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for example in examples:
            items = [item for item in self._bank.items if not item.retired and example.prompt in item.evidence]
            if not items:
                continue
            measured = await measure(judge, example, [item.criterion for item in items], self.lam, self.repeats)
            for column in np.flatnonzero(measured.known):
                figures = float(measured.gap[column]), float(measured.alpha[column])
                found[items[column].criterion.id].append(figures)
        for id, figures in found.items():
            gap, alpha = (float(value) for value in np.mean(figures, axis=0))
            item = self._bank.rescore(id, alpha, retired=gap <= self.delta)
            self.report.counts["retired"] += item.retired

    def _opened(self) -> Bank:
        if self.bank is None:
            capacity = 200 if self.capacity is None else self.capacity
            return Bank(capacity=capacity, ema=self.ema, encoder=self.encoder)
        if self.capacity is not None or self.ema is not None:
            raise InputError(f"{self._where}: capacity and ema are those of the bank; leave them out beside bank=")
        return self.bank if isinstance(self.bank, Bank) else Bank.load(self.bank, self.encoder)


def _lines(items: Sequence[BankItem]) -> str:
    """Items for the model, one a line."""
    lines = [f"- {item.criterion.text} (reward {item.mean:+.2f}, {item.criterion.category})" for item in items]
    return fenced("statements", "\n".join(lines) or "none yet")
