"""The clipped losses: values by hand, gradients, and the one reduction."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError
from pipelines import flow
from pipelines.policy import StepOut
from pipelines.samplers import Sampler
from trainers import losses
from trainers.losses import Batch, LossOut, mean_dims, weighted_sum

D64 = torch.float64


def clip_at(log_ratio: list[float], advantage: list[float], **options) -> tuple[LossOut, torch.Tensor]:
    """The clip loss at given log-ratios, and the gradient of its sum by log-prob."""
    log_prob = torch.tensor(log_ratio, dtype=D64, requires_grad=True)
    batch = Batch(advantage=torch.tensor(advantage, dtype=D64), old_log_prob=torch.zeros(len(advantage), dtype=D64))
    out = losses.build("clip", **options)(StepOut(log_prob=log_prob), batch)
    (gradient,) = torch.autograd.grad(out.loss.sum(), log_prob)
    return out, gradient


def test_rpo_at_ratio_one_is_minus_the_mean_advantage():
    # A = (1, -.1) at rho = 1: max(-A, -A) = (-1, .1), mean -.45; gradient -A rho = (-1, .1)
    out, gradient = clip_at([0.0, 0.0], [1.0, -0.1], clip=0.2)
    assert out.loss.mean().item() == pytest.approx(-0.45, abs=1e-12)
    assert gradient.tolist() == pytest.approx([-1.0, 0.1], abs=1e-12)
    assert out.metrics["loss/clip_fraction"].tolist() == [0, 0]
    assert out.metrics["loss/ratio"].tolist() == [1, 1]


def test_clip_stops_a_good_action_from_running_away_and_a_bad_one_from_vanishing():
    # A = 1, rho = 1.5: max(-1.5, -1.2) = -1.2. A = -.1, rho = .5: max(.05, .08) = .08. Both are clipped.
    out, gradient = clip_at([math.log(1.5), math.log(0.5)], [1.0, -0.1], clip=0.2)
    assert out.loss.tolist() == pytest.approx([-1.2, 0.08], abs=1e-12)
    assert gradient.tolist() == [0, 0]
    assert out.metrics["loss/clip_fraction"].tolist() == [1, 1]


def test_the_unclipped_side_keeps_its_gradient():
    # A = 1, rho = .5: max(-.5, -.8) = -.5, gradient -A rho = -.5.
    # A = -1, rho = 1.5: max(1.5, 1.2) = 1.5, gradient 1.5.
    out, gradient = clip_at([math.log(0.5), math.log(1.5)], [1.0, -1.0], clip=0.2)
    assert out.loss.tolist() == pytest.approx([-0.5, 1.5], abs=1e-12)
    assert gradient.tolist() == pytest.approx([-0.5, 1.5], abs=1e-12)
    assert out.metrics["loss/clip_fraction"].tolist() == [0, 0]


def test_a_higher_upper_clip_acts_on_that_side_only():
    # clip .2, clip_high .4, A = 1: rho = 1.3 is inside (-1.3); rho = 1.5 gives -1.4.
    # A = -1, rho = .5: max(.5, .8) = .8.
    out, gradient = clip_at([math.log(1.3), math.log(1.5), math.log(0.5)], [1.0, 1.0, -1.0], clip=0.2, clip_high=0.4)
    assert out.loss.tolist() == pytest.approx([-1.3, -1.4, 0.8], abs=1e-12)
    assert gradient.tolist() == pytest.approx([-1.3, 0.0, 0.0], abs=1e-12)


def test_two_sided_clip_caps_the_loss_of_a_bad_action_that_became_likely():
    # A = -1, rho = 5: max(5, 1.2) = 5 without delta; with delta 3, max(3, 1.2) = 3 and no gradient.
    out, gradient = clip_at([math.log(5.0)], [-1.0], clip=0.2, delta=3.0)
    assert out.loss.item() == pytest.approx(3.0, abs=1e-12) and gradient.item() == 0
    assert out.metrics["loss/clip_fraction"].item() == 1
    out, gradient = clip_at([math.log(5.0)], [-1.0], clip=0.2)
    assert out.loss.item() == pytest.approx(5.0, abs=1e-12) and gradient.item() == pytest.approx(5.0, abs=1e-12)


def test_advantages_are_clamped_unless_told_otherwise():
    assert clip_at([0.0], [9.0])[0].loss.item() == -5
    assert clip_at([0.0], [9.0], advantage_clip=None)[0].loss.item() == -9


def test_a_diverged_policy_gives_finite_losses_and_gradients():
    out, gradient = clip_at([1e6, 1e6, -1e6, 0.0], [1.0, -1.0, 1.0, 0.0], clip=0.2)
    assert torch.isfinite(out.loss).all() and torch.isfinite(gradient).all()


def test_zero_advantage_has_exactly_zero_loss_and_gradient():
    out, gradient = clip_at([0.3, -0.7, 0.0], [0.0, 0.0, 0.0], clip=0.2)
    assert (out.loss == 0).all() and (gradient == 0).all()
    assert losses.build("clip").skips_zero_advantage and losses.build("guard").skips_zero_advantage
    assert not losses.build("nft").skips_zero_advantage


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-5, 5)), min_size=1, max_size=8),
    st.floats(0.01, 0.9),
)
@settings(max_examples=50, deadline=None)
def test_clip_is_never_below_the_unclipped_loss_and_equals_it_inside(items, clip):
    # max(a, b) >= a, and clip(rho) = rho inside [1 - eps, 1 + eps]
    log_ratio, advantage = [i[0] for i in items], [i[1] for i in items]
    out, _ = clip_at(log_ratio, advantage, clip=clip)
    for value, x, a in zip(out.loss.tolist(), log_ratio, advantage, strict=True):
        free = -a * math.exp(x)
        assert value >= free - 1e-9
        if abs(math.exp(x) - 1) <= clip:
            assert value == pytest.approx(free, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_computed_in_float32(dtype):
    # 1 + 2^-10 does not exist in bfloat16, but exp(difference) in float32 does
    batch = Batch(advantage=torch.ones(1), old_log_prob=torch.zeros(1, dtype=dtype))
    out = losses.build("clip", clip=0.2)(StepOut(log_prob=torch.tensor([2.0**-10], dtype=dtype)), batch)
    assert out.loss.dtype == torch.float32 and out.loss.item() == pytest.approx(-math.exp(2.0**-10), rel=1e-7)


def mixed_steps(noise: str, level: float) -> tuple[StepOut, Batch, torch.Tensor, torch.Tensor]:
    """Items at different steps, through the real step kernel: replay, batch, noise, gap of the means."""
    generator = torch.Generator().manual_seed(3)
    levels = flow.sigmas(8, shift=3.0)
    table = flow.step_table(levels, noise, level, range(7))
    steps = torch.tensor([0, 1, 3, 6, 6, 2])
    x, v_old, change, eps = (torch.randn(6, 2, 4, 4, generator=generator, dtype=D64) for _ in range(4))
    velocity = (v_old + 0.1 * change).requires_grad_()
    std, dt = flow.at_steps(table.std, steps, x), flow.at_steps(table.dt, steps, x)
    old_mean, mean = (flow.step_mean(x, v, table, steps) for v in (v_old, velocity))
    action = old_mean + std.reshape(-1, 1, 1, 1) * eps
    step = StepOut(log_prob=flow.log_prob(action, mean, std), mean=mean, std=std, dt=dt, velocity=velocity)
    batch = Batch(
        advantage=torch.tensor([1.0, -1.0, 0.5, 1.0, -0.1, 0.0], dtype=D64),
        old_log_prob=flow.log_prob(action, old_mean, std),
        old_mean=old_mean,
    )
    return step, batch, eps, mean - old_mean


@pytest.mark.parametrize(("noise", "level"), [("sde", 0.7), ("dance", 0.3), ("cps", 0.8)])
def test_tf15_guard_exponent_is_per_sample(noise, level):
    # (delta log p + b) S = mean_dims(noise * mean change), for each item, although the steps are mixed
    step, batch, eps, gap = mixed_steps(noise, level)
    exponent = losses.guard_log_ratio(step, batch)
    assert exponent.tolist() == pytest.approx(mean_dims(eps * gap).tolist(), abs=1e-10)
    # b and S averaged over the batch, as upstream does, give other numbers.
    std = step.std.mean()
    bias = (mean_dims(gap.square()) / (2 * step.std**2)).mean()
    assert (((step.log_prob - batch.old_log_prob + bias) * std - exponent).abs() > 1e-6).any()


def test_guard_loss_is_divided_by_each_items_own_dt():
    # advantage A, exponent e inside a wide clip: loss = -A exp(e) / -dt
    step, batch, eps, gap = mixed_steps("sde", 0.7)
    out = losses.build("guard", clip=0.9)(step, batch)
    expected = -batch.advantage * mean_dims(eps * gap).exp() / -step.dt
    assert out.loss.tolist() == pytest.approx(expected.tolist(), rel=1e-9)
    assert len(set(step.dt.tolist())) == 5


def test_guard_gradient_equals_that_of_its_identity():
    step, batch, eps, gap = mixed_steps("sde", 0.7)
    (ours,) = torch.autograd.grad(losses.guard_log_ratio(step, batch).sum(), step.velocity, retain_graph=True)
    (theirs,) = torch.autograd.grad(mean_dims(eps * gap).sum(), step.velocity)
    assert torch.allclose(ours, theirs, atol=1e-10)


def test_a_missing_field_is_named():
    with pytest.raises(InputError, match=r"'guard' needs old_mean in the batch"):
        losses.build("guard")(StepOut(), Batch(advantage=torch.ones(1), old_log_prob=torch.zeros(1)))
    with pytest.raises(InputError, match="'clip' needs log_prob in the step"):
        losses.build("clip")(StepOut(), Batch(advantage=torch.ones(1), old_log_prob=torch.zeros(1)))
    with pytest.raises(InputError, match="number of items"):
        Batch(advantage=torch.ones(2), weight=torch.ones(3))
    with pytest.raises(InputError, match="shape"):
        losses.build("clip")(
            StepOut(log_prob=torch.zeros(2, 2)), Batch(advantage=torch.ones(2), old_log_prob=torch.zeros(2))
        )


def test_unknown_names_and_options_list_the_known_ones():
    with pytest.raises(InputError, match="unknown loss 'sft'; known: clip, guard, nft, ppo"):
        losses.build("sft")
    with pytest.raises(InputError, match=r"epsilon.*known options: clip, clip_high, delta, advantage_clip"):
        losses.build("clip", epsilon=0.2)
    with pytest.raises(InputError, match=r"delta 1.1 must be above"):
        losses.build("clip", clip=0.2, delta=1.1)
    for bad in ({"clip": 0.0}, {"clip": 1.5}, {"clip_high": -1.0}, {"clip": math.nan}):
        with pytest.raises(InputError, match="clip"):
            losses.build("clip", **bad)


def test_losses_say_what_to_record_and_refuse_samplers_they_cannot_use():
    clip, guard, nft = (losses.build(name) for name in ("clip", "guard", "nft"))
    flow_sampler = Sampler(noise="sde")
    assert clip.record(flow_sampler) == {"states", "log_prob"}
    assert guard.record(flow_sampler) == {"states", "log_prob", "mean"}
    assert nft.record(flow_sampler) == frozenset() and nft.tie_weight == 0 and clip.tie_weight == guard.tie_weight == 1
    nft.check_sampler(Sampler(noise="ode"))
    guard.check_sampler(Sampler(noise="cps"))
    clip.check_sampler(Sampler(noise="cps", log_prob="cps"))
    for loss in (clip, guard):
        for sampler in (Sampler(noise="ode"), Sampler(noise="sde", level=0.0)):
            with pytest.raises(InputError, match="deterministic"):
                loss.check_sampler(sampler)
    with pytest.raises(InputError, match="Gaussian log-prob"):
        guard.check_sampler(Sampler(noise="cps", log_prob="cps"))


def accumulated_gradient(micro_batch: int, skip: bool = False) -> torch.Tensor:
    """Gradient of one optimizer step: 8 rows x 3 steps, two rows masked, in micro-batches of rows."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8, 3, 5, generator=generator, dtype=D64)
    advantage = torch.tensor([1.0, -1.0, 0.0, 0.0, 2.0, -0.5, 1.0, 1.0], dtype=D64)
    weight = torch.tensor([1.0, 1, 1, 1, 1, 1, 0, 0], dtype=D64)
    theta = torch.zeros(5, dtype=D64, requires_grad=True)
    loss, normaliser = losses.build("clip", clip=0.2), float((weight > 0).sum() * 3)
    for start in range(0, 8, micro_batch):
        rows = torch.arange(start, start + micro_batch)
        if skip:
            rows = rows[(weight[rows] > 0) & (advantage[rows] != 0)]
        items = rows.repeat_interleave(3)
        log_prob = (features[rows] @ theta).reshape(-1)
        batch = Batch(
            advantage=advantage[items], weight=weight[items], old_log_prob=torch.zeros_like(log_prob).detach()
        )
        weighted_sum(loss(StepOut(log_prob=log_prob), batch).loss, weight[items], normaliser).backward()
    assert theta.grad is not None
    return theta.grad


