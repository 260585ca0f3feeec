"""From verdicts, labels, pairs and repeats to the numbers of a judge report, with bootstrap intervals over prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrubric.bootstrap import Interval
from mmrubric.errors import InputError
from mmrubric.record_reader import RecordedGroup
from mmrubric.report import agreement
from mmrubric.report.judge_report_inputs import Cell, Key, Label, PairAnswers, cells_of
from mmrubric.report.probes import ProbeResult
from mmrubric.report.resample import Statistic, intervals
from mmrubric.scores import sample_pass_rate

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class KindNumbers:
    """One kind of criterion, or all of them; every interval is (low, mid, high), NaN where it cannot be known."""

    kind: str
    verdicts: int
    """Questions asked."""
    labels: int
    """Questions with a known answer and a known label."""
    false_yes: int
    """The judge says yes, the label no."""
    false_no: int
    """The judge says no, the label yes."""
    base_rate: float
    """Share of the most common label: how often always giving it would be right."""
    values: dict[str, Interval]
    """By the names of `STATISTICS`."""


STATISTICS = {
    "coverage": "share of questions answered",
    "pass_rate": "share of answered questions whose criterion is passed",
    "accuracy": "share of labelled answers that are right",
    "kappa": "Cohen's kappa of yes and no",
    "kappa_linear": "linearly weighted kappa of five grades of met",
    "kappa_quadratic": "quadratically weighted kappa of five grades of met",
    "alpha": "Krippendorff's alpha of yes and no",
    "alpha_interval": "Krippendorff's interval alpha of met",
    "ece": "expected calibration error of met on binary criteria",
    "brier": "Brier score of met on binary criteria",
    "spread": "standard deviation of a repeated answer",
    "changed": "share of repeated questions whose yes or no changed",
}
"""What is measured for every kind, by its key in report.json."""


@dataclass(frozen=True)
class OrderNumbers:
    """Pairs asked in both orders, with intervals of the two statistics that matter."""

    pairs: int
    orders: agreement.Orders
    consistency: Interval
    bias: Interval


@dataclass(frozen=True)
class Table:
    """All questions as arrays over N cells."""

    cells: list[Cell]
    met: Floats
    """[N] NaN = unknown."""
    truth: Floats
    """[N] NaN = no label."""
    runs: Floats
    """[R, N] the answers of this run and of the repeats."""
    units: NDArray[np.intp]
    """[N] which prompt."""

    @property
    def kinds(self) -> list[str]:
        """Kinds in order of appearance."""
        return list(dict.fromkeys(cell.criterion.category for cell in self.cells))


def table_of(
    groups: Sequence[RecordedGroup], labels: Iterable[Label], repeats: Sequence[Sequence[RecordedGroup]] = ()
) -> Table:
    """Join everything by sample id and criterion id.

    Raises:
        InputError: nothing was judged; no label fits a verdict although some were given; a repeat holds none of the
            samples, or another picture or another criterion under the same ids.
    """
    cells = cells_of(groups)
    if not cells:
        raise InputError("there is no verdict to report on; check the phase, the step and the judge id")
    truth = {(label.sample_id, label.criterion_id): label.met for label in labels}
    if truth and not truth.keys() & cells.keys():
        raise InputError(
            f"none of the {len(truth)} labels fits a verdict; the record has for example sample "
            f"{next(iter(cells))[0]!r}, criterion {next(iter(cells))[1]!r}, the labels {next(iter(truth))}"
        )
    known = list(cells.values())
    met = _array(cell.verdict.met for cell in known)
    runs = [met, *(_repeat(cells, cells_of(run), number) for number, run in enumerate(repeats, start=1))]
    prompts = {name: k for k, name in enumerate(dict.fromkeys(cell.prompt_id for cell in known))}
    units = np.array([prompts[cell.prompt_id] for cell in known], dtype=np.intp)
    return Table(known, met, _array(truth.get(key) for key in cells), np.stack(runs), units)


def _array(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _repeat(cells: Mapping[Key, Cell], again: Mapping[Key, Cell], number: int) -> Floats:
    """Answers [N] of one more run, NaN where it was not asked."""
    both = cells.keys() & again.keys()
    if not both:
        raise InputError(f"repeat {number} holds none of the judged samples; give a second judging of the same samples")
    for key in both:
        one, other = cells[key], again[key]
        if one.sample_hash != other.sample_hash or one.criterion.text != other.criterion.text:
            raise InputError(
                f"repeat {number}, line {other.line}: sample {key[0]!r}, criterion {key[1]!r} is another picture or "
                "another question than in the first record, so the two answers are no repeat"
            )
    return _array(again[key].verdict.met if key in again else None for key in cells)


def numbers_of(table: Table, kind: str | None, *, seed: int = 0, resamples: int = 1000) -> KindNumbers:
    """All statistics of one kind of criterion, or of all kinds.

    Args:
        table: all questions.
        kind: a category; None = all of them.
        seed: of the bootstrap.
        resamples: bootstrap resamples of prompts, at least 100.
    """
    chosen = np.array([kind in (None, cell.criterion.category) for cell in table.cells])
    cells = [cell for cell, take in zip(table.cells, chosen, strict=True) if take]
    met, truth = table.met[chosen], table.truth[chosen]
    # On other scales met is the value of a level, not a probability.
    binary = np.where([cell.criterion.scale == "binary" for cell in cells], met, np.nan)
    negative = np.array([cell.criterion.weight < 0 for cell in cells])
    passed = agreement.decided(np.where(negative, 1 - met, met))
    yes, true = agreement.decided(met), agreement.decided(truth)
    unscored = np.isnan(met) | np.isnan(truth)
    repeated = agreement.spread_totals(table.runs[:, chosen])
    counted = _confusion(yes, true, 2)
    statistics = {
        "coverage": _mean((~np.isnan(met)).astype(np.float64)),
        "pass_rate": _mean(passed),
        "accuracy": _mean(np.where(unscored, np.nan, yes == true)),
        "kappa": Statistic(counted, agreement.kappa_of),
        "kappa_linear": _graded_kappa(met, truth, "linear"),
        "kappa_quadratic": _graded_kappa(met, truth, "quadratic"),
        "alpha": _alpha(yes, true),
        "alpha_interval": _alpha(met, truth),
        "ece": Statistic(agreement.bin_totals(binary, truth), agreement.ece_of),
        "brier": _mean((binary - truth) ** 2),
        "spread": Statistic(repeated, agreement.spread_of),
        "changed": Statistic(repeated, agreement.changed_of),
    }
    counts = counted.sum(axis=0)
    return KindNumbers(
        kind="all" if kind is None else kind,
        verdicts=len(cells),
        labels=int(counts.sum()),
        false_yes=int(counts[1, 0]),
        false_no=int(counts[0, 1]),
        base_rate=float(agreement.ratio(counts.sum(axis=0).max(), counts.sum())),
        values=intervals(statistics, table.units[chosen], seed, resamples),
    )


def _mean(values: Floats) -> Statistic:
    """Mean of the known values [N]."""
    known = ~np.isnan(values)
    columns = np.stack([np.where(known, values, 0.0), known.astype(np.float64)], axis=1)
    return Statistic(columns, lambda totals: agreement.ratio(totals[..., 0], totals[..., 1]))


def _confusion(first: Floats, second: Floats, levels: int) -> Floats:
    """What each item adds to the confusion counts, [N, K, K], of levels 0 .. K - 1."""
    columns = np.zeros((len(first), levels, levels))
    items = np.flatnonzero(~np.isnan(first) & ~np.isnan(second))
    columns[items, first[items].astype(int), second[items].astype(int)] = 1.0
    return columns


def _graded_kappa(met: Floats, truth: Floats, weights: agreement.Weights) -> Statistic:
    columns = _confusion(agreement.graded(met), agreement.graded(truth), agreement.GRADES)
    return Statistic(columns, lambda totals: agreement.kappa_of(totals, weights))


def _alpha(first: Floats, second: Floats) -> Statistic:
    """Alpha of two raters [N] in [0, 1]; with only two values, nominal and interval alpha are the same."""
    both = np.stack([first, second])
    return Statistic(agreement.alpha_totals(both, ~np.isnan(both)), agreement.alpha_of)


@dataclass(frozen=True)
class CalibrationNumbers:
    """The reliability diagram with what belongs around it."""

    diagram: agreement.Diagram
    true: list[Interval]
    """[B] how often it was true, with bootstrap intervals over prompts."""
    by_chance: float
    """Mean ECE that a perfectly calibrated judge with the same answers would show on as many labels."""


def calibration_of(table: Table, *, seed: int = 0, resamples: int = 1000) -> CalibrationNumbers:
    """The reliability diagram of all binary criteria."""
    binary = np.where([cell.criterion.scale == "binary" for cell in table.cells], table.met, np.nan)
    totals = agreement.bin_totals(binary, table.truth)
    bins = {
        str(b): Statistic(totals[:, b], lambda sums: agreement.ratio(sums[..., 2], sums[..., 0]))
        for b in range(agreement.BINS)
    }
    bounds = intervals(bins, table.units, seed, resamples)
    known = binary[totals[..., 0].any(axis=1)]
    rng = np.random.default_rng(seed)
    drawn = [agreement.ece(known, rng.random(len(known)) < known) for _ in range(100)]
    return CalibrationNumbers(
        agreement.diagram(binary, table.truth), [bounds[str(b)] for b in range(agreement.BINS)], float(np.mean(drawn))
    )


def orders_of(pairs: Sequence[PairAnswers], *, seed: int = 0, resamples: int = 1000) -> OrderNumbers | None:
    """Position consistency and bias of pairs asked in both orders; None without pairs."""
    if not pairs:
        return None
    answers = [p.forward for p in pairs], [p.swapped for p in pairs], [p.preferred for p in pairs]
    totals = agreement.order_totals(*answers)
    names = {name: k for k, name in enumerate(dict.fromkeys(_prompt(pair) for pair in pairs))}
    units = np.array([names[_prompt(pair)] for pair in pairs], dtype=np.intp)
    statistics = {
        "consistency": Statistic(totals, agreement.consistency_of),
        "bias": Statistic(totals, agreement.bias_of),
    }
    bounds = intervals(statistics, units, seed, resamples)
    return OrderNumbers(len(pairs), agreement.orders(*answers), bounds["consistency"], bounds["bias"])


def _prompt(pair: PairAnswers) -> tuple[str, str]:
    return ("prompt", pair.prompt_id) if pair.prompt_id else ("pair", pair.pair_id)


def attack_of(
    name: str,
    plain: Sequence[RecordedGroup],
    attacked: Sequence[RecordedGroup],
    *,
    seed: int = 0,
    resamples: int = 1000,
) -> ProbeResult:
    """Gain of the pass rate when the same samples, joined by id, were judged after an attack.

    Raises:
        InputError: no sample is in both records, or one is in the second record twice.
    """
    cells_of(attacked)
    before, after = _rates(plain), _rates(attacked)
    both = [key for key in before if key in after]
    if not both:
        raise InputError(f"attack {name!r}: its record holds none of the samples of the first one; keep their ids")
    gains = np.array([after[key][1] - before[key][1] for key in both])
    names = {prompt: k for k, prompt in enumerate(dict.fromkeys(before[key][0] for key in both))}
    units = np.array([names[before[key][0]] for key in both], dtype=np.intp)
    gain = intervals({"gain": _mean(gains)}, units, seed, resamples)["gain"]
    known = int((~np.isnan(gains)).sum())
    return ProbeResult(name, known, gain, "the same samples judged after the attack" if known else "nothing was known")


def _rates(groups: Sequence[RecordedGroup]) -> dict[str, tuple[str, float]]:
    """Prompt and pass rate by sample id."""
    return {
        row.sample_id: (row.prompt_id, float(rate))
        for group in groups
        for row, rate in zip(group.rows, sample_pass_rate(group.table), strict=True)
    }
