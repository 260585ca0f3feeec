"""What the commands `rubric`, `judge` and `compare` share: their options, and from options to verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from mmrubric.cli_output import progress
from mmrubric.errors import InputError

if TYPE_CHECKING:
    from mmrubric.judging import Judge
    from mmrubric.report.console import JudgedPictures
    from mmrubric.rubric import Rubric

PromptOption = Annotated[str | None, typer.Option("--prompt", "-p", help="Write the checklist for this prompt.")]
RubricFile = Annotated[Path | None, typer.Option("--rubric", "-r", help="A checklist file (.yaml or .json).")]
Generator = Annotated[
    str | None,
    typer.Option(
        help="Who writes the checklist; without it shapes for a prompt of the world of shapes, and template, which "
        "works by rules, for any other.",
        show_default=False,
    ),
]
GeneratorOptions = Annotated[
    list[str] | None, typer.Option("--option", help="Option of the generator, key=value; may be repeated.")
]
JudgeName = Annotated[
    str, typer.Option("--judge", help="Who judges: a name, or the address of a server such as http://host:8000/v1.")
]
JudgeOptions = Annotated[list[str] | None, typer.Option(help="Option of the judge, key=value; may be repeated.")]
Aggregate = Annotated[str, typer.Option(help="How verdicts become a score: mean, weighted, points, ...")]
AggregateOptions = Annotated[
    list[str] | None, typer.Option(help="Option of the aggregator, key=value; may be repeated.")
]


def options_of(pairs: list[str] | None, flag: str) -> dict[str, Any]:
    """`key=value` pairs; values are read as YAML, so numbers, lists and true/false come out as such.

    Raises:
        InputError: a pair without '=', a repeated key, or a value that is no YAML.
    """
    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{flag} {pair!r}: write it as key=value")
        if key.strip() in options:
            raise InputError(f"{flag} {pair!r}: {key.strip()!r} is given twice")
        try:
            options[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"{flag} {pair!r}: the value is not valid YAML") from error
    return options


def rubric_of(prompt: str | None, file: Path | None, generator: str | None, options: list[str] | None) -> Rubric:
    """The rubric of `--rubric FILE`, or one generated from `--prompt`."""
    from mmrubric.rubric import Rubric

    if (prompt is None) == (file is None):
        raise InputError("give either --prompt TEXT (a checklist is written for it) or --rubric FILE, not both")
    if file is not None:
        if options:
            raise InputError("--option belongs to the rubric generator, which --rubric FILE does not use")
        return Rubric.load(file)
    assert prompt is not None
    return generate(prompt, generator, options_of(options, "--option"))


def generate(text: str, generator: str | None, options: dict[str, Any], sources: Sequence[Path] = ()) -> Rubric:
    """The rubric of a prompt that a person typed."""
    from mmrubric import generators
    from mmrubric.prompt import Prompt

    text = text.strip()
    if not text:
        raise InputError("the prompt is empty: write what the picture should show")
    prompt = Prompt(id="prompt", text=text, sources=tuple(sources))
    return generators.build(generator or _suits(text), **options).generate_sync(prompt, prompt.sources)


def _suits(text: str) -> str:
    """The generator for a prompt when nobody names one."""
    from mmrubric.shapes.grammar import parse

    try:
        parse(text)
    except InputError:
        return "template"
    return "shapes"


def build_judge(name: str, options: dict[str, Any]) -> Judge:
    """The judge of a name, or the VLM judge of a server's address (several with commas between them).

    The model of a server that serves one need not be named.
    """
    import judges

    if not name.startswith(("http://", "https://")):
        return judges.build(name, **options)
    from mmrubric.llm import only_model

    if "base_url" in options:
        raise InputError("--judge-option base_url: --judge already gives the address; several go there with commas")
    urls = [url.strip() for url in name.split(",") if url.strip()]
    known = {"model": only_model(urls[0])} if "model" not in options else {}
    return judges.build("vlm", base_url=urls, **known, **options)


def judged(
    images: Sequence[Path],
    rubric: Rubric,
    judge: str,
    judge_options: list[str] | None,
    aggregate: str,
    aggregate_options: list[str] | None,
    store: Path | None = None,
    max_failure_share: float = 1.0,
    named: Sequence[Path] = (),
) -> JudgedPictures:
    """Judge pictures by one rubric; what a person typed is checked before the judge is built.

    `named` are the pictures that were named one by one: a bad one is bad input. A bad one in a folder is a failure of
    its own, and the others are judged.
    """
    from mmrubric import aggregate as aggregators
    from mmrubric.bulk import judge_pictures
    from mmrubric.images import normalize
    from mmrubric.report.console import JudgedPictures
    from mmrubric.scores import ScoreTable, sample_completion
    from mmrubric.store import Store

    scorer = aggregators.build(aggregate, **options_of(aggregate_options, "--aggregate-option"))
    scorer.check(rubric)
    for path in named:
        normalize(path)
    options = options_of(judge_options, "--judge-option")
    kept = None
    if store is not None:
        store.parent.mkdir(parents=True, exist_ok=True)
        kept = Store(store)
    reader = build_judge(judge, options)
    with progress("judging", len(images)) as advance:
        rows = judge_pictures(reader, rubric, list(images), kept, max_failure_share, advance)
    ids = [f"{k}:{path}" for k, path in enumerate(images)]
    verdicts = [[replace(v, sample_id=id) for v in row] for id, row in zip(ids, rows, strict=True)]
    table = ScoreTable.from_verdicts(rubric, ids, verdicts)
    return JudgedPictures(
        rubric,
        [str(path) for path in images],
        table,
        verdicts,
        reader.id,
        aggregate,
        scorer(table),
        sample_completion(table),
    )


def write_rows(result: JudgedPictures, path: Path) -> None:
    """One JSON line per picture, with everything that was found out about it."""
    data = result.as_json()
    shared = {key: value for key, value in data.items() if key != "images"}
    lines = [json.dumps(shared | row, ensure_ascii=False, allow_nan=False) for row in data["images"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
