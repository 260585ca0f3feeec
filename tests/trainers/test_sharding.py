"""Two and three ranks, whole (DDP) and in shards (FSDP2): the numbers of one process, nothing that hangs or stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mmrubric import aggregate
from mmrubric.errors import InputError
from mmrubric.record_reader import RecordReader
from tests.trainers.ranks import (
    FSDP2,
    KINDS,
    LIMIT,
    SCRIPT,
    TOLERANCE,
    equal,
    facts,
    finish,
    launch,
    load,
    made,
    metrics,
    tensors,
)  # fmt: skip
from tests.trainers.toys import train
from trainers import sharding
from trainers.checkpoint import CheckpointStore

KILLED_WITHIN = 60
"""Seconds in which the other ranks must notice that one is gone."""


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the runs `<kind>-<ranks>`, with `-fsdp2` where sharded, and `halved`, which stopped after 2 of 5
    steps and went on."""
    directory = tmp_path_factory.mktemp("sharding")
    two = []
    for kind in KINDS:
        train(load(made(directory, tiny_model, kind, f"{kind}-1")))
        if kind != "reference":
            two.append(made(directory, tiny_model, kind, f"{kind}-2", run__processes=2))
        two.append(made(directory, tiny_model, kind, f"{kind}-2-fsdp2", {"shard": "fsdp2"}, run__processes=2))
    for steps in (2, 5):
        file = made(
            directory, tiny_model, "lora", "halved", {"shard": "fsdp2"}, run__processes=2, run__steps=steps,
            run__resume="auto", run__keep=5,
        )  # fmt: skip
        two.append(file.rename(directory / f"halved-{steps}.yaml"))
    finish(launch(2, str(SCRIPT), *map(str, two)))
    three = [made(directory, tiny_model, kind, f"{kind}-3", run__processes=3) for kind in ("full", "lora")]
    finish(launch(3, str(SCRIPT), *map(str, three)))
    return directory / "runs"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "name", ["full-2", "full-3", "full-2-fsdp2", "lora-2", "lora-3", "lora-2-fsdp2", "reference-2-fsdp2"]
)
def test_ranks_equal_one_process(name: str, runs: Path) -> None:
    ours, theirs = tensors(runs / f"{name.split('-')[0]}-1"), tensors(runs / name)
    assert ours.keys() == theirs.keys()
    gaps = {k: float((ours[k].double() - theirs[k].double()).abs().max()) for k in ours}
    print(f"{name}: largest difference {max(gaps.values()):.1e}")
    assert max(gaps.values()) <= TOLERANCE
    # and the runs moved, by more than the tolerance
    start = tensors(runs / name)
    moved = max(float((v - start[f"ema/{k[10:]}"]).abs().max()) for k, v in start.items() if k.startswith("trainable/"))
    assert moved > 40 * TOLERANCE
    for row in metrics(runs / name):
        # The metric is for ranks that each hold the whole.
        assert row.get("dist/param_checksum_spread") == (None if name.endswith("fsdp2") else 0)
    pairs = zip(metrics(runs / f"{name.split('-')[0]}-1"), metrics(runs / name), strict=True)
    for one, many in pairs:
        assert one["optim/grad_norm"] == pytest.approx(many["optim/grad_norm"], rel=1e-3)
        assert one["guard/ema_distance"] == pytest.approx(many["guard/ema_distance"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.processes
def test_shards_are_dtensors_and_no_rank_holds_the_whole(runs: Path) -> None:
    for kind in KINDS:
        for fact in facts(runs / f"{kind}-2-fsdp2", 2):
            layout = fact["layout"]
            assert fact["module"].startswith("FSDP") and layout["dtensors"] == layout["tensors"] > 0
            whole = 4 * layout["parameters"]
            # halves by rows: a parameter with an odd number of rows gives one rank one row more
            assert 0.45 * whole < layout["local_bytes"] < 0.55 * whole
            assert not fact["encoder_sharded"]
            assert fact["moment_bytes"] <= fact["trained_bytes"] < 0.7 * 4 * layout["parameters"]
            # reference and old are copies of the trained weights too; LoRA's reference is the disabled adapter
            count = {"full": 1, "lora": 2, "reference": 3}[kind]
            assert fact["copy_bytes"] == count * fact["trained_bytes"]
        both = [fact["trained_bytes"] for fact in facts(runs / f"{kind}-2-fsdp2", 2)]
        trained = sum(v.numel() for k, v in tensors(runs / f"{kind}-1").items() if k.startswith("trainable/"))
        assert sum(both) == 4 * trained
    for fact in facts(runs / "full-2", 2):
        assert fact["layout"]["dtensors"] == 0 and fact["module"] == "DistributedDataParallel"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["lora", "reference"])
def test_tf42_reference_is_constant_over_updates_in_shards(kind: str, runs: Path) -> None:
    both = facts(runs / f"{kind}-2-fsdp2", 2)
    for fact in both:
        assert len(fact["reference"]) == 6 and len(set(fact["reference"])) == 1
        assert fact["sampled"] != fact["reference"][0]
    assert both[0]["reference"] == both[1]["reference"] and both[0]["sampled"] == both[1]["sampled"]


@pytest.mark.slow
@pytest.mark.processes
def test_a_rank_without_signal_neither_hangs_nor_drifts(runs: Path) -> None:
    run = runs / "full-2-fsdp2"
    uneven = 0
    for step in range(5):
        groups = [g for g in RecordReader(run / "record.jsonl").groups() if g.step == step]
        live = [abs(np.diff(aggregate.build("weighted")(g.table))[0]) > 0.012 for g in groups]
        # rank 0 has both samples of group 0 and one of group 1; rank 1 the rest
        uneven += 2 * live[0] + live[1] != live[1] + 2 * live[2]
    assert uneven > 0  # forwards differed between the ranks, and test_ranks_equal_one_process holds all the same


@pytest.mark.slow
@pytest.mark.processes
def test_resume_of_shards_is_bitwise(runs: Path) -> None:
    straight, halved = runs / "lora-2-fsdp2", runs / "halved"
    saved = CheckpointStore(halved / "checkpoints").all()
    assert [item.step for item in saved] == [2, 5]
    ours = CheckpointStore(straight / "checkpoints").all()[-1].load()
    theirs = saved[-1].load()
    for part in ("policy", "updater"):
        assert equal(ours[part], theirs[part])
    assert any(k.startswith("ema/") for k in ours["policy"])


@pytest.mark.slow
@pytest.mark.processes
def test_checkpoint_of_shards_continues_on_one_process(runs: Path, tiny_model: Path) -> None:
    shutil.copytree(runs / "halved", runs / "alone")  # metrics and record go on with the checkpoint
    sharded = CheckpointStore(runs / "alone" / "checkpoints").all()[0]
    assert sharded.step == 2
    train(load(made(runs.parent, tiny_model, "lora", "alone", run__resume=str(sharded.path))))
    ours, theirs = tensors(runs / "lora-1"), tensors(runs / "alone")
    assert max(float((ours[k].double() - theirs[k].double()).abs().max()) for k in ours) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.processes
def test_the_model_exported_from_shards_is_plain_diffusers(runs: Path) -> None:
    from diffusers import StableDiffusion3Pipeline

    for kind in ("reference", "lora"):
        run = runs / f"{kind}-2-fsdp2"
        assert all(fact["export_changed_nothing"] for fact in facts(run, 2))
        ema = {k[4:]: v for k, v in tensors(run).items() if k.startswith("ema/")}
        if kind == "lora":
            from safetensors.torch import load_file

            written = load_file(run / "model" / "pytorch_lora_weights.safetensors")
            assert len(written) == len(ema)
            for key, value in ema.items():
                name = "transformer." + key.replace(".default.", ".")
                assert torch.equal(written[name], value)
            continue
        index = json.loads((run / "model" / "model_index.json").read_text())
        assert index["transformer"] == ["diffusers", "SD3Transformer2DModel"]
        pipe = StableDiffusion3Pipeline.from_pretrained(run / "model", text_encoder_3=None, tokenizer_3=None)
        weights = dict(pipe.transformer.named_parameters())
        assert weights.keys() == ema.keys() and all(torch.equal(weights[k], ema[k]) for k in ema)


def _descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if _state_of(pid) not in ("", "Z")}


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def _rank_of(pid: int) -> str:
    try:
        found = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line)
    except OSError:
        return ""
    return found.get("RANK", "")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("how", ["sigint", "sigkill"])
