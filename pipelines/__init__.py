"""Generators seen as policies: sample with a record, replay log-probs."""

from pipelines.load import LoraOptions, load_policy
from pipelines.policy import Policy, Rollout, RowSeed, StepOut
from pipelines.samplers import Sampler, TokenSampler, Window

__all__ = [
    "LoraOptions",
    "Policy",
    "Rollout",
    "RowSeed",
    "Sampler",
    "StepOut",
    "TokenSampler",
    "Window",
    "load_policy",
]
