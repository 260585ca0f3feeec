"""From a diffusers directory or model id to a policy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import nn

from mmrubric.errors import InputError
from pipelines import ddim, flow, token_load
from pipelines.conditioning import Conditioner, FlowAdapter
from pipelines.diffusion import PROVIDES, FlowPolicy
from pipelines.embedding_store import EmbeddingStore, fingerprint
from pipelines.engine import Encoders, EngineOptions
from pipelines.engine import check as check_engine
from pipelines.engine import prepare as prepare_engine
from pipelines.quiet import quiet
from pipelines.samplers import Sampler, TokenSampler
from pipelines.token_adapter import PROVIDES as TOKEN_PROVIDES
from pipelines.trained import AUTOCAST, DEPLOYED_FILE

if TYPE_CHECKING:
    from pipelines.tokens import TokenPolicy

SHAPES = Path(__file__).parent / "assets" / "shapes-sd3"
"""The generator of the shapes world that ships with the package, loaded by the name "shapes"."""
SHIPPED = {
    "shapes": SHAPES,
    "shapes-edit": SHAPES.with_name("shapes-edit"),
    "shapes-janus": SHAPES.with_name("shapes-janus"),
}
"""Models of the shapes world that ship with the package, by the name that loads them."""
SUPPORTED = (
    "StableDiffusion3Pipeline",
    "FluxPipeline",
    "FluxKontextPipeline",
    "QwenImagePipeline",
    "QwenImageEditPipeline",
    "QwenImageEditPlusPipeline",
    "StableDiffusionPipeline",
    "StableDiffusionXLPipeline",
)
DDIM = ("StableDiffusionPipeline", "StableDiffusionXLPipeline")
"""Those of `SUPPORTED` that are no flow models: noise `ddim`, and no velocity at a point of one's choice."""
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
"""Layers of a denoiser that get a LoRA adapter where none are named."""


