"""What the two readers of pixels see: hand-made pictures that rendered scenes do not contain."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from judges.shapes import ShapesJudge, shapes, shapes_second
from judges.shapes.measure import measure
from mmrubric.shapes import BACKGROUNDS, COLOURS, OTHER, RADII, SHAPES, WORDS, Scene, Seen, Word, render
from mmrubric.shapes.world import word_extent
from tests.judges.pictures import box, cases, disc, draw, plain, scene

READERS = [shapes(), shapes_second()]
both = pytest.mark.parametrize("judge", READERS, ids=lambda judge: judge.id)


def _see(judge: ShapesJudge, picture: np.ndarray) -> Seen:
    return judge.see([picture])[0]


def _names(seen: Seen) -> list[tuple[str, str]]:
    return sorted((item.shape, item.colour) for item in seen.items)


@both
@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("size", RADII)
def test_every_shape_and_colour_on_every_background(judge: ShapesJudge, background: str, size: str):
    radius = sum(RADII[size]) / 2
    grid = [(shape, colour) for shape in SHAPES for colour in COLOURS]
    seen = judge.see([scene(background, (shape, colour, 30.3, 33.6, radius)) for shape, colour in grid])
    for (shape, colour), found in zip(grid, seen, strict=True):
        assert found.background == background and found.word is None
        (item,) = found.items
        assert (item.shape, item.colour, item.size) == (shape, colour, size)
        # The renderer's corners lie an eighth of a pixel towards the origin.
        assert abs(item.x - 30.3) < 0.6 and abs(item.y - 33.6) < 0.8


@both
@pytest.mark.parametrize("word", WORDS)
def test_every_word_in_every_colour(judge: ShapesJudge, word: str):
    width, height = word_extent(word)
    for k, colour in enumerate(COLOURS):
        for background in BACKGROUNDS:
            sharp = render(Scene(background, word=Word(word, colour, 2 + k + width / 2, 5 * k + 2 + height / 2)))
            soft = ndimage.gaussian_filter(sharp.astype(float), (0.7, 0.7, 0)).astype(np.uint8)
            for seen in judge.see([sharp, soft]):
                assert (seen.word, seen.word_colour, seen.items) == (word, colour, ())


@both
def test_a_wrong_letter_is_not_the_word(judge: ShapesJudge):
    # GO with the middle bar of its G and part of its right side removed reads CO.
    picture = render(Scene("white", word=Word("GO", "blue", 30, 30)))
    rows, columns = np.nonzero((picture != 250).any(-1))
    top, left = rows.min(), columns.min()
    picture[top + 9 : top + 18, left + 6 : left + 15] = 250
    seen = _see(judge, picture)
    assert seen.word is not None and seen.word != "GO"


@both
def test_shuffled_letters_are_writing_but_no_word(judge: ShapesJudge):
    picture = render(Scene("white", word=Word("CAT", "blue", 30, 30)))
    rows, columns = np.nonzero((picture != 250).any(-1))
    top, bottom, left = rows.min(), rows.max() + 1, columns.min()
    letters = [picture[top:bottom, left + 18 * k : left + 18 * k + 15].copy() for k in range(3)]
    for place, letter in enumerate((1, 2, 0)):
        picture[top:bottom, left + 18 * place : left + 18 * place + 15] = letters[letter]
    seen = _see(judge, picture)
    assert seen.word is not None and seen.word not in WORDS and seen.items == ()


@both
def test_nothing_in_an_empty_picture_and_noise_is_no_blob(judge: ShapesJudge):
    noise = np.random.default_rng(0).normal(0, 6, (64, 64, 3))
    for background in BACKGROUNDS:
        picture = np.clip(plain(background) + noise, 0, 255).astype(np.uint8)
        assert _see(judge, picture) == Seen(background)


@both
def test_backgrounds_without_a_name(judge: ShapesJudge):
    for colour in ((120, 200, 120), (60, 60, 160), (80, 80, 80), (250, 240, 120)):
        seen = _see(judge, np.full((64, 64, 3), colour, np.uint8))
        assert (seen.background, seen.items, seen.word) == (OTHER, (), None)


@both
def test_a_small_extra_blob_is_seen_and_a_speck_is_not(judge: ShapesJudge):
    picture = scene("white", ("circle", "red", 30, 30, 10.5))
    speck = draw(picture, box(50, 50, 2, 2), "blue")
    blob = draw(picture, box(50, 50, 4, 4), "blue")
    assert _names(_see(judge, speck)) == [("circle", "red")]
    assert len(_see(judge, blob).items) == 2


@both
def test_a_colourless_blob_is_seen(judge: ShapesJudge):
    picture = draw(scene("white", ("circle", "red", 20, 30, 8)), disc(48, 30, 6), (110, 110, 110))
    names = _names(_see(judge, picture))
    assert len(names) == 2 and ("circle", "red") in names
    assert not any(colour != OTHER for shape, colour in names if (shape, colour) != ("circle", "red"))


STRANGE = {
    "half disc": disc(32, 30, 10, 0, 180),
    "long bar": box(22, 28, 22, 9),
    "diamond": [(32.0, 22.0), (42.0, 32.0), (32.0, 42.0), (22.0, 32.0)],
    "upside-down triangle": [(21.0, 22.0), (43.0, 22.0), (32.0, 42.0)],
    "L": [(22.0, 22.0), (29.0, 22.0), (29.0, 35.0), (42.0, 35.0), (42.0, 42.0), (22.0, 42.0)],
    "three-quarter disc": disc(32, 32, 10, 45, 315),
}


@both
@pytest.mark.parametrize("name", STRANGE)
def test_what_nobody_would_name_is_other(judge: ShapesJudge, name: str):
    (item,) = _see(judge, draw(plain(), STRANGE[name], "blue")).items
    assert (item.shape, item.colour) == (OTHER, "blue")


@both
def test_a_ring_is_no_circle(judge: ShapesJudge):
    picture = draw(draw(plain(), disc(32, 32, 10), "red"), disc(32, 32, 5.5), (250, 250, 250))
    assert [item.shape for item in _see(judge, picture).items] == [OTHER]


@both
def test_a_circle_of_two_colours_has_no_colour(judge: ShapesJudge):
    picture = draw(draw(plain(), disc(32, 32, 10), "red"), disc(32, 32, 10, 0, 180), "blue")
    assert ("circle", "red") not in _names(_see(judge, picture))
    assert ("circle", "blue") not in _names(_see(judge, picture))
    assert _names(_see(judge, picture))[0][1] == OTHER


@both
def test_touching_shapes_are_told_apart(judge: ShapesJudge):
    colours = scene("gray", ("circle", "red", 22, 30, 10), ("square", "yellow", 41, 30, 10))
    assert _names(_see(judge, colours)) == [("circle", "red"), ("square", "yellow")]
    same = scene("gray", ("circle", "red", 22, 30, 10), ("circle", "red", 41, 30, 10))
    assert _names(_see(judge, same)) == [("circle", "red"), ("circle", "red")]


@both
def test_slightly_off_colours_and_soft_edges_keep_their_names(judge: ShapesJudge):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        for colour in COLOURS:
            for background in BACKGROUNDS:
                picture = scene(background, (shape, colour, 30, 30, 6.5)).astype(float)
                picture += rng.uniform(-12, 12, 3)
                soft = np.clip(ndimage.gaussian_filter(picture, (0.9, 0.9, 0)), 0, 255).astype(np.uint8)
                assert _names(_see(judge, soft)) == [(shape, colour)], (shape, colour, background)


@both
def test_elongated_circles_lose_their_name_gradually(judge: ShapesJudge):
    def named(aspect: float) -> bool:
        points = [(32 + (x - 32) * aspect, y) for x, y in disc(32, 32, 8)]
        return [i.shape for i in _see(judge, draw(plain(), points, "green")).items] == ["circle"]

    assert named(1.0) and named(1.15) and not named(1.7) and not named(2.0)


@both
def test_agreement_on_a_few_hundred_scenes(judge: ShapesJudge):
    result = measure(judge, cases(), np.stack([render(case.scene) for case in cases()]))
    assert result.worst >= 0.995 and result.near_misses >= 0.98, result


def test_the_readers_agree_on_what_they_see():
    pictures = [render(case.scene) for case in cases()]
    for one, two in zip(*(judge.see(pictures) for judge in READERS), strict=True):
        assert (one.background, one.word, one.word_colour) == (two.background, two.word, two.word_colour)
        assert len(one.items) == len(two.items)
        for a in one.items:
            b = min(two.items, key=lambda other: (other.x - a.x) ** 2 + (other.y - a.y) ** 2)
            assert (a.shape, a.colour, a.size) == (b.shape, b.colour, b.size)
            assert abs(a.x - b.x) < 1.5 and abs(a.y - b.y) < 1.5
