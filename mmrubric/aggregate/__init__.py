"""From a `ScoreTable` to one reward per sample.

`build(name, dependencies="none", gates=True, min_coverage=0.5, **options)(table)` gives float64 [S], NaN =
not scorable. `names()` lists what can be built.
"""

from mmrubric.aggregate import all_or_nothing, category, l1_rules, mean, points, weighted
from mmrubric.aggregate.base import Aggregator, Context, registry

build = registry.build
names = registry.names
tags = registry.tags
register = registry.register
filter = registry.filter

__all__ = [
    "Aggregator",
    "Context",
    "all_or_nothing",
    "build",
    "category",
    "filter",
    "l1_rules",
    "mean",
    "names",
    "points",
    "register",
    "registry",
    "tags",
    "weighted",
]
