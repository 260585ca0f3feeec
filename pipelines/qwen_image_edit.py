"""Qwen-Image-Edit and Qwen-Image-Edit-2509 (arXiv 2508.02324): Qwen-Image that edits one or up to three source images.

The language model sees the sources beside the text, so an embedding belongs to both; the clean latents of the sources
are further image tokens, told apart from the sample's by their frame. Sources of any size are scaled to the area that
the pipeline gives them, so rows of a batch may differ in the number of their tokens.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import CONDITION_IMAGE_SIZE, calculate_dimensions
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, Qwen2VLProcessor

from mmrubric.images import normalize
from pipelines.conditioning import Embedding
from pipelines.packed import AS_IS, by_kind
from pipelines.qwen_image import QwenImageAdapter

_UNIT = 32
"""Pixels of which the pipeline's sizes are multiples."""


class QwenImageEditAdapter(QwenImageAdapter):
    """Adapter of a `QwenImageEditPipeline`. The text's part of `max_sequence_length` does not count its pictures."""

    min_sources = 1
    max_sources = 1
    text_sees_sources = True

    def source_size(self, source: tuple[int, int], height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels to which a source (height, width) is scaled for its latents.

        The pipeline keeps the proportions and takes the area of 1024 x 1024 for a sample of that size; for other
        samples the area is theirs, so that a small rollout does not carry 4096 tokens per source.
        """
        return _with_area(height * width, source)

    def seen_size(self, source: tuple[int, int], height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels to which a source is scaled for the language model."""
        return self.source_size(source, height, width)

    def encode_with_sources(self, text: str, tokens: int, sources: Sequence[Any], height: int, width: int) -> Embedding:
        """(tokens [L, D], mask [L] bool, V [1] int64 on the CPU) of one text beside source images, where L = `tokens`
        + V and V is what the pictures add."""
        pictures = [self._seen(source, height, width) for source in sources]
        embeds, _ = self.pipe.encode_prompt(prompt=text, image=pictures, device=self.device, max_sequence_length=tokens)
        count = embeds.shape[1]
        added = count - self._count(text)
        mask = torch.arange(tokens + added, device=embeds.device) < count
        return functional.pad(embeds[0], (0, 0, 0, tokens + added - count)), mask, torch.tensor([added])

    def encode_sources(self, sources: Sequence[Any], height: int, width: int) -> Embedding:
        """(tokens [N, 4 C], rows and columns of each source [2 `max_sources`] int64 on the CPU)."""
        return self.encode_pictures(sources, lambda size: self.source_size(size, height, width))

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor:
        """Velocity [n, C, h, w] at x [n, C, h, w] and noise level sigma [n] in [0, 1].

        The model knows no mask for image tokens, so rows whose sources differ in number or shape go through it one
        kind at a time.
        """
        tokens, mask, added, sources, shapes = embedding
        own = tokens.shape[1] - int(added.max())

        def velocity(at: Tensor, kind: list[int]) -> Tensor:
            at, length = at.to(x.device), own + kind[0]
            pictures = [(1, rows, columns) for rows, columns in zip(kind[1::2], kind[2::2], strict=True) if rows]
            count = sum(rows * columns for _, rows, columns in pictures)
            more = (sources[at, :count], pictures)
            return self.velocity(module, x[at], sigma[at], tokens[at, :length], mask[at, :length], more)

        return by_kind(torch.cat([added, shapes], 1), velocity)

    def _seen(self, source: Any, height: int, width: int) -> Image.Image:
        picture = normalize(source, AS_IS)
        return self.pipe.image_processor.resize(
            picture, *self.seen_size((picture.height, picture.width), height, width)
        )


class QwenImageEditPlusAdapter(QwenImageEditAdapter):
    """Adapter of a `QwenImageEditPlusPipeline` (2509 and later), which reads one to three sources."""

    max_sources = 3

    def seen_size(self, source: tuple[int, int], height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels to which a source is scaled for the language model: the area of 384 x 384."""
        return _with_area(CONDITION_IMAGE_SIZE, source)


class PictureProcessor(Qwen2VLProcessor):
    """The pipelines' `Qwen2VLProcessor` without its part for videos, which alone needs torchvision.

    Args:
        directory: files of the processor; what is saved is a copy of them.
    """

    def __init__(self, directory: str | Path) -> None:
        # transformers before 5.19 may not have it, and where there is torchvision no one needs it
        from transformers import Qwen2VLImageProcessorPil

        self._directory = Path(directory)
        self.image_processor = Qwen2VLImageProcessorPil.from_pretrained(directory)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.chat_template = None
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        ids = self.tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        self.image_token_id, self.video_token_id = ids

    @classmethod
    def get_attributes(cls) -> list[str]:
        """Parts of the processor."""
        return ["image_processor", "tokenizer"]

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **_: Any) -> None:
        """Write the files of the whole processor."""
        shutil.copytree(self._directory, save_directory, dirs_exist_ok=True)


# diffusers writes module and name into model_index.json, and what is saved is a processor with all parts
PictureProcessor.__module__, PictureProcessor.__qualname__ = Qwen2VLProcessor.__module__, "Qwen2VLProcessor"
PictureProcessor.__name__ = "Qwen2VLProcessor"


def replaced_processor(source: str) -> dict[str, Any]:
    """The processor of a pipeline directory or model id for `from_pretrained`, where there is no torchvision."""
    if find_spec("torchvision") is not None:
        return {}
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(source, allow_patterns="processor/*"))
    return {"processor": PictureProcessor(folder / "processor")}


def _with_area(area: int, source: tuple[int, int]) -> tuple[int, int]:
    """Height and width with about this area and the proportions of a source (height, width)."""
    width, height = calculate_dimensions(area, source[1] / source[0])
    return max(height, _UNIT), max(width, _UNIT)
