"""`mmrubric rubric`: write checklists, one or many; edit, compare and convert them; training data for a writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from mmrubric.atomic import write_text
from mmrubric.cli_output import FAILED, Json, command, output, progress
from mmrubric.errors import InputError
from mmrubric.judge_cli import Generator, GeneratorOptions, generate, options_of

if TYPE_CHECKING:
    from mmrubric.generators import RubricGenerator
    from mmrubric.rubric import Rubric

PROMPT = "three blue squares on a white background"
_WRITE = "write"


class _WriteByDefault(TyperGroup):
    """`mmrubric rubric PROMPT` is `mmrubric rubric write PROMPT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_WRITE, *args]
        return super().parse_args(ctx, args)


rubric_app = typer.Typer(
    cls=_WriteByDefault,
    help="Write checklists (the word `write` may be left out), edit, compare and convert them.",
    no_args_is_help=True,
    epilog=f"Example: mmrubric rubric '{PROMPT}' --out squares.yaml",
)
RubricPath = Annotated[Path, typer.Argument(help="A checklist file (.yaml or .json).", show_default=False)]
Edits = Annotated[list[str] | None, typer.Option(show_default=False)]


@rubric_app.command(
    _WRITE,
    epilog=f"Examples: mmrubric rubric '{PROMPT}' --out squares.yaml. mmrubric rubric --prompts prompts.jsonl "
    "--generator direct --option base_url=http://127.0.0.1:8000/v1 --option model=NAME --out rubrics.jsonl",
)
@command
def write(
    prompt: Annotated[str | None, typer.Argument(help="What the picture should show.", show_default=False)] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl or .txt file of prompts, in place of one.", show_default=False)
    ] = None,
    generator: Generator = None,
    option: GeneratorOptions = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            help="Source image, where the prompt is an edit; may be repeated, the one that is edited first.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write: .yaml or .json for one, .jsonl for many.", show_default=False)
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Keeps a model's answers: a killed run goes on. Default for --prompts: beside --out.",
            show_default=False,
        ),
    ] = None,
    max_failure_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Of --prompts: stop when the model fails on more of them.")
    ] = 0.2,
    as_json: Json = False,
) -> None:
    """Write the checklist of a prompt, or of each prompt of a file (by `template` where no generator is named)."""
    if (prompt is None) == (prompts is None):
        raise InputError("give either a PROMPT or --prompts FILE, not both")
    if out is not None:
        _check_out(out, (".jsonl",) if prompts is not None else (".yaml", ".yml", ".json"))
    options = options_of(option, "--option")
    if prompts is not None:
        if out is None:
            raise InputError("--prompts needs --out FILE.jsonl, one checklist a line")
        if source:
            raise InputError("--source belongs to one PROMPT; in a file of prompts each line names its own")
        _write_many(prompts, generator or "template", options, out, store, max_failure_share)
        return
    from mmrubric.report.console import rubric_table

    assert prompt is not None
    made = generate(prompt, generator, _with_store(generator, options, store), source or ())
    if out is not None:
        made.save(out)
    data = {**made.model_dump(mode="json"), "hash": made.hash, "file": None if out is None else str(out)}
    notes = [f"Note: {note}" for note in made.provenance.notes]
    output().show(data, rubric_table(made), *notes, *([f"Written to {out}"] if out is not None else []))


def _check_out(out: Path, suffixes: tuple[str, ...]) -> None:
    """Refuses a file that cannot be written, before anything is asked."""
    if out.suffix not in suffixes:
        raise InputError(f"--out {out}: unknown file type {out.suffix!r}; known here: {', '.join(suffixes)}")
    out.parent.mkdir(parents=True, exist_ok=True)


def _write_many(
    prompts: Path, generator: str, options: dict[str, Any], out: Path, store: Path | None, max_failure_share: float
) -> None:
    from mmrubric import generators
    from mmrubric.generate_bulk import generate_all, read_prompts
    from mmrubric.rubric import Rubric

    listed = read_prompts(prompts)
    if store is None and _takes_store(generator, options):
        store = out.with_suffix(".answers.sqlite")
    writer = generators.build(generator, **_with_store(generator, options, store))
    with progress("writing checklists", len(listed)) as advance:
        made = generate_all(writer, listed, max_failure_share=max_failure_share, advance=advance)
    if made.rubrics:
        Rubric.save_many(made.rubrics, out)
    spent = _spent(writer)
    data = {
        "file": str(out),
        "rubrics": len(made.rubrics),
        "criteria": sum(len(rubric.criteria) for rubric in made.rubrics),
        "fell_back": len(made.fell_back),
        "failed": made.failed,
        **spent,
    }
    lines = [f"{len(made.rubrics)} checklists with {data['criteria']} criteria written to {out}"]
    if spent:
        price = "unknown" if spent["price"] is None else f"{spent['price']:.4g}"
        lines.append(
            f"{spent['calls']} calls, {spent['prompt_tokens']} + {spent['completion_tokens']} tokens, price {price}"
        )
    lines += _first(f"{len(made.fell_back)} by the fallback", made.fell_back)
    lines += _first(f"{len(made.failed)} prompts have no checklist", made.failed)
    output().show(data, *lines)
    if made.failed:
        raise typer.Exit(FAILED)


def _first(what: str, reasons: dict[str, str]) -> list[str]:
    return [f"{what}; the first, {id}: {reason}" for id, reason in list(reasons.items())[:1]]


def _spent(writer: RubricGenerator) -> dict[str, Any]:
    """What a generator that asks a model has spent in this run."""
    asked = getattr(writer, "models_asked", list)()
    if not asked:
        return {}
    usages = list({id(client.usage): client.usage for client in asked}.values())
    prices = [usage.price for usage in usages]
    return {
        "calls": sum(usage.calls for usage in usages),
        "failed_calls": sum(usage.failed for usage in usages),
        "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
        "completion_tokens": sum(usage.completion_tokens for usage in usages),
        "price": None if None in prices else sum(price for price in prices if price is not None),
    }


def _takes_store(generator: str | None, options: dict[str, Any]) -> bool:
    from mmrubric import generators

    return generator is not None and "store" not in options and "store" in generators.registry.options(generator)


def _with_store(generator: str | None, options: dict[str, Any], store: Path | None) -> dict[str, Any]:
    """The generator's options with the store that was asked for."""
    if store is None:
        return options
    if not _takes_store(generator, options):
        raise InputError(
            f"--store {store}: the generator {generator or 'template'!r} asks no model, or has one already"
        )
    store.parent.mkdir(parents=True, exist_ok=True)
    return {**options, "store": store}


@rubric_app.command("edit", epilog="Example: mmrubric rubric edit r.yaml --weight count=2 --disable category:realism")
@command
def edit(
    file: RubricPath,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: the same file.", show_default=False)
    ] = None,
    weight: Annotated[list[str] | None, typer.Option(help="ID=NUMBER", show_default=False)] = None,
    polarity: Annotated[list[str] | None, typer.Option(help="ID=wanted or ID=unwanted", show_default=False)] = None,
    disable: Annotated[list[str] | None, typer.Option(help="Switch off; --enable brings it back.")] = None,
    enable: Edits = None,
    lock: Annotated[list[str] | None, typer.Option(help="Later edits and drafts leave it alone.")] = None,
    unlock: Edits = None,
    remove: Edits = None,
    add: Annotated[list[str] | None, typer.Option(help="CATEGORY=STATEMENT, or a statement alone.")] = None,
    as_json: Json = False,
) -> None:
    """Edit a checklist. ID is a criterion, or category:NAME for all of a kind; every option may be repeated.

    The order is: unlock, remove, disable, enable, polarity, weight, add, lock.
    """
    from mmrubric import editing
    from mmrubric.report.console import diff_lines, rubric_table
    from mmrubric.rubric import Rubric

    before = Rubric.load(file)
    steps: Iterable[tuple[list[str] | None, Callable[[Rubric, str], Rubric]]] = (
        (unlock, lambda rubric, name: editing.set_locked(rubric, name, False)),
        (remove, editing.remove),
        (disable, editing.disable),
        (enable, editing.enable),
        (polarity, lambda rubric, pair: editing.set_polarity(rubric, *_pair(pair, "--polarity"))),  # pyright: ignore
        (weight, _weigh),
        (add, _add),
        (lock, lambda rubric, name: editing.set_locked(rubric, name, True)),
    )
    after = before
    for values, apply in steps:
        for value in values or []:
            after = apply(after, value)
    if after == before:
        raise InputError("no edit was asked for; see mmrubric rubric edit --help")
    # One edit of a person is one version, however many steps it has.
    version = {"version": before.provenance.version + 1, "parent": before.hash}
    after = after.model_copy(update={"provenance": after.provenance.model_copy(update=version)})
    target = out or file
    _check_out(target, (".yaml", ".yml", ".json"))
    data = {**after.model_dump(mode="json"), "hash": after.hash, "file": str(target)}
    after.save(target)
    output().show(data, rubric_table(after), *diff_lines(editing.diff(before, after)), f"Written to {target}")


def _pair(text: str, flag: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not name.strip() or not value.strip():
        raise InputError(f"{flag} {text!r}: write it as ID=VALUE")
    return name.strip(), value.strip()


def _weigh(rubric: Rubric, pair: str) -> Rubric:
    from mmrubric import editing

    name, value = _pair(pair, "--weight")
    try:
        number = float(value)
    except ValueError as error:
        raise InputError(f"--weight {pair!r}: {value!r} is not a number") from error
    return editing.set_weight(rubric, name, number)


def _add(rubric: Rubric, text: str) -> Rubric:
    from mmrubric import editing
    from mmrubric.generators.items import slug, with_unique_ids

    category, equals, statement = text.partition("=")
    if not equals or not category.strip().isidentifier():
        category, statement = "general", text
    new = editing.parse_criterion(statement, id=slug(statement), category=category.strip())
    return editing.add(rubric, with_unique_ids([*rubric.criteria, new])[-1])


@rubric_app.command("diff", epilog="Example: mmrubric rubric diff a.yaml b.yaml")
@command
def diff(a: RubricPath, b: RubricPath, as_json: Json = False) -> None:
    """Show what differs between two checklists."""
    from mmrubric import editing
    from mmrubric.report.console import diff_json, diff_lines
    from mmrubric.rubric import Rubric

    found = editing.diff(Rubric.load(a), Rubric.load(b))
    output().show({"a": str(a), "b": str(b), **diff_json(found)}, *(diff_lines(found) or ["No difference."]))


@rubric_app.command("convert", epilog="Example: mmrubric rubric convert healthbench.jsonl --out rubrics.jsonl")
@command
def convert(
    file: Annotated[Path, typer.Argument(help="Rubrics in any format that is known.", show_default=False)],
    out: Annotated[Path, typer.Option(help="File to write.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Format of the file; without it, it is told by its content.")
    ] = None,
    target: Annotated[str, typer.Option("--to", help="Format to write.")] = "mmrubric",
    lossy: Annotated[bool, typer.Option("--lossy", help="Drop what the format cannot hold, and say what.")] = False,
    as_json: Json = False,
) -> None:
    """Convert rubric files between the formats of the field."""
    from mmrubric import formats

    out.parent.mkdir(parents=True, exist_ok=True)
    made = formats.write(formats.read(file, source), out, target, lossy=lossy)
    lines = [f"Dropped: {field}, {count} times" for field, count in made.dropped.items()]
    data = {"file": str(out), "rubrics": made.rubrics, "dropped": made.dropped}
    output().show(data, f"{made.rubrics} rubrics written to {out}", *lines)


@rubric_app.command("export-sft", epilog="Example: mmrubric rubric export-sft rubrics.jsonl --out sft.jsonl")
@command
def export_sft(
    file: Annotated[Path, typer.Argument(help="Rubrics, one a line (.jsonl).", show_default=False)],
    out: Annotated[Path, typer.Option(help="Chat rows for `trl sft` (.jsonl).")],
    prompts: Annotated[str, typer.Option(help="Prompt file of the generator `learned`; without it, its own.")] = "",
    as_json: Json = False,
) -> None:
    """Write training data for a model that writes checklists."""
    from mmrubric.generators.rubricgen import sft_rows
    from mmrubric.rubric import Rubric

    rows, left_out = sft_rows(Rubric.load_many(file), prompts)
    reasons = [f"{count} left out: {reason}" for reason, count in left_out.items()]
    if not rows:
        raise InputError(f"{file}: no rubric to learn from; {'; '.join(reasons)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    data = {"file": str(out), "rows": len(rows), "left_out": dict(left_out)}
    output().show(data, f"{len(rows)} rows written to {out}", *reasons)
