"""The distances of flow models from the reference (`k3` of token models: test_token_losses.py)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from mmrubric.errors import InputError
from pipelines import flow
from pipelines.policy import StepOut
from trainers import losses
from trainers.losses import Batch, kl, mean_dims

D64 = torch.float64


def steps_of(noise: str, level: float) -> tuple[StepOut, Batch]:
    """Items at different steps under two velocities, through the real step kernel."""
    generator = torch.Generator().manual_seed(1)
    table = flow.step_table(flow.sigmas(6, shift=2.0), noise, level, range(5))
    steps = torch.tensor([0, 1, 2, 4, 4])
    x, v, v_ref = (torch.randn(5, 2, 4, 4, generator=generator, dtype=D64) for _ in range(3))
    v.requires_grad_()
    std, dt = flow.at_steps(table.std, steps, x), flow.at_steps(table.dt, steps, x)
    mean, mean_ref = flow.step_mean(x, v, table, steps), flow.step_mean(x, v_ref, table, steps)
    return StepOut(mean=mean, std=std, dt=dt, velocity=v), Batch(mean_ref=mean_ref, velocity_ref=v_ref)


FLOW = [name for name in kl.names() if name != "k3"]
NOISES = [("sde", 0.7), ("dance", 0.3), ("cps", 0.8)]


@pytest.mark.parametrize(("noise", "level"), NOISES)
def test_tf14_gaussian_equals_kl_of_two_normals(noise, level):
    step, batch = steps_of(noise, level)
    std = step.std.reshape(-1, 1, 1, 1)
    expected = mean_dims(kl_divergence(Normal(step.mean, std), Normal(batch.mean_ref, std)))
    assert kl.gaussian(step, batch).tolist() == pytest.approx(expected.tolist(), rel=1e-10)


@pytest.mark.parametrize(("noise", "level"), NOISES)
def test_mu_no_dt_uses_s_squared_without_dt(noise, level):
    # s^2 := S^2 / (-dt), for cps as well
    step, batch = steps_of(noise, level)
    s2 = step.std**2 / -step.dt
    expected = mean_dims((step.mean - batch.mean_ref).square()) / (2 * s2)
    assert kl.mu_no_dt(step, batch).tolist() == pytest.approx(expected.tolist(), rel=1e-10)
    assert kl.mu_no_dt(step, batch).tolist() == pytest.approx((kl.gaussian(step, batch) * -step.dt).tolist(), rel=1e-12)


def test_mu_no_dt_of_dance_divides_by_eta_squared():
    # dance: S = eta sqrt(-dt), so s = eta
    step, batch = steps_of("dance", 0.3)
    expected = mean_dims((step.mean - batch.mean_ref).square()) / (2 * 0.3**2)
    assert kl.mu_no_dt(step, batch).tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_values_by_hand():
    # mean gap (1, 3), std .5, dt -.1: mean square 5; gaussian 5 / .5 = 10; mu_no_dt 10 * .1 = 1; sample 5
    # velocity gap (2, 0): mean square 2
    step = StepOut(
        mean=torch.tensor([[1.0, 3.0]], dtype=D64), std=torch.tensor([0.5], dtype=D64),
        dt=torch.tensor([-0.1], dtype=D64), velocity=torch.tensor([[2.0, 1.0]], dtype=D64),
    )  # fmt: skip
    batch = Batch(mean_ref=torch.zeros(1, 2, dtype=D64), velocity_ref=torch.tensor([[0.0, 1.0]], dtype=D64))
    expected = {"gaussian": 10.0, "mu_no_dt": 1.0, "sample": 5.0, "velocity": 2.0}
    assert set(FLOW) == set(expected)
    for name, value in expected.items():
        out = kl.build(name, 0.04)(step, batch)
        assert out.metrics[f"loss/kl_{name}"].tolist() == pytest.approx([value])
        assert out.loss.tolist() == pytest.approx([0.04 * value])


def test_sample_equals_the_gap_of_the_samples_drawn_with_one_noise():
    step, batch = steps_of("sde", 0.7)
    noise = torch.randn_like(batch.mean_ref) * step.std.reshape(-1, 1, 1, 1)
    expected = mean_dims(((step.mean + noise) - (batch.mean_ref + noise)).square())
    assert kl.sample(step, batch).tolist() == pytest.approx(expected.tolist(), rel=1e-9)


@pytest.mark.parametrize("name", ["mu_no_dt", "gaussian", "velocity", "sample"])
def test_tf16_kl_has_a_gradient(name):
    step, batch = steps_of("sde", 0.7)
    assert step.velocity is not None and batch.velocity_ref is not None
    (gradient,) = torch.autograd.grad(kl.build(name, 1.0)(step, batch).loss.sum(), step.velocity)
    moved = step.velocity - 1e-3 * gradient / gradient.abs().max()
    assert gradient.abs().max() > 0
    assert (moved - batch.velocity_ref).norm() < (step.velocity - batch.velocity_ref).norm()


def test_zero_when_policy_and_reference_agree():
    step, _ = steps_of("cps", 0.8)
    same = Batch(mean_ref=step.mean, velocity_ref=step.velocity)
    for name in FLOW:
        assert (kl.build(name, 1.0)(step, same).loss == 0).all()


def test_coefficient_zero_needs_nothing():
    for name in FLOW:
        term = kl.build(name, 0.0)
        assert not term.active and term.needs == term.outputs == frozenset()
        with pytest.raises(ValueError, match="coefficient 0"):
            term(StepOut(), Batch())


def test_names_coefficients_and_combinations_are_checked():
    with pytest.raises(InputError, match="unknown KL 'k2'; known: mu_no_dt, gaussian, velocity, sample, k3"):
        kl.build("k2", 0.1)
    for beta in (-0.1, math.nan, math.inf):
        with pytest.raises(InputError, match="coefficient"):
            kl.build("gaussian", beta)
    nft = losses.build("nft")
    assert kl.build("velocity", 1e-4, nft).needs == {"velocity_ref"}
    assert not kl.build("gaussian", 0.0, nft).active
    with pytest.raises(InputError, match="'gaussian' compares sampling steps, which loss 'nft' has not; use: velocity"):
        kl.build("gaussian", 0.1, nft)
    with pytest.raises(InputError, match="needs mean_ref in the batch"):
        kl.build("gaussian", 0.1)(StepOut(), Batch(advantage=torch.ones(1)))
