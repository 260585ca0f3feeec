"""What a run is made of, built in order of cost: everything that can be refused is refused before weights
load."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list

import judges
import pipelines
from mmrubric import advantage, aggregate, generators
from mmrubric.errors import InputError
from mmrubric.generators import RubricGenerator
from mmrubric.judging import Judge
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric
from mmrubric.store import Store
from pipelines import shards
from pipelines.diffusion import FlowPolicy
from pipelines.load import check_sampler, provides, read_index, resolve
from pipelines.policy import Policy
from trainers import checks, prompts, sharding, zero2, zero3
from trainers.config import JudgeSection, TrainConfig
from trainers.distributed import check_processes, prepare_environment
from trainers.judge_worker import refuse_same_judge, refuse_unfit
from trainers.prompts import PromptSampler, PromptSet


class RubricBook:
    """One rubric per prompt text, or per prompt where a source picture says what the text is about; written once per
    run and the same on all ranks.

    Args:
        generator: writes what is not known; None = an unknown prompt is an error.
        known: rubrics written before, for every prompt with their text.
        check: raises InputError where the aggregator cannot use a rubric.
        main: whether this rank writes (rank 0); the others receive.
    """

    def __init__(
        self,
        generator: RubricGenerator | None,
        known: Sequence[Rubric] = (),
        check: Callable[[Rubric], None] | None = None,
        main: bool = True,
        world: int = 1,
    ) -> None:
        self.generator, self.check, self.main, self.world = generator, check, main, world
        self._of: dict[str, Rubric] = {}
        self._known = {rubric.prompt for rubric in known}
        for rubric in known:
            self._add(rubric.prompt, rubric)

    def of(self, shown: Sequence[Prompt]) -> list[Rubric]:
        """The rubric of each prompt. A collective where some are new.

        Raises:
            InputError: no generator and no rubric, the generator refuses the prompt, or the aggregator the
            rubric.
        """
        keys = [self._key(prompt) for prompt in shown]
        new = {key: prompt for key, prompt in zip(keys, shown, strict=True) if key not in self._of}
        if new:
            for key, rubric in zip(new, self._write(list(new.values())), strict=True):
                self._add(key, rubric)
        return [self._of[key] for key in keys]

    def _key(self, prompt: Prompt) -> str:
        alone = not prompt.sources or prompt.text in self._known
        return prompt.text if alone else f"{prompt.id}\n{prompt.text}"

    def _write(self, new: list[Prompt]) -> list[Rubric]:
        if self.generator is None:
            raise InputError(f"rubric.file holds no rubric for the prompt {new[0].text!r} (and {len(new) - 1} more)")
        written: list[Any] = [None, None]
        if self.main:
            try:
                written[0] = [self.generator.generate_sync(prompt, prompt.sources) for prompt in new]
            except InputError as error:
                written[1] = str(error)
        # Rank 0 writes for all: two calls of a language model would give two rubrics.
        if self.world > 1:
            broadcast_object_list(written, from_process=0)
        if written[1] is not None:
            raise InputError(written[1])
        return written[0]

    def _add(self, key: str, rubric: Rubric) -> None:
        if self.check is not None:
            try:
                self.check(rubric)
            except InputError as error:
                raise InputError(f"rubric of {rubric.prompt!r}: {error}") from None
        self._of[key] = rubric

    def state_dict(self) -> dict[str, Any]:
        """All rubrics with their keys and hashes, as JSON."""
        rubrics = [rubric.model_dump(mode="json", exclude_defaults=True) for rubric in self._of.values()]
        return {"keys": list(self._of), "rubrics": rubrics, "hashes": [rubric.hash for rubric in self._of.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same rubrics.

        Raises:
            InputError: a hash does not fit, so the checkpoint was edited.
        """
        for key, data, digest in zip(state["keys"], state["rubrics"], state["hashes"], strict=True):
            rubric = Rubric.parse(data, "checkpoint")
            if rubric.hash != digest:
                raise InputError(f"checkpoint: the rubric of {rubric.prompt!r} is not the one that was trained with")
            if (mine := self._of.get(key)) is not None and mine.hash != digest:
                raise InputError(
                    f"rubric.file: the rubric of {rubric.prompt!r} changed since the checkpoint; start a new run"
                )
            self._of[key] = rubric


