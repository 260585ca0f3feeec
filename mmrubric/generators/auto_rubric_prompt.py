"""Statements of a prompt alone, or with human examples in sight, and the consistency check that they pass.

Source: Auto-Rubric as Reward, arXiv 2605.08354 (five criteria, examples shown as they are); the check is ours, since
the paper's verification of rubrics without pairs is not published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from mmrubric.generators.auto_rubric_pairs import Statements
from mmrubric.generators.auto_rubric_verify import ShownPair
from mmrubric.generators.items import slug, without_repeats
from mmrubric.generators.llm import Asked, Draft, GenerationFailed, LLMGenerator, fenced_prompt
from mmrubric.generators.showing import Pictures, check_wording, numbered, sources_shown
from mmrubric.judging import run_all
from mmrubric.prompt_file import fenced
from mmrubric.rubric import Criterion
from mmrubric.similar import Encoder


class Fault(BaseModel):
    """A statement that should not stand, by its number."""

    statement: int
    why: str


class Faults(BaseModel):
    """What one sample holds against a list; usually nothing."""

    faults: list[Fault]


@dataclass(frozen=True)
class Checked:
    """What the samples say together."""

    known: bool
    """Whether most samples gave an answer."""
    faults: dict[int, str]
    """Index of a statement that at least half of them refused -> why."""


@dataclass(frozen=True)
class PromptWriter:
    """Writes the statements of one prompt.

    Args:
        asker: generator whose steps `write`, `check` and `amend` are asked.
        count: statements.
        samples: of the check; 0 = none.
        heat: temperature of these.
        rounds: how often refused statements are written anew.
        encoder: finds repeats by meaning; None = by words.
    """

    asker: LLMGenerator
    count: int
    samples: int
    heat: float
    rounds: int
    encoder: Encoder | None = None

    async def draft(self, asked: Asked, exemplars: Sequence[ShownPair]) -> Draft:
        """The criteria, with the exemplars' ids as evidence.

        Raises:
            GenerationFailed: nothing usable was written, or every statement was refused.
        """
        statements = await self._write(asked, exemplars)
        notes: list[str] = []
        verified, refinements = False, 0
        if self.samples:
            statements, refinements, verified = await self._verified(asked, statements, notes)
        criteria = [Criterion(id=slug(text), text=" ".join(text.split())) for text in statements]
        kept, repeats = without_repeats(criteria, self.encoder)
        notes += [f"dropped: {later.text!r} repeats {earlier.text!r}" for later, earlier in repeats]
        provenance = {
            "evidence": tuple(pair.id for pair in exemplars),
            "verified_by": "consistency" if verified else "",
            "refinements": refinements,
        }
        return Draft(kept, tuple(notes), provenance)

    async def _write(self, asked: Asked, exemplars: Sequence[ShownPair]) -> list[str]:
        pictures, examples = self._examples(exemplars)
        reply = await self.asker.ask(
            "write",
            Statements,
            pictures=(*pictures, *sources_shown(asked.sources)),
            check=lambda reply: self._check(reply, asked.prompt, self.count),
            prompt=fenced_prompt(asked.prompt),
            examples=examples,
            count=str(self.count),
        )
        return reply.criteria

    async def _verified(self, asked: Asked, statements: list[str], notes: list[str]) -> tuple[list[str], int, bool]:
        """Statements that pass, how often some were written anew, and whether the check could be made."""
        for refinements in range(self.rounds + 1):
            checked = await self._checked(asked, statements)
            if not checked.known:
                notes.append("not verified: most samples of the consistency check failed")
                return statements, refinements, False
            if not checked.faults:
                return statements, refinements, True
            if refinements < self.rounds:
                statements = await self._amended(asked, statements, checked.faults, refinements)
        notes += [f"dropped: {statements[index]!r}: {why}" for index, why in checked.faults.items()]
        return [text for index, text in enumerate(statements) if index not in checked.faults], self.rounds, True

    async def _checked(self, asked: Asked, statements: Sequence[str]) -> Checked:
        samples = await run_all(self._sample(asked, statements, number) for number in range(self.samples))
        known = [sample for sample in samples if sample is not None]
        votes = Counter(index for sample in known for index in sample)
        refused = sorted(index for index, count in votes.items() if 2 * count >= len(known))
        faults = {index: next(sample[index] for sample in known if index in sample) for index in refused}
        return Checked(2 * len(known) > self.samples, faults)

    async def _sample(self, asked: Asked, statements: Sequence[str], number: int) -> dict[int, str] | None:
        """Index -> fault, as one sample sees it; None when the model fails, which refuses nothing."""

        def check(reply: Faults) -> None:
            wrong = [fault.statement for fault in reply.faults if not 1 <= fault.statement <= len(statements)]
            if wrong:
                raise ValueError(f"statement {wrong[0]} is not in the list of {len(statements)}")

        try:
            reply = await self.asker.ask(
                "check",
                Faults,
                pictures=sources_shown(asked.sources),
                check=check,
                temperature=self.heat,
                repeat=number,
                prompt=fenced_prompt(asked.prompt),
                statements=numbered(statements),
            )
        except GenerationFailed:
            return None
        return {fault.statement - 1: fault.why for fault in reply.faults}

    async def _amended(self, asked: Asked, statements: Sequence[str], faults: dict[int, str], number: int) -> list[str]:
        """The list with the refused statements written anew."""
        reply = await self.asker.ask(
            "amend",
            Statements,
            pictures=sources_shown(asked.sources),
            check=lambda reply: self._check(reply, asked.prompt, len(faults)),
            repeat=number,
            prompt=fenced_prompt(asked.prompt),
            statements=numbered(statements),
            faults=fenced("faults", "\n".join(f"{index + 1}: {why}" for index, why in sorted(faults.items()))),
            count=str(len(faults)),
        )
        new = dict(zip(sorted(faults), reply.criteria, strict=True))
        return [new.get(index, text) for index, text in enumerate(statements)]

    def _examples(self, exemplars: Sequence[ShownPair]) -> tuple[Pictures, str]:
        """Human examples as they are: prompt, what was preferred and what was not, and why."""
        if not exemplars:
            return (), ""
        pictures: Pictures = ()
        lines = []
        for number, pair in enumerate(exemplars, 1):
            labels = [f"Example {number}, candidate {place + 1}" for place in (0, 1)]
            seen = pair.shown(labels=labels)
            pictures += tuple((self._renamed(label, number), part) for label, part in seen.pictures)
            lines += [f"Example {number}. Prompt:", fenced_prompt(pair.prompt), seen.text]
            assert pair.preferred is not None, "examples are labelled"
            lines.append(f"Preferred: candidate {pair.preferred + 1}.")
            lines += ["Reason:", fenced("reason", pair.rationale)] if pair.rationale else []
        return pictures, self.asker.texts.fill("examples", "question", examples="\n".join(lines))

    def _renamed(self, label: str, number: int) -> str:
        return label if label.startswith("Example") else f"Example {number}: {label}"

    def _check(self, reply: Statements, prompt: str, count: int) -> None:
        if len(reply.criteria) != count:
            raise ValueError(f"{len(reply.criteria)} criteria; give exactly {count}")
        check_wording(reply.criteria, prompt)
