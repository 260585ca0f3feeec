"""The configuration: every contradiction is an error before weights load, and it comes back as it was
written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mmrubric.config import load_config, save_config
from mmrubric.errors import InputError
from trainers import checks
from trainers.config import TrainConfig

SHAPES = sorted((Path(__file__).parents[2] / "configs" / "shapes").glob("*.yaml"))
SDE = "rollout.sampler={steps: 4, noise: sde}"
CLIP = ["loss.name=clip", SDE]


def _load(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, None, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optim.learning_rate=1"], "unknown key 'optim.learning_rate'"),
        (["rollout.group_size=1", "advantage.name=grpo"], "grpo needs groups of at least 2"),
        (["rollout.group_size=3"], "even"),
        (["rollout.group_size=1"], "at least 2"),
        (["run.processes=64"], "run.processes=64, but a step has 32 pictures"),
        (["data.limit=8"], "data.prompts_per_step=16 is above data.limit=8"),
        (["optim.updates_per_rollout=17"], "updates_per_rollout=17 is above data.prompts_per_step=16"),
        (["rollout.sampler={same_noise: true}"], "makes all samples of a prompt equal"),
        (["loss.name=clip"], "needs the log-prob of noisy steps"),
        (["loss.name=guard", "rollout.sampler={noise: sde, level: 0}"], "is deterministic"),
        (["loss.name=guard", "rollout.sampler={noise: cps, log_prob: cps}"], "needs the Gaussian log-prob"),
        (["loss.name=clip", "rollout.sampler={steps: 1, noise: sde}"], "leaves no step to train"),
        (["loss.timestep_fraction=0.6"], "loss.timestep_fraction is set but acts only with loss.name=clip or guard"),
        ([*CLIP, "loss.timestep_fraction=0.6", "rollout.sampler.steps=2"], "only one step of a sample is trained"),
        ([*CLIP, "loss.timestep_fraction=0"], "greater than 0"),
        ([*CLIP, "rollout.sampler.solver=dpmsolver++"], "every step but the last is stochastic"),
        (["loss.levels=11"], "loss.levels=11 is above rollout.sampler.steps=10"),
        (["loss.name=sft"], "unknown loss 'sft'; known: clip, guard, nft, ppo"),
        (["loss.options={eps: 1}"], "known options: beta, advantage_max"),
        (["loss.kl=gaussian", "loss.kl_coefficient=0.1"], "use: velocity"),
        (["advantage.name=reinforce"], "known: grpo, grpo_by_category, reward, rpo"),
        (["advantage.options={lambda: 1}"], "lambda"),
        (["reward.aggregate=sum"], "unknown"),
        (["rubric.generator=llm"], "rubric.generator: unknown 'llm'"),
        (["rollout.oversample=2"], "must be above rollout.group_size=2"),
        (["rollout.oversample=4", "rollout.best=3"], "best is 3"),
        (["rollout.best=1"], "rollout.best is set but acts only with rollout.oversample"),
        ([*CLIP, "loss.levels=2"], "loss.levels is set but acts only with loss.name=nft"),
        (["loss.old_log_prob=recompute"], "acts only with loss.name=clip, guard or ppo"),
        (["model.lora.rank=4"], "model.lora is set but acts only with model.tune=lora"),
        (["ema.every=4"], "ema.every is set but acts only with ema.decay"),
        (["loss.old_decay=0.5"], "takes no value"),
        (["loss.kl=velocity"], "loss.kl is set but acts only with loss.kl_coefficient above 0"),
        (["eval.every=5"], "eval.judge: an evaluation needs another judge"),
        (["eval.weights=ema"], "no average is kept"),
        (["optim.lr=nan"], "optim.lr"),
        (["rollout.sampler={steps: 4, noise: sde, window: {size: 4}}", "loss.name=clip"], "do not fit"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        _load(*overrides)


def test_defaults_are_rpo_through_nft() -> None:
    config = _load()
    # win = 1, loss = -1 and advantage_max 1 give optimality 1 and 0
    assert checks.advantage_options(config) == {"win": 1.0, "loss": -1.0}
    assert checks.loss_of(config).options.advantage_max == 1.0 and checks.warnings(config) == []
    assert config.kl_name == "velocity" and not checks.kl_of(config).active
    published = _load(*CLIP)
    assert checks.advantage_options(published) == {} and published.kl_name == "mu_no_dt"


def test_rpo_constants_of_the_paper_through_nft_warn() -> None:
    [text] = checks.warnings(_load("advantage.options={win: 1.0, loss: -0.1}"))
    assert "r = 1 for the winner and 0.45 for the loser" in text


def test_tf58_evaluation_has_its_own_section(tmp_path: Path) -> None:
    config = _load("rollout.batch_size=8", "optim.batch_size=2", "eval.batch_size=5")
    assert (config.rollout.batch_size, config.optim.batch_size, config.eval.batch_size) == (8, 2, 5)
    save_config(config, tmp_path / "config.yaml")
    assert load_config(TrainConfig, tmp_path / "config.yaml") == config


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid_and_round_trip(path: Path, tmp_path: Path) -> None:
    if path.stem == "compare":
        from trainers.compare import CompareConfig, cell_config

        compare = load_config(CompareConfig, path)
        made = [
            cell_config(compare, path.parent, tmp_path, a, x, 0) for a in compare.advantages for x in compare.losses
        ]
        assert {config.run.steps * config.data.prompts_per_step * config.rollout.drawn for config in made} == {3200}
        assert len({config.run.name for config in made}) == 6
        return
    config = load_config(TrainConfig, path)
    save_config(config, tmp_path / "config.yaml")
    assert load_config(TrainConfig, tmp_path / "config.yaml") == config


def test_every_key_has_a_line_of_help() -> None:
    def bare(section: Any, where: str) -> list[str]:
        found = []
        for name, field in section.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and hasattr(inner, "model_fields") and not where:
                found += bare(inner, name)
            elif where and not field.description and where not in ("guards",):
                found.append(f"{where}.{name}")
        return found

    assert bare(TrainConfig, "") == []
