"""DiffusionNFT: values by hand, the properties of its gradient, RPO through it."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError
from pipelines.policy import StepOut
from trainers import losses
from trainers.losses import Batch, NftOptions, optimality, rpo_warnings, schedule

D64 = torch.float64


def items(advantage: list[float], seed: int = 0) -> Batch:
    """Noised 2x4x4 latents at different levels, one item per advantage."""
    generator = torch.Generator().manual_seed(seed)
    n = len(advantage)
    x0, noise, old = (torch.randn(n, 2, 4, 4, generator=generator, dtype=D64) for _ in range(3))
    t = torch.linspace(0.2, 1.0, n, dtype=D64)
    level = t.reshape(-1, 1, 1, 1)
    x_t = (1 - level) * x0 + level * noise
    return Batch(advantage=torch.tensor(advantage, dtype=D64), x0=x0, x_t=x_t, t=t, velocity_old=old)


def gradient_at_old(batch: Batch, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss [n] and its gradient by the velocity, at theta = old."""
    assert batch.velocity_old is not None
    velocity = batch.velocity_old.clone().requires_grad_()
    out = losses.build("nft", **options)(StepOut(velocity=velocity), batch)
    (gradient,) = torch.autograd.grad(out.loss.sum(), velocity)
    return out.loss.detach(), gradient


def test_value_by_hand():
    # One element: x0 = 1, x_t = 2, t = .5, v_old = 1, v = 2, beta = .5, A = .6, A_max = 1 -> r = .8
    # v+ = .5 * 2 + .5 * 1 = 1.5: x0_hat = 2 - .75 = 1.25, error .25, w = .25, l+ = .0625 / .25 = .25
    # v- = 1.5 * 1 - .5 * 2 = .5: x0_hat = 2 - .25 = 1.75, error .75, w = .75, l- = .75
    # loss = 1 * (.8 * .25 + .2 * .75) / .5 = .7
    one = torch.ones(1, 1, dtype=D64)
    batch = Batch(advantage=torch.tensor([0.6], dtype=D64), x0=one, x_t=2 * one, t=one[0] / 2, velocity_old=one)
    out = losses.build("nft", beta=0.5, advantage_max=1.0)(StepOut(velocity=2 * one), batch)
    assert out.loss.tolist() == pytest.approx([0.7], abs=1e-12)
    assert out.metrics["nft/optimality"].item() == pytest.approx(0.8)
    assert out.metrics["nft/old_deviate"].item() == 1
    assert out.metrics["nft/loss_plus"].item() == pytest.approx(0.25)
    assert out.metrics["nft/loss_minus"].item() == pytest.approx(0.75)


def test_weight_has_a_floor_so_that_a_perfect_guess_is_finite():
    # x0_hat = x0 exactly: error 0, w = 1e-5, loss 0, gradient 0
    one = torch.ones(1, 1, dtype=D64)
    batch = Batch(advantage=torch.ones(1, dtype=D64), x0=one, x_t=2 * one, t=one[0], velocity_old=one)
    loss, gradient = gradient_at_old(batch)
    assert loss.item() == 0 and gradient.item() == 0


def test_at_old_the_value_does_not_depend_on_the_advantage():
    values = [gradient_at_old(items([a] * 4))[0] for a in (-5.0, -1.0, 0.0, 2.5, 5.0)]
    for value in values[1:]:
        assert torch.allclose(value, values[0], rtol=1e-12)


