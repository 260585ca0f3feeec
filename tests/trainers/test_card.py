"""The card of a real run of seconds: what it says is in the run, and its code paints the evaluated picture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmrubric.cli import app
from mmrubric.errors import InputError
from mmrubric.prompt import Prompt
from pipelines import LoraOptions, load_policy
from pipelines.policy import RowSeed
from pipelines.quiet import quiet
from pipelines.testing_tokens import tiny_janus_directory
from tests.trainers.toys import PROMPTS, RedJudge, settings
from trainers import parts
from trainers.card import write_card
from trainers.loop import Trainer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[dict[str, tuple[Path, np.ndarray]]]:
    """By what they tune: (directory with the exported model, picture [H, W, 3] that it paints from noise seed 5)."""
    made = {}
    for tune in ("lora", "full"):
        folder = tmp_path_factory.mktemp("card")
        config = settings(
            folder, tiny_model, run__name=f"red-{tune}", model__tune=tune, tracking__images_every=1,
            eval={"every": 2, "prompts": str(folder / "prompts.txt"), "limit": 2, "allow_same_judge": True},
            **({"model__lora": {"rank": 2, "alpha": 4}} if tune == "lora" else {}),
        )  # fmt: skip
        with Trainer(config, parts.build(config, judge=RedJudge(), eval_judge=None)) as trainer:
            trainer.run()
            trainer.export()
            policy: Any = trainer.policy
            rollout = policy.sample([Prompt(id="p", text=PROMPTS[1])], [RowSeed(noise=5, path=0)])
        write_card(trainer.directory, trainer.directory / "model")
        made[tune] = trainer.directory, rollout.images[0]
    yield made


def front_matter(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize("tune", ["lora", "full"])
def test_the_code_paints_what_the_policy_paints(
    runs: dict[str, tuple[Path, np.ndarray]], tune: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, expected = runs[tune]
    card = (directory / "model" / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert "StableDiffusion3Pipeline.from_pretrained" in code and ("load_lora_weights" in code) == (tune == "lora")
    seeded = 'generator=torch.Generator().manual_seed(5), output_type="np").images[0]'
    code = code.replace('"..."', repr(PROMPTS[1])).replace(").images[0]", f", {seeded}")
    monkeypatch.chdir(directory)
    found: dict[str, Any] = {"torch": torch}
    with quiet():
        exec(code, found)
    assert np.abs((found["image"] * 255).round() - expected.astype(float)).max() <= 1


def test_what_the_card_says(runs: dict[str, tuple[Path, np.ndarray]]) -> None:
    directory, _ = runs["lora"]
    card = (directory / "model" / "README.md").read_text()
    head = front_matter(card)
    assert (head["library_name"], head["pipeline_tag"]) == ("diffusers", "text-to-image")
    assert {"mmrubric", "rpo", "nft", "lora"} <= set(head["tags"]) and "base_model" not in head
    assert "lora" not in front_matter((runs["full"][0] / "model" / "README.md").read_text())["tags"]
    evaluations = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    before, after = (row["eval/mean_pass_rate"] for row in evaluations if row["kind"] == "eval")
    assert f"| criteria that hold, mean share | {before:.4g} | {after:.4g} |" in card
    assert "| held-out prompts | step 0 | step 2 |" in card
    assert "The judge that evaluated is the one that trained" in card
    assert "- `red/1` (eval, train)" in card or "- `red/1` (train, eval)" in card
    assert "4 different checklists were used" in card and PROMPTS[0] in card
    assert "| optim.lr | 0.001 |" in card and "| model.lora.rank | 2 |" in card
    assert (directory / "model" / "samples.png").read_bytes() == (directory / "images/rollout-000001.png").read_bytes()
    assert "![Pictures of training step 1](samples.png)" in card


def test_a_hub_id_is_the_base_model_and_servers_stay_unnamed(
    runs: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    """A run without record, metrics and pictures says so; the weights here are a whole pipeline."""
    config = yaml.safe_load((runs["full"][0] / "config.yaml").read_text())
    config["model"]["path"] = "owner/some-model"
    config["judge"] = {"name": "vlm", "options": {"base_url": "http://10.1.2.3:8000/v1", "model": "qwen"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    card = write_card(tmp_path, model).read_text()
    head = front_matter(card)
    assert (head["base_model"], head["base_model_relation"]) == ("owner/some-model", "finetune")
    assert "10.1.2.3" not in card and "Judge: `vlm`. The run kept no record" in card
    assert "Neither training steps nor evaluations were recorded." in card and "samples.png" not in card
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 0, "kind": "train", "reward/mean": null}\n{"step": 1, "kind": "train", "reward/mean": 0.25}\n'
    )
    assert "training prompts: unknown at step 0, 0.25 at step 1" in write_card(tmp_path, model).read_text()


def test_the_call_of_a_ddim_pipeline_and_of_an_editor(runs: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    """Their pipelines take no noise levels and no text length; an editor takes a picture."""
    (tmp_path / "deployed.json").write_text('{"steps": 7, "guidance": 7.5, "height": 64, "max_sequence_length": 0}')
    for name, expected in (
        ("StableDiffusionPipeline", 'prompt="...", guidance_scale=7.5, num_inference_steps=7, height=64)'),
        ("QwenImageEditPipeline", 'image=source, prompt="...", negative_prompt="", true_cfg_scale=7.5, num_inf'),
    ):
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": name}))
        card = write_card(runs["full"][0], tmp_path).read_text()
        assert f"from diffusers import {name}\n" in card and f"image = pipe({expected}" in card
    assert front_matter(card)["pipeline_tag"] == "image-to-image"


def test_a_token_model(tmp_path: Path) -> None:
    """Whole and as a LoRA: the code loads it with plain transformers."""
    config = settings(tmp_path, tiny_janus_directory(tmp_path / "janus"), rollout__sampler={"kind": "tokens"},
                      loss={"name": "clip", "options": {"clip": 0.2}}, advantage__name="grpo")  # fmt: skip
    tunes: tuple[Literal["full", "lora"], ...] = ("full", "lora")
    for tune in tunes:
        run = tmp_path / tune
        run.mkdir()
        (run / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        load_policy(
            tmp_path / "janus", tune, LoraOptions(rank=2) if tune == "lora" else None, device="cpu"
        ).save_pretrained(run / "model")
        card = write_card(run, run / "model").read_text()
        head = front_matter(card)
        assert head["library_name"] == "transformers" and ("lora" in head["tags"]) == (tune == "lora")
        [code] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        found: dict[str, Any] = {}
        with chdir(run), quiet():
            exec(code, found)
        assert type(found["model"]).__name__ == "JanusForConditionalGeneration"
        assert any("lora_" in name for name in found["model"].state_dict()) == (tune == "lora")


def test_what_is_no_run_or_no_model(runs: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no config"):
        write_card(tmp_path, tmp_path)
    with pytest.raises(InputError, match="nothing to write a card for"):
        write_card(runs["full"][0], tmp_path)


def test_the_command(runs: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    directory, _ = runs["lora"]
    words = ["export", str(directory), "--out", str(tmp_path / "out"), "--format", "comfyui", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    files = json.loads(done.stdout)["files"]
    assert [Path(file).name for file in files] == ["red-lora.safetensors", "README.md", "samples.png"]
    assert all(key.startswith("transformer.") for key in load_file(files[0]))
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2 and "not an empty directory" in json.loads(again.stdout)["error"]
