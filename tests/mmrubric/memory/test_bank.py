"""Gap arithmetic and the bank of SibylSense (arXiv 2602.20751)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import Criterion, InputError
from mmrubric.memory import Bank, Finding
from mmrubric.memory import gap as g

NAN = float("nan")


def finding(text, alpha, query="q", category="general", valid=True, specific=False):
    criterion = Criterion(id="item", text=text, category=category)
    return Finding(criterion, alpha, query, valid, specific)


def filled(*items, **options) -> Bank:
    """A bank of (text, alpha, category) items."""
    bank = Bank(**options)
    bank.learn([finding(text, alpha, category=category) for text, alpha, category in items])
    return bank


WORDS = ["apple", "bridge", "candle", "desert", "engine", "forest", "garden", "harbour", "island", "jungle"]


def test_golden_gap_and_alpha():
    candidates = [[0.2], [0.4], [0.6]]
    assert g.gaps([0.967], candidates)[0] == pytest.approx(0.5670, abs=1e-4)
    assert g.gaps([29 / 30], candidates)[0] == pytest.approx(0.5667, abs=1e-4)
    # .567 - .1 x .3
    assert g.alphas([0.567], [0.3], 0.1)[0] == pytest.approx(0.5370, abs=1e-4)
    assert g.alphas([0.567], [0.3], 0.1, binary=True)[0] == 0.567


def test_unknown_scores_are_outside_the_gap():
    # .8 - mean(.2, .4); reference unknown; all candidates unknown.
    gaps = g.gaps([0.8, NAN, 0.9], [[0.2, 0.1, NAN], [NAN, 0.1, NAN], [0.4, 0.1, NAN]])
    np.testing.assert_allclose(gaps, [0.5, NAN, NAN])


def test_spread_is_the_mean_standard_deviation_of_repeats():
    # Criterion 0: sample 0 has .2 and .4 (ddof 1: .1414), sample 1 is steady; criterion 1 is steady.
    repeats = [[[0.2, 1.0], [0.5, 0.0]], [[0.4, 1.0], [0.5, 0.0]]]
    np.testing.assert_allclose(g.spread(repeats), [0.1414 / 2, 0], atol=1e-4)
    np.testing.assert_array_equal(g.spread(repeats[:1]), [0, 0])
    # Noise that nobody could measure is unknown, and so is what the criterion is worth.
    unknown = g.spread([[[0.5]], [[np.nan]]])
    assert np.isnan(unknown).all() and np.isnan(g.alphas([0.5], unknown, 0.1)).all()
    assert g.is_binary([0, 1, NAN]) and not g.is_binary([0.0, 0.99])


def test_preference_accuracy():
    assert g.preference_accuracy([0.3, 0.7], [0.3, 0.7], [1, 2]) == 0.5
    # Weight 3: won; weight 1: lost; weight 2: tie; weight 9: unknown. (3 + 1) / 6.
    assert g.preference_accuracy([1, 0, 0.5, NAN], [0, 1, 0.5, 1], [3, 1, 2, 9]) == pytest.approx(4 / 6)
    assert np.isnan(g.preference_accuracy([NAN], [1], [1]))
    with pytest.raises(InputError, match="one length"):
        g.preference_accuracy([1, 0], [1], [1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.lists(st.floats(0, 1), min_size=6, max_size=6))
@settings(max_examples=30, deadline=None)
def test_preference_accuracy_of_the_other_side_is_the_rest(ours, theirs):
    theirs, weights = theirs[: len(ours)], np.arange(1, len(ours) + 1)
    one, other = g.preference_accuracy(ours, theirs, weights), g.preference_accuracy(theirs, ours, weights)
    assert one + other == pytest.approx(1)


def test_near_duplicates_are_one_item_with_a_running_mean():
    bank = filled(("Three red apples are visible.", 0.6, "count"))
    assert not bank.learn([finding("three RED apples are visible", 0.2, query="r")])
    assert bank.learn([finding("Two red apples are visible.", 0.5)]), "another number is another item"
    item = bank.items[0]
    # (.6 + .2) / 2
    assert (item.mean, item.count, item.evidence) == (pytest.approx(0.4), 2, ("q", "r"))
    assert bank.version == 3 and [i.criterion.id for i in bank.items] == ["item", "item_2"]
    moving = filled(("A tree is visible.", 0.6, "x"), ema=0.3)
    moving.learn([finding("A tree is visible.", 0.1)])
    assert moving.items[0].mean == pytest.approx(0.6 + 0.3 * (0.1 - 0.6))


def test_what_is_not_valid_does_not_enter_but_updates():
    bank = filled(("A tree is visible.", 0.6, "x"))
    assert bank.learn([finding("A lake is visible.", 0.9, valid=False)]) == []
    bank.learn([finding("A tree is visible.", 0.0, valid=False)])
    assert len(bank) == 1 and bank.items[0].mean == pytest.approx(0.3)


def test_beyond_capacity_the_retired_then_the_lowest_leave():
    bank = filled(*((f"The {word} is visible.", 0.1 * n, "x") for n, word in enumerate(WORDS[:4], 1)), capacity=4)
    bank.rescore("item_4", 0.9, retired=True)
    bank.learn([finding("A lamp is visible.", 0.5)])
    assert "The desert is visible." not in [item.criterion.text for item in bank.items], "retired, though it was best"
    bank.learn([finding("A door is visible.", 0.6)])
    assert [item.mean for item in bank.items] == pytest.approx([0.2, 0.3, 0.5, 0.6])


def test_a_valid_finding_brings_a_retired_item_back():
    bank = filled(("A tree is visible.", 0.6, "x"))
    bank.rescore("item", 0.0, retired=True)
    assert not bank.item("item").usable and bank.item("item").mean == pytest.approx(0.3)
    bank.learn([finding("A tree is visible.", 0.0, valid=False)])
    assert bank.item("item").retired
    bank.learn([finding("A tree is visible.", 0.8)])
    assert bank.item("item").usable
    with pytest.raises(InputError, match="no item 'x'; known: item"):
        bank.item("x")


def test_a_criterion_bound_to_one_query_waits_for_a_second():
    bank = Bank()
    bank.learn([finding("It mentions 12.5 mg.", 0.9, specific=True), finding("It names the drug.", 0.4)])
    assert [item.criterion.text for item in bank.retrieve().items] == ["It names the drug."]
    other = Bank()
    other.learn([finding("It mentions 12.5 mg.", 0.9, specific=True)])
    other.learn([finding("It mentions 12.5 mg.", 0.9, query="another", specific=True)])
    assert len(other.retrieve().high) == 1 and not other.drop_unconfirmed()
    assert [item.criterion.text for item in bank.drop_unconfirmed()] == ["It mentions 12.5 mg."] and len(bank) == 1


def test_retrieval_takes_the_best_of_every_category_in_turn_and_some_to_avoid():
    bank = filled(
        ("The apple is visible.", 0.9, "object"),
        ("The bridge is visible.", 0.8, "object"),
        ("The candle is visible.", 0.7, "object"),
        ("The desert looks hot.", 0.3, "style"),
        ("The engine is a picture.", 0.2, "general"),
    )
    bank.learn([finding("The engine is a picture.", -0.6), finding("The apple is visible.", 0.9)])
    got = bank.retrieve(k=4, low=1)
    texts = [item.criterion.text for item in got.high]
    assert texts == ["The apple is visible.", "The desert looks hot.", "The bridge is visible."]
    assert [item.criterion.text for item in got.low] == ["The engine is a picture."]
    assert len(bank.retrieve(k=5, low=0).items) == 5, "too few good ones leave room for bad ones"
    assert bank.retrieve(k=0, low=0).items == () and Bank().retrieve().items == ()


items = st.lists(
    st.tuples(
        st.sampled_from([f"The {word} is visible." for word in WORDS]),
        st.floats(-1, 1),
        st.sampled_from(["a", "b", "c"]),
        st.booleans(),
    ),
    max_size=25,
)


@given(items, st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_save_and_load_give_identical_retrieval(tmp_path_factory, rows, k, low):
    bank = Bank("memory/1 model", capacity=8, ema=0.3)
    for number, (text, alpha, category, specific) in enumerate(rows):
        bank.learn([finding(text, alpha, f"q{number % 3}", category, specific=specific)])
    path = tmp_path_factory.mktemp("bank") / "bank.jsonl"
    bank.save(path)
    loaded = Bank.load(path)
    got = bank.retrieve(k, low)
    assert loaded.retrieve(k, low) == got == bank.retrieve(k, low)
    assert (loaded.version, loaded.generator, loaded.capacity, loaded.ema) == (bank.version, bank.generator, 8, 0.3)
    assert loaded.items == bank.items and len(bank) <= 8
    ids = [item.criterion.id for item in got.items]
    shown = sum(item.confirmed for item in bank.items)
    assert len(set(ids)) == len(ids) == min(k, shown)


def test_a_broken_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "bank.jsonl"
    filled(("A tree is visible.", 0.6, "x")).save(path)
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["bank"] == 1
    path.write_text(lines[0] + "\n" + lines[1].replace('"mean"', '"meen"'))
    with pytest.raises(InputError, match="line 2"):
        Bank.load(path)
    path.write_text(lines[0].replace('"bank": 1', '"bank": 2'))
    with pytest.raises(InputError, match="format 2"):
        Bank.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        Bank.load(tmp_path / "none.jsonl")


@pytest.mark.parametrize("options", [{"capacity": 0}, {"ema": 0.0}, {"ema": 2.0}])
def test_bad_options(options):
    with pytest.raises(InputError):
        Bank(**options)
