import numpy as np
import pytest

from mmrubric import generators
from mmrubric.errors import InputError
from mmrubric.shapes import (
    COLOURS,
    Item,
    Scene,
    Word,
    draw_prompts,
    draw_specs,
    holds,
    near_miss,
    parse,
    render,
    seen_of,
)
from mmrubric.shapes import scene_for as make_scene
from mmrubric.shapes.checks import SeenItem, related
from mmrubric.shapes.grammar import KINDS, enumerate_specs
from mmrubric.shapes.sampling import changes_of
from mmrubric.shapes.world import BACKGROUNDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_reads_back_as_the_spec_that_wrote_it(kind):
    specs = list(enumerate_specs(kind))
    for spec in specs[:: max(1, len(specs) // 500)]:
        assert spec.kind == kind
        assert parse(spec.text) == spec


def test_splits_share_no_combination():
    combinations = {split: {s.combination for s in draw_specs(split, 1500, seed=3)} for split in ("train", "heldout")}
    assert combinations["train"] and combinations["heldout"]
    assert not combinations["train"] & combinations["heldout"]


def test_drawn_prompts_are_distinct_and_seeded():
    prompts = draw_prompts("heldout", 400)
    assert len({p.text for p in prompts}) == len({p.id for p in prompts}) == 400
    assert prompts == draw_prompts("heldout", 400)
    assert prompts != draw_prompts("heldout", 400, seed=1)
    kinds = {parse(p.text).kind for p in prompts}
    assert kinds == set(KINDS)


def test_more_prompts_than_the_split_has_is_an_error():
    with pytest.raises(InputError, match="at most"):
        draw_prompts("heldout", 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "a photo of a dog",
        "a red circle",
        "a red circle and a blue circle on a white background",
        "five red circles on a white background",
        'the word "GO" in mauve on a white background',
        "",
    ],
)
def test_prompt_outside_the_grammar_says_what_a_prompt_looks_like(text):
    with pytest.raises(InputError, match="three small blue squares"):
        parse(text)


def test_render_puts_the_right_colour_at_the_right_place():
    # A large square of radius 10 is 18 px wide: at (20, 40) it covers x 11..29, y 31..49.
    scene = Scene("gray", (Item("square", "red", 20, 40, 10),))
    pixels = render(scene)
    assert pixels.shape == (64, 64, 3) and pixels.dtype == np.uint8
    assert tuple(pixels[40, 20]) == COLOURS["red"]
    assert tuple(pixels[33, 13]) == COLOURS["red"] and tuple(pixels[29, 20]) == BACKGROUNDS["gray"]
    red = (pixels == COLOURS["red"]).all(-1).sum()
    assert red == 18 * 18


def test_areas_of_shapes_follow_their_outline():
    # Radius 10: circle pi r^2 = 314, triangle base 22 x height 20 / 2 = 220, cross 2 x 20 x 6.8 - 6.8^2 = 226.
    # PIL paints end pixels too, half a fine pixel (1/8 px) beyond the outline: + perimeter / 8, that is
    # 62.8 / 8 = 8, (22 + 2 x 22.8) / 8 = 8 and (4 x 6.8 + 8 x 6.6) / 8 = 10.
    for shape, area in {"circle": 322, "triangle": 228, "cross": 236}.items():
        pixels = render(Scene("black", (Item(shape, "yellow", 32, 32, 10),))).astype(float)
        share = (pixels[..., 0] - BACKGROUNDS["black"][0]) / (COLOURS["yellow"][0] - BACKGROUNDS["black"][0])
        assert share.sum() == pytest.approx(area, rel=0.03)


def test_word_is_drawn_in_its_colour_only():
    pixels = render(Scene("white", word=Word("TEA", "blue", 32, 32)))
    values = {tuple(v) for v in pixels.reshape(-1, 3)}
    assert values == {COLOURS["blue"], BACKGROUNDS["white"]}


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_scenes_satisfy_every_criterion_of_their_prompt(split):
    rng = np.random.default_rng(0)
    generator = generators.build("shapes")
    for spec in draw_specs(split, 150):
        rubric = generator.generate_sync(spec.text)
        assert 4 <= len(rubric.criteria) <= 10
        seen = seen_of(make_scene(spec, rng))
        assert all(holds(criterion.arguments, seen) is True for criterion in rubric.criteria)


def test_near_misses_fail_the_changed_criterion_and_keep_the_others():
    rng = np.random.default_rng(0)
    generator = generators.build("shapes")
    failing = {
        "colour": {"colour"},
        "background": {"background"},
        "size": {"size"},
        "count": {"count"},
        "relation": {"relation"},
        "word": {"text"},
        "word_colour": {"writing_colour"},
    }
    for spec in draw_specs("train", 200):
        rubric = generator.generate_sync(spec.text)
        for change in changes_of(spec):
            seen = seen_of(near_miss(spec, change, rng))
            failed = {c.arguments["check"] for c in rubric.criteria if not holds(c.arguments, seen)}
            if change == "shape":
                assert {"object", "nothing_else"} <= failed
            else:
                assert failed == failing[change]


def test_relation_needs_its_axis_to_dominate_and_a_margin():
    origin = SeenItem("circle", "red", "small", 30, 30)

    def at(x, y):
        return SeenItem("square", "blue", "small", x, y)

    assert related("left of", origin, at(34, 30))
    assert not related("left of", origin, at(33.9, 30))
    assert not related("left of", origin, at(36, 37))
    assert related("above", origin, at(36, 37))
    assert related("below", origin, at(30, 20)) and related("right of", origin, at(20, 30))


def test_question_about_nothing_is_no_unless_it_speaks_only_of_what_is_there():
    empty = seen_of(Scene("white"))
    colour = {"check": "colour", "shape": "circle", "colour": "red"}
    assert holds(colour, empty) is False
    assert holds({**colour, "if_any": True}, empty) is None
    assert holds({"check": "writing_colour", "colour": "red"}, empty) is False


def test_unknown_check_and_missing_argument_are_named():
    with pytest.raises(InputError, match=r"unknown check 'size_of'.*known: object"):
        holds({"check": "size_of"}, seen_of(Scene("white")))
    with pytest.raises(InputError, match="'count' needs the argument 'number'"):
        holds({"check": "count"}, seen_of(Scene("white")))


def test_rubric_generator_refuses_what_it_would_ignore():
    with pytest.raises(InputError, match="takes a prompt only"):
        generators.build("shapes").generate_sync("a red circle on a white background", source=[b"png"])
