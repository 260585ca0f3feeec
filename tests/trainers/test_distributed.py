"""Rows over ranks, canonical order, the number of processes; once with two real gloo ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError, RunError
from trainers.distributed import Dist, canonical, check_processes, launch_command, param_checksum, split_rows

ROOT = Path(__file__).parents[2]


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 5), st.sampled_from(["spread", "whole"]))
@settings(max_examples=50, deadline=None)
def test_every_row_is_drawn_once_and_ranks_are_equally_long(prompts, samples, world, placement):
    shards = split_rows(prompts, samples, world, placement)
    assert len(shards) == world and len({len(shard) for shard in shards}) == 1
    rows = [(int(s.prompt_rows[i]), int(s.samples[i])) for s in shards for i in s.real]
    assert rows == [(p, k) for p in range(prompts) for k in range(samples)]  # canonical order, each once
    if placement == "whole":
        owners = [{int(p) for p in s.prompt_rows[s.real]} for s in shards]
        assert sum(map(len, owners)) == prompts


def test_split_by_hand():
    # 3 prompts x 2 samples on 2 ranks. spread: 3 + 3. whole: 2 groups + 1 group and two rows of padding.
    a, b = split_rows(3, 2, 2)
    assert a.prompt_rows.tolist() == [0, 0, 1] and b.prompt_rows.tolist() == [1, 2, 2]
    assert a.samples.tolist() == [0, 1, 0] and b.samples.tolist() == [1, 0, 1] and b.weight.tolist() == [1, 1, 1]
    a, b = split_rows(3, 2, 2, "whole")
    assert a.prompt_rows.tolist() == [0, 0, 1, 1] and b.prompt_rows.tolist() == [2, 2, 2, 2]
    assert b.samples.tolist() == [0, 1, 1, 1] and b.weight.tolist() == [1, 1, 0, 0]
    with pytest.raises(InputError, match="known: spread, whole"):
        split_rows(3, 2, 2, "random")  # type: ignore[arg-type]


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 7), st.integers(2, 5))
@settings(max_examples=50, deadline=None)
def test_every_rank_has_its_part_of_every_optimizer_step(prompts: int, samples: int, world: int, updates: int):
    shards = split_rows(prompts, samples, world, updates=updates)
    seen = [(int(shard.prompt_rows[i]), int(shard.samples[i])) for shard in shards for i in shard.real]
    assert sorted(seen) == [(row, sample) for row in range(prompts) for sample in range(samples)]
    for chunk in range(updates):
        held = [int((shard.prompt_rows[shard.real] % updates == chunk).sum()) for shard in shards]
        assert max(held) - min(held) <= 1


def test_canonical_order_and_rows_that_come_twice():
    items = [(1, "b", "x"), (0, "c", "y"), (1, "a", "z")]
    assert canonical(items, lambda i: i[:2]) == [(0, "c", "y"), (1, "a", "z"), (1, "b", "x")]
    with pytest.raises(RunError, match="two places"):
        canonical([*items, (0, "c", "w")], lambda i: i[:2])


def test_checksum_sees_changes_and_exchanged_tensors():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([4.0])
    base = param_checksum([a, b])
    assert base == 1 * 3 + 5 + 2 * 4 + 16
    assert param_checksum([a + torch.tensor([0.0, 1e-6]), b]) != base and param_checksum([b, a]) != base


def test_one_process_needs_no_group():
    dist = Dist()
    assert (dist.world, dist.rank, dist.main) == (1, 0, True)
    assert dist.gather([1, 2]) == [1, 2] and dist.sum(2.5) == 2.5 and dist.max(3) == 3
    assert dist.checksum_spread([torch.ones(3)]) == 0
    with dist.no_sync(torch.nn.Linear(1, 1)):
        dist.barrier()


def test_fewer_processes_than_asked_for_is_an_error_with_the_right_command():
    check_processes(2, started=2)
    with pytest.raises(InputError, match="processes=2 in the config, but 1 started") as error:
        check_processes(2, started=1, accelerator=False, arguments=["--config", "my file.yaml", "run.steps=3"])
    assert (
        "ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 -m trainers.train "
        "--config 'my file.yaml' run.steps=3" in str(error.value)
    )
    with pytest.raises(InputError, match="processes=1 in the config, but 4 started"):
        check_processes(1, started=4, accelerator=True, arguments=[])
    assert launch_command(4, True, []) == "accelerate launch --multi_gpu --num_processes 4 -m trainers.train"


RANK_SCRIPT = """
import json, sys
import torch
from trainers.distributed import Dist, check_processes, end_ranks, prepare_environment, split_rows
prepare_environment()
check_processes(2)
from accelerate import Accelerator
accelerator = Accelerator()
from trainers.metrics import Means
from trainers.prompts import PromptSampler, PromptSet
from mmrubric.prompt import Prompt
dist = Dist()
assert accelerator.device.type == "cpu" and dist.world == 2
shard = split_rows(3, 3, 2)[dist.rank]
chosen = PromptSampler(PromptSet.of([Prompt(id=str(i), text=str(i)) for i in range(7)]), 3, seed=1).at(4)
mine = [(int(shard.prompt_rows[i]), f"s{shard.samples[i]}", chosen[shard.prompt_rows[i]]) for i in shard.real]
means = Means()
means.add("reward", [1.0, 1.0, 1.0] if dist.rank == 0 else [0.0])
means.add_max("largest", dist.rank)
model = accelerator.prepare(torch.nn.Linear(2, 1))
with dist.no_sync(model):
    model(torch.full((1, 2), 1.0 + dist.rank)).sum().backward()
apart = model.module.weight.grad.tolist()
model(torch.full((1, 2), 1.0 + dist.rank)).sum().backward()
result = {
    "rank": dist.rank, "rows": dist.gather_rows(mine, key=lambda r: r[:2]), "metrics": means.reduce(dist),
    "same": dist.checksum_spread([torch.ones(3)]),
    "apart": dist.checksum_spread([torch.ones(3) * (1 + dist.rank)]),
    "sum": dist.sum(dist.rank + 1), "max": dist.max(dist.rank),
    "no_sync": apart, "synced": model.module.weight.grad.tolist(),
}
dist.barrier()
with open(f"{sys.argv[1]}/{dist.rank}.json", "w") as file:
    json.dump(result, file)
end_ranks()
"""


@pytest.mark.slow
@pytest.mark.processes
def test_two_gloo_ranks_see_the_same(tmp_path):
    (tmp_path / "rank.py").write_text(RANK_SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(tmp_path / "rank.py"), str(tmp_path)],
        check=True, env=environment, timeout=300,
    )  # fmt: skip
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (zero.pop("rank"), one.pop("rank")) == (0, 1)
    own, other = zero.pop("no_sync"), one.pop("no_sync")
    assert zero == one
    assert [row[:2] for row in zero["rows"]] == [[p, f"s{k}"] for p in range(3) for k in range(3)]
    assert len({row[2] for row in zero["rows"]}) == 3
    assert zero["metrics"] == {"largest": 1.0, "reward": 0.75}  # by counts, not the mean of rank means
    # sums: 3 + 3 on rank 0; 6 + 12 on rank 1
    assert zero["same"] == 0 and zero["apart"] == 12
    assert zero["sum"] == 3 and zero["max"] == 1
    # Without sync each rank keeps its own gradient, 1 and 2; with it both hold the mean of the sums 2 and 4.
    np.testing.assert_allclose([own, other], [[[1, 1]], [[2, 2]]])
    np.testing.assert_allclose(zero["synced"], [[3, 3]])
