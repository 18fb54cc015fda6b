import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from avalanche_agcn.methods.agem import project
from avalanche_agcn.methods.ewc import QuadraticPenalty, fisher_diagonal
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss


def dot(a, b):
    return sum((x.double() * y.double()).sum() for x, y in zip(a, b))


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-4, 1.0, 1e4]))
def test_projected_gradient_has_no_part_against_the_reference(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (3,), (2, 2, 2)]
    g = [torch.randn(shape, generator=generator) for shape in shapes]
    r = [scale * torch.randn(shape, generator=generator) for shape in shapes]
    projected = project(g, r)
    if dot(g, r) >= 0:
        assert all(p is original for p, original in zip(projected, g))
    else:
        rounding = 1e-6 * (dot(g, g) * dot(r, r)).sqrt()
        assert dot(projected, r).abs() < rounding
        # The nearest such gradient: what was taken away is a multiple of the reference.
        removed = [original - p for original, p in zip(g, projected)]
        assert dot(removed, removed) * dot(r, r) == pytest.approx(float(dot(removed, r) ** 2), rel=1e-4)


def test_fisher_of_a_linear_model_is_the_mean_squared_gradient_written_down():
    """The gradient of one image's loss is (σ(Wx + b) − y) ⊗ x / annotated, and nothing where unlabelled."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3).double()
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    y = (torch.rand(7, 3, generator=generator) < 0.5).double()
    y[:4, 2] = torch.nan
    images = list(zip(x.split(1), y.split(1)))
    fisher = fisher_diagonal(model, PartialBCEWithLogitsLoss(), images)
    known = ~y.isnan()
    residual = torch.where(known, model(x).sigmoid().detach() - y, 0.0) / known.sum(1, keepdim=True)
    torch.testing.assert_close(fisher["bias"], residual.square().mean(0))
    torch.testing.assert_close(fisher["weight"], torch.einsum("ni,nj->nij", residual, x).square().mean(0))


def test_fisher_leaves_modes_gradients_and_statistics_as_they_were():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model[3].weight.requires_grad_(False)
    statistics = model[1].running_mean.clone()
    fisher = fisher_diagonal(model, PartialBCEWithLogitsLoss(), [(torch.randn(1, 4), torch.ones(1, 2))])
    assert model.training
    assert not model[1].training
    assert torch.equal(model[1].running_mean, statistics)
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert "3.weight" not in fisher


def test_gradient_of_the_quadratic_penalty():
    torch.manual_seed(0)
    fisher, centre = torch.rand(2, 5).double()
    parameters = torch.randn(5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: QuadraticPenalty.apply(fisher, centre, p), parameters)
