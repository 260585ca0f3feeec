"""The only image normaliser and content hash: what every judge, cache key and record sees of a picture.

Whatever a person hands over becomes 8-bit sRGB pixels, upright, opaque on white, within size limits. The hash
is taken over exactly these pixels, so two files that show a judge the same thing share one identity.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from mmrubric.errors import InputError

ImageLike = Any
"""PIL image, path, encoded bytes, or array [H, W] or [H, W, 1 to 4]: uint8, uint16, bool, float in [0, 1]."""

_WHITE = (255, 255, 255)
_ICC = "icc_profile"
_SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_FOREIGN = {
    b"<svg": "an SVG drawing; render it to PNG first",
    b"<?xml": "an XML or SVG file; render it to PNG first",
    b"<!doc": "an HTML page, not a picture",
    b"<html": "an HTML page, not a picture",
    b"%pdf": "a PDF; export the page as PNG first",
    b"version https://git-lfs": "a Git LFS pointer; fetch the real file with 'git lfs pull'",
    b"ftyphe": "a HEIC photo; export it as JPEG",
    b"ftypmif1": "a HEIF photo; export it as JPEG",
    b"ftypisom": "a video; export a frame as PNG",
    b"ftypmp4": "a video; export a frame as PNG",
    b"ftypqt": "a video; export a frame as PNG",
}
"""First bytes in lower case, or those after the box length of an ISO media file."""
_SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_SMALLER = (0.75, 0.5, 0.375, 0.25)
"""Scales that are tried, in this order, on a picture whose PNG is larger than max_bytes."""


@dataclass(frozen=True)
class ImageOptions:
    """Limits of the normaliser. Part of what is sent, so they change the content hash of big pictures."""

    max_side: int | None = 2048
    """Longest side in pixels; larger pictures are scaled down. None: no scaling."""
    min_side: int | None = None
    """Shortest side in pixels; smaller pictures are scaled up (some VLMs refuse sides under 28)."""
    max_pixels: int = 89_478_485
    """Width x height above which a file is refused from its header, before decoding (a bomb, not a picture).
    Above 178,956,970 Pillow refuses by itself."""
    max_bytes: int | None = 15_000_000
    """Size of the PNG above which a picture is scaled down: to 3/4 of its sides, then 1/2, 3/8 and 1/4, and refused
    if that is still too large or falls below min_side. In a request base64 adds a third: 15 MB become 20 MB, what
    hosted services take at most. None: no limit."""

    def __post_init__(self) -> None:
        for name in ("max_side", "min_side", "max_pixels", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"ImageOptions.{name} must be at least 1, got {value}")
        if self.max_side is not None and self.min_side is not None and self.min_side > self.max_side:
            raise InputError(f"ImageOptions.min_side {self.min_side} is larger than max_side {self.max_side}")


@dataclass(frozen=True)
class Normalized:
    """A normalised picture and what was done to it."""

    image: Image.Image
    """Mode RGB, no metadata."""
    source: str
    """File name or a description of where the picture came from, for messages."""
    changes: tuple[str, ...] = field(default=())
    """Readable notes such as 'composited on white'; empty when the pixels were taken as they were."""


def normalize(image: ImageLike, options: ImageOptions | None = None, *, source: str | None = None) -> Image.Image:
    """The picture as a judge sees it: RGB, 8 bits, upright, alpha on white, within the size limits.

    Args:
        image: see `ImageLike`. The type of a file is read from its bytes, never from its name.
        options: size limits.
        source: name for error messages when `image` is bytes or pixels.

    Returns:
        A new RGB PIL image without metadata; normalising it again changes nothing.

    Raises:
        InputError: empty, truncated, unreadable, oversized or of an unknown type; the message names the
            source.
    """
    return inspect(image, options, source=source).image


def inspect(image: ImageLike, options: ImageOptions | None = None, *, source: str | None = None) -> Normalized:
    """`normalize`, with the list of changes that were made to the pixels."""
    options = options or ImageOptions()
    opened, name = _open(image, source)
    changes: list[str] = []
    try:
        _check_header(opened, options, name)
        opened.load()
        picture = _upright(opened, changes)
        picture = _to_rgb(picture, name, changes)
        picture = _resize(picture, options, name, changes)
    except InputError:
        raise
    except Exception as error:
        # Decoders raise almost anything on broken files (OSError, SyntaxError, struct.error, zlib.error,
        # ...).
        raise InputError(f"{name}: the picture is truncated or broken: {error}") from error
    # A fresh image: no EXIF, palette or profile is left for a later stage to apply a second time.
    fresh = Image.frombytes("RGB", picture.size, picture.tobytes())
    return Normalized(_fit_bytes(fresh, options, name, changes), name, tuple(changes))


def content_hash(image: ImageLike, options: ImageOptions | None = None) -> str:
    """sha256 hex of the normalised size and RGB bytes: the identity of what is really sent."""
    picture = normalize(image, options)
    return pixel_hash(picture)


def pixel_hash(picture: Image.Image) -> str:
    """`content_hash` of a picture that is normalised already (mode RGB), without normalising it again."""
    if picture.mode != "RGB":
        raise InputError(f"pixel_hash takes a normalised RGB picture, got mode {picture.mode}; use content_hash")
    digest = hashlib.sha256(f"rgb8 {picture.width} {picture.height}\n".encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()


def encode(
    image: ImageLike,
    kind: Literal["png", "jpeg"] = "png",
    *,
    quality: int = 95,
    options: ImageOptions | None = None,
) -> bytes:
    """The normalised picture as PNG (lossless) or JPEG bytes. `quality` (1 to 95) is for JPEG only."""
    if kind not in ("png", "jpeg"):
        raise InputError(f"unknown image kind {kind!r}; known: png, jpeg")
    picture = normalize(image, options)
    if kind == "png":
        return _png(picture)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def data_url(
    image: ImageLike,
    kind: Literal["png", "jpeg"] = "png",
    *,
    quality: int = 95,
    options: ImageOptions | None = None,
) -> str:
    """`data:image/png;base64,...` of the normalised picture; the type is that of the bytes that follow."""
    payload = base64.b64encode(encode(image, kind, quality=quality, options=options)).decode("ascii")
    return f"data:image/{kind};base64,{payload}"


def in_folder(folder: str | os.PathLike[str]) -> list[Path]:
    """The picture files of a folder, without its sub-folders, in natural order: frame2 before frame10.

    Chosen by the ends of their names, so that a list of labels may lie beside them; hidden files are left out.

    Raises:
        InputError: there is no such folder, or no picture in it.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder of images")
    found = [file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")]
    if not found:
        raise InputError(f"{path}: holds no image file (known endings: {', '.join(_SUFFIXES)})")
    return sorted(found, key=_natural)


def _natural(file: Path) -> tuple[list[tuple[int, str]], str]:
    parts = re.split(r"(\d+)", file.name.casefold())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], file.name


