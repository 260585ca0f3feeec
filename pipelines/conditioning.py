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
from torch.nn.utils.rnn import pad_sequence

from mmrubric.errors import InputError
from mmrubric.images import content_hash
from mmrubric.rubric import Prompt
from pipelines.embedding_store import EmbeddingStore
from pipelines.engine import Encoders
from pipelines.flow import StepTable
from pipelines.samplers import Sampler

Embedding = tuple[Tensor, ...]
"""What a model reads of one text, without a batch dimension; the adapter says what each tensor is."""


class FlowAdapter(Protocol):
    """What differs between flow models; `pipelines.adapter.DiffusersAdapter` documents each part."""

    pipe: Any
    network: str
    lacks: frozenset[str]
    default_sequence_length: int
    min_sources: int
    max_sources: int
    text_sees_sources: bool

    @property
    def device(self) -> torch.device: ...

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

    def check_sampler(self, sampler: Sampler) -> None: ...

    def levels(self, sampler: Sampler) -> Tensor: ...

    def step_table(self, levels: Tensor, noise: str, level: float, stochastic: Sequence[int]) -> StepTable: ...

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]: ...

    def problem(self, text: str, tokens: int) -> str | None: ...

    def encode(self, text: str, tokens: int) -> Embedding: ...

    def encode_with_sources(
        self, text: str, tokens: int, sources: Sequence[Any], height: int, width: int
    ) -> Embedding: ...

    def encode_sources(self, sources: Sequence[Any], height: int, width: int) -> Embedding: ...

    def predict(self, module: Any, x: Tensor, sigma: Tensor, embedding: Embedding, guidance: float) -> Tensor: ...

    def guide(self, without: Tensor, with_text: Tensor, scale: float) -> Tensor: ...

    def decode(self, latents: Tensor) -> np.ndarray: ...

    def encode_images(self, images: np.ndarray) -> Tensor: ...

    def save_lora(self, directory: str | Path, state: dict[str, Tensor] | None = None) -> None: ...


