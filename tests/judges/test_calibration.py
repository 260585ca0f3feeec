"""Calibration on data whose distortion is known, by hand where a curve can be worked out, and its files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import judges
from judges.calibration import Calibration, Isotonic, Platt, fit, logit
from mmrubric import generators
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest, SyncMixin
from mmrubric.report.agreement import brier, ece
from mmrubric.report.judge_report_inputs import LabelledVerdict, load_labelled, save_labelled
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure, Verdict
from tests.judges.pictures import scene

OPTIONS = {"judge_id": "vlm/1"}
shares = st.floats(0, 1)


def distorted(count: int, slope: float, offset: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Answers whose true probability is sigmoid(slope * logit + offset) of what is said, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    said = rng.beta(0.7, 0.7, count)
    true = 1 / (1 + np.exp(-(slope * np.log(said / (1 - said)) + offset)))
    return said, (rng.random(count) < true).astype(float)


def labelled(said: np.ndarray, true: np.ndarray, kind: str = "object") -> list[LabelledVerdict]:
    return [LabelledVerdict(f"s{k}", "c", kind, float(p), float(t)) for k, (p, t) in enumerate(zip(said, true))]  # noqa: B905


@pytest.mark.parametrize("method", ["platt", "isotonic"])
@pytest.mark.parametrize(("slope", "offset"), [(0.4, 0.0), (1.0, -1.2), (0.5, 0.8)])
def test_a_known_distortion_is_undone_on_new_answers(method, slope: float, offset: float):
    calibration = fit(labelled(*distorted(4000, slope, offset)), method=method, **OPTIONS)
    said, true = distorted(4000, slope, offset, seed=1)
    after = calibration.apply(said, "object")
    # The judge is off by 10 points and more; what is left is about what a perfect one shows on 4000 labels.
    assert ece(said, true) > 0.08
    assert ece(after, true) < 0.03
    assert brier(after, true) < brier(said, true)


def test_platt_finds_the_parameters_of_the_distortion():
    curve = fit(labelled(*distorted(20_000, 0.6, -0.5)), **OPTIONS).kinds["object"]
    assert isinstance(curve, Platt) and curve.labels == 20_000
    assert (curve.slope, curve.offset) == (pytest.approx(0.6, abs=0.03), pytest.approx(-0.5, abs=0.05))


def test_a_judge_of_plain_yes_and_no_learns_how_often_its_words_are_true():
    # Of 40 yes 30 are true, of 40 no 10: with Platt's targets 41/42 and 1/42 the two-point fit is exact:
    # P(true | yes) = (30 * 41/42 + 10 * 1/42) / 40, and the mirror image for no.
    said = np.array([1.0] * 40 + [0.0] * 40)
    true = np.array([1.0] * 30 + [0.0] * 10 + [1.0] * 10 + [0.0] * 30)
    yes = (30 * 41 / 42 + 10 / 42) / 40
    assert fit(labelled(said, true), **OPTIONS).apply([1, 0], "object") == pytest.approx([yes, 1 - yes], abs=1e-4)
    isotonic = fit(labelled(said, true), method="isotonic", **OPTIONS)
    assert isotonic.apply([1, 0, 0.5], "object") == pytest.approx([0.75, 0.25, 0.5])


def test_separable_labels_stay_finite():
    said = np.linspace(0.01, 0.99, 60)
    curve = fit(labelled(said, (said > 0.5).astype(float)), **OPTIONS).pooled
    assert isinstance(curve, Platt) and 0 < curve.slope < 100


@settings(deadline=None)
@given(st.lists(shares, min_size=2, max_size=30), st.floats(0.05, 20), st.floats(-5, 5))
def test_platt_never_changes_a_ranking(values: list[float], slope: float, offset: float):
    said = np.sort(values)
    after = Platt(slope, offset, 100)(said)
    assert (np.diff(after) >= 0).all() and (after >= 0).all() and (after <= 1).all()
    apart = np.diff(logit(said)) > 1e-3
    inside = (after[1:] < 1 - 1e-9) & (after[:-1] > 1e-300)
    assert (np.diff(after)[apart & inside] > 0).all()  # not even a tie, up to the last digits of a float


@settings(deadline=None)
@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=12), st.lists(shares, min_size=2, max_size=30))
def test_isotonic_never_swaps_two_answers(points: list[tuple[float, float]], values: list[float]):
    said = sorted({p for p, _ in points})
    true = sorted(t for _, t in points)[: len(said)]
    after = Isotonic(tuple(said), tuple(true), 100)(np.sort(values))
    assert (np.diff(after) >= -1e-12).all() and (after >= 0).all() and (after <= 1).all()


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_each_kind_has_its_own_curve(method):
    data = labelled(*distorted(3000, 0.4, 0.0)) + labelled(*distorted(3000, 1.6, 0.0, seed=1), kind="count")
    calibration = fit(data, method=method, **OPTIONS)
    # Overconfident on objects, underconfident on counts: .9 goes down on the one and up on the other.
    assert calibration.apply(0.9, "object") < 0.8 < 0.93 < calibration.apply(0.9, "count")
    assert not calibration.notes
    assert math.isnan(calibration.apply(math.nan, "count"))


def test_a_kind_with_too_few_labels_uses_the_pooled_curve_and_says_so():
    few = labelled(*distorted(10, 1.0, 0.0, seed=2), kind="text")
    same = [LabelledVerdict(f"t{k}", "c", "style", k / 50, 1.0) for k in range(50)]
    said, true = distorted(200, 1.0, 0.0, seed=3)
    wrong = labelled(said, 1 - true, kind="relation")
    data = labelled(*distorted(2000, 0.5, 0.0)) + few + same + wrong
    calibration = fit(data, **OPTIONS)
    assert set(calibration.kinds) == {"object"}
    assert calibration.notes == {
        "text": "10 labels, fewer than min_labels=30",
        "style": "all 50 labels are the same",
        "relation": "answers do not rise with the truth",
    }
    for kind in ("text", "relation", "never seen"):
        assert calibration.apply(0.9, kind) == calibration.pooled(0.9)
    assert set(fit(data, min_labels=10, **OPTIONS).kinds) == {"object", "text"}
    with pytest.raises(InputError, match=r"kind 'text': 10 labels, fewer than min_labels=30"):
        fit(data, too_few="error", **OPTIONS)


def test_what_cannot_be_fitted_at_all_is_refused():
    with pytest.raises(InputError, match=r"judge 'vlm/1', all kinds together: 0 labels"):
        fit([], **OPTIONS)
    said, true = distorted(300, 1.0, 0.0)
    with pytest.raises(InputError, match="do not rise with the truth"):
        fit(labelled(said, 1 - true), **OPTIONS)
    with pytest.raises(InputError, match="do not rise with the truth"):
        fit(labelled(said, 1 - np.round(said)), method="isotonic", **OPTIONS)
    with pytest.raises(InputError, match="all 50 answers are the same"):
        fit(labelled(np.full(50, 0.7), np.arange(50) % 2), **OPTIONS)
    with pytest.raises(InputError, match="method: unknown value 'beta'"):
        fit([], method="beta", **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="min_labels"):
        fit([], min_labels=0, **OPTIONS)


def test_unknown_verdicts_and_other_scales_teach_nothing():
    data = labelled(*distorted(500, 0.5, 0.0))
    noise = [
        LabelledVerdict("u", "c", "object", None, 1.0),
        LabelledVerdict("v", "c", "object", 0.9, None),
        LabelledVerdict("w", "c", "object", 0.9, 0.0, scale="ordinal"),
    ]
    assert fit(data + noise, **OPTIONS) == fit(data, **OPTIONS)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_files_give_back_what_was_saved(method, tmp_path: Path):
    data = labelled(*distorted(300, 0.5, 0.0)) + labelled(*distorted(5, 1.0, 0.0), kind="text")
    save_labelled(data, tmp_path / "labelled.jsonl")
    read = load_labelled(tmp_path / "labelled.jsonl")
    assert read == data
    calibration = fit(read, method=method, **OPTIONS)
    calibration.save(tmp_path / "calibration.json")
    again = Calibration.load(tmp_path / "calibration.json")
    assert again == calibration and again.hash == calibration.hash
    assert again.apply([0.1, 0.7], "object").tolist() == calibration.apply([0.1, 0.7], "object").tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2; this program reads 1"),
        ({"method": "beta"}, "method: unknown value 'beta'"),
        ({"pooled": {"slope": -1.0, "offset": 0.0, "labels": 9}}, r"pooled: slope: -1.0 is outside"),
        ({"pooled": {"slope": 0.0, "offset": 0.0, "labels": 9}}, r"pooled: slope: must be above 0"),
        ({"kinds": {"count": {"slope": 1.0}}}, r"kinds\['count'\]"),
        ({"kinds": []}, "field kinds must be an object"),
        ({"more": 1}, "is no calibration"),
    ],
)
def test_a_broken_file_is_named_with_the_field(change: dict, message: str, tmp_path: Path):
    path = tmp_path / "calibration.json"
    fit(labelled(*distorted(300, 0.5, 0.0)), **OPTIONS).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=f"calibration.json: {message}"):
        Calibration.load(path)


def test_an_isotonic_curve_that_falls_is_refused():
    with pytest.raises(InputError, match="true must not descend"):
        Isotonic((0.1, 0.9), (0.8, 0.2), 100)
    with pytest.raises(InputError, match="2 and 1 points"):
        Isotonic((0.1, 0.9), (0.8,), 100)


class Scripted(SyncMixin):
    """A judge that answers by criterion id."""

    id = "scripted/1"

    async def score(self, requests):
        answers = {"likely": 0.9, "failed": None, "level": 0.5}
        return [
            [
                Verdict("s", id, answers[id], failure=Failure.timeout if answers[id] is None else None, read="logprob")
                for id in request.rubric.ids
            ]
            for request in requests
        ]


def test_the_calibrated_judge_changes_known_binary_answers_only():
    rubric = Rubric(
        prompt="p",
        criteria=(
            Criterion(id="likely", text="There is a ball.", category="object"),
            Criterion(id="failed", text="It is red.", category="object"),
            Criterion(id="level", text="How sharp?", scale="ordinal", anchors=("blurred", "soft", "sharp")),
        ),
    )
    calibration = fit(labelled(*distorted(2000, 0.4, 0.0)), judge_id="scripted/1")
    judge = judges.build("calibrated", judge=Scripted(), calibration=calibration)
    likely, failed, level = judge.score_sync([JudgeRequest(rubric, "text", sample_id="s")])[0]
    assert likely.met == pytest.approx(float(calibration.apply(0.9, "object"))) and likely.met < 0.8
    assert likely.read == "logprob+platt"
    assert failed.met is None and failed.failure == Failure.timeout
    assert (level.met, level.read) == (0.5, "logprob")
    assert judge.id == f"calibrated/1:platt-{calibration.hash[:12]}(scripted/1)"


def test_a_calibration_belongs_to_its_judge(tmp_path: Path):
    path = tmp_path / "calibration.json"
    fit(labelled(*distorted(300, 0.5, 0.0)), judge_id="shapes/0").save(path)
    with pytest.raises(InputError, match="fitted on judge 'shapes/0', not on 'shapes/1'"):
        judges.build("calibrated", judge="shapes", calibration=path)
    judge = judges.build("calibrated", judge="shapes", calibration=path, allow_other_judge=True)
    rubric = generators.build("shapes").generate_sync("a large red circle on a white background")
    request = JudgeRequest(rubric, scene("white", ("circle", "red", 30, 30, 10.5)), sample_id="s")
    found = judge.score_sync([request])[0]
    # The reader of pixels says plain yes; the curve of half the slope turns 1 into sigmoid(.5 * logit(1)) < 1.
    assert all(0.9 < v.met < 1 for v in found if v.met is not None) and len(found) == len(rubric.criteria)
    with pytest.raises(InputError, match="asks for verifier 'vlm'"):
        rules = judges.build("calibrated", judge="rules", calibration=path, allow_other_judge=True)
        rules.check([JudgeRequest(Rubric(prompt="p", criteria=(Criterion(id="c", text="a dog"),)), request.candidate)])
    with pytest.raises(InputError, match="cannot be read"):
        judges.build("calibrated", judge="shapes", calibration=tmp_path / "none.json")