def test_tf21_gradient_does_not_depend_on_accumulation_with_several_steps():
    whole = accumulated_gradient(8)
    assert whole.abs().max() > 0.01
    for size in (1, 2, 4):
        assert torch.allclose(accumulated_gradient(size), whole, rtol=0, atol=1e-14)


def test_skipped_rows_change_nothing():
    assert torch.allclose(accumulated_gradient(4, skip=True), accumulated_gradient(4), rtol=0, atol=1e-14)


def test_gradient_does_not_depend_on_the_number_of_ranks():
    # DDP averages: two ranks with half the items each, times world_size, equal one rank with all.
    loss, weight = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=D64), torch.tensor([1.0, 1, 1, 0], dtype=D64)
    one = weighted_sum(loss, weight, 3.0)
    two = (weighted_sum(loss[:2], weight[:2], 3.0, 2) + weighted_sum(loss[2:], weight[2:], 3.0, 2)) / 2
    assert one.item() == two.item() == 2.0  # (1 + 2 + 3) / 3
    with pytest.raises(ValueError, match="normaliser"):
        weighted_sum(loss, weight, 0.0)


def test_tf22_masked_items_change_no_gradient():
    # 3 live items of 5; the masked ones hold wild values
    def gradient(wild: float) -> torch.Tensor:
        log_prob = torch.zeros(5, dtype=D64, requires_grad=True)
        weight = torch.tensor([1.0, 1, 1, 0, 0], dtype=D64)
        advantage = torch.tensor([1.0, -1, 0.5, wild, -wild], dtype=D64)
        old = torch.tensor([0.0, 0, 0, wild, -wild], dtype=D64)
        out = losses.build("clip", clip=0.2)(StepOut(log_prob=log_prob), Batch(advantage=advantage, old_log_prob=old))
        (result,) = torch.autograd.grad(weighted_sum(out.loss, weight, float((weight > 0).sum())), log_prob)
        return result

    # -A / 3 for the live ones
    assert gradient(0.0).tolist() == pytest.approx([-1 / 3, 1 / 3, -1 / 6, 0, 0])
    assert torch.equal(gradient(4.0), gradient(0.0))


