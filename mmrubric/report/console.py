"""What the command line prints: rich tables for people, plain values for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel
from rich import box
from rich.table import Table
from rich.text import Text

from mmrubric.editing import RubricDiff
from mmrubric.group import PairVerdict
from mmrubric.report.numbers import finite
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable
from mmrubric.verdict import Verdict

_MOST_COLUMNS = 8
"""Pictures that get a column each."""
_MARKS = {1.0: ("✓", "green"), 0.0: ("✗", "red")}


def mark(passed: float) -> Text:
    """A tick, a cross, or a dash for unknown."""
    symbol, style = _MARKS.get(float(passed), ("–", "dim")) if np.isfinite(passed) else ("–", "dim")
    return Text(symbol, style=style, justify="center")


def number(value: float | None) -> str:
    """Three decimals, or 'unknown'."""
    return "unknown" if value is None or not np.isfinite(value) else f"{value:.3f}"


def rubric_table(rubric: Rubric) -> Table:
    """The checklist as a table."""
    table = Table(title=Text(rubric.prompt), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", style="dim", no_wrap=True)
    table.add_column("criterion", ratio=1)
    table.add_column("kind")
    table.add_column("weight", justify="right")
    table.add_column("checked by")
    for criterion in rubric.criteria:
        text = Text(criterion.text)
        if criterion.hard:
            text.append("  must hold", style="bold")
        if criterion.weight < 0:
            text.append("  should not be there", style="italic")
        if criterion.depends_on:
            text.append(f"  needs {', '.join(criterion.depends_on)}", style="dim")
        weight = f"{criterion.weight:g}"
        table.add_row(criterion.id, text, criterion.category, weight, criterion.verifier)
    return table


def diff_json(found: RubricDiff) -> dict[str, Any]:
    """The difference of two rubrics as plain data."""
    return {
        "added": [criterion.model_dump(mode="json", exclude_defaults=True) for criterion in found.added],
        "removed": [criterion.model_dump(mode="json", exclude_defaults=True) for criterion in found.removed],
        "changed": [
            {"id": change.id, "field": change.field, "before": _plain(change.before), "after": _plain(change.after)}
            for change in found.changed
        ],
        "prompts": found.prompts,
    }


def diff_lines(found: RubricDiff) -> list[Text]:
    """The difference of two rubrics, a line for each thing."""
    lines = [Text(f"~ prompt: {found.prompts[0]!r} -> {found.prompts[1]!r}", "yellow")] if found.prompts else []
    lines += [Text(f"- {criterion.id}: {criterion.text}", "red") for criterion in found.removed]
    lines += [Text(f"+ {criterion.id}: {criterion.text}", "green") for criterion in found.added]
    lines += [
        Text(f"~ {change.id}: {change.field} {_plain(change.before)!r} -> {_plain(change.after)!r}", "yellow")
        for change in found.changed
    ]
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value


@dataclass(frozen=True)
class JudgedPictures:
    """Pictures judged by one rubric."""

    rubric: Rubric
    names: list[str]
    """What to call each picture; the rows of `table` in order."""
    table: ScoreTable
    verdicts: list[list[Verdict]]
    judge: str
    aggregate: str
    scores: np.ndarray
    """[S], NaN = not scorable."""
    strict: np.ndarray
    """[S] 1.0 where every criterion is passed."""

    def tables(self, reasons: bool = False) -> list[Table]:
        """Ticks of each picture, or of many pictures the shares, with the scores below; reasons if asked for."""
        shown = self._ticks() if len(self.names) <= _MOST_COLUMNS else self._shares()
        return [shown, *([self._reasons()] if reasons else [])]

    def _ticks(self) -> Table:
        out = Table(title=Text(self.rubric.prompt), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        out.add_column("criterion", ratio=1)
        out.add_column("kind", style="dim")
        for name in self.names:
            out.add_column(Text(name), justify="center", overflow="fold")
        last = len(self.rubric.criteria) - 1
        for k, criterion in enumerate(self.rubric.criteria):
            out.add_row(
                Text(criterion.text),
                criterion.category,
                *(mark(p) for p in self.table.passed[:, k]),
                end_section=k == last,
            )
        out.add_row("score", self.aggregate, *(number(float(s)) for s in self.scores), style="bold")
        out.add_row("everything right", "", *(mark(s) for s in self.strict))
        return out

    def _shares(self) -> Table:
        title = f"{self.rubric.prompt} ({len(self.names)} pictures)"
        out = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        out.add_column("criterion", ratio=1)
        out.add_column("kind", style="dim")
        for name in ("met by", "unknown"):
            out.add_column(name, justify="right")
        last = len(self.rubric.criteria) - 1
        for k, criterion in enumerate(self.rubric.criteria):
            column = self.table.passed[:, k]
            known = column[np.isfinite(column)]
            met = f"{known.mean():.1%}" if known.size else "unknown"
            unknown = str(len(column) - len(known))
            out.add_row(Text(criterion.text), criterion.category, met, unknown, end_section=k == last)
        scored = self.scores[np.isfinite(self.scores)]
        score = number(float(scored.mean()) if scored.size else None)
        out.add_row("score", self.aggregate, score, str(len(self.scores) - len(scored)), style="bold")
        strict = self.strict[np.isfinite(self.strict)]
        right = f"{strict.mean():.1%}" if strict.size else "unknown"
        out.add_row("everything right", "", right, str(len(self.strict) - len(strict)))
        return out

    def _reasons(self) -> Table:
        out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("picture", "criterion", "why"):
            out.add_column(name, ratio=1 if name == "why" else None)
        for name, row in zip(self.names, self.verdicts, strict=True):
            for verdict in row:
                why = verdict.reason or (f"failed: {verdict.failure.value}" if verdict.failure else "")
                out.add_row(Text(name), Text(verdict.criterion_id), Text(why))
        return out

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        return {
            "prompt": self.rubric.prompt,
            "rubric_hash": self.rubric.hash,
            "judge": self.judge,
            "aggregate": self.aggregate,
            "images": [
                {
                    "image": name,
                    "score": finite(float(self.scores[row])),
                    "everything_right": bool(self.strict[row]),
                    "coverage": finite(float(self.table.coverage[row])),
                    "verdicts": self._verdicts(row),
                }
                for row, name in enumerate(self.names)
            ],
        }

    def _verdicts(self, row: int) -> list[dict[str, Any]]:
        by_id = {v.criterion_id: v for v in self.verdicts[row]}
        out = []
        for k, criterion in enumerate(self.rubric.criteria):
            verdict = by_id.get(criterion.id)
            out.append(
                {
                    "criterion": criterion.id,
                    "text": criterion.text,
                    "kind": criterion.category,
                    "met": None if verdict is None else verdict.met,
                    "passed": {1.0: True, 0.0: False}.get(float(self.table.passed[row, k])),
                    "applicable": None if verdict is None else verdict.applicable,
                    "failure": "missing" if verdict is None else (verdict.failure.value if verdict.failure else None),
                    "reason": "" if verdict is None else verdict.reason,
                    "read": None if verdict is None else verdict.read,
                }
            )
        return out


_OUTCOMES = {
    PairVerdict.WIN_A: "A is better",
    PairVerdict.WIN_B: "B is better",
    PairVerdict.TIE: "A tie: both meet the checklist equally well",
    PairVerdict.INCONSISTENT: "No decision: the two orders disagree",
    PairVerdict.FAILED: "No decision: too little is known about one of them",
}


@dataclass(frozen=True)
class Compared:
    """Two pictures judged by one rubric, and which is preferred."""

    pictures: JudgedPictures
    """Row 0 is A, row 1 is B."""
    verdict: PairVerdict

    @property
    def differing(self) -> list[int]:
        """Criteria on which the two differ, as columns."""
        a, b = self.pictures.table.passed
        return [k for k in range(len(a)) if np.isfinite(a[k]) and np.isfinite(b[k]) and a[k] != b[k]]

    @property
    def why(self) -> str:
        """One sentence."""
        criteria = self.pictures.rubric.criteria
        passed = self.pictures.table.passed
        sides = {
            side: [criteria[k].text.rstrip(".") for k in self.differing if passed[row, k]]
            for row, side in enumerate("AB")
        }
        parts = [f"Only {side} meets: {'; '.join(texts)}" for side, texts in sides.items() if texts]
        unknown = [c.text.rstrip(".") for k, c in enumerate(criteria) if not np.isfinite(passed[:, k]).all()]
        if unknown:
            parts.append(f"Unknown on a side: {'; '.join(unknown)}")
        return ". ".join([_OUTCOMES[self.verdict], *(parts or ["No criterion differs"])]) + "."

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        table = self.pictures.table
        favours = {self.pictures.rubric.ids[k]: "A" if table.passed[0, k] else "B" for k in self.differing}
        return {"verdict": self.verdict.value, "why": self.why, "favours": favours, **self.pictures.as_json()}


@dataclass(frozen=True)
class RebuiltStep:
    """Rewards of one step under the recorded aggregator and another one."""

    phase: str
    step: int
    recorded: np.ndarray
    """[n], NaN = not scorable or not recorded."""
    rebuilt: np.ndarray
    """[n], NaN = not scorable."""

    def as_json(self) -> dict[str, Any]:
        """Means over the known rewards; None where none is known."""
        return {
            "phase": self.phase,
            "step": self.step,
            "samples": len(self.rebuilt),
            "not_scorable": int(np.isnan(self.rebuilt).sum()),
            "recorded_mean": _mean(self.recorded),
            "mean": _mean(self.rebuilt),
        }


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def rebuilt_table(aggregate: str, steps: Sequence[RebuiltStep], most: int = 40) -> Table:
    """One line per step; of many steps every n-th and the last."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("phase", "step", "samples", "not scorable", "as recorded", f"under {aggregate}"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    stride = max(1, -(-len(steps) // most))
    chosen = [s for k, s in enumerate(steps) if k % stride == 0 or k == len(steps) - 1]
    for step in chosen:
        row = step.as_json()
        table.add_row(
            step.phase,
            str(step.step),
            str(row["samples"]),
            str(row["not_scorable"]),
            number(row["recorded_mean"]),
            number(row["mean"]),
        )
    return table
