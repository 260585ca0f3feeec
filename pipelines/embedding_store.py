"""Embeddings on disk: a run finds there what an earlier run, or another rank, has encoded with the same encoders."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mmrubric.atomic import write_bytes
from mmrubric.errors import InputError, RunError

logger = logging.getLogger(__name__)
FORMAT = 1
_SAMPLE = 1024
"""Elements of each weight tensor that are part of a model's fingerprint."""


def fingerprint(path: str, parts: Mapping[str, Any]) -> str:
    """sha256 that tells encoders apart: where they came from, their settings, their vocabularies and a sample of
    `_SAMPLE` evenly spread elements of each weight (reading all of an encoder of 10 GB would take a minute).

    Args:
        path: the model's directory or id.
        parts: encoders and tokenizers by name; None is skipped.
    """
    digest = hashlib.sha256(path.encode())
    for name, part in sorted(parts.items()):
        if isinstance(part, nn.Module):
            config: Any = getattr(part, "config", {})
            settings = config.to_dict() if hasattr(config, "to_dict") else dict(config)
            # where a copy of the same weights lies, and by which version it was written, says nothing about them
            plain = {k: v for k, v in settings.items() if k not in ("_name_or_path", "transformers_version")}
            digest.update(json.dumps([name, plain], sort_keys=True, default=str).encode())
            for key, tensor in sorted(part.state_dict().items()):
                digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
                flat = tensor.detach().flatten()
                digest.update(_bytes(flat[:: max(1, len(flat) // _SAMPLE)]))
        elif hasattr(part, "get_vocab"):
            digest.update(json.dumps([name, sorted(part.get_vocab().items())]).encode())
    return digest.hexdigest()


class EmbeddingStore:
    """A directory of embeddings, one safetensors file each. Files are written whole or not at all, so several ranks
    and runs may share it.

    Args:
        directory: created where it is missing.
        model: `fingerprint` of the encoders.

    Raises:
        InputError: the directory cannot be created.
    """

    def __init__(self, directory: str | Path, model: str) -> None:
        self.directory, self.model = Path(directory), model
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"model.embedding_cache={directory}: cannot create this directory ({error})") from error

    def key(self, **parts: Any) -> str:
        """sha256 of the model and of everything else that decides an embedding (JSON values)."""
        text = json.dumps({"format": FORMAT, "model": self.model, **parts}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def path(self, key: str) -> Path:
        """File of a key."""
        return self.directory / key[:2] / f"{key}.safetensors"

    def load(self, key: str, device: torch.device) -> tuple[Tensor, ...] | None:
        """The embedding of a key, or None. A damaged file counts as none, with a warning.

        Args:
            key: see `key`.
            device: for the tensors that were not on the CPU when they were saved, or that were encoded there.
        """
        path = self.path(key)
        if not path.is_file():
            return None
        try:
            with safe_open(str(path), framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                tensors = [file.get_tensor(str(number)) for number in range(len(file.keys()))]
            host = about["host"]
            if about["sha256"] != _digest(tensors):
                raise ValueError("its checksum does not fit")
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            logger.warning("%s is damaged (%s): encoded anew", path, error)
            return None
        return tuple(t if number in host else t.to(device) for number, t in enumerate(tensors))

    def save(self, key: str, embedding: Iterable[Tensor], device: torch.device) -> None:
        """Write an embedding.

        Args:
            key: see `key`.
            embedding: its tensors.
            device: of the model; tensors that an adapter keeps on the CPU beside it go back there.

        Raises:
            RunError: the disk is full or not writable.
        """
        tensors = list(embedding)
        host = [n for n, t in enumerate(tensors) if t.device.type == "cpu" and device.type != "cpu"]
        plain = [t.detach().cpu().contiguous() for t in tensors]
        # one entry: safetensors writes several in any order
        about = {"about": json.dumps({"sha256": _digest(plain), "host": host})}
        path = self.path(key)
        try:
            path.parent.mkdir(exist_ok=True)
            write_bytes(path, save({str(number): t for number, t in enumerate(plain)}, about))
        except OSError as error:
            raise RunError(f"model.embedding_cache: cannot write {path} ({error}); free some space") from error


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + _bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
