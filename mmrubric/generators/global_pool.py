"""RuCL's generator: one pool of criteria for a whole data set, screened by how often they apply and pass.

A teacher writes candidates once, so the cost does not grow with the data set. Source: RuCL, arXiv 2602.21628, stage
one; the prompt is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from mmrubric.checks import number
from mmrubric.errors import InputError, RunError
from mmrubric.generators import tiers
from mmrubric.generators.base import registry
from mmrubric.generators.fitting import GlobalGenerator, Sample, needs_judge, scores_of
from mmrubric.generators.items import category_of, slug, with_unique_ids
from mmrubric.generators.llm import fenced_prompt
from mmrubric.generators.showing import check_wording, display, part_of
from mmrubric.judging import Candidate
from mmrubric.prompt import Media, checked_sources
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import Encoder, duplicates
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

_TAGS = Tags(Construction.response_grounded, Optimisation.verify, Signal.output_level, Loop.none)


@dataclass(frozen=True)
class PoolExample:
    """A prompt of the data set with an answer of the base model."""

    prompt: str
    candidate: Candidate
    category: str = "general"
    """Kind of prompt, as the teacher is told."""
    answer: str = ""
    """The right answer, where there is one; shown to the teacher only."""
    sources: tuple[Media, ...] = ()
    """Source images of an edit, or pictures that a question is about."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", checked_sources(self.sources, f"example {self.prompt[:80]!r}"))


class PoolItem(BaseModel):
    """One entry of the teacher's list."""

    criterion: str
    category: str = "general"
    key: str = ""


class PoolList(BaseModel):
    """The teacher's list."""

    criteria: list[PoolItem]


@registry.register("global_pool", _TAGS)
@dataclass
class GlobalPool(GlobalGenerator):
    """`fit(examples, judge)` writes and screens the pool, `generate` gives it to every prompt; see `table`.

    Args:
        pool: a saved pool (`save`), as a path or a `Rubric`; it can be used without `fit` and without a model.
        candidates: statements that the teacher writes.
        shots: examples that the teacher sees, drawn at random with `seed`.
        answers: most examples that the judge sees, drawn likewise.
        applicable: least share of the answers to which a kept criterion applies, in [0, 1].
        cut: pass rate from which a criterion is easy, in [0, 1].
        exclude: categories that something else verifies; their criteria are dropped.
        max_failure_share: most verdicts in which the judge may fail, in [0, 1].
        encoder: finds repeats by meaning; None = by words.

    Raises:
        InputError: see `GlobalGenerator`, a value out of range, or a saved pool without two tiers.
    """

    NAME: ClassVar[str] = "global_pool/1"
    PROMPTS: ClassVar[str] = "global_pool_v1"
    HOLES: ClassVar[Mapping[str, Sequence[str]]] = {"write": ("categories", "examples", "count")}
    SAVED: ClassVar[str] = "pool"

    _: KW_ONLY
    pool: Rubric | str | Path = ""
    candidates: int = 20
    shots: int = 4
    answers: int = 2000
    applicable: float = tiers.APPLICABLE
    cut: float = tiers.CUT
    exclude: Collection[str] = ()
    max_failure_share: float = 0.05
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("candidates", "shots", "answers"):
            number(f"{self._where}, {name}", getattr(self, name), low=1)
        for name in ("applicable", "cut", "max_failure_share"):
            number(f"{self._where}, {name}", getattr(self, name), 0.0, 1.0)
        if isinstance(self.exclude, str):
            raise InputError(f"{self._where}: exclude must be a list of categories, got the text {self.exclude!r}")
        self.table: list[tiers.Screened] = []
        """Every candidate with its figures, kept or not, of the last `fit`."""

    def check(self, rubric: Rubric) -> None:
        tiers.TieredRubric(rubric)

    async def fit(self, examples: Sequence[PoolExample], judge: Any = None) -> None:
        """Write the candidates, measure them on the answers, keep the screened ones.

        Args:
            examples: prompts of the data set with answers of the base model; several answers to a prompt are several
                examples.
            judge: a `Judge` that says where a question does not apply.

        Raises:
            InputError: examples or judge are of the wrong kind, or a tier stays empty.
            GenerationFailed: the teacher gave no usable list.
            RunError: the judge failed too often.
        """
        self._needs_model()
        judge = needs_judge(judge, self._where)
        for example in examples:
            if not isinstance(example, PoolExample):
                raise InputError(f"{self._where}: fit takes PoolExample, got {type(example).__name__}")
        if not examples:
            raise InputError(f"{self._where}: fit needs examples")
        order = np.random.default_rng(self.seed).permutation(len(examples))
        criteria = await self._candidates(examples, [examples[index] for index in order[: self.shots]])
        judged = [examples[index] for index in sorted(order[: self.answers])]
        scores = await scores_of(judge, [Sample(e.prompt, e.candidate, e.sources) for e in judged], criteria)
        if scores.failed.mean() > self.max_failure_share:
            raise RunError(
                f"{self._where}: judge {judge.id!r} failed on {scores.failed.mean():.1%} of the verdicts; at most "
                f"{self.max_failure_share:.1%} may be (max_failure_share)"
            )
        excluded = {category_of(name) for name in self.exclude}
        rates = tiers.rates_of(scores.met, scores.failed)
        self.table = tiers.screen(criteria, rates, self.applicable, self.cut, excluded)
        kept = tiers.TieredRubric.of([row.criterion for row in self.table if not row.why_not]).rubric
        notes = [f"dropped: {row.criterion.text!r}, {row.why_not}" for row in self.table if row.why_not]
        figures = {"judge": judge.id, "answers": len(judged), "failures": int(scores.failed.sum())}
        self.kept = kept.model_copy(update={"provenance": self._provenance(notes, extra=figures)})

    async def _candidates(self, examples: Sequence[PoolExample], shown: Sequence[PoolExample]) -> list[Criterion]:
        parts, lines = [], []
        for count, example in enumerate(shown, 1):
            where = f"example {count}"
            one, listed = len(example.sources) == 1, []
            for place, source in enumerate(example.sources, 1):
                label = f"Source {count}" if one else f"Source {count}.{place}"
                listed.append((label, await part_of(source, where)))
            listed.append((f"Answer {count}", await part_of(example.candidate, where)))
            seen = display(listed)
            parts += seen.pictures
            lines.append(f"Example {count} ({category_of(example.category)}):\n{fenced_prompt(example.prompt)}")
            lines.append(seen.text)
            if example.answer:
                lines.append(f"Right answer {count}:\n{fenced('answer', example.answer)}")
        reply = await self.ask(
            "write",
            PoolList,
            pictures=parts,
            check=self._check,
            categories=", ".join(sorted({category_of(example.category) for example in examples})),
            examples="\n".join(lines),
            count=str(self.candidates),
        )
        made = [
            Criterion(
                id=slug(item.key or item.criterion), text=item.criterion.strip(), category=category_of(item.category)
            )
            for item in reply.criteria[: self.candidates]
        ]
        return with_unique_ids(made)

    def _check(self, reply: PoolList) -> None:
        texts = [item.criterion for item in reply.criteria]
        check_wording(texts, "")
        if repeats := duplicates(texts, encoder=self.encoder):
            later, earlier = repeats[0]
            raise ValueError(f"statement {later + 1} repeats statement {earlier + 1}; write another one")
        if len(texts) < self.candidates:
            raise ValueError(f"{len(texts)} statements; give exactly {self.candidates}")
