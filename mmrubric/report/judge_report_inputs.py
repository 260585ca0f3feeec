"""What a judge is measured against: labels, answers to pairs, and the JSONL files they come in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from mmrubric import rubric_io
from mmrubric.atomic import write_text
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.judging import PairRequest, run_sync
from mmrubric.record_reader import RecordedGroup
from mmrubric.rubric import Criterion
from mmrubric.verdict import Failure, Verdict

Key = tuple[str, str]
"""(sample id, criterion id)."""


@dataclass(frozen=True)
class Label:
    """What is true of one criterion of one sample.

    Raises:
        InputError: `met` is no number in [0, 1], no bool and not None.
    """

    sample_id: str
    criterion_id: str
    met: float | None
    """In [0, 1], in the sense of `Verdict.met`; None = nobody can say, so the verdict is not scored."""

    def __post_init__(self) -> None:
        where = f"label of sample {self.sample_id!r} on criterion {self.criterion_id!r}"
        check_ids(where, self.sample_id, self.criterion_id)
        object.__setattr__(self, "met", _share(where, "met", self.met))


@dataclass(frozen=True)
class LabelledVerdict:
    """A verdict beside the truth: what calibration learns from.

    Raises:
        InputError: as for `Label`.
    """

    sample_id: str
    criterion_id: str
    kind: str
    """Category of the criterion."""
    met: float | None
    """As the judge said; None = unknown."""
    label: float | None
    """As it is; None = nobody can say."""
    scale: str = "binary"
    """Scale of the criterion; only on a binary one is `met` a probability."""

    def __post_init__(self) -> None:
        where = f"labelled verdict of sample {self.sample_id!r} on criterion {self.criterion_id!r}"
        check_ids(where, self.sample_id, self.criterion_id, self.kind, self.scale)
        for name in ("met", "label"):
            object.__setattr__(self, name, _share(where, name, getattr(self, name)))


@dataclass(frozen=True)
class PairAnswers:
    """One pair (a, b) asked in both orders.

    Raises:
        InputError: an unknown verdict, INCONSISTENT for one order, or a preference that is neither a win nor a tie.
    """

    pair_id: str
    forward: PairVerdict
    """With a shown first: WIN_A = the first image is better."""
    swapped: PairVerdict
    """With b shown first, named by position: WIN_A = the first image, which is b, is better."""
    preferred: PairVerdict | None = None
    """Label: WIN_A = a is better. A tie or None: no accuracy for this pair."""
    prompt_id: str = ""
    """Pairs of one prompt are resampled together; "" = a prompt of its own."""

    def __post_init__(self) -> None:
        where = f"pair {self.pair_id!r}"
        check_ids(where, self.pair_id, self.prompt_id or self.pair_id)
        single = [v for v in PairVerdict if v != PairVerdict.INCONSISTENT]
        for name, known in (("forward", single), ("swapped", single), ("preferred", single[:3])):
            value = getattr(self, name)
            if value is None and name == "preferred":
                continue
            if value not in list(known):
                raise InputError(f"{where}: field {name} is {value!r}; known: {', '.join(known)}")
            object.__setattr__(self, name, PairVerdict(value))


def load_labels(path: str | Path) -> list[Label]:
    """Read labels, one object {sample_id, criterion_id, met} per line; met is true, false, a share, or null.

    Raises:
        InputError: with file and line: no such file, broken JSON, a field too many or missing, a bad value, or a
            second label on one criterion of a sample.
    """
    labels: list[Label] = []
    seen: dict[Key, int] = {}
    for number, data in json_objects(Path(path)):
        label = _build(Label, data, f"{path}:{number}")
        key = (label.sample_id, label.criterion_id)
        if key in seen:
            raise InputError(
                f"{path}:{number}: sample {key[0]!r}, criterion {key[1]!r} is labelled on line {seen[key]}"
            )
        seen[key] = number
        labels.append(label)
    return labels


def load_labelled(path: str | Path) -> list[LabelledVerdict]:
    """Read labelled verdicts, one object per line; `InputError` names file and line."""
    return [_build(LabelledVerdict, data, f"{path}:{number}") for number, data in json_objects(Path(path))]


def save_labelled(labelled: Iterable[LabelledVerdict], path: str | Path) -> None:
    """Write labelled verdicts, one object per line."""
    _save(map(asdict, labelled), Path(path))


def load_pairs(path: str | Path) -> list[PairAnswers]:
    """Read pairs, one object {pair_id, forward, swapped, preferred?, prompt_id?} per line.

    Raises:
        InputError: with file and line, as for `load_labels`.
    """
    pairs: dict[str, PairAnswers] = {}
    for number, data in json_objects(Path(path)):
        pair = _build(PairAnswers, data, f"{path}:{number}")
        if pair.pair_id in pairs:
            raise InputError(f"{path}:{number}: pair {pair.pair_id!r} is given twice")
        pairs[pair.pair_id] = pair
    return list(pairs.values())


def save_pairs(pairs: Iterable[PairAnswers], path: str | Path) -> None:
    """Write pairs, one object per line."""
    _save(({k: v for k, v in asdict(pair).items() if v not in (None, "")} for pair in pairs), Path(path))


class Ranking(Protocol):
    """Answer to one order of a pair."""

    @property
    def verdict(self) -> PairVerdict:
        """WIN_A = the candidate shown first is better."""
        ...


class Ranks(Protocol):
    """A pair judge that can be asked about one order alone, such as judge `vlm` in mode joint_rank."""

    async def rank(self, requests: Sequence[PairRequest]) -> Sequence[Ranking]:
        """The raw answer to each pair in the order given."""
        ...


def ask_both_orders(
    judge: Ranks,
    requests: Sequence[PairRequest],
    preferred: Sequence[PairVerdict | None] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> list[PairAnswers]:
    """Ask about every pair in both orders and keep the two answers apart, so that a position bias shows.

    Args:
        judge: with `rank`; `compare` joins the two orders and so hides the bias.
        requests: pairs (a, b); the id of a pair is its row and its sample ids.
        preferred: labels, one per pair.
        prompt_ids: one per pair.

    Raises:
        InputError: lengths differ; or as the judge does.
    """
    labels = [None] * len(requests) if preferred is None else list(preferred)
    prompts = [""] * len(requests) if prompt_ids is None else list(prompt_ids)
    if not len(requests) == len(labels) == len(prompts):
        raise InputError(f"{len(requests)} pairs, {len(labels)} labels and {len(prompts)} prompt ids")
    asked = [*requests, *(request.swapped() for request in requests)]
    answers = [PairVerdict(ranking.verdict) for ranking in run_sync(_rank(judge, asked))]
    forward, swapped = answers[: len(requests)], answers[len(requests) :]
    names = [f"{k}:{':'.join(request.sample_ids or ())}" for k, request in enumerate(requests)]
    return [PairAnswers(*row) for row in zip(names, forward, swapped, labels, prompts, strict=True)]


async def _rank(judge: Ranks, requests: Sequence[PairRequest]) -> Sequence[Ranking]:
    return await judge.rank(requests)


@dataclass(frozen=True)
class Cell:
    """One verdict with what is needed to place it."""

    verdict: Verdict
    criterion: Criterion
    prompt_id: str
    sample_hash: str
    line: int
    """Line of its row in the record."""

    @property
    def key(self) -> Key:
        """(sample id, criterion id)."""
        return self.verdict.sample_id, self.verdict.criterion_id


def cells_of(groups: Sequence[RecordedGroup]) -> dict[Key, Cell]:
    """All verdicts of some groups by sample and criterion; one that the judge left out is a failure, `missing`.

    Raises:
        InputError: a sample id stands for two judgements, so that labels could not be joined by id; or a verdict on a
            criterion that the rubric does not have, or two on one.
    """
    cells: dict[Key, Cell] = {}
    for group in groups:
        for row in group.rows:
            given = {verdict.criterion_id: verdict for verdict in row.verdicts}
            stray = sorted(set(given) - set(group.rubric.ids))
            if stray or len(given) < len(row.verdicts):
                problem = f"on {stray}, not in its rubric" if stray else "that repeat a criterion"
                raise InputError(f"record line {row.line}: sample {row.sample_id!r} has verdicts {problem}")
            for criterion in group.rubric.criteria:
                missing = Verdict(row.sample_id, criterion.id, None, failure=Failure.missing)
                verdict = given.get(criterion.id, missing)
                cell = Cell(verdict, criterion, row.prompt_id, row.sample_hash, row.line)
                twin = cells.setdefault(cell.key, cell)
                if twin is not cell:
                    raise InputError(
                        f"sample {row.sample_id!r} is judged on lines {twin.line} and {row.line} of the record; choose "
                        "one phase and step, and give a second asking as a repeat"
                    )
    return cells


def join(groups: Sequence[RecordedGroup], labels: Iterable[Label]) -> list[LabelledVerdict]:
    """Verdicts that have a label, in record order, joined by sample id and criterion id; other labels are left out."""
    truth = {(label.sample_id, label.criterion_id): label.met for label in labels}
    return [
        LabelledVerdict(*key, cell.criterion.category, cell.verdict.met, truth[key], cell.criterion.scale)
        for key, cell in cells_of(groups).items()
        if key in truth
    ]


def check_ids(where: str, *ids: object) -> None:
    if not all(isinstance(id, str) and id for id in ids):
        raise InputError(f"{where}: ids and names must be text that is not empty")


def _share(where: str, name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (bool, int, float)) or not 0 <= value <= 1:
        raise InputError(f"{where}: field {name} is {value!r}; give true, false, a number in [0, 1], or null")
    return float(value)


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank."""
    empty = True
    for number, line in enumerate(rubric_io.read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        empty = False
        data = rubric_io.parse_json(line, f"{path}:{number}")
        if not isinstance(data, dict):
            raise InputError(f"{path}:{number}: expected an object, got {type(data).__name__}")
        yield number, data
    if empty:
        raise InputError(f"{path}: holds no line")


def _build(kind: type[Any], data: Mapping[str, Any], where: str) -> Any:
    """An object of a dataclass from one line; every problem is an `InputError` that begins with file and line."""
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(set(data) - set(known))
    missing = sorted(name for name, field in known.items() if name not in data and field.default is MISSING)
    if unknown or missing:
        raise InputError(f"{where}: unknown fields {unknown}, missing fields {missing}; known: {', '.join(known)}")
    try:
        return kind(**data)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _save(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))
