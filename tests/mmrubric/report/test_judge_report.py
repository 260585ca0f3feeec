"""The report of a judge: numbers by hand and against the statistics alone, files, page, command."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from mmrubric import preference
from mmrubric.bootstrap import bootstrap
from mmrubric.cli_output import command, output
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.judging import PairRequest
from mmrubric.record import RecordedGroup, RecordReader, RunRecord, SampleRow
from mmrubric.report import agreement
from mmrubric.report.judge_report import JudgeReport, judge_report, write_judge_report
from mmrubric.report.judge_report_cli import groups_of, judge_report_command
from mmrubric.report.judge_report_inputs import (
    Label,
    PairAnswers,
    ask_both_orders,
    join,
    load_labels,
    load_pairs,
    save_pairs,
)
from mmrubric.report.model import Reliability
from mmrubric.report.resample import Statistic, intervals
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Cost, Failure, Verdict
from tests.judges.vlm_stub import judge_of, says
from tests.mmrubric.report.pages import Page
from tests.mmrubric.stub_server import Stub, serve

A, B, TIE, FAILED = PairVerdict.WIN_A, PairVerdict.WIN_B, PairVerdict.TIE, PairVerdict.FAILED
Answers = Mapping[str, Sequence[float | Failure | None]]
"""By sample id: the answer on each criterion; None = does not apply."""
OBJECT = Criterion(id="ball", text="There is a ball.", category="object")
COLOUR = Criterion(id="red", text="It is red.", category="colour")
CLEAN = Criterion(id="text", text="There is text.", category="text", weight=-1.0)
RUBRIC = Rubric(prompt="a red ball", criteria=(OBJECT, COLOUR, CLEAN))


def row(sample: str, answers: Sequence[float | Failure | None], prompt: str, rubric: Rubric, **fields) -> SampleRow:
    verdicts = tuple(
        Verdict(
            sample,
            id,
            answer if isinstance(answer, float) else None,
            applicable=answer is not None,
            failure=answer if isinstance(answer, Failure) else None,
            read="logprob",
            cost=Cost(calls=1, prompt_tokens=100, completion_tokens=1, seconds=0.5),
        )
        for id, answer in zip(rubric.ids, answers, strict=True)
    )
    values = {"step": 0, "phase": "eval", "sample_hash": f"hash of {sample}", "judge_id": "vlm/1", **fields}
    return SampleRow(prompt_id=prompt, rubric_hash=rubric.hash, sample_id=sample, verdicts=verdicts, **values)


def record(path: Path, prompts: Mapping[str, Answers], rubric: Rubric = RUBRIC, **fields) -> Path:
    """A run record: by prompt id the answers on its samples."""
    with RunRecord(path) as out:
        rows = [row(s, values, p, rubric, **fields) for p, samples in prompts.items() for s, values in samples.items()]
        out.append(rows, [rubric])
    return path


def read(path: Path) -> list[RecordedGroup]:
    return list(RecordReader(path).groups())


def labels_of(truth: Mapping[str, Sequence[float | None]]) -> list[Label]:
    return [Label(s, id, met) for s, values in truth.items() for id, met in zip(RUBRIC.ids, values, strict=True)]


PROMPTS: dict[str, Answers] = {
    "p": {"s0": [0.9, 0.8, 0.1], "s1": [0.7, Failure.timeout, 0.2]},
    "q": {"s2": [0.6, 0.3, 0.9], "s3": [0.2, 0.6, None]},
}
TRUTH = {"s0": [1, 1, 0], "s1": [1, 1, 0], "s2": [0, 0, 1], "s3": [0, None, 0]}
"""Right: s0 all three; s1 ball, text; s2 red, text; s3 ball. Wrong: s2 ball. Unscored: s1 red, s3 red, s3 text."""


@pytest.fixture
def groups(tmp_path: Path) -> list[RecordedGroup]:
    return read(record(tmp_path / "record.jsonl", PROMPTS))


def simulated(path: Path, seed: int = 0, noise: float = 0.1, lift: float = 0.0) -> tuple[Path, list[Label]]:
    """30 prompts with 3 samples: an overconfident judge that is right most of the time. `seed` moves the noise only."""
    fixed, loose = np.random.default_rng(7), np.random.default_rng(seed)
    prompts: dict[str, dict[str, list[float | Failure | None]]] = {}
    labels = []
    for p in range(30):
        for s in range(3):
            truth = fixed.random(3) < (0.9, 0.6, 0.3)
            z = (
                2.5 * (np.where(truth, 1, -1) + fixed.normal(0, 0.9, 3))
                + loose.normal(0, noise, 3)
                + lift * np.array([1, 1, -1])
            )
            met: list[float | Failure | None] = (1 / (1 + np.exp(-z))).tolist()
            if fixed.random() < 0.1:
                met[1] = Failure.unparsable
            prompts.setdefault(f"p{p}", {})[f"p{p}-{s}"] = met
            labels += [Label(f"p{p}-{s}", id, bool(t)) for id, t in zip(RUBRIC.ids, truth, strict=True)]
    return record(path, prompts), labels


def drawn_pairs(count: int = 40) -> list[PairAnswers]:
    rng = np.random.default_rng(3)
    pairs = []
    for k in range(count):
        better = A if rng.random() < 0.5 else B
        answers = [v if rng.random() < 0.9 else A for v in (better, better.flipped())]
        pairs.append(PairAnswers(str(k), *answers, preferred=better, prompt_id=f"p{k % 10}"))
    return pairs


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> JudgeReport:
    folder = tmp_path_factory.mktemp("judge")
    path, labels = simulated(folder / "a.jsonl")
    again, attacked = simulated(folder / "b.jsonl", seed=1)[0], simulated(folder / "c.jsonl", lift=2.0)[0]
    return judge_report(
        read(path),
        labels,
        pairs=drawn_pairs(),
        repeats=[read(again)],
        attacks={"text written into the image": read(attacked)},
        resamples=200,
    )


def test_numbers_by_hand(groups: list[RecordedGroup]):
    report = judge_report(groups, labels_of(TRUTH), resamples=100)
    values = report.overall.values
    assert (report.samples, report.prompts, report.overall.verdicts, report.overall.labels) == (4, 2, 12, 9)
    assert values["coverage"].mid == pytest.approx(10 / 12)
    assert values["accuracy"].mid == pytest.approx(8 / 9)
    assert (report.overall.false_yes, report.overall.false_no) == (1, 0)
    # Labels among the nine: 1 1 0 | 1 0 | 0 0 1 | 0 = four yes, five no.
    assert report.overall.base_rate == pytest.approx(5 / 9)
    # Observed .8889; by chance: judge says yes on 5, labels on 4: (5 * 4 + 4 * 5) / 81 = .4938.
    assert values["kappa"].mid == pytest.approx((8 / 9 - 40 / 81) / (1 - 40 / 81))
    # Passed: met >= .5, and for the negative criterion 1 - met >= .5: object 3 of 4, colour 2 of 3, text 2 of 3.
    assert values["pass_rate"].mid == pytest.approx(7 / 10)
    assert report.answers == {"answered": 10, "timeout": 1, "does not apply": 1}
    assert report.cost == Cost(calls=12, prompt_tokens=1200, completion_tokens=12, seconds=6.0)  # failed ones too
    assert (report.labels_open, report.labels_unused) == (1, 0)


def test_numbers_per_kind_are_the_statistics_on_the_joined_verdicts(full: JudgeReport, tmp_path: Path):
    path, labels = simulated(tmp_path / "a.jsonl")
    joined = join(read(path), labels)
    assert [kind.kind for kind in full.kinds] == ["object", "colour", "text"]
    for kind in (*full.kinds, full.overall):
        chosen = [v for v in joined if kind.kind in ("all", v.kind)]
        met = np.array([math.nan if v.met is None else v.met for v in chosen])
        label = np.array([math.nan if v.label is None else v.label for v in chosen])
        yes, true = agreement.decided(met), agreement.decided(label)
        graded = agreement.graded(met), agreement.graded(label)
        wanted = {
            "coverage": agreement.coverage(met),
            "accuracy": agreement.accuracy(yes, true),
            "kappa": agreement.cohen_kappa(yes, true),
            "kappa_linear": agreement.cohen_kappa(*graded, "linear", range(5)),
            "kappa_quadratic": agreement.cohen_kappa(*graded, "quadratic", range(5)),
            "alpha": agreement.krippendorff_alpha([yes, true]),
            "alpha_interval": agreement.krippendorff_alpha([met, label], "interval"),
            "ece": agreement.ece(met, label),
            "brier": agreement.brier(met, label),
        }
        assert {name: kind.values[name].mid for name in wanted} == pytest.approx(wanted)
        for interval in kind.values.values():
            assert interval.low <= interval.mid <= interval.high
    assert full.overall.values["accuracy"].low < full.overall.values["accuracy"].high


def test_jf13_unreadable_answers_lower_the_coverage_not_the_accuracy(tmp_path: Path):
    answers: Answers = {"s0": [0.9, 0.1, 0.2], "s1": [Failure.unparsable, 0.9, 0.1]}
    truth = {"s0": [1, 0, 0], "s1": [1, 1, 0]}
    report = judge_report(read(record(tmp_path / "r.jsonl", {"p": answers})), labels_of(truth), resamples=100)
    assert report.overall.values["accuracy"].mid == 1.0
    assert report.overall.values["coverage"].mid == pytest.approx(5 / 6)


def test_a_verdict_that_the_judge_left_out_is_a_failure(tmp_path: Path, groups: list[RecordedGroup]):
    first = groups[0].rows[0]
    short = dataclasses.replace(first, verdicts=first.verdicts[:2])
    report = judge_report([RecordedGroup((short,), groups[0].rubric)], resamples=100)
    assert report.answers == {"answered": 2, "missing": 1}
    with pytest.raises(InputError, match="verdicts that repeat a criterion"):
        twice = dataclasses.replace(first, verdicts=(*first.verdicts, first.verdicts[0]))
        judge_report([RecordedGroup((twice,), groups[0].rubric)])


def test_without_labels_pairs_and_repeats_nothing_is_zero(groups: list[RecordedGroup], tmp_path: Path):
    written = write_judge_report(judge_report(groups, resamples=100), tmp_path / "out")
    overall = written.data["overall"]
    for name in ("accuracy", "kappa", "kappa_quadratic", "alpha", "ece", "brier", "spread", "changed"):
        assert overall[name] == [None, None, None]
    assert written.data["orders"] is None and overall["labels"] == 0
    text = Page(written.html.read_text()).text
    assert "How often this judge is right is unknown." in text
    assert "No answer has a label" in text and "No attack on the judge was tried" in text
    for name in ("same choice in both orders", "run-to-run spread", "keyword stuffing"):
        assert name in text


def test_jf61_an_always_first_judge_shows_as_bias_1_and_teaches_nothing(groups: list[RecordedGroup], tmp_path: Path):
    requests = [PairRequest(RUBRIC, f"one {k}", f"other {k}") for k in range(6)]
    with serve(Stub(says(reason="the first", rank=[1, 2]))) as stub:
        pairs = ask_both_orders(judge_of(stub, mode="joint_rank"), requests, preferred=[A, B, A, B, A, None])
        assert len(stub.requests) == 12
    report = judge_report(groups, pairs=pairs, resamples=100)
    assert report.orders is not None
    assert tuple(report.orders.bias) == (1.0, 1.0, 1.0) and tuple(report.orders.consistency) == (0.0, 0.0, 0.0)
    for pair in pairs:
        assert preference.advantages(preference.both_orders(pair.forward, pair.swapped)) == (0.0, 0.0)
    written = write_judge_report(report, tmp_path / "out")
    assert written.data["orders"]["bias"][1] == 1.0 and written.data["orders"]["accuracy"] == 0.5
    assert written.data["always_first"] == {"consistency": 0.0, "bias": 1.0, "accuracy": 0.5}
    assert "the first image gains 100 points" in Page(written.html.read_text()).text


def test_jf60_the_three_outcomes_stand_apart_in_the_report(groups: list[RecordedGroup]):
    pairs = [PairAnswers(str(k), *pair) for k, pair in enumerate([(A, B), (TIE, TIE), (A, A), (TIE, A), (FAILED, A)])]
    data = judge_report(groups, pairs=pairs, resamples=100).as_json()["orders"]
    assert data["outcomes"] == {"WIN_A": 1, "WIN_B": 0, "TIE": 1, "INCONSISTENT": 2, "FAILED": 1}
    assert (data["pairs"], data["known"]) == (5, 4) and data["consistency"][1] == 0.5


def test_jf59_run_to_run_spread_is_reported(tmp_path: Path):
    first = record(tmp_path / "a.jsonl", {"p": {"s0": [0.4, 0.9, 0.1]}, "q": {"s1": [0.8, 0.8, 0.8]}})
    again = record(tmp_path / "b.jsonl", {"p": {"s0": [0.6, 0.9, 0.1]}})
    report = judge_report(read(first), repeats=[read(again)], resamples=100)
    # Three repeated questions with variances .02, 0, 0, one of which changes sides; s1 was not asked again.
    assert report.overall.values["spread"].mid == pytest.approx(math.sqrt(0.02 / 3))
    assert report.overall.values["changed"].mid == pytest.approx(1 / 3)


def test_jf25_mixed_ways_of_reading_are_said(groups: list[RecordedGroup]):
    rows = [
        dataclasses.replace(r, verdicts=tuple(dataclasses.replace(v, read="json") for v in r.verdicts))
        for r in groups[0].rows
    ]
    mixed = [RecordedGroup(tuple(rows), groups[0].rubric), *groups[1:]]
    report = judge_report(mixed, resamples=100)
    assert report.reads == {"json": 5, "logprob": 5}
    assert any("read in 2 ways" in notice for notice in report.notices)
    assert not any("read in" in notice for notice in judge_report(groups, resamples=100).notices)


def test_an_attack_is_the_gain_on_the_same_samples(full: JudgeReport, tmp_path: Path):
    first = record(tmp_path / "a.jsonl", {"p": {"s0": [0.1, 0.9, 0.1]}, "q": {"s1": [0.1, 0.1, 0.1]}})
    attacked = record(tmp_path / "b.jsonl", {"q": {"s1": [0.9, 0.9, 0.1]}, "p": {"s0": [0.9, 0.9, 0.1]}})
    [probe] = judge_report(read(first), attacks={"echo": read(attacked)}, resamples=100).probes
    # s0 from 2/3 to 1, s1 from 1/3 to 1: the mean gain is 1/2.
    assert probe.gain.mid == pytest.approx(0.5) and probe.pictures == 2
    summary = full.reliability.attack_probes.summary  # type: ignore[union-attr]
    assert "raise a picture's score without improving it: text written into the image" in summary


def test_a_judge_is_measured_alone_and_each_sample_once(tmp_path: Path, groups: list[RecordedGroup]):
    with pytest.raises(InputError, match="choose one judge id of: vlm/1, vlm/2"):
        judge_report([*groups, *read(record(tmp_path / "b.jsonl", {"r": {"s9": [0.1] * 3}}, judge_id="vlm/2"))])
    with pytest.raises(InputError, match=r"sample 's0' is judged on lines 3 and 3 .*as a repeat"):
        judge_report([*groups, *groups])
    with pytest.raises(InputError, match="no verdict to report on"):
        judge_report([])
    with pytest.raises(InputError, match="none of the 1 labels fits a verdict"):
        judge_report(groups, [Label("s0", "blue", 1.0)])


def test_repeats_and_attacks_must_be_of_the_same_samples(tmp_path: Path, groups: list[RecordedGroup]):
    other = read(record(tmp_path / "b.jsonl", {"p": {"s0": [0.1] * 3}}, sample_hash="another picture"))
    with pytest.raises(InputError, match=r"repeat 1, line 3: sample 's0', criterion '\w+' is another picture"):
        judge_report(groups, repeats=[other])
    strange = read(record(tmp_path / "c.jsonl", {"p": {"x": [0.1] * 3}}))
    with pytest.raises(InputError, match="repeat 1 holds none of the judged samples"):
        judge_report(groups, repeats=[strange])
    with pytest.raises(InputError, match="attack 'echo': its record holds none of the samples"):
        judge_report(groups, attacks={"echo": strange}, resamples=100)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sample_id": "s0", "criterion_id": "red"', "not valid JSON"),
        ("[1]", "expected an object, got list"),
        ('{"sample_id": "s0", "met": 1}', r"missing fields \['criterion_id'\]; known: sample_id, criterion_id, met"),
        ('{"sample_id": "s0", "criterion_id": "red", "met": 1, "who": "x"}', r"unknown fields \['who'\]"),
        ('{"sample_id": "s0", "criterion_id": "red", "met": 2}', "field met is 2; give true, false"),
        ('{"sample_id": "s0", "criterion_id": "red", "met": "yes"}', "field met is 'yes'"),
        ('{"sample_id": "s0", "criterion_id": "red", "met": NaN}', "field met is nan"),
        ('{"sample_id": "", "criterion_id": "red", "met": 1}', "must be text that is not empty"),
        ('{"sample_id": "a", "criterion_id": "b", "met": 0}', "sample 'a', criterion 'b' is labelled on line 1"),
    ],
)
def test_a_bad_label_is_named_with_file_and_line(line: str, message: str, tmp_path: Path):
    path = tmp_path / "labels.jsonl"
    path.write_text('{"sample_id": "a", "criterion_id": "b", "met": true}\n\n' + line + "\n")
    with pytest.raises(InputError, match=rf"labels\.jsonl:3: .*{message}"):
        load_labels(path)


def test_labels_are_shares_or_open(tmp_path: Path):
    path = tmp_path / "labels.jsonl"
    lines = [{"sample_id": "a", "criterion_id": str(k), "met": met} for k, met in enumerate([True, 0, 0.25, None])]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [label.met for label in load_labels(path)] == [1.0, 0.0, 0.25, None]
    with pytest.raises(InputError, match="cannot be read"):
        load_labels(tmp_path / "none.jsonl")
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no line"):
        load_labels(path)


def test_pairs_are_saved_and_read_and_checked(tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    pairs = [*drawn_pairs(3), PairAnswers("x", FAILED, TIE)]
    save_pairs(pairs, path)
    assert load_pairs(path) == pairs
    for field, value in (("forward", "INCONSISTENT"), ("preferred", "FAILED"), ("swapped", "A")):
        path.write_text(json.dumps({"pair_id": "1", "forward": "TIE", "swapped": "TIE", field: value}))
        with pytest.raises(InputError, match=rf"pairs\.jsonl:1: pair '1': field {field} is '{value}'; known: WIN_A"):
            load_pairs(path)
    path.write_text('{"pair_id": "1", "forward": "TIE", "swapped": "TIE"}\n' * 2)
    with pytest.raises(InputError, match=r"pairs\.jsonl:2: pair '1' is given twice"):
        load_pairs(path)


def test_intervals_of_a_mean_are_those_of_the_bootstrap():
    rng = np.random.default_rng(0)
    values = rng.random((60, 4)) < rng.random((60, 1))
    columns = np.stack([values.ravel(), np.ones(240)], axis=1).astype(np.float64)
    mean = Statistic(columns, lambda totals: totals[..., 0] / totals[..., 1])
    units = np.repeat(np.arange(60), 4)
    found = intervals({"mean": mean}, units, seed=0, resamples=4000)["mean"]
    assert found == pytest.approx(bootstrap(values.astype(float), seed=1, resamples=4000), abs=0.01)
    assert intervals({"mean": mean}, units, seed=0, resamples=4000)["mean"] == found
    # As 240 units of their own the answers look surer than they are.
    alone = intervals({"mean": mean}, np.arange(240), seed=0)["mean"]
    assert alone.high - alone.low < found.high - found.low


def test_an_interval_without_spread_to_resample_is_unknown():
    ratio = Statistic(np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]), lambda t: agreement.ratio(t[..., 0], t[..., 1]))
    one = intervals({"x": ratio}, np.array([5, 5, 9]), seed=0)["x"]  # unit 9 says nothing
    assert one.mid == 0.5 and math.isnan(one.low) and math.isnan(one.high)
    # Two units: a quarter of the resamples holds only the one whose answers are all yes, where kappa is undecided.
    table = np.zeros((4, 2, 2))
    table[0, 1, 1] = table[1, 1, 1] = table[2, 0, 0] = table[3, 0, 1] = 1
    kappa = intervals({"k": Statistic(table, agreement.kappa_of)}, np.array([0, 0, 1, 1]), seed=0)["k"]
    assert kappa.mid == pytest.approx(0.5) and math.isnan(kappa.low)
    with pytest.raises(InputError, match="at least 100"):
        intervals({"x": ratio}, np.array([0, 1, 2]), seed=0, resamples=50)


def test_the_page_is_whole_needs_no_network_and_shows_pictures_before_tables(full: JudgeReport, tmp_path: Path):
    written = write_judge_report(full, tmp_path)
    html = written.html.read_text()
    page = Page(html)
    assert page.open == [] and page.links and all(link.startswith(("data:", "#")) for link in page.links)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|<link|<iframe", html)
    assert written.html.stat().st_size < 1_000_000
    body = html[html.index("<main>") :]
    for key in Reliability.NAMES:
        chapter = body[body.index(f'<section id="{key}"') :]
        chapter = chapter[: chapter.index("</section>")]
        lede, numbers = chapter.index('class="lede"'), chapter.index("<dl")
        first = min(chapter.find(mark) for mark in ("<svg", 'class="flow"') if mark in chapter)
        assert lede < first < numbers, key
    assert chapter.count("<svg") == 1  # the attack that was tried
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    share = round(100 * full.overall.values["accuracy"].mid)
    assert f"This judge is right on {share} of 100 labelled answers." in " ".join(page.text.split())


def test_json_beside_it_is_the_report(full: JudgeReport, tmp_path: Path):
    written = write_judge_report(full, tmp_path)
    data = json.loads(written.json.read_text())
    assert data == written.data == full.as_json()
    assert set(data["per_kind"]) == {"object", "colour", "text"}
    assert sum(data["calibration"]["counts"]) == data["overall"]["labels"]
    assert data["calibration"]["ece_by_chance"] < data["overall"]["ece"][1]  # overconfident on purpose
    assert set(data["reliability"]) == set(Reliability.NAMES)


@pytest.mark.parametrize("absent", list(Reliability.NAMES))
def test_a_report_without_one_of_the_four_chapters_is_refused_by_name(full: JudgeReport, tmp_path: Path, absent: str):
    broken = dataclasses.replace(full, reliability=dataclasses.replace(full.reliability, **{absent: None}))
    with pytest.raises(InputError, match=f"no reliability section for: {Reliability.NAMES[absent]}\\."):
        write_judge_report(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_text_from_outside_cannot_become_markup(tmp_path: Path):
    evil = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }} $\\frac{"
    rubric = Rubric(prompt=evil, criteria=(OBJECT.model_copy(update={"category": evil}),))
    path = record(tmp_path / "r.jsonl", {"p": {"s": [0.9]}, "q": {"t": [0.2]}}, rubric, judge_id=evil)
    labels = [Label("s", "ball", 1.0), Label("t", "ball", 0.0)]
    html = write_judge_report(judge_report(read(path), labels, title=evil, resamples=100), tmp_path).html.read_text()
    assert "<img src=x" not in html and "{{ 7 * 7 }}" in html
    assert Page(html).open == []


def command_line() -> typer.Typer:
    """The command as `mmrubric.cli` registers it."""
    app = typer.Typer()

    @app.command("judge-report")
    @command
    @functools.wraps(judge_report_command)
    def run(**options):
        output().show(*judge_report_command(**options))

    return app


def test_the_command_writes_the_report_and_prints_one_object(tmp_path: Path):
    first, again = simulated(tmp_path / "a.jsonl")[0], simulated(tmp_path / "b.jsonl", seed=1)[0]
    labels = simulated(tmp_path / "c.jsonl", lift=2.0)[1]
    lines = [json.dumps(dataclasses.asdict(label)) for label in labels]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    arguments = [str(first), "--labels", str(tmp_path / "labels.jsonl"), "--repeat", str(again), "--phase", "eval"]
    arguments += ["--attack", f"echo={tmp_path / 'c.jsonl'}", "--out", str(tmp_path / "out"), "--resamples", "100"]
    result = CliRunner().invoke(command_line(), [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["report"] == str(tmp_path / "out" / "report.html") and Path(data["report"]).is_file()
    assert data["overall"]["labels"] > 200 and data["repeats"] == 1


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--phase", "train"], "no samples fit; phases, steps and judges in it: eval, 0, vlm/1"),
        (["--attack", "echo"], "--attack 'echo': write it as NAME=RECORD"),
        (["--attack", "a=x", "--attack", "a=y"], "'a' is given twice"),
        (["--resamples", "5"], "resamples must be at least 100"),
        (["--labels", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
    ],
)
def test_bad_input_of_the_command_exits_with_2(extra: list[str], message: str, tmp_path: Path):
    path = record(tmp_path / "record.jsonl", PROMPTS)
    result = CliRunner().invoke(command_line(), [str(path), "--out", str(tmp_path / "out"), *extra, "--json"])
    assert result.exit_code == 2
    assert message in json.loads(result.stdout)["error"]


def test_groups_can_be_chosen_by_step(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    with RunRecord(path) as out:
        out.append([row("s0", [0.1] * 3, "p", RUBRIC), row("s0", [0.9] * 3, "p", RUBRIC, step=8)], [RUBRIC])
    [group] = groups_of(path, step=8)
    assert group.rows[0].verdicts[0].met == 0.9
    assert judge_report(groups_of(tmp_path, step=8), resamples=100).samples == 1  # a folder holds record.jsonl
