"""Policy losses: pure tensor functions that declare what they need.

`build(name, **options)` gives a `Loss`; `kl.build(name, beta)` the reference term; `schedule.build(name)` the
decay of DiffusionNFT's old policy; `weighted_sum` is the only reduction.
"""

from trainers.losses import kl, schedule
from trainers.losses.base import (
    FLOW_OUTPUTS,
    TOKEN_OUTPUTS,
    Batch,
    Loss,
    LossOut,
    build,
    mean_dims,
    names,
    per_item,
    register,
    weighted_sum,
)
from trainers.losses.clip import ClipOptions, GuardOptions, PpoOptions, clipped_surrogate, guard_log_ratio
from trainers.losses.nft import NftOptions, optimality, rpo_warnings

__all__ = [
    "FLOW_OUTPUTS",
    "TOKEN_OUTPUTS",
    "Batch",
    "ClipOptions",
    "GuardOptions",
    "Loss",
    "LossOut",
    "NftOptions",
    "PpoOptions",
    "build",
    "clipped_surrogate",
    "guard_log_ratio",
    "kl",
    "mean_dims",
    "names",
    "optimality",
    "per_item",
    "register",
    "rpo_warnings",
    "schedule",
    "weighted_sum",
]
