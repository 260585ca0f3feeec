"""What differs between models that write an image as tokens: prompts, layout, embeddings, logits, pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from pipelines.samplers import TokenSampler

PROVIDES = frozenset({"log_prob", "logits"})
"""What a token policy without a value head gives."""
FREE = -1
"""In a layout: the token of this position is drawn."""


class TokenAdapter(ABC):
    """One transformers model as a token policy sees it. Parts are looked up when used, because wrappers replace them.

    Args:
        model: a `...ForConditionalGeneration` that writes image tokens.
        processor: its processor.
    """

    trainable: ClassVar[tuple[str, ...]]
    """Names of the submodules that train; the others are not part of the way from prompt to image tokens."""
    vq_name: ClassVar[str]
    """Name of the VQ model."""
    reads_negative: ClassVar[bool]
    """Whether the unconditional branch is shown the negative text of a prompt."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor
        if processor.tokenizer.pad_token_id is None:
            raise InputError("the tokenizer of this model has no pad token, which batches of prompts need")

    @property
    @abstractmethod
    def text_model(self) -> Any:
        """The transformer between embeddings and hidden states."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """V, number of logits at each position."""

    @property
    @abstractmethod
    def allowed(self) -> Tensor | None:
        """[V] bool, tokens that a free position may take; None = all."""

    @property
    @abstractmethod
    def layout(self) -> Tensor:
        """[T] int64, the token that a position must hold, or `FREE`."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Height and width of the images, in pixels."""

    @abstractmethod
    def prompt_ids(self, text: str) -> list[int]:
        """Text tokens before the first image token."""

    @abstractmethod
    def unconditional_ids(self, text: str, negative: str) -> list[int]:
        """The same for the branch without the text."""

    @abstractmethod
    def embed_text(self, ids: Tensor) -> Tensor:
        """[N, L, D] of prompt ids [N, L]."""

    @abstractmethod
    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """[N, T, D] of image tokens [N, T]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] of hidden states [..., D]."""

    @abstractmethod
    def decode(self, tokens: Tensor) -> np.ndarray:
        """uint8 [B, H, W, 3] of image tokens [B, T]."""

    @abstractmethod
    def encode(self, images: np.ndarray) -> Tensor:
        """Image tokens [B, T] int64 of uint8 [B, H, W, 3] of the model's own size."""

    @property
    def width(self) -> int:
        """D, size of the hidden states."""
        return self.text_model.config.hidden_size

    @property
    def vq(self) -> nn.Module:
        """The frozen model between tokens and pictures."""
        return self.model.get_submodule(self.vq_name)

    @property
    def pad(self) -> int:
        """Token id that fills short prompts."""
        return self.processor.tokenizer.pad_token_id

    def problem(self, text: str) -> str | None:
        """Why a text cannot be a prompt, or None."""
        tokenizer = self.processor.tokenizer
        ids = self.prompt_ids(text)
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            return "has characters that the tokenizer cannot read"
        room = self.text_model.config.max_position_embeddings - len(self.layout)
        return f"has {len(ids)} tokens, the model has room for {room}" if len(ids) > room else None

    def hidden(self, embeds: Tensor, mask: Tensor, cache: Any = None) -> Tensor:
        """Hidden states [N, S, D] of the last S positions.

        Args:
            embeds: [N, S, D].
            mask: [N, past + S], 0 where a prompt was filled up on the left.
            cache: keys and values of the past, which this call extends; None = no past.
        """
        positions = (mask.cumsum(1) - 1).clamp_min(0)[:, -embeds.shape[1] :]
        return self.text_model(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def deployed(self) -> TokenSampler:
        """What `generation_config.json` says; a guidance below 1 there means off."""
        config = self.model.generation_config
        named = {name: getattr(config, name, None) for name in ("temperature", "top_k", "top_p")}
        scale = config.guidance_scale
        fields = {name: value for name, value in named.items() if value is not None}
        return TokenSampler(guidance=max(1.0, self.default_guidance if scale is None else scale), **fields)

    @property
    def default_guidance(self) -> float:
        """Scale where `generation_config.json` names none."""
        return 1.0

    def save(self, directory: str | Path, state: dict[str, Tensor] | None = None) -> None:
        """Write model and processor, or the PEFT adapter of one that has an adapter, for plain transformers.

        Args:
            directory: made where it is not there.
            state: whole tensors of what trains, as `TokenModule` names them, where the model itself holds shards.
        """
        options = {} if state is None else {"state_dict": self._whole(state)}
        self.model.save_pretrained(directory, **options)
        if not self.model._hf_peft_config_loaded:
            self.processor.save_pretrained(directory)

    def _whole(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The model's state with what trains taken from `state`; tied weights once."""
        tied = self.model._tied_weights_keys if self.model.config.tie_word_embeddings else {}
        whole = {name: tensor for name, tensor in self.model.state_dict().items() if name not in tied}
        for name in self.trainable:
            short = name.rsplit(".", 1)[-1]
            inside = (key for key in state if key.startswith(short + ".") and name + key[len(short) :] in whole)
            whole |= {name + key[len(short) :]: state[key] for key in inside}
        return whole

    def to_pixels(self, values: Tensor) -> np.ndarray:
        """uint8 [B, H, W, 3] of what the VQ decoder gives, [B, 3, H, W]."""
        mean, std = self._statistics(values)
        levels = ((values.float() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        return levels.permute(0, 2, 3, 1).contiguous().cpu().numpy()

    def to_values(self, images: np.ndarray) -> Tensor:
        """What the VQ encoder takes, [B, 3, H, W] float32, of uint8 [B, H, W, 3].

        Raises:
            InputError: images of another size.
        """
        if images.shape[1:3] != self.size:
            raise InputError(
                f"images are {images.shape[1]} x {images.shape[2]} pixels: this model writes "
                f"{self.size[0]} x {self.size[1]} (height x width)"
            )
        pixels = torch.from_numpy(images).to(next(self.vq.parameters()).device).permute(0, 3, 1, 2)
        mean, std = self._statistics(pixels)
        return (pixels.float() / 255 - mean) / std

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [3, 1, 1] of the pixels in [0, 1], as the image processor normalises them."""
        images = self.processor.image_processor
        mean, std = (torch.tensor(value, device=like.device) for value in (images.image_mean, images.image_std))
        return mean.view(3, 1, 1), std.view(3, 1, 1)
