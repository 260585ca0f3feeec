"""Images per second of sample + judge + update, against the plain way; the same weights must come out.

    python tests/benchmarks/train_step.py                    # the shipped generator and its judge
    python tests/benchmarks/train_step.py --model tiny       # a tiny random pipeline and a judge of closed
    form

The plain way encodes the prompts in every model call, judges after sampling, replays one timestep at a time
and
forwards rows whose gradient is 0. Ours keeps the text embeddings, judges while the next batch samples, stacks
timesteps in one forward and leaves out what has no gradient.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from mmrubric.judging import Judge
from tests.trainers.toys import RedJudge, settings
from trainers import parts
from trainers.config import TrainConfig
from trainers.loop import Trainer

GROUPS, SIZE, STEPS = 8, 4, 8
"""Prompts per step, samples per prompt, denoising steps."""


def make_config(model: str, directory: Path, plain: bool, steps: int, pixels: bool) -> TrainConfig:
    """RPO with the clipped loss. Tied pairs have no gradient, so their rows are what skipping saves."""
    rows, trained = GROUPS * SIZE, STEPS - 1
    world: dict[str, Any] = {"data__prompts": "shapes:train"} if pixels else {}
    return settings(
        directory, Path(model),
        run={"name": "plain" if plain else "ours", "output_dir": str(directory / "runs"), "steps": steps},
        data__prompts_per_step=GROUPS if world else 4,
        rollout={
            "group_size": SIZE if world else 2 * SIZE, "batch_size": rows // 4, "overlap": not plain,
            "sampler": {"steps": STEPS, "noise": "sde", "level": 0.7},
        },
        # Adam divides by the gradient's size: with a small eps, rounding of weights that hardly have a
        # gradient would be blown up to whole steps.
        optim={
            "lr": 1e-3, "eps": 1e-2, "weight_decay": 0.0, "batch_size": rows if plain else rows * trained,
        },
        loss={"name": "clip", "options": {"clip": 1e-3}, "skip_zero": not plain, "old_log_prob": "recorded"},
        **world,
    )  # fmt: skip


def forget_embeddings(policy: Any) -> None:
    """Encode every time, as a pipeline that is called with texts does."""
    cache = policy.conditioner.cache

    def encode(text: str, tokens: int) -> Any:
        with torch.no_grad():
            return cache._encode(text, tokens)

    cache.get = encode


def run(model: str, directory: Path, plain: bool, steps: int, judge: Judge | None) -> tuple[float, torch.Tensor, dict]:
    """Images per second after one warm-up step, the weights, and the last metrics."""
    config = make_config(model, directory, plain, steps + 1, judge is None)
    with Trainer(config, parts.build(config, judge=judge)) as trainer:
        if plain:
            forget_embeddings(trainer.policy)
        trainer.step()
        start = _flat(trainer)
        began = time.perf_counter()
        for _ in range(steps):
            metrics = trainer.step()
        seconds = time.perf_counter() - began
        images = steps * config.data.prompts_per_step * config.rollout.drawn
        metrics["moved"] = float((_flat(trainer) - start).abs().max())
        return images / seconds, _flat(trainer), metrics


def _flat(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double() for p in trainer.updater.parameters])


def main() -> int:
    """Print one JSON object; exit code 1 if the weights differ by more than 1e-6."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="shapes", help="shapes, tiny, or a directory of a shapes generator")
    parser.add_argument("--steps", type=int, default=3, help="timed steps")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        directory, judge, model = Path(folder), None, options.model
        if options.model == "tiny":
            from pipelines.testing import tiny_sd3_directory

            model, judge = str(tiny_sd3_directory(directory / "tiny")), RedJudge()
        plain, theirs, _ = run(model, directory, True, options.steps, judge)
        ours, mine, metrics = run(model, directory, False, options.steps, judge)
    difference = float((mine - theirs).abs().max())
    result = {
        "images_per_second": {"plain": round(plain, 3), "ours": round(ours, 3)},
        "ratio": round(ours / plain, 3),
        "largest_weight_difference": difference,
        "largest_weight_change": metrics["moved"],
        "tied_pairs": metrics["judge/tie_share"],
        "threads": options.threads,
    }
    print(json.dumps(result))
    return int(difference > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
