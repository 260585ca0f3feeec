import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mmrubric.errors import InputError
from pipelines.samplers import Sampler, Window
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


def starts(steps, count, **window):
    """Start of the window at each of the first optimisation steps, run-length coded as (start, stay)."""
    runs = []
    for step in range(count):
        start = window_start(Window(**window), steps, 0, step)
        runs.append((start, runs.pop()[1] + 1) if runs and runs[-1][0] == start else (start, 1))
    return runs


def test_decay_stays_shorter_from_position_to_position():
    # 9 trainable steps, size 3: positions 0, 2, 4, 6; 10 iterations at 0, 4 at 6: 10 - 6 * (0, 2, 4, 6) / 6
    window = {"size": 3, "strategy": "decay", "stride": 2, "iters_per_window": 10, "min_iters": 4}
    assert starts(10, 30, **window) == [(0, 10), (2, 8), (4, 6), (6, 6)]  # at the end it stays
    assert starts(10, 28 + 10, **window, at_end="roll_back") == [(0, 10), (2, 8), (4, 6), (6, 4), (0, 10)]
    # a quarter where nothing is said, and rounded down: 9 - 7 * (0, 1, 2) / 2 = 9, 5.5, 2
    assert starts(6, 16, size=3, strategy="decay", iters_per_window=9) == [(0, 9), (1, 5), (2, 2)]
    assert starts(3, 7, size=2, strategy="decay", iters_per_window=3) == [(0, 7)]  # one position only


def test_exponential_decay_from_a_step_on():
    # 8 exp(-.5 max(0, l - 1)) = 8, 8, 4.85, 2.94, 1.79, rounded up
    window = {"size": 2, "strategy": "exp_decay", "iters_per_window": 8, "decay_rate": 0.5, "decay_from": 1}
    assert starts(7, 26 + 8, **window, at_end="roll_back") == [(0, 8), (1, 8), (2, 5), (3, 3), (4, 2), (0, 8)]


def test_overlap_is_what_windows_share():
    # size 4, of which 1 is shared: 3 further each time, and cut at 9 - 4 = 5
    assert starts(10, 6, size=4, strategy="progressive", overlap=1, iters_per_window=2) == [(0, 2), (3, 2), (5, 2)]
    assert starts(10, 4, size=4, strategy="progressive", overlap=0, iters_per_window=2) == [(0, 2), (4, 2)]
    assert starts(9, 3, size=4, strategy="progressive", overlap=3, iters_per_window=1) == [(0, 1), (1, 1), (2, 1)]


def test_roll_back_starts_again():
    rolled = starts(8, 9, size=3, strategy="progressive", stride=2, iters_per_window=1, lo=1, at_end="roll_back")
    assert rolled == [(1, 1), (3, 1), (4, 1)] * 3


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ({"size": 3, "stride": 2}, "stride is set but acts only with strategy"),
        ({"size": 3, "strategy": "random", "at_end": "roll_back"}, "at_end is set"),
        ({"size": 3, "strategy": "progressive", "min_iters": 2}, "min_iters is set but acts only with strategy decay"),
        (
            {"size": 3, "strategy": "decay", "decay_rate": 0.2},
            "decay_rate is set but acts only with strategy exp_decay",
        ),
        ({"size": 3, "strategy": "decay", "iters_per_window": 2, "min_iters": 3}, "above iters_per_window"),
        ({"size": 3, "strategy": "progressive", "overlap": 3}, "below window.size"),
        ({"size": 3, "strategy": "progressive", "overlap": 1, "stride": 2}, "say one thing"),
    ],
)
def test_what_would_not_act_is_refused(window, message):
    with pytest.raises(ValidationError, match=message):
        Window(**window)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(3, 30), st.integers(1, 5), st.integers(0, 5),
    st.sampled_from(["fixed", "random", "progressive", "decay", "exp_decay"]), st.integers(1, 4),
    st.sampled_from(["clamp", "roll_back"]), st.integers(0, 10_000),
)  # fmt: skip
def test_tf26_window_is_never_empty_at_the_end_of_the_schedule(steps, size, lo, strategy, stride, at_end, step):
    if lo + size > steps - 1:
        with pytest.raises(InputError, match="do not fit"):
            window_start(Window(size=size, lo=lo, strategy=strategy), steps, 0, step)
        return
    moving = strategy not in ("fixed", "random")
    how = {"stride": stride, "iters_per_window": 2, "at_end": at_end} if moving else {}
    settled = at(sampler(steps, size=size, lo=lo, strategy=strategy, **how), 0, step)
    chosen = stochastic_steps(settled)
    assert len(chosen) == size and chosen[0] >= lo and chosen[-1] < steps - 1


def test_hi_beyond_the_last_step_is_cut():
    assert stochastic_steps(sampler(5, size=0, lo=2, hi=99)) == [2, 3]


def test_a_moving_window_must_be_resolved_first():
    with pytest.raises(InputError, match=r"windows\.at"):
        stochastic_steps(sampler(10, size=2, strategy="random"))