@dataclass
class Inputs:
    """What needs no weights."""

    prompts: PromptSet
    rubrics: RubricBook
    judge: Judge
    heldout: PromptSet | None = None
    eval_rubrics: RubricBook | None = None
    eval_judge: Judge | None = None


@dataclass
class Parts(Inputs):
    """The parts of a run."""

    accelerator: Accelerator = field(kw_only=True)
    policy: Policy = field(kw_only=True)


def make_accelerator(config: TrainConfig) -> Accelerator:
    """The accelerator of this process.

    Raises:
        InputError: not as many processes as run.processes started, or a launch that asks for what cannot be done.
    """
    check_processes(config.run.processes)
    check_launch(config)
    prepare_environment()
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    # Buffers are constants here, and a broadcast in every forward would hang ranks that sample in other
    # numbers.
    kwargs = DistributedDataParallelKwargs(broadcast_buffers=False)
    trackers: list[Any] = list(config.tracking.trackers)
    with sharding.hidden():
        accelerator = Accelerator(
            mixed_precision="no",
            log_with=trackers or None,
            project_dir=str(config.run.directory),
            kwargs_handlers=[kwargs],
        )
    if accelerator.num_processes != config.run.processes:
        raise InputError(
            f"{config.run.processes} processes started, but accelerate joined {accelerator.num_processes} of them: "
            "on a machine without an accelerator set ACCELERATE_USE_CPU=true"
        )
    return accelerator


def check_launch(config: TrainConfig) -> sharding.Asked:
    """What `accelerate launch` asked for, if it fits the configuration.

    Raises:
        InputError: it does not, or nobody drives it.
    """
    launched = sharding.asked()
    shard = sharding.choose(config.model.shard, launched)
    half = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if half not in ("no", config.model.precision):
        raise InputError(
            f"this launch asks for mixed_precision={half}, but model.precision={config.model.precision} decides it: "
            "set the launch to 'no', or both to the same"
        )
    if shard != "none" and config.run.processes < 2:
        raise InputError(f"sharding ({shard}) over run.processes={config.run.processes} shards nothing: use 2 or more")
    if shard != "none" and config.model.device is not None:
        raise InputError(f"model.device={config.model.device} with sharding: each rank takes its own, leave it null")
    if shard in ("zero2", "zero3"):
        zero2.check(config.model.precision)
    return replace(launched, shard=shard)


def make_judge(options: JudgeSection) -> Judge:
    """The judge of a section, with its verdict store if one is named."""
    extra = {"store": Store(options.store)} if options.store is not None else {}
    return judges.build(options.name, **options.options, **extra)


def read_inputs(
    config: TrainConfig,
    *,
    judge: Judge | None = None,
    eval_judge: Judge | None = None,
    main: bool = True,
    world: int = 1,
) -> Inputs:
    """Prompts, rubrics and judges, checked against one another and against the model's index; no weights.

    Args:
        config: checked already by its own class.
        judge, eval_judge: given instead of built.
        main: whether this rank writes rubrics; world: number of ranks.

    Raises:
        InputError: anything that the user can mend.
    """
    loss, kl = checks.loss_of(config), checks.kl_of(config)
    name = read_index(resolve(config.model.path))["_class_name"]
    missing = (loss.outputs | kl.outputs) - provides(name, value_head="value" in loss.outputs)
    if missing:
        raise InputError(
            f"loss.name={loss.name} with loss.kl={config.kl_name} needs {', '.join(sorted(missing))}, which a {name} "
            "does not provide"
        )
    for sampler in (config.rollout.sampler, config.eval.sampler):
        if sampler is not None:
            check_sampler(name, sampler)
    judge = judge or make_judge(config.judge)
    if eval_judge is None and config.eval.every:
        eval_judge = make_judge(config.eval.judge) if config.eval.judge is not None else judge
    if eval_judge is not None:
        refuse_same_judge(judge, eval_judge, config.eval.allow_same_judge)
    train = prompts.load(config.data.prompts, config.data.limit)
    heldout = prompts.load(config.eval.prompts, config.eval.limit) if eval_judge is not None else None
    if config.data.prompts_per_step > len(train):
        raise InputError(
            f"data.prompts_per_step={config.data.prompts_per_step}, but {train.name} has {len(train)} prompts"
        )
    scorer = aggregate.build(config.reward.aggregate, **config.reward.options)
    generator = None if config.rubric.file else generators.build(config.rubric.generator, **config.rubric.options)
    known = Rubric.load_many(config.rubric.file) if config.rubric.file else []
    method = advantage.build(config.advantage.name, **checks.advantage_options(config))

    def check(rubric: Rubric) -> None:
        scorer.check(rubric)
        method.check_rubric(rubric)

    rubrics = RubricBook(generator, known, check, main, world)
    eval_rubrics = RubricBook(generator, known, None, main, world) if heldout is not None else None
    # A file is checked whole; a generator, which may cost money, on the prompts of the first step.
    first = PromptSampler(train, config.data.prompts_per_step, config.run.seed, config.data.shuffle)
    asked = train.prompts if known else first.take()
    refuse_unfit(judge, asked, rubrics.of(asked), config.judge.compare, "judge")
    if heldout is not None and eval_rubrics is not None and eval_judge is not None:
        refuse_unfit(eval_judge, heldout.prompts, eval_rubrics.of(heldout.prompts), False, "eval.judge")
    return Inputs(train, rubrics, judge, heldout, eval_rubrics, eval_judge)


