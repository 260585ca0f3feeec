"""`accelerate launch tests/trainers/deepspeed_steps.py STAGE`: steps of a small network under ZeRO against torch's own
clipping and AdamW on the mean gradient of all ranks. Prints "as torch" on rank 0."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

CLIP = 0.05


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 3))  # 146 numbers: no even halves of a tensor


def _as_on_a_gpu() -> None:
    """DeepSpeed ends the autocast around a forward. It asks for that of CUDA, so on a CPU it would not."""
    found: Any = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda kind="cpu": found(kind)


def main(stage: str) -> int:
    """Three steps of two micro-batches; then a gradient that is not a number on one rank, which must change nothing."""
    from pipelines import shards
    from trainers.sharding import hidden
    from trainers.train import session
    from trainers.zero2 import MOMENTS, Zero2
    from trainers.zero3 import Zero3, sharder

    def moments() -> dict[int, dict[str, Tensor]]:
        found = zero.state_dict()["state"]
        assert all(float(kept["step"]) == 3 for kept in found.values())
        return {number: {name: shards.full(kept[name]) for name in MOMENTS} for number, kept in found.items()}

    _as_on_a_gpu()
    with hidden(), session():
        ranks, linear = Accelerator(), nn.functional.linear
        network, plain = _network(), _network()
        if stage == "3":
            sharder(torch.device("cpu"))(network)
        ours, theirs = list(network.parameters()), list(plain.parameters())
        optimizer, expected = (torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1) for p in (ours, theirs))
        call: Any = network
        if stage == "3":
            zero = Zero3(network, ours, optimizer, CLIP)
            call = zero.module
        else:
            zero = Zero2(ours, optimizer, CLIP)
        assert nn.functional.linear is linear  # for all other networks of the process
        network.eval()
        with torch.autocast("cpu", torch.bfloat16):
            assert call(torch.ones(1, 7)).dtype == plain(torch.ones(1, 7)).dtype == torch.bfloat16
        assert call(torch.ones(1, 7)).dtype == torch.float32 and not network.training
        batches = torch.randn(3, 2, ranks.num_processes, 5, 7)
        for step in batches:
            for number, batch in enumerate(step):
                zero.backward(call(batch[ranks.process_index]).square().mean(), last=number == 1)
                for part in batch:
                    (plain(part).square().mean() / len(batch)).backward()
            norm = float(nn.utils.clip_grad_norm_(theirs, CLIP))
            assert norm > 2 * CLIP and math.isclose(zero.step(), norm, rel_tol=1e-5)
            expected.step()
            expected.zero_grad()
            assert all(torch.allclose(shards.full(a), b, rtol=0, atol=1e-6) for a, b in zip(ours, theirs, strict=True))
        before, weights = moments(), [shards.full(p).clone() for p in ours]
        for number, parameter in enumerate(theirs):
            for name in MOMENTS:
                assert torch.allclose(before[number][name], expected.state[parameter][name], rtol=1e-4, atol=1e-9)
        # tensors of 13, 39 and 3 numbers are no even halves; what is taken up replaces what was there
        whole = {n: {"step": torch.tensor(3.0), **kept} for n, kept in before.items()}
        groups = zero.state_dict()["param_groups"]
        moved = {n: {"step": torch.tensor(7.0), **{k: v + 1 for k, v in kept.items()}} for n, kept in before.items()}
        for state, step in ((moved, 7), ({}, None), (whole, 3)):
            zero.load_state_dict({"state": state, "param_groups": groups})
            found = zero.state_dict()["state"]
            assert {float(kept["step"]) for kept in found.values()} == ({step} if step else set())
            assert all(torch.equal(shards.full(found[n][name]), state[n][name]) for n in state for name in MOMENTS)
        zero.backward(call(batches[0, 0, 0]).sum() * (math.nan if ranks.process_index else 1.0), last=True)
        assert not math.isfinite(zero.step())
        after = moments()
        assert all(torch.equal(shards.full(p), w) for p, w in zip(ours, weights, strict=True))
        assert all(torch.equal(after[n][name], before[n][name]) for n in after for name in MOMENTS)
        ranks.print("as torch")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.exit(main(sys.argv[1]))
