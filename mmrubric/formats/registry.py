"""The table of formats: name, reader, how to recognise it, writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmrubric import rubric_io
from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.formats import autorubric, detection, healthbench, lists, prbench, rar, rows, rubrichub, texts, verl
from mmrubric.formats.base import Format, Loss, Place
from mmrubric.formats.fields import decoded
from mmrubric.formats.pairs import RankedCandidates, from_arr_pairs, from_openrubrics_pairs
from mmrubric.rubric import Rubric


def _from_mmrubric(raw: Any, place: Place) -> list[Rubric]:
    return [rubric_io.parse(decoded(raw), place.text)]


def _to_mmrubric(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    return rubric_io.dump(rubric)


FORMATS: dict[str, Format] = {
    "advancedif": Format(rows.from_advancedif, detection.advancedif),
    "auto_rubric": Format(rows.from_auto_rubric, detection.auto_rubric),
    "autorubric": Format(autorubric.from_autorubric, detection.autorubric, autorubric.to_autorubric, lists=True),
    "autorubric_dataset": Format(autorubric.from_dataset, detection.autorubric_dataset),
    "healthbench": Format(healthbench.from_healthbench, detection.healthbench, healthbench.to_healthbench),
    "healthbench_professional": Format(
        healthbench.from_professional, detection.healthbench_professional, healthbench.to_professional
    ),
    "mmrubric": Format(_from_mmrubric, detection.mmrubric, _to_mmrubric),
    "openrubrics": Format(texts.from_openrubrics, detection.openrubrics),
    "prbench": Format(prbench.from_prbench, detection.prbench, prbench.to_prbench),
    "prometheus": Format(texts.from_prometheus, detection.prometheus),
    "rar": Format(rar.from_rar, detection.rar, rar.to_rar),
    "researchrubrics": Format(lists.from_researchrubrics, detection.researchrubrics),
    "rubric_2_2": Format(autorubric.from_rubric_2_2, detection.rubric_2_2, lists=True),
    "rubric_reward_lens": Format(lists.from_reward_lens, detection.rubric_reward_lens),
    "rubrichub": Format(verl.from_rubrichub, detection.rubrichub, verl.to_rubrichub),
    "rubrichub_questions": Format(rubrichub.from_questions, detection.rubrichub_questions, rubrichub.to_questions),
    "rubrichub_sft": Format(rubrichub.from_sft, detection.rubrichub_sft),
    "text": Format(texts.from_text, detection.text),
    "verifiers": Format(lists.from_verifiers, detection.verifiers),
    "verl": Format(verl.from_verl, detection.verl, verl.to_verl),
    "vertex": Format(lists.from_vertex, detection.vertex, lists=True),
    "wildchecklists": Format(texts.from_wildchecklists, detection.wildchecklists),
}

PAIR_FORMATS: dict[str, Callable[[Any, Place], RankedCandidates]] = {
    "arr_pairs": from_arr_pairs,
    "openrubrics": from_openrubrics_pairs,
}


def names(export: bool = False) -> list[str]:
    """Names of the rubric formats, sorted; with `export`, only of those that can be written."""
    return sorted(name for name, format in FORMATS.items() if not export or format.write is not None)


def pair_names() -> list[str]:
    """Names of the formats that `read_pairs` reads."""
    return sorted(PAIR_FORMATS)


def find(name: str) -> Format:
    """The format `name`; `InputError` that lists the known ones otherwise."""
    if name in PAIR_FORMATS and name not in FORMATS:
        raise InputError(f"format {name!r} holds preference pairs, not rubrics; use formats.read_pairs")
    return FORMATS[one_of("format", name, FORMATS)]


def from_record(format: str, record: Any, where: str = "record") -> list[Rubric]:
    """The rubrics of one record: one as a rule, none when the record has no rubric, several for a data set.

    Args:
        format: one of `names()`.
        record: plain data; JSON text, numpy arrays and scalars inside are decoded.
        where: begins every error and warning, such as `file.jsonl:3`.

    Raises:
        InputError: names place, record, criterion and field.
    """
    return find(format).read(record, Place(where))


def pair_from_record(format: str, record: Any, where: str = "record") -> RankedCandidates:
    """The preference pair of one record; `format` is one of `pair_names()`."""
    return PAIR_FORMATS[one_of("pair format", format, PAIR_FORMATS)](record, Place(where))


def to_record(format: str, rubric: Rubric, lossy: bool = False) -> tuple[Any, list[str]]:
    """One rubric as a record of `format`, and what was dropped, one line each.

    Features that change a score (hard, depends_on, scale, expected, verifier) are refused where the format cannot
    hold them, unless `lossy`. Ids, category and grain, which change no score, are written as further keys of a
    criterion. The provenance is written by format mmrubric only.

    Raises:
        InputError: the format is import-only, or cannot hold the rubric and `lossy` is false.
    """
    record, loss = written(format, rubric)
    dropped = loss.described()
    if dropped and not lossy:
        raise InputError(f"{too_much(format)}: {'; '.join(dropped)}. {HINT}")
    return record, dropped


HINT = "Export with lossy=True to leave these out, or as mmrubric, which holds everything"


def too_much(format: str) -> str:
    """How an error about losses begins."""
    return f"format {format!r} cannot hold"


def written(format: str, rubric: Rubric) -> tuple[Any, Loss]:
    """The record and its losses, whatever they are."""
    write = find(format).write
    if write is None:
        raise InputError(f"format {format!r} is import-only; formats that can be written: {', '.join(names(True))}")
    loss = Loss()
    return write(rubric, loss), loss
