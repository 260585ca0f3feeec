"""Seconds and memory per step of our loop against the plain published one, on the same pictures and advantages.

    taskset -c 0 python tests/benchmarks/against_flow_grpo.py --out tests/benchmarks/against_flow_grpo.md

`PlainLoop` is the loop of Flow-GRPO (arXiv 2505.05470, code yifan123/flow_grpo) in our own words: texts are encoded
for every sampled row and kept with it, classifier-free guidance doubles the batch in sampling and in training, all
steps but the last are trained, one timestep and one sampling batch at a time, with a backward pass each; judging
comes after sampling; rows of advantage 0 are left out. Two things are changed so that both loops make the same
pictures, advantages and weights: the last step draws no noise, and the normaliser counts the rows left out. Each
measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.judging import Judge, JudgeRequest
from mmrubric.rubric import Rubric
from trainers import parts
from trainers.config import TrainConfig
from trainers.loop import Trainer
from trainers.prompts import PromptSampler

GROUPS, SIZE, STEPS, GUIDANCE, LEVEL = 8, 8, 10, 4.5, 0.7
"""Prompts per step, pictures per prompt, denoising steps (Flow-GRPO), guidance, noise level."""
VARIANTS = {
    "plain, 8 rows per call": ("plain", 8),
    "ours, 8 rows per call": ("ours", 8),
    "plain, 64 rows per call": ("plain", 64),
    "ours, 64 rows per call": ("ours", 64),
    "ours, 64 rows, model.compile=true": ("compiled", 64),
    "ours, 64 rows, window of 3 steps": ("window", 64),
}
"""(loop, rows per model call, before guidance doubles them); the published recipe has 9 rows. The window
(Flow-GRPO-Fast, published in the same code) trains 3 of the 9 steps: another estimator, so its weights are others."""
CHANGES: dict[str, dict[str, Any]] = {
    "ours": {},
    "compiled": {"model__compile": True},
    "window": {"rollout__sampler__window": {"size": 3, "strategy": "random"}},
}


def make_config(directory: Path, model: str = "shapes", batch: int = 8, **changes: Any) -> TrainConfig:
    """The published recipe (SD3.5-M) on a small model: batch standard deviation, eps 1e-4, clip 1e-4, no KL.

    `batch` rows go through the model at once; changes are dotted keys with `__` in place of the dot.

    Adam's eps is large, so that rounding of weights which hardly have a gradient is not blown up to whole steps.
    """
    tree: dict[str, Any] = {
        "run": {"name": "ours", "output_dir": str(directory), "steps": 99, "seed": 3},
        "model": {"path": model},
        "data": {"prompts": "shapes:train", "prompts_per_step": GROUPS},
        "rollout": {
            "group_size": SIZE,
            "batch_size": batch,
            "sampler": {"steps": STEPS, "shift": 2.0, "guidance": GUIDANCE, "noise": "sde", "level": LEVEL},
        },
        "advantage": {"name": "grpo", "options": {"scale": "batch", "ddof": 0, "eps": 1e-4}},
        "loss": {"name": "clip", "options": {"clip": 1e-4}, "old_log_prob": "recorded"},
        "optim": {"lr": 3e-4, "eps": 1e-2, "weight_decay": 1e-4, "batch_size": batch},
        "tracking": {"progress": False},
    }
    for path, value in changes.items():
        *sections, key = path.split("__")
        node = tree
        for section in sections:
            node = node[section]
        node[key] = value
    return TrainConfig.model_validate(tree)


@dataclass
class Samples:
    """What the plain loop keeps of B rows."""

    states: Tensor
    """[B, T, C, h, w] before each step."""
    actions: Tensor
    """[B, T, C, h, w] after each step."""
    log_probs: Tensor
    """[B, T]; NaN at the last step."""
    tokens: Tensor
    """[B, L, D] text embeddings."""
    pooled: Tensor
    """[B, P] pooled text embeddings."""
    images: np.ndarray
    """[B, H, W, 3] uint8."""

    def at(self, rows: Tensor) -> Samples:
        """The given rows [n]."""
        return Samples(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class PlainLoop:
    """The published loop for one process, on a `StableDiffusion3Pipeline`; trains all weights in float32.

    Args:
        config: the settings of `make_config`, read by both loops.
        judge: the reward; None = the one that the settings name.
    """

    def __init__(self, config: TrainConfig, judge: Judge | None = None) -> None:
        from diffusers import StableDiffusion3Pipeline

        from pipelines.load import resolve

        self.config, self.batch = config, config.optim.batch_size
        self.sampler: Any = config.rollout.sampler
        inputs = parts.read_inputs(config, judge=judge)
        self.judge, self.rubrics = inputs.judge, inputs.rubrics
        self.prompts = PromptSampler(inputs.prompts, config.data.prompts_per_step, config.run.seed, config.data.shuffle)
        self.pipe: Any = StableDiffusion3Pipeline.from_pretrained(
            resolve(config.model.path), text_encoder_3=None, tokenizer_3=None
        )
        for part in (self.pipe.vae, self.pipe.text_encoder, self.pipe.text_encoder_2):
            nn.Module.to(part, torch.float32).requires_grad_(False)
        self.module: Any = nn.Module.to(self.pipe.transformer, torch.float32).eval().requires_grad_(True)
        self.parameters = list(self.module.parameters())
        optim = config.optim
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay
        )
        levels = torch.linspace(1, 0, self.sampler.steps + 1, dtype=torch.float64)
        self.levels = (self.sampler.shift * levels / (1 + (self.sampler.shift - 1) * levels)).float()
        self.negative = self.encode([""])
        self.done = 0
        self.seconds = {"sample": 0.0, "judge": 0.0, "update": 0.0}

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens [B, L, D] and pooled [B, P] of B texts."""
        tokens, _, pooled, _ = self.pipe.encode_prompt(
            list(texts), None, None, do_classifier_free_guidance=False, max_sequence_length=0
        )
        return tokens, pooled

    def step(self) -> dict[str, float]:
        """Sample, judge, advantages, one optimizer step."""
        config, began = self.config, time.perf_counter()
        prompts = self.prompts.take()
        rubrics = self.rubrics.of(prompts)
        rows = [(row, sample) for row in range(len(prompts)) for sample in range(config.rollout.group_size)]
        taken = []
        for start in range(0, len(rows), self.batch):
            keys = rows[start : start + self.batch]
            taken.append(self.sample([prompts[row].text for row, _ in keys], keys, config.run.seed, self.done))
        samples = Samples(
            *(torch.cat([getattr(s, name) for s in taken]) for name in list(Samples.__dataclass_fields__)[:-1]),
            images=np.concatenate([s.images for s in taken]),
        )
        sampled = time.perf_counter()
        rewards = self.reward(samples.images, [rubrics[row] for row, _ in rows])
        advantage = advantages(rewards.reshape(len(prompts), -1))
        judged = time.perf_counter()
        live = torch.from_numpy(np.flatnonzero(advantage))
        self.gradient(samples.at(live), torch.from_numpy(advantage).float()[live], len(rows))
        nn.utils.clip_grad_norm_(self.parameters, config.optim.grad_clip or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        spent = (sampled - began, judged - sampled, time.perf_counter() - judged)
        for name, seconds in zip(self.seconds, spent, strict=True):
            self.seconds[name] += seconds
        return {"reward/mean": float(rewards.mean()), "live": len(live) / len(rows)}

    @torch.no_grad()
    def sample(self, texts: Sequence[str], keys: Sequence[tuple[int, int]], seed: int, step: int) -> Samples:
        """Denoise one batch and keep every state and log-prob.

        Args:
            texts: [B].
            keys: [B] (prompt row, sample), which with seed and step decide the noise, as in our loop.
        """
        from pipelines.seeds import row_seed

        tokens, pooled = self.encode(texts)
        config, side = self.module.config, self.module.config.sample_size
        shape = (config.in_channels, side, side)
        seeds = [row_seed(seed, step, row, sample) for row, sample in keys]
        x = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(s.noise)) for s in seeds])
        generators = [torch.Generator().manual_seed(s.path) for s in seeds]
        states, log_probs = [x], []
        for number in range(self.sampler.steps):
            mean, std = self.transition(x, number, tokens, pooled)
            if number == self.sampler.steps - 1:
                x, log_prob = mean, torch.full((len(x),), torch.nan)
            else:
                x = mean + std * torch.stack([torch.randn(shape, generator=g) for g in generators])
                log_prob = density(x, mean, std)
            states.append(x)
            log_probs.append(log_prob)
        vae = self.pipe.vae
        pixels = vae.decode(x / vae.config.scaling_factor + (vae.config.shift_factor or 0.0), return_dict=False)[0]
        unit = (pixels / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
        path = torch.stack(states, 1)
        images = (unit * 255).round().to(torch.uint8).numpy()
        return Samples(path[:, :-1], path[:, 1:], torch.stack(log_probs, 1), tokens, pooled, images)

    def transition(self, x: Tensor, number: int, tokens: Tensor, pooled: Tensor) -> tuple[Tensor, float]:
        """Mean [n, ...] and standard deviation of one step of the stochastic sampler, guidance included."""
        sigma, after = self.levels[number].double().item(), self.levels[number + 1].double().item()
        count, dt = len(x), after - sigma
        negative = [part.expand(count, *part.shape[1:]) for part in self.negative]
        velocity = self.module(
            hidden_states=torch.cat([x, x]),
            timestep=torch.full((2 * count,), 1000 * self.levels[number].item()),
            encoder_hidden_states=torch.cat([negative[0], tokens]),
            pooled_projections=torch.cat([negative[1], pooled]),
            return_dict=False,
        )[0]
        without, with_text = velocity.chunk(2)
        velocity = without + self.sampler.guidance * (with_text - without)
        if number == self.sampler.steps - 1:
            return x + dt * velocity, 0.0
        first = sigma if sigma < 1 else self.levels[1].double().item()
        rate = self.sampler.level * (sigma / (1 - first)) ** 0.5
        drift = rate**2 / (2 * sigma)
        mean = x * (1 + drift * dt) + velocity * (1 + drift * (1 - sigma)) * dt
        return mean, rate * (-dt) ** 0.5

    def reward(self, images: np.ndarray, rubrics: Sequence[Rubric]) -> np.ndarray:
        """Share of each picture's criteria that hold, [B]."""
        requests = [
            JudgeRequest(rubric=rubric, candidate=image, sample_id=str(number))
            for number, (image, rubric) in enumerate(zip(images, rubrics, strict=True))
        ]
        verdicts = self.judge.score_sync(requests)
        return np.array([np.mean([float(v.met) for v in row if v.met is not None]) for row in verdicts])

    def gradient(self, samples: Samples, advantage: Tensor, counted: int) -> float:
        """Accumulate the gradient of the clipped loss over rows [B] and their trained steps; returns the loss.

        Args:
            samples: rows of advantage other than 0.
            advantage: [B].
            counted: rows of the whole batch, those of advantage 0 included.
        """
        clip, limit = self.config.loss.options["clip"], 5.0
        trained = int(self.sampler.steps * 0.99)
        total = 0.0
        for start in range(0, len(advantage), self.batch):
            part = samples.at(torch.arange(start, min(start + self.batch, len(advantage))))
            deserved = advantage[start : start + self.batch].clamp(-limit, limit)
            for number in range(trained):
                mean, std = self.transition(part.states[:, number], number, part.tokens, part.pooled)
                ratio = (density(part.actions[:, number], mean, std) - part.log_probs[:, number]).exp()
                clipped = ratio.clamp(1 - clip, 1 + clip)
                loss = torch.maximum(-deserved * ratio, -deserved * clipped).sum() / (counted * trained)
                loss.backward()
                total += loss.item()
        return total


def density(action: Tensor, mean: Tensor, std: float) -> Tensor:
    """Log density of a step, mean over latent elements: [n]."""
    return torch.distributions.Normal(mean, std).log_prob(action).flatten(1).mean(1)


def advantages(rewards: np.ndarray) -> np.ndarray:
    """[P * G]: reward minus its group's mean, over the deviation of all rewards [P, G]."""
    centred = rewards - rewards.mean(1, keepdims=True)
    centred[np.ptp(rewards, axis=1) <= 1e-6] = 0.0
    return (centred / (rewards.std() + 1e-4)).flatten()


def measure(loop: str, batch: int, steps: int, directory: Path) -> dict[str, Any]:
    """Seconds per step and memory that a step adds, after one warm-up step; the weights go to `directory`."""
    torch.set_num_threads(1)
    if loop == "plain":
        plain = PlainLoop(make_config(directory, batch=batch))
        result = timed(plain.step, steps)
        weights = plain.parameters
        total = sum(plain.seconds.values())
        result["share"] = {name: round(seconds / total, 3) for name, seconds in plain.seconds.items()}
    else:
        with Trainer(make_config(directory, batch=batch, **CHANGES[loop])) as trainer:
            result = timed(trainer.step, steps)
            weights = [parameter for _, parameter in trainer.policy.trainable_parameters()]
    torch.save(torch.cat([weight.detach().flatten().double() for weight in weights]), directory / "weights.pt")
    return result


def timed(step: Any, count: int) -> dict[str, Any]:
    """Wall and CPU seconds per step of `count` steps after a warm-up, and the peak memory (MB) that they add to what
    was there before, with what the warm-up freed given back to the system first."""
    step()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = memory("VmRSS")
    # Writing 5 lets VmHWM start anew: loading would hide the steps.
    Path("/proc/self/clear_refs").write_text("5")
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        metrics = step()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    peak = memory("VmHWM")
    reward = metrics["reward/mean"]
    return {"wall": wall / count, "cpu": used / count, "added": peak - before, "peak": peak, "reward": reward}


def memory(field: str) -> float:
    """VmRSS or VmHWM (its peak) of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def run(loop: str, batch: int, steps: int) -> tuple[dict[str, Any], Tensor]:
    """`measure` in a process of its own; its numbers and the weights that came out."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--worker", loop, "--batch", str(batch), "--steps", str(steps)]
        done = subprocess.run([*words, "--directory", folder], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{loop} failed:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1]), torch.load(Path(folder) / "weights.pt")


