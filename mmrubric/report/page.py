"""What the page says: numbers turned into sentences, cards and tables for the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrubric.bootstrap import Interval
from mmrubric.report.images import Embedded, embed
from mmrubric.report.model import AlignmentReport, Measure, Picture, PromptResult
from mmrubric.report.numbers import Comparison, Numbers, PictureScore, change
from mmrubric.report.wording import percent, points
from mmrubric.rubric import Rubric


def range_text(interval: Interval) -> str:
    """'+12 (+8 to +16)'; without the bracket where the interval is unknown."""
    if not np.isfinite(interval.low):
        return points(interval.mid)
    return f"{points(interval.mid)} ({points(interval.low)} to {points(interval.high)})"


def tone(interval: Interval) -> str:
    """'up' or 'down' where the interval is clear of zero, else 'flat'."""
    return "up" if interval.low > 0 else "down" if interval.high < 0 else "flat"


def duration(seconds: float) -> str:
    """'42 s', '4 min 05 s', '1 h 02 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass(frozen=True)
class Headline:
    """The result as one sentence: lead, coloured result, rest; and what it rests on."""

    lead: str
    result: str
    rest: str
    tone: str
    detail: str


def headline(report: AlignmentReport, numbers: Numbers) -> Headline:
    """The result in plain words, never kinder than the interval."""
    strict = numbers.judge.strict_completion
    before, after = (f"{100 * v:.0f}" for v in strict)
    interval = numbers.judge.strict_difference
    direction = tone(interval)
    if direction == "up":
        lead, result, rest = (
            "The aligned generator gets everything right in",
            f"{after} of 100 pictures",
            f", up from {before}.",
        )
    elif direction == "down":
        lead, result, rest = (
            "The generator got worse: everything is right in",
            f"{after} of 100 pictures",
            f", down from {before}.",
        )
    else:
        lead, result = "No clear change:", f"everything is right in {after} of 100 pictures"
        rest = f", against {before} before."
    which = "prompts that training never used" if report.held_out else "prompts, some of which training may have used"
    bounds = ""
    if np.isfinite(interval.low):
        bounds = f" (95 % interval {points(interval.low)} to {points(interval.high)})"
    detail = (
        f"Measured on {numbers.prompts:,} {which}, with the same prompts, seeds and sampler on both sides. "
        f"The difference is {points(interval.mid)} points{bounds}."
    )
    return Headline(lead, result, rest, direction, detail)


def tiles(report: AlignmentReport, numbers: Numbers) -> list[dict[str, str]]:
    """The key figures below the headline."""
    judge = numbers.judge

    def pair(name: str, values: tuple[float, float], interval: Interval) -> dict[str, str]:
        note = f"{range_text(interval)} points"
        return {"name": name, "before": percent(values[0]), "after": percent(values[1]), "note": note}

    out = [
        pair("Pictures with everything right", judge.strict_completion, judge.strict_difference),
        pair("Criteria met, mean per picture", judge.mean_pass_rate, judge.pass_difference),
    ]
    if numbers.second is not None:
        second = numbers.second
        out.append(pair("Everything right, second reader", second.strict_completion, second.strict_difference))
    note = f"{report.judged_images:,} pictures judged in training"
    out.append({"name": "Time, loading to report", "before": "", "after": duration(report.seconds), "note": note})
    return out


def notices(report: AlignmentReport) -> list[str]:
    """Sentences that must not be missed."""
    out = []
    if report.allow_same_judge:
        text = "allow_same_judge is set: the judge that trained the generator also evaluated it"
        text += "; the second reader, written independently, checks it." if report.second_reader else "."
        out.append(text)
    return [*out, *report.notes]


@dataclass(frozen=True)
class Mark:
    """A tick, a cross or a dash: value 'yes', 'no' or 'unknown'."""

    value: str
    title: str
    disputed: bool


