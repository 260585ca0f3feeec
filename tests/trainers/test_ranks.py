"""Several processes: the same samples and weights as one, no hangs, no orphans, and kills that lose
nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrubric import aggregate
from mmrubric.config import save_config
from mmrubric.record_reader import RecordReader
from tests.trainers.toys import SDE, settings, train
from trainers.checkpoint import CheckpointStore
from trainers.config import TrainConfig

pytestmark = [pytest.mark.slow, pytest.mark.processes]
TOYS = Path(__file__).with_name("toys.py")
ROOT = Path(__file__).parents[2]
LIMIT = 600
"""Seconds after which a run counts as hanging; importing alone takes a minute or two on a busy core."""
ENVIRONMENT = {
    **os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH":
    str(ROOT),
}  # fmt: skip


def _start(processes: int, *arguments: str) -> subprocess.Popen[str]:
    """`accelerate launch` of the toy runs, in a process group of its own."""
    many = ["--multi_gpu"] if processes > 1 else []
    launch = [sys.executable, "-m", "accelerate.commands.launch", *many, "--num_processes", str(processes)]
    quiet = [
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        "0",
    ]
    return subprocess.Popen(
        [*launch, *quiet, str(TOYS), *arguments], env=ENVIRONMENT, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def _finish(child: subprocess.Popen[str]) -> None:
    try:
        output, _ = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        raise AssertionError(f"hangs:\n{output[-4000:]}") from None
    assert child.returncode == 0, output[-4000:]


def _config(directory: Path, model: Path, name: str, **changes: Any) -> TrainConfig:
    config = settings(directory, model, run__name=name, run__threads=1, **changes)
    save_config(config, directory / f"{name}.yaml")
    return config


def _weights(run: Path) -> dict[str, torch.Tensor]:
    latest = CheckpointStore(run / "checkpoints").latest()
    assert latest is not None
    return latest.load()["policy"]


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


KINDS: dict[str, dict[str, Any]] = {
    # soft scores and a wide margin: some of the 3 pairs of a step tie, so one rank may have nothing to train
    # on
    "clip": {
        "loss": {"name": "clip", "options": {"clip": 0.01}}, "rollout__sampler": SDE, "optim__batch_size": 1,
        "advantage__options": {"binarize": False, "margin": 0.012},
    },
    "nft": {"loss": {"name": "nft", "levels": 3, "kl_coefficient": 0.01}, "advantage__name": "grpo"},
    "part": {
        "loss": {"name": "clip", "options": {"clip": 0.01}, "timestep_fraction": 0.7}, "rollout__sampler": SDE,
        "optim__batch_size": 1, "advantage__name": "grpo",
    },
    # a judge that compares: whole groups on each rank, here two and one
    "pairs": {"loss": {"name": "clip", "options": {"clip": 0.01}}, "rollout__sampler": SDE, "judge__compare": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """Directories of the same runs with 1 process (this one) and 2, by (kind, processes)."""
    directory = tmp_path_factory.mktemp("ranks")
    made = {}
    for kind, changes in KINDS.items():
        for processes in (1, 2):
            # 3 prompts x 2 samples over 2 ranks: a group lies on both
            config = _config(
                directory, tiny_model, f"{kind}-{processes}", run__processes=processes, run__steps=5,
                data__prompts_per_step=3, optim__lr=3e-4, **changes,
                tracking={"images_every": 1, "images": 3, "progress": False},
            )  # fmt: skip
            made[kind, processes] = config.run.directory
            if processes == 1:
                train(config)
    _finish(_start(2, *(str(directory / f"{kind}-2.yaml") for kind in KINDS)))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_tf45_one_and_two_processes_draw_and_judge_the_same(kind: str, runs: dict[tuple[str, int], Path]) -> None:
    one, two = runs[kind, 1], runs[kind, 2]
    rows = [
        {(r.step, r.prompt_row, r.sample_id): r for r in RecordReader(run / "record.jsonl").rows()}
        for run in (one, two)
    ]
    assert rows[0].keys() == rows[1].keys() and len(rows[0]) == 5 * 6
    for key, row in rows[0].items():
        assert row.compared == rows[1][key].compared
        for a, b in zip(row.verdicts, rows[1][key].verdicts, strict=True):
            # P = 1/2 + 2 (red - blue) of a strip: one grey level more or less is 2/255
            assert a.criterion_id == b.criterion_id and a.met == pytest.approx(b.met, abs=2 / 255)
            assert a.met is not None and b.met is not None and (a.met >= 0.5) == (b.met >= 0.5)
    for step in range(5):  # rank 0 shows the first three rows
        grids = [_pixels(run / "images" / f"rollout-{step:06d}.png") for run in (one, two)]
        assert np.abs(grids[0].astype(int) - grids[1].astype(int)).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_tf46_parameters_are_equal_on_both_ranks(kind: str, runs: dict[tuple[str, int], Path]) -> None:
    one, two = runs[kind, 1], runs[kind, 2]
    ours, theirs = _weights(one), _weights(two)
    assert max(float((ours[k].double() - theirs[k].double()).abs().max()) for k in ours) <= 1e-5
    for a, b in zip(_metrics(one), _metrics(two), strict=True):
        assert a["reward/mean"] == pytest.approx(b["reward/mean"], abs=1e-3)
        assert a["loss/updates_per_rollout"] == b["loss/updates_per_rollout"]
        assert b["dist/param_checksum_spread"] == 0


def _pixels(path: Path) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(path))


def test_tf55_rank_without_signal_does_not_hang(runs: dict[tuple[str, int], Path]) -> None:
    run = runs["clip", 2]
    uneven = 0
    for step in range(5):
        groups = [g for g in RecordReader(run / "record.jsonl").groups() if g.step == step]
        gaps = [abs(np.diff(aggregate.build("weighted")(g.table))[0]) for g in groups]
        live = [gap > 0.012 for gap in gaps]
        # rank 0 has both samples of group 0 and one of group 1; rank 1 the rest
        mine = [2 * live[0] + live[1], live[1] + 2 * live[2]]
        uneven += mine[0] != mine[1]
    assert uneven > 0  # forwards differed between the ranks, and the run ended all the same (see the test above)


def test_fewer_ranks_than_asked_for_is_an_error(tmp_path: Path, tiny_model: Path) -> None:
    config = _config(tmp_path, tiny_model, "many", run__processes=2)
    done = subprocess.run(
        [sys.executable, "-m", "trainers.train", "--config", str(tmp_path / "many.yaml")],
        env=ENVIRONMENT, cwd=ROOT, text=True, capture_output=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-2000:]
    assert "processes=2" in done.stderr and "--num_processes 2" in done.stderr
    assert not config.run.directory.exists()


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


def _wait_for_step(run: Path, child: subprocess.Popen[str], step: int) -> None:
    began = time.monotonic()
    while not (run / "metrics.jsonl").is_file() or len(_metrics(run)) < step:
        if child.poll() is not None or time.monotonic() - began > LIMIT:
            os.killpg(child.pid, signal.SIGKILL)
            raise AssertionError(child.communicate()[0][-4000:])
        time.sleep(0.05)


def test_tf57_sigint_leaves_no_child(tmp_path: Path, tiny_model: Path) -> None:
    config = _config(tmp_path, tiny_model, "long", run__steps=10_000, run__processes=2, run__save_every=3)
    child = _start(2, str(tmp_path / "long.yaml"))
    _wait_for_step(config.run.directory, child, 4)
    started = _descendants(child.pid)
    assert len(started) >= 2
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to the whole group
    child.communicate(timeout=LIMIT)
    deadline = time.monotonic() + 60
    while (left := started & _descendants(1)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
    store = CheckpointStore(config.run.directory / "checkpoints")
    assert store.all() and all(item.load() for item in store.all())


def test_killed_in_a_step_loses_only_the_steps_since_the_checkpoint(tmp_path: Path, tiny_model: Path) -> None:
    config = _config(tmp_path, tiny_model, "killed", run__steps=14, run__save_every=4)
    child = _start(1, str(tmp_path / "killed.yaml"))
    _wait_for_step(config.run.directory, child, 6)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    latest = CheckpointStore(config.run.directory / "checkpoints").latest()
    made = len(_metrics(config.run.directory))
    assert latest is not None and latest.step >= max(4, made - 1 - (made - 1) % 4)
    train(settings(tmp_path, tiny_model, run={**config.run.model_dump(), "resume": "auto"}))
    assert [row["step"] for row in _metrics(config.run.directory)] == list(range(14))
    straight = _config(tmp_path, tiny_model, "straight", run__steps=14, run__save_every=4)
    train(straight)
    ours, theirs = _weights(config.run.directory), _weights(straight.run.directory)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
