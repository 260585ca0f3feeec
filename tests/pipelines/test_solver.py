"""DPM-Solver++ on a rectified flow, and what MixGRPO-Flash leaves of a rollout after its window."""

from itertools import pairwise

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from pydantic import ValidationError

from mmrubric.errors import InputError
from pipelines import ddim, flow, windows
from pipelines.rollout_io import load_rollout, save_rollout
from pipelines.samplers import Sampler, TokenSampler, Window
from pipelines.seeds import row_seed

F64 = torch.float64
RECORD = frozenset({"states", "log_prob", "mean"})
FLASH = {"solver": "dpmsolver++", "window": {"size": 2, "lo": 1, "compression": 0.6}}


def field(x, sigma):
    """A velocity that bends, with its own time dependence."""
    sigma = sigma.reshape(-1, *[1] * (x.dim() - 1))
    return torch.sin(2 * x) + x * torch.cos(3 * sigma)


def start(dtype=torch.float32):
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=F64).to(dtype)


def by_hand(levels):
    """Euler's table of any falling levels, also of such as start below 1."""
    dt = levels.diff()
    return flow.StepTable(torch.ones_like(dt), dt.clone(), torch.zeros_like(dt), levels[:-1], dt)


def walked(table, x, first=0, solver="dpmsolver++"):
    return flow.walk(field, x, lambda: torch.zeros(0), flow.second_order(table, first) if solver != "euler" else table)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 20])
@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("own", [True, False])
def test_it_equals_the_scheduler_of_diffusers(steps, shift, own):
    scheduler = DPMSolverMultistepScheduler(
        use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=shift, solver_order=2
    )
    scheduler.set_timesteps(steps)
    if not own:  # levels that start at exactly 1, where the log ratio is infinite
        scheduler.sigmas = flow.sigmas(steps, shift)
    levels = scheduler.sigmas.double()
    x = start()
    for number, t in enumerate(scheduler.timesteps):
        x = scheduler.step(field(x, scheduler.sigmas[number].expand(3)), t, x, return_dict=False)[0]
    torch.testing.assert_close(walked(by_hand(levels), start()).final, x, atol=1e-5, rtol=0)


def test_a_step_by_hand():
    # sigma .8 -> .5 -> .2 -> 0: ln(.2 / .8) = -ln 4, ln 1 = 0, ln(.8 / .2) = ln 4: h / h_before = 1, -dt / sigma = .6
    table = flow.second_order(by_hand(torch.tensor([0.8, 0.5, 0.2, 0.0], dtype=F64)), 0)
    assert table.history is not None
    torch.testing.assert_close(table.history, torch.tensor([0.0, 0.3, 0.0], dtype=F64), atol=1e-15, rtol=0)
    # x 1, v 2: x0 = 1 - 1.6 = -.6, x = 1 - .3 * 2 = .4; there v 1: x0 = .4 - .5 = -.1,
    # x = .4 - .3 + .3 * (-.1 + .6) = .25; there v -1: the last step is Euler's, .25 + .2
    slopes = iter([2.0, 1.0, -1.0])
    path = flow.walk(lambda x, _: torch.full_like(x, next(slopes)), torch.ones(1, 1), lambda: torch.zeros(0), table)
    assert path.final.item() == pytest.approx(0.45, abs=1e-7)


@pytest.mark.parametrize(("first", "last", "least"), [(0.9, 0.1, 3.6), (1.0, 0.0, 3.0)])
def test_its_error_falls_by_about_four_where_that_of_euler_falls_by_two(first, last, least):
    # From 1 to 0 the log ratio is infinite at both ends: its steps there never get short, and the error falls as
    # (ln N) / N^2, by 4 ln 40 / ln 80 = 3.4 here.
    def reached(steps):
        x, levels = start(F64), torch.linspace(first, last, steps + 1, dtype=F64)
        for sigma, dt in zip(levels[:-1], levels.diff(), strict=True):
            x = x + dt * field(x, sigma)
        return x

    # Euler's error in fine steps is linear in them, so that this removes nearly all of it
    x = 2 * reached(10_000) - reached(5_000)

    def errors(solver):
        tables = [by_hand(torch.linspace(first, last, steps + 1, dtype=F64)) for steps in (40, 80, 160)]
        return [float((walked(table, start(F64), 0, solver).final - x).abs().max()) for table in tables]

    euler, dpm = errors("euler"), errors("dpmsolver++")
    assert all(1.9 < a / b < 2.1 for a, b in pairwise(euler)), euler
    assert all(least < a / b < 4.4 for a, b in pairwise(dpm)), dpm
    assert dpm[0] < euler[0] / 5


