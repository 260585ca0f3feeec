"""Batches: the questions about one picture share the tokens of the picture and the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Idefics3ForConditionalGeneration, PreTrainedTokenizerFast

from trainers.shapes_vlm.model import AROUND, GLOBAL, IMAGE, IMAGE_TOKENS, WIDTH
from trainers.shapes_vlm.questions import Conversation

_IGNORED = -100
_EXPANDED = f"{AROUND}{GLOBAL}{IMAGE * IMAGE_TOKENS}{AROUND}"
"""What the processor makes of one picture."""


@dataclass(frozen=True)
class Batch:
    """Rows of packed conversations."""

    ids: Tensor
    """int64 [B, T]."""
    positions: Tensor
    """int64 [B, T]."""
    visible: Tensor
    """bool [B, 1, T, T]: a question sees what it shares with the others, and itself."""
    labels: Tensor
    """int64 [B, T]: the next token where it belongs to an answer."""
    told: Tensor
    """int64 [B, T]: the next token where it belongs to a true statement."""
    pixels: Tensor
    """float32 [B * pictures, 3, 64, 64] in [-1, 1]."""


def pack(rows: Sequence[Sequence[Conversation]], pixels: np.ndarray, tokenizer: PreTrainedTokenizerFast) -> Batch:
    """Conversations about the same pictures in one row, each with the positions that it has alone.

    Args:
        rows: conversations of each row; they begin alike.
        pixels: uint8 [N, 64, 64, 3], the pictures of all rows in order.
        tokenizer: of the model.
    """
    chats = [chat for row in rows for chat in row]
    tokens = iter(_tokens([text for chat in chats for text in (chat.asked, chat.answer)], tokenizer))
    packed = [_row([(next(tokens), next(tokens), chat.holds) for chat in row]) for row in rows]
    length = max(len(row.ids) for row in packed)

    def padded(values: Sequence[int], fill: int) -> Tensor:
        return torch.tensor([*values, *[fill] * (length - len(values))])

    ids = torch.stack([padded(row.ids, 0) for row in packed])
    positions = torch.stack([padded(row.positions, 0) for row in packed])
    labels = torch.stack([padded(row.labels, _IGNORED) for row in packed])
    told = torch.stack([padded(row.told, _IGNORED) for row in packed])
    part = torch.stack([padded(row.part, -1) for row in packed])
    visible = (part[:, None, :] == 0) | (part[:, None, :] == part[:, :, None])
    visible = (visible & torch.ones(length, length, dtype=torch.bool).tril()).unsqueeze(1)
    return Batch(ids, positions, visible, labels, told, to_model(pixels))


def to_model(pixels: np.ndarray) -> Tensor:
    """uint8 [N, 64, 64, 3] to float [N, 3, 64, 64] in [-1, 1], as the image processor does."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(127.5).sub(1)


@dataclass
class _Row:
    ids: list[int]
    positions: list[int]
    labels: list[int]
    told: list[int]
    part: list[int]
    """0 = shared, 1, 2, ... = the questions."""


def _row(conversations: Sequence[tuple[list[int], list[int], bool]]) -> _Row:
    """One row of questions with their answers; True = the question states what is in the picture."""
    asked = [question for question, _, _ in conversations]
    shared = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*asked, strict=False))))
    shared = min(shared, min(map(len, asked)) - 1)
    row = _Row(asked[0][:shared], list(range(shared)), [_IGNORED] * shared, [_IGNORED] * shared, [0] * shared)
    for number, (question, answer, holds) in enumerate(conversations, 1):
        own = [*question[shared:], *answer]
        quiet = [_IGNORED] * (len(question) - shared - 1)
        row.ids += own
        row.positions += range(shared, shared + len(own))
        row.labels += [*quiet, *answer, _IGNORED]
        row.told += [*(question[shared + 1 :] if holds else quiet), *[_IGNORED] * (len(answer) + 1)]
        row.part += [number] * len(own)
    return row


def _tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    return tokenizer([text.replace(IMAGE, _EXPANDED) for text in texts], add_special_tokens=False)["input_ids"]


class Forward(nn.Module):
    """The model with what training reads from it: the loss of the answers and of the patch labels.

    Patch labels (which shape has its centre in a patch, and which colour is there) teach the vision part several
    times faster than answers do. Their head is left out of what is shipped.
    """

    def __init__(self, model: Idefics3ForConditionalGeneration, classes: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.heads = nn.ModuleList(nn.Linear(WIDTH, n) for n in classes)

    def patch_loss(self, pixels: Tensor, patches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Loss of the patch labels (int64 [N, 64] for each head), and what the vision part gives [N, 64, width]."""
        # All pictures have the full size, so no patch is masked.
        seen = self.model.model.vision_model(pixel_values=pixels).last_hidden_state
        known = [F.cross_entropy(h(seen).flatten(0, 1), p.flatten()) for h, p in zip(self.heads, patches, strict=True)]
        return torch.stack(known).sum(), seen

    def forward(self, batch: Batch, patches: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Losses: mean over answer tokens, mean over tokens of true statements, and of the patch labels.

        Whether a statement fits a picture is a comparison, which a yes or no teaches slowly; to say what is there
        comes first, and true statements teach that.
        """
        core = self.model.model
        known, seen = self.patch_loss(batch.pixels, patches)
        embedded = core.text_model.get_input_embeddings()(batch.ids)
        places = (batch.ids == self.model.config.image_token_id).unsqueeze(-1).expand_as(embedded)
        embedded = embedded.masked_scatter(places, core.connector(seen).to(embedded.dtype))
        hidden = core.text_model(
            inputs_embeds=embedded, attention_mask=batch.visible, position_ids=batch.positions, use_cache=False
        ).last_hidden_state
        return self._tokens(hidden, batch.labels), self._tokens(hidden, batch.told), known

    def _tokens(self, hidden: Tensor, labels: Tensor) -> Tensor:
        wanted = labels != _IGNORED
        if not wanted.any():
            return hidden.new_zeros(())
        return F.cross_entropy(self.model.lm_head(hidden[wanted]), labels[wanted])
