"""`--dry-run`: what a run would take in memory, judge calls and money, from configurations alone: no weights load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import Accelerator
from torch import nn

from mmrubric import advantage
from mmrubric.prompt import Prompt
from pipelines import skeleton
from pipelines.skeleton import Skeleton
from trainers import checks, estimate, parts, sharding, zero2
from trainers.config import TrainConfig
from trainers.distributed import Dist, started_processes
from trainers.prompts import PromptSampler
from trainers.sharding import Layout, Shard


def as_started(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """The configuration with the ranks that this launch really started, and a warning where it says otherwise.

    Raises:
        InputError: the run's rows cannot be shared among so many.
    """
    started = started_processes()
    if started in (1, config.run.processes):
        return config, []
    tree = config.model_dump()
    tree["run"]["processes"] = started
    return TrainConfig.model_validate(tree), [
        f"run.processes={config.run.processes}, but {started} started: the plan is for {started}; to train so, set "
        f"run.processes={started}"
    ]


def of(config: TrainConfig, inputs: parts.Inputs | None, accelerator: Accelerator | None = None) -> dict[str, Any]:
    """Model, memory per rank, samples, judge calls and cost. A collective where several ranks were started:
    with FSDP2 these shard the empty model as the run would shard the full one.

    Args:
        config: with the number of ranks that counts.
        inputs: checked prompts and rubrics; None = they are not known, nor what judging takes.
        accelerator: of the started ranks; None = there is one.
    """
    return {
        "processes": config.run.processes,
        **_model(config, accelerator),
        **(_judging(config, inputs) if inputs else {}),
    }


def count(made: Skeleton, shard: Shard = "none", blocks: tuple[str, ...] = ()) -> estimate.Numbers:
    """Numbers of a model; `blocks`: class names that the launcher gave, see `sharding.block_names`."""
    trained = _count(made.denoiser, trained=True)
    return estimate.Numbers(
        trained=trained,
        frozen=_count(made.denoiser) - trained,
        encoders=sum(_count(encoder) for encoder in made.encoders),
        vae=_count(made.vae),
        block=_gathered(made.denoiser, shard, blocks),
    )


def _gathered(denoiser: nn.Module, shard: Shard, blocks: tuple[str, ...]) -> int:
    """Most numbers that are gathered at once: of a layer by FSDP2, of a module's own by ZeRO-3."""
    if shard == "zero3":
        return max(sum(p.numel() for p in part.parameters(recurse=False)) for part in denoiser.modules())
    if shard != "fsdp2":
        return 0
    seen: set[int] = set()
    gathered = []
    for layer in sharding.layers(denoiser, sharding.block_names(denoiser, blocks)):
        own = [p for p in layer.parameters() if id(p) not in seen]
        seen |= {id(p) for p in own}
        gathered.append(sum(p.numel() for p in own))
    return max(gathered)


def _count(module: nn.Module, trained: bool = False) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)


def _model(config: TrainConfig, accelerator: Accelerator | None) -> dict[str, Any]:
    launched = parts.check_launch(config)
    options, sharded = config.model, launched.shard in ("fsdp2", "zero3")
    made = skeleton.build(options.path, options.tune, options.lora)
    numbers = count(made, launched.shard or "none", launched.blocks)
    held = estimate.memory(
        numbers,
        precision=options.precision,
        ranks=config.run.processes,
        sharded=sharded,
        bucket=zero2.BUCKET if launched.shard in ("zero2", "zero3") else None,
        copies=_copies(config),
        checkpointing=options.gradient_checkpointing,
        offload_encoders=options.offload_encoders,
    )
    found: dict[str, Any] = {
        "model": made.name,
        "parameters": numbers.trained + numbers.frozen,
        "trainable_parameters": numbers.trained,
        "shard": launched.shard,
    }
    if launched.shard == "fsdp2" and accelerator is not None:
        layouts = Dist().gather([Layout.of(sharding.sharder(accelerator.device, launched.blocks)(made.denoiser))])
        found["sharded"] = {
            "parameter_tensors": layouts[0].tensors,
            "dtensors": layouts[0].dtensors,
            "bytes_per_rank": [layout.local_bytes for layout in layouts],
        }
    found["memory_per_rank"] = {item.what: str(item) for item in held}
    found["memory_per_rank_bytes"] = estimate.total(held)
    found["memory_total"] = f"{estimate.readable(estimate.total(held))} per rank, activations not included"
    return found


def _copies(config: TrainConfig) -> int:
    """Copies of the trained weights that `make_policy` asks for; LoRA has its reference for nothing."""
    full = config.model.tune == "full"
    wanted = (
        config.ema.decay is not None,
        checks.loss_of(config).kind == "forward",
        checks.kl_of(config).active and full,
        config.rollout.late,
    )
    return sum(wanted)


def _judging(config: TrainConfig, inputs: parts.Inputs) -> dict[str, Any]:
    first = PromptSampler(inputs.prompts, config.data.prompts_per_step, config.run.seed, config.data.shuffle).take()
    calls, criteria = _calls(config, first, inputs)
    rounds = estimate.evaluations(config.run.steps, config.eval.every) if inputs.heldout is not None else 0
    evaluated = rounds * len(inputs.heldout.prompts) * config.eval.samples if inputs.heldout is not None else 0
    judge = config.eval.judge or config.judge
    costs = [
        estimate.cost(config.run.steps * calls, config.judge.price_per_call),
        estimate.cost(evaluated, judge.price_per_call),
    ]
    known = [value for value in costs if value is not None]
    return {
        "judge_calls_per_step": calls,
        "verdicts_in_first_step": criteria,
        "eval_judge_calls": evaluated,
        "judge_cost_per_step": _money(estimate.cost(calls, config.judge.price_per_call)),
        "judge_cost": _money(sum(known) if len(known) == len(costs) else None),
    }


def _calls(config: TrainConfig, prompts: Sequence[Prompt], inputs: parts.Inputs) -> tuple[int, int]:
    """Judge calls of a step, of a picture or of a pair each, and the verdicts that they give."""
    drawn = config.rollout.drawn
    if config.judge.compare:
        method = advantage.build(config.advantage.name, **checks.advantage_options(config))
        calls = len(prompts) * len(method.matches(drawn, ""))
        return calls, calls
    return len(prompts) * drawn, drawn * sum(len(rubric.criteria) for rubric in inputs.rubrics.of(prompts))


def _money(value: float | None) -> float | str:
    return "unknown: set judge.price_per_call" if value is None else round(value, 6)
