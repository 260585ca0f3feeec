"""What a run is made of, built in order of cost: everything that can be refused is refused before weights
load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list

import judges
import pipelines
from mmrubric import aggregate, generators
from mmrubric.errors import InputError
from mmrubric.generators import RubricGenerator
from mmrubric.judging import Judge
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric
from mmrubric.store import Store
from pipelines.diffusion import FlowPolicy
from pipelines.load import read_index, resolve
from pipelines.policy import Policy
from trainers import checks, prompts
from trainers.config import JudgeSection, TrainConfig
from trainers.distributed import check_processes, prepare_environment
from trainers.judge_worker import refuse_same_judge
from trainers.prompts import PromptSampler, PromptSet


class RubricBook:
    """One rubric per prompt text, written once per run and the same on all ranks.

    Args:
        generator: writes what is not known; None = an unknown prompt is an error.
        known: rubrics written before.
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
        for rubric in known:
            self._add(rubric)

    def of(self, shown: Sequence[Prompt]) -> list[Rubric]:
        """The rubric of each prompt. A collective where some are new.

        Raises:
            InputError: no generator and no rubric, the generator refuses the prompt, or the aggregator the
            rubric.
        """
        new = {prompt.text: prompt for prompt in shown if prompt.text not in self._of}
        if new:
            for rubric in self._write(list(new.values())):
                self._add(rubric)
        return [self._of[prompt.text] for prompt in shown]

    def _write(self, new: list[Prompt]) -> list[Rubric]:
        if self.generator is None:
            raise InputError(f"rubric.file holds no rubric for the prompt {new[0].text!r} (and {len(new) - 1} more)")
        written: list[Any] = [None, None]
        if self.main:
            try:
                written[0] = [self.generator.generate_sync(prompt, next(iter(prompt.sources), None)) for prompt in new]
            except InputError as error:
                written[1] = str(error)
        # Rank 0 writes for all: two calls of a language model would give two rubrics.
        if self.world > 1:
            broadcast_object_list(written, from_process=0)
        if written[1] is not None:
            raise InputError(written[1])
        return written[0]

    def _add(self, rubric: Rubric) -> None:
        if self.check is not None:
            try:
                self.check(rubric)
            except InputError as error:
                raise InputError(f"rubric of {rubric.prompt!r}: {error}") from None
        self._of[rubric.prompt] = rubric

    def state_dict(self) -> dict[str, Any]:
        """All rubrics with their hashes, as JSON."""
        rubrics = [rubric.model_dump(mode="json", exclude_defaults=True) for rubric in self._of.values()]
        return {"rubrics": rubrics, "hashes": [rubric.hash for rubric in self._of.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same rubrics.

        Raises:
            InputError: a hash does not fit, so the checkpoint was edited.
        """
        for data, key in zip(state["rubrics"], state["hashes"], strict=True):
            rubric = Rubric.parse(data, "checkpoint")
            if rubric.hash != key:
                raise InputError(f"checkpoint: the rubric of {rubric.prompt!r} is not the one that was trained with")
            if (mine := self._of.get(rubric.prompt)) is not None and mine.hash != key:
                raise InputError(
                    f"rubric.file: the rubric of {rubric.prompt!r} changed since the checkpoint; start a new run"
                )
            self._of[rubric.prompt] = rubric


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
        InputError: not as many processes as run.processes started.
    """
    check_processes(config.run.processes)
    prepare_environment()
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    # Buffers are constants here, and a broadcast in every forward would hang ranks that sample in other
    # numbers.
    kwargs = DistributedDataParallelKwargs(broadcast_buffers=False)
    trackers: list[Any] = list(config.tracking.trackers)
    return Accelerator(log_with=trackers or None, project_dir=str(config.run.directory), kwargs_handlers=[kwargs])


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
    missing = (loss.outputs | kl.outputs) - FlowPolicy.provides
    if missing:
        raise InputError(
            f"loss.name={loss.name} needs {', '.join(sorted(missing))}, which this policy does not provide"
        )
    read_index(resolve(config.model.path))
    judge = judge or make_judge(config.judge)
    if eval_judge is None and config.eval.every:
        eval_judge = make_judge(config.eval.judge) if config.eval.judge is not None else judge
    if eval_judge is not None:
        refuse_same_judge(judge.id, eval_judge.id, config.eval.allow_same_judge)
    train = prompts.load(config.data.prompts, config.data.limit)
    heldout = prompts.load(config.eval.prompts, config.eval.limit) if eval_judge is not None else None
    if config.data.prompts_per_step > len(train):
        raise InputError(
            f"data.prompts_per_step={config.data.prompts_per_step}, but {train.name} has {len(train)} prompts"
        )
    scorer = aggregate.build(config.reward.aggregate, **config.reward.options)
    generator = None if config.rubric.file else generators.build(config.rubric.generator, **config.rubric.options)
    known = Rubric.load_many(config.rubric.file) if config.rubric.file else []
    rubrics = RubricBook(generator, known, scorer.check, main, world)
    eval_rubrics = RubricBook(generator, known, None, main, world) if heldout is not None else None
    # A file is checked whole; a generator, which may cost money, on the prompts of the first step.
    first = PromptSampler(train, config.data.prompts_per_step, config.run.seed, config.data.shuffle)
    rubrics.of(train.prompts if known else first.take())
    if heldout is not None and eval_rubrics is not None:
        eval_rubrics.of(heldout.prompts)
    return Inputs(train, rubrics, judge, heldout, eval_rubrics, eval_judge)


def make_policy(config: TrainConfig, device: torch.device | str | None = None) -> Policy:
    """The policy, with the weight copies that the configuration needs.

    Raises:
        InputError: the weights are not there, or nothing of them is trainable.
    """
    policy = pipelines.load_policy(
        config.model.path,
        tune=config.model.tune,
        lora=config.model.lora if config.model.tune == "lora" else None,
        precision=config.model.precision,
        device=config.model.device or device,
        ema=config.ema.decay is not None,
        old=checks.loss_of(config).kind == "forward",
        reference=checks.kl_of(config).active,
        gradient_checkpointing=config.model.gradient_checkpointing,
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
