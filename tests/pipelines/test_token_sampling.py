import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pipelines import token_sampling
from pipelines.token_sampling import cut, draw, guide, log_prob_of, over_positions, to_scores, uniforms

LOG = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625]).log()
"""Scores whose softmax is known."""


def kept(scores: torch.Tensor) -> list[int]:
    return (scores > -torch.inf).nonzero().flatten().tolist()


def test_guidance_by_hand():
    assert guide(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), 5.0).tolist() == [6.0, -8.0]
    halves = guide(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2.0], dtype=torch.bfloat16), 1.01)
    # in bfloat16 this would be 2.015625
    assert halves.dtype == torch.float32 and halves.item() == pytest.approx(2.01)


def test_tf09_the_temperature_divides_logits_and_forbidden_tokens_have_no_probability():
    scores = to_scores(torch.tensor([1.0, 2.0, 3.0]), 0.5, torch.tensor([True, False, True]))
    assert scores.tolist() == [2.0, -torch.inf, 6.0]
    logs = log_prob_of(scores.expand(2, 3), torch.tensor([0, 2])).exp()
    assert logs.tolist() == pytest.approx([1 / (1 + torch.e**4), 1 / (1 + torch.e**-4)])


@pytest.mark.parametrize(("top_k", "top_p", "tokens"), [
    (0, 1.0, [0, 1, 2, 3, 4]),
    (2, 1.0, [0, 1]),
    (4, 1.0, [0, 1, 2, 3, 4]),  # the last two tie
    (9, 1.0, [0, 1, 2, 3, 4]),
    (0, 0.4, [0]),
    (0, 0.5, [0]),
    (0, 0.51, [0, 1]),
    (0, 0.8, [0, 1, 2]),
    # of the two that top-k leaves, the first has 2/3 of the probability
    (2, 0.6, [0]),
    (2, 0.7, [0, 1]),
])  # fmt: skip
def test_cuts_by_hand(top_k, top_p, tokens):
    assert kept(cut(LOG, top_k, top_p)) == tokens


def test_a_cut_keeps_the_token_that_was_drawn():
    scores = cut(LOG.expand(2, 5), top_k=1, keep=torch.tensor([3, 0]))
    assert kept(scores[0]) == [0, 3] and kept(scores[1]) == [0]
    # renormalised over what stays
    assert log_prob_of(scores, torch.tensor([3, 0])).exp().tolist() == pytest.approx([0.0625 / 0.5625, 1.0])


SCORES = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=12)


@given(scores=SCORES, top_k=st.integers(0, 14), top_p=st.floats(0.01, 1.0), data=st.data())
@settings(deadline=None, max_examples=150)
def test_what_a_cut_leaves(scores, top_k, top_p, data):
    plain = torch.tensor(scores)
    drawn = data.draw(st.integers(0, len(scores) - 1))
    out = cut(plain, top_k, top_p, keep=torch.tensor(drawn))
    stays = out > -torch.inf
    assert stays[drawn] and stays[plain.argmax()]
    assert torch.equal(out[stays], plain[stays])
    without = cut(plain, top_k, top_p)
    inside, outside = plain[without > -torch.inf], plain[without == -torch.inf]
    if len(outside):
        assert inside.min() >= outside.max()
    if top_k and top_p == 1.0:
        assert len(inside) >= min(top_k, len(scores))
    if not top_k:
        assert plain.softmax(0)[without > -torch.inf].sum() >= top_p - 1e-5


@given(scores=SCORES, uniform=st.floats(0, 1, exclude_max=True), top_k=st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_drawn_tokens_are_inside_the_cut(scores, uniform, top_k):
    left = cut(torch.tensor([scores]), top_k)
    token = int(draw(left, torch.tensor([uniform], dtype=torch.float64)))
    probabilities = left.softmax(-1)[0].double()
    assert left[0, token] > -torch.inf
    below = float(probabilities[:token].sum())
    assert below - 1e-6 <= uniform * float(probabilities.sum()) <= below + float(probabilities[token]) + 1e-6


def test_drawing_follows_the_probabilities():
    tokens = draw(LOG.expand(4000, 5), uniforms([7], 4000)[0])
    shares = torch.bincount(tokens, minlength=5) / 4000
    # four standard errors of a share of 1/2
    assert (shares - LOG.exp()).abs().max() < 0.032


def test_uniform_numbers_belong_to_their_row():
    both = uniforms([3, 8], 5)
    assert both.dtype == torch.float64 and torch.equal(uniforms([8], 5)[0], both[1])
    assert torch.equal(uniforms([3], 2)[0], both[0, :2])


def test_positions_in_chunks_give_the_same_values_and_gradients():
    generator = torch.Generator().manual_seed(0)
    hidden, tokens = torch.randn(2, 7, 4, generator=generator), torch.randint(6, (2, 7), generator=generator)
    head = torch.randn(4, 6, generator=generator, requires_grad=True)
    sizes = []

    def function(hidden, tokens):
        sizes.append(hidden.shape[1])
        return log_prob_of(hidden @ head, tokens)

    whole = function(hidden, tokens)
    (gradient,) = torch.autograd.grad(whole.square().sum(), head)
    sizes.clear()
    parts = over_positions(function, [hidden, tokens], 3)
    assert sizes == [3, 3, 1]
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.square().sum(), head)[0], gradient)
    assert len(sizes) == 6  # each slice was computed again
    with torch.no_grad():
        torch.testing.assert_close(over_positions(function, [hidden, tokens], 3), whole.detach())


def test_a_chunk_has_at_least_one_position():
    assert token_sampling.chunk_size(8, 1 << 16) == 32
    assert token_sampling.chunk_size(1 << 10, 1 << 20) == 1
