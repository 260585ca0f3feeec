"""The on-policy loop: sample, judge, aggregate, advantages, update, log, save."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from accelerate.utils import broadcast_object_list

from mmrubric import advantage, aggregate, filters
from mmrubric.config import config_hash, save_config
from mmrubric.errors import InputError, RunError
from mmrubric.group import Group
from mmrubric.record import RunRecord
from pipelines import shards
from trainers import card, checks, parts, rollouts
from trainers.checkpoint import Checkpoint, CheckpointStore
from trainers.config import TrainConfig
from trainers.distributed import Dist, split_rows
from trainers.drawing import Drawer, Drawn
from trainers.evaluate import EvalResult, evaluate
from trainers.guards import Guards, high_freq_energy, relative_distance
from trainers.judge_worker import JudgeWorker, check_failed_pairs, check_failures, same_judge
from trainers.metrics import Invariants, default_limits, group_metrics, pair_metrics, table_metrics
from trainers.parts import Parts
from trainers.prompts import PromptSampler
from trainers.tracking import Tracking
from trainers.update import Updater, UpdateStats, decayed

logger = logging.getLogger(__name__)


class Trainer:
    """One training run. Use as a context manager: leaving it ends judges, trackers and files.

    `run(n)` makes n steps, so that a schedule may change prompts, rubrics or aggregator in between (with `rollout.late`
    the next step's prompts are chosen by then); `snapshot()` and `restore()` hold everything that the next step depends
    on.

    Args:
        config: the settings.
        made: the parts, if they are not to be built from the settings.

    Raises:
        InputError: before weights load, for anything that the user can mend.
    """

    def __init__(self, config: TrainConfig, made: Parts | None = None) -> None:
        self.config = config
        self.directory = config.run.directory
        self.checkpoints = CheckpointStore(self.directory / "checkpoints", config.run.keep)
        self._start = self._starting_point()
        made = made or parts.build(config)
        self.accelerator, self.policy, self.rubrics, self.heldout = (
            made.accelerator, made.policy, made.rubrics, made.heldout,
        )  # fmt: skip
        self.eval_rubrics, self.same_judge = made.eval_rubrics, False
        if made.eval_judge is not None:
            self.same_judge = same_judge(made.judge, made.eval_judge)
        self.dist = Dist()

        self.prompts = PromptSampler(made.prompts, config.data.prompts_per_step, config.run.seed, config.data.shuffle)
        self.shard = split_rows(
            config.data.prompts_per_step, config.rollout.drawn, self.dist.world,
            "whole" if config.judge.compare else "spread", updates=config.optim.updates_per_rollout,
        )[self.dist.rank]  # fmt: skip
        self.aggregator = aggregate.build(config.reward.aggregate, **config.reward.options)
        self.advantage = advantage.build(config.advantage.name, **checks.advantage_options(config))
        self.loss, self.kl, self.decay = checks.loss_of(config), checks.kl_of(config), checks.decay_of(config)
        self.updater = Updater(
            self.policy,
            self.loss,
            self.kl,
            config.optim,
            config.loss,
            config.model.precision,
            self.dist,
            config.rollout.importance_cap,
            parts.check_launch(config).shard or "none",
        )
        self.filters = filters.Chain(config.filter.use)
        self.drawer = Drawer(
            config, self.policy, self.loss, self.prompts, self.rubrics, self.filters, self.shard, self.advantage
        )
        self.guards = Guards(config.guards)
        self.invariants = Invariants(self._limits(), config.run.strict)
        self.done = 0
        """Finished steps."""
        self._last = config.run.steps
        """Steps after which the present `run` ends."""
        self.stopped = ""
        """Why the run ended early, or empty."""
        self.last: dict[str, float] = {}
        """Metrics of the last step."""

        kept = 0
        if self._start is not None:
            state = self._start.load()
            kept = state["metrics_position"]
            self.restore(state)
        self._open(made, kept)

    def run(self, n: int | None = None) -> int:
        """Make n more steps (None = up to run.steps) and write the last checkpoint; returns the finished
        steps."""
        last = self._last = self.config.run.steps if n is None else self.done + n
        if self.config.eval.every and self.done == 0:
            self.evaluate()
        saved = self.done
        while self.done < last and not self.stopped:
            self.step()
            ended = self.done == last or bool(self.stopped)
            if self.config.eval.every and (ended or self.done % self.config.eval.every == 0):
                self.evaluate()
            if self.config.run.save_every and self.done % self.config.run.save_every == 0:
                self.save()
                saved = self.done
        if self.done > saved:
            self.save()
        return self.done

    def step(self) -> dict[str, float]:
        """Sample, judge, aggregate, advantages, update, log. Returns the metrics; the same on all ranks."""
        config, step, began = self.config, self.done, time.perf_counter()
        drawn = self.drawer.next(step, self._last, self.worker)
        sampled_in = time.perf_counter() - began
        judged = rollouts.gather(drawn.sampled, self.dist, f"step {step}")
        waited_in = time.perf_counter() - began - sampled_in
        groups, failed = self._judged(drawn, judged)
        trained = self.filters.keep(groups)
        self.filters.observe(groups, rollouts.contexts_of(drawn.prompts, step, drawn.plan.epoch))
        deserved = rollouts.deserve(
            groups, self.advantage, config.rollout, run_seed=config.run.seed, tie_weight=self.loss.tie_weight,
            trained=trained,
        )  # fmt: skip

        staleness = self.policy.version - drawn.plan.version
        stats = self.updater(
            drawn.sampled.rollout, *deserved.of(self.shard), run_seed=config.run.seed, step=step,
            sampled_at=self._sampled_at(), rate=decayed(step, config.run.steps, config.optim.decay),
        )  # fmt: skip
        self._follow(step)
        if drawn.plan.ends_epoch:
            self.aggregator.end_epoch()
        self.done += 1

        metrics = self._measure(drawn, groups, stats) | {
            "judge/fail_rate": failed,
            "rollout/staleness": float(staleness),
            "filter/dropped_groups": float((~trained).sum()),
            "filter/banned_prompts": float(self.prompts.banned(self.filters.bans())),
            "time/sample": sampled_in,
            "time/judge_wait": waited_in,
            "time/step": time.perf_counter() - began,
        }
        metrics["time/images_per_second"] = len(judged) / metrics["time/step"]
        self._log(metrics, drawn, judged, groups)
        return metrics

    def _judged(self, drawn: Drawn, judged: list[rollouts.Judged]) -> tuple[list[Group], float]:
        """What the judge made of each prompt's samples, and the share of its answers that are failures."""
        options, step = self.config.judge, drawn.plan.step
        permute = (self.config.run.seed, step) if self.config.advantage.permute_within_groups else None
        if options.compare:
            answers = [verdict for row in judged for _, verdict in row.compared]
            failed = check_failed_pairs(answers, options.max_failure_share, f"step {step}")
            return rollouts.compared_groups(judged, drawn.plan.prompt_ids, step, permute=permute), failed
        verdicts = [verdict for row in judged for verdict in row.verdicts]
        failed = check_failures(verdicts, options.max_failure_share, f"step {step}")
        tables = rollouts.tabulate(judged, drawn.rubrics, permute=permute)
        return rollouts.reward(tables, drawn.prompts, self.aggregator, step, drawn.plan.epoch), failed

    def evaluate(self, keep_images: bool = False, progress: Callable[[int, int], None] | None = None) -> EvalResult:
        """Evaluate on the held-out prompts with the deployed sampler. It changes and chooses nothing.

        Args:
            keep_images: put the pictures into the result.
            progress: called with (pictures done, pictures in all); None shows the run's own bar.
        """
        options = self.config.eval
        if self.heldout is None or self.eval_rubrics is None or self.eval_worker is None:
            raise InputError("eval.every=0: this run was set up without an evaluation")
        result = evaluate(
            self.policy, self.heldout.prompts, self.eval_rubrics.of(self.heldout.prompts), self.eval_worker,
            sampler=options.sampler, samples=options.samples, seed=options.seed, batch=options.batch_size,
            weights=options.weights or ("raw" if self.config.ema.decay is None else "ema"),
            max_failure_share=options.max_failure_share, step=self.done, keep_images=keep_images,
            same_judge=self.same_judge, dist=self.dist,
            progress=progress or self.tracking.phase("evaluating"),
        )  # fmt: skip
        self.tracking.log(self.done, result.metrics(), kind="eval")
        if self.record is not None:
            self.record.append(result.rows(), result.rubrics)
        return result

    def _follow(self, step: int) -> None:
        """The old policy and the average follow the trained weights."""
        self.policy.version += 1
        if self.loss.kind == "forward":
            self.policy.update_old(self.decay(step))
        if self.config.ema.decay is not None and self.done % self.config.ema.every == self.config.ema.every - 1:
            self.policy.update_ema(self.config.ema.decay)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the next step depends on. A collective; shards come together on rank 0."""
        return {
            "step": self.done,
            "policy": shards.gathered(self.policy.state_dict()),
            "updater": shards.gathered(self.updater.state_dict()),
            "prompts": self.prompts.state_dict(),
            "drawer": self.drawer.state_dict(),
            "filters": self.filters.state_dict(),
            "aggregator": self.aggregator.state_dict(),
            "guards": self.guards.state_dict(),
            "rubrics": self.rubrics.state_dict(),
            "rng": self.dist.gather([parts.rng_state()]),
            "metrics_position": self.tracking.position,
            "stopped": self.stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `snapshot`.

        Raises:
            InputError: it belongs to another set-up.
        """
        self.policy.load_state_dict(state["policy"])
        self.updater.load_state_dict(state["updater"])
        self.prompts.load_state_dict(state["prompts"])
        self.drawer.load_state_dict(state["drawer"])
        self.filters.load_state_dict(state["filters"])
        self.aggregator.load_state_dict(state["aggregator"])
        self.guards.load_state_dict(state["guards"])
        self.rubrics.load_state_dict(state["rubrics"])
        if len(state["rng"]) == self.dist.world:
            parts.load_rng_state(state["rng"][self.dist.rank])
        self.done = int(state["step"])
        self.stopped = state["stopped"]

    def save(self) -> None:
        """Write a checkpoint. A collective; if rank 0 cannot write, all ranks raise.

        Raises:
            RunError: the disk is full. Earlier checkpoints are intact.
        """
        state = self.snapshot()
        failure: list[str | None] = [None]
        if self.dist.main:
            try:
                if self.record is not None:
                    self.record.sync()
                self.checkpoints.save(self.done, state, self.config.model_dump(mode="json"))
            except RunError as error:
                failure = [str(error)]
        if self.dist.world > 1:
            broadcast_object_list(failure, from_process=0)
        if failure[0] is not None:
            raise RunError(failure[0])

    def export(self) -> None:
        """Write the weights to `<run>/model`, loadable by plain diffusers: the average where one is kept. With a model
        card beside them."""
        if self.dist.main or shards.is_sharded(self.policy.module):
            with nullcontext() if self.config.ema.decay is None else self.policy.weights("ema"):
                self.policy.save_pretrained(str(self.directory / "model"))
        if self.dist.main:
            card.write_card(self.directory, self.directory / "model")
        self.dist.barrier()

    def _starting_point(self) -> Checkpoint | None:
        found = self.checkpoints.find(self.config.run.resume)
        if found is not None:
            found.check(self.config.model_dump(mode="json"))
        elif self.config.run.resume is None and self.checkpoints.latest() is not None:
            raise InputError(
                f"{self.checkpoints.directory} holds checkpoints of an earlier run: "
                f"continue it with run.resume=auto, "
                "or choose another run.name"
            )
        return found

    def _sampled_at(self) -> int:
        """Rows per forward of the rollout, 0 if they varied."""
        batch = self.config.rollout.batch_size or len(self.shard)
        return batch if len(self.shard) % batch == 0 else 0

    def _limits(self) -> dict[str, Any]:
        optim, config = self.config.optim, self.config
        return default_limits(
            precision=config.model.precision,
            group_size=config.rollout.drawn,
            unique_prompts=config.data.prompts_per_step,
            grouped=config.advantage.name != "reward",
            old_moves=config.loss.name == "nft"
            and (config.loss.old_schedule == "type1" or optim.updates_per_rollout * optim.epochs > 1),
        )

    def _measure(self, drawn: Drawn, groups: list[Group], stats: UpdateStats) -> dict[str, float]:
        real = self.shard.real
        stats.log.add("image/high_freq_energy", high_freq_energy(drawn.sampled.rollout.images[real]), len(real))
        stats.log.add("loss/skipped_items", stats.skipped, reduction="sum")
        metrics = stats.log.reduce(self.dist)
        metrics |= group_metrics([group.rewards for group in groups], list(drawn.plan.prompt_ids))
        if tables := [group.table for group in groups if group.table is not None]:
            metrics |= table_metrics(tables)
        if isinstance(self.advantage, advantage.rpo.Rpo):
            metrics |= pair_metrics([v for group in groups for _, _, v in self.advantage.pairs(group)])
        elif self.config.judge.compare:
            metrics |= pair_metrics([v for group in groups for _, _, v in group.pairs or ()])
        metrics["adapter/trainable_params"] = float(sum(map(shards.numel, self.updater.parameters)))
        if self.dist.world > 1 and not shards.is_sharded(self.policy.module):
            metrics["dist/param_checksum_spread"] = self.dist.checksum_spread(self.updater.parameters)
        state = self.policy.state_dict() if self.config.ema.decay is not None else {}
        total = self.dist.sum if shards.is_sharded(self.policy.module) else float
        pairs = [
            (shards.local(state[f"trainable/{n[4:]}"]), shards.local(v))
            for n, v in state.items()
            if n.startswith("ema/")
        ]
        report = self.guards.update(
            self.done,
            # the mean share of won comparisons is one half whatever happens
            reward=None if self.config.judge.compare else metrics["reward/mean"],
            kl=metrics.get(f"loss/kl_{self.kl.name}") if self.kl.active else None,
            ema_distance=relative_distance(pairs, total) if pairs else None,
            high_freq=metrics["image/high_freq_energy"],
        )
        metrics |= report.metrics
        if report.stop:
            self.stopped = "; ".join(str(fired) for fired in report.fired if fired.action == "stop")
        elif (left := self.prompts.left(self.filters.bans())) < self.prompts.per_step:
            self.stopped = f"the filters banned all but {left} prompts, a step needs {self.prompts.per_step}"
        if report.fired and self.config.run.strict:
            raise RunError(f"step {self.done}: " + "; ".join(map(str, report.fired)) + " (strict: true)")
        self.last = metrics
        return metrics

    def _log(self, metrics: dict[str, float], drawn: Drawn, judged: list[rollouts.Judged], groups: list[Group]) -> None:
        step, rollout = drawn.plan.step, drawn.sampled.rollout
        self.invariants.check(step, metrics)
        if self.record is not None:
            self.record.append(drawn.rows(judged, groups, self.worker.judge.id), drawn.rubrics)
        self.tracking.log(step, metrics)
        self.tracking.progress(
            self.done, reward=metrics["reward/mean"], strict=metrics.get("reward/strict_completion"),
            images_per_second=metrics["time/images_per_second"],
        )  # fmt: skip
        every = self.config.tracking.images_every
        if every and step % every == 0:
            shown = self.shard.real[: self.config.tracking.images]
            captions = [rollout.prompts[rollout.prompt_index[i]].text for i in shown]
            self.tracking.images(step, "rollout", rollout.images[shown], captions)

    def _open(self, made: Parts, kept: int) -> None:
        """Files and threads: last, so that nothing is written or started for a run that is refused."""
        config = self.config
        if self.dist.main:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.checkpoints.clean()
            save_config(config, self.directory / "config.yaml")
        self.dist.barrier()
        settings = config.model_dump(mode="json")
        self.tracking = Tracking(self.directory, config.tracking, self.accelerator, settings, config.run.steps)
        self.tracking.cut(kept)
        path = self.directory / "record.jsonl"
        self.record = RunRecord(path, self.done, config_hash(config)) if self.dist.main else None
        self.worker = JudgeWorker(made.judge, background=config.rollout.overlap)
        self.eval_worker = None
        if made.eval_judge is not None:
            self.eval_worker = self.worker if made.eval_judge is made.judge else JudgeWorker(made.eval_judge)

    def close(self) -> None:
        """End judges, trackers and files. Safe to call twice."""
        self.worker.close()
        if self.eval_worker is not None:
            self.eval_worker.close()
        self.tracking.close()
        if self.record is not None:
            self.record.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
