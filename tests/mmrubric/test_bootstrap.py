"""Bootstrap intervals: known coverage, pairing, unknown values, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.bootstrap import bootstrap, known_pairs, paired_bootstrap
from mmrubric.errors import InputError


def test_constant_difference_has_no_width():
    # after = before + 0.25 for every prompt, so every resample gives exactly 0.25 when paired.
    before = np.array([0.0, 0.25, 0.5, 0.75])
    assert paired_bootstrap(before, before + 0.25, seed=0, resamples=200) == pytest.approx((0.25, 0.25, 0.25))


def test_against_the_normal_approximation():
    rng = np.random.default_rng(1)
    values = rng.normal(0.4, 0.2, 400)
    low, mid, high = bootstrap(values, seed=3, resamples=4000)
    # standard error of the mean: s / sqrt(400); 95 % of a normal lies within 1.96 of it
    half = 1.96 * values.std() / 20
    assert mid == pytest.approx(values.mean())
    assert (low, high) == (
        pytest.approx(mid - half, abs=0.1 * half),
        pytest.approx(mid + half, abs=0.1 * half),
    )


def test_pairing_narrows_the_interval():
    rng = np.random.default_rng(2)
    difficulty = rng.random(200)
    before, after = difficulty, difficulty + 0.05 + rng.normal(0, 0.01, 200)
    low, mid, high = paired_bootstrap(before, after, seed=0, resamples=1000)
    assert 0.045 < low < mid < high < 0.055


def test_unknown_is_neither_zero_nor_one():
    nan = np.nan
    # known means: before 1/1 and (0+1)/2 -> 2/3 over 3 known; after (1+0)/2 and 1/1 -> 2/3 over 3 known.
    # prompt 2 has nothing known after: left out of both.
    before = np.array([[1, nan], [0, 1], [0, 0]], float)
    after = np.array([[1, 0], [nan, 1], [nan, nan]], float)
    assert known_pairs(before, after).tolist() == [True, True, False]
    assert paired_bootstrap(before, after, seed=0, resamples=100).mid == pytest.approx(0.0)
    assert bootstrap([nan, 0.5, 1.0], seed=0, resamples=100).mid == pytest.approx(0.75)


def test_too_little_known_gives_nan_not_a_point():
    one = bootstrap([np.nan, 0.5], seed=0)
    assert one.mid == 0.5 and np.isnan(one.low) and np.isnan(one.high)
    assert all(np.isnan(v) for v in bootstrap([np.nan], seed=0))
    assert all(np.isnan(v) for v in paired_bootstrap([1.0, np.nan], [np.nan, 1.0], seed=0))
    assert all(np.isnan(v) for v in bootstrap([], seed=0))


def test_prompts_are_the_unit_not_images():
    # 20 prompts, 50 copies of one value each: the interval must be that of 20 values.
    values = np.random.default_rng(5).random(20)
    few = bootstrap(values, seed=0, resamples=2000)
    many = bootstrap(np.repeat(values[:, None], 50, axis=1), seed=0, resamples=2000)
    assert many == pytest.approx(few)


def test_coverage_is_near_nominal():
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(200):
        low, _, high = bootstrap(rng.random(60), seed=trial, resamples=300)
        hits += low <= 0.5 <= high
    # binomial(200, .95): mean 190, standard deviation 3.1
    assert 178 <= hits <= 199


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.one_of(st.floats(0, 1), st.just(np.nan))), min_size=2, max_size=20),
    st.integers(0, 2**31),
)
def test_deterministic_ordered_and_antisymmetric(pairs, seed):
    before, after = np.array(pairs, float).T
    first = paired_bootstrap(before, after, seed, resamples=100)
    assert np.array_equal(first, paired_bootstrap(before, after, seed, resamples=100), equal_nan=True)
    back = paired_bootstrap(after, before, seed, resamples=100)
    assert back.mid == pytest.approx(-first.mid, abs=1e-12, nan_ok=True)
    if not np.isnan(first.low):
        assert -1 <= first.low <= first.high <= 1
        assert (back.low, back.high) == (
            pytest.approx(-first.high, abs=1e-9),
            pytest.approx(-first.low, abs=1e-9),
        )


def test_large_inputs_are_drawn_in_chunks(monkeypatch):
    values = np.random.default_rng(0).random(50)
    whole = bootstrap(values, seed=9, resamples=500)
    monkeypatch.setattr("mmrubric.bootstrap._CHUNK", 777)
    assert bootstrap(values, seed=9, resamples=500) == whole


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_bootstrap([1.0, 0.0], [1.0], seed=0), "before has 2 prompts and after has 1"),
        (lambda: bootstrap(np.zeros((2, 2, 2)), seed=0), r"\[P, S\]"),
        (lambda: bootstrap([np.inf], seed=0), "infinite"),
        (lambda: bootstrap([1.0], seed=0, resamples=10), "at least 100"),
        (lambda: bootstrap([1.0], seed=0, level=95), "level"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
