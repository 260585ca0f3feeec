"""Rules about one picture: colours, sharpness, light, shape and size."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Self

import numpy as np
from PIL import Image
from pydantic import Field, field_validator, model_validator

from judges.pictures import Answer
from judges.rules.base import Limits, Rule, limited
from judges.rules.colour import distances, rgb_of, to_lab
from judges.rules.view import View, grey

Distance = Annotated[float, Field(gt=0, le=300)]
"""CIELAB distance: about 2 is just noticeable, 100 lies between black and white."""
Pixels = Annotated[int, Field(ge=1)]
WORKING_SIDE = 512
"""Longest side at which sharpness is measured, so that one threshold fits pictures of all sizes."""
_RATIO = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")


class ColourShare(Limits):
    """Share of the pixels, in [0, 1], whose colour is within `distance` of `colour`."""

    highest: ClassVar[float] = 1.0
    colour: str
    """CSS name or hex."""
    distance: Distance = 25.0

    @field_validator("colour")
    @classmethod
    def _known(cls, value: str) -> str:
        rgb_of(value)
        return value

    def __call__(self, view: View) -> Answer:
        near = distances(view.lab, to_lab(rgb_of(self.colour))) <= self.distance
        return self.within(f"share of {self.colour} (CIELAB distance up to {self.distance:g})", float(near.mean()))


class Blank(Rule):
    """Nearly one colour: at least `share` of the pixels are within `distance` of the median colour."""

    distance: Distance = 5.0
    share: Annotated[float, Field(gt=0, le=1)] = 0.99

    def __call__(self, view: View) -> Answer:
        near = distances(view.lab, np.median(view.lab, axis=(0, 1))) <= self.distance
        return limited(
            f"share of one colour (CIELAB distance up to {self.distance:g})", float(near.mean()), self.share, None
        )


class Brightness(Limits):
    """Mean lightness L* in [0, 100]."""

    highest: ClassVar[float] = 100.0

    def __call__(self, view: View) -> Answer:
        return self.within("mean lightness", float(view.lab[..., 0].mean(dtype=np.float64)))


class Contrast(Limits):
    """Spread of lightness L* between the 5th and the 95th percentile, in [0, 100]."""

    highest: ClassVar[float] = 100.0

    def __call__(self, view: View) -> Answer:
        low, high = np.percentile(view.lab[..., 0], [5, 95])
        return self.within("spread of lightness", float(high - low))


class Chroma(Limits):
    """Mean chroma sqrt(a*^2 + b*^2): 0 for a black-and-white picture, at most about 134 in sRGB."""

    highest: ClassVar[float] = 134.0

    def __call__(self, view: View) -> Answer:
        return self.within("mean chroma", float(np.hypot(view.lab[..., 1], view.lab[..., 2]).mean(dtype=np.float64)))


class Sharpness(Limits):
    """Variance of the Laplacian of the luma (0 to 255), measured at a longest side of 512 pixels.

    About 100 and less is blurred, some thousands are crisp. The measure is LAPV of Pertuz et al., Pattern
    Recognition 46 (2013); the fixed size is ours.
    """

    def __call__(self, view: View) -> Answer:
        return self.within(f"variance of the Laplacian at {WORKING_SIDE} pixels", laplacian_variance(view.candidate))


def laplacian_variance(picture: Image.Image, side: int = WORKING_SIDE) -> float:
    """Variance of the 4-neighbour Laplacian of the luma after scaling the longest side to `side` pixels."""
    from scipy import ndimage

    factor = side / max(picture.size)
    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    if size != picture.size:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    return float(np.var(ndimage.laplace(grey(picture))))


class Aspect(Rule):
    """Width divided by height: a `ratio` within `tolerance`, or a range from `min` to `max`."""

    ratio: float | str | None = None
    """A number, or 'width:height' such as '16:9'."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Relative deviation from `ratio` that still holds; 0.02 by default."""
    min: Annotated[float, Field(gt=0)] | None = None
    max: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if (self.ratio is None) == (self.min is None and self.max is None):
            raise ValueError("give either ratio, or min, max or both")
        if self.ratio is None and self.tolerance is not None:
            raise ValueError("tolerance belongs to ratio")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is larger than max {self.max:g}")
        if self.ratio is not None:
            _ratio_of(self.ratio)
        return self

    def __call__(self, view: View) -> Answer:
        width, height = view.size
        low, high = self.min, self.max
        if self.ratio is not None:
            ratio, tolerance = _ratio_of(self.ratio), 0.02 if self.tolerance is None else self.tolerance
            low, high = ratio * (1 - tolerance), ratio * (1 + tolerance)
        return limited(f"width / height of {width} x {height} pixels", width / height, low, high)


def _ratio_of(ratio: float | str) -> float:
    if isinstance(ratio, str):
        match = _RATIO.fullmatch(ratio.strip())
        width, height = map(float, match.groups()) if match else (0.0, 0.0)
        value = width / height if height else 0.0
    else:
        value = ratio
    if value <= 0:
        raise ValueError(f"ratio {ratio!r} is neither a number above 0 nor 'width:height' such as '16:9'")
    return value


class Size(Rule):
    """Width and height in pixels, before the normaliser scales big pictures down."""

    min_width: Pixels | None = None
    max_width: Pixels | None = None
    min_height: Pixels | None = None
    max_height: Pixels | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError(f"give at least one of {', '.join(type(self).model_fields)}")
        for side in ("width", "height"):
            low, high = getattr(self, f"min_{side}"), getattr(self, f"max_{side}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{side} {low} is larger than max_{side} {high}")
        return self

    def __call__(self, view: View) -> Answer:
        width, height = view.size
        parts = [
            limited(name, value, low, high, unit=" pixels")
            for name, value, low, high in (
                ("width", width, self.min_width, self.max_width),
                ("height", height, self.min_height, self.max_height),
            )
            if low is not None or high is not None
        ]
        return Answer(float(all(part.met for part in parts)), "; ".join(part.reason for part in parts))