def test_a_run_that_is_stopped_or_loses_a_rank_ends(how: str, tmp_path: Path, tiny_model: Path) -> None:
    # what the launch configuration asks for is what happens: model.shard is left null
    file = made(tmp_path, tiny_model, "full", "long", run__steps=10_000, run__processes=2, run__save_every=3)
    run = tmp_path / "runs" / "long"
    child = launch(2, "-m", "tests.trainers.toys", str(file), config=FSDP2)
    began = time.monotonic()
    while not (run / "metrics.jsonl").is_file() or len(metrics(run)) < 4:
        if child.poll() is not None or time.monotonic() - began > LIMIT:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise AssertionError(child.communicate()[0][-4000:])
        time.sleep(0.05)
    started = _descendants(child.pid)
    ranks = {_rank_of(pid): pid for pid in sorted(started, reverse=True) if _rank_of(pid)}
    assert set(ranks) == {"0", "1"}
    began = time.monotonic()
    if how == "sigint":
        os.kill(child.pid, signal.SIGINT)  # to the launcher alone
    else:
        os.kill(ranks["1"], signal.SIGKILL)
        while _alive({ranks["0"]}) and time.monotonic() - began < KILLED_WITHIN:
            time.sleep(0.1)
        print(f"rank 0 ended after {time.monotonic() - began:.1f} s")
        assert not _alive({ranks["0"]})
    try:
        output, _ = child.communicate(timeout=KILLED_WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise AssertionError(f"hangs:\n{child.communicate()[0][-4000:]}") from None
    print(f"{how}: ended after {time.monotonic() - began:.1f} s\n{output[-2500:]}")
    assert child.returncode != 0 and not _alive(started)
    store = CheckpointStore(run / "checkpoints")
    assert store.all() and all(item.load() for item in store.all())


def test_what_the_launcher_asks_for() -> None:
    assert sharding.asked({}) == sharding.Asked()
    fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    assert sharding.asked(fsdp).shard == "fsdp2"
    assert sharding.asked({**fsdp, "FSDP_TRANSFORMER_CLS_TO_WRAP": "A, B"}).blocks == ("A", "B")
    for change, message in [
        ({"FSDP_VERSION": "1"}, "fsdp_version: 2"),
        ({"FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, r"model\.gradient_checkpointing=true"),
        ({"FSDP_RESHARD_AFTER_FORWARD": "false"}, "gather them anew"),
        ({"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}, "taken by class"),
    ]:
        with pytest.raises(InputError, match=message):
            sharding.asked({**fsdp, **change})


def test_the_configuration_and_the_launcher_agree_or_it_is_an_error() -> None:
    assert sharding.choose(None, sharding.Asked()) == "none"
    assert sharding.choose(None, sharding.Asked("fsdp2")) == sharding.choose("fsdp2", sharding.Asked()) == "fsdp2"
    with pytest.raises(InputError, match=r"model\.shard=none, but this launch asks for fsdp2"):
        sharding.choose("none", sharding.Asked("fsdp2"))


def test_blocks_come_from_the_model_or_the_launcher() -> None:
    class Block(nn.Linear):
        pass

    class Model(nn.Module):
        _no_split_modules = ("Block", "Absent")

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(2, 2), Block(2, 2)])
            self.head = nn.Linear(2, 2)

    assert sharding.block_names(Model()) == ("Block",)
    assert sharding.block_names(Model(), ("Linear",)) == ("Linear",)
    with pytest.raises(InputError, match="it has no Absent"):
        sharding.block_names(Model(), ("Absent",))
    with pytest.raises(InputError, match="names no repeated layers"):
        sharding.block_names(nn.Linear(2, 2))
