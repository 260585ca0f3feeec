"""One rollout becomes optimizer steps: flat (row, step) items, one normaliser, backward per micro-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.errors import RunError
from pipelines import shards
from pipelines.policy import Policy, Rollout, StepOut
from pipelines.samplers import TokenSampler
from trainers import losses
from trainers.config import LossSection, OptimSection
from trainers.distributed import Dist
from trainers.losses import Batch, Loss, LossOut, weighted_sum
from trainers.losses.kl import KL
from trainers.metrics import Means, add_replay
from trainers.sharding import Shard
from trainers.timesteps import level_noise, noise_levels, trained_steps
from trainers.zero2 import Zero2
from trainers.zero3 import Zero3

RECOMPUTED = {"old_log_prob": "log_prob", "old_mean": "mean", "old_value": "value"}
"""Fields of `Batch` from the policy before the update, and the fields of `StepOut` that they are."""


@dataclass
class Items:
    """The trained items of this rank, in the order of their micro-batches. n = rows x steps (or noise
    levels)."""

    rows: Tensor
    """[n] int64, row of the rollout."""
    steps: Tensor
    """[n] int64, position in `rollout.steps` (replay), or number of the noise level (forward)."""
    batch: Batch
    """[n], filled by `Updater._prepare`."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass
class Plan:
    """One optimizer step: slices of the items, the same number of them on all ranks."""

    microbatches: list[Tensor]
    """Item numbers of each forward."""
    weights: list[Tensor]
    """Their weights; 0 = padding."""
    normaliser: float
    """Items with weight > 0 over all ranks, skipped ones included."""
    fresh: bool = False
    """The weights are still those from before the update: what would be recomputed is what the forward gives."""


def decayed(step: int, steps: int, share: float) -> float:
    """Factor of the learning rate at rollout `step` of `steps`: 1, then linear to 0 over the last `share` of them."""
    return min(1.0, (steps - step) / (share * steps)) if share and step < steps else 1.0


@dataclass
class UpdateStats:
    """What an update did."""

    log: Means
    """This rank's numbers; `log.reduce(dist)` joins them over ranks."""
    updates: int = 0
    """Optimizer steps made."""
    forwards: int = 0
    """Items forwarded with gradient on this rank, padding included."""
    skipped: int = 0
    """Items of this rank whose forward was left out because their gradient is exactly 0."""


