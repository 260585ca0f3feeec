"""What only a GPU can show: speed, memory and rounding of models of real size.

    python -m tests.device.check --out DIR            # one H200, under eight minutes
    python -m tests.device.check --out DIR --tiny     # the same code on any machine, in seconds

Sampling and update of SD3.5-medium and FLUX.1-dev with random weights in bf16 with a LoRA: images per second, peak
memory, the ratio of the first pass after a rollout (it must be 1), the drift of log-probs at another batch size and
against float32, and the attention kernels side by side. Prints one JSON object; writes device.json and device.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import engine
from pipelines.diffusion import FlowPolicy
from pipelines.policy import Rollout
from pipelines.samplers import Sampler
from pipelines.seeds import row_seed
from tests.device.models import NAMES, build, sampler_of, velocity
from trainers import losses
from trainers.config import LossSection, OptimSection
from trainers.update import Updater

KERNELS = {
    "torch's choice": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
RECORD = frozenset({"states", "log_prob"})
BATCHES = {"sd3.5-medium": (8, 4, 2, 1), "flux.1-dev": (4, 2, 1)}
"""Rows per model call, before guidance doubles them: the first that fits."""


class Clock:
    """Time that is left."""

    def __init__(self, limit: float) -> None:
        self.began, self.limit = time.perf_counter(), limit

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    def allows(self, seconds: float) -> bool:
        """Whether a part of so many seconds may begin."""
        return self.used + seconds < self.limit


@contextmanager
def timed(device: torch.device, into: dict[str, Any], images: int) -> Iterator[None]:
    """Seconds, images per second and peak memory of the body."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    into |= {"seconds": round(seconds, 3), "images_per_second": round(images / seconds, 3), "peak_gib": peak}


def replay(policy: FlowPolicy, rollout: Rollout, batch: int) -> dict[str, float]:
    """Largest and mean difference between replayed and recorded log-probs, and the largest ratio's distance from 1.

    Batches are those of the rollout where `batch` is: `batch` rows at one step, never several steps.
    """
    assert rollout.log_probs is not None
    gaps = []
    with torch.no_grad():
        for start in range(0, len(rollout), batch):
            rows = torch.arange(start, min(start + batch, len(rollout)))
            for step in range(len(rollout.steps)):
                out = policy.log_prob(rollout, rows, torch.full_like(rows, step)).log_prob
                assert out is not None
                gaps.append((out - rollout.log_probs[rows.to(rollout.log_probs.device), step]).double().cpu())
    gap = torch.cat(gaps).abs()
    ratio = float((torch.cat(gaps).exp() - 1).abs().max())
    return {"absdiff_max": float(gap.max()), "absdiff_mean": float(gap.mean()), "ratio_minus_1_max": ratio}


def sampling(policy: FlowPolicy, sampler: Sampler, rows: int, batch: int) -> tuple[Rollout, dict[str, Any]]:
    """One rollout after a short one for warm-up."""
    prompts = [Prompt(id=f"p{row // 4}", text=f"prompt {row // 4}") for row in range(rows)]
    seeds = [row_seed(0, 0, row // 4, row % 4) for row in range(rows)]
    policy.sample(prompts[:batch], seeds[:batch], sampler.model_copy(update={"steps": 2}), RECORD, batch=batch)
    found: dict[str, Any] = {}
    with timed(policy.device, found, rows):
        rollout = policy.sample(prompts, seeds, sampler, RECORD, batch=batch)
    return rollout, found


def updating(policy: FlowPolicy, rollout: Rollout, batch: int) -> dict[str, Any]:
    """One update with the clipped loss, and whether it moved the weights."""
    updater = Updater(
        policy, losses.build("clip", clip=1e-4), losses.kl.build("mu_no_dt", 0.0, losses.build("clip", clip=1e-4)),
        OptimSection(lr=1e-4, batch_size=batch), LossSection(name="clip", old_log_prob="recorded"), "bf16",
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in updater.parameters]
    advantage = np.resize([1.0, -1.0], len(rollout))
    found: dict[str, Any] = {}
    with timed(policy.device, found, len(rollout)):
        stats = updater(rollout, advantage, np.ones(len(rollout)), run_seed=0, step=0, sampled_at=batch)
    after = [parameter.detach() for parameter in updater.parameters]
    moved = max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True))
    return found | {"updates": stats.updates, "moved": moved, "finite": all(bool(a.isfinite().all()) for a in after)}


