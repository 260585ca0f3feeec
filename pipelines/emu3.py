"""Emu3 (arXiv 2409.18869): text and image tokens in one vocabulary, each row of an image closed by a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmrubric.errors import InputError
from pipelines.token_adapter import FREE, TokenAdapter

DEFAULT_AREA = 720 * 720
"""Pixels of an image where `generation_config.json` has no `image_area`, as in `Emu3Processor`."""
RATIO = "1:1"


class Emu3Adapter(TokenAdapter):
    """An `Emu3ForConditionalGeneration` that writes square images. The unconditional branch is the negative text.

    The tokens that follow the last row (end of frame, image and text) are left out: they say nothing about the image.
    """

    trainable = ("model.text_model", "lm_head")
    vq_name = "model.vqmodel"
    reads_negative = True

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__(model, processor)
        self._words = model.vocabulary_mapping
        if self._words.eol_token_id is None or not self._words.image_tokens:
            raise InputError("the vocabulary_map of this Emu3 model lacks its image tokens or <|extra_200|>")
        self._area = getattr(model.generation_config, "image_area", DEFAULT_AREA)
        self._grid = processor.calculate_generate_size(RATIO, self._area, processor.downsample_ratio)

    @property
    def text_model(self) -> Any:
        return self.model.model.text_model

    @property
    def vocabulary(self) -> int:
        return self.model.config.text_config.vocab_size

    @property
    def allowed(self) -> Tensor | None:
        allowed = torch.zeros(self.vocabulary, dtype=torch.bool)
        allowed[self._words.image_tokens] = True
        return allowed

    @property
    def layout(self) -> Tensor:
        rows, columns = self._grid
        layout = torch.full((rows, columns + 1), FREE)
        layout[:, -1] = self._words.eol_token_id
        return layout.flatten()

    @property
    def size(self) -> tuple[int, int]:
        ratio = self.processor.downsample_ratio
        return self._grid[0] * ratio, self._grid[1] * ratio

    def prompt_ids(self, text: str) -> list[int]:
        shown = self.processor(
            text=[text], return_for_image_generation=True, ratio=RATIO, image_area=self._area, return_tensors="pt"
        )
        return shown["input_ids"][0].tolist()

    def unconditional_ids(self, text: str, negative: str) -> list[int]:
        return self.prompt_ids(negative)

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.text_model.embed_tokens(ids)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return self.text_model.embed_tokens(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.lm_head(hidden)

    def decode(self, tokens: Tensor) -> np.ndarray:
        rows, columns = self._grid
        codes = self._words.convert_bpe2img(tokens.view(-1, rows, columns + 1))
        return self.to_pixels(self.model.model.vqmodel.decode(codes))

    def encode(self, images: np.ndarray) -> Tensor:
        values = self.to_values(images)
        sizes = torch.tensor([self.size] * len(images))
        found = self.model.model.vqmodel.encode(values, sizes, return_dict=True).image_tokens
        return torch.stack([self._words.convert_img2bpe(codes).flatten() for codes in found]).long()
