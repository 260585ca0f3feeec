import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError
from pipelines.policy import Sampler, Window
from pipelines.windows import at, stochastic_steps, window_start


def sampler(steps=10, **window):
    return Sampler(steps=steps, noise="sde", window=Window(**window) if window else None)


def test_without_a_window_every_step_but_the_last():
    assert stochastic_steps(sampler(5)) == [0, 1, 2, 3]
    assert stochastic_steps(sampler(5, size=0)) == [0, 1, 2, 3]
    assert stochastic_steps(Sampler(steps=5)) == []
    assert stochastic_steps(Sampler(steps=1, noise="sde")) == []


def test_fixed_window():
    assert stochastic_steps(sampler(10, size=3, lo=2)) == [2, 3, 4]


def test_random_window_is_drawn_from_seed_plus_step():
    window = Window(size=3, strategy="random", lo=1, hi=8)
    for step in range(20):
        start = window_start(window, 10, seed=7, step=step)
        assert start == random.Random(7 + step).randint(1, 5)
        assert stochastic_steps(at(sampler(10, **window.model_dump()), 7, step)) == [
            start,
            start + 1,
            start + 2,
        ]


def test_progressive_window():
    # 9 trainable steps, size 4: starts 0, 2, 4 and then stays at 5 = 9 - 4
    window = Window(size=4, strategy="progressive", stride=2, iters_per_window=25)
    starts = [window_start(window, 10, 0, step) for step in (0, 24, 25, 50, 75, 10_000)]
    assert starts == [0, 0, 2, 4, 5, 5]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(3, 30), st.integers(1, 5), st.integers(0, 5),
    st.sampled_from(["fixed", "random", "progressive"]), st.integers(1, 4), st.integers(0, 10_000),
)  # fmt: skip
def test_tf26_window_is_never_empty_at_the_end_of_the_schedule(steps, size, lo, strategy, stride, step):
    if lo + size > steps - 1:
        with pytest.raises(InputError, match="do not fit"):
            window_start(Window(size=size, lo=lo, strategy=strategy), steps, 0, step)
        return
    settled = at(sampler(steps, size=size, lo=lo, strategy=strategy, stride=stride, iters_per_window=1), 0, step)
    chosen = stochastic_steps(settled)
    assert len(chosen) == size and chosen[0] >= lo and chosen[-1] < steps - 1


def test_hi_beyond_the_last_step_is_cut():
    assert stochastic_steps(sampler(5, size=0, lo=2, hi=99)) == [2, 3]


def test_a_moving_window_must_be_resolved_first():
    with pytest.raises(InputError, match=r"windows\.at"):
        stochastic_steps(sampler(10, size=2, strategy="random"))
