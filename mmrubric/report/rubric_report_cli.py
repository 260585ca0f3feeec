"""The command `mmrubric rubric-report`: rubric files, and what was judged by them, to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmrubric.errors import InputError
from mmrubric.report.judge_report_cli import groups_of, named_paths

if TYPE_CHECKING:
    from mmrubric.record_reader import RecordedGroup
    from mmrubric.similar import Encoder

EPILOG = "Example: mmrubric rubric-report --rubrics rubrics.jsonl --record runs/judge --out runs/rubric-report"
_ENCODERS = ("words", "ngrams")


def rubric_report_command(
    more: Annotated[list[Path] | None, typer.Argument(help="More rubric files.", show_default=False)] = None,
    rubrics: Annotated[
        list[Path] | None,
        typer.Option(help="Rubric file (.yaml, .json, .jsonl); may be repeated.", show_default=False),
    ] = None,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            help="Run, or record file, judged by these rubrics; may be repeated. Without --rubrics its own are used."
        ),
    ] = None,
    verdicts: Annotated[
        list[Path] | None, typer.Option(help="Rows that `mmrubric judge --out` wrote; may be repeated.")
    ] = None,
    preferred: Annotated[
        Path | None, typer.Option(help="Which samples are preferred: JSONL of {sample_id, preferred}.")
    ] = None,
    proxy: Annotated[
        Path | None,
        typer.Option(
            help="Pairs that a proxy decided by these rubrics: JSONL of {pair_id, forward, swapped, preferred}."
        ),
    ] = None,
    proxy_without: Annotated[Path | None, typer.Option(help="The same pairs, decided without any rubric.")] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="NAME=RECORD of the samples of --record judged after an attack; may be repeated."),
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Only this phase, such as eval, of every record.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this step of every record.")] = None,
    judge_id: Annotated[str | None, typer.Option(help="Only verdicts of this judge in every record.")] = None,
    encoder: Annotated[str, typer.Option(help="How repeats are found: words, or ngrams (also by spelling).")] = "words",
    out: Annotated[Path, typer.Option(help="Folder for report.html and report.json.")] = Path("rubric-report"),
    title: Annotated[str, typer.Option(help="Title of the report.")] = "Rubric report",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")] = False,
) -> tuple[dict[str, Any], str, str]:
    """Measure how good rubrics are, by wording, prompt, verdicts and a proxy's decisions; writes HTML and JSON."""
    from mmrubric.cli_output import progress
    from mmrubric.report.judge_report_inputs import load_pairs
    from mmrubric.report.judge_report_numbers import attack_of
    from mmrubric.report.rubric_report import rubric_report, write_rubric_report
    from mmrubric.report.rubric_report_inputs import Source, load_preferred, load_rubrics, load_verdicts, of_groups

    similar, attacks = _encoder(encoder), named_paths(attack or [])
    files, records = [*(rubrics or ()), *(more or ())], record or []
    if not files and not records:
        raise InputError("no rubrics: name rubric files with --rubrics FILE, or a run with --record RUN")
    if attacks and len(records) != 1:
        raise InputError(f"--attack compares with one record; give --record once, got {len(records)}")
    groups = [group for path in records for group in groups_of(path, phase, step, judge_id)]
    sources = load_rubrics(files) or [Source(group.rubric, group.prompt_id) for group in _first(groups).values()]
    known = {source.rubric.hash: source.rubric for source in sources}
    judged = of_groups(groups) + [item for path in verdicts or () for item in load_verdicts(path, known)]
    probes = [attack_of(name, groups, groups_of(path, phase, step)) for name, path in attacks.items()]
    with progress("reading", len(sources)) as advance:
        report = rubric_report(
            sources,
            judged,
            preferred=load_preferred(preferred) if preferred is not None else None,
            proxy=load_pairs(proxy) if proxy is not None else (),
            without=load_pairs(proxy_without) if proxy_without is not None else None,
            probes=probes,
            encoder=similar,
            title=title,
            advance=advance,
        )
    written = write_rubric_report(report, out)
    data = {**written.data, "report": str(written.html)}
    return data, data["reliability"]["rubric_quality"]["summary"], f"Report: {written.html}"


def _encoder(name: str) -> Encoder | None:
    from mmrubric.checks import one_of
    from mmrubric.similar import ngram_encoder

    return ngram_encoder if one_of("--encoder", name, _ENCODERS) == "ngrams" else None


def _first(groups: Sequence[RecordedGroup]) -> Mapping[str, RecordedGroup]:
    """The first group of each rubric."""
    found: dict[str, RecordedGroup] = {}
    for group in groups:
        found.setdefault(group.rubric.hash, group)
    return found
