"""Rollouts on disk: one safetensors file, no pickle."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.torch import save_file

from mmrubric.errors import InputError
from mmrubric.rubric import Prompt
from pipelines.policy import Rollout, RowSeed
from pipelines.samplers import AnySampler, Sampler, TokenSampler

_ALWAYS = ("prompt_index", "prompt_rows", "sample_index", "sigmas", "samples", "steps")
_RECORDED = ("states", "actions", "log_probs", "means", "mask")

_SAMPLER: TypeAdapter[Sampler | TokenSampler] = TypeAdapter(AnySampler)


def save_rollout(rollout: Rollout, path: str | Path) -> None:
    """Write a rollout for another process.

    Raises:
        InputError: its prompts hold source images.
    """
    if any(prompt.sources for prompt in rollout.prompts):
        raise InputError("rollouts with source images cannot be written to one file")
    tensors = {name: getattr(rollout, name) for name in (*_ALWAYS, *_RECORDED)}
    tensors = {name: t.contiguous() for name, t in tensors.items() if t is not None}
    tensors["images"] = torch.from_numpy(rollout.images)
    head = {
        "prompts": [{"id": p.id, "text": p.text, "negative": p.negative} for p in rollout.prompts],
        "sample_ids": rollout.sample_ids,
        "seeds": None if rollout.seeds is None else [asdict(seed) for seed in rollout.seeds],
        "policy_version": rollout.policy_version,
        "sampler": rollout.sampler.model_dump(),
    }
    save_file(tensors, path, metadata={"rollout": json.dumps(head)})


def load_rollout(path: str | Path) -> Rollout:
    """Read what `save_rollout` wrote, bitwise.

    Raises:
        InputError: the file is missing or holds no rollout.
    """
    if not Path(path).is_file():
        raise InputError(f"rollout file {path} does not exist")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if "rollout" not in metadata:
            raise InputError(f"{path} holds no rollout")
        head = json.loads(metadata["rollout"])
        tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    recorded: dict[str, Any] = {name: tensors.get(name) for name in _RECORDED}
    return Rollout(
        prompts=[Prompt(**fields) for fields in head["prompts"]],
        sample_ids=head["sample_ids"],
        seeds=None if head["seeds"] is None else [RowSeed(**fields) for fields in head["seeds"]],
        policy_version=head["policy_version"],
        sampler=_SAMPLER.validate_python(head["sampler"]),
        images=tensors["images"].numpy(),
        **{name: tensors[name] for name in _ALWAYS},
        **recorded,
    )
