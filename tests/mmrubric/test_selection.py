"""Dynamic rollout selection (RubricRL)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import InputError
from mmrubric.selection import select

NAN = float("nan")


def test_the_best_are_always_kept_and_the_rest_is_random() -> None:
    rewards = [0.6, 1, 0.2, 0.8, 0.8, 0.4, 0, 1]
    fills = set()
    for seed in range(200):
        chosen = select(rewards, keep=4, best=2, seed=seed)
        assert set(chosen.best) == {1, 7} and len(chosen.rows) == 4 and not chosen.skipped
        fills.add(frozenset(chosen.random))
    # 15 ways to draw 2 of the other 6, each hit about 13 times.
    assert len(fills) == 15
    assert frozenset({6, 3}) in fills


def test_ties_are_broken_by_the_seed() -> None:
    kept = {select([1.0] * 6, keep=2, best=2, seed=seed).best for seed in range(50)}
    assert len({frozenset(pair) for pair in kept}) > 8


def test_unknown_samples_are_never_kept() -> None:
    assert list(select([NAN, 0.5, NAN, 1, 0], keep=3, best=1).rows) == [1, 3, 4]
    few = select([NAN, 0.5, NAN, 1, 0], keep=4, best=1)
    assert list(few.rows) == [1, 3, 4] and not few.skipped
    assert select([NAN, 0.5, NAN], keep=2, best=1).skipped


def test_limits_of_the_mix() -> None:
    rewards = [0.1, 0.9, 0.5, 0.7]
    assert list(select(rewards, keep=4, best=2).rows) == [0, 1, 2, 3]
    assert list(select(rewards, keep=2, best=2).rows) == [1, 3]
    assert len(select(rewards, keep=2, best=0).rows) == 2


def test_a_flat_group_is_rescued_by_the_minimum() -> None:
    rewards = [1, 1, 1, 1, 1, 1, 0.5, 0]
    flat = [
        s for s in range(200) if np.ptp(np.take(rewards, select(rewards, 3, 2, s, rescue_variance=False).rows)) == 0
    ]
    assert flat
    for seed in flat:
        chosen = select(rewards, 3, 2, seed)
        assert chosen.rescued and 7 in chosen.random and len(set(chosen.rows)) == 3
    # Without a random pick to swap, and when the whole set is flat, nothing changes.
    assert not select(rewards, 2, 2).rescued
    assert not select([1, 1, 1, 1], 2, 1).rescued
    # K = 0 and only minima drawn: the maximum is what gives a signal.
    low = [0, 0, 0, 0, 0, 1]
    assert all(5 in select(low, 2, 0, seed).rows for seed in range(20))


def test_the_worst_are_kept_and_the_middle_is_random() -> None:
    rewards = [0.6, 1, 0.2, 0.8, 0.7, 0.4, 0, 0.9]
    fills = set()
    for seed in range(200):
        chosen = select(rewards, keep=5, best=2, seed=seed, worst=2)
        assert set(chosen.best) == {1, 7} and set(chosen.worst) == {6, 2} and len(chosen.rows) == 5
        fills.add(chosen.random)
    assert fills == {(0,), (3,), (4,), (5,)}
    extremes = select(rewards, keep=4, best=2, worst=2)
    assert list(extremes.rows) == [1, 2, 6, 7] and extremes.random == ()
    assert list(select(rewards, keep=2, best=0, worst=2).rows) == [2, 6]
    # too few are known: all of them, the best first
    few = select([NAN, 0.5, NAN, 1, NAN], keep=4, best=1, worst=3)
    assert few.best == (3,) and few.worst == (1,) and few.random == ()


def test_ties_among_the_worst_are_broken_by_the_seed() -> None:
    kept = {frozenset(select([1.0] + [0.0] * 5, keep=3, best=1, seed=seed, worst=2).worst) for seed in range(80)}
    assert len(kept) == 10  # all pairs of 5


def test_a_flat_group_of_worst_is_rescued_by_the_maximum() -> None:
    rewards = [0, 0, 0, 0, 0, 1]
    for seed in range(20):
        chosen = select(rewards, keep=3, best=0, seed=seed, worst=2)
        assert 5 in chosen.random and len(set(chosen.rows)) == 3


def test_worst_must_fit() -> None:
    for worst in (-1, 2):
        with pytest.raises(InputError, match=r"worst is -?\d; needs 0 <= worst <= keep - best \(3 - 2\)"):
            select([0.1, 0.9, 0.5, 0.7], keep=3, best=2, worst=worst)


@pytest.mark.parametrize(("keep", "best"), [(1, 1), (5, 2), (3, 4), (3, -1)])
def test_sizes_that_do_not_fit_are_refused(keep: int, best: int) -> None:
    with pytest.raises(InputError, match="needs"):
        select([0.1, 0.9, 0.5, 0.7], keep=keep, best=best)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.one_of(st.just(NAN), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=4, max_size=12),
    st.data(),
    st.text(),
)
def test_selection_properties(rewards: list[float], data: st.DataObject, seed: str) -> None:
    keep = data.draw(st.integers(2, len(rewards)))
    best = data.draw(st.integers(0, keep))
    worst = data.draw(st.integers(0, keep - best))
    chosen = select(rewards, keep, best, seed, worst=worst)
    assert chosen == select(rewards, keep, best, seed, worst=worst)
    known = [r for r in rewards if not np.isnan(r)]
    values = np.array(rewards)[chosen.rows]
    assert len(set(chosen.rows)) == len(chosen.rows) == min(keep, len(known))
    assert not np.isnan(values).any()
    # The K best values are among the kept ones.
    assert sorted(np.array(rewards)[list(chosen.best)], reverse=True) == sorted(known, reverse=True)[:best]
    # Of what is left, the worst values, in whatever order the samples came.
    left = sorted(known, reverse=True)[best:]
    assert sorted(np.array(rewards)[list(chosen.worst)]) == sorted(left[max(len(left) - worst, 0) :])
    order = data.draw(st.permutations(range(len(rewards))))
    other = select([rewards[i] for i in order], keep, best, seed, worst=worst)
    for part in ("best", "worst"):
        ours, theirs = (sorted(values[list(getattr(c, part))]) for c, values in (
            (chosen, np.array(rewards)), (other, np.array(rewards)[list(order)])
        ))  # fmt: skip
        assert ours == theirs
