"""The embedded world of coloured shapes: scenes, pictures, prompts and what questions about them mean."""

from mmrubric.shapes.checks import OTHER, Seen, SeenItem, holds, seen_of
from mmrubric.shapes.grammar import Spec, Subject, draw_prompts, draw_specs, parse
from mmrubric.shapes.sampling import near_miss, scene_for
from mmrubric.shapes.world import BACKGROUNDS, COLOURS, RADII, SHAPES, SIZE, WORDS, Item, Scene, Word, render

__all__ = [
    "BACKGROUNDS",
    "COLOURS",
    "OTHER",
    "RADII",
    "SHAPES",
    "SIZE",
    "WORDS",
    "Item",
    "Scene",
    "Seen",
    "SeenItem",
    "Spec",
    "Subject",
    "Word",
    "draw_prompts",
    "draw_specs",
    "holds",
    "near_miss",
    "parse",
    "render",
    "scene_for",
    "seen_of",
]
