"""Rules about two pictures: SSIM and PSNR by hand, edit masks, perceptual hashes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

import judges
from judges.rules import hash_distance, perceptual_hash
from judges.rules.similarity import mean_ssim, psnr, ssim_map
from mmrubric import images
from mmrubric.errors import InputError
from mmrubric.prompt import Box, Grounding
from tests.judges.test_rules import ask, criterion

C1, C2 = 6.5025, 58.5225  # (0.01 * 255)^2, (0.03 * 255)^2
SOURCE = np.random.default_rng(1).integers(60, 196, (40, 60, 3), dtype=np.uint8)


def flat(level: int, side: int = 16) -> np.ndarray:
    return np.full((side, side, 3), level, np.uint8)


def scenery(seed: int, side: int = 96) -> Image.Image:
    """A smooth picture, as photographs are on a coarse scale."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def edited() -> np.ndarray:
    """The source with columns 0 to 29 inverted."""
    picture = SOURCE.copy()
    picture[:, :30] = 255 - picture[:, :30]
    return picture


def test_psnr_by_hand():
    everywhere = np.ones((16, 16), dtype=bool)
    # every value 5 off: MSE 25, 10 log10(255^2 / 25) = 34.1514
    assert psnr(flat(100), flat(105), everywhere) == pytest.approx(34.1514, abs=1e-4)
    assert psnr(flat(100), flat(100), everywhere) == float("inf")
    half = flat(100)
    half[:8] = 0
    assert psnr(flat(100), half, np.arange(16)[:, None] * np.ones(16) >= 8) == float("inf")


def test_ssim_of_flat_pictures_by_hand():
    # no variance: (2 * 100 * 150 + C1) / (100^2 + 150^2 + C1) * C2 / C2
    expected = (30_000 + C1) / (32_500 + C1)
    assert expected == pytest.approx(0.923092, abs=1e-6)
    everywhere = np.ones((16, 16), dtype=bool)
    assert ssim_map(flat(100), flat(150), everywhere) == pytest.approx(np.full((16, 16), expected))
    assert mean_ssim(flat(100), flat(150), everywhere) == pytest.approx(expected)


@pytest.mark.parametrize("masked_columns", [0, 4])
def test_ssim_at_one_pixel_against_the_written_out_sums(masked_columns: int):
    x, y = SOURCE[:11, :11], edited()[:11, :11]
    where = np.ones((11, 11), dtype=bool)
    where[:, :masked_columns] = False
    gauss = np.exp(-((np.arange(11) - 5.0) ** 2) / (2 * 1.5**2))
    weights = np.outer(gauss, gauss) * where
    weights /= weights.sum()
    values = []
    for c in range(3):
        a, b = x[..., c].astype(float), y[..., c].astype(float)
        mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
        var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
        both = (weights * (a - mean_a) * (b - mean_b)).sum()
        values.append(
            (2 * mean_a * mean_b + C1) * (2 * both + C2) / ((mean_a**2 + mean_b**2 + C1) * (var_a + var_b + C2))
        )
    # The window of the centre is the whole 11 x 11 picture, and the centre the only one whose window fits.
    assert ssim_map(x, y, where)[5, 5] == pytest.approx(np.mean(values), abs=1e-12)
    assert mean_ssim(x, y, where) == pytest.approx(np.mean(values), abs=1e-12)
    assert np.mean(values) < -0.5  # inverted colours


def test_the_masked_part_has_no_influence():
    where = np.ones(SOURCE.shape[:2], dtype=bool)
    where[:, :30] = False
    assert ssim_map(SOURCE, edited(), where)[where] == pytest.approx(1.0)
    assert np.isnan(ssim_map(SOURCE, edited(), where)[~where]).all()
    assert np.isnan(mean_ssim(SOURCE[:10], SOURCE[:10], where[:10]))  # lower than the window


