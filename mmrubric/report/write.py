"""Writes a report: one HTML file that opens without a network, and its numbers as JSON beside it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mmrubric.report import page
from mmrubric.report.model import AlignmentReport
from mmrubric.report.numbers import Numbers, as_json, compute
from mmrubric.report.written import WrittenReport, filled, source_of, write_files

PICTURES = 48
"""Prompts shown with pictures."""
PICTURE_BUDGET = 2_300_000
"""Characters of picture data in a page, so that the file stays below 3 MB."""
STRIP = 10
"""Prompts in the strip below the headline; their pictures stand in the file twice."""


@dataclass(frozen=True)
class Written(WrittenReport):
    """Where the report of a run is, and its numbers, also as they were computed."""

    numbers: Numbers


def write_report(
    report: AlignmentReport,
    directory: str | Path,
    *,
    pictures: int = PICTURES,
    resamples: int = 10_000,
    began: float | None = None,
) -> Written:
    """Write `report.html` and `report.json`.

    Args:
        report: the run; checked first.
        directory: made when it is not there.
        pictures: most prompts to show with pictures: the first ones that have any, never a choice by result.
        resamples: of the 95 % bootstrap over prompts.
        began: `time.perf_counter()` at the start of the run; `seconds` is then taken after the numbers are
            computed, so that it holds all but the writing of the files.

    Raises:
        InputError: `report.check()` refuses it; a missing reliability section is named.
    """
    report.check()
    computing = time.perf_counter()
    numbers = compute(report, resamples=resamples)
    if began is not None:
        now = time.perf_counter()
        timings = {**report.timings, "numbers of the report": now - computing}
        report = replace(report, seconds=now - began, timings=timings)
    data = as_json(report, numbers)
    text = render(report, numbers, pictures=pictures)
    files = write_files(data, text, directory)
    return Written(files.html, files.json, data, numbers)


def _script_json(value: Any) -> Markup:
    """JSON for a script element: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def render(report: AlignmentReport, numbers: Numbers, *, pictures: int = PICTURES) -> str:
    """The page as text.

    Raises:
        InputError: a reliability section is missing (named), or a picture cannot be read.
    """
    report.reliability.require_all()
    # matplotlib takes a while to import, and the command line's other uses of this package draw nothing.
    from mmrubric.report.plots import curve_plot, kinds_plot, smoothing

    strip_share = 1 + min(STRIP, pictures) / max(1, pictures)
    shown = page.cards(report, numbers, pictures, int(PICTURE_BUDGET / strip_share))
    sections = [
        (
            key,
            name,
            {
                "summary": section.summary,
                "measures": [
                    {"name": m.name, "note": m.note, "look": m.look, "shown": page.shown_measure(m)}
                    for m in section.measures
                ],
            },
        )
        for key, name, section in report.reliability.items()
    ]
    flow = page.flow(numbers.judge)
    rows = page.kind_rows(numbers.judge)
    return filled(
        "page.html.j2",
        title=report.title,
        js=Markup(source_of("page.js")),
        headline=page.headline(report, numbers),
        method=report.method,
        tiles=page.tiles(report, numbers),
        notices=page.notices(report),
        strip=shown[:STRIP] if len(shown) >= STRIP else [],
        selection=page.selection(report, len(shown)),
        cards=shown,
        states=page.states(shown),
        kind_names=[k.kind for k in numbers.judge.per_kind],
        second=page.second_reader(report, numbers),
        prompts=f"{numbers.prompts:,}",
        kinds_svg=Markup(kinds_plot(numbers.judge.per_kind)),
        kind_rows=rows,
        flow=flow,
        flow_label=", ".join(f"{f['count']} {f['name']}" for f in flow),
        curve_svg=Markup(curve_plot(report.curve)) if report.curve else "",
        window=smoothing(len(report.curve)),
        timings=[
            {"name": name, "seconds": f"{seconds:.3f}", "shown": page.duration(seconds)}
            for name, seconds in report.timings.items()
        ],
        total_time=page.duration(report.seconds),
        reliability=sections,
        settings=page.settings(report.settings),
        all_prompts=page.all_prompts(report, numbers),
        reasons=_script_json({str(k): c.reasons for k, c in enumerate(shown)}),
    )
