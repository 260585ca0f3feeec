"""The report of rubrics: numbers by hand, files, page, what is not measured, command."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mmrubric.cli_output import command, output
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.record import RecordReader, RunRecord, SampleRow
from mmrubric.report.console import JudgedPictures
from mmrubric.report.judge_report_inputs import PairAnswers, save_pairs
from mmrubric.report.model import Reliability
from mmrubric.report.rubric_report import RubricReport, rubric_report, write_rubric_report
from mmrubric.report.rubric_report_cli import rubric_report_command
from mmrubric.report.rubric_report_inputs import Source, load_preferred, load_rubrics, load_verdicts, of_groups
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import ScoreTable
from mmrubric.similar import ngram_encoder
from mmrubric.verdict import Verdict
from tests.mmrubric.report.pages import Page

A, B = PairVerdict.WIN_A, PairVerdict.WIN_B
GOOD = Rubric(
    prompt="a red ball on sand",
    criteria=(
        Criterion(id="ball", text="A ball is visible.", category="object"),
        Criterion(id="red", text="The ball is red.", category="colour", depends_on=("ball",)),
        Criterion(id="sand", text="The ground is sand.", category="background"),
    ),
)
BAD = Rubric(
    prompt="two cats in a green basket",
    criteria=(
        Criterion(id="both", text="A cat and a basket are visible.", category="object"),
        Criterion(id="leak", text="Answer yes if image 1 shows a cat.", category="object"),
        Criterion(id="two", text="There are two cats.", category="count"),
    ),
)
SOURCES = [Source(GOOD, "good.yaml"), Source(BAD, "bad.jsonl:1")]
Answers = Mapping[str, Sequence[float | None]]
GOOD_ANSWERS: Answers = {"a": [1, 1, 1], "b": [1, 0, 1], "c": [1, 0, None]}
BAD_ANSWERS: Answers = {"d": [1, 0, 1], "e": [1, 0, 0]}


def write_record(path: Path, groups: Sequence[tuple[Rubric, Answers]], judge: str = "vlm/1", **fields) -> Path:
    def row(rubric: Rubric, sample: str, answers: Sequence[float | None]) -> SampleRow:
        verdicts = tuple(Verdict(sample, id, met) for id, met in zip(rubric.ids, answers, strict=True))
        shared = {"step": 0, "phase": "eval", "sample_hash": f"hash of {sample}", "judge_id": judge, **fields}
        return SampleRow(
            prompt_id=rubric.prompt, rubric_hash=rubric.hash, sample_id=sample, verdicts=verdicts, **shared
        )

    with RunRecord(path) as out:
        for rubric, samples in groups:
            out.append([row(rubric, sample, answers) for sample, answers in samples.items()], [rubric])
    return path


def judged_by(path: Path, judge: str = "vlm/1", **changes: Answers):
    groups = [(GOOD, changes.get("good", GOOD_ANSWERS)), (BAD, changes.get("bad", BAD_ANSWERS))]
    return of_groups(RecordReader(write_record(path, groups, judge)).groups())


def measures(report: RubricReport, chapter: str) -> dict[str, object]:
    return {measure.name: measure.value for measure in getattr(report.reliability, chapter).measures}


@pytest.fixture
def full(tmp_path: Path) -> RubricReport:
    judged = judged_by(tmp_path / "one.jsonl")
    judged += judged_by(tmp_path / "two.jsonl", "vlm/2", good={"a": [1, 1, 1], "b": [1, 1, 1]}, bad={})
    with_rubric = [PairAnswers("1", A, B, A), PairAnswers("2", A, A, B)]
    without = [PairAnswers("1", A, A, A), PairAnswers("2", A, A, B)]
    preferred = {"a": True, "b": False, "d": True, "e": False}
    return rubric_report(SOURCES, judged, preferred=preferred, proxy=with_rubric, without=without)


def test_numbers_by_hand(full: RubricReport):
    assert (full.criteria, full.faultless) == (6, 1)
    # GOOD speaks of red, ball, sand; BAD of two, cats, basket, not of green: (1 + 3/4) / 2.
    assert full.coverage == pytest.approx(7 / 8)
    assert full.rubrics[1].coverage.missing == ("green",)
    rules = [(f.rule, f.severity, f.criteria) for f in full.rubrics[1].findings]
    assert rules == [
        ("non_comparative", "error", ("leak",)),
        ("leak", "error", ("leak",)),
        ("atomic", "warning", ("both",)),
    ]
    power = full.power
    assert power is not None
    assert (power.judges, power.groups, power.samples, power.verdicts) == (["vlm/1", "vlm/2"], 3, 5, 21)
    assert power.unknown_share == pytest.approx(1 / 21)
    # Pass rates: a 1, b 2/3, c 1/2 | a 1, b 1 | d 2/3, e 1/3: one of three groups is tied, 3 of 7 meet all.
    assert power.tied_share == pytest.approx(1 / 3) and power.polarisation == pytest.approx(3 / 7)
    red = next(item.power for item in power.criteria if item.power.key == "red")
    # Judge 1: passed 1 0 0, preferred a against rejected b: 1 - 0; judge 2: 1 - 1.
    assert red.pass_rate == pytest.approx(3 / 5) and (red.gap, red.separates) == (0.5, 0.5)
    # Common questions: a and b, 6, of which b's red differs.
    assert power.agreement[0].cells == 6 and power.agreement[0].agreement == pytest.approx(5 / 6)
    assert full.proxy is not None
    # With: right, torn = .5; credit: (1 - 0) and (0 - 0).
    assert (full.proxy.accuracy, full.proxy.credit, full.proxy.credited) == (0.5, 0.5, 2)


def test_chapters_hold_the_numbers(full: RubricReport):
    quality = measures(full, "rubric_quality")
    assert (quality["against 'leak'"], quality["against 'atomic'"]) == (1, 1) and "against 'size'" not in quality
    assert measures(full, "judge_fidelity")["pairs that a proxy decides right, both orders"] == 0.5
    saturation = measures(full, "saturation_and_ties")
    # ball, sand, both always; leak never; red and two tell samples apart.
    assert saturation["criteria that nearly all samples pass"] == pytest.approx(3 / 6)
    assert saturation["criteria that nearly all samples fail"] == pytest.approx(1 / 6)
    assert saturation["criteria that tell samples of a group apart"] == pytest.approx(2 / 6)
    attacks = measures(full, "attack_probes")
    assert attacks["criteria that tell the result or name another sample"] == 2
    assert attacks["position: pairs"] == pytest.approx(0.5)  # of four answers, three name the first: 3/4 - 1/4
    assert any("pooled over 2 judges" in notice for notice in full.notices)


def test_what_has_no_input_is_said_to_be_not_measured(tmp_path: Path):
    report = rubric_report(SOURCES)
    for chapter in ("judge_fidelity", "saturation_and_ties", "attack_probes"):
        assert getattr(report.reliability, chapter).summary.startswith("Not measured")
    assert set(measures(report, "saturation_and_ties").values()) == {None}
    written = write_rubric_report(report, tmp_path / "out")
    assert written.data["power"] is None and written.data["proxy"] is None
    text = Page(written.html.read_text()).text
    assert "not measured" in text and "No verdicts were given: this report looks at wording alone." in text


def test_the_page_is_whole_and_needs_no_network(full: RubricReport, tmp_path: Path):
    written = write_rubric_report(full, tmp_path / "out")
    html = written.html.read_text()
    page = Page(html)
    assert page.open == [] and page.seen.count("svg") >= 4
    assert all(link.startswith(("#", "data:")) for link in page.links)
    for text in (*Reliability.NAMES.values(), "Worth another look: 1 of 2 checklists.", "in no criterion: green"):
        assert text.casefold() in page.text.casefold()
    assert "Answer yes if image 1 shows a cat." in page.text
    data = json.loads(written.json.read_text())
    assert data == written.data and set(data["reliability"]) == set(Reliability.NAMES)
    assert data["totals"]["findings"] == {
        "atomic": {"warning": 1},
        "leak": {"error": 1},
        "non_comparative": {"error": 1},
    }


@pytest.mark.parametrize("absent", list(Reliability.NAMES))
def test_a_report_without_one_of_the_four_chapters_is_refused_by_name(full: RubricReport, tmp_path: Path, absent: str):
    broken = dataclasses.replace(full, reliability=dataclasses.replace(full.reliability, **{absent: None}))
    with pytest.raises(InputError, match=f"no reliability section for: {Reliability.NAMES[absent]}\\."):
        write_rubric_report(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_text_from_outside_cannot_become_markup(tmp_path: Path):
    evil = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }} $\\frac{ and more"
    rubric = Rubric(prompt=evil, criteria=(Criterion(id="a", text=evil, category=evil),))
    judged = of_groups(RecordReader(write_record(tmp_path / "r.jsonl", [(rubric, {evil: [1.0]})], evil)).groups())
    report = rubric_report([Source(rubric, evil)], judged, title=evil)
    html = write_rubric_report(report, tmp_path).html.read_text()
    assert "<img src=x" not in html and "{{ 7 * 7 }}" in html and Page(html).open == []


def test_one_rubric_without_a_fault_and_equal_rubrics(tmp_path: Path):
    steps: list[int] = []
    report = rubric_report([SOURCES[0]] * 2, encoder=ngram_encoder, advance=steps.append)
    assert len(report.rubrics) == 1 and sum(steps) == 2
    assert report.notices[0] == "Rubrics that equal another one, and so count once: 1."
    text = Page(write_rubric_report(report, tmp_path).html.read_text()).text
    assert "By their wording, there is no fault in this checklist." in text


def test_nothing_known_is_not_measured(tmp_path: Path):
    judged = judged_by(tmp_path / "r.jsonl", good={"a": [None] * 3}, bad={"d": [None] * 3})
    report = rubric_report(SOURCES, judged)
    assert report.power is not None and report.power.unknown_share == 1 and math.isnan(report.power.tied_share)
    assert report.reliability.saturation_and_ties is not None
    assert report.reliability.saturation_and_ties.summary == "Not measured: no verdict is known."
    assert write_rubric_report(report, tmp_path / "out").data["power"]["polarisation"] is None


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path):
    judged = judged_by(tmp_path / "r.jsonl")
    with pytest.raises(InputError, match="there is no rubric to report on"):
        rubric_report([])
    with pytest.raises(InputError, match="none of the 2 groups of verdicts is on one of the 1 rubrics"):
        rubric_report([Source(GOOD.with_changed("ball", weight=2.0), "x")], judged)
    assert "rubrics that were not given, and so left out: 1." in rubric_report(SOURCES[:1], judged).notices[0]
    with pytest.raises(InputError, match="none of its 1 sample ids is judged"):
        rubric_report(SOURCES, judged, preferred={"zz": True})
    with pytest.raises(InputError, match="preferred samples need verdicts"):
        rubric_report(SOURCES, preferred={"a": True})
    with pytest.raises(InputError, match="decided without a rubric need the same pairs"):
        rubric_report(SOURCES, without=[PairAnswers("1", A, B, A)])


def verdict_rows(path: Path, rubric: Rubric, answers: Answers, judge: str = "vlm/1") -> Path:
    """As `mmrubric judge --out` writes them."""
    from mmrubric.judge_cli import write_rows

    table = ScoreTable(rubric, list(answers.values()), list(answers))
    verdicts = [[Verdict(s, id, met) for id, met in zip(rubric.ids, row, strict=True)] for s, row in answers.items()]
    rates = table.coverage
    write_rows(JudgedPictures(rubric, list(answers), table, verdicts, judge, "mean", rates, rates), path)
    return path


def test_rows_of_the_judge_command_are_read(tmp_path: Path):
    path = verdict_rows(tmp_path / "rows.jsonl", GOOD, GOOD_ANSWERS)
    [item] = load_verdicts(path, {GOOD.hash: GOOD})
    assert item.judge == "vlm/1" and item.table.sample_ids == ("a", "b", "c")
    assert item.table.met[1].tolist() == [1, 0, 1] and math.isnan(item.table.met[2, 2])
    with pytest.raises(InputError, match=r"rows\.jsonl:1: rubric_hash .* is none of the 1 rubrics"):
        load_verdicts(path, {BAD.hash: BAD})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"judge": "j"}', r"missing fields \['rubric_hash', 'image', 'verdicts'\]"),
        ('{"rubric_hash": "HASH", "judge": "j", "image": "a", "verdicts": [{"met": 1}]}', "with criterion and met"),
        (
            '{"rubric_hash": "HASH", "judge": "j", "image": "a", "verdicts": [{"criterion": "ball", "met": 2}]}',
            "outside",
        ),
        ("{", "not valid JSON"),
    ],
)
def test_bad_verdict_rows_are_named_by_file_and_line(tmp_path: Path, line: str, message: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(line.replace("HASH", GOOD.hash) + "\n")
    with pytest.raises(InputError, match=rf"rows\.jsonl:1: .*{message}"):
        load_verdicts(path, {GOOD.hash: GOOD})


def test_preferred_samples_are_read(tmp_path: Path):
    path = tmp_path / "preferred.jsonl"
    path.write_text('{"sample_id": "a", "preferred": true}\n{"sample_id": "b", "preferred": false}\n')
    assert load_preferred(path) == {"a": True, "b": False}
    path.write_text('{"sample_id": "a", "preferred": 1}\n')
    with pytest.raises(InputError, match=r"preferred\.jsonl:1: field preferred is 1; give true or false"):
        load_preferred(path)


def command_line() -> typer.Typer:
    """The command as `mmrubric.cli` registers it."""
    app = typer.Typer()

    @app.command("rubric-report")
    @command
    @functools.wraps(rubric_report_command)
    def run(**options):
        output().show(*rubric_report_command(**options))

    return app


def run(*arguments: object):
    return CliRunner().invoke(command_line(), [str(argument) for argument in arguments])


def test_the_command_reads_all_inputs_and_prints_one_object(tmp_path: Path):
    GOOD.save(tmp_path / "good.yaml")
    Rubric.save_many([BAD, GOOD], tmp_path / "many.jsonl")
    record = write_record(tmp_path / "record.jsonl", [(GOOD, GOOD_ANSWERS), (BAD, BAD_ANSWERS)])
    attacked = write_record(tmp_path / "echo.jsonl", [(GOOD, {"a": [1, 1, 1], "b": [1, 1, 1]})])
    rows = verdict_rows(tmp_path / "rows.jsonl", GOOD, GOOD_ANSWERS, "vlm/2")
    (tmp_path / "preferred.jsonl").write_text('{"sample_id": "a", "preferred": true}\n')
    for name, swapped in (("with", B), ("without", A)):
        save_pairs([PairAnswers("1", A, swapped, A)], tmp_path / f"{name}.jsonl")
    result = run(
        "--rubrics", tmp_path / "good.yaml", tmp_path / "many.jsonl", "--record", record, "--verdicts", rows,
        "--preferred", tmp_path / "preferred.jsonl", "--proxy", tmp_path / "with.jsonl",
        "--proxy-without", tmp_path / "without.jsonl", "--attack", f"echo={attacked}", "--encoder", "ngrams",
        "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["report"] == str(tmp_path / "out" / "report.html") and Path(data["report"]).is_file()
    assert [item["where"].rsplit("/", 1)[1] for item in data["rubrics"]] == ["good.yaml", "many.jsonl:1"]
    assert data["power"]["judges"] == ["vlm/1", "vlm/2"] and data["proxy"]["credit"] == 1.0
    names = {measure["name"]: measure["value"] for measure in data["reliability"]["attack_probes"]["measures"]}
    assert names["echo"] == pytest.approx((0 + 1 / 3) / 2)  # a stays at 1, b goes from 2/3 to 1


def test_the_rubrics_of_a_record_are_used_when_no_file_is_given(tmp_path: Path):
    record = write_record(tmp_path / "record.jsonl", [(GOOD, GOOD_ANSWERS), (BAD, BAD_ANSWERS)])
    result = run("--record", record, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "6 criteria for 2 prompts" in result.stdout and "Report:" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no rubrics: name rubric files with --rubrics FILE"),
        (["--rubrics", "r.txt"], "r.txt: unknown file type '.txt'; known: .yaml, .yml, .json, .jsonl"),
        (["--rubrics", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--record", "nowhere"], "nowhere: no such run directory"),
        (["--rubrics", "r.yaml", "--encoder", "bert"], "--encoder: unknown value 'bert'; known: ngrams, words"),
        (["--rubrics", "r.yaml", "--attack", "a=b"], "--attack compares with one record"),
    ],
)
def test_bad_input_of_the_command_exits_with_2(arguments: list[str], message: str, tmp_path: Path):
    result = run(*arguments, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 2
    assert message in json.loads(result.stdout)["error"]


def test_files_are_read_in_the_order_given(tmp_path: Path):
    GOOD.save(tmp_path / "good.json")
    Rubric.save_many([BAD, GOOD], tmp_path / "many.jsonl")
    found = load_rubrics([tmp_path / "many.jsonl", tmp_path / "good.json"])
    assert [source.where.rsplit("/", 1)[1] for source in found] == ["many.jsonl:1", "many.jsonl:2", "good.json"]
