"""Pixel judges of the embedded world of shapes: two readers written apart, one protocol."""

from judges.shapes.judge import VERIFIER, ShapesJudge, shapes, shapes_second, to_pixels

__all__ = ["VERIFIER", "ShapesJudge", "shapes", "shapes_second", "to_pixels"]
