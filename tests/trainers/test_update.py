"""One rollout becomes optimizer steps: the gradient depends on nothing but the rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipelines
from mmrubric.errors import RunError
from pipelines import seeds
from pipelines.policy import Rollout
from pipelines.samplers import Sampler
from tests.trainers.toys import SDE, settings
from trainers import checks
from trainers.config import TrainConfig
from trainers.timesteps import level_noise, noise_levels, trained_count, trained_steps
from trainers.update import Updater, decayed

LOSSES: dict[str, dict[str, Any]] = {
    "clip": {
        "loss__name": "clip",
        "loss__levels": 4,
        "rollout__sampler": SDE,
        "loss__options": {"clip": 0.2},
    },
    "guard": {"loss__name": "guard", "loss__levels": 4, "rollout__sampler": SDE},
    "nft": {"loss__levels": 3},
    "part": {
        "loss__name": "clip",
        "loss__levels": 4,
        "loss__timestep_fraction": 0.7,
        "rollout__sampler": SDE,
    },
}
ADVANTAGE, WEIGHT = np.array([1.0, -1.0, 0.5, -0.5]), np.ones(4)


@pytest.fixture(scope="module")
def policies(tiny_model: Path) -> dict[str, Any]:
    return {"full": pipelines.load_policy(tiny_model, old=True, reference=True)}


def _sample(policy: Any, config: TrainConfig, rows: int = 4, batch: int | None = None) -> Rollout:
    """`rows` samples of two prompts, two each."""
    prompts = [line for line in Path(config.data.prompts).read_text().splitlines() if line]
    shown = [pipelines.policy.Prompt(id=str(i), text=text) for i, text in enumerate(prompts)]
    keys = [(row // 2, row % 2) for row in range(rows)]
    return policy.sample(
        [shown[p] for p, _ in keys], [seeds.row_seed(0, 0, *key) for key in keys], config.rollout.sampler,
        checks.loss_of(config).record(config.rollout.sampler), prompt_rows=[p for p, _ in keys],
        sample_index=[s for _, s in keys], batch=batch,
    )  # fmt: skip


class _Weights:
    """The weights before the test, put back after it."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.state = policy, {k: v.clone() for k, v in policy.state_dict().items()}

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.policy.load_state_dict(self.state)


def _updated(
    policy: Any,
    config: TrainConfig,
    rollout: Rollout,
    advantage: np.ndarray,
    weight: np.ndarray,
    sampled_at: int = 4,
) -> tuple[torch.Tensor, Any]:
    """Flat weights after one update, and its statistics."""
    with _Weights(policy):
        updater = Updater(policy, checks.loss_of(config), checks.kl_of(config), config.optim, config.loss)
        stats = updater(rollout, advantage, weight, run_seed=0, step=0, sampled_at=sampled_at)
        flat = torch.cat([p.detach().flatten().clone() for _, p in policy.trainable_parameters()])
    return flat, stats


def _gradient(
    policy: Any, config: TrainConfig, rollout: Rollout, advantage: np.ndarray, weight: np.ndarray
) -> torch.Tensor:
    """Flat gradient of one optimizer step, taken just before the step."""
    seen: list[torch.Tensor] = []
    updater = Updater(policy, checks.loss_of(config), checks.kl_of(config), config.optim, config.loss)
    updater._step = lambda rate: seen.append(torch.cat([p.grad.flatten().clone() for p in updater.parameters])) or 0.0  # type: ignore[method-assign, union-attr, func-returns-value]
    updater(rollout, advantage, weight, run_seed=0, step=0, sampled_at=4)
    for parameter in updater.parameters:
        parameter.grad = None
    return seen[0] if seen else torch.zeros(1)


