"""Two ranks under DeepSpeed ZeRO-2 and ZeRO-3: the numbers of one process, states in halves, checkpoints for any number
of ranks."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrubric.config import save_config
from mmrubric.errors import InputError
from pipelines.testing_tokens import tiny_emu3_directory, tiny_janus_directory
from tests.trainers.ranks import (
    ROOT,
    SCRIPT,
    equal,
    facts,
    finish,
    launch,
    load,
    made,
    metrics,
    needs_deepspeed,
    tensors,
)  # fmt: skip
from tests.trainers.toys import settings, train
from trainers import estimate, parts, sharding, zero2
from trainers.checkpoint import CheckpointStore

STAGES = ("2", "3")
FILES = {stage: ROOT / "configs" / "accelerate" / f"deepspeed_zero{stage}.yaml" for stage in STAGES}
KINDS: dict[str, dict[str, Any]] = {"full": {}, "lora": {}, "reference": {"ema__decay": None}}
"""Runs of `ranks.KINDS`, with changes: what is exported without an average are DeepSpeed's own tensors."""
STOPPED = 2
TOLERANCE = 1e-5
"""Largest difference of a weight from one process. Measured: 7e-7 (full), 6e-8 (lora), 3e-6 (reference), the last at a
weight whose gradient is 1/200 of the largest of its tensor: Adam divides by it, so rounding grows. ZeRO-3: 7e-7, 3e-8,
3e-6. Token models: 2e-7 (Janus, either stage), 3e-7 (Emu3)."""
LAUNCHED = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}


