"""Pooling what several writers wrote."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.generators import build
from mmrubric.generators.fusion import Item, clashes, joined_to_earlier, pooled, settled, united
from tests.mmrubric.generators.scripted import Scripted

TEXTS = [
    "A table is visible.",
    "A wooden table is visible.",
    "a wooden TABLE is visible",
    "Exactly two cats are visible.",
    "Exactly three cats are visible.",
    "The cup is red.",
    "The cup is blue.",
    'The sign reads "OPEN".',
]


def item(text, *sources, weight=1.0):
    return Item(text, "object", weight, frozenset(sources))


def support(item):
    return item.support


ITEMS = st.lists(
    st.builds(
        lambda text, source, weight: Item(text, "object", weight, frozenset({source})),
        st.sampled_from(TEXTS),
        st.sampled_from("abcd"),
        st.sampled_from([1.0, 2.0, 3.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(ITEMS, st.data())
@settings(max_examples=60, deadline=None)
def test_the_pool_does_not_depend_on_the_order_of_its_items(items, data):
    shuffled = data.draw(st.permutations(items))
    one, two = pooled(items).items, pooled(shuffled).items
    assert one == two
    assert settled(one, clashes(one), support) == settled(two, clashes(two), support)


def test_repeats_are_united_with_all_sources_and_the_highest_weight():
    made = pooled([item("A cup.", "a", weight=1), item(" a  CUP ", "b", weight=3)]).items
    assert len(made) == 1 and made[0].sources == {"a", "b"} and made[0].weight == 3


def test_the_vaguer_one_of_two_repeats_goes():
    made = pooled([item("A table is visible.", "a"), item("A wooden table is visible.", "b")])
    assert [(one.text, one.sources) for one in made.items] == [("A wooden table is visible.", {"a", "b"})]
    # In a given order the earlier one stays, and a stricter one is new.
    kept = joined_to_earlier([item("A table is visible.", "a"), item("A wooden table is visible.", "b")])
    assert len(kept.items) == 2


def test_numbers_and_colours_are_never_united():
    assert len(pooled([item(text, "a") for text in TEXTS[3:7]]).items) == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Thirteen candles are lit.", "Fourteen candles burn."),
        ("The second cup is red.", "The third of the cups is red."),
        ("It is 5 °C.", "The display shows -5 °C."),
        ("The sign reads '!'.", "The text '?' is on the sign."),
        ("The door faces east.", "The door looks to the west."),
    ],
)
def test_other_facts_are_never_united_whoever_says_so(first, second):
    everything_is_the_same = Scripted([{"same": [[1, 2]], "conflicts": []}])
    generator = build("multi_role", client=everything_is_the_same)
    pool, _ = asyncio.run(united(generator, "a prompt", pooled([item(first, "a"), item(second, "b")])))
    assert len(pool.items) == 2 and len(everything_is_the_same.asked) == 1


def test_wording_shows_contradictions():
    items = [item("The cup is red.", "a"), item("The cup is blue.", "b"), item("A cup is visible.", "c")]
    assert clashes(items) == {(0, 1)} and clashes(items[:1]) == set()
    # There may be two lamps, so nothing is lost by wording alone.
    assert clashes([item(f"A lamp stands {side} of the bed.", "a") for side in ("left", "right")]) == set()


@pytest.mark.parametrize(
    ("supports", "conflicts", "kept"),
    [
        ((2, 1), [(0, 1)], [0]),
        ((1, 1), [(0, 1)], []),
        # The strong one removes the middle one first, which then excludes nothing any more.
        ((3, 2, 2), [(0, 1), (1, 2)], [0, 2]),
        # Three equals in a chain all go: none of them is stronger.
        ((2, 2, 2), [(0, 1), (1, 2)], []),
        ((2, 2, 1), [(0, 1)], [2]),
    ],
)
def test_support_settles_contradictions(supports, conflicts, kept):
    items = [item(f"Thing {n}.", *"abc"[:count]) for n, count in enumerate(supports)]
    made = settled(items, conflicts, support)
    assert list(made.items) == [items[index] for index in kept] and made.notes
