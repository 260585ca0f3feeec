"""Fills the four reliability sections from what a run recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmrubric.report.model import Measure, PromptResult, Section
from mmrubric.report.numbers import Comparison, Numbers, finite
from mmrubric.report.probes import ProbeResult
from mmrubric.report.wording import percent, points

SATURATED = (0.05, 0.95)
"""A criterion kind outside this range of pass rates tells pictures apart only rarely."""


@dataclass(frozen=True)
class Count:
    """A share with what it was counted on."""

    hits: int
    total: int
    note: str = ""

    @property
    def share(self) -> float | None:
        """hits / total in [0, 1], None when nothing was counted."""
        return self.hits / self.total if self.total else None


def rubric_quality(results: Sequence[PromptResult], *, dropped: int | None = None, note: str = "") -> Section:
    """How good the checklists are.

    Args:
        results: all evaluated prompts.
        dropped: criteria that the generator or a filter removed; None = not recorded.
        note: about the verification source.
    """
    rubrics = [r.rubric for r in results]
    sizes = [len(r.criteria) for r in rubrics]
    criteria = [c for r in rubrics for c in r.criteria]
    duplicates = sum(len(r.criteria) - len({c.text.strip().casefold() for c in r.criteria}) for r in rubrics)
    ruled = sum(c.verifier != "vlm" for c in criteria)
    generators = sorted({str(r.provenance.generator) for r in rubrics if r.provenance and r.provenance.generator})
    verified = sorted({str(r.provenance.verified_by) for r in rubrics if r.provenance and r.provenance.verified_by})
    source = ", ".join(generators) or "not recorded"
    return Section(
        f"{len(criteria):,} criteria for {len(rubrics):,} prompts, {np.mean(sizes):.1f} per checklist, "
        + ("none of them said twice." if not duplicates else f"{duplicates} of them said twice in one checklist."),
        [
            Measure("criteria per checklist", f"{min(sizes)} to {max(sizes)}, mean {np.mean(sizes):.1f}", "text"),
            Measure("duplicates within a checklist", duplicates, "count", look=duplicates > 0),
            Measure("checked by a rule, not by opinion", ruled / len(criteria), "share"),
            Measure("written by", source, "text"),
            Measure("verified by", ", ".join(verified) or "not recorded", "text", note),
            Measure("criteria dropped", "not recorded" if dropped is None else dropped, "count"),
        ],
    )


def judge_fidelity(
    results: Sequence[PromptResult],
    numbers: Numbers,
    *,
    repeats: Count | None = None,
    labels: Count | None = None,
    order: Count | str | None = None,
    same_judge: bool = False,
) -> Section:
    """How far the judge can be trusted.

    Args:
        results: all evaluated prompts with their verdicts.
        numbers: of the same results.
        repeats: verdicts that came out the same when asked again.
        labels: verdicts that equal known ground truth.
        order: pairs whose outcome did not depend on which picture came first; a text says why that does not
            apply.
        same_judge: whether the judge that trained also evaluated.
    """
    verdicts = [v for r in results for p in (*r.before, *r.after) for v in p.verdicts]
    failures = sum(v.failure is not None for v in verdicts)
    unknown = numbers.judge.unknown_share
    agreement = finite(numbers.agreement)
    sentence = "The judge that trained also evaluated. It" if same_judge else "The judge"
    sentence += f" gave no answer on {percent(sum(unknown) / 2)} of the criteria"
    if agreement is not None:
        sentence += f", and the second reader agrees with it on {percent(agreement)}"
    disagreement = Measure(
        "agreement with the second reader",
        agreement,
        "share",
        f"on {numbers.agreement_count:,} verdicts known to both" if agreement is not None else "no second reader",
        look=agreement is not None and agreement < 0.9,
    )
    return Section(
        sentence + ".",
        [
            Measure("failed verdicts", failures / len(verdicts) if verdicts else None, "share", look=failures > 0),
            Measure("unknown verdicts, before", finite(unknown[0]), "share", look=unknown[0] > 0.05),
            Measure("unknown verdicts, after", finite(unknown[1]), "share", look=unknown[1] > 0.05),
            _counted("same answer when asked again", repeats, below=0.95),
            _counted("agreement with ground truth", labels, below=0.95),
            disagreement,
            _counted("pairs that agree in both orders", order, below=0.95),
        ],
    )


def _counted(name: str, count: Count | str | None, *, below: float) -> Measure:
    if isinstance(count, str):
        return Measure(name, "does not apply", "text", count)
    if count is None or count.share is None:
        return Measure(name, None, "share", "not in this run")
    note = f"{count.hits:,} of {count.total:,}" + (f", {count.note}" if count.note else "")
    return Measure(name, count.share, "share", note, look=count.share < below)


def polarisation(rewards: np.ndarray) -> float | None:
    """Share of known rewards that are 0 or at least 0.99 (DR-rubric, arXiv 2606.01091); None without any.

    Args:
        rewards: in [0, 1], any shape, NaN = not scorable.
    """
    known = np.asarray(rewards, float)
    known = known[np.isfinite(known)]
    return float(((known == 0) | (known >= 0.99)).mean()) if known.size else None


def saturation_and_ties(
    numbers: Numbers,
    *,
    tie_share: float | None = None,
    zero_variance_share: float | None = None,
    note: str = "",
) -> Section:
    """Whether the criteria can still tell pictures apart.

    Args:
        numbers: of all results.
        tie_share: share of training pairs (or groups) that were ties, in [0, 1].
        zero_variance_share: share of training groups whose rewards were all equal.
        note: where the two shares come from.
    """
    comparison: Comparison = numbers.judge
    low, high = SATURATED
    full = [k.kind for k in comparison.per_kind if k.after.mid >= high]
    empty = [k.kind for k in comparison.per_kind if k.after.mid <= low]
    rates = {side: np.array([p.rate for s in numbers.scores for p in getattr(s, side)]) for side in ("before", "after")}
    summary = "No criterion kind is saturated after alignment"
    if full or empty:
        parts = ([f"nearly always met: {', '.join(full)}"] if full else []) + (
            [f"nearly never met: {', '.join(empty)}"] if empty else []
        )
        summary = "After alignment " + "; ".join(parts)
    if tie_share is not None:
        summary += f". {percent(tie_share)} of the training comparisons were ties and taught nothing"
    measures = [
        Measure(
            f"pass rate of '{k.kind}', before and after",
            f"{percent(k.before.mid)} to {percent(k.after.mid)}",
            "text",
            "saturated" if k.kind in full or k.kind in empty else "",
        )
        for k in comparison.per_kind
    ]
    unrecorded = "not recorded"
    return Section(
        summary + ".",
        [
            *measures,
            Measure(
                "training comparisons that tied",
                tie_share,
                "share",
                note if tie_share is not None else unrecorded,
            ),
            Measure(
                "training groups without any difference",
                zero_variance_share,
                "share",
                note if zero_variance_share is not None else unrecorded,
                look=zero_variance_share is not None and zero_variance_share > 0.5,
            ),
            Measure(
                "pictures that meet all or nothing, before",
                polarisation(rates["before"]),
                "share",
                "polarisation: pass rate 0, or at least 0.99",
            ),
            Measure("pictures that meet all or nothing, after", polarisation(rates["after"]), "share"),
        ],
    )


def _names(probes: Sequence[ProbeResult]) -> str:
    return ", ".join(p.name for p in probes)


def attack_probes(probes: Sequence[ProbeResult]) -> Section:
    """What happens when a picture tries to talk the judge round; one line per probe."""
    fooled = [p for p in probes if p.hackable]
    tried = [p for p in probes if p.pictures]
    if fooled:
        summary = f"These changes raise a picture's score without improving it: {_names(fooled)}."
    elif tried:
        summary = f"None of the {len(tried)} probes that were run raised a picture's pass rate."
        if any(p.gain.mid > 0 for p in tried):
            summary = f"None of the {len(tried)} probes that were run raised the pass rate by more than 5 points."
    else:
        summary = "No probe could be run."
    measures = [
        Measure(
            p.name,
            finite(p.gain.mid) if p.pictures else "not run",
            "points" if p.pictures else "text",
            (
                f"{p.note}; {p.pictures} pictures, 95 % interval {points(p.gain.low)} to {points(p.gain.high)} points"
                if p.pictures
                else p.note
            ),
            look=p.hackable,
        )
        for p in probes
    ]
    return Section(summary, measures)