@pytest.fixture(scope="module")
def alone(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the runs `<kind>-1` of one process."""
    directory = tmp_path_factory.mktemp("alone")
    for kind, changes in KINDS.items():
        train(load(made(directory, tiny_model, kind, f"{kind}-1", **changes)))
    return directory / "runs"


@pytest.fixture(scope="module", params=STAGES, ids=lambda stage: f"zero{stage}")
def stage(request: pytest.FixtureRequest) -> str:
    """Of ZeRO."""
    return request.param


@pytest.fixture(scope="module")
def runs(stage: str, alone: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the runs of one process and with `<kind>-2` of two ranks, with `halved`, which stopped after 2 of
    5 steps and went on, and with `joined`, which one process began and two ended."""
    directory = tmp_path_factory.mktemp(f"zero{stage}")
    shutil.copytree(alone, directory / "runs")
    # what the launch configuration asks for is what happens: model.shard is left null
    files = [made(directory, tiny_model, k, f"{k}-2", run__processes=2, **changes) for k, changes in KINDS.items()]
    for steps in (STOPPED, 5):
        file = made(
            directory, tiny_model, "full", "halved", run__processes=2, run__steps=steps, run__resume="auto", run__keep=5
        )
        files.append(file.rename(directory / f"halved-{steps}.yaml"))
    train(load(made(directory, tiny_model, "full", "joined", run__steps=STOPPED)))
    files.append(made(directory, tiny_model, "full", "joined", run__processes=2, run__resume="auto"))
    finish(launch(2, str(SCRIPT), *map(str, files), config=FILES[stage]))
    return directory / "runs"


def _gap(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[k].double() - theirs[k].double()).abs().max()) for k in ours)


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_equal_one_process(kind: str, stage: str, runs: Path) -> None:
    ours, theirs = tensors(runs / f"{kind}-1"), tensors(runs / f"{kind}-2")
    print(f"{kind} zero{stage}: largest difference {_gap(ours, theirs):.1e}")
    assert _gap(ours, theirs) <= TOLERANCE
    # and the runs moved, by more than the tolerance
    kept = "reference" if kind == "reference" else "ema"
    trained = {k[10:]: v for k, v in theirs.items() if k.startswith("trainable/")}
    assert _gap(trained, {k: theirs[f"{kept}/{k}"] for k in trained}) > 40 * TOLERANCE
    for one, two in zip(metrics(runs / f"{kind}-1"), metrics(runs / f"{kind}-2"), strict=True):
        assert one["optim/grad_norm"] == pytest.approx(two["optim/grad_norm"], rel=1e-3)
        assert one["adapter/trainable_params"] == two["adapter/trainable_params"] > 0
        # where the weights are whole, they are the same on both
        assert two.get("dist/param_checksum_spread") == (0 if stage == "2" else None)


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
def test_each_rank_holds_its_half_and_the_reference_never_moves(stage: str, runs: Path) -> None:
    for kind in KINDS:
        both = facts(runs / f"{kind}-2", 2)
        for fact in both:
            layout, mine = fact["layout"], fact["trained_bytes"]
            assert layout["dtensors"] == (layout["tensors"] if stage == "3" else 0)
            held = sum(each["layout"]["local_bytes"] for each in both)
            assert held == 4 * layout["parameters"] * (1 if stage == "3" else 2)
            assert fact["copy_bytes"] == {"full": 1, "lora": 2, "reference": 2}[kind] * mine
            # a number or two more per rank (ZeRO-3: and tensor) where it is odd, and DeepSpeed aligns its buffer
            half, most = (mine, 4 * layout["tensors"]) if stage == "3" else (mine / 2, 0)
            assert half <= fact["moment_bytes"] <= half + 64 + most
            assert len(set(fact["reference"])) == (kind != "full") and fact["export_changed_nothing"]
            assert fact["sampled"] not in fact["reference"]
        assert both[0]["sampled"] == both[1]["sampled"] and both[0]["reference"] == both[1]["reference"]


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
def test_resume_is_bitwise(runs: Path) -> None:
    saved = CheckpointStore(runs / "halved" / "checkpoints").all()
    assert [item.step for item in saved] == [STOPPED, 5]
    ours, theirs = CheckpointStore(runs / "full-2" / "checkpoints").all()[-1].load(), saved[-1].load()
    for part in ("policy", "updater"):
        assert equal(ours[part], theirs[part])


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
def test_checkpoints_are_those_of_one_process(runs: Path, tiny_model: Path) -> None:
    # begun by one process and ended by two ranks, and the other way round
    assert _gap(tensors(runs / "full-1"), tensors(runs / "joined")) <= TOLERANCE
    shutil.copytree(runs / "halved", runs / "ended")  # metrics and record go on with the checkpoint
    begun = CheckpointStore(runs / "ended" / "checkpoints").all()[0]
    assert begun.step == STOPPED
    train(load(made(runs.parent, tiny_model, "full", "ended", run__resume=str(begun.path))))
    assert _gap(tensors(runs / "full-1"), tensors(runs / "ended")) <= TOLERANCE
    ours, theirs = (CheckpointStore(runs / n / "checkpoints").all()[-1].load() for n in ("full-1", "full-2"))
    ours, theirs = (state["updater"]["optimizer"] for state in (ours, theirs))
    assert ours["state"].keys() == theirs["state"].keys()
    for number, state in ours["state"].items():
        found = theirs["state"][number]
        assert state["step"] == found["step"] > 0
        for name in zero2.MOMENTS:
            assert state[name].shape == found[name].shape
            # relative to the largest: moments are gradients, which add up in another order
            assert float((state[name] - found[name]).abs().max()) <= 1e-3 * float(state[name].abs().max())


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
def test_the_exported_model_is_plain_diffusers(runs: Path) -> None:
    from diffusers import StableDiffusion3Pipeline

    run = runs / "reference-2"
    assert json.loads((run / "model" / "model_index.json").read_text())["transformer"][0] == "diffusers"
    pipe = StableDiffusion3Pipeline.from_pretrained(run / "model", text_encoder_3=None, tokenizer_3=None)
    expected = {k[10:]: v for k, v in tensors(run).items() if k.startswith("trainable/")}
    weights = dict(pipe.transformer.named_parameters())
    assert weights.keys() == expected.keys() and all(torch.equal(weights[k], expected[k]) for k in weights)


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("build", "stage", "chunk"),
    [(tiny_janus_directory, "2", 32 * 16), (tiny_janus_directory, "3", 32 * 16), (tiny_emu3_directory, "3", 348 * 6)],
    ids=["janus-zero2", "janus-zero3", "emu3-zero3"],
)
def test_a_token_model_and_its_value_head_train_as_on_one_process(
    build: Callable[[Path], Path], stage: str, chunk: int, tmp_path: Path
) -> None:
    # rank 0 has two rows and rank 1 one: so large a chunk is half the tokens there and all of them here, and heads are
    # called twice and once
    model, files = build(tmp_path / "model"), []
    for ranks in (1, 2):
        config = settings(
            tmp_path, model, run__name=f"ppo-{ranks}", run__steps=3, run__threads=1, run__processes=ranks,
            data__prompts_per_step=3, loss__name="ppo", loss__levels=4, advantage__name="reward", ema__decay=0.9,
            rollout__group_size=1, rollout__sampler={"kind": "tokens", "guidance": 3.0, "temperature": 0.7},
        )  # fmt: skip
        files.append(tmp_path / f"ppo-{ranks}.yaml")
        save_config(config, files[-1])
    train(load(files[0]))
    finish(launch(2, "-m", "tests.trainers.toys", str(files[1]), "--chunk", str(chunk), config=FILES[stage]))
    ours, theirs = (tensors(tmp_path / "runs" / f"ppo-{ranks}") for ranks in (1, 2))
    print(f"{build.__name__} zero{stage}: largest difference {_gap(ours, theirs):.1e}")
    assert "trainable/value_head.weight" in ours and _gap(ours, theirs) <= TOLERANCE
    moved = max(float((v - ours[f"ema/{k[10:]}"]).abs().max()) for k, v in ours.items() if k.startswith("trainable/"))
    assert moved > 40 * TOLERANCE


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("stage", STAGES)
def test_clipped_steps_are_those_of_torch_and_a_gradient_that_is_not_finite_changes_nothing(stage: str) -> None:
    assert "as torch" in finish(launch(2, str(SCRIPT.with_name("deepspeed_steps.py")), stage, config=FILES[stage]))


