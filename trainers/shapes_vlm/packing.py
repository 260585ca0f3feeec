"""Batches: the questions about one picture share the tokens of the picture and the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Idefics3ForConditionalGeneration, PreTrainedTokenizerFast

from trainers.shapes_vlm.model import AROUND, GLOBAL, IMAGE, IMAGE_TOKENS, WIDTH
from trainers.shapes_vlm.questions import Conversation, Place

PLACE_WEIGHT = 3.0
"""Of the squared error of places, whose variance is about .2."""
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
    places: Tensor
    """float32 [B, T, 2]: x and y in [-1, 1] of the thing that the token names, NaN at other tokens."""
    decisions: int
    """Tokens of the answers that are no copies."""
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
    asked, answers = (_tokens(texts, tokenizer) for texts in zip(*((c.asked, c.answer) for c in chats), strict=True))
    asked_of, answer_of = iter(asked), iter(answers)
    packed = [_row([_Tokens(chat, next(asked_of), next(answer_of)) for chat in row]) for row in rows]
    length = max(len(row.ids) for row in packed)

    def padded(values: Sequence[int], fill: int) -> Tensor:
        return torch.tensor([*values, *[fill] * (length - len(values))])

    ids = torch.stack([padded(row.ids, 0) for row in packed])
    positions = torch.stack([padded(row.positions, 0) for row in packed])
    labels = torch.stack([padded(row.labels, _IGNORED) for row in packed])
    told = torch.stack([padded(row.told, _IGNORED) for row in packed])
    places = torch.full((len(packed), length, 2), torch.nan)
    for number, row in enumerate(packed):
        for index, place in row.places.items():
            places[number, index] = torch.tensor([place.x, place.y])
    part = torch.stack([padded(row.part, -1) for row in packed])
    visible = (part[:, None, :] == 0) | (part[:, None, :] == part[:, :, None])
    visible = (visible & torch.ones(length, length, dtype=torch.bool).tril()).unsqueeze(1)
    decisions = sum(chat.decisions for chat in chats)
    return Batch(ids, positions, visible, labels, told, places, decisions, to_model(pixels))


def to_model(pixels: np.ndarray) -> Tensor:
    """uint8 [N, 64, 64, 3] to float [N, 3, 64, 64] in [-1, 1], as the image processor does."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(127.5).sub(1)


@dataclass(frozen=True)
class _Tokens:
    """A conversation in tokens."""

    chat: Conversation
    asked: Encoding
    answer: Encoding

    def named(self) -> Iterator[tuple[int, Place]]:
        """Index of the token that ends each name whose place is known."""
        length = self.asked.offsets[-1][1]
        ends = [end for _, end in self.asked.offsets] + [length + end for _, end in self.answer.offsets]
        for place in self.chat.places:
            yield next(i for i, end in enumerate(ends) if end >= ends[-1] - place.end), place


@dataclass
class _Row:
    ids: list[int]
    positions: list[int]
    labels: list[int]
    told: list[int]
    part: list[int]
    """0 = shared, 1, 2, ... = the questions."""
    places: dict[int, Place]


def _row(conversations: Sequence[_Tokens]) -> _Row:
    """One row of questions with their answers."""
    asked = [tokens.asked.ids for tokens in conversations]
    shared = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*asked, strict=False))))
    shared = min(shared, min(map(len, asked)) - 1)
    row = _Row(asked[0][:shared], list(range(shared)), [_IGNORED] * shared, [_IGNORED] * shared, [0] * shared, {})
    for number, (question, tokens) in enumerate(zip(asked, conversations, strict=True), 1):
        answer, holds = tokens.answer.ids, tokens.chat.holds
        own = [*question[shared:], *answer]
        quiet = [_IGNORED] * (len(question) - shared - 1)
        row.places |= {len(row.ids) + index - shared: place for index, place in tokens.named() if index >= shared}
        row.ids += own
        row.positions += range(shared, shared + len(own))
        row.labels += [*quiet, *answer, _IGNORED]
        row.told += [*(question[shared + 1 :] if holds else quiet), *[_IGNORED] * (len(answer) + 1)]
        row.part += [number] * len(own)
    return row


def _tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[Encoding]:
    encoded = tokenizer([text.replace(IMAGE, _EXPANDED) for text in texts], add_special_tokens=False).encodings
    assert encoded is not None
    return encoded


class Forward(nn.Module):
    """The model with what training reads from it: the loss of the answers, of the patch labels and of places.

    Patch labels (which shape has its centre in a patch, and which colour is there) teach the vision part several
    times faster than answers do. Half way through the language model, the name of a thing must know where
    the thing is, and in which picture: the other half can compare two places then. These heads are not shipped.
    """

    def __init__(self, model: Idefics3ForConditionalGeneration, classes: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.place = nn.Linear(WIDTH, 2)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, n) for n in classes)

    def patch_loss(self, pixels: Tensor, patches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Loss of the patch labels (int64 [N, 64] for each head), and what the vision part gives [N, 64, width]."""
        # All pictures have the full size, so no patch is masked.
        seen = self.model.model.vision_model(pixel_values=pixels).last_hidden_state
        known = [F.cross_entropy(h(seen).flatten(0, 1), p.flatten()) for h, p in zip(self.heads, patches, strict=True)]
        return torch.stack(known).sum(), seen

    def forward(self, batch: Batch, patches: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Losses: of the answers, of true statements (both by token), of the patch labels, of the places.

        Whether a statement fits a picture is a comparison, which a yes or no teaches slowly; to say what is there
        comes first, and true statements teach that.
        """
        core = self.model.model
        known, seen = self.patch_loss(batch.pixels, patches)
        embedded = core.text_model.get_input_embeddings()(batch.ids)
        places = (batch.ids == self.model.config.image_token_id).unsqueeze(-1).expand_as(embedded)
        embedded = embedded.masked_scatter(places, core.connector(seen).to(embedded.dtype))
        layers = core.text_model(
            inputs_embeds=embedded,
            attention_mask=batch.visible,
            position_ids=batch.positions,
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states
        places = self._places(layers[len(layers) // 2], batch.places)
        answers = self._tokens(layers[-1], batch.labels, batch.decisions)
        return answers, self._tokens(layers[-1], batch.told), known, places

    def _places(self, hidden: Tensor, places: Tensor) -> Tensor:
        named = places.isfinite().all(-1)
        if not named.any():
            return hidden.new_zeros(())
        return PLACE_WEIGHT * F.mse_loss(self.place(hidden[named]), places[named])

    def _tokens(self, hidden: Tensor, labels: Tensor, count: int | None = None) -> Tensor:
        """Summed loss over `count`, by default the number of labels."""
        wanted = labels != _IGNORED
        if not wanted.any():
            return hidden.new_zeros(())
        lost = F.cross_entropy(self.model.lm_head(hidden[wanted]), labels[wanted], reduction="sum")
        return lost / (int(wanted.sum()) if count is None else count)
