"""The model adapter's protocol, and text embeddings kept by text, so that each is encoded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from mmrubric.rubric import Prompt
from pipelines.policy import Sampler

Embedding = tuple[Tensor, ...]
"""What a model reads of one text, without a batch dimension; the adapter says what each tensor is."""


class FlowAdapter(Protocol):
    """What differs between flow models; `pipelines.adapter.DiffusersAdapter` documents each part."""

    pipe: Any
    default_sequence_length: int

    @property
    def guidance(self) -> Literal["cfg", "embedded"]: ...

    @property
    def module(self) -> nn.Module: ...

    @property
    def frozen(self) -> list[nn.Module]: ...

    @property
    def default_size(self) -> tuple[int, int]: ...

    def shift_for(self, height: int, width: int) -> float: ...

    def deployed(self, height: int, width: int) -> Sampler: ...

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]: ...

    def problem(self, text: str, tokens: int) -> str | None: ...

    def encode(self, text: str, tokens: int) -> Embedding: ...

    def predict(self, module: nn.Module, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor: ...

    def guide(self, without: Tensor, with_text: Tensor, scale: float) -> Tensor: ...

    def decode(self, latents: Tensor) -> np.ndarray: ...

    def encode_images(self, images: np.ndarray) -> Tensor: ...

    def save_lora(self, directory: str | Path) -> None: ...


class EmbeddingCache:
    """Least recently used cache of embeddings.

    Texts are encoded one at a time: an embedding then never depends on which other texts happened to be in
    its batch, which keeps runs on other process counts and resumed runs bitwise equal.

    Args:
        encode: (text, tokens) -> embedding.
        limit: bytes to keep.
    """

    def __init__(self, encode: Callable[[str, int], Embedding], limit: int = 1 << 30) -> None:
        self._encode, self._limit, self._bytes = encode, limit, 0
        self._entries: OrderedDict[tuple[str, int], Embedding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._entries

    def get(self, text: str, tokens: int) -> Embedding:
        """Embedding of a text; `tokens` = `Sampler.max_sequence_length`."""
        key = (text, tokens)
        found = self._entries.get(key)
        if found is None:
            with torch.no_grad():
                found = self._encode(text, tokens)
            self._entries[key] = found
            self._bytes += _size(found)
            while self._bytes > self._limit and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= _size(dropped)
        else:
            self._entries.move_to_end(key)
        return found

    def batch(self, texts: Sequence[str], tokens: int) -> Embedding:
        """Embeddings of P texts, stacked: each tensor [P, ...]."""
        return tuple(torch.stack(parts) for parts in zip(*(self.get(text, tokens) for text in texts), strict=True))


class Conditioner:
    """What the model is shown for each row of a batch."""

    def __init__(self, adapter: FlowAdapter) -> None:
        self._adapter = adapter
        self.cache = EmbeddingCache(lambda text, tokens: adapter.encode(text, tokens))

    def check(self, prompts: Sequence[Prompt], tokens: int) -> None:
        """Refuse prompts that the encoders would cut or cannot read.

        Raises:
            InputError: names the prompt and says what is wrong.
        """
        for prompt in prompts:
            if prompt.negative and self._adapter.guidance == "embedded":
                raise InputError(
                    f"prompt '{prompt.id}' has a negative text, which a model with embedded guidance never reads"
                )
            for kind, text in (("prompt", prompt.text), ("negative text of prompt", prompt.negative)):
                problem = None if (text, tokens) in self.cache else self._adapter.problem(text, tokens)
                if problem:
                    raise InputError(f"{kind} '{prompt.id}' {problem}: {text!r}")

    def embed(self, prompts: Sequence[Prompt], index: Tensor, tokens: int, guided: bool) -> Embedding:
        """Embeddings of the n rows that show `prompts[index]`: tensors [n, ...], or with guidance [2n, ...],
        the negative texts first. A prompt's negative text is encoded when it is needed, whatever sampling
        needed."""
        shown, place = torch.unique(index, return_inverse=True)
        chosen = [prompts[i] for i in shown.tolist()]
        rows = [self.cache.batch([p.text for p in chosen], tokens)]
        if guided:
            rows.insert(0, self.cache.batch([p.negative for p in chosen], tokens))
        return tuple(torch.cat([t[place.to(t.device)] for t in tensors]) for tensors in zip(*rows, strict=True))


def _size(embedding: Embedding) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in embedding)
