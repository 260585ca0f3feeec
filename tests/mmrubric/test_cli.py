import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmrubric import Rubric, aggregate
from mmrubric.cli import app
from mmrubric.record import RunRecord, rows_of
from mmrubric.shapes import near_miss, parse, render, scene_for

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "three blue squares on a white background"
runner = CliRunner()


def call(*arguments: object):
    return runner.invoke(app, [str(a) for a in arguments])


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own, with standard output and error apart."""
    return subprocess.run(
        [sys.executable, "-m", "mmrubric.cli", *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A picture that meets the checklist, and one whose shapes have another colour."""
    folder, rng, spec = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0), parse(PROMPT)
    paths = folder / "right.png", folder / "wrong.png"
    for path, scene in zip(paths, (scene_for(spec, rng), near_miss(spec, "colour", rng)), strict=True):
        Image.fromarray(render(scene)).save(path)
    return paths


def test_help_names_every_command():
    result = call("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("rubric", "judge", "compare", "quickstart", "report"))


@pytest.mark.parametrize("name", ["judge", "compare", "quickstart", "report"])
def test_every_help_shows_an_example_and_json(name: str):
    result = call(name, "--help")
    assert result.exit_code == 0
    assert f"Example: mmrubric {name}" in " ".join(result.stdout.split())
    assert "--json" in result.stdout


def test_rubric_prints_a_table_and_writes_a_file(tmp_path: Path):
    result = call("rubric", PROMPT, "--out", tmp_path / "squares.yaml")
    assert result.exit_code == 0
    for kind in ("object", "count", "attribute", "realism"):
        assert kind in result.stdout
    assert Rubric.load(tmp_path / "squares.yaml").prompt == PROMPT


def test_rubric_json_is_the_rubric():
    data = json.loads(call("rubric", PROMPT, "--json").stdout)
    made = Rubric.parse({key: data[key] for key in ("prompt", "criteria", "provenance")})
    assert made.hash == data["hash"] and data["file"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rubric", "  "], "the prompt is empty"),
        (["rubric", "a dragon", "--generator", "shapes"], "outside the world of shapes"),
        (["rubric", PROMPT, "--generator", "nope"], "shapes, shapes_edit, template"),
        (["rubric", PROMPT, "--option", "x"], "write it as key=value"),
        (["judge", "x.png"], "either --prompt TEXT"),
        (["judge", "x.png", "--prompt", PROMPT, "--rubric", "r.yaml"], "not both"),
        (["judge", "missing.png", "--prompt", PROMPT], "missing.png"),
        (["judge", "x.png", "--prompt", PROMPT, "--aggregate", "nope"], "known: "),
        (["report", "no/such/run"], "no such run directory"),
        (["quickstart", "--config", "no.yaml"], "no.yaml"),
        (["quickstart", "loss.nam=nft"], "loss.nam"),
    ],
)
def test_bad_input_exits_with_2_and_says_why(arguments: list[str], message: str):
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.replace("\n", "")
    assert result.stdout == ""
    answer = json.loads(call(*arguments, "--json").stdout)
    assert answer["exit_code"] == 2 and message in answer["error"]


def test_judge_prints_ticks_and_scores(pictures: tuple[Path, Path]):
    data = json.loads(call("judge", *pictures, "--prompt", PROMPT, "--aggregate", "weighted", "--json").stdout)
    right, wrong = data["images"]
    assert right["score"] == 1.0 and right["everything_right"] is True
    # One of five criteria, the colour, fails: 4 / 5.
    assert [v["criterion"] for v in wrong["verdicts"] if not v["passed"]] == ["colour_square"]
    assert wrong["score"] == pytest.approx(0.8) and wrong["everything_right"] is False
    table = call("judge", *pictures, "--prompt", PROMPT, "--reasons")
    assert table.exit_code == 0 and "✓" in table.stdout and "✗" in table.stdout and "0.800" in table.stdout


def test_judge_takes_a_rubric_file_and_options(pictures: tuple[Path, Path], tmp_path: Path):
    call("rubric", PROMPT, "--out", tmp_path / "r.json")
    arguments = [
        "judge",
        pictures[1],
        pictures[1],
        "--rubric",
        tmp_path / "r.json",
        "--aggregate",
        "all_or_nothing",
    ]
    data = json.loads(call(*arguments, "--json").stdout)
    assert [i["score"] for i in data["images"]] == [0.0, 0.0]  # the same file twice is two rows
    assert call(*arguments, "--option", "a=1").exit_code == 2
    assert call(*arguments, "--aggregate-option", "gates=3").exit_code == 2


