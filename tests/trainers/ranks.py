"""Runs over several ranks on a CPU: how they are started, and what they leave behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrubric.config import save_config
from tests.trainers.toys import SDE, settings
from trainers.checkpoint import CheckpointStore
from trainers.config import TrainConfig

ROOT = Path(__file__).parents[2]
FSDP2 = ROOT / "configs" / "accelerate" / "fsdp2.yaml"
SCRIPT = Path(__file__).with_name("sharded.py")
LIMIT = 600
"""Seconds after which a run counts as hanging; importing alone takes a minute or two on a busy core."""
TOLERANCE = 5e-6
"""Largest difference of a weight from one process after 5 steps at lr 3e-4. Measured: 1e-7 (full) and 5e-8 (LoRA) on 2
ranks, whole or in shards, 7e-7 on 3, 6e-7 with nft and full weights in shards."""
ENVIRONMENT = {
    **os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}  # fmt: skip
CLIP = {
    # soft scores and a wide margin: some of the 3 pairs of a step tie, so one rank may have nothing to train on
    "loss": {"name": "clip", "options": {"clip": 0.01}}, "rollout__sampler": SDE, "optim__batch_size": 1,
    "advantage__options": {"binarize": False, "margin": 0.012}, "ema__decay": 0.9,
}  # fmt: skip
NFT = {
    "loss": {"name": "nft", "levels": 3, "kl_coefficient": 0.01}, "advantage__name": "grpo", "ema__decay": 0.9,
}  # fmt: skip
LORA = {"tune": "lora", "lora": {"rank": 3, "alpha": 6}, "gradient_checkpointing": True}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full": (CLIP, {}),
    "lora": (NFT, LORA),
    "reference": (NFT, {}),
}
"""(settings, model section) of the runs; a rank of 3 leaves LoRA shards of different sizes."""

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="the package deepspeed is not installed: pip install 'mmrubric[deepspeed]'",
)


def launch(processes: int, *arguments: str, config: Path | None = None) -> subprocess.Popen[str]:
    """`accelerate launch` in a process group of its own."""
    how = ["--config_file", str(config)] if config else ["--multi_gpu", "--num_machines", "1"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *how, "--num_processes", str(processes)]
    rest = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    return subprocess.Popen(
        [*command, *rest, *arguments], env=ENVIRONMENT, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def finish(child: subprocess.Popen[str], limit: float = LIMIT) -> str:
    """Output of a launch that must succeed in time."""
    try:
        output, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise AssertionError(f"hangs:\n{child.communicate()[0][-4000:]}") from None
    assert child.returncode == 0, output[-6000:]
    return output


def made(directory: Path, tiny: Path, kind: str, name: str, model: dict[str, Any] | None = None, **more: Any) -> Path:
    """Write the configuration of a run; returns the file. 3 prompts x 2 samples: a group lies on two ranks."""
    changes, section = KINDS[kind]
    values = {
        "run__name": name, "run__steps": 5, "run__threads": 1, "data__prompts_per_step": 3, "optim__lr": 3e-4,
        **changes, "model": {**section, "path": str(tiny), **(model or {})}, **more,
    }  # fmt: skip
    config = settings(directory, tiny, **values)
    save_config(config, directory / f"{name}.yaml")
    return directory / f"{name}.yaml"


def load(file: Path) -> TrainConfig:
    """The configuration in a file."""
    from mmrubric.config import load_config

    return load_config(TrainConfig, file, [])


def tensors(run: Path, number: int = -1) -> dict[str, torch.Tensor]:
    """The policy's tensors in a checkpoint."""
    return CheckpointStore(run / "checkpoints").all()[number].load()["policy"]


def facts(run: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank wrote down."""
    return [json.loads((run / f"facts-{rank}.json").read_text()) for rank in range(ranks)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The logged steps."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def equal(a: Any, b: Any) -> bool:
    """Whether nested containers of tensors are the same, bitwise."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b