class LoraOptions(BaseModel, frozen=True, extra="forbid"):
    """A low-rank adapter (arXiv 2106.09685)."""

    rank: int = Field(default=16, ge=1)
    """Inner dimension."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] | None = None
    """Ends of the names of the linear layers that get an adapter. None = those of the attention: to_q, to_k, to_v and
    to_out.0 of a denoiser, q_proj, k_proj, v_proj and o_proj of a token model."""
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
    previous: bool = False,
    gradient_checkpointing: bool = False,
    batch: int | None = None,
    t5: bool = True,
    engine: EngineOptions | None = None,
    shard: Callable[[nn.Module], nn.Module] | None = None,
    value_head: bool = False,
) -> FlowPolicy | TokenPolicy:
    """Load a text-to-image model as a policy: a `FlowPolicy` over a pipeline, whose adapter is chosen from its
    `model_index.json`, or a `TokenPolicy` over a transformers model, chosen by the `model_type` of its `config.json`.

    Args:
        path_or_id: a diffusers or transformers directory, a model id "owner/name", or a name of `SHIPPED`. A
            `deployed.json` in the directory holds the fields of the sampler used for evaluation.
        tune: what trains: all weights of the denoiser (transformer or unet), a LoRA adapter, or nothing.
        lora: options of the adapter; only with tune="lora".
        precision: autocast around the model call. Trained parameters and the VAE are float32 always; frozen
            networks are kept in the half type when one is asked for.
        device: None = a GPU if there is one.
        ema, old, reference, previous: keep these copies of the trained weights (LoRA has its reference for nothing).
        gradient_checkpointing: recompute activations in the backward pass.
        batch: rows per model call in sampling; None = all at once.
        t5: False leaves out the T5 text encoder of a Stable Diffusion 3 pipeline.
        engine: how the model runs, see `EngineOptions`.
        shard: spreads the network over the ranks, see `FlowPolicy`; its weights stay on the CPU until then.
        value_head: train a value head too, 0 at the start or as saved beside the weights; token models only.

    Raises:
        InputError: a missing directory, no model that is known, a class that is not supported, a wrong option.
    """
    if tune not in ("full", "lora", None):
        raise InputError(f"unknown tune '{tune}': known are full, lora and None (nothing trains)")
    if precision not in AUTOCAST:
        raise InputError(f"unknown precision '{precision}': known are {', '.join(AUTOCAST)}")
    if lora is not None and tune != "lora":
        raise InputError(f"lora options were given with tune={tune!r}: use tune='lora'")
    wanted = {"old": old, "ema": ema, "reference": reference, "previous": previous}
    copies = [name for name, keep in wanted.items() if keep]
    if tune is None and (copies or gradient_checkpointing or value_head):
        raise InputError(
            f"tune=None trains nothing: {', '.join(wanted)}, gradient_checkpointing and value_head do not apply"
        )
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1 row, not {batch}")
    source = resolve(path_or_id)
    index = read_index(source)
    name = index["_class_name"]
    tokens = name in token_load.MODELS.values()
    if not tokens and name not in SUPPORTED:
        known = ", ".join((*SUPPORTED, *token_load.MODELS.values()))
        raise InputError(f"{source} is a {name}: supported are {known}")
    if value_head and not tokens:
        raise InputError(f"value_head is for token models ({', '.join(token_load.MODELS.values())}), not for a {name}")
    if not t5 and name != "StableDiffusion3Pipeline":
        raise InputError(f"t5=False is for StableDiffusion3Pipeline: a {name} cannot leave its text encoder out")
    deployed = read_deployed(source, TokenSampler if tokens else Sampler)
    engine = engine or EngineOptions()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if tokens:
        if engine != EngineOptions():
            named = ", ".join(f"{k}={v}" for k, v in engine.model_dump(exclude_defaults=True).items())
            raise InputError(f"{named}: a token model takes none of these options")
        options = token_load.Options(
            tune, lora, precision, device, copies, gradient_checkpointing, batch, deployed, value_head, shard
        )
        return token_load.load_tokens(name, source, options)
    check_engine(engine, name, device, shard is not None)

    # diffusers and transformers take seconds to import: not before the input is known to be good
    import diffusers

    # diffusers wants parts that a directory lacks, such as T5, to be named as None
    absent = {name for name, value in index.items() if isinstance(value, list) and value == [None, None]}
    absent |= set() if t5 else {"text_encoder_3", "tokenizer_3"}
    with quiet():
        parts = {**dict.fromkeys(absent), **replaced_parts(name, source)}
        pipe: Any = getattr(diffusers, name).from_pretrained(source, **parts)
    pipe.set_progress_bar_config(disable=True)
    adapter = build_adapter(name, pipe)
    half = AUTOCAST[precision] or torch.float32
    casts = [
        (pipe.vae, torch.float32, device),
        (adapter.module, torch.float32 if tune == "full" else half, "cpu" if shard else device),
        *((encoder, half, "cpu" if engine.offload_encoders else device) for encoder in adapter.frozen),
    ]
    for part, dtype, place in casts:
        # nn.Module's own `to`: weights may be stored in another type, and diffusers' override warns
        nn.Module.to(part, place, dtype).eval().requires_grad_(False)
    if tune == "full":
        adapter.module.requires_grad_(True)
    if tune == "lora":
        add_lora(adapter.module, lora or LoraOptions())
    if gradient_checkpointing:
        network: Any = adapter.module
        network.enable_gradient_checkpointing()
    prepare_engine(engine, pipe)
    policy = FlowPolicy(
        adapter,
        lora=tune == "lora",
        precision=precision,
        copies=copies,
        deployed=deployed,
        batch=batch,
        shard=shard,
        conditioner=Conditioner(
            adapter, Encoders(adapter.frozen, engine.offload_encoders), embeddings(engine, source, pipe)
        ),
    )
    if engine.compile:
        adapter.module.compile()
    return policy


def embeddings(engine: EngineOptions, source: str, pipe: Any) -> EmbeddingStore | None:
    """The disk cache of embeddings that the options name, if any."""
    if engine.embedding_cache is None:
        return None
    unused = ("transformer", "unet", "scheduler")
    parts = {key: part for key, part in pipe.components.items() if key not in unused}
    place = str(Path(source).resolve()) if Path(source).is_dir() else source
    return EmbeddingStore(engine.embedding_cache, fingerprint(place, parts))


def replaced_parts(name: str, source: str) -> dict[str, Any]:
    """Parts of a pipeline that its `from_pretrained` cannot load on this machine and is to be given."""
    if not name.startswith("QwenImageEdit"):
        return {}
    from pipelines.qwen_image_edit import replaced_processor

    return replaced_processor(source)


def provides(name: str, value_head: bool = False) -> frozenset[str]:
    """What a policy over a model class provides, without loading it."""
    if name in token_load.MODELS.values():
        return TOKEN_PROVIDES | ({"value"} if value_head else set())
    return PROVIDES - (ddim.LACKS if name in DDIM else frozenset())


def check_sampler(name: str, sampler: Sampler | TokenSampler) -> None:
    """Refuse a sampler that is for another sort of model than a class, without loading it.

    Raises:
        InputError: names the option.
    """
    kind = "tokens" if name in token_load.MODELS.values() else "flow"
    if sampler.kind != kind:
        raise InputError(f"sampler.kind is {sampler.kind}: a {name} takes {kind}")
    if isinstance(sampler, TokenSampler):
        return
    if name in DDIM:
        ddim.check_sampler(sampler)
    else:
        flow.check_noise(sampler.noise)


def build_adapter(name: str, pipe: Any) -> FlowAdapter:
    """The adapter of a pipeline class of `SUPPORTED`.

    Raises:
        InputError: the pipeline lacks a part, or its scheduler is not a plain one.
    """
    from pipelines.flux import FluxAdapter
    from pipelines.flux_kontext import FluxKontextAdapter
    from pipelines.qwen_image import QwenImageAdapter
    from pipelines.qwen_image_edit import QwenImageEditAdapter, QwenImageEditPlusAdapter
    from pipelines.sd3 import SD3Adapter
    from pipelines.sd15 import SD15Adapter
    from pipelines.sdxl import SDXLAdapter

    adapters = {
        "StableDiffusion3Pipeline": SD3Adapter,
        "FluxPipeline": FluxAdapter,
        "FluxKontextPipeline": FluxKontextAdapter,
        "QwenImagePipeline": QwenImageAdapter,
        "QwenImageEditPipeline": QwenImageEditAdapter,
        "QwenImageEditPlusPipeline": QwenImageEditPlusAdapter,
        "StableDiffusionPipeline": SD15Adapter,
        "StableDiffusionXLPipeline": SDXLAdapter,
    }
    return adapters[name](pipe)


def add_lora(module: Any, options: LoraOptions, inside: tuple[str, ...] = ()) -> None:
    """Inject a float32 adapter; everything else stays frozen.

    Args:
        module: a model of diffusers or transformers.
        options: of the adapter.
        inside: names of the submodules to look in; empty = everywhere.

    Raises:
        InputError: a target that matches no layer: an adapter that is nowhere would train nothing.
    """
    names = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and (not inside or name.startswith(tuple(f"{place}." for place in inside)))
    ]
    targets = ATTENTION if options.targets is None else options.targets
    for target in targets:
        if not any(name == target or name.endswith("." + target) for name in names):
            ends = sorted({re.sub(r"^.*?(?=[^.]+(\.\d+)?$)", "", name) for name in names})
            raise InputError(f"lora.targets: '{target}' matches no linear layer; there are {', '.join(ends)}")
    if not targets:
        raise InputError("lora.targets is empty: name at least one layer")
    from peft import LoraConfig

    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # pyright: ignore[reportArgumentType]
        target_modules=list(targets) if not inside else _pattern(targets, inside),
        init_lora_weights="gaussian",
    )
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        module.add_adapter(config)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _pattern(targets: tuple[str, ...], inside: tuple[str, ...]) -> str:
    """Regular expression of the whole names of the layers that end in a target, inside some submodules."""
    places, ends = ("|".join(map(re.escape, names)) for names in (inside, targets))
    return rf"(?:{places})(?:\..*)?\.(?:{ends})"


def resolve(path_or_id: str | Path) -> str:
    """The directory or model id that a name stands for.

    Raises:
        InputError: it looks like a path and is not there.
    """
    if (shipped := SHIPPED.get(str(path_or_id))) is not None:
        if not shipped.is_dir():
            raise InputError(f"the shipped model is missing: {shipped} does not exist; reinstall the package")
        return str(shipped)
    path = Path(path_or_id)
    if path.is_dir():
        return str(path)
    if path.exists():
        raise InputError(f"{path} is a file: give the directory that holds model_index.json or config.json")
    if isinstance(path_or_id, Path) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", path_or_id):
        raise InputError(f"weights directory {path} does not exist")
    return path_or_id


def read_index(source: str) -> dict[str, Any]:
    """`model_index.json` of a directory or model id; of a token model, which has none, its class as `_class_name`.

    Raises:
        InputError: it is not there or is no index of a pipeline.
    """
    if not Path(source).is_dir():
        from diffusers import DiffusionPipeline

        try:
            index: Any = DiffusionPipeline.load_config(source)
        except OSError as error:
            if (found := token_load.read_config(source)) is not None:
                return found
            raise InputError(
                f"'{source}' is neither a directory here nor a model id that can be loaded: {error}"
            ) from error
    else:
        file = Path(source) / "model_index.json"
        if not file.is_file():
            if (found := token_load.read_config(source)) is not None:
                return found
            raise InputError(f"{source} is no model directory: it has no model_index.json and no config.json")
        try:
            index = json.loads(file.read_text())
        except ValueError as error:
            raise InputError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(index, dict) or "_class_name" not in index:
        raise InputError(f"model_index.json of {source} names no pipeline class (_class_name)")
    return index


def read_deployed(source: str, kind: Any = Sampler) -> Any:
    """The sampler, a `Sampler` or `TokenSampler` as `kind` says, in the directory's `deployed.json`, if any.

    Raises:
        InputError: the file does not hold sampler fields.
    """
    file = Path(source) / DEPLOYED_FILE
    if not file.is_file():
        return None
    try:
        return kind.model_validate(json.loads(file.read_text()))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(f"{file}: {wrong}") from error
    except ValueError as error:
        raise InputError(f"{file} is not valid JSON: {error}") from error
