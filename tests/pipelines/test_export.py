"""Exported LoRAs, read back by diffusers' own loaders: the same pictures as the original."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrubric.errors import InputError
from pipelines import LoraOptions, load_policy
from pipelines.export import LORA_FILE, convert_lora, export_weights
from pipelines.quiet import quiet
from pipelines.testing import PROMPTS, tiny_sd3_directory
from pipelines.testing_flux import tiny_flux_directory
from pipelines.testing_qwen import tiny_qwen_image_directory

BUILDERS: dict[str, Callable[[Path], Path]] = {
    "StableDiffusion3Pipeline": tiny_sd3_directory,
    "FluxPipeline": tiny_flux_directory,
    "QwenImagePipeline": tiny_qwen_image_directory,
}
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
WIDE = {"StableDiffusion3Pipeline": "ff.net.2", "FluxPipeline": "proj_mlp", "QwenImagePipeline": "img_mlp.net.2"}
"""A layer of each architecture that is no attention layer."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], tuple[Path, Path]]:
    """(base, LoRA) directories of an architecture; the LoRA is random, with alpha / rank = 3."""
    made: dict[tuple[str, bool], tuple[Path, Path]] = {}

    def get(pipeline: str, wide: bool) -> tuple[Path, Path]:
        if (pipeline, wide) not in made:
            folder = tmp_path_factory.mktemp(pipeline)
            base = BUILDERS[pipeline](folder / "base")
            targets = (*ATTENTION, WIDE[pipeline]) if wide else ATTENTION
            policy = load_policy(base, tune="lora", lora=LoraOptions(rank=2, alpha=6, targets=targets), device="cpu")
            generator = torch.Generator().manual_seed(1)
            for _, parameter in policy.trainable_parameters():
                parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
            policy.save_pretrained(folder / "lora")
            made[pipeline, wide] = base, folder / "lora"
        return made[pipeline, wide]

    return get


def paint(pipeline: str, base: Path, lora: Path | dict[str, Any] | None, name: str | None = None) -> np.ndarray:
    """What plain diffusers paints with and without a LoRA."""
    absent = ("text_encoder_3", "tokenizer_3") if pipeline == "StableDiffusion3Pipeline" else ()
    with quiet():
        pipe: Any = getattr(diffusers, pipeline).from_pretrained(base, **dict.fromkeys(absent))
        if lora is not None:
            pipe.load_lora_weights(lora, **({"weight_name": name} if name else {}))
    pipe.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    return pipe(
        PROMPTS[1], num_inference_steps=2, height=16, width=16, generator=generator, output_type="np",
        max_sequence_length=24,
    ).images  # fmt: skip


@pytest.mark.parametrize(
    "pipeline, form, wide",
    [
        ("StableDiffusion3Pipeline", "comfyui", True), ("FluxPipeline", "comfyui", True),
        ("QwenImagePipeline", "comfyui", True), ("FluxPipeline", "kohya", False), ("QwenImagePipeline", "kohya", True),
    ],
)  # fmt: skip
def test_a_converted_lora_paints_the_same(
    trained: Callable[[str, bool], tuple[Path, Path]], tmp_path: Path, pipeline: str, form: str, wide: bool
) -> None:
    base, lora = trained(pipeline, wide)
    written = export_weights(lora, tmp_path / "out", form, pipeline, "shapes")
    assert written == [tmp_path / "out" / "shapes.safetensors"]
    plain, original = paint(pipeline, base, None), paint(pipeline, base, lora)
    converted = paint(pipeline, base, tmp_path / "out", "shapes.safetensors")
    assert np.abs(original - plain).max() > 0.02
    np.testing.assert_allclose(converted, original, atol=2e-5)


def test_the_scale_is_in_the_weights(trained: Callable[[str, bool], tuple[Path, Path]], tmp_path: Path) -> None:
    """alpha 6 at rank 2: every B is three times what it was and A as it was; nothing names an alpha."""
    _, lora = trained("StableDiffusion3Pipeline", True)
    [file] = export_weights(lora, tmp_path / "out", "comfyui", "StableDiffusion3Pipeline")
    before, after = load_file(lora / LORA_FILE), load_file(file)
    assert set(before) == set(after) and all(key.startswith("transformer.transformer_blocks.") for key in after)
    for key, value in before.items():
        torch.testing.assert_close(after[key], value * (3 if ".lora_B." in key else 1))


def test_kohya_names() -> None:
    tensors = {
        "transformer.transformer_blocks.0.attn.to_out.0.lora_A.weight": torch.ones(2, 4),
        "transformer.transformer_blocks.0.attn.to_out.0.lora_B.weight": torch.ones(4, 2),
    }
    stem = "lora_transformer_transformer_blocks_0_attn_to_out_0"
    found = convert_lora(tensors, "kohya", "FluxKontextPipeline")
    assert set(found) == {f"{stem}.lora_down.weight", f"{stem}.lora_up.weight", f"{stem}.alpha"}
    assert float(found[f"{stem}.alpha"]) == 2.0 and found[f"{stem}.alpha"].is_floating_point()


def test_diffusers_is_a_copy(trained: Callable[[str, bool], tuple[Path, Path]], tmp_path: Path) -> None:
    base, _ = trained("StableDiffusion3Pipeline", True)
    export_weights(base, tmp_path / "out", "diffusers")
    names = {path.relative_to(base) for path in base.rglob("*")}
    assert names == {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*")}


def test_what_does_not_hold_is_refused(trained: Callable[[str, bool], tuple[Path, Path]], tmp_path: Path) -> None:
    base, lora = trained("FluxPipeline", True)
    out = tmp_path / "out"
    with pytest.raises(InputError, match="unknown export format 'onnx'"):
        export_weights(lora, out, "onnx")
    with pytest.raises(InputError, match="holds no model"):
        export_weights(tmp_path, out, "diffusers")
    with pytest.raises(InputError, match="a whole model: format comfyui is for a LoRA of a pipeline"):
        export_weights(base, out, "comfyui", "FluxPipeline")
    with pytest.raises(InputError, match=r"attention layers only.*proj_mlp.*use format comfyui"):
        export_weights(lora, out, "kohya", "FluxPipeline")
    with pytest.raises(InputError, match=r"format kohya is there for .*, not for StableDiffusion3Pipeline"):
        export_weights(lora, out, "kohya", "StableDiffusion3Pipeline")
    with pytest.raises(InputError, match="not for this model"):
        export_weights(lora, out, "comfyui")
    assert not out.exists()
    out.mkdir()
    (out / "file").touch()
    with pytest.raises(InputError, match="not an empty directory"):
        export_weights(lora, out, "diffusers")


@pytest.mark.parametrize(
    "metadata, message",
    [
        ({}, "names no lora_alpha"),
        ({"lora_alpha": 4, "use_rslora": True}, "uses use_rslora"),
        ({"lora_alpha": 4, "alpha_pattern": {"to_q": 8}}, "uses alpha_pattern"),
    ],
)
def test_a_lora_of_unknown_strength_is_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    found = {"lora_adapter_metadata": json.dumps({f"transformer.{key}": value for key, value in metadata.items()})}
    save_file({"transformer.a.lora_B.weight": torch.ones(2, 2)}, tmp_path / LORA_FILE, metadata=found)
    with pytest.raises(InputError, match=message):
        export_weights(tmp_path, tmp_path / "out", "comfyui", "FluxPipeline")
