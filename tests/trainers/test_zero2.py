"""Two ranks under DeepSpeed ZeRO-2: the numbers of one process, optimizer states in halves, checkpoints for any number
of ranks."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrubric.config import save_config
from mmrubric.errors import InputError
from pipelines.testing_tokens import tiny_janus_directory
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
    tensors,
)  # fmt: skip
from tests.trainers.toys import settings, train
from trainers import estimate, parts, sharding, zero2
from trainers.checkpoint import CheckpointStore

FILE = ROOT / "configs" / "accelerate" / "deepspeed_zero2.yaml"
KINDS: dict[str, dict[str, Any]] = {"full": {}, "lora": {}, "reference": {"ema__decay": None}}
"""Runs of `ranks.KINDS`, with changes: what is exported without an average are DeepSpeed's own tensors."""
STOPPED = 2
TOLERANCE = 1e-5
"""Largest difference of a weight from one process. Measured: 7e-7 (full), 6e-8 (lora), 3e-6 (reference), the last at a
weight whose gradient is 1/200 of the largest of its tensor: Adam divides by it, so rounding grows."""
LAUNCHED = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="the package deepspeed is not installed: pip install 'mmrubric[deepspeed]'",
)


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the runs `<kind>-1` and `<kind>-2`, with `halved`, which stopped after 2 of 5 steps and went on,
    and with `joined`, which one process began and two ended."""
    directory = tmp_path_factory.mktemp("zero2")
    files = []
    for kind, changes in KINDS.items():
        train(load(made(directory, tiny_model, kind, f"{kind}-1", **changes)))
        # what the launch configuration asks for is what happens: model.shard is left null
        files.append(made(directory, tiny_model, kind, f"{kind}-2", run__processes=2, **changes))
    for steps in (STOPPED, 5):
        file = made(
            directory, tiny_model, "full", "halved", run__processes=2, run__steps=steps, run__resume="auto", run__keep=5
        )
        files.append(file.rename(directory / f"halved-{steps}.yaml"))
    train(load(made(directory, tiny_model, "full", "joined", run__steps=STOPPED)))
    files.append(made(directory, tiny_model, "full", "joined", run__processes=2, run__resume="auto"))
    finish(launch(2, str(SCRIPT), *map(str, files), config=FILE))
    return directory / "runs"


def _gap(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[k].double() - theirs[k].double()).abs().max()) for k in ours)


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_equal_one_process(kind: str, runs: Path) -> None:
    ours, theirs = tensors(runs / f"{kind}-1"), tensors(runs / f"{kind}-2")
    print(f"{kind}: largest difference {_gap(ours, theirs):.1e}")
    assert _gap(ours, theirs) <= TOLERANCE
    # and the runs moved, by more than the tolerance
    kept = "reference" if kind == "reference" else "ema"
    trained = {k[10:]: v for k, v in theirs.items() if k.startswith("trainable/")}
    assert _gap(trained, {k: theirs[f"{kept}/{k}"] for k in trained}) > 40 * TOLERANCE
    for one, two in zip(metrics(runs / f"{kind}-1"), metrics(runs / f"{kind}-2"), strict=True):
        assert one["optim/grad_norm"] == pytest.approx(two["optim/grad_norm"], rel=1e-3)
        assert two["dist/param_checksum_spread"] == 0  # the weights are whole, and the same, on both


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
def test_each_rank_holds_half_of_the_moments_and_the_reference_never_moves(runs: Path) -> None:
    for kind in KINDS:
        both = facts(runs / f"{kind}-2", 2)
        for fact in both:
            assert fact["layout"]["dtensors"] == 0
            whole = fact["trained_bytes"]
            assert fact["copy_bytes"] == {"full": 1, "lora": 2, "reference": 2}[kind] * whole
            # one more number per rank where it is odd, and DeepSpeed aligns its buffer
            assert whole / 2 <= fact["moment_bytes"] <= whole / 2 + 64
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
    shutil.copytree(runs / "halved", runs / "alone")  # metrics and record go on with the checkpoint
    begun = CheckpointStore(runs / "alone" / "checkpoints").all()[0]
    assert begun.step == STOPPED
    train(load(made(runs.parent, tiny_model, "full", "alone", run__resume=str(begun.path))))
    assert _gap(tensors(runs / "full-1"), tensors(runs / "alone")) <= TOLERANCE
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
def test_a_token_model_and_its_value_head_train_as_on_one_process(tmp_path: Path) -> None:
    model, files = tiny_janus_directory(tmp_path / "janus"), []
    for ranks in (1, 2):
        config = settings(
            tmp_path, model, run__name=f"ppo-{ranks}", run__steps=3, run__threads=1, run__processes=ranks,
            data__prompts_per_step=4, loss__name="ppo", loss__levels=4, advantage__name="reward", ema__decay=0.9,
            rollout__group_size=1, rollout__sampler={"kind": "tokens", "guidance": 3.0, "temperature": 0.7},
        )  # fmt: skip
        files.append(tmp_path / f"ppo-{ranks}.yaml")
        save_config(config, files[-1])
    train(load(files[0]))
    finish(launch(2, "-m", "tests.trainers.toys", str(files[1]), config=FILE))
    ours, theirs = (tensors(tmp_path / "runs" / f"ppo-{ranks}") for ranks in (1, 2))
    assert "trainable/value_head.weight" in ours and _gap(ours, theirs) <= TOLERANCE
    moved = max(float((v - ours[f"ema/{k[10:]}"]).abs().max()) for k, v in ours.items() if k.startswith("trainable/"))
    assert moved > 40 * TOLERANCE


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.processes
def test_clipped_steps_are_those_of_torch_and_a_gradient_that_is_not_finite_changes_nothing() -> None:
    assert "as torch" in finish(launch(2, str(SCRIPT.with_name("zero2_steps.py")), config=FILE))


def test_what_a_launch_may_ask_of_deepspeed() -> None:
    assert sharding.asked(LAUNCHED) == sharding.Asked("zero2")
    for change, message in [
        ({"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, r"ZeRO-3.*configs/accelerate/fsdp2\.yaml"),
        ({"ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, r"zero_stage 1: set zero_stage: 2"),
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


def test_what_zero2_cannot_do_is_refused_before_weights(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"sharding \(zero2\) over run\.processes=1 shards nothing"):
        parts.check_launch(settings(tmp_path, tiny_model))
    found: list[Any] = [None]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found[0])
    with pytest.raises(InputError, match=r"mmrubric\[deepspeed\].*configs/accelerate/fsdp2\.yaml"):
        parts.check_launch(settings(tmp_path, tiny_model, run__processes=2))
    found[0] = object()
    assert parts.check_launch(settings(tmp_path, tiny_model, run__processes=2)).shard == "zero2"
    with pytest.raises(InputError, match=r"model\.precision=fp16 with zero2"):
        parts.check_launch(settings(tmp_path, tiny_model, run__processes=2, model__precision="fp16"))
