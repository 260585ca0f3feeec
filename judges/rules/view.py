"""One request as rules see it: every picture normalised, opened when a rule first asks for it."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from PIL import Image

from judges.rules.colour import to_lab
from mmrubric import images
from mmrubric.judging import JudgeRequest
from mmrubric.prompt import Box, Media

_UNLIMITED = images.ImageOptions(max_side=None)


class View:
    """The pictures of a request.

    Raises:
        InputError: from each property whose picture cannot be opened.
    """

    def __init__(self, request: JudgeRequest) -> None:
        self._request = request

    @cached_property
    def _full(self) -> Image.Image:
        return images.normalize(self._request.candidate, _UNLIMITED)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the candidate in pixels, upright, before the normaliser's size cap."""
        return self._full.size

    @cached_property
    def candidate(self) -> Image.Image:
        """The candidate as every judge sees it (RGB, at most 2048 pixels a side)."""
        return images.normalize(self._full)

    @cached_property
    def lab(self) -> np.ndarray:
        """CIELAB of the candidate, float32 [H, W, 3]."""
        return to_lab(np.asarray(self.candidate))

    @cached_property
    def source(self) -> Image.Image | None:
        """The picture that was edited: the first source; None when the request has none."""
        return _opened(next(iter(self._request.sources), None))

    @cached_property
    def reference(self) -> Image.Image | None:
        """The reference picture of the grounding; None when the request has none."""
        grounding = self._request.grounding
        return None if grounding is None else _opened(grounding.image)

    @property
    def layout(self) -> tuple[Box, ...]:
        """Labelled boxes of the grounding."""
        return () if self._request.grounding is None else self._request.grounding.layout


def _opened(picture: Media | None) -> Image.Image | None:
    return None if picture is None else images.normalize(picture)


def grey(picture: Image.Image) -> np.ndarray:
    """Luma (ITU-R BT.601) of an RGB picture, float64 [H, W] in [0, 255]."""
    return np.asarray(picture, dtype=np.float64) @ np.array([0.299, 0.587, 0.114])