@pytest.mark.parametrize("loss", LOSSES)
def test_tf21_gradient_does_not_depend_on_the_micro_batch(
    loss: str, policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    # 4 rows x 3 items = 12: one forward of 12, or 6 accumulated forwards of 2, or 3 uneven ones of 5
    policy = policies["full"]
    gradients = {}
    for size in (12, 2, 5):
        config = settings(tmp_path, tiny_model, optim__batch_size=size, **LOSSES[loss])
        rollout = _sample(policy, config)
        gradients[size] = _gradient(policy, config, rollout, ADVANTAGE, WEIGHT)
    scale = gradients[12].abs().max()
    assert scale > 0
    for size in (2, 5):
        assert (gradients[size] - gradients[12]).abs().max() <= 1e-4 * scale


@pytest.mark.parametrize("loss", LOSSES)
def test_masked_rows_change_neither_gradient_nor_normaliser(
    loss: str, policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    policy = policies["full"]
    config = settings(tmp_path, tiny_model, optim__batch_size=12, **LOSSES[loss])
    rollout = _sample(policy, config)
    masked = _gradient(policy, config, rollout, np.array([1.0, -1.0, 7.0, np.nan]), np.array([1.0, 1.0, 0.0, 0.0]))
    alone = _gradient(policy, config, rollout.select([0, 1]), ADVANTAGE[:2], WEIGHT[:2])
    assert (masked - alone).abs().max() <= 1e-4 * alone.abs().max() and alone.abs().max() > 0


def test_ties_count_in_the_normaliser_and_cost_no_forward(
    policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    policy = policies["full"]
    tied, weight = np.array([1.0, -1.0, 0.0, 0.0]), np.ones(4)
    made = {}
    for skip in (True, False):
        config = settings(tmp_path, tiny_model, loss__skip_zero=skip, optim__batch_size=4, **LOSSES["clip"])
        rollout = _sample(policy, config)
        made[skip] = (
            _gradient(policy, config, rollout, tied, weight),
            _updated(policy, config, rollout, tied, weight),
        )
    # half of the rows are tied: with them in the normaliser the gradient is half of that of the pair alone
    pair = _gradient(policy, config, rollout.select([0, 1]), tied[:2], weight[:2])
    assert torch.allclose(made[True][0], pair / 2, rtol=1e-4, atol=1e-4 * float(pair.abs().max()))
    assert (made[True][0] - made[False][0]).abs().max() <= 1e-4 * pair.abs().max()
    skipped, plain = made[True][1][1], made[False][1][1]
    assert (skipped.skipped, skipped.forwards) == (6, 8)  # 6 live items in forwards of 4, two of them padding
    assert (plain.skipped, plain.forwards) == (0, 12)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_groups_without_signal_move_nothing(
    loss: str, skip: bool, policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    policy = policies["full"]
    config = settings(tmp_path, tiny_model, loss__skip_zero=skip, optim__batch_size=4, **LOSSES[loss])
    before = torch.cat([p.detach().flatten().clone() for _, p in policy.trainable_parameters()])
    weight = np.full(4, checks.loss_of(config).tie_weight)
    after, stats = _updated(policy, config, _sample(policy, config), np.zeros(4), weight)
    assert torch.equal(before, after) and stats.updates == 0


def test_kl_pulls_back_samples_without_signal(policies: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    policy = policies["full"]
    config = settings(
        tmp_path,
        tiny_model,
        loss__kl_coefficient=1.0,
        loss__kl="gaussian",
        optim__batch_size=12,
        **LOSSES["clip"],
    )
    with _Weights(policy):
        for _, parameter in policy.trainable_parameters():
            parameter.data += 0.01
        rollout = _sample(policy, config)
        gradient = _gradient(policy, config, rollout, np.zeros(4), WEIGHT)
    assert gradient.abs().max() > 0


def test_second_update_has_another_ratio(policies: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    policy = policies["full"]
    for epochs, ratio_moves in ((1, False), (2, True)):
        config = settings(tmp_path, tiny_model, optim__batch_size=4, optim__epochs=epochs, **LOSSES["clip"])
        _, stats = _updated(policy, config, _sample(policy, config), ADVANTAGE, WEIGHT)
        metrics = stats.log.result()
        assert stats.updates == epochs == metrics["loss/updates_per_rollout"]
        assert (abs(metrics["loss/ratio"] - 1) > 1e-6) is ratio_moves
        assert metrics["replay/ratio_max"] == pytest.approx(1, abs=1e-6)


def test_updates_share_out_whole_groups(policies: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, optim__batch_size=4, optim__updates_per_rollout=2, **LOSSES["nft"])
    updater = Updater(policies["full"], checks.loss_of(config), checks.kl_of(config), config.optim, config.loss)
    rollout = _sample(policies["full"], config)
    items, _, _ = updater._items(rollout, ADVANTAGE, WEIGHT, 0, 0)
    chunks = [set(items.rows[chunk].tolist()) for chunk in updater._chunks(rollout, items)]
    assert chunks == [{0, 1}, {2, 3}]


@pytest.mark.parametrize("noise", ["sde", "dance", "cps"])
@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("batch", [1, 4])
def test_first_pass_ratio_is_one_with_equal_batches(
    noise: str, guidance: float, batch: int, policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    policy = policies["full"]
    sampler = {"steps": 3, "noise": noise, "level": 0.5, "guidance": guidance}
    config = settings(
        tmp_path,
        tiny_model,
        rollout__sampler=sampler,
        loss__name="clip",
        loss__levels=4,
        optim__batch_size=batch,
    )
    rollout = _sample(policy, config, batch=batch)
    _, stats = _updated(policy, config, rollout, ADVANTAGE, WEIGHT, sampled_at=batch)
    metrics = stats.log.result()
    assert metrics["replay/logprob_absdiff_max"] <= 1e-6 and metrics["replay/ratio_max"] == pytest.approx(1, abs=1e-6)


def test_other_batch_size_computes_old_log_probs_again(
    policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    policy = policies["full"]
    config = settings(tmp_path, tiny_model, optim__batch_size=3, **LOSSES["guard"])
    rollout = _sample(policy, config)
    assert rollout.log_probs is not None and rollout.means is not None
    rollout.log_probs += 1.0  # recorded values that would be far off
    rollout.means += 1.0
    _, stats = _updated(policy, config, rollout, ADVANTAGE, WEIGHT, sampled_at=4)
    assert stats.log.result()["replay/logprob_absdiff_max"] == 0.0
    _, stats = _updated(policy, config, rollout, ADVANTAGE, WEIGHT, sampled_at=3)
    assert stats.log.result()["replay/logprob_absdiff_max"] == pytest.approx(1.0, abs=1e-5)


def test_noise_levels_are_a_shuffle_of_the_rollouts_grid(
    policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    config = settings(tmp_path, tiny_model)
    rollout = _sample(policies["full"], config)
    levels = noise_levels(rollout, 3, 0, 5).reshape(4, 3)
    # 3 steps: every row has each of the grid's levels once, in an order of its own
    assert all(torch.equal(row.sort(descending=True).values, rollout.sigmas[:-1]) for row in levels)
    picked = rollout.select([2, 0])
    assert torch.equal(noise_levels(picked, 3, 0, 5).reshape(2, 3), levels[[2, 0]])  # of the sample, not of its place
    noise = level_noise(rollout, 3, 0, 5)
    assert len(noise.flatten(1).unique(dim=0)) == 12
    assert torch.equal(level_noise(picked, 3, 0, 5)[3:], noise[:3])
    assert not torch.equal(level_noise(rollout, 3, 0, 6), noise)


def test_each_sample_trains_a_random_share_of_its_steps(
    policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    config = settings(tmp_path, tiny_model, rollout__sampler={**SDE, "steps": 11}, **LOSSES["nft"])
    rollout = _sample(policies["full"], config)
    rollout.steps = torch.arange(10)
    chosen = trained_steps(rollout, 0.6, 0, 5)
    assert chosen.sum(1).tolist() == [6] * 4 and len(chosen.unique(dim=0)) == 4
    assert torch.equal(trained_steps(rollout.select([2, 0]), 0.6, 0, 5), chosen[[2, 0]])  # of the sample, not its place
    assert not torch.equal(trained_steps(rollout, 0.6, 0, 6), chosen)
    assert not torch.equal(trained_steps(rollout, 0.6, 1, 5), chosen)
    # DanceGRPO's 16 steps, the last one deterministic; at least one; .29 * 100 is 28.999999999999996
    assert [trained_count(15, 0.6), trained_count(3, 0.1), trained_count(100, 0.29)] == [9, 1, 29]


def test_a_share_of_the_steps_is_the_mean_of_their_gradients(
    policies: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    policy = policies["full"]
    part = settings(tmp_path, tiny_model, optim__batch_size=4, **LOSSES["part"])
    whole = settings(tmp_path, tiny_model, optim__batch_size=4, **LOSSES["clip"])
    rollout = _sample(policy, part)
    chosen = trained_steps(rollout, 0.7, 0, 0)
    assert chosen.shape == (4, 3) and rollout.mask is not None
    # one item at a time, each divided by itself alone: the 8 of 12 that are chosen, and the sum of them by 8
    total = torch.zeros(())
    for row, step in chosen.nonzero().tolist():
        rollout.mask = torch.zeros(4, 3, dtype=torch.bool)
        rollout.mask[row, step] = True
        total = total + _gradient(policy, whole, rollout, ADVANTAGE, WEIGHT) / 8
    rollout.mask = torch.ones(4, 3, dtype=torch.bool)
    both = _gradient(policy, part, rollout, ADVANTAGE, WEIGHT)
    assert (both - total).abs().max() <= 1e-4 * total.abs().max() and total.abs().max() > 0
    _, stats = _updated(policy, part, rollout, ADVANTAGE, WEIGHT)
    assert (stats.forwards, stats.skipped) == (8, 0)


def test_fp16_scaler_skips_an_overflow_and_goes_on(policies: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    policy = policies["full"]
    config = settings(tmp_path, tiny_model, optim__batch_size=12, **LOSSES["nft"])
    with _Weights(policy):
        updater = Updater(policy, checks.loss_of(config), checks.kl_of(config), config.optim, config.loss, "fp16")
        assert updater.scaler.is_enabled()
        rollout = _sample(policy, config)
        updater.scaler.scale(torch.zeros(()))  # the scale exists from the first use on
        before = updater.parameters[0].detach().clone()
        updater(rollout, ADVANTAGE, WEIGHT, run_seed=0, step=0, sampled_at=4)
        moved = updater.parameters[0].detach().clone()
        assert not torch.equal(before, moved)
        first = updater.scaler.get_scale()
        bad = Rollout(**{**vars(rollout), "samples": rollout.samples * 1e30})
        updater(bad, ADVANTAGE, WEIGHT, run_seed=0, step=1, sampled_at=4)
        assert updater.scaler.get_scale() < first and torch.equal(updater.parameters[0], moved)


def test_not_finite_gradient_is_an_error_in_fp32(policies: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    policy = policies["full"]
    config = settings(tmp_path, tiny_model, optim__batch_size=12, **LOSSES["nft"])
    rollout = _sample(policy, config)
    rollout.samples = rollout.samples * 1e30
    before = [p.detach().clone() for _, p in policy.trainable_parameters()]
    with _Weights(policy), pytest.raises(RunError, match="gradient norm is"):
        updater = Updater(policy, checks.loss_of(config), checks.kl_of(config), config.optim, config.loss)
        updater(rollout, ADVANTAGE, WEIGHT, run_seed=0, step=0, sampled_at=4)
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, policy.trainable_parameters(), strict=True))
    for _, parameter in policy.trainable_parameters():
        parameter.grad = None


def test_nothing_trainable_is_an_error(policies: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model)
    frozen = pipelines.load_policy(tiny_model, tune=None)
    with pytest.raises(RuntimeError, match="no trainable parameter"):
        Updater(frozen, checks.loss_of(config), checks.kl_of(config), config.optim, config.loss)


def test_window_trains_only_its_steps(policies: dict[str, Any], tmp_path: Path, tiny_model: Path) -> None:
    window = {"size": 1, "lo": 1}
    config = settings(
        tmp_path, tiny_model, loss__name="clip", loss__levels=4, optim__batch_size=4,
        rollout__sampler={**SDE, "window": window},
    )  # fmt: skip
    rollout = _sample(policies["full"], config)
    assert isinstance(rollout.sampler, Sampler) and rollout.steps.tolist() == [1]
    _, stats = _updated(policies["full"], config, rollout, ADVANTAGE, WEIGHT)
    assert stats.forwards == 4


def test_the_rate_falls_linearly_over_the_last_share_of_the_run():
    # 10 rollouts, the last half: 5 left of 5, 4 of 5, ... 1 of 5
    assert [decayed(step, 10, 0.5) for step in (0, 4, 5, 6, 9)] == [1.0, 1.0, 1.0, 0.8, 0.2]
    assert [decayed(step, 4, 1.0) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert decayed(9, 10, 0.0) == 1.0
