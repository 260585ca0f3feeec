"""The image normaliser: JF31 to JF39 of field/judging.md, and that the hash is that of the pixels sent."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from mmrubric import images
from mmrubric.chat import ImagePart
from mmrubric.errors import InputError
from mmrubric.images import ImageOptions, content_hash, normalize

MODES = ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB",
         "I", "F", "I;16", "I;16B", "I;16L"]  # fmt: skip


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(width: int = 30, height: int = 10) -> Image.Image:
    red = np.broadcast_to(np.linspace(0, 255, width), (height, width))
    green = np.broadcast_to(np.linspace(0, 255, height)[:, None], (height, width))
    return Image.fromarray(np.stack([red, green, red * 0 + 40], axis=2).astype(np.uint8))


@pytest.mark.parametrize("mode", MODES)
def test_jf33_every_colour_mode_becomes_rgb_and_can_be_encoded(mode):
    picture = normalize(Image.new(mode, (3, 2)))
    assert picture.mode == "RGB" and picture.size == (3, 2) and picture.info == {}
    for kind in ("png", "jpeg"):
        assert Image.open(io.BytesIO(images.encode(Image.new(mode, (3, 2)), kind))).format == kind.upper()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGBa", "La", "PA"])
def test_jf31_transparent_pixels_become_white(mode):
    # (255, 0, 0, alpha 0): nothing of the red may be seen.
    source = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    source.putpixel((1, 0), (0, 0, 0, 255))
    if mode in ("RGBa", "La"):
        source = source.convert("LA" if mode == "La" else "RGBA")
    found = images.inspect(source.convert(mode))
    assert found.image.getpixel((0, 0)) == (255, 255, 255) and found.image.getpixel((1, 0)) == (0, 0, 0)
    assert "composited on white" in found.changes


def test_half_transparent_red_is_pink():
    # 255 * 128/255 + 255 * 127/255 = 255 for red, 0 * 128/255 + 255 * 127/255 = 127 for the others
    assert normalize(Image.new("RGBA", (1, 1), (255, 0, 0, 128))).getpixel((0, 0)) == (255, 127, 127)


def test_palette_and_rgb_transparency_keys():
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    keyed = normalize(encoded(palette, "PNG", transparency=0))
    assert [keyed.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 0, 255)]
    rgb = Image.new("RGB", (2, 1), (255, 0, 0))
    rgb.putpixel((1, 0), (0, 9, 0))
    keyed = normalize(encoded(rgb, "PNG", transparency=(255, 0, 0)))
    assert [keyed.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 9, 0)]


def test_jf32_exif_orientation_is_applied_once(tmp_path):
    upright = gradient(30, 10)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "phone.jpg"
    upright.save(path, exif=exif, quality=100)
    once = normalize(path)
    assert once.size == (10, 30)
    assert normalize(once).tobytes() == once.tobytes() and normalize(once).size == (10, 30)
    # Orientation 6: turn by 90 degrees clockwise, so the left end of the red ramp is at the top.
    assert once.getpixel((5, 0))[0] < 20 and once.getpixel((5, 29))[0] > 235
    assert normalize(Image.open(path)).tobytes() == once.tobytes()


def test_sixteen_bits_are_scaled_not_clipped():
    # 0 -> 0, 257 -> 1, 32896 = 128 * 257 -> 128, 65535 -> 255
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    for kind in ("PNG", "TIFF", "PPM"):
        picture = normalize(encoded(Image.fromarray(values), kind))
        assert [picture.getpixel((x, 0))[0] for x in range(4)] == [0, 1, 128, 255], kind
    assert [normalize(values).getpixel((x, 0))[0] for x in range(4)] == [0, 1, 128, 255]


def test_jf34_cmyk_jpeg_and_lab_become_rgb():
    picture = normalize(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100))
    red, green, blue = picture.getpixel((4, 4))
    assert red > 200 and green < 60 and blue < 60
    lab = ImageCms.profileToProfile(
        Image.new("RGB", (1, 1), (0, 128, 0)), ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"),
        outputMode="LAB",
    )  # fmt: skip
    assert lab is not None
    assert np.abs(np.subtract(normalize(lab).getpixel((0, 0)), (0, 128, 0))).max() <= 6  # 8-bit LAB is coarse


def test_srgb_profile_changes_nothing_and_a_broken_one_is_noted():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain = gradient()
    assert normalize(encoded(plain, "PNG", icc_profile=profile)).tobytes() == plain.tobytes()
    broken = images.inspect(encoded(plain, "PNG", icc_profile=b"no profile"))
    assert broken.image.tobytes() == plain.tobytes() and "profile" in broken.changes[0]


def test_numpy_kinds_agree():
    rgb = np.asarray(gradient())
    expected = gradient().tobytes()
    assert normalize(rgb).tobytes() == expected
    assert normalize(rgb / 255.0).tobytes() == expected
    grey = np.full((2, 3, 1), 7, np.uint8)
    assert normalize(grey).getpixel((0, 0)) == (7, 7, 7) and normalize(grey).size == (3, 2)
    assert normalize(np.ones((2, 2), bool)).getpixel((0, 0)) == (255, 255, 255)


def test_jf35_type_is_read_from_the_bytes(tmp_path):
    (tmp_path / "x.jpg").write_bytes(encoded(gradient(), "PNG"))
    (tmp_path / "y.png").write_bytes(encoded(gradient(), "WEBP", lossless=True))
    assert normalize(tmp_path / "x.jpg").tobytes() == gradient().tobytes()
    url = images.data_url(tmp_path / "y.png")
    head, payload = url.split(",")
    assert head == "data:image/png;base64" and base64.b64decode(payload).startswith(b"\x89PNG")
    assert images.data_url(gradient(), "jpeg").startswith("data:image/jpeg;base64,/9j/")


def test_hash_is_that_of_the_pixels(tmp_path):
    path = tmp_path / "a.png"
    gradient().save(path)
    (tmp_path / "b.webp").write_bytes(encoded(gradient(), "WEBP", lossless=True))
    same = {content_hash(x) for x in (gradient(), path, str(path), path.read_bytes(), np.asarray(gradient()),
                                      tmp_path / "b.webp", normalize(path))}  # fmt: skip
    assert len(same) == 1 and len(same.pop()) == 64
    other = gradient()
    other.putpixel((0, 0), (1, 1, 1))
    assert content_hash(other) != content_hash(gradient())
    # Same bytes, other shape: 2 x 1 and 1 x 2 black pixels are different pictures.
    assert content_hash(Image.new("RGB", (2, 1))) != content_hash(Image.new("RGB", (1, 2)))


def test_size_options():
    big = Image.new("RGB", (3000, 300))
    assert normalize(big).size == (2048, 205)
    assert normalize(big, ImageOptions(max_side=None)).size == (3000, 300)
    assert normalize(Image.new("RGB", (10, 20)), ImageOptions(min_side=28)).size == (28, 56)
    assert content_hash(big) != content_hash(big, ImageOptions(max_side=None))
    with pytest.raises(InputError, match="too long and thin"):
        normalize(Image.new("RGB", (1000, 1)), ImageOptions(min_side=28))
    with pytest.raises(InputError, match="min_side 64 is larger than max_side 32"):
        ImageOptions(max_side=32, min_side=64)


def bomb(side: int) -> bytes:
    """A PNG header that promises side x side grey pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 20_000])