def test_what_a_launch_may_ask_of_deepspeed() -> None:
    assert sharding.asked(LAUNCHED) == sharding.Asked("zero2")
    assert sharding.asked({**LAUNCHED, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}) == sharding.Asked("zero3")
    for change, message in [
        ({"ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, r"zero_stage 1: set zero_stage: 2 or 3"),
        ({"ACCELERATE_GRADIENT_CLIPPING": "1.0"}, r"gradient_clipping=1\.0.*optim\.grad_clip"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, r"gradient_accumulation_steps=4.*optim\.batch_size"),
        ({"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"}, r"offload_optimizer_device=cpu"),
        ({"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"}, r"deepspeed_config_file=ds\.json"),
    ]:
        with pytest.raises(InputError, match=message):
            sharding.asked({**LAUNCHED, **change})


def test_memory_of_a_rank_is_counted() -> None:
    # float32: weights 400, an average 400, a bucket of 60 gradients 240; each of 2 ranks holds half of the gradients
    # 200, of two moments 400 and of the optimizer's copy 200
    held = estimate.memory(estimate.Numbers(trained=100), precision="fp32", ranks=2, bucket=60, copies=1)
    assert {item.what: item.bytes for item in held} == {
        "trained weights": 400, "1 weight copies": 400, "gradients": 200, "Adam moments": 400,
        "the optimizer's copy of trained weights": 200, "buckets of averaged gradients": 240,
    }  # fmt: skip
    # ZeRO-3 halves weights and average as well, and gathers a layer of 30 while it runs
    numbers = estimate.Numbers(trained=100, block=30)
    held = estimate.memory(numbers, precision="fp32", ranks=2, bucket=60, copies=1, sharded=True)
    assert {item.what: item.bytes for item in held} == {
        "trained weights": 200, "1 weight copies": 200, "gradients": 200, "Adam moments": 400,
        "the optimizer's copy of trained weights": 200, "buckets of averaged gradients": 240, "a gathered layer": 120,
    }  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_what_deepspeed_cannot_do_is_refused_before_weights(
    stage: str, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**LAUNCHED, "ACCELERATE_DEEPSPEED_ZERO_STAGE": stage}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=rf"sharding \(zero{stage}\) over run\.processes=1 shards nothing"):
        parts.check_launch(settings(tmp_path, tiny_model))
    found: list[Any] = [None]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found[0])
    with pytest.raises(InputError, match=r"mmrubric\[deepspeed\].*configs/accelerate/fsdp2\.yaml"):
        parts.check_launch(settings(tmp_path, tiny_model, run__processes=2))
    found[0] = object()
    assert parts.check_launch(settings(tmp_path, tiny_model, run__processes=2)).shard == f"zero{stage}"
    with pytest.raises(InputError, match=r"model\.precision=fp16 with DeepSpeed"):
        parts.check_launch(settings(tmp_path, tiny_model, run__processes=2, model__precision="fp16"))
