"""The command line: `mmrubric rubric | judge | compare | quickstart | report | ...`.

The composition root: other packages are imported inside the commands, so that `--help` is quick and a
command needs only what it uses. Every command takes `--json` and then prints one JSON object to standard
output; logs and progress always go to standard error. Exit codes: 0 done, 1 the work failed, 2 bad input.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mmrubric.cli_output import BAD_INPUT, Json, command, has_begun, output
from mmrubric.errors import InputError
from mmrubric.judge_cli import (
    Aggregate,
    AggregateOptions,
    Generator,
    GeneratorOptions,
    JudgeName,
    JudgeOptions,
    PromptOption,
    RubricFile,
    judged,
    options_of,
    rubric_of,
    write_rows,
)
from mmrubric.report.judge_report_cli import EPILOG, judge_report_command
from mmrubric.report.rubric_report_cli import EPILOG as RUBRIC_EPILOG
from mmrubric.report.rubric_report_cli import rubric_report_command
from mmrubric.rubric_cli import PROMPT, rubric_app
from mmrubric.serve_cli import EPILOG as SERVE_EPILOG
from mmrubric.serve_cli import serve_judge_command

_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

app = typer.Typer(
    name="mmrubric",
    help="Align text-to-image generators by rubrics: write checklists, judge by them, train on the verdicts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(rubric_app, name="rubric")


@app.command(
    epilog=f"Example: mmrubric judge one.png two.png --prompt '{PROMPT}'. "
    "Or: mmrubric judge --images DIR --rubric r.yaml --judge http://127.0.0.1:8000/v1"
)
@command
def judge(
    pictures: Annotated[list[Path] | None, typer.Argument(help="Picture files.", show_default=False)] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="Folder of pictures; may be repeated.", show_default=False)
    ] = None,
    prompt: PromptOption = None,
    rubric: RubricFile = None,
    generator: Generator = None,
    option: GeneratorOptions = None,
    judge: JudgeName = "shapes",
    judge_option: JudgeOptions = None,
    aggregate: Aggregate = "mean",
    aggregate_option: AggregateOptions = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Keeps verdicts: a killed run goes on, a finished one answers at once. Default for folders: "
            "runs/judge/verdicts.sqlite.",
            show_default=False,
        ),
    ] = None,
    max_failure_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Stop when more of the verdicts are failures of the judge.")
    ] = 0.05,
    out: Annotated[Path | None, typer.Option(help="Write one JSON line per picture to this file.")] = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Print the judge's reasons as well.")] = False,
    as_json: Json = False,
) -> None:
    """Judge pictures criterion by criterion and score them."""
    from mmrubric.bulk import pictures_in

    paths = [*(pictures or []), *pictures_in(images or [])]
    if not paths:
        raise InputError("no pictures: name picture files, or a folder with --images DIR")
    if images and store is None:
        store = Path("runs/judge/verdicts.sqlite")
    made = rubric_of(prompt, rubric, generator, option)
    result = judged(
        paths, made, judge, judge_option, aggregate, aggregate_option, store, max_failure_share, pictures or []
    )
    if out is not None:
        write_rows(result, out)
    output().show(result.as_json(), *result.tables(reasons), *([f"Written to {out}"] if out is not None else []))


@app.command(epilog=f"Example: mmrubric compare one.png two.png --prompt '{PROMPT}'")
@command
def compare(
    a: Annotated[Path, typer.Argument(help="First picture.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="Second picture.", show_default=False)],
    prompt: PromptOption = None,
    rubric: RubricFile = None,
    generator: Generator = None,
    option: GeneratorOptions = None,
    judge: JudgeName = "shapes",
    judge_option: JudgeOptions = None,
    margin: Annotated[float, typer.Option(help="Smallest difference of scores that decides, in [0, 1].")] = 1e-6,
    dependencies: Annotated[str, typer.Option(help="none, direct or cascade: what a failed parent does.")] = "none",
    as_json: Json = False,
) -> None:
    """Say which of two pictures meets a checklist better, and why."""
    from mmrubric import preference
    from mmrubric.report.console import Compared

    pictures = judged(
        [a, b],
        rubric_of(prompt, rubric, generator, option),
        judge,
        judge_option,
        "weighted",
        [f"dependencies={dependencies}"],
        named=[a, b],
    )
    verdict = preference.compare(pictures.table, 0, 1, margin=margin, dependencies=dependencies)
    result = Compared(pictures, verdict)
    output().show(result.as_json(), *pictures.tables(), result.why)


@app.command(epilog="Example: mmrubric quickstart run.name=first run.seed=1")
@command
def quickstart(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings to change, section.key=value.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Another configuration than configs/shapes/quickstart.yaml.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Align the shipped generator in a few minutes and write a report with pictures, before and after."""
    # Read when these libraries are imported; their bars and remarks would bury the run's own progress.
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from diffusers.utils import logging as diffusers_logging

    diffusers_logging.disable_progress_bar()
    from trainers.quickstart import run

    result = run(config, overrides or [])
    data = {**result.written.data, "report": str(result.written.html)}
    output().show(data, f"[bold]{result.line}[/bold]", f"Report: {result.written.html}")


