import math

import numpy as np
import pytest

from mmrubric.report import (
    AlignmentReport,
    CurvePoint,
    Measure,
    Picture,
    PromptResult,
    Reliability,
    Section,
    compute,
)
from mmrubric.report.numbers import as_json, change
from mmrubric.report.reliability import polarisation
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure, Verdict


def _result(name: str, before: list[float | None], after: list[float | None], second: list[float] | None = None):
    rubric = Rubric(
        prompt=name,
        criteria=tuple(
            Criterion(id=str(k), text=f"statement {k}", category="object" if k == 0 else "count")
            for k in range(len(before))
        ),
    )

    def picture(side: str, met: list[float | None]) -> Picture:
        sample = f"{name}-{side}"
        verdicts = [
            Verdict(sample, str(k), m, failure=None if m is not None else Failure.timeout) for k, m in enumerate(met)
        ]
        # In reverse order: the join is by id.
        return Picture(sample, verdicts[::-1], [Verdict(sample, str(k), m) for k, m in enumerate(second or [])])

    return PromptResult(name, name, rubric, [picture("before", before)], [picture("after", after)])


def _report(results: list[PromptResult], **changes: object) -> AlignmentReport:
    values = dict(title="t", results=results, settings={"a": {"b": 1}}, seconds=1.0, judged_images=2, judge="j")
    return AlignmentReport(**{**values, "reliability": Reliability(), **changes})  # type: ignore[arg-type]


def test_pass_rate_completion_and_unknown_share_by_hand():
    # p: 1 of 2, then 2 of 2.  q: known 1 of 1 (one unknown), then 0 of 2.
    # pass rate before (1/2 + 1)/2 = .75, after (1 + 0)/2 = .5; complete before 0 (unknown is not), after 1/2.
    # difference: pass (+.5, -1) mean -.25; complete (+1, 0) mean .5; unknown 1 of 4, then 0.
    report = _report([_result("p", [1, 0], [1, 1]), _result("q", [1, None], [0, 0])])
    numbers = compute(report, resamples=500).judge
    assert numbers.mean_pass_rate == (0.75, 0.5)
    assert numbers.strict_completion == (0.0, 0.5)
    assert numbers.pass_difference.mid == -0.25
    assert numbers.strict_difference.mid == 0.5
    assert numbers.unknown_share == (0.25, 0.0)
    # Criteria: p0 kept, p1 fixed, q0 broken, q1 unknown.
    assert numbers.changes == {"fixed": 1, "broken": 1, "kept": 1, "missed": 0, "unknown": 1}


def test_rates_by_kind_leave_out_what_is_unknown():
    # object: before (1, 1), after (1, 0).  count: before 0 (q unknown), after (1, 0); paired on p alone: +1.
    report = _report([_result("p", [1, 0], [1, 1]), _result("q", [1, None], [0, 0])])
    kinds = {k.kind: k for k in compute(report, resamples=500).judge.per_kind}
    assert (kinds["object"].before.mid, kinds["object"].after.mid) == (1.0, 0.5)
    assert (kinds["count"].before.mid, kinds["count"].after.mid) == (0.0, 0.5)
    assert kinds["count"].difference.mid == 1.0


def test_second_reader_agreement_counts_known_verdicts_only():
    # Second reader: 1 everywhere. p: judge (1, 0) and (1, 1), 3 of 4 agree. q: (1, unknown), (0, 0): 1 of 3.
    results = [_result("p", [1, 0], [1, 1], [1, 1]), _result("q", [1, None], [0, 0], [1, 1])]
    numbers = compute(_report(results, second_reader="s"), resamples=500)
    assert (numbers.agreement, numbers.agreement_count) == (pytest.approx(4 / 7), 7)
    assert compute(_report(results), resamples=500).second is None


def test_json_has_the_fixed_keys_and_no_nan():
    one = Section("fine", [Measure("share", math.nan, "share")])
    sections = Reliability(one, one, one, one)
    report = _report([_result("p", [None, None], [1, 1])], curve=[CurvePoint(1, math.nan)], reliability=sections)
    data = as_json(report, compute(report, resamples=500))
    assert data["before"] == {"mean_pass_rate": None, "strict_completion": 0.0}
    assert data["after"] == {"mean_pass_rate": 1.0, "strict_completion": 1.0}
    assert data["difference"]["mean_pass_rate"] == [None, None, None]
    assert data["difference"]["strict_completion"] == [None, 1.0, None]  # one prompt has no spread
    assert data["unknown_share"] == {"before": 1.0, "after": 0.0}
    assert (data["judged_images"], data["seconds"], data["settings"]) == (2, 1.0, {"a": {"b": 1}})
    assert data["curve"][0]["reward"] is None
    assert data["reliability"]["attack_probes"]["measures"][0]["value"] is None


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [(0, 1, "fixed"), (1, 0, "broken"), (1, 1, "kept"), (0, 0, "missed"), (np.nan, 1, "unknown")],
)
def test_change(before: float, after: float, what: str):
    assert change(before, after) == what


def test_polarisation_of_the_published_example():
    # arXiv 2606.01091: 0, 1 and .995 of four rewards are polarised.
    assert polarisation(np.array([0, 1, 0.5, 0.995, np.nan])) == 0.75
    assert polarisation(np.array([np.nan])) is None
