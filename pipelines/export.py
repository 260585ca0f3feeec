"""Trained weights for other programs: diffusers and transformers as they are, ComfyUI and kohya from a LoRA.

diffusers keeps a LoRA's alpha in the metadata of the file, where ComfyUI does not look: it would apply the adapter at
rank / alpha of its strength. Both other formats therefore fold alpha / rank into the weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal, get_args

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mmrubric.errors import InputError

Format = Literal["diffusers", "comfyui", "kohya"]
FORMATS: tuple[str, ...] = get_args(Format)
LORA_FILE = "pytorch_lora_weights.safetensors"
"""Name that diffusers gives a LoRA in its directory."""
PEFT_FILE = "adapter_config.json"
"""What transformers writes beside a LoRA of a token model."""
_PREFIX = "transformer."
_FLUX = ("FluxPipeline", "FluxKontextPipeline")
_QWEN = ("QwenImagePipeline", "QwenImageEditPipeline", "QwenImageEditPlusPipeline")
_COMFYUI = ("StableDiffusion3Pipeline", *_FLUX, *_QWEN)
"""Architectures whose diffusers names ComfyUI maps to its own (`comfy/lora.py`, read in December 2026)."""
_KOHYA = {**dict.fromkeys(_FLUX, "lora_transformer_"), **dict.fromkeys(_QWEN, "lora_unet_")}
"""Prefix of the names that diffusers' own loader reads back. It has no such reader for Stable Diffusion 3."""


def export_weights(model: Path, out: Path, form: str, pipeline: str | None = None, name: str = "lora") -> list[Path]:
    """Write a model directory of `save_pretrained` for another program; its card and pictures come along.

    Args:
        model: whole pipeline or LoRA.
        out: directory to make.
        form: diffusers (also of a transformers model): the directory as it is. comfyui, kohya: one file `name`.
        pipeline: class of the pipeline that a LoRA belongs to; needed by comfyui and kohya.
        name: of the file, without its ending.

    Returns:
        The files written, weights first.

    Raises:
        InputError: nothing to export, a full `out`, or a format that does not hold for this model.
    """
    if form not in FORMATS:
        raise InputError(f"unknown export format {form!r}: known are {', '.join(FORMATS)}")
    known = (LORA_FILE, PEFT_FILE, "model_index.json", "config.json")
    if not any((model / file).is_file() for file in known):
        raise InputError(f"{model} holds no model: none of {', '.join(known)} is there")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not an empty directory: export into a new one")
    if form == "diffusers":
        shutil.copytree(model, out, dirs_exist_ok=True)
        return sorted(path for path in out.rglob("*") if path.is_file())
    tensors = convert_lora(_read_lora(model, form), form, pipeline)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / f"{name}.safetensors"]
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, written[0], metadata={"format": "pt"})
    for extra in sorted([*model.glob("*.md"), *model.glob("*.png")]):
        written.append(Path(shutil.copy(extra, out)))
    return written


def convert_lora(tensors: dict[str, Tensor], form: str, pipeline: str | None) -> dict[str, Tensor]:
    """Names of another program for a LoRA whose scale is folded in.

    comfyui: `transformer.<layer>.lora_A.weight`, the names of diffusers, without any alpha. kohya:
    `<prefix><layer with _>.lora_down.weight` and `.alpha` = rank.

    Args:
        tensors: `transformer.<layer>.lora_A.weight` [r, in] and `.lora_B.weight` [out, r], scale 1.
        form: comfyui or kohya.
        pipeline: class of the pipeline.

    Raises:
        InputError: the format does not hold for this architecture, or for one of the layers.
    """
    supported = _COMFYUI if form == "comfyui" else tuple(_KOHYA)
    if pipeline is None or pipeline not in supported:
        raise InputError(f"format {form} is there for {', '.join(supported)}, not for {pipeline or 'this model'}")
    if form == "comfyui":
        return tensors
    from diffusers.utils import convert_state_dict_to_kohya

    if pipeline in _FLUX:
        # diffusers' reader of these names knows no others and would put them onto the wrong layer.
        odd = sorted({key for key in tensors if ".attn." not in key})
        if odd:
            raise InputError(
                f"format kohya of a {pipeline} holds attention layers only, and this LoRA has {odd[0]} and "
                f"{len(odd) - 1} more: use format comfyui"
            )
    renamed = convert_state_dict_to_kohya({key.removeprefix(_PREFIX): value for key, value in tensors.items()})
    return {_KOHYA[pipeline] + key: value.float() if value.ndim == 0 else value for key, value in renamed.items()}


def _read_lora(model: Path, form: str) -> dict[str, Tensor]:
    """A LoRA's tensors with its scale alpha / rank folded into the B matrices."""
    path = model / LORA_FILE
    if not path.is_file():
        kind = "a LoRA of a token model" if (model / PEFT_FILE).is_file() else "a whole model"
        raise InputError(f"{model} is {kind}: format {form} is for a LoRA of a pipeline, use format diffusers")
    with safe_open(path, framework="pt") as file:
        found = json.loads((file.metadata() or {}).get("lora_adapter_metadata", "{}"))
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    settings = {key.removeprefix(_PREFIX): value for key, value in found.items()}
    if "lora_alpha" not in settings:
        raise InputError(f"{path} names no lora_alpha in its metadata, so its strength is unknown")
    special = [key for key in ("rank_pattern", "alpha_pattern", "use_rslora", "use_dora") if settings.get(key)]
    if special:
        raise InputError(f"{path} uses {', '.join(special)}: format {form} cannot say that")
    alpha = float(settings["lora_alpha"])
    for key, value in tensors.items():
        if ".lora_B." in key:
            tensors[key] = value * (alpha / value.shape[1])
    return tensors
