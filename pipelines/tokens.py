"""A model that writes an image as tokens, as a policy: sampling with a cache, replay of whole rows without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import DynamicCache

from mmrubric.errors import InputError
from mmrubric.rubric import Prompt
from pipelines import shards, token_sampling
from pipelines.policy import Rollout, RowSeed, StepOut, batches, distinct
from pipelines.quiet import quiet
from pipelines.samplers import TokenSampler
from pipelines.token_adapter import FREE, PROVIDES, TokenAdapter
from pipelines.token_module import TokenModule
from pipelines.trained import DEPLOYED_FILE, TrainedPolicy, check_adopted, check_rows, number_rows, sample_ids

VALUE_FILE = "value_head.safetensors"
RECORDABLE = frozenset({"log_prob"})
"""What `TokenPolicy.sample` can record; the tokens themselves are always there."""


class TokenPolicy(TrainedPolicy):
    """Policy over an autoregressive text-to-image model. Built by `pipelines.load_policy`.

    A rollout holds T tokens a row. `log_probs` are those of the distribution that was drawn from: guided, over the
    temperature, cut. A replay gives them again to rounding (about 1e-6 in fp32; in half precision the cache rounds
    otherwise than a whole forward pass, so recompute the old log-probs before the first update), but for
    `guidance_mode` cond_is, which trains other logits than it samples. A cut is discontinuous: a token at its edge that
    rounding moves across it changes a log-prob by the token's probability.

    Args:
        adapter: the model.
        lora: the trainable parameters are a LoRA adapter (and the value head).
        precision: fp32, bf16 or fp16 autocast around the model call.
        copies: weights to keep besides the trained ones, of old, ema, reference, previous.
        deployed: sampler used where none is given; None = what `generation_config.json` says.
        batch: rows per model call in sampling; None = all rows at once.
        value_head: trains too, on the hidden states; None = none.
        checkpointing: recompute activations in the backward pass.
        shard: see `TrainedPolicy`.
    """

    kind = "tokens"

    def __init__(
        self,
        adapter: TokenAdapter,
        *,
        lora: bool = False,
        precision: str = "fp32",
        copies: Sequence[str] = (),
        deployed: TokenSampler | None = None,
        batch: int | None = None,
        value_head: nn.Linear | None = None,
        checkpointing: bool = False,
        shard: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        core = TokenModule(adapter, value_head, checkpointing).eval()
        super().__init__(core, lora, precision, copies, shard)
        self.adapter, self.batch = adapter, batch
        self.provides = PROVIDES | ({"value"} if value_head is not None else set())
        self.deployed = deployed or adapter.deployed()
        self._layout = adapter.layout
        self._readable: set[str] = set()

    def check_prompts(self, prompts: Sequence[Prompt], sampler: TokenSampler | None = None) -> None:
        """Refuse prompts that the model has no room for, cannot read, or that hold what it does not read.

        Raises:
            InputError: names the prompt and says what is wrong.
        """
        for prompt in prompts:
            if prompt.sources:
                raise InputError(f"prompt '{prompt.id}' has {len(prompt.sources)} source images, this model reads none")
            if prompt.negative and not self.adapter.reads_negative:
                raise InputError(f"prompt '{prompt.id}' has a negative text, which this model never reads")
            for name, text in (("prompt", prompt.text), ("negative text of prompt", prompt.negative)):
                problem = None if text in self._readable else self.adapter.problem(text)
                if problem:
                    raise InputError(f"{name} '{prompt.id}' {problem}: {text!r}")
                self._readable.add(text)

    def encode(self, prompts: Sequence[Prompt], sampler: TokenSampler | None = None) -> None:
        """Check prompts ahead; a token model has no embeddings to prepare."""
        self.check_prompts(prompts, sampler)

    def sample(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[RowSeed],
        sampler: TokenSampler | None = None,
        record: frozenset[str] = frozenset(),
        *,
        prompt_rows: Sequence[int] | Tensor | None = None,
        sample_index: Sequence[int] | Tensor | None = None,
        batch: int | None = None,
    ) -> Rollout:
        """Draw one image per row.

        Args:
            prompts: [B], may repeat.
            seeds: [B], see `pipelines.seeds`; `path` decides the tokens, `noise` nothing.
            sampler: None = `deployed`.
            record: of log_prob; the tokens are always recorded.
            prompt_rows, sample_index: [B], kept in the rollout; default: number of the distinct prompt, and
                of the row within it.
            batch: rows per model call; None = the policy's own.

        Raises:
            InputError: wrong lengths, a record that is unknown, a sampler of another sort of model, a prompt that the
                model cannot read.
        """
        sampler = self._checked(sampler or self.deployed)
        check_rows(prompts, seeds)
        unknown = sorted(set(record) - RECORDABLE)
        if unknown:
            raise InputError(
                f"a token policy cannot record {', '.join(unknown)}: its states are the tokens, which a rollout always "
                "holds; known is log_prob"
            )
        unique, index = distinct(prompts)
        self.check_prompts(unique, sampler)
        rows, numbers = number_rows(index, prompt_rows, sample_index)
        tokens, log_probs, images = [], [], []
        with torch.no_grad():
            for part in batches(len(prompts), batch or self.batch):
                drawn, log_prob = self._draw([unique[i] for i in index[part].tolist()], seeds[part], sampler)
                tokens.append(drawn)
                log_probs.append(log_prob)
                images.append(self.adapter.decode(drawn))
        return self._rollout(
            torch.cat(tokens),
            np.concatenate(images),
            prompts=unique,
            prompt_index=index,
            prompt_rows=rows,
            sample_index=numbers,
            sample_ids=sample_ids(rows, numbers, seeds),
            seeds=list(seeds),
            sampler=sampler,
            log_probs=torch.cat(log_probs) if "log_prob" in record else None,
        )

    def log_prob(
        self, rollout: Rollout, rows: Tensor, steps: Tensor, need: frozenset[str] = frozenset({"log_prob"})
    ) -> StepOut:
        """Replay n whole images under the present weights.

        Args:
            rollout: of a token policy.
            rows: [n] int64 rows.
            steps: not read: a row is replayed whole.
            need: of log_prob [n, T], logits [n, T, V] and, with a value head, value [n, T].

        Raises:
            InputError: a need that is not provided, or a rollout of another sort of model.
        """
        missing = sorted(set(need) - self.provides)
        if missing:
            raise InputError(f"this policy gives no {', '.join(missing)}: known are {', '.join(sorted(self.provides))}")
        sampler = self._checked(rollout.sampler)
        index = rollout.prompt_index[rows.cpu()].tolist()
        guided = sampler.guidance > 1.0 and sampler.guidance_mode != "cond_is"
        ids, mask = self._prompts([rollout.prompts[i] for i in index], guided)
        tokens = rollout.samples[rows.to(rollout.samples.device)].to(self.device)
        with self._autocast():
            return StepOut(**self._caller()("replay", ids, mask, tokens, sampler, frozenset(need)))

    def predict(self, rollout: Rollout, rows: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """A token model predicts no velocity.

        Raises:
            InputError: always.
        """
        raise InputError("a token policy predicts no velocity: use a loss on log-probs")

    def adopt(self, prompts: Sequence[Prompt], samples: Tensor | np.ndarray) -> Rollout:
        """A rollout of samples from outside: tokens [B, T] or uint8 images [B, H, W, 3], one prompt per row.

        Raises:
            InputError: counts differ, images of another type or shape, or tokens that the model cannot write.
        """
        check_adopted(prompts, samples)
        unique, index = distinct(prompts)
        self.check_prompts(unique)
        with torch.no_grad():
            if isinstance(samples, np.ndarray):
                parts = [self.adapter.encode(samples[part]) for part in batches(len(samples), self.batch)]
                tokens, images = torch.cat(parts), samples
            else:
                tokens = self._writable(samples)
                images = np.concatenate([self.adapter.decode(tokens[p]) for p in batches(len(tokens), self.batch)])
        rows, numbers = number_rows(index, None, None)
        return self._rollout(
            tokens,
            images,
            prompts=unique,
            prompt_index=index,
            prompt_rows=rows,
            sample_index=numbers,
            sample_ids=sample_ids(rows, numbers, None),
            seeds=None,
            sampler=self.deployed,
        )

    def save_pretrained(self, directory: str | Path) -> None:
        """Write what plain transformers loads: the whole model with its processor, or for LoRA a PEFT adapter. The
        value head lies beside it, for `load_policy(value_head=True)`. Inside `weights("ema")` the EMA weights are
        written. A collective where the network is sharded: rank 0 writes."""
        state = self._core.state_dict()
        if sharded := shards.is_sharded(self._core):
            state = shards.gathered(shards.state_dict(self._core))
            if not shards.writes():
                return
        with quiet():
            self.adapter.save(directory, state if sharded else None)
        if "value" in self.provides:
            head = {name: state[f"value_head.{name}"].detach().cpu().contiguous() for name in ("weight", "bias")}
            save_file(head, Path(directory) / VALUE_FILE)
        fields = {"kind": self.deployed.kind, **self.deployed.model_dump(exclude_defaults=True)}
        (Path(directory) / DEPLOYED_FILE).write_text(json.dumps(fields, indent=2) + "\n")

    def _draw(
        self, prompts: Sequence[Prompt], seeds: Sequence[RowSeed], sampler: TokenSampler
    ) -> tuple[Tensor, Tensor]:
        """Tokens and log-probs [B, T] of one batch."""
        guided = sampler.guidance > 1.0
        ids, mask = self._prompts(prompts, guided)
        uniform = token_sampling.uniforms([seed.path for seed in seeds], len(self._layout)).to(self.device)
        allowed = None if self.adapter.allowed is None else self.adapter.allowed.to(self.device)
        cache = DynamicCache(config=self.adapter.text_model.config)
        tokens = torch.empty(len(prompts), len(self._layout), dtype=torch.long, device=self.device)
        log_probs = torch.zeros(tokens.shape, device=self.device)
        logits = self._call("begin", ids, mask, cache)
        for place, forced in enumerate(self._layout.tolist()):
            if forced == FREE:
                if guided:
                    logits = token_sampling.guide(*logits.chunk(2), sampler.guidance)
                scores = token_sampling.to_scores(logits, sampler.temperature, allowed)
                scores = token_sampling.cut(scores, sampler.top_k, sampler.top_p)
                tokens[:, place] = token_sampling.draw(scores, uniform[:, place])
                log_probs[:, place] = token_sampling.log_prob_of(scores, tokens[:, place])
            else:
                tokens[:, place] = forced
            if place + 1 < len(self._layout):
                mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
                logits = self._call("extend", tokens[:, place].repeat(len(mask) // len(tokens)), mask, cache)
        return tokens, log_probs

    def _call(self, task: str, *inputs: Any) -> Tensor:
        with self._autocast():
            return self._caller()(task, *inputs)

    def _prompts(self, prompts: Sequence[Prompt], guided: bool) -> tuple[Tensor, Tensor]:
        """Ids and mask of n prompts, filled up on the left: [n, L], or [2n, L] with the unconditional branch first."""
        rows = [self.adapter.prompt_ids(prompt.text) for prompt in prompts]
        if guided:
            rows = [self.adapter.unconditional_ids(p.text, p.negative) for p in prompts] + rows
        ids = torch.full((len(rows), max(map(len, rows))), self.adapter.pad)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, -len(row) :] = torch.tensor(row)
            mask[place, -len(row) :] = 1
        return ids.to(self.device), mask.to(self.device)

    def _rollout(self, tokens: Tensor, images: np.ndarray, **parts: Any) -> Rollout:
        return Rollout(
            policy_version=self.version,
            sigmas=torch.empty(0),
            samples=tokens,
            # safetensors refuses tensors that share memory
            actions=tokens.clone(),
            images=images,
            steps=torch.arange(len(self._layout)),
            mask=(self._layout == FREE).expand(len(tokens), -1).clone(),
            **parts,
        )

    def _checked(self, sampler: Any) -> TokenSampler:
        if not isinstance(sampler, TokenSampler):
            raise InputError("this model writes tokens: its sampler has kind 'tokens' (TokenSampler), not 'flow'")
        return sampler

    def _writable(self, tokens: Tensor) -> Tensor:
        """Tokens [B, T] int64 on the device, checked against the layout.

        Raises:
            InputError: names the first row and position that the model could not have written.
        """
        if tokens.ndim != 2 or tokens.shape[1] != len(self._layout) or tokens.is_floating_point():
            raise InputError(
                f"tokens must be integers [B, {len(self._layout)}], not {tokens.dtype} {list(tokens.shape)}"
            )
        tokens, free = tokens.long().cpu(), self._layout == FREE
        inside = (tokens >= 0) & (tokens < self.adapter.vocabulary)
        if self.adapter.allowed is not None:
            inside &= self.adapter.allowed[tokens.clamp(0, self.adapter.vocabulary - 1)]
        right = torch.where(free, inside, tokens == self._layout)
        if not right.all():
            row, place = (~right).nonzero()[0].tolist()
            raise InputError(f"row {row}: token {int(tokens[row, place])} cannot be at position {place}")
        return tokens.to(self.device)