def test_compare_says_which_and_why(pictures: tuple[Path, Path]):
    data = json.loads(call("compare", *pictures, "--prompt", PROMPT, "--json").stdout)
    assert data["verdict"] == "WIN_A" and data["favours"] == {"colour_square": "A"}
    assert data["why"] == "A is better. Only A meets: All squares are blue."
    swapped = call("compare", *reversed(pictures), "--prompt", PROMPT)
    assert "B is better" in swapped.stdout
    assert "A tie" in call("compare", pictures[0], pictures[0], "--prompt", PROMPT).stdout
    # Four of five against five of five is a difference of 0.2.
    wide = json.loads(call("compare", *pictures, "--prompt", PROMPT, "--margin", 0.3, "--json").stdout)
    assert wide["verdict"] == "TIE"


@pytest.fixture
def run_directory(pictures: tuple[Path, Path], tmp_path: Path) -> Path:
    """A run record of one step with the two pictures, judged by the real judge."""
    import judges
    from mmrubric import generators

    rubric = generators.build("shapes").generate_sync(PROMPT)
    judge = judges.build("shapes")
    samples = [np.asarray(Image.open(path)) for path in pictures]
    requests = [judges.JudgeRequest(rubric=rubric, candidate=s, sample_id=f"s{k}") for k, s in enumerate(samples)]
    verdicts = judge.score_sync(requests)
    with RunRecord(tmp_path / "record.jsonl") as record:
        rows = rows_of(
            verdicts,
            samples=samples,
            rubric=rubric,
            step=0,
            prompt_id="p",
            judge_id=judge.id,
            reward=[1.0, 0.8],
        )
        record.append(rows, [rubric])
    return tmp_path


def test_report_rebuilds_rewards_without_judging(run_directory: Path):
    data = json.loads(call("report", run_directory, "--aggregate", "all_or_nothing", "--json").stdout)
    assert (data["groups"], data["samples"], data["not_scorable"]) == (1, 2, 0)
    # all-or-nothing: 1 and 0, mean .5; as recorded: 1 and .8, mean .9.
    assert data["steps"] == [
        {"phase": "train", "step": 0, "samples": 2, "not_scorable": 0, "recorded_mean": 0.9, "mean": 0.5}
    ]
    lines = [json.loads(line) for line in Path(data["rewards"]).read_text().splitlines()]
    assert [(r["sample_id"], r["recorded"], r["reward"]) for r in lines] == [
        ("s0", 1.0, 1.0),
        ("s1", 0.8, 0.0),
    ]
    table = call("report", run_directory / "record.jsonl", "--aggregate", "weighted")
    assert table.exit_code == 0 and "0.900" in table.stdout


def test_report_refuses_what_is_not_there(run_directory: Path):
    result = call("report", run_directory, "--phase", "eval")
    assert result.exit_code == 2 and "nothing to rebuild" in result.stderr
    assert not list(run_directory.glob("rewards-*"))
    assert "points" in aggregate.names()


@pytest.mark.slow
def test_a_process_keeps_standard_output_pure():
    good = process("rubric", PROMPT, "--json")
    assert good.returncode == 0 and json.loads(good.stdout)["prompt"] == PROMPT
    assert good.stdout.count("\n") == 1
    bad = process("rubric", "a dragon", "--generator", "shapes", "--json")
    assert bad.returncode == 2 and json.loads(bad.stdout)["exit_code"] == 2 and "a dragon" in bad.stderr
    wrong_usage = process("judge", "--json")
    assert wrong_usage.returncode == 2 and json.loads(wrong_usage.stdout)["exit_code"] == 2


def test_work_that_fails_exits_with_1(tmp_path: Path):
    # A directory stands where the file should go.
    (tmp_path / "squares.yaml").mkdir()
    result = call("rubric", PROMPT, "--out", tmp_path / "squares.yaml", "--json")
    assert result.exit_code in (1, 2) and "error" in json.loads(result.stdout)


def test_importing_the_command_line_does_not_import_torch():
    code = "import sys, mmrubric.cli, mmrubric.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
