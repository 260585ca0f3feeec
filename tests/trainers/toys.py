"""A run that takes seconds: a tiny random SD3 pipeline, four prompts and a judge of closed form."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mmrubric.group import PairVerdict
from mmrubric.judging import JudgeRequest, PairRequest, SyncMixin
from mmrubric.preference import compare_rewards
from mmrubric.verdict import Failure, Verdict
from trainers.config import TrainConfig

PROMPTS = (
    "a red circle left of a blue square on a white background",
    "two green triangles on a black background",
    "a large yellow circle on a white background",
    "three blue squares on a black background",
)


@dataclass
class RedJudge(SyncMixin):
    """Criterion k holds as far as strip k of the picture is more red than blue: P = 1/2 + 2 (red - blue)."""

    name: str = "red/1"
    fails: int = 0
    """Every so many requests fail, by their content; 0 = none."""
    calls: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.name

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        return [self._one(request) for request in requests]

    def _one(self, request: JudgeRequest) -> list[Verdict]:
        assert request.sample_id is not None
        self.calls.append(request.sample_id)
        picture = np.asarray(request.candidate, dtype=np.float64) / 255
        if self.fails and hashlib.sha256(request.sample_id.encode()).digest()[0] % self.fails == 0:
            return [Verdict(request.sample_id, c.id, None, failure=Failure.timeout) for c in request.rubric.criteria]
        strips = np.array_split(picture, len(request.rubric.criteria), axis=1)
        return [
            Verdict(request.sample_id, c.id, float(np.clip(0.5 + 2 * (s[..., 0] - s[..., 2]).mean(), 0, 1)))
            for c, s in zip(request.rubric.criteria, strips, strict=True)
        ]


@dataclass
class RedPairs(SyncMixin):
    """Compares only: the picture that is more red than blue, on the whole, is better."""

    name: str = "red-pairs/1"
    calls: list[PairRequest] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.name

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        self.calls += requests
        return [compare_rewards(redness(request.a), redness(request.b)) for request in requests]


def redness(picture: Any) -> float:
    """Mean of red minus blue, in [-1, 1]."""
    shown = np.asarray(picture, dtype=np.float64) / 255
    return float((shown[..., 0] - shown[..., 2]).mean())


def settings(directory: Path, model: Path, /, **overrides: Any) -> TrainConfig:
    """A small configuration; overrides are dotted keys with `__` in place of the dot."""
    prompts = directory / "prompts.txt"
    if not prompts.exists():
        prompts.write_text("\n".join(PROMPTS) + "\n")
    tree: dict[str, Any] = {
        "run": {"name": "toy", "output_dir": str(directory / "runs"), "steps": 2, "seed": 1},
        "model": {"path": str(model)},
        "data": {"prompts": str(prompts), "prompts_per_step": 2},
        "rubric": {"generator": "shapes"},
        "rollout": {"group_size": 2, "sampler": {"steps": 3}},
        "advantage": {"name": "rpo"},
        "loss": {"name": "nft", "levels": 2},
        "optim": {"lr": 1e-3, "batch_size": 4},
        "tracking": {"progress": False},
    }
    for key, value in overrides.items():
        node = tree
        *parents, last = key.split("__")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = copy.deepcopy(value)
    return TrainConfig.model_validate(tree)


SDE = {"steps": 4, "noise": "sde", "level": 0.7}


def train(config: TrainConfig) -> None:
    """The real loop with the toy judge, from the first step to the last checkpoint."""
    from trainers import parts
    from trainers.loop import Trainer

    judge: Any = RedPairs() if config.judge.compare else RedJudge()
    with Trainer(config, parts.build(config, judge=judge)) as trainer:
        trainer.run()


def main(arguments: list[str]) -> int:
    """`accelerate launch tests/trainers/toys.py one.yaml two.yaml ... key=value ... --chunk N`: runs, one after the
    other; N: `CHUNK_ELEMENTS` of token models."""
    from mmrubric.config import load_config
    from pipelines import token_sampling
    from trainers.train import session

    if "--chunk" in arguments:
        token_sampling.CHUNK_ELEMENTS = int(arguments[arguments.index("--chunk") + 1])

    with session():
        for path in (text for text in arguments if text.endswith(".yaml")):
            train(load_config(TrainConfig, path, [text for text in arguments if "=" in text]))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.exit(main(sys.argv[1:]))