def test_steps_before_the_start_are_those_of_euler():
    table = flow.step_table(flow.sigmas(8), "ode", 0.0, [])
    history = flow.second_order(table, 4).history
    assert history is not None
    # from step 4 on; the first one has no step before it, and the last one is of first order
    assert (history != 0).tolist() == [False] * 5 + [True, True, False]


def test_levels_of_a_compressed_tail_by_hand():
    # 10 steps, window 1, 2: steps 3 to 9 are left, .6 of 7 = 4.2, so 4 take their place: from .7 by .175 to 0
    sampler = Sampler(steps=10, noise="sde", **FLASH)
    expected = [1, 0.9, 0.8, 0.7, 0.525, 0.35, 0.175, 0]
    torch.testing.assert_close(windows.levels(sampler), torch.tensor(expected), atol=1e-7, rtol=0)
    # equal distances before the shift: 3 s / (1 + 2 s) of .35 = 1.05 / 1.7
    shifted = windows.levels(sampler.model_copy(update={"shift": 3.0}))
    assert shifted[5].item() == pytest.approx(1.05 / 1.7, abs=1e-7)
    # of the published numbers: 25 steps, window of 4, .4 of 21 = 8.4
    published = Sampler(steps=25, noise="sde", solver="dpmsolver++", window=Window(size=4, compression=0.4))
    assert len(windows.levels(published)) == 4 + 8 + 1
    # where a window moves to the end: of one step left, one stays
    late = sampler.model_copy(update={"window": Window(size=2, lo=7, compression=0.4)})
    assert torch.equal(windows.levels(late), flow.sigmas(10))


@pytest.mark.parametrize("extra", [{}, {"schedule": "diffusers", "shift": 3.0}, {"shift": 2.0, "shift_terminal": 0.02}])
@pytest.mark.parametrize("lo", [0, 3, 4])
def test_levels_up_to_the_end_of_the_window_stay_bit_for_bit(extra, lo):
    plain = Sampler(steps=12, noise="sde", window=Window(size=2, lo=lo), **extra)
    flash = Sampler(steps=12, noise="sde", solver="dpmsolver++", window=Window(size=2, lo=lo, compression=0.5), **extra)
    assert torch.equal(windows.levels(flash)[: lo + 3], windows.levels(plain)[: lo + 3])
    assert len(windows.levels(flash)) == lo + 2 + (12 - lo - 2) // 2 + 1


def test_a_moving_window_keeps_its_compression():
    moving = Window(size=2, strategy="progressive", iters_per_window=1, compression=0.4)
    sampler = Sampler(steps=10, noise="sde", solver="dpmsolver++", window=moving)
    with pytest.raises(InputError, match=r"windows\.at"):
        windows.levels(sampler)
    # windows at 0 and at 5: .4 of 8 and of 3
    assert [len(windows.levels(windows.at(sampler, 0, step))) - 1 for step in (0, 5)] == [2 + 3, 7 + 1]