def _open(image: ImageLike, source: str | None) -> tuple[Image.Image, str]:
    if isinstance(image, Image.Image):
        return image, source or str(getattr(image, "filename", "") or "PIL image")
    if isinstance(image, (str, os.PathLike)):
        return _open_path(os.fspath(image), source)
    if isinstance(image, (bytes, bytearray, memoryview)):
        name = source or f"image bytes ({len(image)} bytes)"
        return _decode(bytes(image), name), name
    if isinstance(image, np.ndarray):
        name = source or f"array {image.dtype} {list(image.shape)}"
        return _from_array(image, name), name
    kind = f"{type(image).__module__}.{type(image).__qualname__}"
    raise InputError(f"{source or kind}: give a PIL image, a path, bytes or a numpy array [H, W, 3], not {kind}")


def _open_path(path: str | bytes, source: str | None) -> tuple[Image.Image, str]:
    text = os.fsdecode(path)
    name = source or (text if len(text) < 200 else text[:200] + "...")
    if text.startswith(("http://", "https://", "data:")):
        raise InputError(f"{name}: addresses are not fetched here; load the picture and hand over its bytes")
    file = Path(text)
    try:
        if not file.exists():
            raise InputError(f"{name}: no such image file")
        if not file.is_file():
            what = "a folder" if file.is_dir() else "a device or pipe"
            raise InputError(f"{name}: is {what}, not an image file")
        return _decode(file.read_bytes(), name), name
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error