class Updater:
    """Moves the policy by one rollout.

    Args:
        policy: what is trained; its module is already wrapped for the ranks, but for zero3, which is done here.
        loss: which loss, and `kl`: which distance from the reference.
        optim, options: the sections of the configuration.
        precision: fp16 scales the gradients.
        dist: the ranks.
        importance_cap: largest weight of a sample (token) by the ratio of the policy before the update to what
            sampled it.
        shard: with zero2 and zero3 DeepSpeed shares gradients and optimizer over the ranks.
    """

    def __init__(
        self,
        policy: Policy,
        loss: Loss,
        kl: KL,
        optim: OptimSection,
        options: LossSection,
        precision: str = "fp32",
        dist: Dist | None = None,
        importance_cap: float = 3.0,
        shard: Shard = "none",
    ) -> None:
        self.importance_cap = importance_cap
        self.policy, self.loss, self.kl, self.dist = policy, loss, kl, dist or Dist()
        self.optim, self.options = optim, options
        named = policy.trainable_parameters()
        if not named:
            raise RuntimeError("the policy has no trainable parameter: nothing would be trained")
        self.parameters = [parameter for _, parameter in named]
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay
        )
        self.engine: Zero2 | Zero3 | None = None
        if shard == "zero2":
            self.engine = Zero2(self.parameters, self.optimizer, optim.grad_clip)
        elif shard == "zero3":
            driven = Zero3(policy.module, self.parameters, self.optimizer, optim.grad_clip)
            policy.wrap(lambda _: driven.module)
            self.engine = driven
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.made = 0
        """Optimizer steps since the start of the run."""

    def __call__(
        self,
        rollout: Rollout,
        advantage: np.ndarray,
        weight: np.ndarray,
        *,
        run_seed: int,
        step: int,
        sampled_at: int,
        rate: float = 1.0,
    ) -> UpdateStats:
        """Make the optimizer steps of one rollout. A collective: all ranks call it.

        Args:
            rollout: this rank's rows, [B].
            advantage: [B].
            weight: [B], 0 = not trained on.
            run_seed: with `step`, seeds the noise levels of forward losses and the choice of `timestep_fraction`.
            step: number of the rollout in the run.
            sampled_at: rows per forward of the rollout; 0 = they varied.
            rate: factor of the learning rate.
        """
        recompute = self._recompute(rollout, sampled_at)
        items, trained, live = self._items(rollout, advantage, weight, run_seed, step)
        exact = self.loss.kind == "replay" and not recompute and sampled_at == self.optim.batch_size
        # the number of rows decides how often a token model calls its head, and ZeRO-3 gathers the head for each
        even = isinstance(self.engine, Zero3) and rollout.sampler.kind == "tokens"
        full = exact or even
        plans = [self._plan(items, trained & chunk, live & chunk, full) for chunk in self._chunks(rollout, items)]
        stats = UpdateStats(Means(), skipped=int((trained & ~live).sum()) if self.options.skip_zero else 0)
        if recompute and self.optim.epochs == 1 and not self._sampled_otherwise(rollout):
            for plan in [plan for plan in plans if plan.microbatches][:1]:
                plan.fresh = True
        self._prepare(rollout, items, plans, recompute)
        if recompute and any(plan.microbatches for plan in plans) and self._sampled_otherwise(rollout):
            self._weigh(rollout, items, plans, stats.log)
        for epoch in range(self.optim.epochs):
            for plan in plans:
                if plan.microbatches:
                    self._accumulate(rollout, items, plan, stats.log, first_pass=epoch == 0 and stats.updates == 0)
                    stats.log.add("optim/grad_norm", self._step(rate))
                    stats.updates += 1
                    stats.forwards += sum(len(part) for part in plan.microbatches)
        stats.log.add("loss/updates_per_rollout", stats.updates)
        stats.log.add("optim/lr", self.optimizer.param_groups[0]["lr"])
        return stats

    def _items(
        self, rollout: Rollout, advantage: np.ndarray, weight: np.ndarray, run_seed: int, step: int
    ) -> tuple[Items, Tensor, Tensor]:
        """All items of this rank, which are trained (weight > 0), and which have a gradient at all."""
        forward, whole = self.loss.kind == "forward", rollout.sampler.kind == "tokens"
        per_row = self.options.levels if forward else 1 if whole else len(rollout.steps)
        rows = torch.arange(len(rollout)).repeat_interleave(per_row)
        steps = torch.arange(per_row).repeat(len(rollout))
        of_rows = torch.as_tensor(weight, dtype=torch.float32)[rows]
        if rollout.mask is not None and not forward and not whole:
            of_rows = of_rows * rollout.mask.cpu()[rows, steps]
        if self.options.timestep_fraction < 1:
            of_rows = of_rows * trained_steps(rollout, self.options.timestep_fraction, run_seed, step)[rows, steps]
        wanted = torch.as_tensor(advantage, dtype=torch.float32)[rows]
        trained = of_rows > 0
        live = trained.clone()
        if self.loss.skips_zero_advantage and not self.kl.active:
            live &= wanted != 0
        batch = Batch(advantage=wanted.to(self.device), weight=of_rows.to(self.device))
        if whole and rollout.mask is not None:
            batch.mask = rollout.mask.to(self.device)
        if forward:
            batch.x0 = rollout.samples[rows.to(rollout.samples.device)]
            batch.t = noise_levels(rollout, self.options.levels, run_seed, step)
            noise = level_noise(rollout, self.options.levels, run_seed, step)
            t = batch.t.reshape(-1, *[1] * (batch.x0.ndim - 1))
            batch.x_t = (1 - t) * batch.x0 + t * noise
        return Items(rows, steps, batch), trained, live

    def _chunks(self, rollout: Rollout, items: Items) -> Iterator[Tensor]:
        """Masks [n], one per optimizer step of an epoch: whole groups, dealt out by their row in the step."""
        count = self.optim.updates_per_rollout
        for number in range(count):
            yield rollout.prompt_rows.cpu()[items.rows] % count == number

    def _plan(self, items: Items, trained: Tensor, live: Tensor, full: bool) -> Plan:
        size, item_weight = self.optim.batch_size, items.batch.weight
        assert item_weight is not None
        mine = (live if self.options.skip_zero else trained).nonzero().flatten()
        normaliser = self.dist.sum(float(trained.sum()))
        # Without any gradient on any rank there is no step, whether or not the forwards are skipped: momentum
        # would move the weights otherwise.
        anything = self.dist.sum(float(live.sum())) > 0
        count = int(self.dist.max(math.ceil(len(mine) / size))) if anything else 0
        parts, weights = [], []
        for number in range(count):
            part = mine[number * size : (number + 1) * size]
            weight = item_weight[part.to(self.device)]
            # Recorded log-probs ask for the rollout's batch size (kernels depend on it); a rank that has run out of
            # items goes on with one of weight 0, so that all ranks run the same collectives.
            wanted = size if full else max(len(part), 1)
            if short := wanted - len(part):
                filler = part[:1] if len(part) else mine[:1] if len(mine) else torch.zeros(1, dtype=torch.long)
                part = torch.cat([part, filler.expand(short)])
                weight = torch.cat([weight, weight.new_zeros(short)])
            parts.append(part)
            weights.append(weight)
        return Plan(parts, weights, normaliser)

    def _recompute(self, rollout: Rollout, sampled_at: int) -> bool:
        """Whether old log-probs come from the policy before the update. Tokens: their sampling has other kernels."""
        if self.loss.kind == "forward" or self.options.old_log_prob == "recorded":
            return False
        other = rollout.sampler.kind == "tokens" or self._sampled_otherwise(rollout)
        return other or self.options.old_log_prob == "recompute" or sampled_at != self.optim.batch_size

    def _sampled_otherwise(self, rollout: Rollout) -> bool:
        """Whether earlier weights, or other logits than the trained ones, drew the samples."""
        sampler = rollout.sampler
        other = isinstance(sampler, TokenSampler) and sampler.guidance_mode == "cond_is"
        return other or rollout.policy_version < self.policy.version

    @torch.no_grad()
    def _prepare(self, rollout: Rollout, items: Items, plans: list[Plan], recompute: bool) -> None:
        """Fill the batch with all that comes from the rollout, the old policy and the reference."""
        batch, needs = items.batch, self.loss.needs | self.kl.needs
        if self.loss.kind == "replay":
            where = (items.rows,) if rollout.sampler.kind == "tokens" else (items.rows, items.steps)
            for name, source in (("old_log_prob", rollout.log_probs), ("old_mean", rollout.means),
                                 ("state", rollout.states), ("action", rollout.actions)):  # fmt: skip
                if name in needs and not (recompute and name.startswith("old_")):
                    assert source is not None
                    setattr(batch, name, source[tuple(index.to(source.device) for index in where)])
            if recompute:
                stale = [plan for plan in plans if not plan.fresh]
                self._run(rollout, items, stale, {k: v for k, v in RECOMPUTED.items() if k in needs})
        elif "velocity_old" in needs:
            with self.policy.weights("old"):
                self._run(rollout, items, plans, {"velocity_old": "velocity"})
        reference = {"mean_ref": "mean", "velocity_ref": "velocity", "log_prob_ref": "log_prob"}
        if wanted := {k: v for k, v in reference.items() if k in needs}:
            with self.policy.weights("reference"):
                self._run(rollout, items, plans, wanted)

    def _weigh(self, rollout: Rollout, items: Items, plans: list[Plan], log: Means) -> None:
        """Importance weights min(exp(log p_before - log p_sampled), cap) of decoupled PPO (arXiv 2110.00641), of flow
        models by their log-probs as everywhere, means over latent dimensions."""
        batch = items.batch
        assert batch.old_log_prob is not None and rollout.log_probs is not None and batch.weight is not None
        where = (items.rows,) if rollout.sampler.kind == "tokens" else (items.rows, items.steps)
        sampled = rollout.log_probs[tuple(index.to(rollout.log_probs.device) for index in where)]
        gap = batch.old_log_prob - sampled.to(self.device)
        if getattr(self.loss.options, "ratio", "token") == "sequence":
            gap = losses.per_item(LossOut(gap), batch.mask).loss
        batch.importance = gap.exp().clamp(max=self.importance_cap)
        done = torch.zeros(len(items), dtype=torch.bool, device=self.device)
        for part in (part for plan in plans for part in plan.microbatches):
            done[part.to(self.device)] = True
        weight = batch.weight * done
        per_item = losses.per_item(LossOut(-gap, {"importance": batch.importance}), batch.mask)
        log.add("replay/sampled_kl", per_item.loss, weight)
        log.add("loss/importance", per_item.metrics["importance"], weight)

    def _run(self, rollout: Rollout, items: Items, plans: list[Plan], wanted: dict[str, str]) -> None:
        """Forward all micro-batches under the present weights and keep outputs as fields of the batch."""
        for plan in plans:
            for part in plan.microbatches:
                out = self._forward(rollout, items, part, frozenset(wanted.values()))
                for name, output in wanted.items():
                    value = getattr(out, output)
                    kept = getattr(items.batch, name)
                    if kept is None:
                        kept = value.new_zeros(len(items), *value.shape[1:])
                        setattr(items.batch, name, kept)
                    kept[part.to(kept.device)] = value

    def _forward(self, rollout: Rollout, items: Items, part: Tensor, need: frozenset[str]) -> StepOut:
        rows = items.rows[part]
        if self.loss.kind == "replay":
            return self.policy.log_prob(rollout, rows, items.steps[part], need)
        assert items.batch.x_t is not None and items.batch.t is not None
        index = part.to(items.batch.x_t.device)
        x, t = items.batch.x_t[index], items.batch.t[index]
        return StepOut(velocity=self.policy.predict(rollout, rows, x, t), sigma=t)

    def _accumulate(self, rollout: Rollout, items: Items, plan: Plan, log: Means, first_pass: bool) -> None:
        need = self.loss.outputs | self.kl.outputs
        last = len(plan.microbatches) - 1
        for number, (part, weight) in enumerate(zip(plan.microbatches, plan.weights, strict=True)):
            with nullcontext() if number == last else self.dist.no_sync(self.policy.module):
                step = self._forward(rollout, items, part, need)
                batch = items.batch.take(part.to(self.device))
                if plan.fresh:
                    for name, output in RECOMPUTED.items():
                        if name in self.loss.needs:
                            setattr(batch, name, getattr(step, output).detach())
                out = self.loss(step, batch)
                total = out.loss
                if self.kl.active:
                    distance = self.kl(step, batch)
                    total, out.metrics = total + distance.loss, out.metrics | distance.metrics
                scalar = weighted_sum(total, weight, plan.normaliser, self.dist.world)
                # Backward here, not after the loop: the graph of one micro-batch lives at a time.
                if self.engine is not None:
                    self.engine.backward(scalar, number == last)
                else:
                    self.scaler.scale(scalar).backward()
            log.add_all(out.metrics, weight)
            log.add("loss/value", total, weight)
            if first_pass and step.log_prob is not None:
                self._check_replay(log, rollout, step.log_prob, batch, (items.rows[part], items.steps[part]), weight)

    def _check_replay(
        self,
        log: Means,
        rollout: Rollout,
        log_prob: Tensor,
        batch: Batch,
        where: tuple[Tensor, Tensor],
        weight: Tensor,
    ) -> None:
        """The first pass against the log-probs that it starts from, and against those of the rollout."""
        assert batch.old_log_prob is not None and rollout.log_probs is not None
        index = where if log_prob.ndim == 1 else where[:1]
        sampled = rollout.log_probs[tuple(part.to(rollout.log_probs.device) for part in index)].to(log_prob.device)
        apart = losses.per_item(LossOut((log_prob.detach() - sampled).abs()), batch.mask).loss
        log.add("replay/sampled_absdiff", apart, weight)
        if log_prob.ndim == 1:
            add_replay(log, log_prob, batch.old_log_prob, rollout.steps[where[1]], weight)
            return
        mask = torch.ones_like(log_prob) if batch.mask is None else batch.mask.to(log_prob.dtype)
        each = (mask * weight.unsqueeze(1)).flatten()
        add_replay(log, log_prob.flatten(), batch.old_log_prob.flatten(), None, each)

    def _step(self, rate: float) -> float:
        """Clip, step and clear; returns the gradient norm before clipping."""
        warm = self.optim.warmup
        for group in self.optimizer.param_groups:
            group["lr"] = self.optim.lr * rate * (min(1.0, (self.made + 1) / warm) if warm else 1.0)
        norm = self._clip() if self.engine is None else self.engine.step()
        finite = math.isfinite(norm) or self.scaler.is_enabled()
        if finite and self.engine is None:
            self.scaler.step(self.optimizer)
        elif not finite:
            raise RunError(f"the gradient norm is {norm}: the update would destroy the weights, so it was not made")
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.made += 1
        return norm

    def _clip(self) -> float:
        """Clip the gradients; returns their norm before."""
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if self.optim.grad_clip is None else self.optim.grad_clip
        norm = shards.full(nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)
        return float(norm)

    def state_dict(self) -> dict:
        """Optimizer, grad scaler and counter."""
        return {
            "optimizer": (self.engine or self.optimizer).state_dict(),
            "scaler": self.scaler.state_dict(),
            "made": self.made,
        }

    def load_state_dict(self, state: dict) -> None:
        """Inverse of `state_dict`."""
        if self.engine is not None:
            self.engine.load_state_dict(state["optimizer"])
        else:
            self.optimizer.load_state_dict(shards.optimizer_state(self.optimizer, state["optimizer"]))
        self.scaler.load_state_dict(state["scaler"])
        self.made = int(state["made"])
