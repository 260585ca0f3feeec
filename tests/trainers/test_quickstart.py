"""The quickstart on a tiny random generator: everything but the quality of its pictures is real."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mmrubric.config import load_config
from mmrubric.errors import InputError
from mmrubric.report.rebuild import rebuild
from pipelines.testing import tiny_sd3_directory
from trainers import quickstart, run_report
from trainers.config import TrainConfig

SMOKE = quickstart.CONFIG.with_name("smoke.yaml")


def test_the_shipped_settings_fit_a_quickstart():
    config = load_config(TrainConfig, quickstart.CONFIG)
    assert config.eval.limit is not None and config.eval.limit >= run_report.ENOUGH
    assert config.advantage.name == "rpo" and config.eval.allow_same_judge
    # Neither the checkpoint nor anything else may depend on the held-out prompts.
    assert config.data.prompts == "shapes:train" and config.eval.prompts == "shapes:heldout"


@pytest.mark.parametrize("override", ["run.resume=auto", "run.processes=2", "run.steps=0"])
def test_settings_that_a_quickstart_cannot_have(override: str):
    with pytest.raises(InputError, match=override.split("=")[0]):
        quickstart.read_config(SMOKE, [override])


def test_a_used_directory_is_left_alone(tmp_path: Path):
    wanted = [f"run.output_dir={tmp_path}", "run.name=first"]
    assert quickstart.read_config(SMOKE, wanted).run.name == "first"
    (tmp_path / "first").mkdir()
    assert quickstart.read_config(SMOKE, wanted).run.name == "first"
    (tmp_path / "first" / "report.html").touch()
    assert quickstart.read_config(SMOKE, wanted).run.name == "first-2"


@pytest.mark.slow
def test_a_run_from_settings_to_report(tmp_path: Path):
    model = tiny_sd3_directory(tmp_path / "model", pixels=64)
    overrides = [
        f"run.output_dir={tmp_path}", f"model.path={model}", "run.steps=2", "eval.limit=4",
        "rollout.group_size=2",
    ]  # fmt: skip
    result = quickstart.run(SMOKE, overrides, console=Console(quiet=True))
    data = json.loads(result.written.json.read_text())
    assert result.directory == tmp_path / "smoke" and result.written.html.is_file()

    fixed = {"before", "after", "difference", "judged_images", "unknown_share", "seconds", "settings"}
    assert fixed <= set(data)
    # 2 steps of 2 prompts with 2 pictures each.
    assert (data["prompts"], data["judged_images"], len(data["curve"])) == (4, 8, 2)
    assert data["settings"]["run"]["steps"] == 2 and data["settings"]["evaluation sampler"]["noise"] == "ode"
    assert data["allow_same_judge"] is True and data["train_judge"] == data["judge"]
    assert data["second_reader"]["id"] != data["judge"] and data["second_reader"]["verdicts_compared"] > 0
    assert data["unknown_share"]["before"] < 0.5
    assert any("Only 4 prompts" in note for note in data["notes"])

    measures = {m["name"]: m["value"] for m in data["reliability"]["judge_fidelity"]["measures"]}
    assert measures["same answer when asked again"] == 1.0
    assert measures["agreement with ground truth"] > 0.99
    probes = {m["name"] for m in data["reliability"]["attack_probes"]["measures"]}
    assert {
        "text written into the picture",
        "keyword stuffing",
        "rubric echo",
        "position",
        "length",
    } <= probes
    assert "everything right" in result.line.lower() and "4 held-out prompts" in result.line
    # Phases do not overlap and leave out only what lies between them.
    assert 0.5 * data["seconds"] < sum(data["timings"].values()) <= data["seconds"] * 1.001

    # The record rebuilds both evaluations: step 0 before, step 2 after.
    from mmrubric import aggregate

    again = rebuild(result.directory, aggregate.build("mean"), "mean", phase="eval")
    assert [(s.step, len(s.rebuilt)) for s in again.steps] == [(0, 4), (2, 4)]
    means = [float(np.nanmean(s.rebuilt)) for s in again.steps]
    assert means == pytest.approx([data[side]["mean_pass_rate"] for side in ("before", "after")])
