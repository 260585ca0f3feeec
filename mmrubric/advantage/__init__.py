"""From rewards, tables or pair verdicts to advantages.

`build(name, **options)(groups)` gives one float64 array [S] per group; `.compute(groups)` gives advantage and
weight together. `names()` lists what can be built.
"""

from mmrubric.advantage import by_category, grpo, reward, rpo
from mmrubric.advantage.base import Advantage, AdvantageOut, registry
from mmrubric.advantage.standardize import masked_standardize

build = registry.build
names = registry.names
tags = registry.tags
register = registry.register
filter = registry.filter

__all__ = [
    "Advantage",
    "AdvantageOut",
    "build",
    "by_category",
    "filter",
    "grpo",
    "masked_standardize",
    "names",
    "register",
    "registry",
    "reward",
    "rpo",
    "tags",
]