def test_an_edit_inside_the_mask_is_kept_perfectly():
    (verdict,) = ask(
        edited(), criterion("keep", min_ssim=1.0 - 1e-9, min_psnr=99.0, boxes=[[0, 0, 0.5, 1]]), source=[SOURCE]
    )
    assert verdict.met == 1.0
    assert verdict.reason == (
        "PSNR outside the mask is inf dB, asked: at least 99 dB; SSIM outside the mask is 1, asked: at least 1"
    )


def test_an_edit_outside_the_mask_is_not_kept():
    asks = [
        criterion("keep", "psnr", min_psnr=30.0, boxes=[[0, 0, 0.4, 1]]),
        criterion("keep", "ssim", min_ssim=0.9, boxes=[[0, 0, 0.4, 1]]),  # 6 columns of the edit show
        criterion("keep", "nothing_may_change", min_ssim=0.9, boxes=[]),
    ]
    assert [v.met for v in ask(edited(), *asks, source=[SOURCE])] == [0.0, 0.0, 0.0]
    assert [v.met for v in ask(SOURCE, *asks, source=[SOURCE])] == [1.0, 1.0, 1.0]
    # of several sources the first is the one that was edited
    assert [v.met for v in ask(SOURCE, *asks, source=[SOURCE, edited()])] == [1.0, 1.0, 1.0]
    assert [v.met for v in ask(SOURCE, *asks, source=[edited(), SOURCE])] == [0.0, 0.0, 0.0]


def test_mask_as_picture_and_as_layout_box_equal_the_box():
    mask = np.zeros((20, 30), np.uint8)  # half the size of the source
    mask[:, :15] = 255
    layout = Grounding(layout=(Box("sky", 0, 0, 1, 0.2), Box("edit", 0, 0, 0.5, 1)))
    given = criterion("keep", min_psnr=99.0, mask=images.data_url(mask))
    assert ask(edited(), given, source=[SOURCE])[0].met == 1.0
    by_label = criterion("keep", min_psnr=99.0)
    assert ask(edited(), by_label, source=[SOURCE], grounding=layout)[0].met == 1.0
    sky = criterion("keep", min_psnr=99.0, region="sky")
    assert ask(edited(), sky, source=[SOURCE], grounding=layout)[0].met == 0.0


def test_a_candidate_of_another_size_is_scaled_to_the_source():
    source = scenery(3)
    (verdict,) = ask(source.resize((48, 48)), criterion("keep", min_ssim=0.9, boxes=[]), source=[source])
    assert verdict.met == 1.0 and verdict.reason.endswith("candidate scaled to the source")


@pytest.mark.parametrize(
    ("arguments", "request_", "reason"),
    [
        ({"boxes": []}, {}, "no source image"),
        ({}, {"source": [SOURCE]}, "no edit mask: no mask, no boxes, and no layout box labelled 'edit'"),
        ({"region": "sky"}, {"source": [SOURCE]}, "no layout box labelled 'sky'"),
        ({"boxes": [[0, 0, 1, 1]]}, {"source": [SOURCE]}, "the mask covers the whole picture"),
        ({"boxes": [[0, 0.1, 1, 0.9]]}, {"source": [SOURCE]}, "nothing outside the mask is far enough from the frame"),
    ],
)
def test_keep_is_unknown_only_where_it_does_not_apply(
    arguments: dict[str, object], request_: dict[str, object], reason: str
):
    (verdict,) = ask(edited(), criterion("keep", min_ssim=0.9, **arguments), **request_)
    assert (verdict.met, verdict.applicable, verdict.failure) == (None, False, None)
    assert verdict.reason.startswith("does not apply: ") and reason in verdict.reason


def test_a_broken_source_fails_only_the_criteria_that_need_it():
    asks = [criterion("keep", "keep", min_ssim=0.9, boxes=[]), criterion("blank", "blank")]
    keep, blank = ask(SOURCE, *asks, source=[b"no picture"])
    assert (keep.met, keep.failure, blank.met) == (None, judges.Failure.bad_image, 0.0)
    wide = images.data_url(Image.new("L", (50, 10), "white"))
    (verdict,) = ask(SOURCE, criterion("keep", min_ssim=0.9, mask=wide), source=[SOURCE])
    assert verdict.failure == judges.Failure.bad_image and "mask of 50 x 10 pixels does not fit" in verdict.reason


