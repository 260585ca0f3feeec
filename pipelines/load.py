"""From a diffusers directory or model id to a policy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import nn

from mmrubric.errors import InputError
from pipelines.conditioning import FlowAdapter
from pipelines.diffusion import AUTOCAST, DEPLOYED_FILE, FlowPolicy
from pipelines.policy import Sampler
from pipelines.quiet import quiet

SHAPES = Path(__file__).parent / "assets" / "shapes-sd3"
"""The generator of the shapes world that ships with the package, loaded by the name "shapes"."""
SUPPORTED = ("StableDiffusion3Pipeline", "FluxPipeline", "FluxKontextPipeline", "QwenImagePipeline")


class LoraOptions(BaseModel, frozen=True, extra="forbid"):
    """A low-rank adapter (arXiv 2106.09685)."""

    rank: int = Field(default=16, ge=1)
    """Inner dimension."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0")
    """Ends of the names of the linear layers that get an adapter."""
    seed: int = 0
    """Seed of its initial weights; torch's global generators are left alone."""


def load_policy(
    path_or_id: str | Path,
    tune: Literal["full", "lora"] | None = "full",
    lora: LoraOptions | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    device: str | torch.device | None = None,
    *,
    ema: bool = False,
    old: bool = False,
    reference: bool = False,
    gradient_checkpointing: bool = False,
    batch: int | None = None,
    t5: bool = True,
) -> FlowPolicy:
    """Load a text-to-image pipeline as a policy; the adapter is chosen from its `model_index.json`.

    Args:
        path_or_id: a diffusers directory, a model id "owner/name", or "shapes". A `deployed.json` in the
            directory holds the `Sampler` fields used for evaluation.
        tune: what trains: all weights of the transformer, a LoRA adapter, or nothing.
        lora: options of the adapter; only with tune="lora".
        precision: autocast around the model call. Trained parameters and the VAE are float32 always; frozen
            networks are kept in the half type when one is asked for.
        device: None = a GPU if there is one.
        ema, old, reference: keep these copies of the trained weights (LoRA has its reference for nothing).
        gradient_checkpointing: recompute activations in the backward pass.
        batch: rows per model call in sampling; None = all at once.
        t5: False leaves out the T5 text encoder of a Stable Diffusion 3 pipeline.

    Raises:
        InputError: a missing directory, no diffusers pipeline, a class that is not supported, a wrong option.
    """
    if tune not in ("full", "lora", None):
        raise InputError(f"unknown tune '{tune}': known are full, lora and None (nothing trains)")
    if precision not in AUTOCAST:
        raise InputError(f"unknown precision '{precision}': known are {', '.join(AUTOCAST)}")
    if lora is not None and tune != "lora":
        raise InputError(f"lora options were given with tune={tune!r}: use tune='lora'")
    copies = [name for name, wanted in (("old", old), ("ema", ema), ("reference", reference)) if wanted]
    if tune is None and (copies or gradient_checkpointing):
        raise InputError("tune=None trains nothing: ema, old, reference and gradient_checkpointing do not apply")
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1 row, not {batch}")
    source = resolve(path_or_id)
    index = read_index(source)
    name = index["_class_name"]
    if name not in SUPPORTED:
        raise InputError(f"{source} is a {name}: supported are {', '.join(SUPPORTED)}")
    if not t5 and name != "StableDiffusion3Pipeline":
        raise InputError(f"t5=False is for StableDiffusion3Pipeline: a {name} cannot leave its text encoder out")
    deployed = read_deployed(source)

    # diffusers and transformers take seconds to import: not before the input is known to be good
    import diffusers

    # diffusers wants parts that a directory lacks, such as T5, to be named as None
    absent = {name for name, value in index.items() if isinstance(value, list) and value == [None, None]}
    absent |= set() if t5 else {"text_encoder_3", "tokenizer_3"}
    with quiet():
        pipe: Any = getattr(diffusers, name).from_pretrained(source, **dict.fromkeys(absent))
    pipe.set_progress_bar_config(disable=True)
    adapter = build_adapter(name, pipe)
    half = AUTOCAST[precision] or torch.float32
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    casts = [(pipe.vae, torch.float32), (adapter.module, torch.float32 if tune == "full" else half)]
    for part, dtype in [*casts, *((encoder, half) for encoder in adapter.frozen)]:
        # nn.Module's own `to`: weights may be stored in another type, and diffusers' override warns
        nn.Module.to(part, device, dtype).eval().requires_grad_(False)
    if tune == "full":
        adapter.module.requires_grad_(True)
    if tune == "lora":
        add_lora(adapter.module, lora or LoraOptions())
    if gradient_checkpointing:
        pipe.transformer.enable_gradient_checkpointing()
    return FlowPolicy(adapter, lora=tune == "lora", precision=precision, copies=copies, deployed=deployed, batch=batch)


