"""Policies of real size with random weights: SD3.5-medium and FLUX.1-dev without text encoders.

The configurations are the published ones (`transformer/config.json` and `vae/config.json` of
stabilityai/stable-diffusion-3.5-medium and black-forest-labs/FLUX.1-dev); embeddings are random and the same for the
same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel, SD3Transformer2DModel
from torch import Tensor, nn

from pipelines import LoraOptions
from pipelines.conditioning import Embedding
from pipelines.diffusion import FlowPolicy
from pipelines.flux import FluxAdapter
from pipelines.load import add_lora
from pipelines.samplers import Sampler
from pipelines.sd3 import SD3Adapter
from pipelines.seeds import derive

NAMES = ("sd3.5-medium", "flux.1-dev")
_SD3: dict[str, Any] = dict(
    sample_size=128, patch_size=2, in_channels=16, out_channels=16, num_layers=24, attention_head_dim=64,
    num_attention_heads=24, joint_attention_dim=4096, caption_projection_dim=1536, pooled_projection_dim=2048,
    pos_embed_max_size=384, dual_attention_layers=tuple(range(13)), qk_norm="rms_norm",
)  # fmt: skip
_SD3_TINY: dict[str, Any] = dict(
    _SD3, sample_size=8, num_layers=2, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16,
    caption_projection_dim=16, pooled_projection_dim=16, pos_embed_max_size=8, dual_attention_layers=(0,),
)  # fmt: skip
_FLUX: dict[str, Any] = dict(
    in_channels=64, num_layers=19, num_single_layers=38, attention_head_dim=128, num_attention_heads=24,
    joint_attention_dim=4096, pooled_projection_dim=768, guidance_embeds=True, axes_dims_rope=(16, 56, 56),
)  # fmt: skip
_FLUX_TINY: dict[str, Any] = dict(
    _FLUX, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16,
    pooled_projection_dim=16, axes_dims_rope=(4, 6, 6),
)  # fmt: skip
_VAE: dict[str, Any] = dict(
    down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2,
    block_out_channels=(128, 256, 512, 512), latent_channels=16, norm_num_groups=32, sample_size=1024,
    use_quant_conv=False, use_post_quant_conv=False,
)  # fmt: skip
_VAE_TINY: dict[str, Any] = dict(
    _VAE, layers_per_block=1, block_out_channels=(4, 4, 4, 4), norm_num_groups=2, sample_size=64
)


class _RandomTexts:
    """Embeddings drawn from the text instead of encoders."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Of tokens [L, D] and pooled [P]."""
    pipe: Any
    frozen: list[nn.Module] = []  # noqa: RUF012 - there are no encoders
    device: torch.device

    def problem(self, text: str, tokens: int) -> None:
        """Every text is fine."""

    def encode(self, text: str, tokens: int) -> Embedding:
        """Standard normal numbers."""
        generator = torch.Generator().manual_seed(derive("text", text))
        parts = (torch.randn(shape, generator=generator) for shape in self.shapes)
        dtype = self.pipe.transformer.dtype
        return tuple(part.to(self.device, dtype) for part in parts)


class RandomSD3(_RandomTexts, SD3Adapter):
    """SD3 with random texts: 77 CLIP and 256 T5 tokens."""


class RandomFlux(_RandomTexts, FluxAdapter):
    """FLUX with random texts of 512 T5 tokens."""


@contextmanager
def _made_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Build modules where and as they are needed: 12 billion weights in float32 on the CPU would take minutes."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def build(name: str, device: torch.device, *, tiny: bool, share: float = 1.0) -> tuple[FlowPolicy, dict[str, Any]]:
    """A policy with bf16 weights, bf16 autocast and a LoRA of rank 32, and what it is made of.

    Args:
        name: of `NAMES`.
        device: of everything.
        tiny: small configurations of the same architectures.
        share: of the blocks, where memory does not suffice for all.
    """
    sd3 = name == "sd3.5-medium"
    settings: dict[str, Any] = dict((_SD3_TINY if tiny else _SD3) if sd3 else (_FLUX_TINY if tiny else _FLUX))
    for key in ("num_layers", "num_single_layers"):
        if key in settings:
            settings[key] = max(1, round(settings[key] * share))
    if sd3:
        settings["dual_attention_layers"] = tuple(
            n for n in settings["dual_attention_layers"] if n < settings["num_layers"]
        )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        with _made_on(device, torch.bfloat16):
            transformer = (SD3Transformer2DModel if sd3 else FluxTransformer2DModel)(**settings)
        with _made_on(device, torch.float32):
            scale, shift = (1.5305, 0.0609) if sd3 else (0.3611, 0.1159)
            vae: Any = AutoencoderKL(**(_VAE_TINY if tiny else _VAE), scaling_factor=scale, shift_factor=shift)
    transformer.eval().requires_grad_(False)
    vae.eval().requires_grad_(False)
    add_lora(transformer, LoraOptions(rank=4 if tiny else 32, alpha=8 if tiny else 64))
    pipe = SimpleNamespace(
        transformer=transformer, vae=vae, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae_scale_factor=8,
        default_sample_size=8 if tiny else 128, text_encoder=nn.Identity(), text_encoder_2=nn.Identity(),
    )  # fmt: skip
    adapter = (RandomSD3 if sd3 else RandomFlux)(pipe)
    width, pooled = settings["joint_attention_dim"], settings["pooled_projection_dim"]
    adapter.shapes = ((8 if tiny else 333 if sd3 else 512, width), (pooled,))
    made = {
        "parameters": sum(p.numel() for p in transformer.parameters() if not p.requires_grad),
        "trained": sum(p.numel() for p in transformer.parameters() if p.requires_grad),
        "blocks": settings["num_layers"] + settings.get("num_single_layers", 0),
    }
    return FlowPolicy(adapter, lora=True, precision="bf16"), made


def sampler_of(name: str, tiny: bool) -> Sampler:
    """Flow-GRPO's for SD3.5, DanceGRPO's noise for FLUX, both at 512 x 512 pixels."""
    size = {"height": 64 if tiny else 512, "width": 64 if tiny else 512, "shift": 3.0, "max_sequence_length": 256}
    if name == "sd3.5-medium":
        return Sampler(steps=3 if tiny else 10, guidance=4.5, noise="sde", level=0.7, **size)
    return Sampler(steps=3 if tiny else 8, guidance=3.5, noise="dance", level=0.3, **size)


def velocity(policy: FlowPolicy, sampler: Sampler, rows: int) -> Tensor:
    """One model call with gradient for `rows` rows of the same prompt at noise level one half."""
    from mmrubric import Prompt

    shape = policy.adapter.latent_shape(sampler.height or 0, sampler.width or 0)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).expand(rows, *shape).to(policy.device)
    embedding = policy.conditioner.embed(
        [Prompt(id="p", text="any")], torch.zeros(rows, dtype=torch.long), sampler, sampler.guidance > 1 and
        policy.adapter.guidance == "cfg",
    )  # fmt: skip
    return policy._velocity(x, torch.full((rows,), 0.5, device=policy.device), embedding, sampler.guidance)
