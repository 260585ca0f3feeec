"""Which prompts are drawn again, and which groups are trained on.

`build(name, **options)` gives a `Filter`; `names()` lists what can be built; `Chain` is several of them as one.
"""

from mmrubric.filters import low_std, saturated
from mmrubric.filters.base import Chain, Filter, registry

build = registry.build
names = registry.names
tags = registry.tags
register = registry.register

__all__ = [
    "Chain",
    "Filter",
    "build",
    "low_std",
    "names",
    "register",
    "registry",
    "saturated",
    "tags",
]
