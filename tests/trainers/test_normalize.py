"""The torch normaliser agrees with the numpy one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mmrubric.advantage import masked_standardize as in_numpy
from mmrubric.errors import InputError
from trainers.normalize import masked_standardize


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.one_of(
        st.sampled_from([0.0, 0.3, 1.0, math.nan]), st.floats(-10, 10))),
    st.sampled_from([None, 0, 1, -1, (0, 1)]),
    st.sampled_from([0, 1]),
    st.integers(0, 2**36 - 1),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_agrees_with_numpy(values, axes, ddof, bits):
    mask = np.array([bits >> i & 1 for i in range(values.size)], bool).reshape(values.shape)
    expected = in_numpy(values, mask, axes, ddof)
    ours = masked_standardize(torch.from_numpy(values), torch.from_numpy(mask), axes, ddof).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)
    assert ((ours == 0) == (expected == 0)).all()


def test_by_hand():
    # R = (1, .8, .8, .4): mean .75, squares .0625 + .0025 + .0025 + .1225 = .19, std sqrt(.19 / 3) = .25166
    rewards = torch.tensor([[1.0, 0.8, 0.8, 0.4]], dtype=torch.float64)
    out = masked_standardize(rewards, axes=1, eps=0.0)
    assert out[0].tolist() == pytest.approx([0.9934, 0.1987, 0.1987, -1.3908], abs=1e-4)


def test_tied_float32_rewards_are_exactly_zero():
    assert (masked_standardize(torch.full((12,), 0.3)) == 0).all()
    assert masked_standardize(torch.full((12,), 0.3)).dtype == torch.float32


def test_infinity_is_refused():
    with pytest.raises(InputError, match="infinity"):
        masked_standardize(torch.tensor([1.0, math.inf]))
