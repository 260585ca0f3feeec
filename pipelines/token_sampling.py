"""From logits to tokens and log-probs: pure functions that sampling and replay share.

A score is a logit ready for the softmax: guided, divided by the temperature, -inf where the token may not be drawn.
Everything here is float32 whatever the precision of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 24
"""Scores [n, c, V] that live at a time when log-probs are computed over positions."""


def guide(unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance l_u + w (l_c - l_u) of logits [..., V], arXiv 2207.12598."""
    return unconditional.float() + scale * (conditional.float() - unconditional.float())


def to_scores(logits: Tensor, temperature: float, allowed: Tensor | None = None) -> Tensor:
    """Scores [..., V] float32 of logits [..., V]; `allowed` [V] bool, None = every token."""
    scores = logits.float() / temperature
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def cut(scores: Tensor, top_k: int = 0, top_p: float = 1.0, keep: Tensor | None = None) -> Tensor:
    """Scores [..., V] with -inf outside the most probable tokens.

    Args:
        scores: [..., V].
        top_k: tokens that stay, and all that tie with the last of them; 0 = all.
        top_p: of what top_k left, the smallest set with at least this probability stays; 1 = all.
        keep: [...] int64, tokens that stay whatever their probability: in a replay the ones that were drawn, which
            an update may have pushed over the edge.
    """
    if (top_k == 0 or top_k >= scores.shape[-1]) and top_p >= 1.0:
        return scores
    with torch.no_grad():
        left = scores.detach()
        if 0 < top_k < left.shape[-1]:
            left = left.masked_fill(left < left.topk(top_k, dim=-1).values[..., -1:], -torch.inf)
        if top_p < 1.0:
            # scores that differ may have equal probabilities, so these do not decide the order
            ordered, order = left.sort(dim=-1, descending=True, stable=True)
            probabilities = ordered.softmax(-1)
            before = probabilities.cumsum(-1) - probabilities
            outside = torch.zeros_like(left, dtype=torch.bool).scatter(-1, order, before >= top_p)
            left = left.masked_fill(outside, -torch.inf)
        dropped = left == -torch.inf
        if keep is not None:
            dropped.scatter_(-1, keep.unsqueeze(-1), False)
    return scores.masked_fill(dropped, -torch.inf)


def log_prob_of(scores: Tensor, tokens: Tensor) -> Tensor:
    """Log-probs [...] of tokens [...] int64 under scores [..., V]."""
    return scores.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """Uniform numbers in [0, 1), [B, count] float64, one generator per row: a row never depends on its batch."""
    rows = [torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows)


def draw(scores: Tensor, uniform: Tensor) -> Tensor:
    """Tokens [B] int64 by the inverse of the cumulative distribution of scores [B, V] at uniform [B] float64.

    A token of score -inf is never drawn.
    """
    cumulative = scores.softmax(-1).double().cumsum(-1)
    # the first place whose cumulative value is above the target, so the value rose there
    place = torch.searchsorted(cumulative, (uniform * cumulative[:, -1]).unsqueeze(1), right=True)
    return place.squeeze(1).clamp_max(scores.shape[-1] - 1)


def over_positions(function: Callable[..., Tensor], parts: Sequence[Tensor], size: int) -> Tensor:
    """A function of slices [n, c, ...] of tensors [n, T, ...], its results [n, c] joined to [n, T].

    With gradient on, each slice is computed again in the backward pass, so that what the function makes inside, scores
    [n, c, V] say, never lives for all positions.

    Args:
        function: keeps the first two dimensions.
        parts: tensors [n, T, ...].
        size: positions c at a time.
    """
    slices = zip(*(part.split(size, dim=1) for part in parts), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([function(*each) for each in slices], 1)
    return torch.cat(
        [checkpoint(function, *each, use_reentrant=False, preserve_rng_state=False) for each in slices],
        1,
    )


def chunk_size(rows: int, vocabulary: int) -> int:
    """Positions at a time for so many rows and tokens, see `CHUNK_ELEMENTS`."""
    return max(1, CHUNK_ELEMENTS // (rows * vocabulary))
