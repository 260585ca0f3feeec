"""`torchrun tests/pipelines/token_ranks.py MODEL OUT`: one update of a token policy over two ranks, with DDP and in
shards; leaves the samples and the exported weights in OUT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

from mmrubric import Prompt
from pipelines import load_policy, shards
from pipelines.samplers import TokenSampler
from pipelines.seeds import row_seed
from pipelines.testing import PROMPTS
from trainers.distributed import end_ranks
from trainers.sharding import sharder

SAMPLER = TokenSampler(guidance=3.0)
RATE = 1e-4


def update(policy: Any, rows: list[int]) -> torch.Tensor:
    """Sample the rows, make one gradient step that raises their log-probs and values, return their tokens."""
    prompts = [Prompt(id=f"p{row}", text=PROMPTS[row]) for row in rows]
    rollout = policy.sample(prompts, [row_seed(0, 0, row, 0) for row in rows], SAMPLER)
    place = torch.arange(len(rows))
    out = policy.log_prob(rollout, place, place * 0, frozenset({"log_prob", "value"}))
    # ranks average their gradients, so each takes the mean over its own rows
    (-(out.log_prob + out.value).sum() / len(rows)).backward()
    parameters = [p for _, p in policy.trainable_parameters()]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    torch.optim.SGD(parameters, lr=RATE).step()
    return rollout.samples


def main(model: str, out: Path) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    for mode in ("ddp", "fsdp"):
        shard = sharder(torch.device("cpu")) if mode == "fsdp" else None
        policy = load_policy(model, device="cpu", value_head=True, ema=True, shard=shard)
        if mode == "ddp":
            policy.wrap(DistributedDataParallel)
        tokens = update(policy, [2 * rank, 2 * rank + 1])
        with policy.weights("ema"):
            untrained = update_free(policy, rank)
        save_file({"tokens": tokens, "untrained": untrained}, out / f"{mode}-{rank}.safetensors")
        state = shards.gathered(policy.state_dict())
        if mode == "fsdp" or rank == 0:
            policy.save_pretrained(out / mode)
        if rank == 0:
            save_file({k: v.clone() for k, v in state.items()}, out / f"{mode}.safetensors")
    end_ranks()


def update_free(policy: Any, rank: int) -> torch.Tensor:
    """Tokens of the rows of a rank."""
    prompts = [Prompt(id=f"p{row}", text=PROMPTS[row]) for row in (2 * rank, 2 * rank + 1)]
    return policy.sample(prompts, [row_seed(0, 0, row, 0) for row in (2 * rank, 2 * rank + 1)], SAMPLER).samples


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
