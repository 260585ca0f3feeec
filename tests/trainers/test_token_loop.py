"""Token models through the one loop: GRPO, RPO and PPO on tiny random Janus and Emu3 models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipelines
from mmrubric.errors import InputError
from pipelines import seeds
from pipelines.policy import Prompt, Rollout
from pipelines.testing_tokens import tiny_emu3_directory, tiny_janus_directory
from tests.trainers.toys import PROMPTS, RedJudge, settings
from trainers import checks, parts
from trainers.config import TrainConfig
from trainers.distributed import Dist
from trainers.loop import Trainer
from trainers.update import Updater

TOKENS = {"kind": "tokens", "guidance": 3.0, "temperature": 0.7}
CLIP: dict[str, Any] = {
    "loss__name": "clip", "loss__levels": 4, "loss__options": {"clip": 0.2}, "rollout__sampler": TOKENS,
}  # fmt: skip
BUILDERS = {"janus": tiny_janus_directory, "emu3": tiny_emu3_directory}


@pytest.fixture(scope="module", params=list(BUILDERS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return BUILDERS[request.param](tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture(scope="module")
def janus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_janus_directory(tmp_path_factory.mktemp("janus") / "model")


def _trainer(config: TrainConfig) -> Trainer:
    return Trainer(config, parts.build(config, judge=RedJudge()))


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for _, p in trainer.policy.trainable_parameters()]).clone()


def _sample(policy: Any, config: TrainConfig, rows: int = 4) -> Rollout:
    shown = [Prompt(id=str(i), text=text) for i, text in enumerate(PROMPTS)]
    keys = [(row // 2, row % 2) for row in range(rows)]
    return policy.sample(
        [shown[p] for p, _ in keys], [seeds.row_seed(0, 0, *key) for key in keys], config.rollout.sampler,
        checks.loss_of(config).record(config.rollout.sampler), prompt_rows=[p for p, _ in keys],
        sample_index=[s for _, s in keys],
    )  # fmt: skip


def _update(policy: Any, config: TrainConfig, rollout: Rollout, advantage: list[float]) -> Any:
    updater = Updater(policy, checks.loss_of(config), checks.kl_of(config), config.optim, config.loss)
    return updater(rollout, np.array(advantage), np.ones(len(rollout)), run_seed=0, step=0, sampled_at=len(rollout))


def test_a_step_moves_the_weights_and_its_first_pass_has_ratio_one(tmp_path: Path, model: Path):
    config = settings(tmp_path, model, **CLIP, advantage__name="grpo", loss__kl_coefficient=0.01, rollout__group_size=4)
    with _trainer(config) as trainer:
        before = _weights(trainer)
        metrics = trainer.step()
        assert not torch.equal(before, _weights(trainer))
        assert metrics["replay/logprob_absdiff_max"] == 0.0 and metrics["replay/ratio_max"] == 1.0
        assert metrics["loss/kl_k3"] == pytest.approx(0.0, abs=1e-6)
        second = trainer.step()
        assert second["loss/kl_k3"] > 0


def test_n_and_m_steps_equal_n_resume_m(tmp_path: Path, model: Path):
    whole = settings(tmp_path, model, run__name="whole", **CLIP, run__steps=3, ema__decay=0.9)
    with _trainer(whole) as trainer:
        trainer.run()
        expected = trainer.policy.state_dict()
    half = settings(tmp_path, model, run__name="half", **CLIP, run__steps=3, ema__decay=0.9, run__resume="auto")
    with _trainer(half) as trainer:
        trainer.run(2)
    with _trainer(half) as trainer:
        assert trainer.done == 2
        trainer.run()
        state = trainer.policy.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in expected.items())


def test_tf10_logits_that_did_not_sample_are_weighed_and_their_distance_is_logged(tmp_path: Path, janus: Path):
    policy = pipelines.load_policy(janus, device="cpu")
    sampler = TOKENS | {"guidance": 5.0, "temperature": 1.0}
    config = settings(tmp_path, janus, **(CLIP | {"rollout__sampler": sampler | {"guidance_mode": "cond_is"}}))
    rollout = _sample(policy, config)
    stats = _update(policy, config, rollout, [1.0, -1.0, 1.0, -1.0])
    metrics = stats.log.reduce(Dist())
    assert metrics["replay/sampled_kl"] > 0
    assert 0 < metrics["loss/importance"] <= 3.0
    same = settings(tmp_path, janus, **(CLIP | {"rollout__sampler": sampler}))
    metrics = _update(policy, same, _sample(policy, same), [1.0, -1.0, 1.0, -1.0]).log.reduce(Dist())
    assert "replay/sampled_kl" not in metrics


def test_the_importance_weights_are_the_capped_ratio_of_what_trains_to_what_sampled(tmp_path: Path, janus: Path):
    policy = pipelines.load_policy(janus, device="cpu")
    config = settings(
        tmp_path, janus, **(CLIP | {"rollout__sampler": TOKENS | {"guidance": 5.0, "guidance_mode": "cond_is"}})
    )
    rollout = _sample(policy, config)
    now = policy.log_prob(rollout, torch.arange(4), torch.zeros(4, dtype=torch.long)).log_prob.detach()
    expected = (now - rollout.log_probs).exp().clamp(max=3.0).mean()
    metrics = _update(policy, config, rollout, [1.0, -1.0, 1.0, -1.0]).log.reduce(Dist())
    assert metrics["loss/importance"] == pytest.approx(float(expected), rel=1e-5)


def test_samples_of_earlier_weights_are_weighed(tmp_path: Path, janus: Path):
    policy = pipelines.load_policy(janus, device="cpu")
    config = settings(tmp_path, janus, **CLIP)
    rollout = _sample(policy, config)
    with torch.no_grad():
        for _, parameter in policy.trainable_parameters():
            parameter.mul_(1.02)
    policy.version += 1
    now = policy.log_prob(rollout, torch.arange(4), torch.zeros(4, dtype=torch.long)).log_prob.detach()
    metrics = _update(policy, config, rollout, [1.0, -1.0, 1.0, -1.0]).log.reduce(Dist())
    expected = (now - rollout.log_probs).exp().clamp(max=3.0).mean()
    assert metrics["loss/importance"] == pytest.approx(float(expected), rel=1e-5)
    assert metrics["replay/ratio_max"] == 1.0, "the ratio starts at the weights before the update"


def test_a_tied_group_has_no_gradient_and_makes_no_step(tmp_path: Path, janus: Path):
    policy = pipelines.load_policy(janus, device="cpu")
    config = settings(tmp_path, janus, **CLIP)
    stats = _update(policy, config, _sample(policy, config), [0.0, 0.0, 0.0, 0.0])
    assert stats.updates == 0 and stats.forwards == 0


def test_the_gradient_does_not_depend_on_the_micro_batch(tmp_path: Path, janus: Path):
    def moved(batch: int) -> torch.Tensor:
        policy = pipelines.load_policy(janus, device="cpu")
        config = settings(tmp_path, janus, **CLIP, optim__batch_size=batch)
        before = torch.cat([p.detach().flatten() for _, p in policy.trainable_parameters()]).clone()
        updater = Updater(policy, checks.loss_of(config), checks.kl_of(config), config.optim, config.loss)
        # plain gradient descent: Adam would hide a factor
        updater.optimizer = torch.optim.SGD(updater.parameters, lr=1.0)
        rollout = _sample(policy, config)
        updater(rollout, np.array([1.0, -1.0, 0.5, -0.5]), np.ones(4), run_seed=0, step=0, sampled_at=4)
        return torch.cat([p.detach().flatten() for _, p in policy.trainable_parameters()]) - before

    one, four = moved(1), moved(4)
    assert one.abs().max() > 0
    assert torch.allclose(one, four, atol=1e-5 * float(four.abs().max()) + 1e-7)


def test_ppo_trains_the_value_head_with_one_sample_per_prompt(tmp_path: Path, model: Path):
    config = settings(
        tmp_path, model, run__steps=6, rollout__group_size=1, rollout__sampler=TOKENS, advantage__name="reward",
        loss__name="ppo", loss__levels=4, data__prompts_per_step=4, optim__lr=1e-2,
    )  # fmt: skip
    with _trainer(config) as trainer:
        errors = [trainer.step()["loss/value_error"] for _ in range(6)]
        names = [name for name, _ in trainer.policy.trainable_parameters()]
    assert any("value_head" in name for name in names)
    assert errors[-1] < errors[0]


def test_late_judging_of_tokens_trains_on_samples_one_update_old(tmp_path: Path, janus: Path):
    config = settings(tmp_path, janus, **CLIP, run__steps=3, rollout__late=True, advantage__name="grpo")
    with _trainer(config) as trainer:
        seen = []
        while trainer.done < 3:
            trainer._last = 3
            seen.append(trainer.step())
    assert [row["rollout/staleness"] for row in seen] == [0.0, 1.0, 1.0]
    assert "loss/importance" not in seen[0] and seen[1]["loss/importance"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rollout__sampler": {"steps": 4, "noise": "sde"}}, "takes tokens"),
        ({"rollout__sampler": TOKENS, "model__compile": True}, "takes none of these options"),
    ],
)
def test_what_the_model_does_not_take_is_refused(tmp_path: Path, janus: Path, change: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        parts.build(settings(tmp_path, janus, **(CLIP | change)), judge=RedJudge())


def test_a_token_sampler_on_a_flow_model_is_refused_before_weights_load(tmp_path: Path, tiny_model: Path):
    with pytest.raises(InputError, match="takes flow"):
        parts.read_inputs(settings(tmp_path, tiny_model, **CLIP), judge=RedJudge())


@pytest.mark.parametrize(("updates", "calls"), [(1, 4), (2, 6)])
def test_old_log_probs_are_not_computed_again_while_the_weights_are_those_of_the_start(
    tmp_path: Path, janus: Path, updates: int, calls: int
):
    # 4 rows in micro-batches of 1: 4 forwards of the update, and before it those of the second optimizer step's 2 rows
    policy = pipelines.load_policy(janus, device="cpu")
    config = settings(tmp_path, janus, **CLIP, optim__batch_size=1, optim__updates_per_rollout=updates)
    rollout, made, replay = _sample(policy, config), [], policy.log_prob

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(len(args[1]))
        return replay(*args, **kwargs)

    policy.log_prob = counted
    metrics = _update(policy, config, rollout, [1.0, -1.0, 0.5, -0.5]).log.reduce(Dist())
    assert len(made) == calls and metrics["replay/ratio_max"] == 1.0
