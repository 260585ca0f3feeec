"""Words of a judge report: the four reliability sections and the sentences that must not be missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from mmrubric.bootstrap import Interval
from mmrubric.group import PairVerdict
from mmrubric.record_reader import RecordedGroup
from mmrubric.report.agreement import ALWAYS_FIRST
from mmrubric.report.judge_report_numbers import CalibrationNumbers, KindNumbers, OrderNumbers
from mmrubric.report.model import Measure, PromptResult, Section, Unit
from mmrubric.report.numbers import finite
from mmrubric.report.probes import ProbeResult
from mmrubric.report.reliability import SATURATED, attack_probes, polarisation, rubric_quality
from mmrubric.report.wording import percent, points
from mmrubric.scores import sample_pass_rate
from mmrubric.verdict import Cost, Verdict

ANSWERED = "answered"
FEW_LABELS = 100
_ONE_CLASS = "labels and answers are all the same, so agreement by chance is certain"


def answer_of(verdict: Verdict) -> str:
    """What came back on a question: answered, does not apply, unknown, or the kind of failure."""
    if verdict.failure is not None:
        return verdict.failure.value.replace("_", " ")
    if not verdict.applicable:
        return "does not apply"
    return ANSWERED if verdict.known else "unknown"


def of_100(share: float) -> str:
    """'94 of 100', with a decimal where rounding would say none or all."""
    if 0 < share < 0.005 or 0.995 <= share < 1:
        return f"{100 * share:.1f} of 100"
    return f"{100 * share:.0f} of 100"


def short(value: float, unit: Unit) -> str:
    """A number with two digits that matter: '94 %' for a share, '0.87' or '0.024' otherwise."""
    if unit == "share":
        return percent(value)
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3f}"


def range_of(interval: Interval, unit: Unit) -> str:
    """'95 % interval 92 % to 96 %', or nothing where the bounds are unknown."""
    if not np.isfinite(interval.low):
        return ""
    return f"95 % interval {short(interval.low, unit)} to {short(interval.high, unit)}"


def _measured(name: str, interval: Interval, unit: Unit, note: str, why_not: str, look: bool = False) -> Measure:
    """A measure with its interval in the note, or with the reason why it is not known."""
    value = finite(interval.mid)
    if value is None:
        return Measure(name, None, unit, why_not)
    return Measure(name, value, unit, "; ".join(filter(None, [note, range_of(interval, unit)])), look)


def rubrics(groups: Sequence[RecordedGroup]) -> Section:
    """Chapter 1: how good the checklists are by which the judge was measured."""
    distinct = {group.rubric.hash: group for group in groups}
    results = [PromptResult(g.prompt_id, g.rubric.prompt, g.rubric, (), ()) for g in distinct.values()]
    criteria = [criterion for result in results for criterion in result.rubric.criteria]
    return Section(
        f"Measured with {len(criteria):,} criteria of {len(results):,} checklists, "
        f"{len(criteria) / len(results):.1f} each.",
        [
            *rubric_quality(results).measures,
            Measure("kinds of criterion", _listed(Counter(c.category for c in criteria)), "text"),
            Measure("scales", _listed(Counter(c.scale for c in criteria)), "text"),
        ],
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def fidelity(
    overall: KindNumbers,
    calibration: CalibrationNumbers,
    orders: OrderNumbers | None,
    repeats: int,
    answers: Mapping[str, int],
    cost: Cost,
) -> dict[str, list[Measure]]:
    """Measures of chapter 2, how far the answers can be believed, by what they are about."""
    return {
        "Against labels": _against_labels(overall),
        "Calibration": _calibrated(overall, calibration),
        "Order of the two images": _ordered(orders),
        "Answers and repeats": [*_answered(overall, answers), *_repeated(overall, repeats)],
        "Cost": _paid(overall, cost),
    }


def fidelity_sentence(overall: KindNumbers, orders: OrderNumbers | None, repeats: int) -> str:
    """Chapter 2 in one sentence."""
    values = overall.values
    parts = ["How often the judge is right is unknown, because no answer has a label"]
    if overall.labels:
        parts = [f"The judge is right on {of_100(values['accuracy'].mid)} labelled answers"]
        if np.isfinite(values["ece"].mid):
            parts.append(f"its percentages are off by {percent(values['ece'].mid)} on average")
    if orders is not None and np.isfinite(orders.consistency.mid):
        parts.append(f"swapping two images leaves its choice on {of_100(orders.consistency.mid)} pairs")
    if repeats and np.isfinite(values["changed"].mid):
        parts.append(f"asked again, it changes its mind on {of_100(values['changed'].mid)} questions")
    return "; ".join(parts) + "."


def _answered(overall: KindNumbers, answers: Mapping[str, int]) -> list[Measure]:
    silent = {name: count for name, count in answers.items() if name != ANSWERED}
    share = overall.values["coverage"]
    note = f"{overall.verdicts:,} asked" + (f"; {_listed(silent)}" if silent else "")
    return [_measured("questions answered", share, "share", note, "nothing was asked", look=share.mid < 0.95)]


def _against_labels(overall: KindNumbers) -> list[Measure]:
    values, none = overall.values, "no answer has a label"
    undecided = _ONE_CLASS if overall.labels else none
    wrong = f"{overall.labels:,} labels; wrongly yes {overall.false_yes:,}, wrongly no {overall.false_no:,}"
    accuracy = values["accuracy"]
    kappa = values["kappa"]
    return [
        _measured("agreement with labels", accuracy, "share", wrong, none, look=accuracy.mid < 0.95),
        Measure(
            "always giving the most common label",
            finite(overall.base_rate),
            "share",
            "would agree this often" if overall.labels else none,
        ),
        _measured("Cohen's kappa", kappa, "number", "1 = always right, 0 = as by chance", undecided, kappa.mid < 0.8),
        _measured("kappa, linear weights", values["kappa_linear"], "number", "on five grades", undecided),
        _measured("kappa, quadratic weights", values["kappa_quadratic"], "number", "on five grades", undecided),
        _measured("Krippendorff's alpha", values["alpha"], "number", "yes and no", undecided),
        _measured("Krippendorff's alpha, interval", values["alpha_interval"], "number", "of the shares", undecided),
    ]


def _calibrated(overall: KindNumbers, calibration: CalibrationNumbers) -> list[Measure]:
    ece, none = overall.values["ece"], "no binary criterion has an answer and a label"
    note = f"a perfect judge would show about {percent(calibration.by_chance)} on as many labels"
    look = ece.mid > max(0.1, 2 * calibration.by_chance)
    return [
        _measured("calibration error (ECE)", ece, "share", note, none, look),
        _measured("Brier score", overall.values["brier"], "number", "0 is best", none),
    ]


def _ordered(orders: OrderNumbers | None) -> list[Measure]:
    if orders is None:
        return [Measure("same choice in both orders", None, "share", "no pairs were given")]
    found, none = orders.orders, "no pair was answered in both orders"
    count = found.outcomes
    note = (
        f"{found.known:,} of {orders.pairs:,} pairs answered: {count[PairVerdict.WIN_A] + count[PairVerdict.WIN_B]:,} "
        f"agreed wins, {count[PairVerdict.TIE]:,} agreed ties, {count[PairVerdict.INCONSISTENT]:,} inconsistent"
    )
    first = f"0 = none; a judge that always says the first: {ALWAYS_FIRST['bias']:g}"
    measures = [
        _measured("same choice in both orders", orders.consistency, "share", note, none, orders.consistency.mid < 0.95),
        _measured("bias for the first image", orders.bias, "number", first, none, abs(orders.bias.mid) > 0.1),
    ]
    if np.isfinite(found.accuracy):
        split = f"{percent(found.accuracy_first)} with the better image first, {percent(found.accuracy_second)} second"
        measures.append(Measure("pairs agree with labels, both orders", found.accuracy, "share", split))
    return measures


def _repeated(overall: KindNumbers, repeats: int) -> list[Measure]:
    none = "no question was answered twice" if repeats else "no repeats were given"
    spread, changed = overall.values["spread"], overall.values["changed"]
    asked = f"asked {repeats + 1} times"
    deviation = "standard deviation of one answer; a preference needs a margin above it"
    return [
        _measured("changed its yes or no when asked again", changed, "share", asked, none, changed.mid > 0.05),
        _measured("run-to-run spread", spread, "number", deviation, none),
    ]


def _paid(overall: KindNumbers, cost: Cost) -> list[Measure]:
    tokens = cost.prompt_tokens + cost.completion_tokens
    per = f"{tokens / overall.verdicts:,.0f} per question" if tokens else "none recorded"
    return [
        Measure("calls", cost.calls, "count", f"for {overall.verdicts:,} questions, failed ones included"),
        Measure("tokens", tokens, "count", f"{cost.prompt_tokens:,} read, {cost.completion_tokens:,} written; {per}"),
        Measure("seconds of judging", round(cost.seconds, 3), "number", "summed over calls that ran side by side"),
    ]


def saturation(groups: Sequence[RecordedGroup], kinds: Sequence[KindNumbers], orders: OrderNumbers | None) -> Section:
    """Chapter 3: whether the answers still tell samples apart."""
    low, high = SATURATED
    rates = {kind.kind: kind.values["pass_rate"] for kind in kinds}
    full = [name for name, rate in rates.items() if rate.mid >= high]
    empty = [name for name, rate in rates.items() if rate.mid <= low]
    summary = "No kind of criterion is nearly always or nearly never met"
    if full or empty:
        parts = ([f"Nearly always met: {', '.join(full)}"] if full else []) + (
            [f"nearly never met: {', '.join(empty)}"] if empty else []
        )
        summary = "; ".join(parts)
        summary = f"{summary[0].upper()}{summary[1:]}; such criteria rarely tell pictures apart"
    several = [group for group in groups if len(group.rows) > 1]
    equal = [np.ptp(rate) == 0 for group in several if np.isfinite(rate := sample_pass_rate(group.table)).all()]
    scores = np.concatenate([sample_pass_rate(group.table) for group in groups])
    ties = None if orders is None or not orders.orders.known else orders.orders.outcomes[PairVerdict.TIE]
    return Section(
        summary + ".",
        [
            *(
                _measured(f"pass rate of '{name}'", rate, "share", "", "no known answer", not low < rate.mid < high)
                for name, rate in rates.items()
            ),
            Measure(
                "prompts whose samples all score alike",
                float(np.mean(equal)) if equal else None,
                "share",
                f"of {len(equal):,} prompts with several samples" if equal else "no prompt has several scored samples",
            ),
            Measure(
                "pairs that tie in both orders",
                None if ties is None or orders is None else ties / orders.orders.known,
                "share",
                "no pairs were given" if ties is None else f"{ties:,} pairs",
            ),
            Measure(
                "samples that meet all or nothing",
                polarisation(scores),
                "share",
                "polarisation: pass rate 0, or at least 0.99",
            ),
        ],
    )


ATTACKS = ("keyword stuffing", "text written into the image", "rubric echo", "length")
"""Attacks that the survey asks for, beside a judge with a position bias."""


def attacks(probes: Sequence[ProbeResult], orders: OrderNumbers | None) -> Section:
    """Chapter 4: whether a sample, or its place, can talk the judge round."""
    section = attack_probes(probes)
    note = "give the record of the same samples judged after this attack"
    absent = [
        Measure(name, "not run", "text", note) for name in ATTACKS if name not in {probe.name for probe in probes}
    ]
    first = Measure("position: pairs", "not run", "text", "give pairs asked in both orders")
    summary = section.summary if probes else "No attack on the judge was tried."
    if orders is not None and np.isfinite(orders.bias.mid):
        bias = orders.bias.mid
        note = "answers for the image shown first minus those for the second; always the first: +100 points"
        first = Measure("position: pairs", bias, "points", note, abs(bias) > 0.1)
        favoured = "first" if bias > 0 else "second"
        summary += (
            f" By its place alone, the {favoured} image gains {points(abs(bias)).lstrip('+')} points of the answers."
            if abs(bias) >= 0.01
            else " The place of an image gains it nothing."
        )
    return Section(summary, [*(section.measures if probes else ()), first, *absent])


def notices(overall: KindNumbers, labels: int, other_judges: Sequence[str], reads: Mapping[str, int]) -> list[str]:
    """Sentences that a reader must not miss."""
    out = []
    if not overall.labels:
        out.append("No answer has a label: accuracy, kappa, alpha and calibration are unknown.")
    elif overall.labels < FEW_LABELS:
        out.append(f"Only {overall.labels} answers have a label: read the intervals, not the single numbers.")
    if labels > overall.labels > 0:
        out.append(
            f"{labels - overall.labels:,} of {labels:,} labels could not be used: no known answer, or left open."
        )
    if len(reads) > 1:
        out.append(f"Answers were read in {len(reads)} ways, whose scales may differ: {_listed(reads)}.")
    if other_judges:
        out.append(f"The repeats carry other judge ids: {', '.join(other_judges)}; they must be the same judge.")
    return out
