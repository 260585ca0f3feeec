import pytest
import torch
from torch import nn

from pipelines.shapes.muon import UPDATE_RMS, Muon, muon_and_adamw, orthogonal


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 12, 5), (2, 5, 12)])
def test_orthogonal_keeps_the_singular_vectors_and_brings_the_values_near_one(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = orthogonal(x)
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    inside = u.mT @ made @ vh.mT
    values = inside.diagonal(dim1=-2, dim2=-1)
    assert (inside - torch.diag_embed(values)).abs().max() < 1e-4
    assert values.min() > 0.3 and values.max() < 1.3
    torch.testing.assert_close(orthogonal(7.0 * x), made)  # the gradient's scale does not matter
    torch.testing.assert_close(orthogonal(x.mT), made.mT)


def test_first_step_of_muon_by_hand():
    weight = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    weight.grad = torch.tensor([[3.0, 0.0], [0.0, -4.0]])
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    # momentum 0.95 scales the first gradient by a constant, which the orthogonal direction forgets
    direction = orthogonal(torch.tensor([[[3.0, 0.0], [0.0, -4.0]]]))[0]
    assert direction[0, 0] > 0 > direction[1, 1]
    expected = 0.95 * torch.eye(2) - 0.1 * UPDATE_RMS * 2**0.5 * direction
    torch.testing.assert_close(weight.data, expected)


def test_every_parameter_has_one_optimizer_and_only_matrices_that_map_activations_have_muon():
    with torch.random.fork_rng():
        module = nn.ModuleDict({"table": nn.Embedding(5, 4), "linear": nn.Linear(4, 3), "conv": nn.Conv2d(1, 2, 2)})
    muon, adamw = muon_and_adamw(module, 1e-3)
    mine = [p for group in muon.param_groups for p in group["params"]]
    rest = [p for group in adamw.param_groups for p in group["params"]]
    assert [id(p) for p in mine] == [id(module["linear"].weight)]
    assert {id(p) for p in mine + rest} == {id(p) for p in module.parameters()}
    assert len(mine + rest) == len(list(module.parameters()))


def test_muon_refuses_what_is_not_a_matrix():
    with pytest.raises(ValueError, match=r"matrices.*\[3\]"):
        Muon([nn.Parameter(torch.zeros(3))], lr=0.1)
