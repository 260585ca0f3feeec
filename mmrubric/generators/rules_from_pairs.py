"""AutoRubric-T2I's generator: one weighted set of rules for a whole data set, learned from preference pairs.

A model reads pairs and drafts rules, a judge scores both candidates under every rule, an l1 logistic regression keeps
few of them, and the pairs that it gets wrong are read again. Source: AutoRubric-T2I, arXiv 2605.17602; the fit is
reconstructed (`mmrubric.aggregate.l1_rules`). Reward: aggregator `l1_rules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from mmrubric.aggregate import l1_rules
from mmrubric.checks import number, switch
from mmrubric.errors import InputError, RunError
from mmrubric.generators.base import registry
from mmrubric.generators.fitting import GlobalGenerator, answers_of, needs_judge, or_failure
from mmrubric.generators.items import category_of, slug, with_unique_ids, without_repeats
from mmrubric.generators.llm import GenerationFailed, fenced_prompt
from mmrubric.generators.rule_scores import RuleScores
from mmrubric.generators.showing import check_wording, display, labelled, numbered, part_of
from mmrubric.judging import run_all
from mmrubric.pairs import PreferencePair
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import Floats
from mmrubric.similar import Encoder

MOST_UNKNOWN = 0.1
"""Share of the pairs that may leave the fit for an unknown score."""
_CHUNK = 100
"""Drafts that are merged by one call."""
_TURNED = "opposite_of"
"""Field of `Criterion.extra`: the id of the rule of which this one is the opposite."""
Margin = Callable[[PreferencePair], float]


class DraftedRule(BaseModel):
    """One entry of the model's list."""

    rule: str = Field(pattern=r"\S")
    category: str = "general"


class Explained(BaseModel):
    """What one pair teaches."""

    reason: str = ""
    rules: list[DraftedRule] = Field(min_length=1)


class Merged(BaseModel):
    """Many drafts as one list."""

    rules: list[DraftedRule] = Field(min_length=1)


class Rewritten(BaseModel):
    """A rule in the opposite sense."""

    rule: str = Field(pattern=r"\S")


@dataclass(frozen=True)
class RuleRound:
    """What one round of `fit` found."""

    round: int
    rules: tuple[Criterion, ...]
    """Kept, with weights, the heaviest first."""
    accuracy: float
    """On validation pairs, ties one half; it also chose lam and the round, so it flatters."""
    lam: float
    pairs: int
    """Pairs in the fit and in validation together."""
    unknown: int
    """Pairs left out for an unknown score."""
    misranked: int
    """Pairs of both splits with a margin <= 0."""
    notes: tuple[str, ...]