class EmbeddingCache:
    """Least recently used cache of embeddings.

    Texts are encoded one at a time: an embedding then never depends on which other texts happened to be in
    its batch, which keeps runs on other process counts and resumed runs bitwise equal.

    Args:
        encode: (*key) -> embedding, where the key is (text, `Sampler.max_sequence_length`), the same with `Sources`,
            height and width where the text encoder sees them, or (`Sources`, height, width).
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
        """Embedding of a text or of source images."""
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

    def batch(self, keys: Sequence[tuple]) -> Embedding:
        """Embeddings of P keys, stacked: each tensor [P, ...], filled up with zeros to the longest."""
        found = (self.get(*key) for key in keys)
        return tuple(pad_sequence(list(parts), batch_first=True) for parts in zip(*found, strict=True))


@dataclass(frozen=True)
class Sources:
    """The source images of a prompt, in their order, as a key: equal where the pixels of each are equal, or its path
    and the time of its last change."""

    identities: tuple[str, ...]
    images: tuple[Any, ...] = field(compare=False)

    @classmethod
    def of(cls, prompt: Prompt) -> Sources:
        """The source images of a prompt, or none."""
        return cls(tuple(_identity(image) for image in prompt.sources), tuple(prompt.sources))


def _identity(image: Any) -> str:
    if isinstance(image, (str, Path)) and Path(image).is_file():
        # hashing pixels would decode the file once per micro-batch
        return f"{Path(image).resolve()}@{Path(image).stat().st_mtime_ns}"
    return content_hash(image)


class Conditioner:
    """What the model is shown for each row of a batch.

    Args:
        adapter: encodes.
        encoders: its text encoders, which may be off the device; None = they stay there.
        store: embeddings on disk; None = in memory only.
    """

    def __init__(
        self, adapter: FlowAdapter, encoders: Encoders | None = None, store: EmbeddingStore | None = None
    ) -> None:
        self._adapter, self._store = adapter, store
        self.encoders = encoders or Encoders(adapter.frozen, offload=False)
        self._readable: set[tuple[str, int]] = set()
        self.cache = EmbeddingCache(self._kept("text", self._encode))
        self.sources = EmbeddingCache(
            self._kept("sources", lambda sources, h, w: adapter.encode_sources(sources.images, h, w))
        )

    def check(self, prompts: Sequence[Prompt], tokens: int) -> None:
        """Refuse prompts that the encoders would cut or cannot read, or that hold what the model does not read.

        Raises:
            InputError: names the prompt and says what is wrong.
        """
        for prompt in prompts:
            least, most = self._adapter.min_sources, self._adapter.max_sources
            if not least <= len(prompt.sources) <= most:
                reads = str(most) if least in (0, most) else f"{least} to {most}"
                raise InputError(
                    f"prompt '{prompt.id}' has {len(prompt.sources)} source images, this model reads {reads}"
                )
            if prompt.negative and self._adapter.guidance == "embedded":
                raise InputError(
                    f"prompt '{prompt.id}' has a negative text, which a model with embedded guidance never reads"
                )
            for kind, text in (("prompt", prompt.text), ("negative text of prompt", prompt.negative)):
                problem = None if (text, tokens) in self._readable else self._adapter.problem(text, tokens)
                if problem:
                    raise InputError(f"{kind} '{prompt.id}' {problem}: {text!r}")
                self._readable.add((text, tokens))

    def embed(self, prompts: Sequence[Prompt], index: Tensor, sampler: Sampler, guided: bool) -> Embedding:
        """Embeddings of the n rows that show `prompts[index]`, text before source image: tensors [n, ...], or with
        guidance [2n, ...], the negative texts first. A prompt's negative text is encoded when it is needed,
        whatever sampling needed."""
        shown, place = torch.unique(index, return_inverse=True)
        chosen = [prompts[i] for i in shown.tolist()]
        size = (sampler.height, sampler.width)
        pictures = [(Sources.of(prompt), *size) for prompt in chosen]
        seen = pictures if self._adapter.text_sees_sources else [()] * len(chosen)
        texts = [[p.negative for p in chosen]] if guided else []
        texts.append([p.text for p in chosen])
        keys = [(t, sampler.max_sequence_length, *s) for branch in texts for t, s in zip(branch, seen, strict=True)]
        rows = torch.cat([place, place + len(chosen)]) if guided else place
        embedding = tuple(t[rows.to(t.device)] for t in self.cache.batch(keys))
        if self._adapter.max_sources:
            rows = torch.cat([place, place]) if guided else place
            embedding += tuple(t[rows.to(t.device)] for t in self.sources.batch(pictures))
        return embedding

    def encode_ahead(self, prompts: Sequence[Prompt], sampler: Sampler, guided: bool) -> None:
        """Encode prompts before they are needed. With a store, which all ranks read, they share the work."""
        world = torch.distributed.get_world_size() if self._store and torch.distributed.is_initialized() else 1
        rank = torch.distributed.get_rank() if world > 1 else 0
        for prompt in prompts[rank::world]:
            self.embed([prompt], torch.zeros(1, dtype=torch.long), sampler, guided)
        self.encoders.send_away()
        if world > 1:
            torch.distributed.barrier()

    def _kept(self, kind: str, encode: Callable[..., Embedding]) -> Callable[..., Embedding]:
        """`encode`, for what is not in the store; the encoders come to the device for the rest only."""
        store = self._store

        def get(*key: Any) -> Embedding:
            device, name = self._adapter.device, ""
            if store is not None:
                types = sorted({str(p.dtype) for module in self._adapter.frozen for p in module.parameters()})
                tiling = bool(getattr(self._adapter.pipe.vae, "use_tiling", False))
                name = store.key(
                    kind=kind, key=[_plain(part) for part in key], types=types, device=device.type, tiling=tiling
                )
                if (found := store.load(name, device)) is not None:
                    return found
            self.encoders.bring(device)
            made = encode(*key)
            if store is not None:
                store.save(name, made, device)
            return made

        return get

    def _encode(self, text: str, tokens: int, *seen: Any) -> Embedding:
        if not seen:
            return self._adapter.encode(text, tokens)
        sources, height, width = seen
        return self._adapter.encode_with_sources(text, tokens, sources.images, height, width)


def _plain(part: Any) -> Any:
    """Part of a key as JSON; of pictures their pixels count, wherever they lie."""
    return [content_hash(image) for image in part.images] if isinstance(part, Sources) else part


def _size(embedding: Embedding) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in embedding)
