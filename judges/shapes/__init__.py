"""Pixel judges of the embedded world of shapes: two readers written apart, one protocol."""

from judges.shapes.edits import ShapesEditJudge, shapes_edit, shapes_edit_second
from judges.shapes.judge import VERIFIER, ShapesJudge, shapes, shapes_second, to_pixels

__all__ = [
    "VERIFIER",
    "ShapesEditJudge",
    "ShapesJudge",
    "shapes",
    "shapes_edit",
    "shapes_edit_second",
    "shapes_second",
    "to_pixels",
]
