"""Tiny random Qwen-Image directories for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pipelines.quiet import quiet
from pipelines.qwen_image_edit import PictureProcessor
from pipelines.shapes.models import build_merges
from pipelines.testing import all_words

_TEMPLATE = (
    "system Describe user assistant the image by detailing color shape size texture quantity text spatial "
    "relationships of objects and background key features input ( 's ), then explain how user instruction should "
    "alter or modify Generate a new that meets requirements while maintaining consistency with original where "
    "appropriate Picture"
)
"""Words of the pipelines' chat templates. As with the real tokenizer they are one token each, so that the 34 tokens (64
for editing) which the pipelines cut off are the system part."""
_SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def tiny_qwen_image_edit_directory(
    path: str | Path, seed: int = 0, *, plus: bool = False, zero_cond_t: bool = False
) -> Path:
    """Write a `QwenImageEditPipeline` directory, or with `plus` a `QwenImageEditPlusPipeline` one; its parts are those
    of `tiny_qwen_image_directory` and a processor. With `zero_cond_t`, as in Qwen-Image-Edit-2511, source tokens are
    modulated as clean ones."""
    parts = _parts(seed, zero_cond_t=zero_cond_t)
    with TemporaryDirectory() as folder:
        parts["tokenizer"].save_pretrained(folder)
        Qwen2VLImageProcessorPil().save_pretrained(folder)
        # where there is torchvision, the pipeline loads this part too
        video = {"video_processor_type": "Qwen2VLVideoProcessor"}
        (Path(folder) / "video_preprocessor_config.json").write_text(json.dumps(video))
        pipe = (QwenImageEditPlusPipeline if plus else QwenImageEditPipeline)(
            **parts, processor=PictureProcessor(folder)
        )
        with quiet():
            pipe.save_pretrained(path)
    return Path(path)


def tiny_qwen_image_directory(path: str | Path, seed: int = 0) -> Path:
    """Write a `QwenImagePipeline` directory with random weights, the same for the same arguments.

    The latent has 4 channels and half as many rows and columns as the image; tokens are 2 x 2 latent pixels.

    Args:
        path: directory to write.
        seed: seed of the weights; the global generators are left alone.
    """
    with quiet():
        QwenImagePipeline(**_parts(seed)).save_pretrained(path)
    return Path(path)


def _parts(seed: int, **options: Any) -> dict[str, Any]:
    tokenizer = build_qwen_tokenizer([*_TEMPLATE.split(), *all_words()])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return dict(
            transformer=QwenImageTransformer2DModel(
                in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
                joint_attention_dim=16, axes_dims_rope=(4, 6, 6), **options,
            ),
            scheduler=FlowMatchEulerDiscreteScheduler(
                use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, base_image_seq_len=256,
                max_image_seq_len=8192, shift_terminal=0.02,  # pyright: ignore[reportArgumentType]
            ),
            vae=AutoencoderKLQwenImage(
                base_dim=8, z_dim=4, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[True],
                latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 0.5, 2.0, 1.0],
            ),
            text_encoder=_language_model(tokenizer),
            tokenizer=tokenizer,
        )  # fmt: skip


@contextmanager
def sources_scaled_to(area: int) -> Iterator[None]:
    """Let the plain editing pipelines scale sources to the area of a small sample instead of 1024 x 1024 pixels, as the
    adapters do; no side falls below 32."""

    def scaled(wanted: float, ratio: float) -> tuple[int, int, None]:
        width, height = original(area if wanted == 1024 * 1024 else wanted, ratio)
        return max(width, 32), max(height, 32), None

    original = pipeline_qwenimage_edit_plus.calculate_dimensions
    with (
        patch.object(pipeline_qwenimage_edit, "calculate_dimensions", scaled),
        patch.object(pipeline_qwenimage_edit_plus, "calculate_dimensions", lambda *args: scaled(*args)[:2]),
    ):
        yield


def build_qwen_tokenizer(words: list[str]) -> Qwen2Tokenizer:
    """A byte-level tokenizer in which each word is one token, with and without a space before it."""
    merges = build_merges([*("Ġ" + word for word in words), *words])
    vocabulary = [*bytes_to_unicode().values(), *("".join(pair) for pair in merges)]
    vocabulary += ["<|endoftext|>", *_SPECIAL]
    index = {token: i for i, token in enumerate(dict.fromkeys(vocabulary))}
    return Qwen2Tokenizer(
        vocab=index,
        merges=merges,  # pyright: ignore[reportArgumentType]
        additional_special_tokens=_SPECIAL,
    )


def _language_model(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    text: dict[str, Any] = dict(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    )  # fmt: skip
    vision = dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=16, fullatt_block_indexes=[0]
    )
    names = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    ids: dict[str, Any] = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>") for name, token in names.items()
    }
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids))
