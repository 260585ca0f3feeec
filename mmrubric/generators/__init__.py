"""From a prompt to a `Rubric`.

`build(name, **options).generate_sync(prompt)` gives a rubric; `names()` lists what can be built.
"""

from mmrubric.generators import direct, shapes, template
from mmrubric.generators.base import RubricGenerator, registry

build = registry.build
names = registry.names
tags = registry.tags
register = registry.register
filter = registry.filter

__all__ = [
    "RubricGenerator",
    "build",
    "direct",
    "filter",
    "names",
    "register",
    "registry",
    "shapes",
    "tags",
    "template",
]
