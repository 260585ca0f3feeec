"""Pictures in a report: PNG bytes, small enough to travel inside the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrubric.errors import InputError

LARGEST_SIDE = 512
"""Longer side above which a picture is shown smaller, in pixels."""
PIXEL_ART = 160
"""Longer side up to which a picture is enlarged without smoothing, in pixels."""


def png_bytes(image: np.ndarray) -> bytes:
    """PNG bytes of a picture.

    Args:
        image: uint8 [H, W, 3].
    """
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


@dataclass(frozen=True)
class Embedded:
    """A picture as it stands in the page."""

    uri: str
    width: int
    height: int

    @property
    def pixelated(self) -> bool:
        """Whether the page enlarges it without smoothing."""
        return max(self.width, self.height) <= PIXEL_ART


def embed(png: bytes, where: str) -> Embedded:
    """A data URI of a picture; a large one becomes a smaller WebP.

    Args:
        png: an encoded picture.
        where: named in the error.

    Raises:
        InputError: the bytes are no picture.
    """
    try:
        with Image.open(io.BytesIO(png)) as picture:
            picture.load()
            kind, (width, height) = picture.format, picture.size
            if max(width, height) > LARGEST_SIDE or kind not in ("PNG", "WEBP", "JPEG"):
                picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
                buffer = io.BytesIO()
                picture.convert("RGB").save(buffer, "WEBP", quality=82)
                png, kind, (width, height) = buffer.getvalue(), "WEBP", picture.size
    except (OSError, ValueError) as error:
        raise InputError(f"the picture of {where} cannot be read as an image: {error}") from error
    data = base64.b64encode(png).decode("ascii")
    return Embedded(f"data:image/{kind.lower()};base64,{data}", width, height)
