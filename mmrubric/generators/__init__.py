"""From a prompt to a `Rubric`.

`build(name, **options).generate_sync(prompt)` gives a rubric; `names()` lists what can be built.
"""

from mmrubric.generators import (
    auto_rubric,
    category,
    coarse2fine,
    direct,
    edit,
    evidence,
    global_pool,
    grounded,
    inductive,
    learned,
    memory,
    multi_role,
    rules_from_pairs,
    shapes,
    shapes_edit,
    template,
)
from mmrubric.generators.base import RubricGenerator, registry

build = registry.build
names = registry.names
tags = registry.tags
register = registry.register
filter = registry.filter

__all__ = [
    "RubricGenerator",
    "auto_rubric",
    "build",
    "category",
    "coarse2fine",
    "direct",
    "edit",
    "evidence",
    "filter",
    "global_pool",
    "grounded",
    "inductive",
    "learned",
    "memory",
    "multi_role",
    "names",
    "register",
    "registry",
    "rules_from_pairs",
    "shapes",
    "shapes_edit",
    "tags",
    "template",
]
