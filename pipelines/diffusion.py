"""A flow or DDIM model as a policy: one model call and one step serve sampling, replay and training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from mmrubric.rubric import Prompt
from pipelines import flow, shards, windows
from pipelines.conditioning import Conditioner, Embedding, FlowAdapter
from pipelines.policy import (
    RECORDABLE,
    STEP_FIELDS,
    Rollout,
    RowSeed,
    StepOut,
    batches,
    distinct,
)
from pipelines.quiet import quiet
from pipelines.samplers import Sampler, TokenSampler
from pipelines.seeds import NoiseStream
from pipelines.trained import DEPLOYED_FILE, TrainedPolicy, check_adopted, check_rows, number_rows, sample_ids

PROVIDES = frozenset({"log_prob", "mean", "std", "dt", "velocity", "sigma"})


class FlowPolicy(TrainedPolicy):
    """Policy over a text-to-image model, a rectified flow or one that DDIM samples. Built by `pipelines.load_policy`.

    The model call alone runs under autocast; states, steps and log-probs are float32. Nothing here draws from
    or seeds torch's global generators. A replay gives ratio 1 to rounding when it uses as many rows per call
    as the rollout did: kernels depend on the batch size, so for other sizes recompute the old log-probs
    before the first update.

    Args:
        adapter: the model.
        lora: the trainable parameters are a LoRA adapter.
        precision: fp32, bf16 or fp16 autocast around the model call.
        copies: weights to keep besides the trained ones, of old, ema, reference, previous.
        deployed: sampler used where none is given; None = what the plain pipeline does.
        batch: rows per model call in sampling; None = all rows at once.
        shard: spreads the network's parameters over the ranks, in place. It comes before the copies are made, so that
            no rank ever holds a whole copy.
        conditioner: what encodes prompts; None = one that keeps embeddings in memory only.
    """

    kind = "flow"
    provides = PROVIDES

    def __init__(
        self,
        adapter: FlowAdapter,
        *,
        lora: bool = False,
        precision: str = "fp32",
        copies: Sequence[str] = (),
        deployed: Sampler | None = None,
        batch: int | None = None,
        shard: Callable[[nn.Module], nn.Module] | None = None,
        conditioner: Conditioner | None = None,
    ) -> None:
        super().__init__(adapter.module, lora, precision, copies, shard)
        self.adapter, self.batch = adapter, batch
        self.provides = PROVIDES - adapter.lacks
        self.deployed = self._complete(deployed or adapter.deployed(*adapter.default_size))
        self.conditioner = conditioner or Conditioner(adapter)

    def check_prompts(self, prompts: Sequence[Prompt], sampler: Sampler | None = None) -> None:
        """Refuse prompts that the text encoders would cut or cannot read.

        Raises:
            InputError: names the prompt and says by how much it is too long.
        """
        self.conditioner.check(prompts, _tokens(self._complete(sampler or self.deployed)))

    def encode(self, prompts: Sequence[Prompt], sampler: Sampler | None = None) -> None:
        """Encode prompts ahead, so that sampling and training find their embeddings. With a disk cache the ranks share
        the work and all call this."""
        sampler = self._complete(sampler or self.deployed)
        self.conditioner.encode_ahead(prompts, sampler, self._guided(sampler.guidance))

    def sample(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[RowSeed],
        sampler: Sampler | None = None,
        record: frozenset[str] = frozenset(),
        *,
        prompt_rows: Sequence[int] | Tensor | None = None,
        sample_index: Sequence[int] | Tensor | None = None,
        batch: int | None = None,
    ) -> Rollout:
        """Draw one sample per row.

        Args:
            prompts: [B], may repeat.
            seeds: [B], see `pipelines.seeds`.
            sampler: None = `deployed`.
            record: of states (states and actions), log_prob, mean; empty for evaluation.
            prompt_rows, sample_index: [B], kept in the rollout; default: number of the distinct prompt, and
                of the row within it.
            batch: rows per model call; None = the policy's own.

        Raises:
            InputError: wrong lengths, a record that is unknown or impossible, a window that does not fit, a
                prompt that is too long.
        """
        sampler = self._complete(sampler or self.deployed)
        check_rows(prompts, seeds)
        unknown = sorted(set(record) - RECORDABLE)
        if unknown:
            raise InputError(f"cannot record {', '.join(unknown)}: known are {', '.join(sorted(RECORDABLE))}")
        stochastic = windows.stochastic_steps(sampler)
        if record and not stochastic:
            raise InputError(
                f"noise '{sampler.noise}' at level {sampler.level} in {sampler.steps} steps has no "
                "stochastic step to record: use noise sde, dance or cps, a level above 0 and 2 or more steps"
            )
        unique, index = distinct(prompts)
        levels = self.adapter.levels(sampler)
        table = self.adapter.step_table(levels, sampler.noise, sampler.level, stochastic)
        if sampler.solver == "dpmsolver++":
            table = flow.second_order(table, stochastic[-1] + 1 if stochastic else 0)
        shape = self._shape(sampler)
        self.conditioner.check(unique, _tokens(sampler))
        paths, images = [], []
        with torch.no_grad():
            for part in batches(len(prompts), batch or self.batch):
                embedding = self._embed(unique, index[part], sampler)
                velocity = partial(self._velocity, embedding=embedding, guidance=sampler.guidance)
                x = NoiseStream([seed.noise for seed in seeds[part]], shape, self.device).draw()
                draw = NoiseStream([seed.path for seed in seeds[part]], shape, self.device).draw
                paths.append(flow.walk(velocity, x, draw, table, record, sampler.log_prob))
                images.append(self.adapter.decode(paths[-1].final))
        rows, numbers = number_rows(index, prompt_rows, sample_index)
        return Rollout(
            prompts=unique,
            prompt_index=index,
            prompt_rows=rows,
            sample_index=numbers,
            sample_ids=sample_ids(rows, numbers, seeds),
            seeds=list(seeds),
            policy_version=self.version,
            sampler=sampler,
            sigmas=levels,
            samples=torch.cat([path.final for path in paths]),
            images=np.concatenate(images),
            steps=torch.tensor(stochastic, dtype=torch.long),
            states=_cat([path.states for path in paths]),
            actions=_cat([path.actions for path in paths]),
            log_probs=_cat([path.log_probs for path in paths]),
            means=_cat([path.means for path in paths]),
            mask=torch.ones(len(prompts), len(stochastic), dtype=torch.bool),
        )

    def log_prob(
        self, rollout: Rollout, rows: Tensor, steps: Tensor, need: frozenset[str] = frozenset({"log_prob"})
    ) -> StepOut:
        """Replay n recorded steps under the present weights, through the code that sampled them.

        Args:
            rollout: must hold states and, for log_prob, actions.
            rows: [n] int64 rows.
            steps: [n] int64 positions in `rollout.steps`.
            need: fields of `StepOut` to fill.

        Raises:
            InputError: a need that is not provided, or states that were not recorded.
        """
        missing = sorted(set(need) - self.provides)
        if missing:
            known = ", ".join(sorted(self.provides & STEP_FIELDS))
            raise InputError(f"this policy gives no {', '.join(missing)}: known are {known}")
        if rollout.states is None or rollout.actions is None:
            raise InputError("the rollout holds no states to replay: sample with record={'states', ...}")
        sampler, device = _checked(rollout.sampler), self.device
        table = self.adapter.step_table(rollout.sigmas, sampler.noise, sampler.level, rollout.steps.tolist())
        rows, positions = rows.cpu(), steps.cpu()
        numbers = rollout.steps[positions]
        x = rollout.states[rows.to(rollout.states.device), positions.to(rollout.states.device)].to(device)
        embedding = self._embed(rollout.prompts, rollout.prompt_index[rows], sampler)
        sigma = flow.at_steps(table.sigma, numbers, x)
        velocity = self._velocity(x, sigma, embedding, sampler.guidance)
        out = StepOut(
            velocity=velocity if "velocity" in need else None,
            std=flow.at_steps(table.std, numbers, x),
            dt=flow.at_steps(table.dt, numbers, x) if "dt" in self.provides else None,
            sigma=sigma,
        )
        if need & {"mean", "log_prob"}:
            mean = flow.step_mean(x, velocity, table, numbers)
            out.mean = mean if "mean" in need else None
            if "log_prob" in need:
                action = rollout.actions[rows.to(rollout.actions.device), positions.to(rollout.actions.device)]
                assert out.std is not None
                out.log_prob = flow.log_prob(action.to(device), mean, out.std, sampler.log_prob)
        return out

    def predict(self, rollout: Rollout, rows: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Velocity [n, ...] float32 at noised points x [n, ...] with noise level t [n] in [0, 1], for the
        prompts of the given rows [n], with the guidance of the rollout and gradient through both of its
        branches.

        Raises:
            InputError: the model predicts no velocity.
        """
        if "velocity" not in self.provides:
            raise InputError(f"a {type(self.adapter.pipe).__name__} predicts no velocity: use a loss on sampled steps")
        x, t = x.to(self.device, torch.float32), t.to(self.device, torch.float32)
        sampler = _checked(rollout.sampler)
        embedding = self._embed(rollout.prompts, rollout.prompt_index[rows.cpu()], sampler)
        return self._velocity(x, t, embedding, sampler.guidance)

    def adopt(self, prompts: Sequence[Prompt], samples: Tensor | np.ndarray) -> Rollout:
        """A rollout of samples from outside: latents [B, ...] or uint8 images [B, H, W, 3], one prompt per
        row.

        Raises:
            InputError: counts differ, or images of another type or shape.
        """
        check_adopted(prompts, samples)
        with torch.no_grad():
            if isinstance(samples, np.ndarray):
                self.adapter.latent_shape(*samples.shape[1:3])
                parts = [self.adapter.encode_images(samples[p]) for p in batches(len(samples), self.batch)]
                latents, images = torch.cat(parts), samples
            else:
                latents = samples.to(self.device, torch.float32)
                images = np.concatenate([self.adapter.decode(latents[p]) for p in batches(len(latents), self.batch)])
        unique, index = distinct(prompts)
        rows, numbers = number_rows(index, None, None)
        return Rollout(
            prompts=unique,
            prompt_index=index,
            prompt_rows=rows,
            sample_index=numbers,
            sample_ids=sample_ids(rows, numbers, None),
            seeds=None,
            policy_version=self.version,
            sampler=self.deployed,
            sigmas=self.adapter.levels(self.deployed),
            samples=latents,
            images=images,
            steps=torch.zeros(0, dtype=torch.long),
        )

    def save_pretrained(self, directory: str | Path) -> None:
        """Write weights that plain diffusers loads: a whole pipeline, or for LoRA a file for
        `pipe.load_lora_weights(directory)`. Inside `weights("ema")` the EMA weights are written. A collective where
        the network is sharded: rank 0 writes."""
        state = None
        if shards.is_sharded(self._core):
            kept = shards.state_dict(self._core)
            state = shards.gathered({k: v for k, v in kept.items() if not self.lora or "lora_" in k})
            if not shards.writes():
                return
        with quiet():
            if self.lora:
                self.adapter.save_lora(directory, state)
            elif state is None:
                self.adapter.pipe.save_pretrained(directory)
            else:
                shards.whole_pipeline(self.adapter.pipe, self._core, state).save_pretrained(directory)
        fields = self.deployed.model_dump(exclude_defaults=True)
        (Path(directory) / DEPLOYED_FILE).write_text(json.dumps(fields, indent=2) + "\n")

    def _complete(self, sampler: Sampler) -> Sampler:
        """The sampler with size and text length filled in, so that a rollout replays from itself alone.

        Raises:
            InputError: it is for another sort of model.
        """
        self.adapter.check_sampler(_checked(sampler))
        deployed = getattr(self, "deployed", sampler)
        height, width = self.adapter.default_size
        tokens = deployed.max_sequence_length
        filled = {
            "height": sampler.height or deployed.height or height,
            "width": sampler.width or deployed.width or width,
            "max_sequence_length": next(
                n for n in (sampler.max_sequence_length, tokens, self.adapter.default_sequence_length) if n is not None
            ),
        }
        return sampler.model_copy(update=filled)

    def _embed(self, prompts: Sequence[Prompt], index: Tensor, sampler: Sampler) -> Embedding:
        embedding = self.conditioner.embed(prompts, index, sampler, self._guided(sampler.guidance))
        self.conditioner.encoders.send_away()
        return embedding

    def _guided(self, guidance: float) -> bool:
        """Whether a scale means a second branch with the negative text."""
        return guidance > 1.0 and self.adapter.guidance == "cfg"

    def _velocity(self, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """The one call of the model: [n, ...] float32; with classifier-free guidance both branches are one batch
        of 2n."""
        module = self._caller()
        # how often an adapter calls its module depends on the rows only where these have source images
        even = shards.EvenCalls(module) if self.adapter.max_sources and shards.is_sharded(module) else None
        guided = self._guided(guidance)
        if guided:
            x, sigma = torch.cat([x, x]), torch.cat([sigma, sigma])
        with self._autocast():
            velocity = self.adapter.predict(even or module, x, sigma, embedding, guidance)
            velocity = velocity if even is None else even.filled(velocity)
        velocity = velocity.float()
        if not guided:
            return velocity
        without, with_text = velocity.chunk(2)
        return self.adapter.guide(without, with_text, guidance)

    def _shape(self, sampler: Sampler) -> tuple[int, ...]:
        assert sampler.height is not None and sampler.width is not None
        return self.adapter.latent_shape(sampler.height, sampler.width)


def _checked(sampler: Sampler | TokenSampler) -> Sampler:
    if not isinstance(sampler, Sampler):
        raise InputError("this model denoises: its sampler has kind 'flow' (Sampler), not 'tokens'")
    return sampler


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _tokens(sampler: Sampler) -> int:
    assert sampler.max_sequence_length is not None, "the sampler went through FlowPolicy._complete"
    return sampler.max_sequence_length