def _word(passed: float) -> str:
    return "unknown" if not np.isfinite(passed) else "yes" if passed else "no"


def _mark(passed: float, second: float | None, detail: str) -> Mark:
    value = _word(passed)
    title = {"yes": "met", "no": "not met", "unknown": "unknown"}[value]
    if value == "unknown" and detail:
        title += f" ({detail})"
    disputed = second is not None and bool(np.isfinite(second) and np.isfinite(passed)) and second != passed
    if disputed:
        title += f"; second reader: {'met' if second else 'not met'}"
    return Mark(value, title, disputed)


def _details(rubric: Rubric, picture: Picture) -> tuple[list[str], list[str]]:
    """Per criterion in rubric order: why it is unknown, and the judge's reason."""
    verdicts = {v.criterion_id: v for v in picture.verdicts}
    why, reasons = [], []
    for criterion in rubric.criteria:
        verdict = verdicts.get(criterion.id)
        if verdict is None:
            why.append("missing")
        elif verdict.failure is not None:
            why.append(str(verdict.failure.value))
        else:
            why.append("" if verdict.applicable else "does not apply")
        reasons.append(verdict.reason if verdict is not None else "")
    return why, reasons


def _tally(score: PictureScore) -> str:
    return f"{score.met} of {len(score.passed)}"


@dataclass(frozen=True)
class Card:
    """One prompt with its pictures and its checklist."""

    text: str
    before: Embedded | None
    after: Embedded | None
    before_score: str
    after_score: str
    after_met: float
    gain: float
    states: str
    kinds: str
    complete: bool
    rows: list[dict[str, Any]]
    reasons: list[tuple[str, str]]


def _card(result: PromptResult, numbers: Numbers, index: int) -> Card:
    """The card of prompt `index`; where there are several pictures a side, the first is shown."""
    mine = numbers.scores[index]
    theirs = numbers.second_scores[index] if numbers.second_scores is not None else None
    before, after = mine.before[0], mine.after[0]
    why_b, reason_b = _details(result.rubric, result.before[0])
    why_a, reason_a = _details(result.rubric, result.after[0])
    rows = []
    for k, criterion in enumerate(result.rubric.criteria):
        second_b = theirs.before[0].passed[k] if theirs else None
        second_a = theirs.after[0].passed[k] if theirs else None
        text = criterion.text if criterion.weight > 0 else f"Not: {criterion.text}"
        rows.append(
            {
                "text": text,
                "kind": criterion.category,
                "hard": criterion.hard,
                "before": _mark(before.passed[k], second_b, why_b[k]),
                "after": _mark(after.passed[k], second_a, why_a[k]),
                "change": change(before.passed[k], after.passed[k]),
            }
        )
    gain = after.met - before.met
    states = [
        "all",
        "better" if gain > 0 else "worse" if gain < 0 else "same",
        "right" if after.strict else "wrong",
    ]
    images = [
        embed(p.png, f"prompt {result.prompt_id!r}, {side}") if p.png is not None else None
        for side, p in (("before", result.before[0]), ("after", result.after[0]))
    ]
    return Card(
        result.text,
        images[0],
        images[1],
        _tally(before),
        _tally(after),
        after.met / len(after.passed),
        gain,
        " ".join(states),
        "|".join(dict.fromkeys(mine.kinds)),
        after.strict,
        rows,
        list(zip(reason_b, reason_a, strict=True)),
    )


def cards(report: AlignmentReport, numbers: Numbers, shown: int, budget: int) -> list[Card]:
    """The first `shown` prompts that have pictures, fewer when their pictures pass `budget` characters."""
    out: list[Card] = []
    spent = 0
    for index, result in enumerate(report.results):
        if len(out) == shown:
            break
        if result.before[0].png is None or result.after[0].png is None:
            continue
        card = _card(result, numbers, index)
        spent += sum(len(image.uri) for image in (card.before, card.after) if image is not None)
        if out and spent > budget:
            break
        out.append(card)
    return out


