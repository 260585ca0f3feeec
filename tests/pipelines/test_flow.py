import math

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError
from pipelines import flow

F64 = torch.float64


def mean_of(noise, level, sigma, after, x, v, second=None):
    """Mean and std of one hand-made step sigma -> after, as floats."""
    levels = [1.0, second, sigma, after, 0.0] if second else [sigma, after, 0.0]
    step = 2 if second else 0
    table = flow.step_table(torch.tensor(levels, dtype=F64), noise, level, [step])
    mean = flow.step_mean(torch.tensor([[x]], dtype=F64), torch.tensor([[v]], dtype=F64), table, torch.tensor([step]))
    return mean.item(), table.std[step].item()


def test_sigmas_with_shift_3_and_8_steps():
    golden = [1, 0.954545, 0.9, 0.833333, 0.75, 0.642857, 0.5, 0.3, 0]
    torch.testing.assert_close(flow.sigmas(8, 3.0), torch.tensor(golden), atol=5e-7, rtol=0)


@pytest.mark.parametrize("shift", [1.0, 3.0, 0.5])
@pytest.mark.parametrize("steps", [1, 4, 10, 28])
def test_sigmas_equal_the_scheduler(steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(steps)
    torch.testing.assert_close(flow.sigmas(steps, shift, "diffusers"), scheduler.sigmas, atol=1e-7, rtol=0)
    scheduler.set_timesteps(sigmas=[1 - k / steps for k in range(steps)])
    torch.testing.assert_close(flow.sigmas(steps, shift), scheduler.sigmas, atol=2e-7, rtol=0)


@pytest.mark.parametrize("mu", [0.5, 1.15])
@pytest.mark.parametrize("kind", ["exponential", "linear"])
@pytest.mark.parametrize("steps", [2, 8, 50])
def test_sigmas_with_terminal_equal_the_scheduler(steps, kind, mu):
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        shift_terminal=0.02,  # pyright: ignore[reportArgumentType]
        time_shift_type=kind,
    )
    scheduler.set_timesteps(sigmas=[1 - k / steps for k in range(steps)], mu=mu)
    shift = math.exp(mu) if kind == "exponential" else mu
    torch.testing.assert_close(flow.sigmas(steps, shift, terminal=0.02), scheduler.sigmas, atol=2e-7, rtol=0)


def test_terminal_by_hand():
    # 1, .75, .5, .25 -> distances from 1 grow by .9 / .75 = 1.2: 1, .7, .4, .1
    levels = flow.sigmas(4, terminal=0.1)
    torch.testing.assert_close(levels, torch.tensor([1, 0.7, 0.4, 0.1, 0]), atol=1e-7, rtol=0)
    for steps, terminal in ((1, 0.1), (4, 0.0), (4, 1.0)):
        with pytest.raises(InputError, match="2 or more steps"):
            flow.sigmas(steps, terminal=terminal)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.floats(0.05, 12.0), st.sampled_from(flow.SCHEDULES))
def test_sigmas_start_at_exactly_one_and_fall(steps, shift, schedule):
    levels = flow.sigmas(steps, shift, schedule)
    assert levels.dtype == torch.float32 and len(levels) == steps + 1
    assert levels[0].item() == 1.0 and levels[-1].item() == 0.0 and bool((levels[1:] < levels[:-1]).all())


@pytest.mark.parametrize("levels", [[0.9999, 0.5, 0.0], [1.0000001, 0.5, 0.0], [1.0, 0.5, 0.5, 0.0], [1.0, 0.5, 0.1]])
def test_wrong_schedules_are_refused(levels):
    with pytest.raises(InputError, match="exactly 1"):
        flow.check_sigmas(torch.tensor(levels, dtype=F64))


def test_sde_first_step_by_hand():
    # sigma 1 -> .75, a .7: sigma_hat = .75, s = .7 sqrt(1 / .25) = 1.4, dt = -.25
    # mean = x (1 + 1.96 * -.25 / 2) + v (1 + 0) (-.25) = .755 x - .25 v; std = 1.4 * .5 = .7
    mean, std = mean_of("sde", 0.7, 1.0, 0.75, x=2.0, v=-1.0)
    assert mean == pytest.approx(0.755 * 2 + 0.25, abs=1e-12) and std == pytest.approx(0.7, abs=1e-12)


def test_sde_inner_step_by_hand():
    # sigma .5 -> .25, a .7: s^2 = .49 * .5 / .5 = .49, dt = -.25
    # x: 1 - .49 * .25 / 1 = .8775; v: (1 + .49 * .5 / 1) * -.25 = -.31125; std = .7 * .5 = .35
    mean, std = mean_of("sde", 0.7, 0.5, 0.25, x=1.0, v=2.0, second=0.75)
    assert mean == pytest.approx(0.8775 - 0.6225, abs=1e-12) and std == pytest.approx(0.35, abs=1e-12)


def test_dance_by_its_own_formula():
    # sigma .5 -> .25, eta .3, x 1, v 2: x0 = 0, score = -(1 - 0) / .25 = -4
    # mean = 1 + 2 * -.25 - .5 * .09 * -4 * -.25 = .5 - .045 = .455; std = .3 * .5 = .15
    mean, std = mean_of("dance", 0.3, 0.5, 0.25, x=1.0, v=2.0, second=0.75)
    assert mean == pytest.approx(0.455, abs=1e-12) and std == pytest.approx(0.15, abs=1e-12)


