"""The network of a token policy as one module: all that trains is called through its `forward`, so that DDP and FSDP
see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipelines import token_sampling
from pipelines.samplers import TokenSampler
from pipelines.token_adapter import FREE, TokenAdapter


class TokenModule(nn.Module):
    """What trains of a transformers model, by the last part of its names, with an optional value head.

    Args:
        adapter: says how the model is called.
        value_head: reads what is expected off the hidden states that predict the tokens, [D] to [1].
        checkpointing: recompute the activations of each layer in the backward pass of a replay.
    """

    def __init__(self, adapter: TokenAdapter, value_head: nn.Linear | None = None, checkpointing: bool = False) -> None:
        super().__init__()
        self._adapter, self._checkpointing = adapter, checkpointing
        for name in adapter.trainable:
            self.add_module(name.rsplit(".", 1)[-1], adapter.model.get_submodule(name))
        self._no_split_modules = [type(adapter.text_model.layers[0]).__name__]
        self.value_head = value_head
        self._free, self._allowed = adapter.layout == FREE, adapter.allowed

    def forward(self, task: str, *inputs: Any) -> Any:
        """Do one of the tasks `begin`, `extend` and `replay`."""
        return {"begin": self.begin, "extend": self.extend, "replay": self.replay}[task](*inputs)

    def begin(self, ids: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Logits [N, V] of the first image token, of prompts [N, L] and their mask; fills the cache."""
        return self._adapter.logits(self._adapter.hidden(self._adapter.embed_text(ids), mask, cache)[:, -1])

    def extend(self, tokens: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Logits [N, V] after tokens [N], the newest ones; `mask` [N, L + ...] covers them too."""
        embeds = self._adapter.embed_tokens(tokens.unsqueeze(1))
        return self._adapter.logits(self._adapter.hidden(embeds, mask, cache)[:, -1])

    def replay(
        self, ids: Tensor, mask: Tensor, tokens: Tensor, sampler: TokenSampler, need: frozenset[str]
    ) -> dict[str, Tensor]:
        """What `need` names, of whole images.

        Args:
            ids, mask: [n, L] prompts, or [2n, L] with the unconditional branch first.
            tokens: [n, T].
            sampler: its temperature and cuts; its guidance where there are two branches. Without its cuts where
                `guidance_mode` is cond_is, whose log-prob is that of the conditional logits.
            need: of log_prob [n, T], value [n, T], logits [n, T, V] (guided, over temperature, -inf where a token may
                not be drawn).
        """
        rows, branches = len(tokens), len(ids) // len(tokens)
        image = self._adapter.embed_tokens(tokens[:, :-1]).repeat(branches, 1, 1)
        text = self._adapter.embed_text(ids)
        whole = torch.cat([mask, mask.new_ones(len(ids), image.shape[1])], 1)
        with self._recomputing():
            hidden = self._adapter.hidden(torch.cat([text, image.to(text.dtype)], 1), whole)
        parts = hidden[:, ids.shape[1] - 1 :].split(rows)
        out: dict[str, Tensor] = {}
        if "log_prob" in need:
            out["log_prob"] = self._log_prob(parts, tokens, sampler)
        if "logits" in need:
            out["logits"] = self._scores(parts, sampler)
        if self.value_head is not None:
            value = self._value(parts[-1])
            if "value" in need:
                out["value"] = value
            else:
                # DDP waits for a gradient of every parameter
                out = {name: tensor + 0.0 * value.sum() for name, tensor in out.items()}
        return out

    def _log_prob(self, parts: tuple[Tensor, ...], tokens: Tensor, sampler: TokenSampler) -> Tensor:
        """[n, T], 0 where the layout leaves no choice."""
        cuts = (0, 1.0) if sampler.guidance_mode == "cond_is" else (sampler.top_k, sampler.top_p)

        def of_slice(tokens: Tensor, *parts: Tensor) -> Tensor:
            scores = token_sampling.cut(self._scores(parts, sampler), *cuts, keep=tokens)
            return token_sampling.log_prob_of(scores, tokens)

        size = token_sampling.chunk_size(len(tokens), self._adapter.vocabulary)
        # a forced token need not be one of those that may be drawn: any stands in, and its log-prob is replaced
        stand_in = 0 if self._allowed is None else int(self._allowed.int().argmax())
        free = self._free.to(tokens.device)
        drawn = torch.where(free, tokens, stand_in)
        log_prob = token_sampling.over_positions(of_slice, [drawn, *parts], size)
        return torch.where(free, log_prob, 0.0)

    def _scores(self, parts: tuple[Tensor, ...], sampler: TokenSampler) -> Tensor:
        logits = [self._adapter.logits(part) for part in parts]
        guided = logits[0] if len(logits) == 1 else token_sampling.guide(logits[0], logits[1], sampler.guidance)
        allowed = None if self._allowed is None else self._allowed.to(guided.device)
        return token_sampling.to_scores(guided, sampler.temperature, allowed)

    def _value(self, hidden: Tensor) -> Tensor:
        """[n, T] float32."""
        assert self.value_head is not None
        with torch.autocast(hidden.device.type, enabled=False):
            return self.value_head(hidden.float()).squeeze(-1)

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """transformers checkpoints layers in training mode only, which would switch dropout on as well: set the mode of
        the layers alone, not of their parts."""
        layers: list[nn.Module] = []
        if self._checkpointing and torch.is_grad_enabled():
            layers = list(self._adapter.text_model.layers)
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False
