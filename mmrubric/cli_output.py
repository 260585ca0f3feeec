"""What every command does: its result to standard output, the rest to standard error, errors to exit codes."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmrubric.errors import InputError

P = ParamSpec("P")
BAD_INPUT, FAILED = 2, 1
_NO_BAR = 16
"""So few things need no progress bar."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]


class Output:
    """Where a command's result goes: a printed table, or with `--json` the one JSON object."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.stdout = sys.stdout
        self.answered = False

    def show(self, data: dict[str, Any], *renderables: Any) -> None:
        """Print `data` under `--json`, otherwise the renderables (rich tables or text)."""
        if self.as_json:
            self.answered = True
            self.stdout.write(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")
            self.stdout.flush()
            return
        console = Console(file=self.stdout)
        for item in renderables:
            console.print(item, highlight=False)

    def fail(self, error: BaseException, code: int) -> None:
        """The error on standard error, and under `--json` as the one object on standard output as well."""
        if code == FAILED and "MMRUBRIC_DEBUG" in os.environ:
            traceback.print_exception(error, file=sys.stderr)
        message = str(error).strip() or type(error).__name__
        label = "Bad input" if code == BAD_INPUT else f"Failed ({type(error).__name__})"
        print(f"{label}: {message}", file=sys.stderr)
        if self.as_json and not self.answered:
            self.show({"error": message, "type": type(error).__name__, "exit_code": code})


_output: ContextVar[Output | None] = ContextVar("output", default=None)


def output() -> Output:
    """Of the command that runs."""
    current = _output.get()
    assert current is not None, "only inside a command"
    return current


def has_begun() -> bool:
    """Whether a command has begun to run, and so answers itself."""
    return _output.get() is not None


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Turn exceptions into exit codes, set up logging, and keep standard output clean."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        out = Output(bool(kwargs.get("as_json")))
        _output.set(out)
        handler = RichHandler(console=Console(stderr=True), show_path=False, show_time=False)
        logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s", force=True)
        warnings.showwarning = lambda message, *place, **more: logging.warning("%s", message)
        try:
            # What libraries print goes to standard error: standard output is the result's alone.
            with contextlib.redirect_stdout(sys.stderr):
                function(*args, **kwargs)
        except typer.Exit:
            raise
        except InputError as error:
            out.fail(error, BAD_INPUT)
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt as error:
            out.fail(RuntimeError("interrupted"), FAILED)
            raise typer.Exit(FAILED) from error
        except Exception as error:
            out.fail(error, FAILED)
            raise typer.Exit(FAILED) from error

    return run


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; gives the function that moves it on. None is shown for a few things."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=total <= _NO_BAR) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