def roll_out(policy, prompts, **fields):
    sampler = Sampler(**{"steps": 10, "noise": "sde", "shift": 3.0, "max_sequence_length": 0, **fields})
    seeds = [row_seed(0, 0, i // 2, i % 2) for i in range(8)]
    return policy.sample([prompts[i // 2] for i in range(8)], seeds, sampler, RECORD)


def replayed(policy, rollout):
    rows = torch.arange(len(rollout))
    steps = range(len(rollout.steps))
    return torch.stack([policy.log_prob(rollout, rows, torch.full_like(rows, k)).log_prob.detach() for k in steps], 1)


def test_what_follows_the_window_does_not_change_it(policy, prompts):
    plain = roll_out(policy, prompts, window={"size": 2, "lo": 1})
    flash = roll_out(policy, prompts, **FLASH)
    assert flash.steps.tolist() == plain.steps.tolist() == [1, 2]
    for name in ("states", "actions", "means", "log_probs"):
        assert torch.equal(getattr(flash, name), getattr(plain, name)), name
    assert not torch.equal(flash.samples, plain.samples)


def test_estimates_of_both_sides_of_the_window_do_not_mix(policy, prompts):
    # By the exponential form of DPM-Solver++(2M), with x0 = x - sigma v and lambda = ln((1 - sigma) / sigma), from the
    # state after the window on: the first step has no estimate before it.
    flash = roll_out(policy, prompts, **FLASH)
    x, rows, levels = flash.actions[:, -1], torch.arange(len(flash)), flash.sigmas[3:].double()
    growth = torch.log((1 - levels) / levels)
    before = None
    for number, sigma in enumerate(levels[:-1]):
        with torch.no_grad():
            x0 = x - float(sigma) * policy.predict(flash, rows, x, sigma.float().expand(len(flash)))
        h, estimate = growth[number + 1] - growth[number], x0
        if before is not None and number < len(levels) - 2:
            estimate = x0 + float(h / (growth[number] - growth[number - 1]) / 2) * (x0 - before)
        after = levels[number + 1]
        x = float(after / sigma) * x - float((1 - after) * torch.expm1(-h)) * estimate
        before = x0
    torch.testing.assert_close(flash.samples, x, atol=1e-5, rtol=0)


def test_the_first_pass_has_ratio_one_and_the_schedule_of_the_rollout(policy, prompts, tmp_path):
    flash = roll_out(policy, prompts, **FLASH)
    assert (replayed(policy, flash) - flash.log_probs).abs().max().item() <= 1e-6
    save_rollout(flash, tmp_path / "rollout.safetensors")
    back = load_rollout(tmp_path / "rollout.safetensors")
    assert torch.equal(back.sigmas, windows.levels(back.sampler)) and len(back.sigmas) == 8
    assert (replayed(policy, back) - flash.log_probs).abs().max().item() <= 1e-6


def test_the_steps_left_out_are_calls_left_out(policy, prompts):
    calls = []
    hook = policy.module.register_forward_hook(lambda *_: calls.append(1))
    try:
        counts = []
        for fields in ({"window": {"size": 2, "lo": 1}}, FLASH, {"noise": "ode", "solver": "dpmsolver++"}):
            calls.clear()
            sampler = Sampler.model_validate({"steps": 10, "noise": "sde", "max_sequence_length": 0, **fields})
            policy.sample(prompts[:1], [row_seed(0, 0, 0, 0)], sampler)
            counts.append(len(calls))
    finally:
        hook.remove()
    assert counts == [10, 7, 10]


@pytest.mark.parametrize(("fields", "message"), [
    ({"noise": "sde", "solver": "dpmsolver++"}, "every step but the last is stochastic: give a window"),
    ({"noise": "sde", "solver": "dpmsolver++", "window": {"size": 0, "lo": 2}}, "give a window"),
    ({"noise": "sde", "window": {"size": 2, "compression": 0.4}}, "with sampler.solver 'dpmsolver\\+\\+'"),
    ({"noise": "ode", "solver": "dpmsolver++", "window": {"size": 2, "compression": 0.4}}, "which steps are"),
    ({"noise": "sde", "solver": "dpmsolver++", "steps": 10, "window": {"size": 2, "lo": 6}}, "leaves 2 steps after"),
    ({"noise": "sde", "solver": "dpmsolver++", "steps": 10, "window": {"hi": 9}}, "leaves 1 steps after"),
    ({"noise": "ode", "solver": "dpmsolver++", "steps": 3}, "nothing is left of 3 steps"),
    ({"solver": "dpm"}, "'euler' or 'dpmsolver\\+\\+'"),
    ({"compression": 0.4}, "compression"),
    ({"noise": "sde", "solver": "dpmsolver++", "window": {"compression": 0}}, "greater than 0"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Sampler.model_validate(fields)


def test_other_models_refuse_the_solver():
    with pytest.raises(InputError, match=r"sampler\.solver is set, but this model takes DDIM's steps"):
        ddim.check_sampler(Sampler(solver="dpmsolver++"))
    with pytest.raises(ValidationError, match="solver"):
        TokenSampler.model_validate({"kind": "tokens", "solver": "dpmsolver++"})
