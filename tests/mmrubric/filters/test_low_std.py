"""Groups whose rewards hardly differ are not trained on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import InputError, filters
from mmrubric.group import Group

NAN = float("nan")


def kept(rewards: list[float], **options: float) -> bool:
    return bool(filters.build("low_std", **options).keep([Group(rewards=np.array(rewards))])[0])


def test_deviation_is_that_of_a_sample() -> None:
    # of .4 and .5: |difference| / sqrt(2) = .0707 with ddof 1, and .05 with ddof 0
    assert kept([0.4, 0.5], min_std=0.07) and not kept([0.4, 0.5], min_std=0.071)
    assert not kept([0.4, 0.46]) and kept([0.4, 0.48])  # .0424 and .0566 around the default .05
    # one verdict of one sample, 12 criteria, 8 samples: (1/12) / sqrt(8) = .0295
    one_off = [1.0] * 7 + [11 / 12]
    assert not kept(one_off) and kept(one_off, min_std=0.029)


def test_unknown_rewards_are_left_out() -> None:
    assert kept([0.0, NAN, 1.0]) and not kept([0.5, NAN, 0.5])
    assert not kept([0.5, NAN]) and not kept([NAN, NAN], min_std=0.0)


def test_groups_are_told_apart() -> None:
    groups = [Group(rewards=np.array(r)) for r in ([0.0, 1.0], [0.5, 0.5], [0.2, 0.4])]
    assert filters.build("low_std").keep(groups).tolist() == [True, False, True]


def test_input_is_checked() -> None:
    with pytest.raises(InputError, match="low_std: min_std"):
        filters.build("low_std", min_std=-1.0)
    with pytest.raises(InputError, match="one reward per sample"):
        filters.build("low_std").keep([Group(rewards=np.zeros((2, 2)))])
    with pytest.raises(InputError, match=r"needs Group\.rewards"):
        filters.build("low_std").keep([Group(size=2)])
    with pytest.raises(InputError, match="keeps no state"):
        filters.build("low_std").load_state_dict({"streak": {}})


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.3, 1.0, NAN]), min_size=1, max_size=7),
    st.permutations(range(7)),
    st.sampled_from([0.0, 0.05, 0.3]),
)
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_samples_does_not_matter(rewards: list[float], order: list[int], min_std: float) -> None:
    assert kept(rewards, min_std=min_std) == kept([rewards[i] for i in order if i < len(rewards)], min_std=min_std)