def test_jf36_a_bomb_is_refused_from_its_header(tmp_path, side):
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(side))
    with pytest.raises(InputError, match=r"bomb\.png.*pixels"):
        normalize(path)


def test_jf37_broken_files_name_their_source(tmp_path):
    good = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)), "PNG")
    cases = {
        "half.png": (good[: len(good) // 2], "truncated or broken"),
        "empty.png": (b"", "empty"),
        "page.png": (b"<!DOCTYPE html><p>404", "HTML page"),
        "lfs.png": (b"version https://git-lfs.github.com/spec/v1", "LFS pointer"),
        "noise.png": (b"not a picture at all", "no known picture type"),
        "half.jpg": (encoded(gradient(200, 200), "JPEG")[:400], "truncated or broken"),
        "phone.jpg": (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC photo; export it as JPEG"),
        "clip.png": (b"\0\0\0\x20ftypisom\0\0\2\0", "a video"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name.replace(".", r"\.")) as caught:
            normalize(tmp_path / name)
        assert message in str(caught.value)
        with pytest.raises(InputError, match="upload 3"):
            normalize(data, source="upload 3")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("missing.png", "no such image file"),
        ("A" * 5000, r"AAA\.\.\.: cannot be read: .*too long"),
        ("/dev/null", "is a device or pipe"),
        ("https://example.org/a.png", "not fetched"),
        (np.zeros((3, 8, 9), np.uint8), "transpose"),
        (np.zeros((2, 8, 9, 3), np.uint8), "one picture"),
        (np.zeros((0, 9, 3), np.uint8), "empty"),
        (np.full((2, 2, 3), 255.0), r"in \[0, 1\]"),
        (np.full((2, 2), np.nan), r"in \[0, 1\]"),
        (np.zeros((2, 2, 3), np.int64), "uint8"),
        (Image.fromarray(np.array([[70000]], np.int32)), "0 to 65535"),
        (Image.fromarray(np.array([[0.5]], np.float32)), "ambiguous"),
        (12, "int"),
    ],
)
def test_bad_input_is_an_input_error(bad, message):
    with pytest.raises(InputError, match=message):
        normalize(bad)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        normalize(tmp_path)


def test_first_frame_of_an_animation_is_taken_and_said():
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    found = images.inspect(data)
    assert found.image.getpixel((0, 0)) == (255, 0, 0) and "first of 2 frames" in found.changes[0]


def test_unknown_kind_is_refused():
    with pytest.raises(InputError, match="png, jpeg"):
        images.encode(gradient(), "webp")  # type: ignore[arg-type]


def test_jf38_a_picture_made_in_memory_has_no_format_and_needs_none():
    picture = Image.new("RGB", (3, 2), "red")
    assert picture.format is None
    assert images.data_url(picture).startswith("data:image/png;base64,")


def noise(side: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8))


def test_a_picture_over_max_bytes_is_scaled_down_by_the_stated_steps():
    # Noise does not compress: about 3 bytes per pixel, so 128 x 128 are 49 kB, 96 x 96 27 kB and 64 x 64 12 kB.
    for limit, side in ((60_000, 128), (40_000, 96), (20_000, 64), (3_400, 32)):
        options = ImageOptions(max_bytes=limit)
        found = images.inspect(noise(128), options)
        assert found.image.size == (side, side) and len(images.encode(noise(128), options=options)) <= limit
        assert found.changes == () if side == 128 else f"max_bytes {limit}" in found.changes[0]
        # What is hashed is what is sent, and normalising again changes nothing.
        assert content_hash(noise(128), options) == images.pixel_hash(found.image)
        assert normalize(found.image, options).tobytes() == found.image.tobytes()
        part = ImagePart.of(noise(128), options)
        sent = Image.open(io.BytesIO(base64.b64decode(part.url.split(",")[1])))
        assert sent.size == (side, side) and images.pixel_hash(sent) == part.sha256 == images.pixel_hash(found.image)


def test_a_picture_that_stays_over_max_bytes_is_refused():
    with pytest.raises(InputError, match=r"upload 3: its PNG has \d+ bytes.*max_bytes 2000"):
        normalize(noise(128), ImageOptions(max_bytes=2000), source="upload 3")
    with pytest.raises(InputError, match="min_side"):
        normalize(noise(128), ImageOptions(max_bytes=20_000, min_side=100))
    with pytest.raises(InputError, match=r"max_bytes must be at least 1"):
        ImageOptions(max_bytes=0)


def test_a_flat_picture_may_have_many_pixels():
    # 3 MB of pixels, but a PNG of a few kB
    assert normalize(Image.new("RGB", (1000, 1000)), ImageOptions(max_bytes=50_000)).size == (1000, 1000)


def test_jf39_files_of_a_folder_come_in_their_natural_order(tmp_path):
    names = ["frame10.png", "frame2.png", "Frame1.PNG", "b.webp", "labels.jsonl", ".hidden.png", "frame02.jpg"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "x.png").write_bytes(b"")
    expected = ["b.webp", "Frame1.PNG", "frame02.jpg", "frame2.png", "frame10.png"]
    assert [path.name for path in images.in_folder(tmp_path)] == expected
    with pytest.raises(InputError, match=r"deeper.none: no such folder"):
        images.in_folder(tmp_path / "deeper" / "none")
    with pytest.raises(InputError, match=r"empty: holds no image file"):
        (tmp_path / "empty").mkdir()
        images.in_folder(tmp_path / "empty")