def test_tf18_second_update_moves_the_ratio():
    theta = torch.zeros(3, dtype=D64, requires_grad=True)
    features, optimizer = torch.eye(3, dtype=D64), torch.optim.SGD([theta], lr=0.1)
    batch = Batch(advantage=torch.tensor([1.0, -1.0, 0.0], dtype=D64), old_log_prob=torch.zeros(3, dtype=D64))
    ratios = []
    for _ in range(2):
        out = losses.build("clip", clip=0.2)(StepOut(log_prob=features @ theta), batch)
        ratios.append(out.metrics["loss/ratio"].tolist())
        optimizer.zero_grad()
        out.loss.sum().backward()
        optimizer.step()
    # theta moves by -lr * (-A) = (.1, -.1, 0)
    assert ratios[0] == [1, 1, 1]
    assert ratios[1] == pytest.approx([math.exp(0.1), math.exp(-0.1), 1])


def test_tf25_old_policy_deviates_after_one_step():
    generator = torch.Generator().manual_seed(0)
    x0, x_t, old = (torch.randn(2, 3, generator=generator, dtype=D64) for _ in range(3))
    t = torch.full((2,), 0.5, dtype=D64)
    batch = Batch(advantage=torch.tensor([1.0, -1.0], dtype=D64), x0=x0, x_t=x_t, t=t, velocity_old=old)
    theta = old.clone().requires_grad_()
    optimizer, loss = torch.optim.SGD([theta], lr=0.1), losses.build("nft")
    deviations = []
    for _ in range(2):
        out = loss(StepOut(velocity=theta), batch)
        deviations.append(out.metrics["nft/old_deviate"].mean().item())
        optimizer.zero_grad()
        out.loss.sum().backward()
        optimizer.step()
    assert deviations[0] == 0 < deviations[1]


def test_take_keeps_fields_together():
    batch = Batch(advantage=torch.arange(4.0), x0=torch.arange(8.0).reshape(4, 2))
    part = batch.take(torch.tensor([3, 1]))
    assert part.advantage is not None and part.x0 is not None and part.t is None
    assert part.advantage.tolist() == [3, 1] and part.x0.tolist() == [[6, 7], [2, 3]] and len(part) == 2
