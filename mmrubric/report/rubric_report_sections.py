"""Words of a rubric report: the four reliability sections and the sentences that must not be missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mmrubric.quality import RULES, ProxyAccuracy
from mmrubric.report import judge_report_sections as judge_sections
from mmrubric.report.judge_report_numbers import OrderNumbers
from mmrubric.report.judge_report_sections import _listed, of_100
from mmrubric.report.model import Measure, PromptResult, Section
from mmrubric.report.numbers import finite
from mmrubric.report.probes import ProbeResult
from mmrubric.report.reliability import rubric_quality
from mmrubric.report.rubric_report_numbers import PowerNumbers, RubricNumbers, by_rule
from mmrubric.report.wording import percent

NO_VERDICTS = "no verdicts were given"
NOT_MEASURED = "Not measured"
_HIGH_ALPHA = 0.8
"""Krippendorff's customary bound for conclusions that may be relied on."""


def quality(rubrics: Sequence[RubricNumbers]) -> Section:
    """Chapter 1: how well the checklists are made, by their wording and against their prompts."""
    results = [PromptResult(item.where, item.rubric.prompt, item.rubric, (), ()) for item in rubrics]
    counted = rubric_quality(results)
    criteria = [criterion for item in rubrics for criterion in item.rubric.criteria]
    faulty = sum(item.faults > 0 for item in rubrics)
    shares = [share for item in rubrics if np.isfinite(share := item.coverage.share)]
    verdict = (
        f"{faulty:,} of {len(rubrics):,} have an error or a warning" if faulty else "none has an error or a warning"
    )
    mean = float(np.mean(shares)) if shares else None
    complete = sum(share == 1 for share in shares)
    note = f"{complete:,} of {len(shares):,} speak of every word" if shares else "no prompt names anything"
    return Section(
        f"{counted.summary.rstrip('.')}; by their wording, {verdict}.",
        [
            *counted.measures,
            *_rule_measures(rubrics),
            Measure(
                "words of the prompt that are spoken of", mean, "share", note, look=mean is not None and mean < 0.8
            ),
            Measure("kinds of criterion", _listed(Counter(c.category for c in criteria)), "text"),
            Measure("scales", _listed(Counter(c.scale for c in criteria)), "text"),
        ],
    )


def _rule_measures(rubrics: Sequence[RubricNumbers]) -> list[Measure]:
    """One line per rule that found something, in the order of the rules."""
    counts = by_rule(rubrics)
    return [
        Measure(
            f"against '{rule}'",
            counts[rule].total(),
            "count",
            f"wanted: {wanted}; {_listed(counts[rule])}",
            look=counts[rule]["error"] > 0,
        )
        for rule, wanted in RULES.items()
        if rule in counts
    ]


def fidelity(power: PowerNumbers | None, proxy: ProxyAccuracy | None) -> Section:
    """Chapter 2: whether different readers come to the same answers by these rubrics."""
    parts = []
    if power is not None and power.agreement:
        parts.append(
            f"{len(power.judges)} judges give the same answer on {of_100(power.agreement[0].agreement)} questions"
        )
    if proxy is not None and proxy.known:
        parts.append(f"by the rubric alone, a proxy names the better sample on {of_100(proxy.accuracy)} pairs")
    summary = "; ".join(parts) or f"{NOT_MEASURED}: give verdicts of several judges, or pairs that a proxy decided"
    return Section(f"{summary[0].upper()}{summary[1:]}.", [*_answered(power), *_agreed(power), *_proxied(proxy)])


def _answered(power: PowerNumbers | None) -> list[Measure]:
    name = "questions answered"
    if power is None:
        return [Measure(name, None, "share", NO_VERDICTS)]
    note = f"{power.verdicts:,} asked of {', '.join(power.judges)}"
    return [Measure(name, finite(1 - power.unknown_share), "share", note, look=power.unknown_share > 0.05)]


def _agreed(power: PowerNumbers | None) -> list[Measure]:
    name = "agreement across judges"
    if power is None or not power.agreement:
        return [Measure(name, None, "share", NO_VERDICTS if power is None else "the verdicts are of one judge")]
    overall = power.agreement[0]
    alpha = "Krippendorff's alpha across judges"
    return [
        Measure(name, finite(overall.agreement), "share", f"{overall.cells:,} questions answered by several"),
        Measure(
            alpha, finite(overall.alpha), "number", "1 = alike, 0 = as by chance", look=overall.alpha < _HIGH_ALPHA
        ),
    ]


