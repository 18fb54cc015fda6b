import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import quad

from avalanche_agcn.training.losses import (
    expected_softplus,
    score_variances,
    statistical_negative_loss,
)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def integral(mean, deviation):
    """E softplus of a normal variable, by adaptive integration on both sides of the bend."""

    def integrand(x):
        return np.logaddexp(0, mean + deviation * x) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    bend = np.clip(-mean / deviation, -12, 12)
    return sum(quad(integrand, *ends, epsabs=0, epsrel=1e-9)[0] for ends in ((-14, bend), (bend, 14)))


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def random_experiences(n, width, seed=0):
    """Means, covariances and counts."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(n, 2 * width, width, generator=generator, dtype=torch.float64)
    covariances = draws.mT @ draws / (2 * width)
    means = torch.randn(n, width, generator=generator, dtype=torch.float64)
    return means, covariances, torch.randint(1, 100, (n,), generator=generator)


@pytest.mark.parametrize(
    ("deviations", "means", "tolerance"),
    [
        ((0.1, 1, 2, 3), (-10, -5, -1, 0, 2, 10), 0.01),
        ((4, 6, 10, 15, 20), (-5, -3, -1, 0, 2, 5, 10), 0.06),
    ],
)
def test_expected_softplus_is_near_the_integral(deviations, means, tolerance):
    for deviation in deviations:
        for mean in means:
            value = expected_softplus(float64(mean), float64(deviation**2)).item()
            assert value == pytest.approx(integral(mean, deviation), rel=tolerance)


def test_expected_softplus_without_variance_is_softplus():
    means = torch.linspace(-5, 5, 11, dtype=torch.float64)
    torch.testing.assert_close(
        expected_softplus(means, torch.zeros(11, dtype=torch.float64)), F.softplus(means), rtol=1e-6, atol=0
    )


def test_loss_is_the_mean_over_classes_weighted_by_images():
    means, covariances, counts = random_experiences(3, 4)
    weight, bias = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    total = 0.0
    for mean, covariance, count in zip(means, covariances, counts):
        for w, b in zip(weight, bias):
            expected = expected_softplus(w @ mean + b, w @ covariance @ w)
            total += count.item() * expected.item() / 2
    loss = statistical_negative_loss(weight, bias, means, covariances, counts)
    assert loss.item() == pytest.approx(total / counts.sum().item())


def test_loss_is_near_the_mean_over_drawn_images():
    means, covariances, counts = random_experiences(2, 3)
    weight = torch.randn(2, 3, dtype=torch.float64)
    drawn = [
        torch.distributions.MultivariateNormal(mean, covariance).sample((200_000,))
        for mean, covariance in zip(means, covariances)
    ]
    losses = torch.stack([F.softplus(images @ weight.T).mean() for images in drawn])
    expected = (counts * losses).sum() / counts.sum()
    loss = statistical_negative_loss(weight, None, means, covariances, counts)
    assert loss.item() == pytest.approx(expected.item(), rel=0.02)


def test_gradients_match_finite_differences():
    means, covariances, counts = random_experiences(3, 4)
    weight = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda w, b: statistical_negative_loss(w, b, means, covariances, counts), (weight, bias)
    )
    assert torch.autograd.gradcheck(lambda w: score_variances(w, covariances), (weight,))


@pytest.mark.parametrize("weight", [torch.zeros(2, 4), torch.ones(2, 4)])
def test_gradients_are_finite_without_variance(weight):
    """One image has no covariance, and a classifier may start at 0."""
    weight = weight.requires_grad_()
    loss = statistical_negative_loss(weight, None, torch.ones(1, 4), torch.zeros(1, 4, 4), torch.ones(1))
    loss.backward()
    expected = torch.sigmoid(weight.sum(1, keepdim=True)).expand(2, 4) / 2
    torch.testing.assert_close(weight.grad, expected.detach())


def test_training_on_the_loss_silences_a_classifier_on_old_images():
    means, covariances, counts = random_experiences(2, 4)
    images = torch.distributions.MultivariateNormal(means[1], covariances[1]).sample((500,)).float()
    weight = torch.randn(1, 4, requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    before = F.softplus(images @ weight.T + bias).mean().item()
    optimizer = torch.optim.Adam([weight, bias], lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        statistical_negative_loss(weight, bias, means.float(), covariances.float(), counts).backward()
        optimizer.step()
    assert F.softplus(images @ weight.T + bias).mean().item() < 0.2 * before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_computed_in_float32(dtype):
    means, covariances, counts = random_experiences(3, 4)
    weight = torch.randn(2, 4).to(dtype)
    loss = statistical_negative_loss(weight, None, means.float(), covariances.float(), counts)
    expected = statistical_negative_loss(weight.double(), None, means, covariances, counts)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("n_classes", "n_experiences"), [(0, 2), (2, 0)])
def test_without_classes_or_experiences_the_loss_is_zero(n_classes, n_experiences):
    means, covariances, counts = random_experiences(n_experiences, 4)
    weight = torch.randn(n_classes, 4, requires_grad=True)
    loss = statistical_negative_loss(weight, None, means, covariances, counts)
    loss.backward()
    assert loss.item() == 0
    assert not weight.grad.any()


@pytest.mark.parametrize("name", ["means", "covariances", "bias"])
def test_shapes_that_do_not_fit_are_rejected(name):
    means, covariances, counts = random_experiences(3, 4)
    arguments = {"means": means, "covariances": covariances, "bias": torch.zeros(2)}
    arguments[name] = arguments[name][:-1]
    with pytest.raises(ValueError, match=f"{name} must be .* 2 classifiers of 4 features and 3 experiences"):
        statistical_negative_loss(torch.zeros(2, 4), counts=counts, **arguments)
