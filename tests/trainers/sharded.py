"""`accelerate launch tests/trainers/sharded.py one.yaml two.yaml ...`: toy runs that leave, per rank, facts about what
lies where: `<run>/facts-<rank>.json`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from mmrubric.config import load_config
from mmrubric.prompt import Prompt
from pipelines import Sampler, load_policy, shards
from pipelines.diffusion import FlowPolicy
from pipelines.seeds import row_seed
from pipelines.shards import local
from tests.pipelines.cases import HEIGHT, WIDTH
from tests.trainers.toys import PROMPTS, RedJudge
from trainers import parts, zero2, zero3
from trainers.checkpoint import pack
from trainers.config import TrainConfig
from trainers.loop import Trainer
from trainers.sharding import Layout, Shard, sharder
from trainers.train import session
from trainers.zero3 import Zero3


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()[:16]


def _probe(trainer: Trainer, weights: str) -> str:
    """Digest of samples under other weights. All ranks draw the same; one row, whatever the rank."""
    with trainer.policy.weights(weights):
        prompt = trainer.prompts.prompts.prompts[0]
        return _digest(trainer.policy.sample([prompt], [row_seed(9, 0, 0, 0)]).samples)


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(part.numel() * part.element_size() for part in map(local, tensors))


def _state(trainer: Trainer) -> tuple[dict[str, torch.Tensor], Any]:
    return pack({k: v for k, v in trainer.snapshot().items() if k != "metrics_position"})


def _same(a: tuple[dict[str, torch.Tensor], Any], b: tuple[dict[str, torch.Tensor], Any]) -> bool:
    return a[1] == b[1] and all(torch.equal(a[0][k], b[0][k]) for k in a[0])


def run(config: TrainConfig) -> None:
    """One run to its end, with an export that must change nothing."""
    with Trainer(config, parts.build(config, judge=RedJudge())) as trainer:
        policy = trainer.policy
        assert isinstance(policy, FlowPolicy)
        copies = [v for k, v in policy.state_dict().items() if not k.startswith("trainable/") and k != "version"]
        facts: dict[str, Any] = {
            "module": type(policy.module).__name__,
            "layout": vars(Layout.of(policy.module)),
            "trained_bytes": _bytes(trainer.updater.parameters),
            "copy_bytes": _bytes(copies),
            "copies": len(copies),
            "encoder_sharded": any(shards.is_sharded(m) for m in [policy.adapter.pipe.vae, *policy.adapter.frozen]),
            "reference": [],
            "trained": [],
        }
        while trainer.done < config.run.steps:
            if trainer.kl.active:
                facts["reference"].append(_probe(trainer, "reference"))
            trainer.step()
        if trainer.kl.active:
            facts["reference"].append(_probe(trainer, "reference"))
        moments = [s["exp_avg"] for s in trainer.updater.optimizer.state.values()]
        facts["moment_bytes"] = _bytes(moments)
        before = _state(trainer)
        trainer.save()
        trainer.export()
        facts["export_changed_nothing"] = _same(_state(trainer), before)
        facts["sampled"] = _digest(policy.sample([trainer.prompts.prompts.prompts[0]], [row_seed(9, 0, 0, 0)]).samples)
        (trainer.directory / f"facts-{trainer.dist.rank}.json").write_text(json.dumps(facts))


def compare(directory: Path, how: Shard) -> None:
    """A model in shards against the same model on one rank, written to `<directory>/gap-<how>-<rank>.json`: how far
    apart are samples, gradients, weights after a step, and samples from equal weights then. Where it reads
    source pictures, ranks have other numbers of shapes, so other numbers of calls."""
    ranks = Accelerator()
    rank, world = ranks.process_index, ranks.num_processes
    # of one of them, float32 adapters on frozen weights in bf16: layers of two types
    kept: dict[str, Any] = {"tune": "lora", "precision": "bf16"} if directory.name == "sd15" else {}
    shard = sharder if how == "fsdp2" else zero3.sharder
    alone = load_policy(directory, device="cpu", **kept)
    spread = load_policy(directory, device="cpu", shard=shard(torch.device("cpu")), **kept)
    assert isinstance(alone, FlowPolicy) and isinstance(spread, FlowPolicy)
    pairs = [(p, q) for (_, p), (_, q) in zip(alone.trainable_parameters(), spread.trainable_parameters(), strict=True)]
    theirs, ours = (torch.optim.SGD(parameters, lr=0.0) for parameters in zip(*pairs, strict=True))
    engine = Zero3(spread.module, [q for _, q in pairs], ours, None) if how == "zero3" else None
    if engine is not None:
        spread.wrap(lambda _: engine.module)
    most = min(alone.adapter.max_sources, 2)
    rows = {}
    for each in range(world):
        noise = np.random.default_rng(each)
        shapes = [(16, 16), (16, 16)] if each == 0 else [(16, 16), (12, 40)]
        pictures = [noise.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
        rows[each] = [
            Prompt(id=f"{each}{n}", text=PROMPTS[n], sources=(picture,) * most) for n, picture in enumerate(pictures)
        ]
    sampler = Sampler(steps=2, noise="sde" if "dt" in alone.provides else "ddim", height=HEIGHT, width=WIDTH)
    seeds = [row_seed(0, 0, n, rank) for n in range(2)]
    mine, index = rows[rank], torch.arange(2)
    record = frozenset({"states", "log_prob"})
    drawn = {policy: policy.sample(mine, seeds, sampler, record) for policy in (spread, alone)}
    for policy in (spread, alone):
        out = policy.log_prob(drawn[alone], index, index * 0)
        assert out.log_prob is not None
        loss = out.log_prob.sum() / (world if policy is alone else 1)
        if engine is not None and policy is spread:
            engine.backward(loss, last=True)
        else:
            loss.backward()
    gradients, sizes = [], []
    for p, q in pairs:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        torch.distributed.all_reduce(p.grad)
        sizes.append(float(p.grad.abs().max()))
        if engine is not None:
            found = zero2.load(torch.device("cpu")).utils.safe_get_full_grad(q)
        else:
            found = torch.zeros_like(p) if q.grad is None else shards.full(q.grad)
        gradients.append(float((p.grad - found).abs().max()) / (1e-6 + sizes[-1]))
    for optimizer in (theirs, ours):
        optimizer.param_groups[0]["lr"] = 0.01 / max(sizes)
    theirs.step()
    (ours if engine is None else engine).step()
    weights = max(float((p - shards.full(q)).detach().abs().max()) for p, q in pairs)
    for p, q in pairs:
        shards.assign(q, p.detach())
    again = [p.sample(mine, seeds, sampler, record).samples for p in (spread, alone)]
    facts = {
        "samples": float((drawn[spread].samples - drawn[alone].samples).abs().max()),
        "gradients": max(gradients),
        "share_with_gradient": sum(size > 1e-5 * max(sizes) for size in sizes) / len(sizes),
        "weights": weights,
        "samples_after": float((again[0] - again[1]).abs().max()),
        "moved": float((again[1] - drawn[alone].samples).abs().max()),
    }
    (directory / f"gap-{how}-{rank}.json").write_text(json.dumps(facts))


def main(paths: list[str]) -> int:
    """Run the configurations one after the other; of model directories, as `<how>:<directory>`, compare shards with the
    whole."""
    with session():
        for path in paths:
            how, _, directory = path.partition(":")
            if how in ("fsdp2", "zero3"):
                compare(Path(directory), how)
            else:
                run(load_config(TrainConfig, path, []))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.exit(main(sys.argv[1:]))
