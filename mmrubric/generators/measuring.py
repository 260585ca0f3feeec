"""How well criteria tell a reference from candidates, asked of a judge (SibylSense, arXiv 2602.20751)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrubric.errors import InputError
from mmrubric.generators.fitting import Sample, scores_of
from mmrubric.judging import Candidate, Judge
from mmrubric.memory import gap as gap_of
from mmrubric.pairs import PreferencePair
from mmrubric.prompt import Media, checked_sources
from mmrubric.rubric import Criterion
from mmrubric.scores import Floats, weighted_mean
from mmrubric.similar import facts


@dataclass(frozen=True)
class MemoryExample:
    """A prompt with a good answer and weaker ones.

    Raises:
        InputError: no candidates.
    """

    prompt: str
    reference: Candidate
    """A preferred or curated image, or a stronger model's."""
    candidates: tuple[Candidate, ...]
    """Of the policy that is to be trained."""
    sources: tuple[Media, ...] = ()
    """Source images of an edit."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", checked_sources(self.sources, f"example {self.prompt[:80]!r}"))
        object.__setattr__(self, "candidates", tuple(self.candidates))
        if not self.candidates:
            raise InputError(f"example {self.prompt[:80]!r}: field candidates is empty; give at least one")

    @classmethod
    def of(cls, example: MemoryExample | PreferencePair) -> MemoryExample:
        """The preferred candidate of a pair is the reference, the other one the candidate."""
        if isinstance(example, PreferencePair):
            return cls(example.prompt, example.better, (example.worse,), example.sources)
        if isinstance(example, MemoryExample):
            return example
        raise InputError(f"fit takes MemoryExample or PreferencePair, got {type(example).__name__}")


@dataclass(frozen=True)
class Measured:
    """K criteria on one example."""

    gap: Floats
    """[K] NaN = unknown."""
    alpha: Floats
    """[K] gap less the penalty for noise."""
    reference: Floats
    """[K] score of the reference."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """[K] False where the judge failed, or has nothing to compare: no evidence, which is not the same as 0."""
        return ~np.isnan(self.alpha)


async def measure(
    judge: Judge, example: MemoryExample, criteria: Sequence[Criterion], lam: float, repeats: int
) -> Measured:
    """Score reference and candidates under every criterion.

    A criterion on which the judge failed once is unknown. A candidate to which it does not apply is left out.

    Args:
        lam: weight of the noise; 0 = one evaluation.
        repeats: evaluations where the judge does not just say yes or no; 1 = noise is not measured.
    """
    answers = (example.reference, *example.candidates)
    samples = [Sample(example.prompt, answer, example.sources) for answer in answers]
    runs = [await scores_of(judge, samples, criteria)]
    binary = gap_of.is_binary(runs[0].met)
    if lam > 0.0 and not binary:
        runs += [await scores_of(judge, samples, criteria) for _ in range(repeats - 1)]
    met = np.stack([run.met for run in runs])
    failed = np.any([run.failed.any(axis=0) for run in runs], axis=0)
    mean = weighted_mean(np.moveaxis(met, 0, -1), np.ones(len(runs)))
    gap = np.where(failed, np.nan, gap_of.gaps(mean[0], mean[1:]))
    return Measured(gap, gap_of.alphas(gap, gap_of.spread(met), lam, binary=binary), mean[0])


def states_more(criterion: str, prompt: str, reference: Candidate) -> bool:
    """Whether a criterion holds numbers, colours, directions or quotes that the prompt does not.

    Those of a text that is the reference, or any where the reference is a picture, whose facts are not at hand.
    """
    added = facts(criterion) - facts(prompt) - {"not"}
    return bool(added & facts(reference) if isinstance(reference, str) else added)
