"""The command: exit codes, the plan without weights, and the shipped smoke configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmrubric.config import save_config
from tests.trainers.toys import settings
from trainers import train
from trainers.evaluate import EvalResult
from trainers.train import run

SMOKE = Path(__file__).parents[2] / "configs" / "shapes" / "smoke.yaml"


def _saved(directory: Path, model: Path) -> Path:
    save_config(settings(directory, model, judge__name="shapes"), directory / "config.yaml")
    return directory / "config.yaml"


def test_dry_run_prints_the_plan_and_loads_nothing(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_saved(tmp_path, tiny_model), ["run.steps=7", "run.processes=4"], dry_run=True, as_json=True) == 0
    plan = json.loads(capsys.readouterr().out)
    # 2 prompts x 2 samples a step, 2 noise levels each
    assert (plan["steps"], plan["images_per_step"], plan["judged_images"], plan["items_per_step"]) == (
        7,
        4,
        28,
        8,
    )
    assert plan["prompts"] == 4 and plan["eval_judge"] is None and plan["warnings"] == []
    assert not (tmp_path / "runs").exists()


def test_the_plan_counts_the_steps_that_are_trained(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["loss={name: clip, timestep_fraction: 0.7}", "rollout.sampler={steps: 4, noise: sde}"]
    assert run(_saved(tmp_path, tiny_model), [*options, "loss.levels=4"], dry_run=True, as_json=True) == 0
    # 2 prompts x 2 samples, and .7 of the 3 stochastic steps, rounded down
    assert json.loads(capsys.readouterr().out)["items_per_step"] == 8


def test_a_plan_of_a_recipe_names_what_is_left_to_fill_in(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _saved(tmp_path, tiny_model)
    assert run(recipe, ["data.prompts=???", f"model={tiny_model}"], dry_run=True, as_json=True) == 0
    plan = json.loads(capsys.readouterr().out)
    assert "not set yet: data.prompts." in plan["warnings"][-1] and "prompts" not in plan
    assert plan["trainable_parameters"] > 0 and plan["images_per_step"] == 4
    assert run(recipe, ["data.prompts=???"], as_json=True) == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.rate=1", "unknown key"),
        ("rollout.group_size=3", "even"),
        ("run.processes=2", "--num_processes 2"),
        ("model.path=/nowhere/at/all", "does not exist"),
        ("run.resume=/nowhere/at/all", "no checkpoint there"),
        ("judge.name=nobody", "nobody"),
        ("judge.options={strictness: 11}", "strictness"),
    ],
)
def test_bad_input_is_exit_code_2_with_its_reason(
    override: str, message: str, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_saved(tmp_path, tiny_model), [override]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.out == "" and "Traceback" not in shown.err
    assert not (tmp_path / "runs").exists()


def test_missing_file_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none.yaml") == 2
    assert "no such configuration file" in capsys.readouterr().err


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: object) -> EvalResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", interrupted)
    assert run(_saved(tmp_path, tiny_model)) == 130
    assert "run.resume=auto" in capsys.readouterr().err


@pytest.mark.slow
def test_tf61_smoke_config_runs_on_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMOKE, [f"run.output_dir={tmp_path}", "tracking.progress=false"], as_json=True) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["steps"] == 2 and done["stopped"] is None and 0 <= done["strict_completion"] <= 1
    assert (Path(done["model"]) / "pytorch_lora_weights.safetensors").is_file()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "smoke" / "metrics.jsonl").read_text().splitlines()]
    assert kinds == ["eval", "train", "train", "eval"]


def test_a_lost_rank_is_a_failure_with_a_way_on(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(config: object) -> EvalResult:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:51939: Connection reset by peer")

    monkeypatch.setattr(train, "train", broken)
    assert run(_saved(tmp_path, tiny_model)) == 1
    assert "the connection to another rank is lost" in capsys.readouterr().err

    def other(config: object) -> EvalResult:
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(train, "train", other)
    with pytest.raises(RuntimeError, match="of our own"):
        run(_saved(tmp_path, tiny_model))
