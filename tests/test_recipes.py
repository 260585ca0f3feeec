"""The published recipes: each builds its configuration, and its tiny twin trains two real steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrubric import generators
from mmrubric.config import load_config
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest
from mmrubric.verdict import Verdict
from pipelines.testing import PROMPTS, tiny_sd3_directory
from pipelines.testing_flux import tiny_flux_directory
from pipelines.testing_qwen import sources_scaled_to, tiny_qwen_image_edit_directory
from pipelines.testing_tokens import tiny_janus_directory
from tests.trainers.toys import RedJudge, RedPairs
from trainers import parts
from trainers.config import TrainConfig
from trainers.loop import Trainer
from trainers.train import plan

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
TWINS: dict[str, Callable[[Path], Path]] = {
    "flux": tiny_flux_directory,
    "qwen": tiny_qwen_image_edit_directory,
    "sd35": tiny_sd3_directory,
    "janus": tiny_janus_directory,
}
"""By the beginning of the recipe's name."""
MISSING = {
    "data.prompts": "prompts.txt", "eval.prompts": "heldout.txt", "judge.options.base_url": "http://127.0.0.1:9/v1",
    "judge.options.model": "any",
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "flux_dance_grpo": {
        "optim.lr": 1e-5, "rollout.group_size": 12, "rollout.sampler.level": 0.3, "model.tune": "full",
        "loss.timestep_fraction": 0.6,
    },
    "flux_mix_grpo": {
        "rollout.sampler.steps": 25, "rollout.sampler.window.size": 4, "optim.updates_per_rollout": 4,
        "advantage.name": "grpo_by_category",
    },
    "flux_rpo": {
        "judge.options.mode": "joint_rank",
        "optim.lr": 5e-5,
        "loss.options.clip": 0.2,
        "loss.kl_coefficient": 0.01,
        "model.lora.rank": 16,
    },
    "janus_rubricrl_grpo": {"rollout.sampler.guidance": 5.0, "optim.lr": 1e-6},
    "qwen_image_edit_rpo": {"optim.lr": 1e-5, "loss.kl_coefficient": 0.02, "data.prompts_per_step": 16},
    "sd35_flow_grpo": {"loss.options.clip": 1e-4, "loss.kl_coefficient": 0.04, "rollout.sampler.guidance": 4.5},
    "sd35_flow_grpo_fast": {"rollout.sampler.window.hi": 5, "rollout.sampler.level": 0.8, "loss.options.clip": 1e-5},
    "sd35_grpo_guard": {"loss.options.clip": 2e-6, "optim.lr": 1e-4, "advantage.options.scale": "group"},
    "sd35_nft": {
        "loss.kl_coefficient": 1e-4, "loss.options.beta": 1.0, "data.prompts_per_step": 48,
        "rollout.sampler.solver": "dpmsolver++",
    },
}  # fmt: skip
"""Numbers of the papers and their code (field/trainers.md, section 2), and RubricRL's that are ours."""


def load(recipe: Path, **given: str) -> TrainConfig:
    return load_config(TrainConfig, recipe, [f"{key}={value}" for key, value in {**MISSING, **given}.items()])


class OrderJudge(RedJudge):
    """Every criterion holds for the samples of even number and for no other, so that no pair ties."""

    def _one(self, request: JudgeRequest) -> list[Verdict]:
        assert request.sample_id is not None
        met = 1.0 - int(request.sample_id.split("-")[1]) % 2
        return [Verdict(request.sample_id, criterion.id, met) for criterion in request.rubric.criteria]


