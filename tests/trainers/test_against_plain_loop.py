"""The plain published Flow-GRPO loop as an oracle: the same pictures, loss, gradients and weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from pipelines.testing import tiny_sd3_directory
from tests.benchmarks.against_flow_grpo import PlainLoop, Samples, advantages, make_config
from tests.trainers.toys import PROMPTS, RedJudge
from trainers import parts
from trainers.loop import Trainer
from trainers.rollouts import draw


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trainer, PlainLoop]]:
    """Both loops before their first step, on a tiny pipeline, four prompts and a judge of closed form."""
    folder = tmp_path_factory.mktemp("plain")
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n")
    config = make_config(
        folder / "runs", str(tiny_sd3_directory(folder / "tiny")), data__prompts=str(prompts),
        data__prompts_per_step=4, rollout__group_size=4, rollout__sampler__max_sequence_length=0,
    )  # fmt: skip
    with Trainer(config, parts.build(config, judge=RedJudge())) as trainer:
        yield trainer, PlainLoop(config, RedJudge())


def rollout_of(trainer: Trainer, plain: PlainLoop):
    """The first step's rollout of both loops."""
    config, prompts = trainer.config, trainer.prompts.prompts.prompts
    sampled = draw(
        trainer.policy, prompts, trainer.rubrics.of(prompts), trainer.shard, trainer.worker,
        sampler=config.rollout.sampler, record=frozenset({"states", "log_prob"}), run_seed=3, step=0, batch=8,
    )  # fmt: skip
    keys = list(zip(trainer.shard.prompt_rows.tolist(), trainer.shard.samples.tolist(), strict=True))
    parts = [plain.sample([prompts[row].text for row, _ in keys[i : i + 8]], keys[i : i + 8], 3, 0) for i in (0, 8)]
    fields = list(Samples.__dataclass_fields__)[:-1]
    joined = [torch.cat([getattr(part, name) for part in parts]) for name in fields]
    return sampled.rollout, Samples(*joined, images=np.concatenate([part.images for part in parts]))


def test_the_rollouts_are_equal(loops: tuple[Trainer, PlainLoop]) -> None:
    rollout, samples = rollout_of(*loops)
    assert rollout.states is not None and rollout.actions is not None and rollout.log_probs is not None
    assert rollout.steps.tolist() == list(range(9))
    torch.testing.assert_close(rollout.states, samples.states[:, :9], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rollout.actions, samples.actions[:, :9], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rollout.log_probs, samples.log_probs[:, :9], atol=1e-5, rtol=1e-5)
    assert np.abs(rollout.images.astype(int) - samples.images.astype(int)).max() <= 1


@pytest.mark.parametrize("batch", [8, 144])
def test_the_gradients_are_equal_on_one_rollout(
    loops: tuple[Trainer, PlainLoop], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of advantage 0 are left out of both and count in the normaliser; 144 stacks all 16 x 9 items."""
    trainer, plain = loops
    rollout, samples = rollout_of(trainer, plain)
    advantage = np.random.default_rng(0).normal(size=16)
    advantage[[2, 3, 11]] = 0.0
    updater, ours = trainer.updater, []
    monkeypatch.setattr(updater, "optim", updater.optim.model_copy(update={"batch_size": batch, "grad_clip": None}))
    monkeypatch.setattr(updater.optimizer, "step", lambda: ours.extend(p.grad for p in updater.parameters))
    stats = updater(rollout, advantage, np.ones(16), run_seed=3, step=0, sampled_at=8)
    assert (stats.updates, stats.skipped) == (1, 27)

    rows = torch.from_numpy(np.flatnonzero(advantage))
    loss = plain.gradient(samples.at(rows), torch.from_numpy(advantage).float()[rows], 16)
    theirs = [parameter.grad.clone() for parameter in plain.parameters if parameter.grad is not None]
    plain.optimizer.zero_grad()
    assert loss == pytest.approx(-float(advantage.sum()) / 16, abs=1e-4)  # ratios are 1
    assert len(ours) == len(theirs) > 20
    largest = max(float(gradient.abs().max()) for gradient in theirs)
    assert largest > 1e-4
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5 * largest, rtol=1e-4)


def test_two_steps_end_at_the_same_weights(loops: tuple[Trainer, PlainLoop]) -> None:
    """The whole path: prompts, noise, judging, advantages over the batch's deviation, clipping of the norm, AdamW."""
    trainer, plain = loops
    start = torch.cat([parameter.detach().flatten() for parameter in plain.parameters])
    for _ in range(2):
        assert trainer.step()["reward/mean"] == pytest.approx(plain.step()["reward/mean"], abs=1e-4)
    ours = torch.cat([parameter.detach().flatten() for parameter in trainer.updater.parameters])
    theirs = torch.cat([parameter.detach().flatten() for parameter in plain.parameters])
    assert float((theirs - start).abs().max()) > 1e-5
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_advantages_by_hand() -> None:
    """Rewards [0, 1], [.5, .5]: std over all is sqrt(.125) = .353553; the tied group has exactly 0."""
    found = advantages(np.array([[0.0, 1.0], [0.5, 0.5]]))
    np.testing.assert_allclose(found, [-0.5 / 0.353653, 0.5 / 0.353653, 0, 0], rtol=1e-5)
