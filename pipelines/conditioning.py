"""The model adapter's protocol, and embeddings kept by text or source image, so that each is encoded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mmrubric.errors import InputError
from mmrubric.images import content_hash
from mmrubric.rubric import Prompt
from pipelines.policy import Sampler

Embedding = tuple[Tensor, ...]
"""What a model reads of one text, without a batch dimension; the adapter says what each tensor is."""


class FlowAdapter(Protocol):
    """What differs between flow models; `pipelines.adapter.DiffusersAdapter` documents each part."""

    pipe: Any
    default_sequence_length: int
    max_sources: int

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

    def encode_source(self, source: Any, height: int, width: int) -> Embedding: ...

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
        encode: (*key) -> embedding, where the key is (text, `Sampler.max_sequence_length`) or (`Source`, height,
            width).
        limit: bytes to keep.
    """

    def __init__(self, encode: Callable[..., Embedding], limit: int = 1 << 30) -> None:
        self._encode, self._limit, self._bytes = encode, limit, 0
        self._entries: OrderedDict[tuple, Embedding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: tuple) -> bool:
        return key in self._entries

    def get(self, *key: Any) -> Embedding:
        """Embedding of a text or source image."""
        found = self._entries.get(key)
        if found is None:
            with torch.no_grad():
                found = self._encode(*key)
            self._entries[key] = found
            self._bytes += _size(found)
            while self._bytes > self._limit and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= _size(dropped)
        else:
            self._entries.move_to_end(key)
        return found

    def batch(self, firsts: Sequence[Any], *rest: Any) -> Embedding:
        """Embeddings of P texts or source images, stacked: each tensor [P, ...]."""
        return tuple(torch.stack(parts) for parts in zip(*(self.get(first, *rest) for first in firsts), strict=True))


@dataclass(frozen=True)
class Source:
    """A source image as a key: equal where the pixels are equal, or the path and the time of its last change."""

    identity: str
    image: Any = field(compare=False)

    @classmethod
    def of(cls, prompt: Prompt) -> Source:
        """The source image of a prompt, or none."""
        if not prompt.sources:
            return cls("", None)
        image = prompt.sources[0]
        if isinstance(image, (str, Path)) and Path(image).is_file():
            # hashing pixels would decode the file once per micro-batch
            return cls(f"{Path(image).resolve()}@{Path(image).stat().st_mtime_ns}", image)
        return cls(content_hash(image), image)


class Conditioner:
    """What the model is shown for each row of a batch."""

    def __init__(self, adapter: FlowAdapter) -> None:
        self._adapter = adapter
        self.cache = EmbeddingCache(lambda text, tokens: adapter.encode(text, tokens))
        self.sources = EmbeddingCache(lambda source, h, w: adapter.encode_source(source.image, h, w))

    def check(self, prompts: Sequence[Prompt], tokens: int) -> None:
        """Refuse prompts that the encoders would cut or cannot read, or that hold what the model does not read.

        Raises:
            InputError: names the prompt and says what is wrong.
        """
        for prompt in prompts:
            if len(prompt.sources) > self._adapter.max_sources:
                raise InputError(
                    f"prompt '{prompt.id}' has {len(prompt.sources)} source images, "
                    f"this model reads {self._adapter.max_sources}"
                )
            if prompt.negative and self._adapter.guidance == "embedded":
                raise InputError(
                    f"prompt '{prompt.id}' has a negative text, which a model with embedded guidance never reads"
                )
            for kind, text in (("prompt", prompt.text), ("negative text of prompt", prompt.negative)):
                problem = None if (text, tokens) in self.cache else self._adapter.problem(text, tokens)
                if problem:
                    raise InputError(f"{kind} '{prompt.id}' {problem}: {text!r}")

    def embed(self, prompts: Sequence[Prompt], index: Tensor, sampler: Sampler, guided: bool) -> Embedding:
        """Embeddings of the n rows that show `prompts[index]`, text before source image: tensors [n, ...], or with
        guidance [2n, ...], the negative texts first. A prompt's negative text is encoded when it is needed,
        whatever sampling needed."""
        shown, place = torch.unique(index, return_inverse=True)
        chosen = [prompts[i] for i in shown.tolist()]
        tokens, sources = sampler.max_sequence_length, ()
        if self._adapter.max_sources:
            sources = self.sources.batch([Source.of(p) for p in chosen], sampler.height, sampler.width)
        rows = [(*self.cache.batch([p.text for p in chosen], tokens), *sources)]
        if guided:
            rows.insert(0, (*self.cache.batch([p.negative for p in chosen], tokens), *sources))
        return tuple(torch.cat([t[place.to(t.device)] for t in tensors]) for tensors in zip(*rows, strict=True))


def _size(embedding: Embedding) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in embedding)
