"""Where a report goes: one HTML file that opens without a network, and its numbers as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mmrubric.atomic import write_text


@dataclass(frozen=True)
class WrittenReport:
    """Where a report is, and its numbers."""

    html: Path
    json: Path
    data: dict[str, Any]
    """The content of report.json."""


def write_files(data: dict[str, Any], page: str, directory: str | Path) -> WrittenReport:
    """Write `report.html` and `report.json`, each whole or not at all; the folder is made where it is missing."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    written = WrittenReport(folder / "report.html", folder / "report.json", data)
    write_text(written.json, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(written.html, page)
    return written


def filled(template: str, **values: Any) -> str:
    """A page of this package with its values, the style sheet and the version."""
    css = Markup(source_of("page.css"))
    return _environment().get_template(template).render(css=css, version=_version(), **values)


def source_of(name: str) -> str:
    """Text of a file of this package that pages hold, such as a script."""
    environment = _environment()
    load = environment.loader
    assert load is not None
    return load.get_source(environment, name)[0]


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """The templates, compiled once per process."""
    return Environment(
        loader=PackageLoader("mmrubric.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mmrubric")
    except PackageNotFoundError:
        # A source checkout on PYTHONPATH has no version of its own.
        return "(source)"