def selection(report: AlignmentReport, shown: int) -> str:
    """The rule by which prompts are shown, in words."""
    if not shown:
        return "This report carries no pictures."
    total = len(report.results)
    if shown == total:
        return f"All {total} evaluated prompts."
    return f"The first {shown} of {total} evaluated prompts, in evaluation order and not chosen by result."


def states(shown: Sequence[Card]) -> list[tuple[str, str, int]]:
    """(key, name, count) of the filter buttons."""
    names = {
        "all": "All",
        "better": "Better",
        "worse": "Worse",
        "same": "Same score",
        "right": "All right now",
        "wrong": "Still wrong",
    }
    return [(key, name, sum(key in c.states.split() for c in shown)) for key, name in names.items()]


def kind_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Rows of the table by criterion kind."""
    return [
        {
            "kind": k.kind,
            "prompts": k.prompts,
            "before": percent(k.before.mid),
            "after": percent(k.after.mid),
            "difference": range_text(k.difference),
            "tone": tone(k.difference),
        }
        for k in comparison.per_kind
    ]


def flow(comparison: Comparison) -> list[dict[str, Any]]:
    """Segments of the bar that shows what happened to each criterion; empty ones are left out."""
    names = {
        "kept": ("kept", "met before and after"),
        "fixed": ("fixed", "fixed"),
        "broken": ("broken", "broken"),
        "missed": ("missed", "still not met"),
        "unknown": ("unknown", "unknown on a side"),
    }
    counts = {str(name): count for name, count in comparison.changes.items()}
    return [{"key": css, "name": name, "count": counts[k]} for k, (css, name) in names.items() if counts[k]]


def second_reader(report: AlignmentReport, numbers: Numbers) -> dict[str, Any] | None:
    """The second reader's table, or None."""
    second = numbers.second
    if second is None:
        return None
    rows = [
        ("Everything right", second.strict_completion, second.strict_difference),
        ("Criteria met", second.mean_pass_rate, second.pass_difference),
    ]
    return {
        "sentence": f"{report.second_reader} reads the same pictures by other means. It agrees "
        f"with the judge on {percent(numbers.agreement)} of {numbers.agreement_count:,} verdicts.",
        "rows": [
            {
                "name": name,
                "before": percent(v[0]),
                "after": percent(v[1]),
                "difference": range_text(d),
                "tone": tone(d),
            }
            for name, v, d in rows
        ],
    }


def shown_measure(measure: Measure) -> str:
    """The value of a measure as text."""
    value = measure.value
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "not measured"
    if isinstance(value, str):
        return value
    if measure.unit == "share":
        return percent(float(value))
    if measure.unit == "points":
        return f"{points(float(value))} points"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def settings(values: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(group, rows) of the settings table: top-level mappings become groups, the rest 'general'."""
    general: list[tuple[str, str]] = []
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            groups.append((name, _flat(value)))
        else:
            general.append((name, _plain(value)))
    return ([("general", general)] if general else []) + groups


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", _plain(value)))
    return rows


def _plain(value: Any) -> str:
    if value is None or value == {} or value == [] or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(v) for v in value)
    return str(value)


def all_prompts(report: AlignmentReport, numbers: Numbers) -> list[dict[str, str]]:
    """Every prompt with its criteria met before and after, summed over its pictures."""
    rows = []
    for result, s in zip(report.results, numbers.scores, strict=True):
        met = {side: sum(p.met for p in getattr(s, side)) for side in ("before", "after")}
        total = sum(len(p.passed) for p in s.before)
        way = "up" if met["after"] > met["before"] else "down" if met["after"] < met["before"] else ""
        rows.append(
            {
                "text": result.text,
                "before": f"{met['before']} of {total}",
                "after": f"{met['after']} of {total}",
                "tone": way,
            }
        )
    return rows
