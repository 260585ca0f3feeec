"""Stage 2 of the shipped Janus model: the language model, on prompts and the tokens of their pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import JanusForConditionalGeneration

from pipelines.shapes.janus_models import SPECIAL
from pipelines.shapes.state import Stage

DROP_TEXT = 0.1
"""Share of rows whose prompt is padding, so that classifier-free guidance works."""


class ImageModel(nn.Module):
    """What trains of a Janus model, with the way from tokens to logits that its `generate` takes."""

    def __init__(self, janus: JanusForConditionalGeneration) -> None:
        super().__init__()
        parts = janus.model
        self.language_model, self.generation_head = parts.language_model, parts.generation_head
        self.generation_embeddings, self.generation_aligner = parts.generation_embeddings, parts.generation_aligner

    def forward(self, prompts: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
        """Logits [B, 64, 1024] of the image tokens, of prompt ids and mask [B, L], padded left, and tokens [B, 64]."""
        text = self.language_model.embed_tokens(prompts)
        image = self.generation_aligner(self.generation_embeddings(tokens[:, :-1]))
        whole = torch.cat([mask, mask.new_ones(len(mask), image.shape[1])], 1)
        hidden = self.language_model(
            inputs_embeds=torch.cat([text, image.to(text.dtype)], 1),
            attention_mask=whole,
            position_ids=(whole.cumsum(1) - 1).clamp_min(0),
            use_cache=False,
        ).last_hidden_state
        return self.generation_head(hidden[:, prompts.shape[1] - 1 :])


def tokenize(tokenizer: Any, texts: list[str]) -> tuple[Tensor, Tensor]:
    """Prompt ids and mask [N, L], padded left, each ending in the token that begins an image."""
    prompts = [text + SPECIAL["boi_token"] for text in texts]
    out = tokenizer(prompts, padding=True, return_tensors="pt")
    return out.input_ids, out.attention_mask


def drop_text(tokenizer: Any, prompts: Tensor, mask: Tensor, dropped: Tensor) -> Tensor:
    """Prompts [B, L] with padding between the first and the last token of the dropped rows [B]."""
    pad, first = tokenizer.pad_token_id, mask.shape[1] - mask.sum(1, keepdim=True)
    place = torch.arange(mask.shape[1])
    inside = (place > first) & (place < mask.shape[1] - 1)
    return prompts.masked_fill(inside & dropped[:, None], pad)


def train_lm(
    janus: JanusForConditionalGeneration,
    tokenizer: Any,
    texts: list[str],
    tokens: Tensor,
    stage: Stage,
) -> None:
    """Train to the end of the stage, going on where it stopped; the averaged weights end in the model.

    Args:
        texts: [N] prompts.
        tokens: [N, 64] image tokens.
    """
    prompts, mask = tokenize(tokenizer, texts)
    model = ImageModel(janus)

    def step(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(tokens), (stage.batch,), generator=generator)
        dropped = torch.rand(stage.batch, generator=generator) < DROP_TEXT
        shown, wanted = mask[rows], tokens[rows].long()
        width = int(shown.sum(1).max())
        shown = shown[:, -width:]
        ids = drop_text(tokenizer, prompts[rows, -width:], shown, dropped)
        logits = model(ids, shown, wanted)
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    stage.run(model, step)
