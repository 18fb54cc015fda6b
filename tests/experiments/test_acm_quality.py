"""Hand-worked matrices, and counts of a benchmark."""

import math

import pytest
import torch

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.experiments.acm_quality import block_quality, train_cooccurrence

TRUTH = [[1.0, 0.2, 0.4], [0.6, 1.0, 0.0], [0.1, 0.3, 1.0]]


def test_the_truth_is_without_error():
    for quality in block_quality(TRUTH, TRUTH, [2, 1]).values():
        assert quality.mean_absolute_error == 0
        assert quality.correlation == pytest.approx(1)


def test_each_block_is_compared_by_itself():
    found = [[1.0, 0.3, 0.5], [0.6, 1.0, 0.3], [0.3, 0.1, 1.0]]
    quality = block_quality(found, TRUTH, [2, 1])
    assert quality["B"].mean_absolute_error == pytest.approx((0.1 + 0.0) / 2)
    assert quality["R"].mean_absolute_error == pytest.approx((0.1 + 0.3) / 2)
    assert quality["Q"].mean_absolute_error == pytest.approx((0.2 + 0.2) / 2)
    assert quality["Q"].correlation == pytest.approx(-1)
    assert (quality["R"].mean, quality["R"].true_mean) == pytest.approx((0.4, 0.2))


def test_one_experience_has_neither_r_nor_q():
    quality = block_quality(TRUTH, TRUTH, [3])
    assert math.isnan(quality["R"].mean_absolute_error)
    assert quality["B"].mean_absolute_error == 0


def test_constant_blocks_have_no_correlation():
    found = [[1.0, 0.5, 0.5], [0.5, 1.0, 0.5], [0.5, 0.5, 1.0]]
    assert math.isnan(block_quality(found, TRUTH, [2, 1])["B"].correlation)


def test_cooccurrence_is_counted_over_the_train_images_once_each():
    benchmark = SplitScenes(
        n_classes=6, n_experiences=2, n_train=80, n_test=20, image_size=16, repeat_images=True
    )
    targets = benchmark.complete_train_dataset.targets[:]
    found = train_cooccurrence(benchmark.plan)
    for i in range(6):
        for j in range(6):
            shown = targets[targets[:, j] == 1]
            assert found[i, j] == pytest.approx((shown[:, i] == 1).double().mean().item())


def test_partly_known_labels_have_no_truth():
    from dataclasses import replace

    plan = SplitScenes(n_classes=4, n_experiences=2, n_train=60, n_test=20, image_size=16).plan
    assert train_cooccurrence(replace(plan, labels_complete=False)) is None
    assert torch.equal(train_cooccurrence(plan).diagonal(), torch.ones(4, dtype=torch.float64))