def _decode(data: bytes, name: str) -> Image.Image:
    if not data:
        raise InputError(f"{name}: the image is empty (0 bytes)")
    try:
        return Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise InputError(f"{name}: the picture has too many pixels: {error}") from error
    except UnidentifiedImageError as error:
        heads = (data[:64].lstrip().lower(), data[4:16].lower())
        known = next((what for magic, what in _FOREIGN.items() if any(h.startswith(magic) for h in heads)), None)
        hint = known or f"no known picture type (first bytes {data[:8]!r}); use PNG, JPEG or WebP"
        raise InputError(f"{name}: {hint}") from error
    except Exception as error:
        raise InputError(f"{name}: the picture is truncated or broken: {error}") from error


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 2, 3, 4):
        raise InputError(f"{name}: looks like [C, H, W]; transpose it to [H, W, C]")
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4)):
        raise InputError(f"{name}: give one picture as [H, W] or [H, W, C] with 1 to 4 channels")
    if array.size == 0:
        raise InputError(f"{name}: the image is empty")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    elif array.dtype == np.uint16:
        array = _sixteen_to_eight(array)
    elif np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise InputError(f"{name}: float pixels must be finite and in [0, 1]; for 0 to 255 use uint8")
        array = np.round(array.astype(np.float64) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise InputError(f"{name}: pixel type {array.dtype} has no agreed range; use uint8, uint16 or float in [0, 1]")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    # Pillow takes 2 channels for LA, 3 for RGB, 4 for RGBA.
    return Image.fromarray(np.ascontiguousarray(array))


def _check_header(image: Image.Image, options: ImageOptions, name: str) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise InputError(f"{name}: the image is empty ({width} x {height} pixels)")
    if width * height > options.max_pixels:
        raise InputError(
            f"{name}: {width} x {height} pixels is more than max_pixels {options.max_pixels}; scale it down"
        )


def _upright(image: Image.Image, changes: list[str]) -> Image.Image:
    if getattr(image, "n_frames", 1) > 1:
        changes.append(f"first of {getattr(image, 'n_frames', 1)} frames taken")
    if image.getexif().get(0x0112, 1) not in (0, 1):
        changes.append("turned upright by its EXIF orientation")
    return ImageOps.exif_transpose(image)


def _to_rgb(image: Image.Image, name: str, changes: list[str]) -> Image.Image:
    if image.mode == "RGB" and _ICC not in image.info and not image.has_transparency_data:
        return image
    transparent = image.info.get("transparency") if image.mode in _SIXTEEN_BIT else None
    if image.mode in _SIXTEEN_BIT or image.mode == "F":
        grey, depth = _grey_to_eight(image, name)
        changes.append(f"mode {image.mode} scaled to 8 bits")
        result = Image.fromarray(grey).convert("RGB")
        if isinstance(transparent, int):
            hole = Image.fromarray(np.where(depth == transparent, 255, 0).astype(np.uint8))
            result.paste(_WHITE, mask=hole)
            changes.append("composited on white")
        return result
    if image.mode in ("La", "RGBa"):
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    alpha = None
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        alpha = rgba.getchannel("A")
        if image.mode != "RGB" and _ICC not in image.info:
            image = rgba
    colours = _colours(image, changes)
    if alpha is None or alpha.getextrema() == (255, 255):
        return colours
    changes.append("composited on white")
    white = Image.new("RGB", colours.size, _WHITE)
    white.paste(colours, mask=alpha)
    return white


def _colours(image: Image.Image, changes: list[str]) -> Image.Image:
    """RGB without the alpha channel; an embedded colour profile other than sRGB is applied."""
    profile = image.info.get(_ICC)
    if profile:
        base = {"P": "RGB", "PA": "RGB", "RGBA": "RGB", "RGBX": "RGB", "LA": "L", "1": "L"}.get(image.mode, image.mode)
        plain = image.convert(base)
        try:
            inside = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            if "srgb" in ImageCms.getProfileDescription(inside).lower():
                return plain.convert("RGB")
            converted = ImageCms.profileToProfile(plain, inside, ImageCms.createProfile("sRGB"), outputMode="RGB")
        except (ImageCms.PyCMSError, OSError) as error:
            changes.append(f"unusable colour profile ignored: {error}")
        else:
            if converted is not None:
                changes.append("colour profile converted to sRGB")
                return converted
    if image.mode in ("CMYK", "YCbCr", "HSV", "LAB"):
        changes.append(f"mode {image.mode} converted to RGB")
    return image.convert("RGB")


def _sixteen_to_eight(values: np.ndarray) -> np.ndarray:
    """0..65535 -> 0..255 to the nearest level: 65535 / 255 = 257."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _grey_to_eight(image: Image.Image, name: str) -> tuple[np.ndarray, np.ndarray]:
    """8-bit grey [H, W] of a 16-bit or float picture, and the values as they were."""
    values = np.asarray(image)
    if image.mode == "F":
        if not np.isfinite(values).all() or values.min() < 0 or values.max() > 255:
            raise InputError(f"{name}: mode F pixels must lie in 0 to 255, as Pillow writes them")
        if values.max() <= 1 and (values != np.round(values)).any():
            raise InputError(
                f"{name}: mode F with values in [0, 1] is ambiguous; hand over a float numpy array instead"
            )
        return np.round(values).astype(np.uint8), values
    if values.min() < 0 or values.max() > 65535:
        raise InputError(f"{name}: mode {image.mode} pixels must lie in 0 to 65535 (16 bits)")
    return _sixteen_to_eight(values), values


def _resize(image: Image.Image, options: ImageOptions, name: str, changes: list[str]) -> Image.Image:
    width, height = image.size
    size = (width, height)
    if options.max_side is not None and max(size) > options.max_side:
        size = _scaled(size, options.max_side / max(size))
    if options.min_side is not None and min(size) < options.min_side:
        size = _scaled(size, options.min_side / min(size))
        if options.max_side is not None and max(size) > options.max_side:
            raise InputError(
                f"{name}: {width} x {height} is too long and thin for min_side {options.min_side} "
                f"and max_side {options.max_side}; crop it"
            )
    if size == (width, height):
        return image
    changes.append(f"scaled from {width} x {height} to {size[0]} x {size[1]}")
    return image.resize(size, Image.Resampling.LANCZOS)


def _scaled(size: tuple[int, int], factor: float) -> tuple[int, int]:
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _fit_bytes(image: Image.Image, options: ImageOptions, name: str, changes: list[str]) -> Image.Image:
    """The picture, or the largest of the smaller ones whose PNG has at most max_bytes."""
    limit = options.max_bytes
    # A filter byte per row, and never more than a thousandth on top: no need to compress what is small anyway.
    raw = image.height * (3 * image.width + 1)
    if limit is None or raw + raw // 1000 + 1024 <= limit:
        return image
    size = len(_png(image))
    if size <= limit:
        return image
    for factor in _SMALLER:
        smaller = image.resize(_scaled(image.size, factor), Image.Resampling.LANCZOS)
        if options.min_side is not None and min(smaller.size) < options.min_side:
            break
        if len(_png(smaller)) <= limit:
            changes.append(f"scaled by {factor:g} because its PNG of {size} bytes is over max_bytes {limit}")
            return smaller
    raise InputError(
        f"{name}: its PNG has {size} bytes, and no scale down to a quarter brings it under max_bytes {limit} within "
        "min_side; raise max_bytes or hand over a smaller picture"
    )


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()