def build_adapter(name: str, pipe: Any) -> FlowAdapter:
    """The adapter of a pipeline class of `SUPPORTED`.

    Raises:
        InputError: the pipeline lacks a part, or its scheduler is not a plain one.
    """
    from pipelines.flux import FluxAdapter
    from pipelines.flux_kontext import FluxKontextAdapter
    from pipelines.qwen_image import QwenImageAdapter
    from pipelines.sd3 import SD3Adapter

    adapters = {
        "StableDiffusion3Pipeline": SD3Adapter,
        "FluxPipeline": FluxAdapter,
        "FluxKontextPipeline": FluxKontextAdapter,
        "QwenImagePipeline": QwenImageAdapter,
    }
    return adapters[name](pipe)


def add_lora(module: Any, options: LoraOptions) -> None:
    """Inject a float32 adapter; everything else stays frozen.

    Raises:
        InputError: a target that matches no layer: an adapter that is nowhere would train nothing.
    """
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    for target in options.targets:
        if not any(name == target or name.endswith("." + target) for name in names):
            ends = sorted({re.sub(r"^.*?(?=[^.]+(\.\d+)?$)", "", name) for name in names})
            raise InputError(f"lora.targets: '{target}' matches no linear layer; there are {', '.join(ends)}")
    if not options.targets:
        raise InputError("lora.targets is empty: name at least one layer")
    from peft import LoraConfig

    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # pyright: ignore[reportArgumentType]
        target_modules=list(options.targets),
        init_lora_weights="gaussian",
    )
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        module.add_adapter(config)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def resolve(path_or_id: str | Path) -> str:
    """The directory or model id that a name stands for.

    Raises:
        InputError: it looks like a path and is not there.
    """
    if str(path_or_id) == "shapes":
        if not SHAPES.is_dir():
            raise InputError(f"the shipped generator is missing: {SHAPES} does not exist; reinstall the package")
        return str(SHAPES)
    path = Path(path_or_id)
    if path.is_dir():
        return str(path)
    if path.exists():
        raise InputError(f"{path} is a file: give the directory that holds model_index.json")
    if isinstance(path_or_id, Path) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", path_or_id):
        raise InputError(f"weights directory {path} does not exist")
    return path_or_id


def read_index(source: str) -> dict[str, Any]:
    """`model_index.json` of a directory or model id.

    Raises:
        InputError: it is not there or is no index of a pipeline.
    """
    if not Path(source).is_dir():
        from diffusers import DiffusionPipeline

        try:
            index: Any = DiffusionPipeline.load_config(source)
        except OSError as error:
            raise InputError(
                f"'{source}' is neither a directory here nor a model id that can be loaded: {error}"
            ) from error
    else:
        file = Path(source) / "model_index.json"
        if not file.is_file():
            raise InputError(f"{source} is not a diffusers pipeline directory: it has no model_index.json")
        try:
            index = json.loads(file.read_text())
        except ValueError as error:
            raise InputError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(index, dict) or "_class_name" not in index:
        raise InputError(f"model_index.json of {source} names no pipeline class (_class_name)")
    return index


def read_deployed(source: str) -> Sampler | None:
    """The `Sampler` in the directory's `deployed.json`, if any.

    Raises:
        InputError: the file does not hold sampler fields.
    """
    file = Path(source) / DEPLOYED_FILE
    if not file.is_file():
        return None
    try:
        return Sampler.model_validate(json.loads(file.read_text()))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(f"{file}: {wrong}") from error
    except ValueError as error:
        raise InputError(f"{file} is not valid JSON: {error}") from error