@app.command(
    epilog="Example: mmrubric report runs/quickstart --aggregate weighted --aggregate-option dependencies=direct"
)
@command
def report(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a run, or its record file.", show_default=False)],
    aggregate: Aggregate = "mean",
    aggregate_option: AggregateOptions = None,
    phase: Annotated[str | None, typer.Option(help="Only this phase, such as train or eval.")] = None,
    judge_id: Annotated[str | None, typer.Option(help="Only verdicts of this judge.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Rewards file (.jsonl); default rewards-AGGREGATE.jsonl in the run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rebuild a run's rewards under another aggregator from its recorded verdicts, without judging again."""
    from mmrubric import aggregate as aggregators
    from mmrubric.report.console import rebuilt_table
    from mmrubric.report.rebuild import rebuild

    scorer = aggregators.build(aggregate, **options_of(aggregate_option, "--aggregate-option"))
    rebuilt = rebuild(run_dir, scorer, aggregate, phase=phase, judge_id=judge_id, out=out)
    output().show(rebuilt.as_json(), rebuilt_table(aggregate, rebuilt.steps), f"Rewards written to {rebuilt.file}")


@app.command(epilog="Example: mmrubric export runs/rpo --out exported --format comfyui")
@command
def export(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a run with its trained model.", show_default=False)],
    out: Annotated[Path, typer.Option(help="New directory for the files.", show_default=False)],
    form: Annotated[
        str, typer.Option("--format", help="diffusers (as trained), or for a LoRA comfyui or kohya.")
    ] = "diffusers",
    as_json: Json = False,
) -> None:
    """Write a run's weights for another program, with a model card."""
    from trainers.card import export_run

    files = [str(path) for path in export_run(run_dir, out, form)]
    output().show({"format": form, "files": files}, f"{len(files)} files in {out}, the first {files[0]}")


@app.command("judge-report", epilog=EPILOG)
@command
@functools.wraps(judge_report_command)
def judge_report(**options: Any) -> None:
    output().show(*judge_report_command(**options))


@app.command("rubric-report", epilog=RUBRIC_EPILOG)
@command
@functools.wraps(rubric_report_command)
def rubric_report(**options: Any) -> None:
    output().show(*rubric_report_command(**options))


@app.command("serve-judge", epilog=SERVE_EPILOG)
@command
@functools.wraps(serve_judge_command)
def serve_judge(**options: Any) -> None:
    for ready in serve_judge_command(**options):
        output().show(*ready)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app(arguments, prog_name="mmrubric")
    except SystemExit as stop:
        # Wrong usage ends before a command runs, so the command could not answer.
        if stop.code == BAD_INPUT and "--json" in arguments and not has_begun():
            print(json.dumps({"error": "wrong usage; see standard error", "type": "UsageError", "exit_code": 2}))
        raise


if __name__ == "__main__":
    main()
