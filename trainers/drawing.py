"""What a step trains on: its prompts, rubrics and samples, drawn in the step or, where judging is late, one ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from mmrubric.advantage import Advantage
from mmrubric.filters import Filter
from mmrubric.group import Group
from mmrubric.prompt import Prompt
from mmrubric.record import SampleRow
from mmrubric.rubric import Rubric
from pipelines.policy import Policy
from trainers.config import TrainConfig
from trainers.distributed import Shard
from trainers.judge_worker import JudgeWorker
from trainers.losses import Loss
from trainers.parts import RubricBook
from trainers.prompts import PromptSampler
from trainers.rollouts import Judged, Sampled, draw, group_key


@dataclass(frozen=True)
class Plan:
    """What a step is to draw."""

    step: int
    epoch: int
    """In which the step starts."""
    ends_epoch: bool
    """Whether the next step starts in another epoch."""
    version: int
    """Version of the policy that draws."""
    prompt_ids: tuple[str, ...]
    """[P], prompt row by prompt row."""


@dataclass(frozen=True)
class Drawn:
    """A step's samples, with their verdicts under way."""

    plan: Plan
    prompts: list[Prompt]
    """[P]"""
    rubrics: list[Rubric]
    """[P]"""
    sampled: Sampled

    def rows(self, judged: Sequence[Judged], groups: Sequence[Group], judge_id: str) -> list[SampleRow]:
        """Rows for the run record: all ranks' samples with their verdicts and rewards."""
        hashes = [rubric.hash for rubric in self.rubrics]
        rewards = [group.need("rewards", "the run record") for group in groups]
        names = {(row.prompt_row, row.sample): row.sample_id for row in judged}
        return [
            SampleRow(
                step=self.plan.step, prompt_id=self.plan.prompt_ids[row.prompt_row], prompt_row=row.prompt_row,
                rubric_hash=hashes[row.prompt_row], sample_id=row.sample_id, sample_hash=row.image_hash,
                judge_id=judge_id, verdicts=row.verdicts,
                compared=tuple((names[row.prompt_row, other], verdict) for other, verdict in row.compared),
                policy_version=self.plan.version,
                reward=rewards[row.prompt_row][row.sample],
            )
            for row in judged
        ]  # fmt: skip


class Drawer:
    """Draws the samples of one step after the other.

    With `rollout.late` the next step is planned and drawn before a step's verdicts are waited for, with the weights
    from before the step's update; they stay as the policy's copy `previous`. So a run that is resumed or goes on after
    its last step, where nothing was drawn ahead, draws what one run without a break would have drawn, bit for bit.

    Args:
        config: its sections `run` and `rollout`, and which weights sample.
        policy: samples.
        loss: says what the rollout records.
        prompts, rubrics: where those come from.
        filters: say which prompts are banned.
        shard: this rank's rows.
        advantage: says which samples a judge that compares is shown.
    """

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        loss: Loss,
        prompts: PromptSampler,
        rubrics: RubricBook,
        filters: Filter,
        shard: Shard,
        advantage: Advantage,
    ) -> None:
        self.config, self.policy, self.loss = config, policy, loss
        self.prompts, self.rubrics, self.filters, self.shard = prompts, rubrics, filters, shard
        self.advantage = advantage
        self.weights = "old" if loss.kind == "forward" and config.loss.sample_with == "old" else None
        self._by_id = {prompt.id: prompt for prompt in prompts.prompts.prompts}
        self._plan: Plan | None = None
        self._ahead: Drawn | None = None

    def next(self, step: int, last: int, worker: JudgeWorker) -> Drawn:
        """The samples of `step`; a collective.

        Args:
            step: one more than at the last call.
            last: steps after which the run pauses; nothing is drawn ahead for it.
            worker: judges what is drawn, in the background.
        """
        drawn = self._ahead or self._draw(self._plan or self._make_plan(step), worker)
        if self.config.rollout.late:
            self.policy.keep_previous(self.weights)
            self._plan = self._make_plan(step + 1)
            self._ahead = self._draw(self._plan, worker) if step + 1 < last else None
        return drawn

    def _make_plan(self, step: int) -> Plan:
        epoch, prompts = self.prompts.epoch, self.prompts.take(self.filters.bans())
        ids = tuple(prompt.id for prompt in prompts)
        return Plan(step, epoch, self.prompts.epoch > epoch, self.policy.version, ids)

    def _draw(self, plan: Plan, worker: JudgeWorker) -> Drawn:
        prompts = [self._by_id[name] for name in plan.prompt_ids]
        rubrics, options = self.rubrics.of(prompts), self.config.rollout
        sampled = draw(
            self.policy, prompts, rubrics, self.shard, worker, sampler=options.sampler,
            record=self.loss.record(options.sampler), run_seed=self.config.run.seed, step=plan.step,
            batch=options.batch_size,
            weights="previous" if plan.version < self.policy.version else self.weights,
            matches=partial(self._matches, plan) if self.config.judge.compare else None,
        )  # fmt: skip
        sampled.rollout = replace(sampled.rollout, policy_version=plan.version)
        return Drawn(plan, prompts, rubrics, sampled)

    def _matches(self, plan: Plan, prompt_row: int) -> list[tuple[int, int]]:
        key = group_key(plan.step, prompt_row, plan.prompt_ids[prompt_row])
        return self.advantage.matches(self.config.rollout.drawn, key)

    def state_dict(self) -> dict[str, Any]:
        """The plan of the next step, if it was made; its samples are drawn again."""
        return {"plan": None if self._plan is None else asdict(self._plan)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`; samples under way are dropped."""
        if self._ahead is not None:
            self._ahead.sampled.cancel()
        plan = state["plan"]
        self._plan, self._ahead = None if plan is None else Plan(**plan), None