@pytest.mark.parametrize(
    ("rule", "arguments", "message"),
    [
        ("keep", {}, "give min_ssim, min_psnr or both"),
        ("keep", {"min_ssim": 0.9, "boxes": [], "region": "edit"}, "give only one of mask, boxes and region"),
        ("keep", {"min_ssim": 0.9, "boxes": [[0, 0, 0, 1]]}, "needs 0 <= left < right <= 1"),
        ("keep", {"min_ssim": 0.9, "boxes": [[0, 0, 1]]}, "argument 'boxes.0.3' is missing"),
        ("keep", {"min_ssim": 0.9, "mask": "mask.png"}, r"images.data_url\(mask\)"),
        ("keep", {"min_ssim": 0.9, "mask": "data:image/png;base64,@"}, "not valid base64"),
        ("keep", {"min_ssim": 0.9, "mask": "data:image/png;base64,AAAA"}, "mask: no known picture type"),
        ("duplicate", {"of": "prompt"}, "argument 'of'"),
        ("duplicate", {"hash": "xyz"}, "'xyz' is no perceptual hash: 16 hex digits"),
        ("duplicate", {"hash": "0" * 16, "of": "source"}, "give only one of 'of' and 'hash'"),
        ("duplicate", {"max_distance": 64}, "argument 'max_distance'"),
    ],
)
def test_wrong_arguments(rule: str, arguments: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        ask(SOURCE, criterion(rule, **arguments))


def test_hash_of_a_gradient_by_hand():
    # Light rises with the column and does not depend on the row: all coefficients but those of the first row
    # are 0, and so is the median of the 64. In that row DC is positive; an increasing ramp has negative odd
    # coefficients and, being antisymmetric about its mean, no even ones: one bit is set, the first.
    ramp = np.repeat(np.linspace(0, 248, 32).astype(np.uint8)[None, :, None], 32, axis=0).repeat(3, axis=2)
    assert perceptual_hash(Image.fromarray(ramp)) == "8000000000000000"
    assert perceptual_hash(Image.new("RGB", (70, 50), "white")) == "8000000000000000"
    assert hash_distance("8000000000000000", "800000000000000f") == 4


def test_copies_are_near_and_other_pictures_far():
    original = scenery(0)
    digest = perceptual_hash(original)
    buffer = io.BytesIO()
    original.save(buffer, "JPEG", quality=60)
    copies = [
        original.resize((200, 200)),
        images.normalize(buffer.getvalue()),
        original.filter(ImageFilter.GaussianBlur(1)),
    ]
    assert max(hash_distance(perceptual_hash(images.normalize(copy)), digest) for copy in copies) <= 6
    others = [ImageOps.mirror(original), *(scenery(seed) for seed in range(1, 12))]
    assert min(hash_distance(perceptual_hash(other), digest) for other in others) > 12


def test_duplicate_of_source_reference_and_hash():
    original, other = scenery(0), scenery(1)
    copy = original.resize((64, 64))
    (verdict,) = ask(copy, criterion("duplicate"), source=[original])
    assert verdict.met == 1.0 and "perceptual hash to the source image" in verdict.reason
    assert "asked: at most 6 bits" in verdict.reason
    assert ask(copy, criterion("duplicate"), source=[other])[0].met == 0.0
    grounding = Grounding(image=original)
    assert ask(copy, criterion("duplicate", of="reference"), grounding=grounding)[0].met == 1.0
    assert ask(copy, criterion("duplicate", hash=perceptual_hash(original)))[0].met == 1.0
    assert ask(copy, criterion("duplicate", hash=perceptual_hash(other)))[0].met == 0.0
    for of in ("source", "reference"):
        (missing,) = ask(copy, criterion("duplicate", of=of))
        assert (missing.met, missing.applicable) == (None, False) and f"no {of} image" in missing.reason
