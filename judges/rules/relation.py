"""Rules about two pictures: what an edit must keep, and copies."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, field_validator, model_validator

from judges.pictures import Answer
from judges.rules.base import Rule, does_not_apply, limited
from judges.rules.similarity import HASH_BITS, hash_distance, mean_ssim, perceptual_hash, psnr
from judges.rules.view import View
from mmrubric import images
from mmrubric.errors import InputError
from mmrubric.prompt import Box

EDIT_LABEL = "edit"
_DATA_URL = "data:image/png;base64,"
_SHAPE_TOLERANCE = 0.02
"""Relative difference of aspect ratios up to which a mask fits a picture (rounding of scaled sizes)."""


class Keep(Rule):
    """The candidate equals the source outside the edit mask. Of several sources it is the first, which was edited.

    The mask is one of: `mask`, `boxes`, or the boxes of the request's grounding layout labelled `region`
    (by default 'edit'). Arguments hold the mask itself and no file name, so the rubric's hash covers it.
    A candidate of another size is scaled to the source first. Pixels inside the mask have no part in PSNR and
    SSIM, not even in the windows of their neighbours.
    """

    min_ssim: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Smallest mean SSIM that holds; about 0.9 for 'unchanged to the eye'."""
    min_psnr: Annotated[float, Field(gt=0)] | None = None
    """Smallest PSNR in dB that holds; about 30 for 'unchanged to the eye'."""
    mask: str | None = None
    """`images.data_url(picture)` of a mask: white may change, black must stay."""
    boxes: tuple[tuple[float, float, float, float], ...] | None = None
    """[left, top, right, bottom] in fractions of the picture, that may change; [] = nothing may change."""
    region: str | None = None
    """Label of the layout boxes that may change."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.min_ssim is None and self.min_psnr is None:
            raise ValueError("give min_ssim, min_psnr or both")
        if sum(value is not None for value in (self.mask, self.boxes, self.region)) > 1:
            raise ValueError("give only one of mask, boxes and region")
        for box in self.boxes or ():
            Box("boxes", *box)
        if self.mask is not None:
            _mask_of(self.mask)
        return self

    def __call__(self, view: View) -> Answer:
        if view.source is None:
            return does_not_apply("the request has no source image")
        keep = self._keep(view, view.source.size)
        if keep is None:
            return does_not_apply(f"no edit mask: no mask, no boxes, and no layout box labelled {self._label!r}")
        if not keep.any():
            return does_not_apply("the mask covers the whole picture")
        candidate = view.candidate
        scaled = "" if candidate.size == view.source.size else ", candidate scaled to the source"
        a = np.asarray(view.source)
        b = np.asarray(candidate.resize(view.source.size, Image.Resampling.LANCZOS) if scaled else candidate)
        parts: list[Answer] = []
        if self.min_psnr is not None:
            parts.append(limited("PSNR outside the mask", psnr(a, b, keep), self.min_psnr, None, unit=" dB"))
        if self.min_ssim is not None:
            ssim = mean_ssim(a, b, keep)
            if np.isnan(ssim):
                return does_not_apply("nothing outside the mask is far enough from the frame for the SSIM window")
            parts.append(limited("SSIM outside the mask", ssim, self.min_ssim, None))
        return Answer(float(all(part.met for part in parts)), "; ".join(part.reason for part in parts) + scaled)

    @property
    def _label(self) -> str:
        return self.region or EDIT_LABEL

    def _keep(self, view: View, size: tuple[int, int]) -> np.ndarray | None:
        """Pixels that must stay, bool [H, W] for a picture of `size` (width, height); None = no mask."""
        if self.mask is not None:
            return ~_fitted(_mask_of(self.mask), size)
        if self.boxes is not None:
            return _outside([Box("boxes", *box) for box in self.boxes], size)
        boxes = [box for box in view.layout if box.label == self._label]
        return _outside(boxes, size) if boxes else None


def _mask_of(data_url: str) -> Image.Image:
    if not data_url.startswith(_DATA_URL):
        raise ValueError(f"mask must be the text that images.data_url(mask) gives, beginning with {_DATA_URL!r}")
    try:
        data = base64.b64decode(data_url.removeprefix(_DATA_URL), validate=True)
    except binascii.Error as error:
        raise ValueError(f"mask is not valid base64: {error}") from None
    return images.normalize(data, source="mask").convert("L")


def _fitted(mask: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """The mask at `size` (width, height), bool [H, W], True where white."""
    if abs(mask.width * size[1] / (mask.height * size[0]) - 1) > _SHAPE_TOLERANCE:
        raise InputError(
            f"mask of {mask.width} x {mask.height} pixels does not fit the source of {size[0]} x {size[1]} pixels"
        )
    return np.asarray(mask.resize(size, Image.Resampling.NEAREST)) >= 128


def _outside(boxes: list[Box], size: tuple[int, int]) -> np.ndarray:
    """Pixels [H, W] outside all boxes; a pixel that a box touches counts as inside."""
    width, height = size
    keep = np.ones((height, width), dtype=bool)
    for box in boxes:
        rows = slice(int(np.floor(box.top * height)), int(np.ceil(box.bottom * height)))
        columns = slice(int(np.floor(box.left * width)), int(np.ceil(box.right * width)))
        keep[rows, columns] = False
    return keep


class Duplicate(Rule):
    """The candidate is a copy of another picture: perceptual hashes differ in at most `max_distance` bits."""

    of: Literal["source", "reference"] | None = None
    """The other picture: the request's first source, or that of its grounding. 'source' when no `hash` is given."""
    hash: str | None = None
    """`judges.rules.perceptual_hash(picture)` of the other picture."""
    max_distance: Annotated[int, Field(ge=0, lt=HASH_BITS)] = 6
    """Bits of 64; unrelated pictures differ in about 32."""

    @field_validator("hash")
    @classmethod
    def _is_hash(cls, value: str | None) -> str | None:
        if value is not None:
            hash_distance(value, value)
        return value

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.of is not None and self.hash is not None:
            raise ValueError("give only one of 'of' and 'hash'")
        return self

    def __call__(self, view: View) -> Answer:
        other, what = self.hash, "the given hash"
        if other is None:
            what = f"the {self.of or 'source'} image"
            picture = view.reference if self.of == "reference" else view.source
            if picture is None:
                return does_not_apply(f"the request has no {self.of or 'source'} image")
            other = perceptual_hash(picture)
        distance = hash_distance(perceptual_hash(view.candidate), other)
        return limited(f"distance of the perceptual hash to {what}", distance, None, self.max_distance, unit=" bits")