def _proxied(proxy: ProxyAccuracy | None) -> list[Measure]:
    names = "pairs that a proxy decides right, both orders", "what the rubric adds to the proxy"
    if proxy is None:
        return [Measure(name, None, "share", "no proxy decisions were given") for name in names]
    if not proxy.known:
        return [Measure(name, None, "share", "no labelled pair was answered in both orders") for name in names]
    note = f"{proxy.known:,} of {proxy.labelled:,} labelled pairs; {percent(proxy.undecided)} undecided"
    without = "the same pairs were not decided without a rubric"
    credited = f"mean reward with the rubric minus without, from -2 to 2; {proxy.credited:,} pairs"
    return [
        Measure(names[0], finite(proxy.accuracy), "share", note),
        Measure(names[1], finite(proxy.credit), "number", credited if proxy.credited else without, proxy.credit <= 0),
    ]


def saturation(power: PowerNumbers | None, *, labelled: bool) -> Section:
    """Chapter 3: whether the criteria tell samples apart."""
    names = "criteria that nearly all samples pass", "criteria that nearly all samples fail"
    others = "criteria that tell samples of a group apart", "groups whose samples all score alike"
    if power is None:
        measures = [Measure(name, None, "share", NO_VERDICTS) for name in (*names, *others)]
        return Section(f"{NOT_MEASURED}: {NO_VERDICTS}.", measures)
    known = [item.power for item in power.criteria if np.isfinite(item.power.pass_rate)]
    if not known:
        none = "no verdict is known"
        return Section(f"{NOT_MEASURED}: {none}.", [Measure(name, None, "share", none) for name in (*names, *others)])
    always, never = (sum(item.saturated == which for item in known) for which in ("always", "never"))
    several = [item for item in known if np.isfinite(item.separates)]
    apart = sum(item.separates > 0 for item in several)
    summary = (
        f"{always + never:,} of {len(known):,} judged criteria hardly vary: {always:,} nearly always and {never:,} "
    )
    summary += "nearly never hold"
    tied = f"of {power.several:,} groups with several scored samples" if power.several else "no group has several"
    return Section(
        summary + ".",
        [
            Measure(names[0], always / len(known), "share", f"{always:,} of {len(known):,}", always / len(known) > 0.5),
            Measure(names[1], never / len(known), "share", f"{never:,} of {len(known):,}", never / len(known) > 0.5),
            Measure(
                others[0],
                apart / len(several) if several else None,
                "share",
                f"{apart:,} of {len(several):,} criteria with two or more answers in a group",
            ),
            Measure(others[1], finite(power.tied_share), "share", tied, look=power.tied_share > 0.5),
            Measure("samples that meet all or nothing", power.polarisation, "share", "polarisation"),
            *_gaps(power, labelled),
        ],
    )


def _gaps(power: PowerNumbers, labelled: bool) -> list[Measure]:
    name = "pass rate of preferred minus rejected samples"
    if not labelled:
        return [Measure(name, None, "points", "no preferred samples were given")]
    gaps = [item.power.gap for item in power.criteria if np.isfinite(item.power.gap)]
    if not gaps:
        return [Measure(name, None, "points", "no criterion is known for both sides of a group")]
    against = sum(gap < 0 for gap in gaps)
    note = f"mean of {len(gaps):,} criteria; {against:,} of them favour the rejected sample"
    return [Measure(name, float(np.mean(gaps)), "points", note, look=against > 0)]


def attacks(rubrics: Sequence[RubricNumbers], probes: Sequence[ProbeResult], orders: OrderNumbers | None) -> Section:
    """Chapter 4: whether a sample, its place, or the wording of a criterion can talk the judge round."""
    tried = judge_sections.attacks(probes, orders)
    rules = ("leak", "non_comparative")
    telling = sum(f.rule in rules and f.severity == "error" for item in rubrics for f in item.findings)
    wording = Measure(
        "criteria that tell the result or name another sample",
        telling,
        "count",
        "by wording; a judge can follow them without looking",
        look=telling > 0,
    )
    if probes or (orders is not None and np.isfinite(orders.bias.mid)):
        return Section(tried.summary, [wording, *tried.measures])
    return Section(f"{NOT_MEASURED}: no attack was given; only the wording was looked at.", [wording, *tried.measures])


def notices(repeated: int, others: int, power: PowerNumbers | None) -> list[str]:
    """Sentences that a reader must not miss."""
    out = []
    if repeated:
        out.append(f"Rubrics that equal another one, and so count once: {repeated:,}.")
    if others:
        out.append(f"Groups of verdicts on rubrics that were not given, and so left out: {others:,}.")
    if power is None:
        out.append("No verdicts were given: this report looks at wording alone.")
    elif len(power.judges) > 1:
        out.append(f"Pass rates are pooled over {len(power.judges)} judges: {', '.join(power.judges)}.")
    return out