def kernels(policy: FlowPolicy, sampler: Sampler, rows: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of a model call, and of one with its backward pass, per attention kernel."""
    found: dict[str, Any] = {}
    reference: torch.Tensor | None = None
    for name, backend in KERNELS.items():
        with nullcontext() if backend is None else sdpa_kernel(backend):
            found[name], out = _kernel(policy, sampler, rows, repeats)
        if out is not None:
            reference = out if reference is None else reference
            found[name]["difference"] = float((out - reference).abs().max())
    try:
        engine.check(engine.EngineOptions(attention="xformers"), type(policy.adapter).__name__, policy.device, False)
        engine.use_attention(policy.adapter.module, "xformers")
    except InputError as error:
        found["xformers"] = {"not available": _short(error)}
    else:
        found["xformers"], _ = _kernel(policy, sampler, rows, repeats)
    return found


def _kernel(
    policy: FlowPolicy, sampler: Sampler, rows: int, repeats: int
) -> tuple[dict[str, Any], torch.Tensor | None]:
    def forward() -> torch.Tensor:
        with torch.no_grad():
            return velocity(policy, sampler, rows)

    def both() -> None:
        velocity(policy, sampler, rows).square().mean().backward()
        policy.adapter.module.zero_grad(set_to_none=True)

    try:
        out = forward()
        return {
            "forward_ms": _milliseconds(forward, policy.device, repeats),
            "with_backward_ms": _milliseconds(both, policy.device, repeats),
        }, out
    except RuntimeError as error:
        # A kernel that does not take these shapes or this device says so; torch.OutOfMemoryError is one as well.
        policy.adapter.module.zero_grad(set_to_none=True)
        return {"not available": _short(error)}, None


def _milliseconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return round(1000 * (time.perf_counter() - began) / repeats, 3)


def measure(name: str, device: torch.device, tiny: bool, clock: Clock) -> dict[str, Any]:
    """Everything about one model; parts for which no time is left are named."""
    sampler, rows = sampler_of(name, tiny), 4 if tiny else 16 if name == "sd3.5-medium" else 8
    for share in (1.0, 0.5, 0.25):
        for batch in (2,) if tiny else BATCHES[name]:
            # Here, because inside the handler the error would still hold the frames with the model.
            policy = None
            _free()
            try:
                began = time.perf_counter()
                policy, found = build(name, device, tiny=tiny, share=share)
                found |= {"batch": batch, "rows": rows, "build_seconds": round(time.perf_counter() - began, 1)}
                rollout, found["sample"] = sampling(policy, sampler, rows, batch)
                found["first_pass"] = replay(policy, rollout, batch)
                found["half_batch"] = replay(policy, rollout, max(1, batch // 2))
                found["update"] = updating(policy, rollout, batch)
            except torch.OutOfMemoryError:
                continue
            return found | _rest(policy, sampler, rollout, batch, clock, tiny)
    return {"out of memory": "even a quarter of the blocks with one row a call"}


def _rest(
    policy: FlowPolicy, sampler: Sampler, rollout: Rollout, batch: int, clock: Clock, tiny: bool
) -> dict[str, Any]:
    """Kernels and the drift against float32, if there is time."""
    found: dict[str, Any] = {}
    if clock.allows(60):
        found["attention"] = kernels(policy, sampler, min(batch, 2), 1 if tiny else 5)
    if clock.allows(60):
        some = rollout.select(range(2))
        fresh = replay(policy, some, 2)
        # The same weights, which are bf16 numbers, with float32 arithmetic. The update moved them, so what is
        # compared are log-probs of now.
        half = _log_probs(policy, some)
        policy.adapter.module.float()
        policy.precision = "fp32"
        policy.conditioner.cache._entries.clear()
        gap = (_log_probs(policy, some) - half).abs()
        found["bf16_against_fp32"] = {"absdiff_max": float(gap.max()), "absdiff_mean": float(gap.mean())}
        found["after_update"] = fresh
    missing = [part for part in ("attention", "bf16_against_fp32") if part not in found]
    return found | ({"no time for": missing} if missing else {})


def _log_probs(policy: FlowPolicy, rollout: Rollout) -> torch.Tensor:
    rows, parts = torch.arange(len(rollout)), []
    with torch.no_grad():
        for step in range(len(rollout.steps)):
            out = policy.log_prob(rollout, rows, torch.full_like(rows, step)).log_prob
            assert out is not None
            parts.append(out.double().cpu())
    return torch.stack(parts)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def table(result: dict[str, Any]) -> str:
    """Two small markdown tables of what `main` measured."""
    lines = [
        f"{result['device']}, torch {result['torch']}, diffusers {result['diffusers']}, "
        f"{result['seconds']:.0f} s{', tiny models' if result['tiny'] else ''}",
        "",
        "| model | weights | blocks | rows a call | sampling, images/s (GiB) | update, images/s (GiB) | "
        "first pass, largest abs(ratio - 1) | same at half the rows | log-prob, bf16 against fp32 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, model in result["models"].items():
        if "sample" not in model:
            lines.append(f"| {name} | {'; '.join(f'{key}: {value}' for key, value in model.items())} |" + " |" * 7)
            continue
        speed = [f"{p['images_per_second']} ({_gib(p['peak_gib'])})" for p in (model["sample"], model["update"])]
        drift = model.get("bf16_against_fp32", {}).get("absdiff_max")
        size = f"{model['parameters'] / 1e9:.3f} B | {model['blocks']} | {model['batch']}"
        lines.append(
            f"| {name} | {size} | {' | '.join(speed)} "
            f"| {model['first_pass']['ratio_minus_1_max']:.1e} | {model['half_batch']['ratio_minus_1_max']:.1e} "
            f"| {'no time' if drift is None else f'{drift:.1e}'} |"
        )
    lines += [
        "",
        "| attention | model | forward, ms | with backward, ms | largest difference |",
        "| --- |" + " --- |" * 4,
    ]
    for name, model in result["models"].items():
        for kernel, row in model.get("attention", {}).items():
            if "not available" in row:
                lines.append(f"| {kernel} | {name} | not available: {row['not available']} | | |")
            else:
                gap = row.get("difference", math.nan)
                lines.append(f"| {kernel} | {name} | {row['forward_ms']} | {row['with_backward_ms']} | {gap:.1e} |")
    return "\n".join(lines) + "\n"


def _gib(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f}"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; exit code 1 if a first pass is not exact or an update did nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for device.json and device.md")
    parser.add_argument("--tiny", action="store_true", help="small models of the same architectures")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds after which no further part begins")
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.tiny:
        print("no GPU here: give --tiny", file=sys.stderr)
        return 2
    clock = Clock(options.limit)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__, "diffusers": diffusers.__version__, "tiny": options.tiny, "models": {},
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        enough = clock.allows(90)
        result["models"][name] = measure(name, device, options.tiny, clock) if enough else {"no time for": "all of it"}
        _free()
        result["seconds"] = clock.used
        # After every model: a command that runs past its limit still brings back what is there.
        (options.out / "device.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "device.md").write_text(table(result))
        print(f"{name}: {clock.used:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(result))
    measured = [model for model in result["models"].values() if "sample" in model]
    exact = all(model["first_pass"]["absdiff_max"] <= 1e-6 for model in measured)
    moved = all(model["update"]["moved"] > 0 and model["update"]["finite"] for model in measured)
    return int(not (measured and exact and moved))


if __name__ == "__main__":
    sys.exit(main())
