import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.seeds import NoiseStream, derive, eval_seed, row_seed


def test_tf29_seeds_differ_by_step_row_and_sample():
    seeds = [row_seed(0, step, row, sample) for step in range(5) for row in range(8) for sample in range(8)]
    # torch's CPU generator reads the low 32 bits
    assert len({s.noise & 0xFFFFFFFF for s in seeds}) == len({s.path & 0xFFFFFFFF for s in seeds}) == 320
    assert not {s.noise for s in seeds} & {s.path for s in seeds}


def test_same_noise_shares_the_initial_noise_only():
    first, second = (row_seed(0, 3, 2, sample, same_noise=True) for sample in (0, 1))
    assert first.noise == second.noise and first.path != second.path
    assert first.noise != row_seed(0, 3, 1, 0, same_noise=True).noise


def test_evaluation_seeds_depend_on_seed_item_and_sample():
    seeds = {eval_seed(s, item, n) for s in (0, 1) for item in ("a", "b") for n in (0, 1)}
    assert len(seeds) == 8 and eval_seed(0, "a", 0) in seeds


def test_seeds_are_the_same_on_every_machine():
    # first 8 bytes of sha256("str:noise\x1fint:0\x1fint:1\x1fint:2\x1fint:3"), halved
    assert derive("noise", 0, 1, 2, 3) == 5273387154314113725
    assert derive(12, 3) != derive(1, 23) and derive("1") != derive(1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=8), st.data())
def test_noise_does_not_depend_on_the_split_into_batches(seeds, data):
    cut = data.draw(st.integers(1, len(seeds) - 1))
    whole, left, right = (NoiseStream(part, (2, 3)) for part in (seeds, seeds[:cut], seeds[cut:]))
    for _ in range(2):
        assert torch.equal(whole.draw(), torch.cat([left.draw(), right.draw()]))


def test_noise_equals_what_diffusers_draws():
    noise = NoiseStream([5], (4, 8, 8)).draw()
    assert torch.equal(noise, torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(5)))
