"""The command `mmrubric judge-report`: options to files to a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmrubric.errors import InputError

if TYPE_CHECKING:
    from mmrubric.record_reader import RecordedGroup

EPILOG = "Example: mmrubric judge-report runs/judge --labels labels.jsonl --repeat runs/judge-again"


def groups_of(
    run: Path, phase: str | None = None, step: int | None = None, judge_id: str | None = None
) -> list[RecordedGroup]:
    """The groups of a run record that fit.

    Raises:
        InputError: no record, or nothing in it fits; the message lists what there is.
    """
    from mmrubric.record_reader import RecordReader
    from mmrubric.report.rebuild import find_record

    record = find_record(run)
    groups = list(RecordReader(record).groups(phase, judge_id))
    chosen = [group for group in groups if step is None or group.step == step]
    if not chosen:
        if judge_id is not None or phase is not None:
            groups = list(RecordReader(record).groups())
        known = sorted({(group.phase, group.step, group.judge_id) for group in groups})
        listed = "; ".join(f"{phase}, {step}, {judge}" for phase, step, judge in known[:8]) or "none"
        raise InputError(f"{record}: no samples fit; phases, steps and judges in it: {listed}")
    return chosen


def judge_report_command(
    run: Annotated[Path, typer.Argument(help="Directory of a run, or its record file.", show_default=False)],
    labels: Annotated[
        Path | None, typer.Option(help="What is true: JSONL of {sample_id, criterion_id, met}.", show_default=False)
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Pairs in both orders: JSONL of {pair_id, forward, swapped}.", show_default=False),
    ] = None,
    repeat: Annotated[
        list[Path] | None,
        typer.Option(help="Record of the same samples judged again; may be repeated.", show_default=False),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="NAME=RECORD of the same samples judged after an attack; may be repeated."),
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Only this phase, such as eval, of every record.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this step of every record.")] = None,
    judge_id: Annotated[str | None, typer.Option(help="Only verdicts of this judge.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html and report.json.")] = Path("judge-report"),
    title: Annotated[str, typer.Option(help="Title of the report.")] = "Judge report",
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of prompts, at least 100.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")] = False,
) -> tuple[dict[str, Any], str, str]:
    """Measure how far a judge can be trusted, by labels, both orders, repeats and attacks; writes HTML and JSON."""
    from mmrubric.report.judge_report import judge_report, write_judge_report
    from mmrubric.report.judge_report_inputs import load_labels, load_pairs

    attacks = named_paths(attack or [])
    judged = groups_of(run, phase, step, judge_id)
    report = judge_report(
        judged,
        load_labels(labels) if labels is not None else (),
        pairs=load_pairs(pairs) if pairs is not None else (),
        # A repeat may be made under another id of the same judge, so only the place is fixed.
        repeats=[groups_of(path, phase, step) for path in repeat or ()],
        attacks={name: groups_of(path, phase, step) for name, path in attacks.items()},
        title=title,
        seed=seed,
        resamples=resamples,
    )
    written = write_judge_report(report, out)
    data = {**written.data, "report": str(written.html)}
    return data, data["reliability"]["judge_fidelity"]["summary"], f"Report: {written.html}"


def named_paths(pairs: list[str]) -> dict[str, Path]:
    """NAME=RECORD options by name."""
    named: dict[str, Path] = {}
    for pair in pairs:
        name, equals, path = (part.strip() for part in pair.partition("="))
        if not equals or not name or not path:
            raise InputError(f"--attack {pair!r}: write it as NAME=RECORD")
        if name in named:
            raise InputError(f"--attack {pair!r}: {name!r} is given twice")
        named[name] = Path(path)
    return named
