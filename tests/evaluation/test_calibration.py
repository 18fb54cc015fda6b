"""Calibrated probabilities and thresholds, on data whose true probabilities are known."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from avalanche_agcn.evaluation.calibration import (
    LEAST_POSITIVES,
    LEAST_PRECISION,
    calibrate_logits,
    estimate_shares,
    measure_moments,
)

N = 20_000


def draw(share, distance, n=N, seed=0):
    """Logits [n, 1] of two normal distributions, and targets."""
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand(n, 1, generator=generator, dtype=torch.float64) < share).double()
    return 2 * torch.randn(n, 1, generator=generator, dtype=torch.float64) + distance * targets - 3, targets


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_probabilities_are_those_of_a_logistic_regression_and_fit_the_share(share):
    logits, targets = draw(share, 4.0)
    calibration = calibrate_logits(measure_moments(logits, targets))
    found = calibration.probabilities(logits)
    expected = LogisticRegression(C=1e6).fit(logits, targets.ravel()).predict_proba(logits)[:, 1:]
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=0.05, rtol=0)
    assert found.mean().item() == pytest.approx(targets.mean().item(), rel=0.05)


def test_probabilities_fit_the_share_among_all_images_not_that_among_the_labelled():
    logits, targets = draw(0.1, 4.0)
    # The labelled images are half of the positives, and few of the negatives.
    keep = torch.rand(N, 1, generator=torch.Generator().manual_seed(1)) < torch.where(targets == 1, 0.5, 0.1)
    moments = measure_moments(logits, torch.where(keep, targets, torch.nan))
    found = calibrate_logits(moments, torch.tensor([0.1])).probabilities(logits)
    assert found.mean().item() == pytest.approx(0.1, rel=0.1)
    n_positives, n_images = moments.n_positives.item(), N
    assert n_positives / n_images < 0.06  # as if no unlabelled image were positive
    assert estimate_shares(moments).item() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(("share", "distance"), [(0.05, 5.0), (0.3, 3.0), (0.7, 3.0)])
def test_the_threshold_has_nearly_the_best_f1(share, distance):
    logits, targets = draw(share, distance)
    calibration = calibrate_logits(measure_moments(logits, targets))
    found = calibration.probabilities(logits)
    best = max(f1_score(targets, found >= k / 100) for k in range(2, 99, 3))
    assert f1_score(targets, found >= calibration.thresholds) > best - 0.01
    assert not calibration.is_global.any()


def test_a_class_with_few_positives_has_the_threshold_of_all_classes():
    frequent, targets = draw(0.3, 4.0, n=2000)
    rare = targets * (targets.cumsum(0) < LEAST_POSITIVES)
    moments = measure_moments(torch.cat([frequent, frequent], 1), torch.cat([targets, rare], 1))
    calibration = calibrate_logits(moments)
    assert calibration.is_global.tolist() == [False, True]
    assert calibration.thresholds[1].item() == pytest.approx(calibration.global_threshold)


def test_a_class_that_cannot_be_told_apart_is_not_found_everywhere():
    logits, targets = draw(LEAST_PRECISION / 4, 0.0)
    calibration = calibrate_logits(measure_moments(logits, targets))
    found = calibration.probabilities(logits)
    assert found.std() < 0.02
    assert calibration.is_global.all()
    # Beside a class that is found well, its probabilities never reach the threshold of both.
    good, of_good = draw(0.3, 6.0)
    both = calibrate_logits(measure_moments(torch.cat([good, logits], 1), torch.cat([of_good, targets], 1)))
    found = both.probabilities(torch.cat([good, logits], 1)) >= both.thresholds
    assert found[:, 1].double().mean() < 0.01
    assert found[:, 0].double().mean().item() == pytest.approx(0.3, abs=0.03)


def test_the_separation_of_a_class_with_few_positives_moves_towards_that_of_all_classes():
    good, of_good = draw(0.3, 6.0)
    few, targets = draw(0.3, 0.0, n=40)
    moments = measure_moments(good, of_good)
    own = measure_moments(few, targets)
    both = [torch.cat(pair) for pair in zip(moments, own, strict=True)]
    alone = calibrate_logits(own)
    together = calibrate_logits(type(moments)(*both))
    assert together.scale[0].item() == pytest.approx(6 / 4, rel=0.05)  # 6,000 positives decide for themselves
    assert together.scale[1] > alone.scale[0] > 0.2  # 12 positives that score like negatives do not
    found = together.probabilities(torch.cat([few, few], 1))[:, 1]
    assert found.mean().item() == pytest.approx(targets.mean().item(), abs=0.05)


def test_images_that_were_trained_on_do_not_make_probabilities_too_confident():
    logits, targets = draw(0.2, 4.0)
    labelled = torch.arange(N)[:, None] < N // 5
    separated = 12 * (targets - 0.2) + logits / 2 + logits.mean() / 2  # with the mean that they had
    fitted = torch.where(labelled, separated, logits)
    shown = torch.where(labelled, targets, torch.nan)
    share = torch.tensor([0.2])
    calibration = calibrate_logits(measure_moments(fitted, shown), share, trained_on=True)
    unseen, labels = draw(0.2, 4.0, seed=1)
    found = calibration.probabilities(unseen)
    assert found.mean().item() == pytest.approx(0.2, rel=0.1)
    is_found = (found >= calibration.thresholds).double().mean().item()
    assert is_found == pytest.approx(0.2, abs=0.03)
    naive = calibrate_logits(measure_moments(fitted, shown), share).probabilities(unseen)
    assert (naive - labels).square().mean() > (found - labels).square().mean()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_rejected(value):
    """One of them would change the thresholds of all classes."""
    logits = torch.randn(50, 3)
    logits[3, 1] = value
    with pytest.raises(ValueError, match="Some logits are NaN or infinite"):
        measure_moments(logits, (torch.rand(50, 3) < 0.4).float())