def table(found: dict[str, list[dict[str, Any]]], difference: float, steps: int) -> str:
    """The result as markdown: medians, ranges, and ratios to the plain loop in the same round."""
    first = next(iter(VARIANTS))
    rounds = len(found[first])
    lines = [
        "| loop | CPU s/step | wall s/step | added memory, MB | peak memory, MB | ratio of CPU time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in found.items():
        cells = [spread([run[key] for run in runs], places) for key, places in
                 (("cpu", 2), ("wall", 2), ("added", 0), ("peak", 0))]  # fmt: skip
        ratios = [base["cpu"] / run["cpu"] for base, run in zip(found[first], runs, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} | {spread(ratios, 2)} |")
    return "\n".join(
        [
            "# Our loop against the plain published Flow-GRPO loop",
            "",
            "`python tests/benchmarks/against_flow_grpo.py`: the shipped `shapes` generator, "
            f"{GROUPS} prompts x {SIZE} pictures, {STEPS} steps, guidance {GUIDANCE}, one CPU thread, {steps} timed "
            f"steps after one for warm-up, {rounds} rounds in alternating order. Median (lowest to highest). The ratio "
            f"is the CPU time of '{first}' in the "
            "same round over that of the row: above 1 is faster.",
            "",
            *lines,
            "",
            f"Largest difference between the weights of all rows but the last at the end: {difference:.1e}. They do "
            "the same arithmetic: a guided model call per sampling step, and one with its backward pass per trained "
            "step.",
            "",
        ]
    )


def spread(values: Sequence[float], places: int) -> str:
    """Median (lowest to highest)."""
    low, middle, high = (f"{f(values):.{places}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high})"


def main() -> int:
    """Print the table; exit code 1 if the two loops end at different weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table to this file")
    parser.add_argument("--worker", choices=["plain", *CHANGES], help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker, options.batch, options.steps, options.directory)))
        return 0
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    weights: dict[str, Tensor] = {}
    for repeat in range(options.repeats):
        # The order alternates, so that whatever else the machine does meets all.
        for name in list(VARIANTS) if repeat % 2 == 0 else reversed(VARIANTS):
            loop, batch = VARIANTS[name]
            result, weights[name] = run(loop, batch, options.steps)
            found[name].append(result)
            print(name, json.dumps(result), file=sys.stderr, flush=True)
    same = [weights[name] for name, (loop, _) in VARIANTS.items() if loop != "window"]
    difference = max(float((one - same[0]).abs().max()) for one in same)
    text = table(found, difference, options.steps)
    print(text)
    if options.out:
        options.out.write_text(text)
    return int(difference > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
