"""Checkpoints that are whole or absent: safetensors and JSON, never pickle.

A checkpoint is written into a temporary directory beside its place, flushed to the disk and then renamed, so
that a process killed at any moment leaves either the finished checkpoint or nothing. A written checkpoint is
never changed; it is removed only after `keep` newer ones are complete.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mmrubric.errors import InputError, RunError

_NAME = re.compile(r"^step-(\d{8})(?:\.r(\d+))?$")
_TEMPORARY = ".tmp-"
_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "checkpoint.json"
FORMAT = 1

BENIGN = (
    "run.name", "run.output_dir", "run.steps", "run.resume", "run.save_every", "run.keep", "run.processes",
    "run.final_model", "tracking", "eval", "guards", "judge.store", "judge.concurrency",
    "judge.max_failure_share", "judge.price_per_call",
    "rollout.batch_size", "rollout.overlap", "optim.batch_size", "model.gradient_checkpointing",
    "model.shard", "model.embedding_cache", "model.offload_encoders", "model.vae_slicing",
)  # fmt: skip
"""Settings that may differ between a checkpoint and the run that continues it: they move no trained
number. But `run.steps` does where `optim.decay` lets the rate fall towards the end of the run."""


def pack(tree: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Split nested containers into tensors and a JSON tree; `unpack` restores types and bits exactly.

    Args:
        tree: dicts (any scalar keys), lists, tuples, tensors, numpy arrays, str, int, float, bool and None.

    Returns:
        Tensors by name, and what `json.dumps` takes.

    Raises:
        TypeError: for any other type, with its place in the tree.
    """
    tensors: dict[str, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> str:
        name = f"t{len(tensors):06d}"
        tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
        return name

    def walk(node: Any, where: str) -> Any:
        if node is None or isinstance(node, (str, bool, int)):
            return node
        if isinstance(node, float):
            # JSON has no NaN or infinity; hex keeps every bit of the rest as well.
            return {"__float__": node.hex()}
        if isinstance(node, torch.Tensor):
            return {"__tensor__": keep(node)}
        if isinstance(node, np.ndarray):
            if node.dtype.kind in "US":
                return {"__strings__": node.tolist()}
            kind = str(node.dtype)
            # torch has no use for wide unsigned integers; their bits travel as signed ones.
            plain = node.view(kind[1:]) if kind in ("uint16", "uint32", "uint64") else node
            return {"__array__": keep(torch.from_numpy(plain.copy())), "dtype": kind}
        if isinstance(node, np.generic):
            return walk(node.item(), where)
        if isinstance(node, Mapping):
            if all(isinstance(key, str) and not key.startswith("__") for key in node):
                return {key: walk(value, f"{where}.{key}") for key, value in node.items()}
            return {"__items__": [[walk(k, where), walk(v, f"{where}.{k}")] for k, v in node.items()]}
        if isinstance(node, (list, tuple)):
            items = [walk(value, f"{where}[{i}]") for i, value in enumerate(node)]
            return items if isinstance(node, list) else {"__tuple__": items}
        raise TypeError(f"checkpoint: cannot store {type(node).__name__} at {where or 'the top'}")

    return tensors, walk(tree, "")


def unpack(tensors: Mapping[str, torch.Tensor], tree: Any) -> Any:
    """Inverse of `pack`."""
    if isinstance(tree, list):
        return [unpack(tensors, item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "__float__" in tree:
        return float.fromhex(tree["__float__"])
    if "__tensor__" in tree:
        return tensors[tree["__tensor__"]]
    if "__array__" in tree:
        return tensors[tree["__array__"]].numpy().view(np.dtype(tree["dtype"])).copy()
    if "__strings__" in tree:
        return np.array(tree["__strings__"])
    if "__tuple__" in tree:
        return tuple(unpack(tensors, item) for item in tree["__tuple__"])
    if "__items__" in tree:
        return {unpack(tensors, key): unpack(tensors, value) for key, value in tree["__items__"]}
    return {key: unpack(tensors, value) for key, value in tree.items()}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def fingerprint(config: Mapping[str, Any]) -> str:
    """sha256 of the settings that decide the trained numbers (all but `BENIGN`)."""
    flat = flatten(config)
    kept = {key: value for key, value in flat.items() if not _benign(key, flat)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Dotted keys whose values differ and matter, each as 'key: saved -> now'."""
    left, right = flatten(saved), flatten(now)
    missing = "(absent)"
    return [
        f"{key}: {left.get(key, missing)!r} -> {right.get(key, missing)!r}"
        for key in sorted(left.keys() | right.keys())
        if not _benign(key, right) and left.get(key, missing) != right.get(key, missing)
    ]


def _benign(key: str, config: Mapping[str, Any]) -> bool:
    if key == "run.steps" and config.get("optim.decay"):
        return False
    return any(key == name or key.startswith(f"{name}.") for name in BENIGN)


@dataclass(frozen=True)
class Checkpoint:
    """One finished checkpoint on disk."""

    path: Path
    step: int
    serial: int = 0
    """Order of writing within the run: going back to an older checkpoint and on makes newer ones."""

    def load(self) -> dict[str, Any]:
        """The state that `CheckpointStore.save` was given.

        Raises:
            InputError: a file is missing or damaged, or the format is of another version.
        """
        manifest = self._json(_MANIFEST)
        if manifest.get("format") != FORMAT:
            raise InputError(f"{self.path}: checkpoint format {manifest.get('format')!r}, this version reads {FORMAT}")
        try:
            tensors = load_file(str(self.path / _TENSORS))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{self.path / _TENSORS}: cannot be read ({error}); resume from another one") from error
        return unpack(tensors, self._json(_STATE))

    def config(self) -> dict[str, Any]:
        """The configuration that the checkpoint was made with."""
        return self._json(_MANIFEST)["config"]

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise InputError, naming each differing key, unless `config` continues this checkpoint."""
        changed = differences(self.config(), config)
        if changed:
            raise InputError(
                f"{self.path}: this checkpoint was made with another configuration:\n  "
                + "\n  ".join(changed)
                + "\nGive the same values, or start anew with run.resume=null and another run.name."
            )

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise InputError(
                f"{self.path / name}: cannot be read ({error}); is this a checkpoint directory?"
            ) from error


class CheckpointStore:
    """The checkpoints of one run, `<directory>/step-00000010` and so on. Only rank 0 writes."""

    def __init__(self, directory: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise InputError(f"run.keep: at least 1 checkpoint must be kept, got {keep}")
        self.directory = Path(directory)
        self.keep = keep

    def all(self) -> list[Checkpoint]:
        """Finished checkpoints in the order in which they were written."""
        if not self.directory.is_dir():
            return []
        named = (path for path in self.directory.iterdir() if _NAME.match(path.name))
        found = [_open(path) for path in named if (path / _MANIFEST).is_file()]
        return sorted(found, key=lambda item: item.serial)

    def latest(self) -> Checkpoint | None:
        """The newest finished checkpoint, or None."""
        return found[-1] if (found := self.all()) else None

    def find(self, resume: str | None) -> Checkpoint | None:
        """What `run.resume` asks for: None, 'auto' (the newest, or None), or the path of a checkpoint or run.

        Raises:
            InputError: the path holds no checkpoint.
        """
        if resume is None:
            return None
        if resume == "auto":
            return self.latest()
        path = Path(resume)
        if (path / _MANIFEST).is_file():
            return _open(path)
        for place in (path, path / "checkpoints"):
            if latest := CheckpointStore(place).latest():
                return latest
        raise InputError(
            f"run.resume={resume}: no checkpoint there; give 'auto', a step-... directory or a run directory"
        )

    def clean(self) -> None:
        """Remove what killed writers left behind. Call once, before the first save, on rank 0."""
        if self.directory.is_dir():
            for path in self.directory.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(path, ignore_errors=True)

    def save(self, step: int, state: Mapping[str, Any], config: Mapping[str, Any]) -> Checkpoint:
        """Write one checkpoint, then drop all but the newest `keep`.

        Raises:
            RunError: the disk is full or not writable. Earlier checkpoints are intact, nothing half is left.
        """
        # A step that was saved before (the run went back to an older checkpoint) gets a new name:
        # replacing a directory is not atomic, and a written checkpoint must never be lost.
        earlier = self.all()
        again = sum(item.step == step for item in earlier)
        final = self.directory / (f"step-{step:08d}" + (f".r{again}" if again else ""))
        while final.exists():
            again += 1
            final = self.directory / f"step-{step:08d}.r{again}"
        serial = earlier[-1].serial + 1 if earlier else 0
        temporary = self.directory / f"{_TEMPORARY}{final.name}-{os.getpid()}"
        manifest = {"format": FORMAT, "step": step, "serial": serial, "config": config}
        manifest["fingerprint"] = fingerprint(config)
        try:
            temporary.mkdir(parents=True)
            tensors, tree = pack(state)
            save_file(tensors, str(temporary / _TENSORS))
            (temporary / _STATE).write_text(json.dumps(tree, allow_nan=False), encoding="utf-8")
            (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for path in temporary.iterdir():
                _flush(path)
            _flush(temporary)
            os.rename(temporary, final)
            _flush(self.directory)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            full = full or any(text in str(error) for text in ("No space left", "File too large", "quota"))
            raise RunError(
                f"{final}: {'the disk is full' if full else 'cannot write'} "
                f"while saving step {step} ({error}). "
                f"Earlier checkpoints are intact: free some space and continue with run.resume=auto."
            ) from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in self.all()[: -self.keep]:
            # Renamed first: a process killed while removing leaves no half checkpoint under a valid name.
            gone = self.directory / f"{_TEMPORARY}{old.path.name}-removed"
            os.rename(old.path, gone)
            shutil.rmtree(gone, ignore_errors=True)
        return Checkpoint(final, step, serial)


def _open(path: Path) -> Checkpoint:
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        return Checkpoint(path, int(manifest["step"]), int(manifest["serial"]))
    except (OSError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path / _MANIFEST}: cannot be read ({error}); is this a checkpoint directory?") from error


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
