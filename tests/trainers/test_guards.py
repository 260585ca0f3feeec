"""Collapse guards: signs by hand, a toy that really collapses, state."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from mmrubric.errors import InputError
from pipelines.policy import StepOut
from trainers import losses
from trainers.guards import GuardConfig, Guards, Rule, high_freq_energy, relative_distance
from trainers.losses import Batch


def raw(**rules) -> GuardConfig:
    """Guards without smoothing or warm-up."""
    return GuardConfig(**({"smoothing": 0.0, "warmup": 0} | rules))


def test_reward_drop_is_measured_from_the_best():
    guards = Guards(raw(reward_drop=Rule(limit=0.25, action="stop")))
    drops = [guards.update(i, reward=r).metrics["guard/reward_drop"] for i, r in enumerate([0.2, 0.6, 0.5])]
    assert drops == pytest.approx([0, 0, 0.1])
    report = guards.update(3, reward=0.3)
    assert report.metrics["guard/reward_drop"] == pytest.approx(0.3) and report.stop
    assert [f.name for f in report.fired] == ["reward_drop"] and report.metrics["guard/fired"] == 1


def test_smoothing_is_bias_corrected_by_hand():
    # decay .5: averages of 1, 0, 0 are 1, (.25 * 1) / .75 = 1/3 .. weights .5^k: 1; .5/1.5; .25/1.75
    guards = Guards(GuardConfig(smoothing=0.5, warmup=0))
    drops = [guards.update(i, reward=r).metrics["guard/reward_drop"] for i, r in enumerate([1.0, 0.0, 0.0])]
    assert drops == pytest.approx([0, 1 - 1 / 3, 1 - 1 / 7])


def test_lucky_first_rewards_are_no_best():
    guards = Guards(GuardConfig(smoothing=0.0, warmup=2, reward_drop=Rule(limit=0.1)))
    reports = [guards.update(i, reward=r) for i, r in enumerate([1.0, 1.0, 0.4, 0.4])]
    assert [math.isnan(r.metrics["guard/reward_drop"]) for r in reports] == [True, True, False, False]
    assert not any(r.fired for r in reports)


def test_unknown_values_neither_fire_nor_end_a_streak():
    guards = Guards(raw(kl=Rule(limit=1.0, patience=2)))
    assert not guards.update(0, reward=math.nan, kl=5.0).fired
    report = guards.update(1)
    assert not report.fired and all(math.isnan(v) for k, v in report.metrics.items() if k != "guard/fired")
    assert [f.name for f in guards.update(2, kl=5.0).fired] == ["kl"]
    assert not guards.update(3, kl=0.5).fired and not guards.update(4, kl=5.0).fired


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["kl", "ema_distance"])
def test_a_broken_policy_is_above_every_limit(name, value):
    report = Guards(raw(**{name: Rule(limit=1e9)})).update(0, **{name: value})
    assert [f.name for f in report.fired] == [name] and not report.stop  # the action is warn


def test_without_a_limit_a_value_is_only_measured():
    report = Guards(raw(kl=Rule())).update(0, kl=1e9)
    assert report.metrics["guard/kl"] == 1e9 and not report.fired


def test_warns_once_in_the_log(caplog):
    guards = Guards(raw(kl=Rule(limit=1.0)))
    reports = [guards.update(i, kl=2.0) for i in range(3)]
    assert all(r.fired for r in reports) and len(caplog.records) == 1
    assert "collapse guard kl: 2 is above 1" in caplog.text


def test_state_goes_through_json_and_continues_equally():
    values = [dict(reward=0.1 * i % 0.7, kl=0.2 * i, ema_distance=0.01 * i, high_freq=0.01 * (i + 1)) for i in range(8)]
    config = GuardConfig(kl=Rule(limit=0.5, patience=3), warmup=1)
    whole = Guards(config)
    expected = [whole.update(i, **v) for i, v in enumerate(values)]
    first = Guards(config)
    for i, v in enumerate(values[:4]):
        first.update(i, **v)
    second = Guards(config).load_state_dict(json.loads(json.dumps(first.state_dict())))
    got = [second.update(i, **v) for i, v in enumerate(values[4:], 4)]
    assert [r.metrics["guard/reward_drop"] for r in got] == [r.metrics["guard/reward_drop"] for r in expected[4:]]
    assert [r.fired for r in got] == [r.fired for r in expected[4:]]
    assert second.state_dict() == whole.state_dict()
    with pytest.raises(InputError, match="collapse guards"):
        second.load_state_dict({"sum": 1.0})


def test_config_refuses_unknown_keys_and_actions():
    for bad in ({"kl_max": 1}, {"kl": {"limit": -1}}, {"kl": {"limit": 1, "action": "explode"}}):
        with pytest.raises(ValueError, match="kl"):
            GuardConfig(**bad)


def test_high_frequency_energy_by_hand():
    # black and white pixels in turn: +-1/2 around the mean, mean power 1/4, all at the Nyquist corner
    checker = np.indices((8, 8)).sum(0) % 2
    image = np.repeat((checker * 255).astype(np.uint8)[..., None], 3, -1)
    assert high_freq_energy(image) == pytest.approx(0.25)
    assert high_freq_energy(np.full((2, 8, 8, 3), 90, np.uint8)) == pytest.approx(0, abs=1e-12)
    # one slow wave over 16 pixels (1/16 cycles per pixel) is below the cutoff
    wave = np.round(127.5 + 100 * np.cos(2 * np.pi * np.arange(16) / 16)).astype(np.uint8)
    assert high_freq_energy(np.broadcast_to(wave[None, :, None], (16, 16, 3)).copy()) < 1e-5
    assert math.isnan(high_freq_energy(np.zeros((0, 8, 8, 3), np.uint8)))
    with pytest.raises(InputError, match="uint8"):
        high_freq_energy(np.zeros((8, 8, 3)))


def test_tf20_grid_raises_high_frequency_energy():
    rng = np.random.default_rng(0)
    smooth = np.zeros((4, 64, 64, 3))
    smooth[:, 16:48, 16:48] = rng.uniform(80, 200, (4, 1, 1, 3))
    grid = ((np.indices((64, 64)).sum(0) % 2) * 24)[None, :, :, None]
    before, after = (
        high_freq_energy(smooth.astype(np.uint8)),
        high_freq_energy((smooth + grid).astype(np.uint8)),
    )
    assert after > 2 * before
    guards = Guards()
    assert not guards.update(0, high_freq=before).fired
    assert not guards.update(1, high_freq=before * 1.5).fired
    assert [f.name for f in guards.update(2, high_freq=after).fired] == ["high_freq"]


def test_relative_distance_by_hand():
    # gaps (3, 4) -> 5 over norm 10
    pairs = [(np.array([9.0]), np.array([6.0])), (torch.tensor([12.0]), torch.tensor([8.0]))]
    assert relative_distance(pairs) == pytest.approx(0.5)
    assert math.isnan(relative_distance([]))


def run_toy(clip: float, lr: float, steps: int = 60) -> tuple[list[float], set[str]]:
    """GRPO on x = mean + noise (2x4x4 latents), reward -|x|: rewards, and the guards that fired."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.full((32,), 1.5, dtype=torch.float64, requires_grad=True)
    start, ema = mean.detach().clone(), mean.detach().clone()
    optimizer, loss = torch.optim.SGD([mean], lr=lr), losses.build("clip", clip=clip)
    guards = Guards(
        GuardConfig(
            reward_drop=Rule(limit=1.0), kl=Rule(limit=15.0), ema_distance=Rule(limit=1.0),
            high_freq=Rule(limit=2.0), smoothing=0.5, warmup=2,
        )
    )  # fmt: skip
    rewards, fired = [], set()
    for step in range(steps):
        x = mean.detach() + 0.3 * torch.randn(16, 32, generator=generator, dtype=torch.float64)
        reward = -x.norm(dim=1)
        advantage = (reward - reward.mean()) / reward.std()
        images = (x.reshape(16, 4, 8, 1).expand(16, 4, 8, 3) * 40 + 128).clamp(0, 255).byte().numpy()
        kl = ((mean.detach() - start).square().mean() / (2 * 0.3**2)).item()
        report = guards.update(
            step, reward=reward.mean().item(), kl=kl, ema_distance=relative_distance([(mean.detach(), ema)]),
            high_freq=high_freq_energy(images),
        )  # fmt: skip
        rewards.append(reward.mean().item())
        fired |= {f.name for f in report.fired}
        old = (-(x - mean.detach()).square() / (2 * 0.3**2)).mean(1)
        for _ in range(3):
            log_prob = (-(x - mean).square() / (2 * 0.3**2)).mean(1)
            out = loss(StepOut(log_prob=log_prob), Batch(advantage=advantage, old_log_prob=old))
            optimizer.zero_grad()
            out.loss.mean().backward()
            optimizer.step()
        ema = 0.9 * ema + 0.1 * mean.detach()
    return rewards, fired


def test_tf19_collapse_fires_the_guards():
    # A wide clip and a large rate: up at first, then past the optimum and about. Going straight to the
    # optimum costs a KL of 1.5^2 / (2 * .3^2) = 12.5, below the limit: the small clip and rate stay quiet.
    rewards, fired = run_toy(clip=0.9, lr=40.0)
    assert max(rewards) > rewards[0] + 2 and min(rewards[rewards.index(max(rewards)) :]) < max(rewards) - 1
    assert fired == {"reward_drop", "kl", "ema_distance", "high_freq"}
    rewards, fired = run_toy(clip=0.2, lr=0.5)
    assert rewards[-1] > rewards[0] + 5 and fired == set()
