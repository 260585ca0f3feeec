"""From verdicts to the numbers of a report: pure numpy, no drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mmrubric.bootstrap import Interval, bootstrap, paired_bootstrap
from mmrubric.report.model import AlignmentReport, Picture, PromptResult
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable, sample_completion, sample_pass_rate
from mmrubric.verdict import Verdict

Change = Literal["fixed", "broken", "kept", "missed", "unknown"]
Reader = Literal["judge", "second"]
Side = Literal["before", "after"]


@dataclass(frozen=True)
class PictureScore:
    """The checklist of one picture, read by one reader."""

    passed: np.ndarray
    """Float [C] in rubric order: 1 = as it should be, 0 = not, NaN = unknown."""
    rate: float
    """Passed / known in [0, 1]; NaN when nothing is known."""
    strict: bool
    """Whether every criterion holds; an unknown one does not."""

    @property
    def met(self) -> int:
        """Criteria that hold."""
        return int(np.nansum(self.passed))


def score(rubric: Rubric, sample_id: str, verdicts: Sequence[Verdict]) -> PictureScore:
    """The score of one picture. Criteria without a verdict are unknown."""
    table = ScoreTable.from_verdicts(rubric, [sample_id], verdicts)
    return PictureScore(table.passed[0], float(sample_pass_rate(table)[0]), bool(sample_completion(table)[0]))


@dataclass(frozen=True)
class PromptScore:
    """Both sides of one prompt."""

    before: list[PictureScore]
    after: list[PictureScore]
    kinds: list[str]
    """Criterion kind (category) of each column."""


@dataclass(frozen=True)
class KindRate:
    """Pass rate of one criterion kind: mean over the pictures that have a known one of it."""

    kind: str
    prompts: int
    before: Interval
    after: Interval
    difference: Interval
    """Paired by prompt."""


@dataclass(frozen=True)
class Comparison:
    """One reader's numbers on all prompts."""

    mean_pass_rate: tuple[float, float]
    """(before, after) in [0, 1]: mean over pictures of passed / known."""
    strict_completion: tuple[float, float]
    unknown_share: tuple[float, float]
    pass_difference: Interval
    strict_difference: Interval
    per_kind: list[KindRate]
    changes: dict[Change, int]
    """Criteria by what happened to them, over all pictures."""


@dataclass(frozen=True)
class Numbers:
    """All numbers of a report."""

    prompts: int
    pictures: int
    """Pictures evaluated per side."""
    judge: Comparison
    second: Comparison | None
    agreement: float
    """Share of verdicts known to both readers on which they agree, in [0, 1]; NaN without a second reader."""
    agreement_count: int
    scores: list[PromptScore] = field(repr=False)
    second_scores: list[PromptScore] | None = field(repr=False)


def finite(value: float | int | None) -> float | None:
    """The value for JSON: None where it is unknown (NaN)."""
    return None if value is None or not np.isfinite(value) else float(value)


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def listed(interval: Interval) -> list[float | None]:
    """`[low, mid, high]` for JSON, None where unknown."""
    return [finite(v) for v in interval]


def _table(scores: Sequence[PromptScore], side: Side, value: Callable[[PictureScore, list[str]], float]) -> np.ndarray:
    """`value` of every picture, [prompts, pictures]; NaN where unknown or where there is no such picture."""
    width = max(len(getattr(s, side)) for s in scores)
    table = np.full((len(scores), width), np.nan)
    for row, prompt in zip(table, scores, strict=True):
        for k, picture in enumerate(getattr(prompt, side)):
            row[k] = value(picture, prompt.kinds)
    return table


def _kind_rate(kind: str) -> Callable[[PictureScore, list[str]], float]:
    """Share of a kind's known criteria that hold in a picture; NaN where it has none."""

    def rate(picture: PictureScore, kinds: list[str]) -> float:
        return _mean(picture.passed[[k for k, name in enumerate(kinds) if name == kind]])

    return rate


def _changes(scores: Sequence[PromptScore]) -> dict[Change, int]:
    counts: dict[Change, int] = {"fixed": 0, "broken": 0, "kept": 0, "missed": 0, "unknown": 0}
    for prompt in scores:
        for before, after in zip(prompt.before, prompt.after, strict=True):
            for b, a in zip(before.passed, after.passed, strict=True):
                counts[change(b, a)] += 1
    return counts


def change(before: float, after: float) -> Change:
    """What happened to one criterion between two pictures; each value is 1, 0 or NaN."""
    if not (np.isfinite(before) and np.isfinite(after)):
        return "unknown"
    if before:
        return "kept" if after else "broken"
    return "fixed" if after else "missed"


