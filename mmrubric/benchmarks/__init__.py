"""Official benchmark items as rubrics, and back.

`load(name, path)` gives one `Rubric` per item; `to_record(name, rubric)` gives the official record again.
`names()` lists the benchmarks; each has a module of its name. What the official files hold beyond a rubric is kept
in `provenance.extra[name]` (there also the item's `id`) and in the criteria's `extra[name]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrubric.benchmarks import dpg, dsg, geneval, mapping, oneig, perception_rubrics, tifa, tiif, unigenbench
from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric


@dataclass(frozen=True)
class Benchmark:
    """The functions of one benchmark."""

    load: Callable[..., Iterator[Rubric]]
    from_record: Callable[..., Rubric]
    to_record: Callable[[Rubric], Any]
    prompts: Callable[[Path], Iterator[Prompt]] | None = None
    """Reads its files that hold prompts alone."""


_BENCHMARKS = {
    "geneval": Benchmark(geneval.load, geneval.from_record, geneval.to_record, geneval.prompts),
    "dpg": Benchmark(dpg.load, dpg.from_record, dpg.to_record, dpg.prompts),
    "dsg": Benchmark(dsg.load, dsg.from_record, dsg.to_record),
    "tifa": Benchmark(tifa.load, tifa.from_record, tifa.to_record, tifa.prompts),
    "unigenbench": Benchmark(unigenbench.load, unigenbench.from_record, unigenbench.to_record),
    "tiif": Benchmark(tiif.load, tiif.from_record, tiif.to_record),
    "oneig": Benchmark(oneig.load, oneig.from_record, oneig.to_record),
    "perception_rubrics": Benchmark(
        perception_rubrics.load, perception_rubrics.from_record, perception_rubrics.to_record
    ),
}


_NO_OPTIONS = {"path", "record", "rows", "records", "where"}
"""Parameters that `load` and `from_record` pass by place."""


def names() -> list[str]:
    """The benchmarks, sorted."""
    return sorted(_BENCHMARKS)


def load(name: str, path: str | Path, **options: Any) -> Iterator[Rubric]:
    """The items of an official file (plain or .gz) as rubrics, in file order, read as they are asked for.

    Args:
        name: one of `names()`.
        options: `questions`, `length` (tiif); `questions`, `category` (oneig).

    Raises:
        InputError: the benchmark or an option is unknown; while reading: file, line, item, field and what to do.
    """
    function = _benchmark(name).load
    _check_options(name, function, options)
    return function(Path(path), **options)


def prompts(name: str, path: str | Path) -> Iterator[Prompt]:
    """The prompts of a file that holds prompts alone, with the ids that the benchmark's rubrics have.

    Read are: generation_prompts.txt (geneval), the folder of .txt files or {item_id, text} lines (dpg),
    tifa_v1.0_text_inputs.json (tifa). Other benchmarks keep prompts and criteria together: use `load`.
    """
    function = _benchmark(name).prompts
    if function is None:
        known = ", ".join(key for key in names() if _BENCHMARKS[key].prompts is not None)
        raise InputError(f"benchmark {name!r} has no file of prompts alone; use load. Benchmarks with one: {known}")
    return function(Path(path))


def from_record(name: str, record: Any, where: str = "record", **options: Any) -> Rubric:
    """One official record as a rubric; for dsg, dpg and tifa the list of an item's records.

    Args:
        record: for tiif and oneig, which have two files, `{"prompt": ..., "questions": ...}`.
        where: begins each error message.
        options: `item`, the id of the item (geneval, tiif: their records hold none); `length` (tiif).

    Raises:
        InputError: the record is wrong; the message names item, field and what to do.
    """
    function = _benchmark(name).from_record
    _check_options(name, function, options)
    return function(record, where, **options)


def to_record(name: str, rubric: Rubric) -> Any:
    """The official record, or list of records, that a rubric came from.

    An unedited rubric gives its record exactly (order of keys aside). An edit is written if a record has a place
    for it, such as a question's text.

    Raises:
        InputError: the rubric did not come from this benchmark, or was edited in a way that a record cannot hold.
    """
    return _benchmark(name).to_record(rubric)


def item_id(name: str, rubric: Rubric) -> str:
    """The official id of the item that a rubric came from."""
    _benchmark(name)
    return str(mapping.kept(name, rubric)["id"])


def _benchmark(name: str) -> Benchmark:
    return _BENCHMARKS[one_of("benchmark", name, _BENCHMARKS)]


def _check_options(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    parameters = {key: p for key, p in inspect.signature(function).parameters.items() if key not in _NO_OPTIONS}
    unknown = [option for option in options if option not in parameters]
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in options]
    if unknown or missing:
        wrong = f"unknown option {', '.join(unknown)}" if unknown else f"option {', '.join(missing)} is missing"
        raise InputError(f"benchmark {name!r}: {wrong}; known: {', '.join(parameters) or 'none'}")


__all__ = [
    "Benchmark",
    "dpg",
    "dsg",
    "from_record",
    "geneval",
    "item_id",
    "load",
    "names",
    "oneig",
    "perception_rubrics",
    "prompts",
    "tifa",
    "tiif",
    "to_record",
    "unigenbench",
]
