"""Two ranks, whole (DDP) and in shards (FSDP2), give the update of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipelines import load_policy
from pipelines.testing_tokens import tiny_emu3_directory, tiny_janus_directory
from tests.pipelines.token_ranks import update

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("build", [tiny_janus_directory, tiny_emu3_directory], ids=["janus", "emu3"])
def test_tf46_two_ranks_train_as_one_process(build, tmp_path):
    model = build(tmp_path / "model")
    one = load_policy(model, device="cpu", value_head=True, ema=True)
    tokens = update(one, [0, 1, 2, 3])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(ROOT / "tests/pipelines/token_ranks.py"), str(model), str(tmp_path)],
        capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for mode in ("ddp", "fsdp"):
        parts = [load_file(tmp_path / f"{mode}-{rank}.safetensors") for rank in range(2)]
        assert torch.equal(torch.cat([part["tokens"] for part in parts]), tokens)
        # the average started as the weights that sampled
        assert torch.equal(torch.cat([part["untrained"] for part in parts]), tokens)
        state = load_file(tmp_path / f"{mode}.safetensors")
        for name, value in one.state_dict().items():
            torch.testing.assert_close(state[name], value, atol=1e-6, rtol=0, msg=f"{mode} {name}")
        again = load_policy(tmp_path / mode, device="cpu", value_head=True)
        for name, parameter in again.trainable_parameters():
            torch.testing.assert_close(parameter, state[f"trainable/{name}"], atol=0, rtol=0)