@given(st.floats(0, 1), st.floats(0.05, 2.0), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_at_old_the_gradient_is_proportional_to_2r_minus_1_whatever_beta(r, beta, seed):
    # dL/dv = A_max (2r - 1) dl/dv: the gradient at r = 1 times (2r - 1)
    best = gradient_at_old(items([1.0] * 3, seed), beta=1.0, advantage_max=1.0)[1]
    ours = gradient_at_old(items([2 * r - 1] * 3, seed), beta=beta, advantage_max=1.0)[1]
    assert torch.allclose(ours, (2 * r - 1) * best, rtol=1e-9, atol=1e-12)


def test_at_old_the_gradient_of_a_tie_is_zero():
    gradient = gradient_at_old(items([0.0] * 3), beta=0.1)[1]
    assert gradient.abs().max() < 1e-13  # the two branches cancel to rounding


def test_descending_the_loss_of_a_winner_brings_the_guess_to_it():
    batch = items([1.0] * 3)
    assert batch.x0 is not None and batch.x_t is not None and batch.t is not None and batch.velocity_old is not None
    gradient = gradient_at_old(batch, advantage_max=1.0)[1]
    t = batch.t.reshape(-1, 1, 1, 1)

    def distance(velocity: torch.Tensor) -> torch.Tensor:
        return (batch.x_t - t * velocity - batch.x0).square().flatten(1).mean(1)

    assert (distance(batch.velocity_old - 0.1 * gradient) < distance(batch.velocity_old)).all()
    assert (distance(batch.velocity_old + 0.1 * gradient) > distance(batch.velocity_old)).all()


def test_old_velocity_gets_no_gradient():
    batch = items([1.0])
    assert batch.velocity_old is not None
    batch.velocity_old.requires_grad_()
    velocity = torch.zeros_like(batch.velocity_old, requires_grad=True)
    losses.build("nft")(StepOut(velocity=velocity), batch).loss.sum().backward()
    assert batch.velocity_old.grad is None and velocity.grad is not None


def test_float32_items_keep_their_dtype_and_agree_with_float64():
    batch = items([0.7, -1.0, 0.2])
    single = Batch(**{k: None if v is None else v.float() for k, v in vars(batch).items()})
    loss64, gradient64 = gradient_at_old(batch)
    loss32, gradient32 = gradient_at_old(single)
    assert loss32.dtype == gradient32.dtype == torch.float32
    assert torch.allclose(loss32.double(), loss64, rtol=1e-5) and torch.allclose(
        gradient32.double(), gradient64, atol=1e-6
    )


def test_several_levels_of_an_image_are_independent_items():
    batch = items([1.0, -1.0, 0.5, 0.0])
    whole = gradient_at_old(batch)[1]
    for i in range(4):
        assert torch.allclose(gradient_at_old(batch.take(slice(i, i + 1)))[1][0], whole[i], rtol=1e-12)


@pytest.mark.parametrize(
    ("advantage", "largest", "r"),
    # r = clip(A / (2 A_max) + 1/2): 0 -> .5, A_max -> 1, beyond stays, 1 of 5 -> .6
    [
        (0.0, 5, 0.5),
        (5.0, 5, 1.0),
        (-5.0, 5, 0.0),
        (9.0, 5, 1.0),
        (1.0, 5, 0.6),
        (1.0, 1, 1.0),
        (-1.0, 1, 0.0),
        (-0.1, 1, 0.45),
    ],
)
def test_optimality(advantage, largest, r):
    assert optimality(torch.tensor([advantage], dtype=D64), largest).item() == pytest.approx(r, abs=1e-12)


def test_rpo_through_nft_warns_of_other_constants():
    assert rpo_warnings(1.0, -1.0, NftOptions(advantage_max=1.0)) == []
    (text,) = rpo_warnings(1.0, -0.1, NftOptions(advantage_max=1.0))
    assert "r = 1 for the winner and 0.45 for the loser" in text
    assert rpo_warnings(1.0, -1.0, NftOptions())  # A_max 5: r = .6 and .4


def test_options_are_checked():
    for bad in ({"beta": 0.0}, {"beta": -1}, {"advantage_max": 0}, {"gamma": 1}):
        with pytest.raises(InputError, match="known options: beta, advantage_max"):
            losses.build("nft", **bad)
    with pytest.raises(InputError, match="needs t, velocity_old, x0, x_t in the batch"):
        losses.build("nft")(StepOut(velocity=torch.zeros(1, 2)), Batch(advantage=torch.ones(1)))


def test_decay_schedules_by_hand():
    # type1: .001 * 100 = .1, at most .5. type2: 0 to step 75, .0075 * 25 = .1875 at 100, at most .999
    assert [schedule.build("type0")(s) for s in (0, 10, 1000)] == [0, 0, 0]
    assert [schedule.build("type1")(s) for s in (0, 100, 500, 9999)] == pytest.approx([0, 0.1, 0.5, 0.5])
    assert [schedule.build("type2")(s) for s in (0, 75, 100, 9999)] == pytest.approx([0, 0, 0.1875, 0.999])
    assert schedule.build("constant", 0.3)(7) == 0.3
    for name, value in (
        ("constant", None),
        ("constant", 1.0),
        ("constant", math.nan),
        ("type1", 0.5),
        ("cosine", None),
    ):
        with pytest.raises(InputError, match="old-policy decay"):
            schedule.build(name, value)


def test_trains_a_toy_velocity_towards_winners(caplog):
    # 1-D flow at a fixed prompt: x0 in {-1, +1}; winners are +1. The mean guess must move right.
    caplog.set_level(logging.WARNING)
    generator = torch.Generator().manual_seed(0)
    bias = torch.zeros(1, dtype=D64, requires_grad=True)
    loss, optimizer = losses.build("nft", advantage_max=1.0), torch.optim.SGD([bias], lr=0.05)
    for _ in range(40):
        x0 = torch.where(torch.rand(16, 1, generator=generator) < 0.5, -1.0, 1.0).double()
        noise = torch.randn(16, 1, generator=generator, dtype=D64)
        t = torch.rand(16, generator=generator, dtype=D64) * 0.8 + 0.2
        x_t = (1 - t[:, None]) * x0 + t[:, None] * noise
        old = (noise - x0).detach() * 0 + bias.detach()
        batch = Batch(advantage=x0[:, 0].clone(), x0=x0, x_t=x_t, t=t, velocity_old=old)
        optimizer.zero_grad()
        loss(StepOut(velocity=bias.expand(16, 1)), batch).loss.mean().backward()
        optimizer.step()
    # x0_hat = x_t - t v: a smaller v is a larger x0_hat
    assert bias.item() < -0.2
