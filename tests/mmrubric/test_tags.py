"""The registry and its four tags."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mmrubric import InputError, advantage, aggregate, generators
from mmrubric.tags import Construction, Loop, Optimisation, Registry, Signal, Tags

TAGS = Tags(Construction.llm_direct, Optimisation.none, Signal.output_level, Loop.none)


@pytest.mark.parametrize("room", [aggregate, advantage, generators])
def test_every_registered_component_declares_all_four_tags(room: object) -> None:
    registry: Registry[object] = room.registry  # type: ignore[attr-defined]
    for name in registry.names():
        tags = registry.tags(name)
        assert isinstance(tags.construction, Construction) and isinstance(tags.optimisation, Optimisation)
        assert isinstance(tags.signal, Signal) and isinstance(tags.loop, Loop)


def test_missing_or_foreign_tags_do_not_register() -> None:
    registry: Registry[object] = Registry("thing")
    with pytest.raises(TypeError):
        Tags(Construction.llm_direct, Optimisation.none, Signal.output_level)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="tag loop: unknown value 'spiral'; known: none, intra_model_loop"):
        Tags("llm_direct", "none", "output_level", "spiral")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tags must be a Tags object"):
        registry.register("x", None)  # type: ignore[arg-type]
    assert registry.names() == []


def test_filter_returns_exactly_the_components_that_declare_a_tag() -> None:
    registry: Registry[object] = Registry("thing")
    process = Tags(Construction.human_expert, Optimisation.none, Signal.process_level, Loop.none)
    for name, tags in (("a", TAGS), ("b", process), ("c", TAGS)):
        registry.register(name, tags)(dict)
    assert registry.filter(signal="output_level") == ["a", "c"]
    assert registry.filter(signal="process_level", loop="none") == ["b"]
    assert registry.filter(shows_rubric_to_policy=False) == ["a", "b", "c"]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown tag 'level'"):
        registry.filter(level="output_level")
    with pytest.raises(InputError, match="tag signal: unknown value 'pixel'"):
        registry.filter(signal="pixel")


def test_build_knows_the_options_of_a_component() -> None:
    registry: Registry[object] = Registry("thing")

    @registry.register("box", TAGS)
    @dataclass
    class Box:
        width: int = 1

    assert registry.build("box", width=3) == Box(3) and registry.options("box") == ["width"]
    with pytest.raises(InputError, match="thing 'box': unknown option height; known: width"):
        registry.build("box", height=1)
    with pytest.raises(InputError, match="thing 'box' is registered twice"):
        registry.register("box", TAGS)
