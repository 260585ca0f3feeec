"""Rollout against training log-prob: the ratio is 1 before any update."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from pipelines import load_policy
from pipelines.policy import Rollout
from pipelines.rollout_io import save_rollout
from pipelines.samplers import Sampler, Window
from pipelines.seeds import row_seed

RECORD = frozenset({"states", "log_prob", "mean"})
TOLERANCE = {"fp32": 1e-6, "bf16": 1e-5, "fp16": 1e-5}


@pytest.fixture(scope="module")
def policies(tiny):
    return {precision: load_policy(tiny, precision=precision) for precision in TOLERANCE}


def roll_out(policy, prompts, batch, **fields):
    sampler = Sampler(**{"steps": 4, "noise": "sde", "shift": 3.0, "max_sequence_length": 0, **fields})
    seeds = [row_seed(0, 0, i // 2, i % 2, sampler.same_noise) for i in range(8)]
    return policy.sample([prompts[i // 2] for i in range(8)], seeds, sampler, RECORD, batch=batch)


def replay(policy, rollout: Rollout, batch: int, grad: bool = True):
    """[B, K] log-probs in micro-batches of `batch` rows, one step at a time."""
    columns = []
    for step in range(len(rollout.steps)):
        parts = []
        for start in range(0, len(rollout), batch):
            rows = torch.arange(start, min(start + batch, len(rollout)))
            with torch.set_grad_enabled(grad):
                out = policy.log_prob(rollout, rows, torch.full((len(rows),), step))
            assert out.log_prob.requires_grad == grad
            parts.append(out.log_prob.detach())
        columns.append(torch.cat(parts))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("guidance", [1.0, 4.5])
@pytest.mark.parametrize("noise", ["sde", "dance", "cps"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_tf01_ratio_is_one_on_the_first_pass(policies, prompts, precision, noise, guidance, batch):
    policy = policies[precision]
    rollout = roll_out(policy, prompts, batch, noise=noise, guidance=guidance, steps=3)
    difference = replay(policy, rollout, batch) - rollout.log_probs
    assert difference.abs().max().item() <= TOLERANCE[precision]


def test_tf01_trajectories_are_float32_under_autocast(policies, prompts):
    for precision in ("bf16", "fp16"):
        rollout = roll_out(policies[precision], prompts, 4)
        for name in ("samples", "states", "actions", "means", "log_probs", "sigmas"):
            assert getattr(rollout, name).dtype == torch.float32, (precision, name)
        # rounding the states to the half type would be visible here
        half = rollout.states.to(torch.bfloat16).float()
        assert not torch.equal(half, rollout.states)


def test_cps_form_and_window_replay(policies, prompts):
    rollout = roll_out(policies["fp32"], prompts, 4, steps=6, noise="cps", log_prob="cps", window=Window(size=2, lo=1))
    assert rollout.steps.tolist() == [1, 2]
    assert (replay(policies["fp32"], rollout, 4) - rollout.log_probs).abs().max().item() <= 1e-6
    square = ((rollout.actions - rollout.means) ** 2).mean((2, 3, 4))
    torch.testing.assert_close(rollout.log_probs, -square)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tf02_other_batch_size_with_recomputed_log_probs(policies, prompts, precision):
    policy = policies[precision]
    rollout = roll_out(policy, prompts, 4)
    old = replay(policy, rollout, 1, grad=False)
    assert (replay(policy, rollout, 1) - old).abs().max().item() <= TOLERANCE[precision]
    # what recomputing removes is rounding, not another distribution
    assert (old - rollout.log_probs).abs().max().item() <= (1e-5 if precision == "fp32" else 1e-2)


def test_mixed_rows_and_steps_in_one_batch(policies, prompts):
    policy = policies["fp32"]
    rollout = roll_out(policy, prompts, 8)
    rows, steps = torch.tensor([5, 0, 7, 5, 2]), torch.tensor([2, 1, 0, 0, 2])
    out = policy.log_prob(rollout, rows, steps, frozenset({"log_prob", "mean", "velocity", "std", "dt", "sigma"}))
    torch.testing.assert_close(out.log_prob, rollout.log_probs[rows, steps], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.mean, rollout.means[rows, steps], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.sigma, rollout.sigmas[rollout.steps[steps]])
    torch.testing.assert_close(out.dt, rollout.sigmas[rollout.steps[steps] + 1] - out.sigma)
    # the action is mean + std * noise, so the standardised residual has the density's exponent
    residual = ((rollout.actions[rows, steps] - out.mean) / out.std.reshape(-1, 1, 1, 1)) ** 2
    expected = -residual.mean((1, 2, 3)) / 2 - out.std.log() - 0.5 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(out.log_prob, expected, atol=1e-5, rtol=0)


def test_tf03_evaluation_with_other_steps_does_not_touch_the_replay(policies, prompts):
    policy = policies["fp32"]
    rollout = roll_out(policy, prompts, 4)
    before = replay(policy, rollout, 4)
    policy.sample(prompts, [row_seed(1, 0, i, 0) for i in range(4)], Sampler(steps=7, shift=1.0, guidance=2.0))
    assert torch.equal(replay(policy, rollout, 4), before)


FRESH = """
import sys, torch
from pipelines import load_policy
from pipelines.rollout_io import load_rollout
policy, rollout = load_policy(sys.argv[1], device="cpu"), load_rollout(sys.argv[2])
rows = torch.arange(len(rollout))
new = [policy.log_prob(rollout, rows, torch.full_like(rows, k)).log_prob for k in range(len(rollout.steps))]
print(float((torch.stack(new, 1) - rollout.log_probs).abs().max()))
"""


@pytest.mark.processes
@pytest.mark.slow
def test_tf04_a_fresh_process_replays_a_saved_rollout(tiny, prompts, tmp_path):
    policy = load_policy(tiny, device="cpu")
    rollout = roll_out(policy, prompts, 8, guidance=3.0)
    save_rollout(rollout, tmp_path / "rollout.safetensors")
    command = [sys.executable, "-c", FRESH, str(tiny), str(tmp_path / "rollout.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) <= 1e-6


@pytest.mark.parametrize("call", ["log_prob", "predict"])
def test_tf07_gradient_reaches_the_unconditional_branch(tiny, prompts, call):
    policy = load_policy(tiny)
    rollout = roll_out(policy, prompts, 8, guidance=3.0)
    empty = policy.conditioner.cache.get("", 0)
    for tensor in empty:
        tensor.requires_grad_(True)
    rows = torch.arange(4)
    if call == "log_prob":
        policy.log_prob(rollout, rows, rows * 0).log_prob.sum().backward()
    else:
        policy.predict(rollout, rows, rollout.samples[:4], torch.full((4,), 0.5)).square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.abs().max() > 0 for tensor in empty)
    assert all(p.grad is None or p.grad.isfinite().all() for _, p in policy.trainable_parameters())


def test_an_update_changes_the_ratio(tiny, prompts):
    policy = load_policy(tiny)
    rollout = roll_out(policy, prompts, 8)
    optimizer = torch.optim.SGD([p for _, p in policy.trainable_parameters()], lr=0.1)
    rows = torch.arange(8)
    (-policy.log_prob(rollout, rows, rows * 0).log_prob).sum().backward()
    optimizer.step()
    after = policy.log_prob(rollout, rows, rows * 0).log_prob
    assert bool((after.detach() > rollout.log_probs[:, 0]).all())


def test_gradient_checkpointing_gives_the_same_gradient(tiny, prompts):
    grads = []
    for on in (False, True):
        policy = load_policy(tiny, gradient_checkpointing=on)
        rollout = roll_out(policy, prompts, 8)
        rows = torch.arange(8)
        policy.log_prob(rollout, rows, rows * 0).log_prob.sum().backward()
        grads.append([p.grad for _, p in policy.trainable_parameters() if p.grad is not None])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def test_predict_is_the_velocity_of_the_replay(policies, prompts):
    policy = policies["fp32"]
    rollout = roll_out(policy, prompts, 8, guidance=2.0)
    rows = torch.arange(8)
    velocity = policy.log_prob(rollout, rows, rows * 0 + 1, frozenset({"velocity"})).velocity
    again = policy.predict(rollout, rows, rollout.states[:, 1], rollout.sigmas[1].expand(8))
    assert torch.equal(velocity, again)
    unguided = dataclasses.replace(rollout, sampler=rollout.sampler.model_copy(update={"guidance": 1.0}))
    assert not torch.allclose(again, policy.predict(unguided, rows, rollout.states[:, 1], rollout.sigmas[1].expand(8)))
