"""Rules about one picture: measured values by hand, limits, arguments, failures."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import judges
from judges.rules.appearance import laplacian_variance
from judges.rules.colour import distances, rgb_of, to_lab
from mmrubric import images
from mmrubric.errors import InputError
from mmrubric.rubric import Anchor, Criterion, Rubric


def criterion(rule: str, id: str = "c", expected: str | None = None, **arguments: object) -> Criterion:
    return Criterion(id=id, text=f"{id}: {rule}", verifier=f"rule:{rule}", expected=expected, arguments=arguments)  # pyright: ignore[reportArgumentType]


def ask(picture: object, *criteria: Criterion, **request: object) -> list[judges.Verdict]:
    rubric = Rubric(prompt="p", criteria=criteria)
    return judges.build("rules").score_sync([judges.JudgeRequest(rubric, picture, **request)])[0]  # pyright: ignore[reportArgumentType]


def met(picture: object, rule: str, **arguments: object) -> float | None:
    return ask(picture, criterion(rule, **arguments))[0].met


def halves(left: str, right: str, size: tuple[int, int] = (64, 64)) -> Image.Image:
    picture = Image.new("RGB", size, left)
    picture.paste(right, (size[0] // 2, 0, *size))
    return picture


def noise(seed: int = 0, size: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def test_lab_of_known_colours():
    # CIE 15 with D65: published values of the sRGB primaries
    expected = {"white": (100, 0, 0), "black": (0, 0, 0), "red": (53.24, 80.09, 67.20), "blue": (32.30, 79.19, -107.86)}
    for name, lab in expected.items():
        assert to_lab(rgb_of(name)) == pytest.approx(lab, abs=0.03), name
    # mid grey: Y = ((119 / 255 + 0.055) / 1.055) ** 2.4 = 0.18447, L = 116 Y^(1/3) - 16 = 50.03
    assert to_lab(rgb_of("#777777")) == pytest.approx((50.03, 0, 0), abs=0.01)
    assert distances(to_lab(rgb_of("white")), to_lab(rgb_of("black"))) == pytest.approx(100, abs=1e-3)


@settings(deadline=None)
@given(st.tuples(*[st.integers(0, 255)] * 3))
def test_lab_stays_in_range_and_grey_has_no_hue(rgb: tuple[int, int, int]):
    lightness, a, b = to_lab(np.array(rgb, dtype=np.uint8))
    assert -1e-3 <= lightness <= 100.001 and abs(a) < 110 and abs(b) < 110
    assert np.abs(to_lab(np.full(3, rgb[0], dtype=np.uint8))[1:]).max() < 1e-3


def test_colour_share_counts_pixels():
    picture = halves("red", "blue")
    picture.paste("lime", (0, 0, 64, 16))  # a quarter lime, so 3 / 8 red and 3 / 8 blue are left
    (verdict,) = ask(picture, criterion("colour_share", colour="red", min=0.375, max=0.375))
    assert verdict.met == 1.0 and verdict.read == "rule"
    assert verdict.reason == (
        "share of red (CIELAB distance up to 25) is 0.375, asked: at least 0.375 and at most 0.375"
    )
    assert met(picture, "colour_share", colour="#00ff00", min=0.251) == 0.0
    assert met(picture, "colour_share", colour="orange", max=0.0) == 1.0
    # Lab distance of red and orangered (#ff4500), L 57.6 a 67.8 b 69.0, from (53.24, 80.09, 67.20): 13.2
    assert met(Image.new("RGB", (8, 8), "orangered"), "colour_share", colour="red", distance=13.0, min=0.01) == 0.0
    assert met(Image.new("RGB", (8, 8), "orangered"), "colour_share", colour="red", distance=13.5, min=1.0) == 1.0


def test_sharpness_by_hand():
    # Columns alternate 0, 255 over 512 pixels. Inner columns have the Laplacian +-510; the first and the last
    # see themselves mirrored, +-255. By symmetry the mean is 0: variance (510 * 510^2 + 2 * 255^2) / 512.
    stripes = np.zeros((512, 512, 3), np.uint8)
    stripes[:, 1::2] = 255
    value = (510 * 510**2 + 2 * 255**2) / 512
    assert laplacian_variance(Image.fromarray(stripes)) == pytest.approx(value)
    assert met(stripes, "sharpness", min=value - 0.01, max=value + 0.01) == 1.0
    assert met(Image.new("RGB", (40, 30), "teal"), "sharpness", max=0.0) == 1.0


def test_sharpness_falls_with_blur_and_does_not_depend_on_the_scale_of_the_file():
    sharp = Image.fromarray(noise(size=256))
    sizes = [sharp.resize((side, side), Image.Resampling.BICUBIC) for side in (1024, 2048)]
    values = [laplacian_variance(picture) for picture in sizes]
    assert values[0] == pytest.approx(values[1], rel=0.1)
    blurred = sharp.resize((64, 64), Image.Resampling.BOX).resize((1024, 1024), Image.Resampling.BICUBIC)
    assert laplacian_variance(blurred) < 0.1 * values[0]


def test_brightness_contrast_chroma():
    two = halves("black", "white")
    (light,) = ask(two, criterion("brightness", min=49.9, max=50.1))  # (0 + 100) / 2
    assert light.met == 1.0 and light.reason.startswith("mean lightness is 50")
    assert met(two, "contrast", min=99.9) == 1.0 and met(Image.new("RGB", (9, 9), "red"), "contrast", max=0.0) == 1.0
    assert met(two, "chroma", max=0.01) == 1.0
    # red: sqrt(80.09^2 + 67.20^2) = 104.55; half of it beside white
    assert met(halves("red", "white"), "chroma", min=52.2, max=52.4) == 1.0


def test_blank():
    picture = Image.new("RGB", (100, 100), "#203040")
    assert met(picture, "blank") == 1.0
    picture.paste("white", (0, 0, 10, 20))  # 2 % of another colour
    (verdict,) = ask(picture, criterion("blank"))
    assert verdict.met == 0.0 and "is 0.98, asked: at least 0.99" in verdict.reason
    assert met(picture, "blank", share=0.98) == 1.0
    assert met(noise(), "blank") == 0.0


@pytest.mark.parametrize(
    ("size", "arguments", "expected"),
    [
        ((160, 90), {"ratio": "16:9"}, 1.0),
        ((160, 91), {"ratio": "16:9"}, 1.0),  # 1.758 against 1.778: 1.1 % off
        ((160, 91), {"ratio": "16:9", "tolerance": 0.01}, 0.0),
        ((90, 160), {"ratio": "16:9"}, 0.0),
        ((90, 160), {"ratio": 0.5625, "tolerance": 0.0}, 1.0),
        ((90, 160), {"max": 0.99}, 1.0),
        ((160, 90), {"min": 1.5, "max": 1.7}, 0.0),
    ],
)
def test_aspect(size: tuple[int, int], arguments: dict[str, object], expected: float):
    assert met(Image.new("RGB", size), "aspect", **arguments) == expected


def test_size_is_that_of_the_file_and_not_of_the_capped_picture():
    big = Image.new("RGB", (3000, 20))
    (verdict,) = ask(big, criterion("size", min_width=3000, max_height=19))
    assert verdict.met == 0.0
    assert verdict.reason == (
        "width is 3000 pixels, asked: at least 3000 pixels; height is 20 pixels, asked: at most 19 pixels"
    )
    assert met(big, "size", min_width=3000, max_height=20) == 1.0
    assert images.normalize(big).width == 2048


def test_expected_no_flips_the_answer():
    picture = Image.new("RGB", (8, 8), "red")
    asks = [criterion("blank", "yes"), criterion("blank", "no", expected="no")]
    assert [v.met for v in ask(picture, *asks)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("rule", "arguments", "message"),
    [
        ("sharpnes", {}, r"unknown rule 'sharpnes'; known: aspect, blank, .*sharpness, size"),
        ("blank", {"sharE": 1}, r"'rule:blank': unknown argument 'sharE'; known: distance, share"),
        ("colour_share", {"min": 0.1}, r"argument 'colour' is missing; known: .*colour"),
        ("colour_share", {"colour": "reddish", "min": 0.1}, r"argument 'colour': 'reddish' is no colour"),
        ("colour_share", {"colour": "red"}, r"give min, max or both"),
        ("colour_share", {"colour": "red", "min": 30}, r"min and max lie in \[0, 1\], got 30"),
        ("brightness", {"min": 60, "max": 40}, r"min 60 is larger than max 40"),
        ("brightness", {"min": "60"}, r"argument 'min': .*number.*\(got '60'\)"),
        ("brightness", {"min": True}, r"argument 'min': .*number"),
        ("aspect", {}, r"give either ratio, or min, max or both"),
        ("aspect", {"ratio": "wide"}, r"'wide' is neither a number above 0 nor 'width:height'"),
        ("aspect", {"ratio": "16:0"}, r"'16:0' is neither"),
        ("aspect", {"min": 1.0, "tolerance": 0.1}, r"tolerance belongs to ratio"),
        ("size", {}, r"give at least one of min_width"),
        ("size", {"min_width": 9, "max_width": 8}, r"min_width 9 is larger than max_width 8"),
        ("size", {"min_width": 1.5}, r"argument 'min_width'"),
    ],
)
def test_unknown_rules_and_wrong_arguments_are_refused_before_a_picture_is_opened(
    rule: str, arguments: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(images, "normalize", lambda *_: pytest.fail("a picture was opened"))
    with pytest.raises(InputError, match=rf"criterion 'c'.*{message}"):
        ask(b"no picture", criterion(rule, **arguments), sample_id="s")


def test_other_verifiers_scales_and_texts_are_refused():
    with pytest.raises(InputError, match=r"criterion 'c' asks for verifier 'vlm'; judge 'rules/1' answers only rule:"):
        ask(noise(), Criterion(id="c", text="t"))
    levels = Criterion(
        id="c", text="t", scale="ordinal", anchors=(Anchor(text="a"), Anchor(text="b")), verifier="rule:blank"
    )
    with pytest.raises(InputError, match="criterion 'c' has the scale 'ordinal'"):
        ask(noise(), levels)
    with pytest.raises(InputError, match="the candidate is a text"):
        ask("a red square", criterion("blank"))
    with pytest.raises(InputError, match="threads: 0 is not a whole number"):
        judges.build("rules", threads=0)
    with pytest.raises(InputError, match="unknown option strict; known: threads"):
        judges.build("rules", strict=True)


def test_a_bad_picture_fails_alone_and_is_never_zero():
    rubric = Rubric(prompt="p", criteria=[criterion("blank"), criterion("size", "s", min_width=1)])
    asked = [
        judges.JudgeRequest(rubric, p, sample_id=s) for s, p in (("bad", b"no"), ("good", Image.new("RGB", (9, 9))))
    ]
    bad, good = judges.build("rules").score_sync(asked)
    assert [(v.met, v.failure, v.applicable) for v in bad] == [(None, judges.Failure.bad_image, True)] * 2
    assert "no known picture type" in bad[0].reason
    assert [v.met for v in good] == [1.0, 1.0] and {v.sample_id for v in good} == {"good"}


def test_protocol_threads_and_order():
    judge = judges.build("rules", threads=3)
    assert isinstance(judge, judges.Judge) and judge.id == judges.build("rules").id == "rules/1"
    rubric = Rubric(prompt="p", criteria=[criterion("brightness", f"b{k}", min=float(k)) for k in range(3)])
    greys = [np.full((16, 16, 3), level, np.uint8) for level in (0, 119, 255) * 5]
    requests = [judges.JudgeRequest(rubric, grey, sample_id=str(k)) for k, grey in enumerate(greys)]
    answers = judge.score_sync(requests)

    async def inside() -> list[list[judges.Verdict]]:
        return judge.score_sync(requests)  # inside a running loop

    assert answers == asyncio.run(judge.score(requests)) == asyncio.run(inside())
    assert [[v.criterion_id for v in row] for row in answers] == [["b0", "b1", "b2"]] * 15
    assert [row[0].sample_id for row in answers] == [str(k) for k in range(15)]
    assert [[v.met for v in row] for row in answers[:3]] == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]


def test_the_event_loop_stays_free(monkeypatch: pytest.MonkeyPatch):
    threads: set[str] = set()
    real = images.normalize

    def watched(*args: object) -> Image.Image:
        threads.add(threading.current_thread().name)
        return real(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(images, "normalize", watched)
    ask(noise(), criterion("blank"), sample_id="s")
    assert threads and "mmrubric-judging" not in threads