def prompts_file(folder: Path, edit: bool) -> Path:
    """Four prompts, with a source picture each where the model edits."""
    path = folder / "prompts.jsonl"
    lines: list[dict[str, Any]] = [{"text": text} for text in PROMPTS]
    for number, line in enumerate(lines if edit else ()):
        picture = np.full((16, 16, 3), 60 * number, np.uint8)
        Image.fromarray(picture).save(folder / f"{number}.png")
        line["sources"] = [f"{number}.png"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rubrics_file(folder: Path) -> Path:
    """Checklists of the four prompts, which a run takes for edits as well."""
    path, generator = folder / "rubrics.jsonl", generators.build("shapes")
    path.write_text("".join(generator.generate_sync(text).model_dump_json() + "\n" for text in PROMPTS))
    return path


def twin_of(recipe: Path, folder: Path) -> TrainConfig:
    """The recipe on a tiny model: its own losses, samplers, windows, precision and rates; fewer rows, steps, pixels."""
    kind = recipe.stem.split("_")[0]
    tree = load(recipe).model_dump()
    tree["model"]["path"] = str(TWINS[kind](folder / "tiny"))
    tree["run"] |= {"output_dir": str(folder / "runs"), "save_every": 0}
    tree["data"] |= {"prompts": str(prompts_file(folder, kind == "qwen"))}
    tree["data"]["prompts_per_step"] = max(2, tree["optim"]["updates_per_rollout"])
    tree["rubric"] = {"file": str(rubrics_file(folder))}
    if not tree["judge"]["compare"]:
        tree["judge"]["options"]["any_verifier"] = True  # the file's criteria name the pixel rules
    tree["eval"] = {"every": 0}
    tree["tracking"] = {"progress": False}
    rollout, sampler = tree["rollout"], tree["rollout"]["sampler"]
    rollout |= {"group_size": 2, "batch_size": 2}
    if rollout["oversample"]:
        rollout |= {"oversample": 3, "best": 1}
    if sampler["kind"] == "flow":
        sampler |= {"height": 16, "width": 16, "max_sequence_length": 24, "steps": 6}
        tree["loss"]["levels"] = min(tree["loss"]["levels"], 6)
    tree["optim"]["batch_size"] = 2
    return TrainConfig.model_validate(tree)


def test_the_recipes_are_all_there() -> None:
    assert [recipe.stem for recipe in RECIPES] == sorted(PUBLISHED)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_holds_the_published_numbers_and_names_its_source(recipe: Path) -> None:
    config = load(recipe)
    for key, expected in PUBLISHED[recipe.stem].items():
        value: Any = config.model_dump()
        for part in key.split("."):
            value = value[part]
        assert value == expected, key
    head = recipe.read_text().split("\nrun:")[0]
    assert "# Source: " in head and ("arXiv" in head or "code " in head)
    assert f"--config configs/{recipe.name}" in head and config.run.name == recipe.stem
    # A batch that divides the rows has log-probs recorded at the update's own size: nothing is computed twice.
    assert config.data.prompts_per_step * config.rollout.drawn % (config.rollout.batch_size or 1) == 0
    # (Token models recompute theirs whatever the size.)
    assert config.rollout.sampler.kind == "tokens" or config.rollout.batch_size == config.optim.batch_size


@pytest.mark.parametrize("key", MISSING)
def test_what_the_user_has_to_give_is_asked_for(key: str) -> None:
    given = [f"{name}={value}" for name, value in MISSING.items() if name != key]
    with pytest.raises(InputError, match=key.replace(".", r"\.")):
        load_config(TrainConfig, CONFIGS / "flux_rpo.yaml", given)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_tiny_twin_trains(recipe: Path, tmp_path: Path) -> None:
    config = twin_of(recipe, tmp_path)
    planned = plan(config)
    assert planned["prompts"] == 4 and planned["judge"].startswith("vlm")
    assert planned["updates_per_step"] == config.optim.updates_per_rollout
    judge: Any = RedPairs() if config.judge.compare else OrderJudge("order/1")
    with sources_scaled_to(16 * 16), Trainer(config, parts.build(config, judge=judge)) as trainer:
        before = [parameter.detach().clone() for _, parameter in trainer.policy.trainable_parameters()]
        for _ in range(2):
            metrics = trainer.step()
        after = [parameter.detach() for _, parameter in trainer.policy.trainable_parameters()]
    assert trainer.updater.made == 2 * config.optim.updates_per_rollout
    assert np.isfinite(metrics["loss/value"]) and metrics["optim/grad_norm"] > 0
    moved = [bool((a != b).any()) for a, b in zip(after, before, strict=True)]
    assert sum(moved) > len(moved) / 2 and all(bool(torch.isfinite(a).all()) for a in after)