@registry.register("rules_from_pairs", l1_rules.TAGS)
@dataclass
class RulesFromPairs(GlobalGenerator):
    """`fit(pairs, judge)` learns the rules, `generate` gives them to every prompt; see `RuleRound` for the figures.

    Args:
        rules: a saved set (`save`), as a path or a `Rubric`; it can be used without `fit` and without a model.
        max_pairs: pairs that are read, the prompts in turn, those with the largest `margin` first.
        margin: proxy reward of the preferred candidate minus that of the other one; None = pairs in their order.
        rounds: of draft, score, fit.
        top: most rules that are kept.
        seed_rules: most rules that the first drafts are merged into.
        hard: most pairs that are read again after a round.
        lams: strengths of the penalty; the one with the highest accuracy on validation is taken.
        validation: share of the prompts whose pairs the model does not read; they only choose lam and the round.
        nonneg: fit only weights >= 0; otherwise a rule of negative weight is rewritten once in the opposite sense.
        refit: fit the weights again on the rules that were kept.
        collinear: rules whose differences have at least this |cosine| are one; the best of them stays.
        low_margin: quantile of |margin| below which a pair counts as hard.
        encoder: finds repeated rules by meaning; None = by words.

    Raises:
        InputError: see `GlobalGenerator`, or a value out of range.
    """

    NAME: ClassVar[str] = "rules_from_pairs/1"
    PROMPTS: ClassVar[str] = "rules_from_pairs_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "explain": ("prompt", "answers", "preferred", "known"),
        "merge": ("rules", "most"),
        "diagnose": ("prompt", "answers", "preferred", "known"),
        "rewrite": ("rule",),
    }
    SAVED: ClassVar[str] = "rules"

    _: KW_ONLY
    rules: Rubric | str | Path = ""
    max_pairs: int = 256
    margin: Margin | None = None
    rounds: int = 3
    top: int = 20
    seed_rules: int = 60
    hard: int = 32
    lams: Sequence[float] = l1_rules.LAMS
    validation: float = 0.2
    nonneg: bool = False
    refit: bool = True
    collinear: float = 0.98
    low_margin: float = 0.2
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_pairs", "rounds", "top", "seed_rules", "hard"):
            number(f"{self._where}, {name}", getattr(self, name), low=1)
        for name in ("validation", "collinear", "low_margin"):
            number(f"{self._where}, {name}", getattr(self, name), 0.0, 1.0)
        for name in ("nonneg", "refit"):
            switch(f"{self._where}, {name}", getattr(self, name))
        if not self.lams or min(number(f"{self._where}, lams", lam) for lam in self.lams) <= 0:
            raise InputError(f"{self._where}: lams must be one or more numbers above 0, got {list(self.lams)}")
        self.reports: list[RuleRound] = []

    async def fit(self, examples: Sequence[PreferencePair], judge: Any = None) -> None:
        """Learn the rules; those of the round with the highest accuracy on validation pairs are kept.

        Args:
            examples: labelled pairs of two prompts or more; at most `max_pairs` are used.
            judge: a `Judge`; P(yes) is a finer score than yes or no.

        Raises:
            InputError: examples or judge are of the wrong kind, or all pairs have one prompt.
            RunError: the judge or the model failed on too many pairs, or no rule tells the candidates apart.
        """
        self._needs_model()
        pairs = self._chosen(examples)
        held = l1_rules.split_by_prompt([pair.prompt for pair in pairs], self.validation, self.seed)
        scores = RuleScores(needs_judge(judge, self._where), pairs, MOST_UNKNOWN)
        drafts = await self._read([pair for pair, out in zip(pairs, held, strict=True) if not out], self._explain)
        seen = await self._merged(drafts, self.seed_rules, [])
        rules, self.reports = list(seen), []
        for count in range(1, self.rounds + 1):
            report = await self._round(count, rules, seen, scores, held)
            self.reports.append(report)
            if count == self.rounds:
                break
            new = await self._repaired(report, seen, pairs, scores, held)
            if not new:
                break
            rules = [*report.rules, *new]
        best = max(self.reports, key=lambda report: (report.accuracy, -report.round))
        if not best.rules:
            raise RunError(f"{self._where}: no rule tells the preferred candidates apart; last: {best.notes}")
        self.kept = self._rubric(best, pairs)

    def _chosen(self, examples: Sequence[PreferencePair]) -> list[PreferencePair]:
        for example in examples:
            if not isinstance(example, PreferencePair):
                raise InputError(f"{self._where}: fit takes PreferencePair, got {type(example).__name__}")
            if example.preferred is None:
                raise InputError(f"{self._where}: pair {example.id!r}: field preferred is missing; say 0 or 1")
        turns: dict[str, int] = defaultdict(int)
        ranks = []
        margins = [0.0 if self.margin is None else self.margin(pair) for pair in examples]
        for index in sorted(range(len(examples)), key=lambda index: -margins[index]):
            prompt = examples[index].prompt
            ranks.append((turns[prompt], -margins[index], index))
            turns[prompt] += 1
        return [examples[index] for _, _, index in sorted(ranks)[: self.max_pairs]]

    async def _round(
        self, count: int, rules: list[Criterion], seen: list[Criterion], scores: RuleScores, held: NDArray[np.bool_]
    ) -> RuleRound:
        notes: list[str] = []
        rules = await self._positive(rules, seen, scores, held, notes)
        train, check = self._split(rules, scores, held)
        fits = [l1_rules.select(train, lam, self.top, nonneg=self.nonneg, refit=self.refit) for lam in self.lams]
        fit, reached = l1_rules.best_of(fits, check)
        kept = [rules[column].model_copy(update={"weight": float(fit.weights[column])}) for column in fit.kept]
        known = scores.known(rules)
        wrong = l1_rules.hard_pairs(fit.weights, scores.differences(rules)[known], self.low_margin).misranked
        return RuleRound(
            count, tuple(kept), reached, fit.lam, int(known.sum()), int((~known).sum()), len(wrong), tuple(notes)
        )

    async def _positive(
        self,
        rules: list[Criterion],
        seen: list[Criterion],
        scores: RuleScores,
        held: NDArray[np.bool_],
        notes: list[str],
    ) -> list[Criterion]:
        """Distinct rules with known scores; those of negative weight have been put in the opposite sense once."""
        while True:
            await scores.add(rules)
            rules, dropped = scores.usable(rules)
            notes += [f"dropped: {rule.text!r} often does not apply" for rule in dropped]
            rules = self._distinct(rules, scores, held, notes)
            train, check = self._split(rules, scores, held)
            fit, _ = l1_rules.best_of([l1_rules.fit_l1(train, lam, nonneg=self.nonneg) for lam in self.lams], check)
            negative = [rules[column] for column in fit.kept if fit.weights[column] < 0.0]
            first_time = [rule for rule in negative if _TURNED not in rule.extra]
            if not first_time:
                return rules
            rules = await self._opposites(rules, first_time, seen, notes)

    def _split(self, rules: list[Criterion], scores: RuleScores, held: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Differences of the pairs to fit on, and of those held out; without the pairs that are not known."""
        d, known = scores.differences(rules), scores.known(rules)
        train, check = d[known & ~held], d[known & held]
        if not len(train) or not len(check):
            raise RunError(f"{self._where}: too few pairs are known: {len(train)} to fit, {len(check)} held out")
        return train, check

    def _distinct(
        self, rules: list[Criterion], scores: RuleScores, held: NDArray[np.bool_], notes: list[str]
    ) -> list[Criterion]:
        """The best rule of every cluster that scores the fitted pairs alike."""
        d = scores.differences(rules)[scores.known(rules) & ~held]
        clusters = l1_rules.collinear(d, self.collinear) if len(d) else [(column,) for column in range(len(rules))]
        for head, *others in clusters:
            notes += [f"dropped: {rules[other].text!r} scores as {rules[head].text!r} does" for other in others]
        return [rules[cluster[0]] for cluster in clusters]

    async def _opposites(
        self, rules: list[Criterion], negative: list[Criterion], seen: list[Criterion], notes: list[str]
    ) -> list[Criterion]:
        """The rules with the negative ones replaced by their opposites; one without a new opposite is dropped."""
        asked = [self.ask("rewrite", Rewritten, rule=fenced("rule", rule.text)) for rule in negative]
        answers = await run_all(or_failure(question) for question in asked)
        made: dict[str, Criterion] = {}
        for rule, answer in zip(negative, answers, strict=True):
            new = [] if isinstance(answer, GenerationFailed) else [(answer.rule, rule.category)]
            for opposite in self._unseen(new, seen, {_TURNED: rule.id}):
                made[rule.id] = opposite
                notes.append(f"rewritten: {rule.text!r} as {opposite.text!r}, because its weight was negative")
            if rule.id not in made:
                notes.append(f"dropped: {rule.text!r}, its weight was negative and it has no new opposite")
        gone = {rule.id for rule in negative} - set(made)
        return [made.get(rule.id, rule) for rule in rules if rule.id not in gone]

    async def _repaired(
        self,
        report: RuleRound,
        seen: list[Criterion],
        pairs: Sequence[PreferencePair],
        scores: RuleScores,
        held: NDArray[np.bool_],
    ) -> list[Criterion]:
        """New rules from the fitted pairs that the kept ones get wrong, or right by little."""
        rows = np.flatnonzero(scores.known(report.rules) & ~held)
        weights = [rule.weight for rule in report.rules]
        found = l1_rules.hard_pairs(weights, scores.differences(report.rules)[rows], self.low_margin)
        chosen = [int(rows[row]) for row in (*found.misranked, *found.low_margin)][: self.hard]
        if not chosen:
            return []
        lines = {id(pairs[row]): _scored(report.rules, scores.met(report.rules)[row]) for row in chosen}

        async def diagnose(pair: PreferencePair) -> Explained:
            return await self._about(pair, "diagnose", fenced("rules", lines[id(pair)]))

        drafts = await self._read([pairs[row] for row in chosen], diagnose)
        return await self._merged(drafts, self.top, seen)

    async def _explain(self, pair: PreferencePair) -> Explained:
        return await self._about(pair, "explain", fenced("reason", pair.rationale or "none given"))

    async def _about(self, pair: PreferencePair, step: str, known: str) -> Explained:
        where = f"pair {pair.id!r}"
        sources = labelled("Source", [await part_of(source, where) for source in pair.sources])
        answers = [(label, await part_of(one, where)) for label, one in zip("AB", pair.candidates, strict=True)]
        shown = display([*sources, *answers])
        return await self.ask(
            step,
            Explained,
            pictures=shown.pictures,
            check=lambda reply: check_wording([rule.rule for rule in reply.rules], pair.prompt),
            prompt=fenced_prompt(pair.prompt),
            answers=shown.text,
            preferred="AB"[pair.label],
            known=known,
        )

    async def _read(
        self, pairs: Sequence[PreferencePair], question: Callable[[PreferencePair], Awaitable[Explained]]
    ) -> list[DraftedRule]:
        """The drafts of all pairs, in their order."""
        answers = await answers_of((question(pair) for pair in pairs), self._where)
        return [rule for answer in answers if isinstance(answer, Explained) for rule in answer.rules]

    async def _merged(self, drafts: Sequence[DraftedRule], most: int, seen: list[Criterion]) -> list[Criterion]:
        """At most `most` rules out of the drafts that are not among those seen before, which they join."""
        new = self._unseen([(draft.rule, draft.category) for draft in drafts], list(seen), {})
        made: list[DraftedRule] = []
        for start in range(0, len(new), _CHUNK):
            listed = [*(rule.rule for rule in made), *(rule.text for rule in new[start : start + _CHUNK])]
            made = (await self.ask("merge", Merged, rules=numbered(listed), most=str(most))).rules[:most]
        return self._unseen([(rule.rule, rule.category) for rule in made], seen, {})

    def _unseen(
        self, drafts: Sequence[tuple[str, str]], seen: list[Criterion], extra: dict[str, Any]
    ) -> list[Criterion]:
        """Drafts (text, category) that repeat none of those seen, as criteria that are added to these."""
        made = [
            Criterion(id=slug(text), text=text.strip(), category=category_of(category), extra=extra)
            for text, category in drafts
        ]
        kept, _ = without_repeats([*seen, *made], self.encoder)
        new = with_unique_ids(kept)[len(seen) :]
        seen += new
        return new

    def _rubric(self, report: RuleRound, pairs: Sequence[PreferencePair]) -> Rubric:
        figures = {
            "accuracy": report.accuracy,
            "lam": report.lam,
            "pairs": report.pairs,
            "unknown_pairs": report.unknown,
        }
        evidence = tuple(pair.id for pair in pairs if pair.id)
        return Rubric(
            prompt="",
            criteria=report.rules,
            provenance=self._provenance(report.notes, round=report.round, evidence=evidence, extra=figures),
        )


def _scored(rules: Sequence[Criterion], met: NDArray[np.float64]) -> str:
    """One line per rule with its scores on A and on B, met [2, J]."""
    return "\n".join(
        f"- {rule.text} (A: {a:.2f}, B: {b:.2f})" for rule, a, b in zip(rules, met[0], met[1], strict=True)
    )