def test_cps_by_hand():
    # sigma .75 -> .5, a .5: std = .5 sin(pi/4) = .3535534, keep = .5 cos(pi/4) = .3535534
    # x 1, v 2: x0 = 1 - 1.5 = -.5, x1 = 1 + .5 = 1.5; mean = .5 * -.5 + .3535534 * 1.5 = .2803301
    mean, std = mean_of("cps", 0.5, 0.75, 0.5, x=1.0, v=2.0, second=0.9)
    assert mean == pytest.approx(-0.25 + 1.5 * math.sqrt(0.125), abs=1e-12)
    assert std == pytest.approx(math.sqrt(0.125), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 30), st.floats(0.1, 6.0), st.floats(0.05, 2.0), st.data())
def test_tf17_dance_equals_sde_whose_rate_is_eta(steps, shift, eta, data):
    levels = flow.sigmas(steps, shift)
    step = data.draw(st.integers(0, steps - 2))
    sigma = levels[step].double().item()
    hat = levels[1].double().item() if step == 0 else sigma
    a = eta / math.sqrt(sigma / (1 - hat))
    dance = flow.step_table(levels, "dance", eta, [step])
    sde = flow.step_table(levels, "sde", a, [step])
    for name in ("x_scale", "v_scale", "std", "dt"):
        torch.testing.assert_close(getattr(dance, name), getattr(sde, name), atol=1e-12, rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 20), st.floats(0.1, 6.0), st.sampled_from(["sde", "cps", "dance"]))
def test_tf11_level_zero_is_the_euler_step(steps, shift, noise):
    levels = flow.sigmas(steps, shift)
    table = flow.step_table(levels, noise, 0.0, list(range(steps - 1)))
    euler = flow.step_table(levels, "ode", 0.0, [])
    torch.testing.assert_close(table.x_scale, euler.x_scale, atol=1e-12, rtol=0)
    torch.testing.assert_close(table.v_scale, euler.v_scale, atol=1e-12, rtol=0)
    assert bool((table.std == 0).all())


def test_the_last_step_is_deterministic_and_gives_x0():
    levels = flow.sigmas(4, 3.0)
    table = flow.step_table(levels, "sde", 0.7, [0, 1, 2])
    x, v = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), torch.ones(2, 3)
    assert table.std[-1] == 0
    mean = flow.step_mean(x, v, table, torch.tensor([3, 3]))
    torch.testing.assert_close(mean, x - levels[3] * v)
    with pytest.raises(InputError, match="last step"):
        flow.step_table(levels, "sde", 0.7, [3])


def test_tf12_log_prob_is_the_normal_density_mean_over_dims():
    generator = torch.Generator().manual_seed(0)
    action, mean = (torch.randn(3, 2, 4, 4, generator=generator, dtype=F64) for _ in range(2))
    std = torch.tensor([0.1, 0.7, 1.5], dtype=F64)
    expected = torch.distributions.Normal(mean, std.reshape(-1, 1, 1, 1)).log_prob(action).mean((1, 2, 3))
    torch.testing.assert_close(flow.log_prob(action, mean, std), expected, atol=1e-12, rtol=0)


def test_cps_form_leaves_the_constants_out():
    # (1 - 0)^2 and (3 - 1)^2: mean 2.5
    value = flow.log_prob(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]]), torch.ones(1), "cps")
    assert value.item() == -2.5


def test_a_deterministic_step_has_no_log_prob():
    with pytest.raises(InputError, match="deterministic"):
        flow.log_prob(torch.ones(1, 2), torch.ones(1, 2), torch.zeros(1))


def test_log_prob_gradient_goes_through_the_mean_only():
    action, mean = torch.ones(1, 2, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
    flow.log_prob(action, mean, torch.ones(1)).sum().backward()
    # d/dmean of -(1 - m)^2 / 2 averaged over two elements is (1 - m) / 2
    assert action.grad is None and mean.grad is not None and mean.grad.tolist() == [[0.5, 0.5]]


def test_tf56_step_arithmetic_stays_float32_under_autocast():
    table = flow.step_table(flow.sigmas(4), "sde", 0.7, [0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mean = flow.step_mean(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bfloat16), table, torch.tensor([0]))
        assert mean.dtype == flow.log_prob(mean, mean, torch.ones(1)).dtype == torch.float32


@pytest.mark.parametrize(("call", "words"), [
    (lambda: flow.sigmas(0), "steps >= 1"),
    (lambda: flow.sigmas(4, -1.0), "shift > 0"),
    (lambda: flow.sigmas(4, 1.0, "cosine"), "linear, diffusers"),
    (lambda: flow.step_table(flow.sigmas(4), "ddim", 1.0, [0]), "ode, sde, dance, cps"),
    (lambda: flow.log_prob(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), "sum"), "gaussian, cps"),
])  # fmt: skip
def test_errors_list_what_is_known(call, words):
    with pytest.raises(InputError, match=words):
        call()