def _compare(scores: list[PromptScore], resamples: int, seed: int) -> Comparison:
    def both(value: Callable[[PictureScore, list[str]], float]) -> tuple[np.ndarray, np.ndarray]:
        return _table(scores, "before", value), _table(scores, "after", value)

    def unknown(side: Side) -> float:
        values = np.concatenate([p.passed for s in scores for p in getattr(s, side)])
        return float(np.isnan(values).mean())

    rate = both(lambda picture, _: picture.rate)
    strict = both(lambda picture, _: float(picture.strict))
    # Three intervals for each kind and reader: fewer resamples keep the report quick, and plots show no more.
    fewer = min(resamples, 2_000)
    per_kind = []
    for kind in dict.fromkeys(kind for s in scores for kind in s.kinds):
        before, after = both(_kind_rate(kind))
        per_kind.append(
            KindRate(
                kind,
                int((np.isfinite(before) | np.isfinite(after)).any(axis=1).sum()),
                bootstrap(before, seed, fewer),
                bootstrap(after, seed, fewer),
                paired_bootstrap(before, after, seed, fewer),
            )
        )
    return Comparison(
        (_mean(rate[0]), _mean(rate[1])),
        (_mean(strict[0]), _mean(strict[1])),
        (unknown("before"), unknown("after")),
        paired_bootstrap(*rate, seed, resamples),
        paired_bootstrap(*strict, seed, resamples),
        per_kind,
        _changes(scores),
    )


def _scores(results: Sequence[PromptResult], reader: Reader) -> list[PromptScore]:
    def side(rubric: Rubric, pictures: Sequence[Picture]) -> list[PictureScore]:
        return [score(rubric, p.sample_id, p.verdicts if reader == "judge" else p.second) for p in pictures]

    return [
        PromptScore(side(r.rubric, r.before), side(r.rubric, r.after), [c.category for c in r.rubric.criteria])
        for r in results
    ]


def agreement(first: Sequence[PromptScore], second: Sequence[PromptScore]) -> tuple[float, int]:
    """Share of verdicts known to both readers that agree, and how many those are."""
    same = both = 0
    for a, b in zip(first, second, strict=True):
        for p, q in zip([*a.before, *a.after], [*b.before, *b.after], strict=True):
            known = np.isfinite(p.passed) & np.isfinite(q.passed)
            both += int(known.sum())
            same += int((p.passed[known] == q.passed[known]).sum())
    return (same / both if both else float("nan")), both


def compute(report: AlignmentReport, *, resamples: int = 10_000, seed: int = 0) -> Numbers:
    """All numbers of a report.

    Args:
        report: checked (`report.check()`).
        resamples: bootstrap resamples of prompts.
        seed: of the bootstrap, so that the same run gives the same interval.
    """
    scores = _scores(report.results, "judge")
    second = _scores(report.results, "second") if report.second_reader is not None else None
    share, count = agreement(scores, second) if second is not None else (float("nan"), 0)
    return Numbers(
        prompts=len(scores),
        pictures=sum(len(s.before) for s in scores),
        judge=_compare(scores, resamples, seed),
        second=_compare(second, resamples, seed) if second is not None else None,
        agreement=share,
        agreement_count=count,
        scores=scores,
        second_scores=second,
    )


def _side(comparison: Comparison, index: int) -> dict[str, float | None]:
    return {
        "mean_pass_rate": finite(comparison.mean_pass_rate[index]),
        "strict_completion": finite(comparison.strict_completion[index]),
    }


def _sides(comparison: Comparison) -> dict[str, Any]:
    return {
        "before": _side(comparison, 0),
        "after": _side(comparison, 1),
        "difference": {
            "mean_pass_rate": listed(comparison.pass_difference),
            "strict_completion": listed(comparison.strict_difference),
        },
        "unknown_share": {
            "before": finite(comparison.unknown_share[0]),
            "after": finite(comparison.unknown_share[1]),
        },
        "per_kind": {
            k.kind: {
                "prompts": k.prompts,
                "before": listed(k.before),
                "after": listed(k.after),
                "difference": listed(k.difference),
            }
            for k in comparison.per_kind
        },
    }


def as_json(report: AlignmentReport, numbers: Numbers) -> dict[str, Any]:
    """The content of report.json: plain JSON values, None where a number is unknown.

    `before`, `after`, `difference` (95 % bootstrap paired by prompt, `[low, mid, high]`), `judged_images`,
    `unknown_share`, `seconds` and `settings` are fixed; the other keys stand beside them.
    """
    second = None
    if numbers.second is not None:
        second = {
            "id": report.second_reader,
            **_sides(numbers.second),
            "agreement": finite(numbers.agreement),
            "verdicts_compared": numbers.agreement_count,
        }
    return {
        "title": report.title,
        **_sides(numbers.judge),
        "judged_images": report.judged_images,
        "seconds": round(float(report.seconds), 3),
        "settings": dict(report.settings),
        "prompts": numbers.prompts,
        "pictures_per_side": numbers.pictures,
        "held_out": report.held_out,
        "judge": report.judge,
        "train_judge": report.train_judge,
        "allow_same_judge": report.allow_same_judge,
        "second_reader": second,
        "changes": dict(numbers.judge.changes),
        "curve": [
            {
                "step": p.step,
                "reward": None if p.reward is None else finite(p.reward),
                "strict_completion": None if p.strict is None else finite(p.strict),
            }
            for p in report.curve
        ],
        "reliability": {
            key: {
                "summary": section.summary,
                "measures": [
                    {
                        "name": m.name,
                        "value": finite(m.value) if isinstance(m.value, float) else m.value,
                        "unit": m.unit,
                        "note": m.note,
                    }
                    for m in section.measures
                ],
            }
            for key, _, section in report.reliability.items()
        },
        "timings": {name: round(float(s), 3) for name, s in report.timings.items()},
        "notes": list(report.notes),
    }
