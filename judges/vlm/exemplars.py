"""Worked examples that a judge sees before its question (few-shot judging)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judges.vlm.scales import possible
from mmrubric.errors import InputError
from mmrubric.judging import Candidate, JudgeRequest, PairRequest
from mmrubric.rubric import Rubric


@dataclass(frozen=True)
class Exemplar:
    """A candidate with the right answers, for the modes per_criterion and batched.

    Raises:
        InputError: no answers, an answer to a criterion that the rubric lacks, or one that is not of its scale.
    """

    request: JudgeRequest
    answers: Mapping[str, str | int]
    """By criterion id: yes, no or unknown; a level from 1; or a label. Criteria without one are not shown."""
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.answers:
            raise InputError("exemplar: field answers is empty; give the right answer to at least one criterion")
        for id, answer in self.answers.items():
            known = possible(self.request.rubric.criterion(id))
            if isinstance(answer, bool) or answer not in known:
                raise InputError(f"exemplar: criterion {id!r}: answer {answer!r} is none of {known}")
        unknown = sorted(set(self.reasons) - set(self.answers))
        if unknown:
            raise InputError(f"exemplar: reasons for {unknown}, which have no answer")


@dataclass(frozen=True)
class RankExemplar:
    """Two candidates with the right rank, for the mode joint_rank. Let the better one be first about half the time.

    Raises:
        InputError: a rank other than (1, 2), (2, 1) and (1, 1).
    """

    request: PairRequest
    rank: tuple[int, int]
    reason: str = ""

    def __post_init__(self) -> None:
        if tuple(self.rank) not in ((1, 2), (2, 1), (1, 1)):
            raise InputError(f"exemplar: rank {self.rank!r} is none of [1, 2], [2, 1], [1, 1]")
        object.__setattr__(self, "rank", tuple(self.rank))


Exemplars = Sequence[Exemplar] | Sequence[RankExemplar] | str | Path
"""Exemplars, or a JSONL file of them (see `load`)."""


def check(exemplars: Exemplars, mode: str) -> list[Exemplar | RankExemplar]:
    """The exemplars as a list, read from their file if they are one; each must fit the mode.

    Raises:
        InputError: not exemplars of this mode, or a bad file.
    """
    listed = load(exemplars) if isinstance(exemplars, (str, Path)) else list(exemplars)
    wanted = RankExemplar if mode == "joint_rank" else Exemplar
    for exemplar in listed:
        if not isinstance(exemplar, wanted):
            raise InputError(f"exemplars: mode {mode!r} takes {wanted.__name__}, got {type(exemplar).__name__}")
    return listed


def load(path: str | Path) -> list[Exemplar | RankExemplar]:
    """Read a JSONL file, one exemplar a line; picture paths are relative to it.

    To score: {"rubric": {...}, "image": path or "text": text, "answers": {id: answer}, "reasons": {id: text}}.
    To rank: {"rubric": {...}, "images": [path, path] or "texts": [text, text], "rank": [1, 2], "reason": text}.
    Both may have "sources": [path, ...], or "source": path for a single one.

    Raises:
        InputError: names the file and the line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"exemplars: {path} cannot be read: {error}") from error
    listed = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            listed.append(_read(json.loads(line), path.parent))
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}") from error
    return listed


def _read(data: Any, folder: Path) -> Exemplar | RankExemplar:
    if not isinstance(data, dict):
        raise InputError("must be a JSON object")
    rest = dict(data)
    rubric = Rubric.parse(rest.pop("rubric", None), "rubric")
    sources = _sources(rest, folder)
    ranks = "rank" in rest
    candidates = _candidates(rest, ranks, folder)
    allowed = {"rank", "reason"} if ranks else {"answers", "reasons"}
    if set(rest) - allowed:
        raise InputError(f"unknown fields {sorted(set(rest) - allowed)}; known: {sorted(allowed)}")
    for name, kind in (("rank", list), ("reason", str), ("answers", dict), ("reasons", dict)):
        if name in rest and not isinstance(rest[name], kind):
            raise InputError(f"field {name} must be of type {kind.__name__}")
    if ranks:
        return RankExemplar(PairRequest(rubric, *candidates, source=sources), rest["rank"], rest.get("reason", ""))
    if "answers" not in rest:
        raise InputError("needs answers (to score) or rank (to compare)")
    return Exemplar(JudgeRequest(rubric, *candidates, source=sources), rest["answers"], rest.get("reasons", {}))


def _sources(rest: dict[str, Any], folder: Path) -> tuple[Path, ...]:
    """Takes the source images out of `rest`."""
    if {"source", "sources"} <= set(rest):
        raise InputError("give source or sources, not both")
    listed = [rest.pop("source")] if "source" in rest else rest.pop("sources", [])
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise InputError(f"field sources must be a list of paths, got {listed!r}")
    return tuple(folder / item for item in listed)


def _candidates(rest: dict[str, Any], ranks: bool, folder: Path) -> list[Candidate]:
    """Takes the candidates out of `rest`."""
    image_field, text_field = ("images", "texts") if ranks else ("image", "text")
    if (image_field in rest) == (text_field in rest):
        raise InputError(f"needs either {image_field} or {text_field}")
    are_images = image_field in rest
    name = image_field if are_images else text_field
    given = rest.pop(name)
    listed = given if ranks else [given]
    if not isinstance(listed, list) or len(listed) != 1 + ranks or not all(isinstance(item, str) for item in listed):
        raise InputError(f"field {name} must be {'a list of two texts' if ranks else 'one text'}, got {given!r}")
    return [folder / item for item in listed] if are_images else list(listed)
