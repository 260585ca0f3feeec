"""N + M steps equal N, resume, M: bitwise, with every part of the state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrubric.errors import InputError
from mmrubric.record_reader import RecordReader
from tests.trainers.toys import SDE, RedJudge, settings
from trainers import parts
from trainers.checkpoint import pack
from trainers.config import TrainConfig
from trainers.loop import Trainer

RUNS: dict[str, dict[str, Any]] = {
    "lora-ema-clip": {
        "model": {"tune": "lora", "lora": {"rank": 2, "alpha": 4}}, "ema__decay": 0.9, "advantage__name":
        "grpo",
        "loss": {"name": "clip", "options": {"clip": 0.01}, "kl": "gaussian", "kl_coefficient": 0.1},
        "rollout__sampler": {**SDE, "window": {"size": 1, "strategy": "random"}}, "optim__epochs": 2,
    },
    "full-nft": {
        "loss": {"name": "nft", "levels": 2, "old_schedule": "constant", "old_decay": 0.5, "kl_coefficient":
        0.01},
        "advantage__options": {"binarize": False, "margin": 1e-6}, "optim__warmup": 4,
    },
}  # fmt: skip


def _config(directory: Path, model: Path, kind: str, /, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {**RUNS[kind], "data__prompts_per_step": 3, **changes}
    tuned = dict(values.pop("model", {}), path=str(model))
    return settings(directory, model, model=tuned, **values)


def _trainer(config: TrainConfig) -> Trainer:
    return Trainer(config, parts.build(config, judge=RedJudge()))


def _state(trainer: Trainer) -> tuple[dict[str, torch.Tensor], Any]:
    """All that the next step depends on, but for where the log file ends."""
    state = {k: v for k, v in trainer.snapshot().items() if k != "metrics_position"}
    return pack(state)


def _same(a: tuple[dict[str, torch.Tensor], Any], b: tuple[dict[str, torch.Tensor], Any]) -> bool:
    return a[1] == b[1] and all(torch.equal(a[0][k], b[0][k]) for k in a[0])


def _metrics(trainer: Trainer) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (trainer.directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize("kind", RUNS)
def test_tf48_resume_is_bitwise(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    # prompts come 3 of 4 a step, so the steps before and after the resume lie in different epochs
    straight = _config(tmp_path, tiny_model, kind, run__name="straight", run__steps=4)
    with _trainer(straight) as trainer:
        trainer.run()
        expected, logged = _state(trainer), _metrics(trainer)
    halved = _config(tmp_path, tiny_model, kind, run__name="halved", run__steps=2)
    with _trainer(halved) as trainer:
        trainer.run()
        half = _state(trainer)
    torch.manual_seed(99)  # another process has other global random states
    halved = _config(tmp_path, tiny_model, kind, run__name="halved", run__steps=4, run__resume="auto")
    with _trainer(halved) as trainer:
        assert trainer.done == 2 and _same(_state(trainer), half)
        trainer.run()
        assert _same(_state(trainer), expected)
        assert _metrics(trainer) == logged
    rows = list(RecordReader(trainer.directory / "record.jsonl").rows())
    assert sorted({row.step for row in rows}) == [0, 1, 2, 3] and len(rows) == 4 * 6


def test_tf51_counters_go_on(tmp_path: Path, tiny_model: Path) -> None:
    config = _config(tmp_path, tiny_model, "full-nft", run__steps=3, run__save_every=2)
    with _trainer(config) as trainer:
        trainer.run()
        assert [item.step for item in trainer.checkpoints.all()] == [2, 3]
        first = set(trainer.worker.judge.calls)  # type: ignore[attr-defined]
    longer = _config(tmp_path, tiny_model, "full-nft", run__steps=5, run__save_every=2, run__resume="auto")
    with _trainer(longer) as trainer:
        assert (trainer.done, trainer.prompts.step, trainer.updater.made) == (3, 3, 3)
        trainer.run()
        assert [item.step for item in trainer.checkpoints.all()] == [4, 5]
        second = set(trainer.worker.judge.calls)  # type: ignore[attr-defined]
    assert not first & second  # the seeds go on: no sample is drawn twice
    assert [row["step"] for row in _metrics(trainer)] == [0, 1, 2, 3, 4]


def test_tf49_resume_acts_or_raises(tmp_path: Path, tiny_model: Path) -> None:
    config = _config(tmp_path, tiny_model, "full-nft", run__steps=1)
    with _trainer(config) as trainer:
        trainer.run()
        checkpoint = trainer.checkpoints.latest()
    assert checkpoint is not None
    # null where a run lies already: nothing is overwritten
    with pytest.raises(InputError, match=r"continue it with run\.resume=auto"):
        _trainer(config)
    # another configuration: the differing keys are named, and nothing is loaded or written
    other = _config(tmp_path, tiny_model, "full-nft", run__steps=2, run__resume="auto", optim__lr=5e-4, run__seed=7)
    with pytest.raises(InputError) as error:
        _trainer(other)
    assert "optim.lr: 0.001 -> 0.0005" in str(error.value) and "run.seed: 1 -> 7" in str(error.value)
    lora = _config(
        tmp_path,
        tiny_model,
        "full-nft",
        run__resume=str(checkpoint.path),
        model={"tune": "lora"},
        run__name="lora",
    )
    with pytest.raises(InputError, match=r"model\.tune: 'full' -> 'lora'"):
        _trainer(lora)
    # other prompts under the same path
    Path(config.data.prompts).write_text(
        "two green triangles on a black background\n" * 1
        + "a red circle on a white background\na blue circle on a white background\n"
    )
    with pytest.raises(InputError, match="for its prompts"):
        _trainer(_config(tmp_path, tiny_model, "full-nft", run__steps=2, run__resume="auto"))


def test_an_older_checkpoint_can_be_gone_back_to(tmp_path: Path, tiny_model: Path) -> None:
    config = _config(tmp_path, tiny_model, "full-nft", run__steps=2, run__save_every=1)
    with _trainer(config) as trainer:
        trainer.run()
        expected = _state(trainer)
        earlier = trainer.checkpoints.all()[0]
    again = _config(tmp_path, tiny_model, "full-nft", run__steps=2, run__save_every=1, run__resume=str(earlier.path))
    with _trainer(again) as trainer:
        assert trainer.done == 1
        trainer.run()
        assert _same(_state(trainer), expected)
        latest = trainer.checkpoints.latest()
    assert latest is not None and latest.path.name == "step-00000002.r1"


def test_saving_changes_nothing_and_the_model_is_plain_diffusers(tmp_path: Path, tiny_model: Path) -> None:
    from diffusers import StableDiffusion3Pipeline

    config = _config(tmp_path, tiny_model, "full-nft", run__steps=1, ema__decay=0.5)
    with _trainer(config) as trainer:
        trainer.run()
        before = _state(trainer)
        trainer.save()
        trainer.export()
        assert _same(_state(trainer), before)
        name = trainer.policy.trainable_parameters()[0][0]
        average = trainer.policy.state_dict()[f"ema/{name}"].clone()
    pipe = StableDiffusion3Pipeline.from_pretrained(trainer.directory / "model", text_encoder_3=None, tokenizer_3=None)
    assert torch.equal(dict(pipe.transformer.named_parameters())[name], average)
