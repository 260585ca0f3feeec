"""Makes a judge's percentages honest: Platt scaling or isotonic regression per kind of criterion.

    labelled = join(groups, load_labels("labels.jsonl"))          # mmrubric.report.judge_report_inputs
    fit(labelled, judge_id=judge.id).save("calibration.json")
    judges.build("calibrated", judge=judge, calibration="calibration.json")

Platt 1999; isotonic: Zadrozny and Elkan 2002. Fitted parameters are plain JSON; scikit-learn is needed only to fit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from judges.ensemble import Member, built
from judges.pictures import Checks, count
from mmrubric import rubric_io
from mmrubric.atomic import write_text
from mmrubric.checks import number, one_of
from mmrubric.errors import InputError
from mmrubric.judging import Judge, JudgeRequest, SyncMixin
from mmrubric.verdict import Verdict

if TYPE_CHECKING:
    # The report package draws in what a judge does not need.
    from mmrubric.report.judge_report_inputs import LabelledVerdict

Floats = NDArray[np.float64]
Method: TypeAlias = Literal["platt", "isotonic"]
TooFew: TypeAlias = Literal["pooled", "error"]
FORMAT = 1
MIN_LABELS = 30
_EDGE = 1e-6
"""Keeps the logit finite at 0 and 1, so that a plain yes or no is calibrated too."""


def logit(met: ArrayLike) -> Floats:
    """log((p + e) / (1 - p + e)) with e = 1e-6: strictly increasing and finite on all of [0, 1]."""
    p = np.asarray(met, dtype=np.float64)
    return np.log(p + _EDGE) - np.log(1.0 - p + _EDGE)


@dataclass(frozen=True)
class Platt:
    """p -> sigmoid(slope * logit(p) + offset): strictly increasing, so a ranking by met never changes."""

    slope: float
    """Above 0."""
    offset: float
    labels: int
    """Verdicts it was fitted on."""

    def __post_init__(self) -> None:
        number("slope", self.slope, 0.0)
        number("offset", self.offset)
        count("labels", self.labels)
        if self.slope == 0:
            raise InputError("slope: must be above 0")

    def __call__(self, met: ArrayLike) -> Floats:
        """Calibrated values in (0, 1) of values in [0, 1]."""
        z = self.slope * logit(met) + self.offset
        return np.where(z >= 0, 1.0, np.exp(np.minimum(z, 0.0))) / (1.0 + np.exp(-np.abs(z)))


@dataclass(frozen=True)
class Isotonic:
    """A non-decreasing line through points, flat beyond them: may join values that differ, never swaps them."""

    said: tuple[float, ...]
    """Ascending, in [0, 1]."""
    true: tuple[float, ...]
    """Not descending, in [0, 1]."""
    labels: int

    def __post_init__(self) -> None:
        count("labels", self.labels)
        for name in ("said", "true"):
            values = tuple(number(name, value, 0.0, 1.0) for value in getattr(self, name))
            object.__setattr__(self, name, values)
        if not self.said or len(self.said) != len(self.true):
            raise InputError(
                f"said and true: {len(self.said)} and {len(self.true)} points; expected as many, at least 1"
            )
        if (np.diff(self.said) <= 0).any() or (np.diff(self.true) < 0).any():
            raise InputError("said must ascend and true must not descend")

    def __call__(self, met: ArrayLike) -> Floats:
        """Calibrated values in [0, 1] of values in [0, 1]."""
        return np.interp(np.asarray(met, dtype=np.float64), self.said, self.true)


Curve: TypeAlias = Platt | Isotonic
_CURVES: dict[str, type[Platt] | type[Isotonic]] = {"platt": Platt, "isotonic": Isotonic}


@dataclass(frozen=True)
class Calibration:
    """Fitted curves of one judge, by kind of criterion."""

    method: Method
    judge_id: str
    """The judge it was fitted on."""
    kinds: Mapping[str, Curve]
    pooled: Curve
    """Fitted on all kinds; used for every kind that has no curve of its own."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By kind: why it has no curve of its own."""

    @property
    def hash(self) -> str:
        """sha256 hex of the curves; part of the id of the calibrated judge."""
        content = {name: value for name, value in self.to_dict().items() if name != "notes"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def apply(self, met: ArrayLike, kind: str) -> Floats:
        """Calibrated values of `met` in [0, 1], of criteria of one kind; NaN stays unknown."""
        return self.kinds.get(kind, self.pooled)(met)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "format": FORMAT,
            "method": self.method,
            "judge_id": self.judge_id,
            "pooled": _plain(self.pooled),
            "kinds": {kind: _plain(curve) for kind, curve in sorted(self.kinds.items())},
            "notes": dict(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        write_text(Path(path), text + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote.

        Raises:
            InputError: names the file and the field that is wrong.
        """
        data = rubric_io.parse_json(rubric_io.read_text(Path(path)), str(path))
        wanted = {"format", "method", "judge_id", "pooled", "kinds", "notes"}
        if not isinstance(data, dict) or set(data) != wanted:
            raise InputError(f"{path}: is no calibration; expected an object with {', '.join(sorted(wanted))}")
        if data["format"] != FORMAT:
            raise InputError(f"{path}: format {data['format']!r}; this program reads {FORMAT}")
        method = one_of(f"{path}: method", str(data["method"]), get_args(Method))
        for name in ("kinds", "notes"):
            if not isinstance(data[name], dict):
                raise InputError(f"{path}: field {name} must be an object by kind of criterion")
        if not isinstance(data["judge_id"], str):
            raise InputError(f"{path}: field judge_id must be text")
        curves = {kind: _curve(method, value, f"{path}: kinds[{kind!r}]") for kind, value in data["kinds"].items()}
        pooled = _curve(method, data["pooled"], f"{path}: pooled")
        return cls(method, data["judge_id"], curves, pooled, data["notes"])  # type: ignore[arg-type]


def _plain(curve: Curve) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(curve).items()}


def _curve(method: str, data: Any, where: str) -> Curve:
    try:
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        return _CURVES[method](**fields)
    except (InputError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: {error}") from error


def fit(
    labelled: Iterable[LabelledVerdict],
    *,
    judge_id: str,
    method: Method = "platt",
    min_labels: int = MIN_LABELS,
    too_few: TooFew = "pooled",
) -> Calibration:
    """Fit one curve per kind of criterion, and one on all of them.

    Verdicts or labels that are unknown are left out, and so are criteria that are not binary: there met is the value
    of a level, not a probability.

    Args:
        labelled: verdicts beside the truth, of one judge.
        judge_id: id of that judge.
        method: platt (two numbers per kind; keeps every ranking) or isotonic (any rising shape; wants more labels).
        min_labels: a kind needs this many, and labels of both sorts, for a curve of its own.
        too_few: what happens to another kind, and to one whose answers do not rise with the truth: `pooled` uses the
            curve of all kinds and says so in `notes`, `error` refuses.

    Raises:
        InputError: too few labels of a kind with `error`, or of all kinds together.
    """
    one_of("method", method, get_args(Method))
    one_of("too_few", too_few, get_args(TooFew))
    count("min_labels", min_labels)
    points: dict[str, list[tuple[float, float]]] = {}
    for verdict in labelled:
        if verdict.met is not None and verdict.label is not None and verdict.scale == "binary":
            points.setdefault(verdict.kind, []).append((verdict.met, verdict.label))
    everything = [point for kind in points.values() for point in kind]
    pooled = _fitted(everything, method, min_labels)
    if isinstance(pooled, str):
        raise InputError(f"calibration of judge {judge_id!r}, all kinds together: {pooled}; label more verdicts")
    kinds: dict[str, Curve] = {}
    notes: dict[str, str] = {}
    for kind, chosen in points.items():
        curve = _fitted(chosen, method, min_labels)
        if not isinstance(curve, str):
            kinds[kind] = curve
        elif too_few == "error":
            raise InputError(
                f"calibration of judge {judge_id!r}, kind {kind!r}: {curve}; label more, lower min_labels, or set "
                "too_few='pooled' to use the curve of all kinds"
            )
        else:
            notes[kind] = curve
    return Calibration(method, judge_id, kinds, pooled, notes)


def _fitted(points: Sequence[tuple[float, float]], method: Method, min_labels: int) -> Curve | str:
    """The curve, or the reason why there is none."""
    if len(points) < min_labels:
        return f"{len(points)} labels, fewer than min_labels={min_labels}"
    met, label = np.array(points, dtype=np.float64).T
    if np.ptp(label) == 0:
        return f"all {len(points)} labels are the same"
    if np.ptp(met) == 0:
        return f"all {len(points)} answers are the same"
    return _fit_platt(met, label) if method == "platt" else _fit_isotonic(met, label)


def _fit_platt(met: Floats, label: Floats) -> Platt | str:
    """Maximum likelihood with Platt's targets (N+ + 1) / (N+ + 2) and 1 / (N- + 2), finite on separable labels too."""
    from sklearn.linear_model import LogisticRegression

    positive = label.sum()
    high, low = (positive + 1) / (positive + 2), 1 / (len(label) - positive + 2)
    target = label * high + (1 - label) * low
    # A soft target is the same item twice: as yes with weight t, as no with weight 1 - t.
    z = np.tile(logit(met), 2)[:, None]
    truth = np.repeat([1, 0], len(met))
    model = LogisticRegression(C=math.inf, tol=1e-8, max_iter=1000)
    model.fit(z, truth, sample_weight=np.concatenate([target, 1 - target]))
    slope, offset = float(np.ravel(model.coef_)[0]), float(np.ravel(model.intercept_)[0])
    if slope <= 0:
        return "answers do not rise with the truth"
    return Platt(slope, offset, len(met))


def _fit_isotonic(met: Floats, label: Floats) -> Isotonic | str:
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=0.0, y_max=1.0, increasing=True, out_of_bounds="clip").fit(met, label)
    said, true = (np.asarray(values, dtype=np.float64) for values in (model.X_thresholds_, model.y_thresholds_))
    if true[0] == true[-1]:
        return "answers do not rise with the truth"
    return Isotonic(tuple(said.tolist()), tuple(np.clip(true, 0.0, 1.0).tolist()), len(met))


class CalibratedJudge(SyncMixin):
    """A `Judge` whose verdicts on binary criteria are those of another judge, calibrated by kind of criterion.

    Unknown verdicts stay unknown, and ordinal and nominal ones stay as they are. `read` gains the name of the method.

    Args:
        judge: gives the verdicts.
        calibration: fitted on that judge.
        allow_other_judge: use it although it was fitted on another judge.

    Raises:
        InputError: the calibration was fitted on another judge.
    """

    def __init__(self, judge: Judge, calibration: Calibration, allow_other_judge: bool = False) -> None:
        if judge.id != calibration.judge_id and not allow_other_judge:
            raise InputError(
                f"calibrated: the calibration was fitted on judge {calibration.judge_id!r}, not on {judge.id!r}; "
                "fit it on this judge, or set allow_other_judge"
            )
        self.judge = judge
        self.calibration = calibration

    @property
    def id(self) -> str:
        """Composed of the hash of the curves and the id of the judge."""
        return f"calibrated/1:{self.calibration.method}-{self.calibration.hash[:12]}({self.judge.id})"

    def check(self, requests: Sequence[JudgeRequest]) -> None:
        """Refuse what the judge cannot judge, before anything is asked, where it can tell; `InputError`."""
        if isinstance(self.judge, Checks):
            self.judge.check(requests)

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """The judge's verdicts with calibrated `met`; errors are the judge's."""
        answers = await self.judge.score(requests)
        return [
            [self._calibrated(request, verdict) for verdict in verdicts]
            for request, verdicts in zip(requests, answers, strict=True)
        ]

    def _calibrated(self, request: JudgeRequest, verdict: Verdict) -> Verdict:
        criterion = request.rubric.criterion(verdict.criterion_id)
        if verdict.met is None or criterion.scale != "binary":
            return verdict
        met = float(self.calibration.apply(verdict.met, criterion.category))
        return replace(verdict, met=met, read=f"{verdict.read}+{self.calibration.method}")


def calibrated(
    judge: Member, calibration: str | Path | Calibration, allow_other_judge: bool = False
) -> CalibratedJudge:
    """Build a `CalibratedJudge`.

    Args:
        judge: a judge, the name of one, or a mapping of its name and options.
        calibration: what `fit` made, or the file that it was saved to.
        allow_other_judge: use a calibration that was fitted on another judge.

    Raises:
        InputError: a judge that cannot be built or does not score, a broken file, or another judge's calibration.
    """
    inner = built(judge, "calibrated: judge")
    if not isinstance(inner, Judge):
        raise InputError(f"calibrated: judge {inner.id!r} only compares pairs, so there is no probability to calibrate")
    curves = calibration if isinstance(calibration, Calibration) else Calibration.load(calibration)
    return CalibratedJudge(inner, curves, allow_other_judge)