def make_policy(config: TrainConfig, device: torch.device | str | None = None) -> Policy:
    """The policy, with the weight copies that the configuration needs, in shards where these were asked for.

    Raises:
        InputError: the weights are not there, or nothing of them is trainable.
    """
    launched, own = check_launch(config), torch.device(device or "cpu")
    shard = sharding.sharder(own, launched.blocks) if launched.shard == "fsdp2" else None
    if launched.shard == "zero3":
        shard = zero3.sharder(own)
    policy = pipelines.load_policy(
        config.model.path,
        tune=config.model.tune,
        lora=config.model.lora if config.model.tune == "lora" else None,
        precision=config.model.precision,
        device=config.model.device or device,
        ema=config.ema.decay is not None,
        old=checks.loss_of(config).kind == "forward",
        reference=checks.kl_of(config).active,
        previous=config.rollout.late,
        gradient_checkpointing=config.model.gradient_checkpointing,
        engine=config.model.engine,
        shard=shard,
        value_head="value" in checks.loss_of(config).outputs,
    )
    if not policy.trainable_parameters():
        raise InputError(f"model.tune={config.model.tune}: no parameter of {config.model.path} is trainable")
    return policy


def build(config: TrainConfig, *, judge: Judge | None = None, eval_judge: Judge | None = None) -> Parts:
    """All parts of a run, cheap ones first; see `read_inputs`.

    Raises:
        InputError: anything that the user can mend.
    """
    accelerator = make_accelerator(config)
    inputs = read_inputs(
        config,
        judge=judge,
        eval_judge=eval_judge,
        main=accelerator.is_main_process,
        world=accelerator.num_processes,
    )
    policy = make_policy(config, accelerator.device)
    policy.check_prompts(inputs.prompts.prompts, config.rollout.sampler)
    if inputs.heldout is not None:
        policy.check_prompts(inputs.heldout.prompts, config.eval.sampler)
    if config.model.embedding_cache is not None or config.model.offload_encoders:
        if not isinstance(policy, FlowPolicy):
            raise InputError("model.embedding_cache and model.offload_encoders: this model has no frozen text encoder")
        shown: list[tuple[PromptSet | None, Any]] = [
            (inputs.prompts, config.rollout.sampler),
            (inputs.heldout, config.eval.sampler),
        ]
        for found, sampler in shown:
            policy.encode(found.prompts if found is not None else (), sampler)
    if not shards.is_sharded(policy.module) and check_launch(config).shard != "zero2":
        policy.wrap(accelerator.prepare)
    return Parts(**vars(inputs), accelerator=accelerator, policy=policy)


def rng_state() -> dict[str, Any]:
    """Global random states of this process. Nothing here draws from them, but a model's dropout does."""
    import random

    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def load_rng_state(state: dict[str, Any]) -> None:
    """Inverse of `rng_state`."""
    import random

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
