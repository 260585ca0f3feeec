import math

import pytest
import torch

from mmrubric.errors import InputError
from pipelines import Sampler, ddim, flow
from pipelines.testing_sd import sd_scheduler

ALPHA_BAR = torch.tensor([0.8, 0.7, 0.5, 0.2], dtype=torch.float64)


def table(levels, noise="ddim", eta=1.0, stochastic=(0,), last=1.0, **options):
    return ddim.step_table(torch.tensor(levels), ALPHA_BAR, last, noise, eta, stochastic, **options)


def test_a_step_by_hand():
    # t = 2, 0 of N = 4: a = .5 to a' = .8, then .8 to 1. s^2 = .2 / .5 * (1 - .5 / .8) = .15
    steps = table([0.5, 0.0, 0.0])
    assert steps.std.tolist() == pytest.approx([math.sqrt(0.15), 0.0])
    # sqrt(.8) (x - sqrt(.5) e) / sqrt(.5) + sqrt(.2 - .15) e, and (x - sqrt(.2) e) / sqrt(.8)
    assert steps.x_scale.tolist() == pytest.approx([math.sqrt(1.6), math.sqrt(1.25)])
    assert steps.v_scale.tolist() == pytest.approx([math.sqrt(0.05) - math.sqrt(0.8), -0.5])
    assert steps.sigma.tolist() == [0.5, 0.0] and steps.dt.tolist() == [-0.5, 0.0]


def test_eta_scales_the_noise_and_zero_is_the_ode():
    half, none, ode = table([0.5, 0.0, 0.0], eta=0.5), table([0.5, 0.0, 0.0], eta=0.0), table([0.5, 0.0, 0.0], "ode")
    assert float(half.std[0]) == pytest.approx(0.5 * math.sqrt(0.15))
    # the mean's share of the noise shrinks with it: .2 - .15 / 4
    assert float(half.v_scale[0]) == pytest.approx(math.sqrt(0.2 - 0.0375) - math.sqrt(0.8))
    for name in ("x_scale", "v_scale", "std"):
        assert torch.equal(getattr(none, name), getattr(ode, name))
    assert not ode.std.any()


def test_both_predictions_of_the_same_sample_make_the_same_step():
    x0, e = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, v = math.sqrt(0.5) * x0 + math.sqrt(0.5) * e, math.sqrt(0.5) * e - math.sqrt(0.5) * x0
    means = [
        flow.step_mean(x, output, table([0.5, 0.0, 0.0], prediction=prediction), torch.zeros(3, dtype=torch.long))
        for prediction, output in (("epsilon", e), ("v_prediction", v))
    ]
    torch.testing.assert_close(means[0], math.sqrt(0.8) * x0 + math.sqrt(0.05) * e)
    torch.testing.assert_close(means[1], means[0])


def test_the_timestep_before_is_clamped_where_the_noise_would_vanish():
    # N = 4, T = 3, t = 3, 0, 0: the second step would go to -1, where a' = 1 has no noise, and goes to 0 instead
    alpha_bar = torch.linspace(0.9, 0.2, 8, dtype=torch.float64)
    levels = torch.tensor([4, 1, 0, 0]) / 8
    chosen = ddim.step_table(levels, alpha_bar, 1.0, "ddim", 1.0, [0, 1])
    # t = 1 - 8 // 3 = -1, that is 0: s^2 = .1 / .2 * (1 - .8 / .9)
    assert float(chosen.std[1]) == pytest.approx(math.sqrt(0.1 / 0.2 * (1 - 0.8 / 0.9)))
    assert float(chosen.x_scale[1]) == pytest.approx(math.sqrt(0.9 / 0.8))
    # a deterministic step goes where the scheduler goes
    assert float(ddim.step_table(levels, alpha_bar, 1.0, "ode", 1.0, []).x_scale[1]) == pytest.approx(
        math.sqrt(1 / 0.8)
    )


@pytest.mark.parametrize("steps", [1, 3, 7, 50])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize(("spacing", "offset", "to_one"), [
    ("leading", 1, False), ("leading", 0, True), ("trailing", 0, False), ("linspace", 0, True),
])  # fmt: skip
def test_steps_equal_those_of_the_scheduler(steps, prediction, spacing, offset, to_one):
    scheduler = sd_scheduler(
        timestep_spacing=spacing, steps_offset=offset, set_alpha_to_one=to_one, prediction_type=prediction
    )
    scheduler.set_timesteps(steps)
    levels = torch.cat([scheduler.timesteps / 1000, torch.zeros(1)])
    assert ddim.timesteps(levels[:-1], 1000).tolist() == scheduler.timesteps.tolist()
    last = float(scheduler.final_alpha_cumprod)
    generator = torch.Generator().manual_seed(0)
    for eta, chosen in ((0.0, []), (0.7, list(range(steps - 1)))):
        mine = ddim.step_table(levels, scheduler.alphas_cumprod, last, "ddim", eta, chosen, prediction)
        for number in range(steps - 1 if eta else steps):
            x, output, noise = torch.randn(3, 2, 4, generator=generator)
            at = torch.full((2,), number)
            expected = scheduler.step(
                output, int(scheduler.timesteps[number]), x, eta=eta, variance_noise=noise, return_dict=False
            )[0]
            got = flow.step_mean(x, output, mine, at) + float(mine.std[number]) * noise
            torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-6)
        assert all(float(mine.std[number]) > 0 for number in chosen)


def test_zero_terminal_signal_takes_v_prediction():
    alpha_bar = torch.tensor([0.9, 0.5, 0.2, 0.0])
    levels = torch.tensor([0.75, 0.25, 0.0])
    with pytest.raises(InputError, match="zero signal"):
        ddim.step_table(levels, alpha_bar, 1.0, "ode", 0.0, [])
    # t = 3 to 1: x0 = -v and e = x, so the mean is sqrt(.5) x - sqrt(.5) v
    steps = ddim.step_table(levels, alpha_bar, 1.0, "ode", 0.0, [], "v_prediction")
    assert float(steps.x_scale[0]) == pytest.approx(math.sqrt(0.5))
    assert float(steps.v_scale[0]) == pytest.approx(-math.sqrt(0.5))


@pytest.mark.parametrize(("call", "words"), [
    (lambda: table([0.5, 0.0, 0.0], "sde"), "known are ode, ddim"),
    (lambda: table([0.5, 0.0, 0.0], stochastic=[1]), "last step is deterministic"),
    (lambda: table([0.5, 0.0, 0.0], prediction="sample"), "known are epsilon, v_prediction"),
    (lambda: ddim.check_sampler(Sampler(noise="cps")), "noise 'cps' is for flow models"),
    (lambda: ddim.check_sampler(Sampler(shift=3.0, schedule="diffusers")), r"sampler\.shift, sampler\.schedule is set"),
    (lambda: ddim.check_sampler(Sampler(shift_terminal=0.1)), "shift_terminal"),
    (lambda: ddim.check_sampler(Sampler(max_sequence_length=77)), "max_sequence_length"),
    (lambda: flow.check_noise("ddim"), "'ddim' of a flow model: known are ode, sde, dance, cps"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_eta_is_at_most_one():
    ddim.check_sampler(Sampler(noise="ddim", level=1.0, max_sequence_length=0))
    with pytest.raises(ValueError, match=r"ddim takes a level in \[0, 1\]"):
        Sampler(noise="ddim", level=1.1)
