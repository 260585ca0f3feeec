"""Losses of token models: an item is a row of tokens, values by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrubric import advantage
from mmrubric.errors import InputError
from pipelines.policy import StepOut
from tests.trainers.toys import settings
from trainers import losses
from trainers.losses import Batch, kl

D64 = torch.float64
TOKENS = {"kind": "tokens", "guidance": 5.0}


def rows(*values: list[float], grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=D64, requires_grad=grad)


def test_each_token_is_clipped_by_its_own_ratio():
    # A = 1, clip .2, ratios (1.5, .5): max(-1.5, -1.2) = -1.2, max(-.5, -.8) = -.5; mean -.85.
    # Gradient of the mean: the first is clipped, the second -A rho / T = -.25.
    log_prob = rows([math.log(1.5), math.log(0.5)], grad=True)
    batch = Batch(advantage=torch.ones(1, dtype=D64), old_log_prob=rows([0.0, 0.0]))
    out = losses.build("clip", clip=0.2)(StepOut(log_prob=log_prob), batch)
    assert out.loss.tolist() == pytest.approx([-0.85])
    assert out.metrics["loss/clip_fraction"].tolist() == [0.5]
    out.loss.sum().backward()
    assert log_prob.grad is not None and log_prob.grad.tolist()[0] == pytest.approx([0.0, -0.25])


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens():
    # log-ratios (ln 2, ln .5): mean 0, ratio 1, loss -A = -1, although both tokens are far outside the clip.
    batch = Batch(advantage=torch.ones(1, dtype=D64), old_log_prob=rows([0.0, 0.0]))
    step = StepOut(log_prob=rows([math.log(2), math.log(0.5)]))
    out = losses.build("clip", clip=0.2, ratio="sequence")(step, batch)
    assert out.loss.tolist() == pytest.approx([-1.0]) and out.metrics["loss/ratio"].tolist() == pytest.approx([1.0])


def test_forced_tokens_are_outside_the_mean():
    # tokens 1 and 2 count: ratios 1 and 1.1 give -(1 + 1.1) / 2; the forced third one would add -9
    batch = Batch(
        advantage=torch.ones(1, dtype=D64), old_log_prob=rows([0.0, 0.0, 0.0]), mask=torch.tensor([[True, True, False]])
    )
    log_prob = rows([0.0, math.log(1.1), math.log(9)], grad=True)
    out = losses.build("clip", clip=0.2, clip_high=20.0)(StepOut(log_prob=log_prob), batch)
    assert out.loss.tolist() == pytest.approx([-1.05])
    out.loss.sum().backward()
    assert log_prob.grad is not None and log_prob.grad[0, 2] == 0


def test_importance_weighs_each_token_and_no_metric():
    # ratios 1: loss -(.5 + 3) / 2
    batch = Batch(advantage=torch.ones(1, dtype=D64), old_log_prob=rows([0.0, 0.0]), importance=rows([0.5, 3.0]))
    out = losses.build("clip", clip=0.2)(StepOut(log_prob=rows([0.0, 0.0])), batch)
    assert out.loss.tolist() == pytest.approx([-1.75]) and out.metrics["loss/ratio"].tolist() == [1.0]


def test_k3_by_hand():
    # d = log p_ref - log p = (ln 2, 0): 2 - ln 2 - 1 and 0, mean (1 - ln 2) / 2
    batch = Batch(log_prob_ref=rows([math.log(2), 0.0]))
    out = kl.build("k3", 0.5)(StepOut(log_prob=rows([0.0, 0.0])), batch)
    assert out.metrics["loss/kl_k3"].tolist() == pytest.approx([(1 - math.log(2)) / 2])
    assert out.loss.tolist() == pytest.approx([(1 - math.log(2)) / 4])


def test_k3_pulls_a_token_towards_the_reference():
    # derivative by log p of exp(d) - d - 1 is 1 - exp(d): d = ln 2 gives -1, so a descent step raises log p
    log_prob = rows([0.0], grad=True)
    kl.build("k3", 1.0)(StepOut(log_prob=log_prob), Batch(log_prob_ref=rows([math.log(2)]))).loss.sum().backward()
    assert log_prob.grad is not None and log_prob.grad.item() == pytest.approx(-1.0)


def test_ppo_by_hand():
    # R = 1, V_old = (.4, .6): A = (.6, .4); ratios 1: policy loss -(.6 + .4) / 2 = -.5.
    # V = (.5, 1): errors (.25, 0), mean .125, times .5: .0625.
    batch = Batch(advantage=torch.ones(1, dtype=D64), old_log_prob=rows([0.0, 0.0]), old_value=rows([0.4, 0.6]))
    log_prob, value = rows([0.0, 0.0], grad=True), rows([0.5, 1.0], grad=True)
    out = losses.build("ppo")(StepOut(log_prob=log_prob, value=value), batch)
    assert out.loss.tolist() == pytest.approx([-0.5 + 0.0625])
    assert out.metrics["loss/value_error"].tolist() == pytest.approx([0.125])
    out.loss.sum().backward()
    # policy: -A_t / T; value: .5 * 2 (V - R) / T, not through the advantage
    assert log_prob.grad is not None and log_prob.grad.tolist()[0] == pytest.approx([-0.3, -0.2])
    assert value.grad is not None and value.grad.tolist()[0] == pytest.approx([-0.25, 0.0])


def test_an_item_of_reward_zero_still_teaches_the_value_head():
    assert not losses.build("ppo").skips_zero_advantage and losses.build("clip").skips_zero_advantage


def test_rewards_pass_as_they_are_and_unknown_ones_count_nowhere():
    (out,) = advantage.build("reward").compute([np.array([0.2, np.nan, 1.0])])
    assert out.advantage.tolist() == [0.2, 0.0, 1.0] and out.weight.tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(InputError, match="one reward per sample"):
        advantage.build("reward")([np.zeros((2, 2))])


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"loss__name": "nft"}, "needs velocity"),
        ({"loss__name": "guard"}, r"needs dt, mean, std.*use one of: clip, ppo"),
        ({"loss__name": "ppo"}, "belong together"),
        ({"loss__name": "clip", "loss__kl": "gaussian", "loss__kl_coefficient": 0.1}, "token models take k3"),
        (
            {"loss__name": "clip", "loss__old_log_prob": "recorded",
             "rollout__sampler": TOKENS | {"guidance_mode": "cond_is"}}, "does not hold what the update starts from",
        ),
        ({"loss__name": "clip", "eval__sampler": {"steps": 4}}, "one model is of one sort"),
        ({"loss__name": "clip", "rollout__sampler": TOKENS | {"steps": 4}}, "Extra inputs"),
        ({"loss__name": "clip", "rollout__sampler": TOKENS | {"guidance_mode": "no_cfg"}}, "without guidance"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_token_model_is_refused(tmp_path: Path, settings_: dict[str, Any], message: str):
    with pytest.raises((InputError, ValueError), match=message):
        settings(tmp_path, Path("model"), **{"loss__levels": 4, "rollout__sampler": TOKENS, **settings_})


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"loss__name": "ppo", "advantage__name": "reward"}, r"needs value.*use one of: clip, guard, nft"),
        ({"loss__name": "clip", "loss__kl": "k3", "loss__kl_coefficient": 0.1}, "flow models the others"),
        ({"loss__name": "clip", "loss__options": {"ratio": "sequence"}}, "acts only on token models"),
        ({"loss__name": "clip", "advantage__name": "reward"}, "belong together"),
    ],
)
def test_what_is_for_token_models_is_refused_elsewhere(tmp_path: Path, settings_: dict[str, Any], message: str):
    with pytest.raises((InputError, ValueError), match=message):
        settings(tmp_path, Path("model"), **{
            "loss__levels": 4, "rollout__sampler": {"steps": 4, "noise": "sde"}, **settings_,
        })  # fmt: skip


def test_the_default_kl_of_token_models_is_k3(tmp_path: Path):
    config = settings(tmp_path, Path("model"), loss__name="clip", loss__levels=4, rollout__sampler=TOKENS)
    assert config.kl_name == "k3"
