"""Nested sets scored together equal each set scored alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.evaluation.functional import mean_average_precision, precision_recall_f1
from avalanche_agcn.evaluation.nested import NestedMetric, PerSetMetric, nested_scores


def data(sizes, class_counts, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    n, n_classes = sum(sizes), class_counts[-1]
    scores = torch.randn(n, n_classes, generator=generator).mul(5).round().to(dtype)
    return scores, (torch.rand(n, n_classes, generator=generator) < 0.3).float()


def expected_row(scores, targets, sizes, class_counts, threshold=0.0):
    """Each set alone: [sets] of (mAP, CF1, OF1)."""
    rows = []
    for n, c in zip(np.cumsum(sizes), class_counts):
        if n == 0:
            rows.append((math.nan,) * 3)
            continue
        f1 = precision_recall_f1(scores[:n, :c], targets[:n, :c], threshold=threshold)
        rows.append((mean_average_precision(scores[:n, :c], targets[:n, :c]), f1.CF1, f1.OF1))
    return rows


def rows(result):
    return list(zip(result.mAP, result.CF1, result.OF1))


@st.composite
def nested_sizes(draw):
    sizes = draw(st.lists(st.integers(0, 15), min_size=1, max_size=5).filter(any))
    new = draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    return sizes, np.cumsum(new).tolist()


@given(nested_sizes(), st.integers(0, 1000), st.sampled_from([-3.0, 0.0, 4.0]))
def test_nested_scores_equal_each_set_alone(shape, seed, threshold):
    sizes, class_counts = shape
    scores, targets = data(sizes, class_counts, seed)
    result = nested_scores(
        scores, targets, set_sizes=np.cumsum(sizes).tolist(), class_counts=class_counts, threshold=threshold
    )
    expected = expected_row(scores, targets, sizes, class_counts, threshold)
    np.testing.assert_allclose(rows(result), expected, atol=1e-14)


@given(nested_sizes(), st.integers(1, 7))
def test_metric_equals_function_whatever_the_batches(shape, batch_size):
    sizes, class_counts = shape
    scores, targets = data(sizes, class_counts)
    metric = NestedMetric(threshold=0.0)
    for part, labels, n_classes in zip(scores.split(sizes), targets.split(sizes), class_counts):
        metric.start_increment(n_classes=n_classes, n_images=len(part))
        for chunk in range(0, len(part), batch_size):
            metric.update(part[chunk : chunk + batch_size], labels[chunk : chunk + batch_size])
    expected = expected_row(scores, targets, sizes, class_counts)
    np.testing.assert_allclose(rows(metric.result()), expected, atol=1e-14)


def test_average_precision_of_each_class_is_nan_before_it_enters():
    scores, targets = data([20, 20], [2, 5])
    result = nested_scores(scores, targets, set_sizes=[20, 40], class_counts=[2, 5], threshold=0.0)
    assert result.average_precision.isnan().tolist() == [[False, False, True, True, True], [False] * 5]
    assert result.mAP == result.average_precision.nanmean(dim=1).tolist()


def test_threshold_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match=r"threshold is NaN; p >= 0\.5 is"):
        nested_scores(*data([9], [2]), set_sizes=[9], class_counts=[2], threshold=math.nan)


def test_scores_may_be_wider_than_the_last_set():
    scores, targets = data([20, 20], [2, 5])
    narrow = nested_scores(
        scores[:, :4], targets[:, :4], set_sizes=[20, 40], class_counts=[2, 4], threshold=0.0
    )
    wide = nested_scores(scores, targets, set_sizes=[20, 40], class_counts=[2, 4], threshold=0.0)
    assert rows(narrow) == rows(wide)


@pytest.mark.parametrize(
    ("set_sizes", "class_counts", "message"),
    [
        ([20, 39], [2, 5], "do not describe nested sets of 40 images"),
        ([30, 20, 40], [1, 2, 5], "do not describe"),
        ([20, 40], [2], "do not describe"),
        ([20, 40], [5, 2], r"class_counts \[5, 2\] do not describe .* as many classes as the set before"),
        ([20, 40], [-1, 2], "do not describe"),
        ([], [], "do not describe"),
        ([20, 40], [2, 6], "a nested set of 6 classes cannot be scored with scores of 5"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(set_sizes, class_counts, message):
    scores, targets = data([20, 20], [2, 5])
    with pytest.raises(ValueError, match=message):
        nested_scores(scores, targets, set_sizes=set_sizes, class_counts=class_counts, threshold=0.0)


def fill(metric, scores, targets, sizes, class_counts, parts=slice(None)):
    """Feed a NestedMetric with some images of each increment."""
    for part, labels, n_classes in zip(scores.split(sizes), targets.split(sizes), class_counts):
        metric.start_increment(n_classes=n_classes)
        if len(part[parts]):
            metric.update(part[parts], labels[parts])
    return metric


@pytest.mark.parametrize("sizes", [[9, 8, 7], [9, 1, 0]])
def test_merged_metrics_equal_one_that_has_seen_all(sizes):
    scores, targets = data(sizes, [2, 3, 5])
    metrics = [
        fill(NestedMetric(threshold=0.0), scores, targets, sizes, [2, 3, 5], part)
        for part in (slice(0, None, 2), slice(1, None, 2))
    ]
    merged = NestedMetric(threshold=0.0)
    for metric in metrics:
        merged.merge_state(metric)
    np.testing.assert_allclose(
        rows(merged.result()), expected_row(scores, targets, sizes, [2, 3, 5]), atol=1e-14
    )
    assert len(merged) == sum(sizes)


def test_state_of_plain_tensors_restores_the_metric(tmp_path):
    scores, targets = data([9, 0, 7], [2, 3, 5])
    metric = fill(NestedMetric(threshold=0.0), scores, targets, [9, 0, 7], [2, 3, 5])
    torch.save(metric.state_dict(), tmp_path / "metric.pt")
    restored = NestedMetric(threshold=0.0)
    restored.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    assert rows(restored.result()) == rows(metric.result())


def test_memory_is_one_float32_matrix_and_a_byte_per_label():
    metric = NestedMetric(threshold=0.0)
    for _ in range(3):
        metric.start_increment(n_classes=5, n_images=100)
        for _ in range(10):
            metric.update(*data([10], [5]))
    kept = sum(buffer._scores.nbytes for buffer in metric._buffers)
    labels = sum(buffer._positive.nbytes for buffer in metric._buffers)
    assert (kept, labels) == (300 * 5 * 4, 300 * 5)


def test_per_set_metric_scores_each_set_with_its_own_scores():
    sizes, class_counts = [9, 8, 7], [2, 3, 5]
    own = [data(sizes, [c], seed=i)[0] for i, c in enumerate(class_counts)]  # [N, C_i] of each set
    targets = data(sizes, class_counts)[1]
    metric = PerSetMetric(threshold=0.0)
    start = 0
    for size, n_classes in zip(sizes, class_counts):
        metric.start_increment(n_classes=n_classes)
        for image in range(start, start + size):
            metric.update([scores[image : image + 1] for scores in own], targets[image : image + 1])
        start += size
    expected = [
        expected_row(scores[:n], targets[:n, :c], [n], [c])[0]
        for scores, n, c in zip(own, np.cumsum(sizes), class_counts)
    ]
    result = metric.result()
    np.testing.assert_allclose(rows(result), expected, atol=1e-14)
    assert result.average_precision.isnan().sum(dim=1).tolist() == [3, 2, 0]


def test_per_set_metric_with_equal_scores_equals_nested_metric():
    sizes, class_counts = [0, 8, 7], [2, 3, 5]
    scores, targets = data(sizes, class_counts)
    nested = fill(NestedMetric(threshold=0.0), scores, targets, sizes, class_counts)
    halves = [PerSetMetric(threshold=0.0), PerSetMetric(threshold=0.0)]
    for half, metric in enumerate(halves):
        for part, labels, n_classes in zip(scores.split(sizes), targets.split(sizes), class_counts):
            metric.start_increment(n_classes=n_classes)
            if len(part):
                metric.update([part[half::2, :c] for c in class_counts], labels[half::2])
    halves[0].merge_state(halves[1])
    np.testing.assert_allclose(rows(halves[0].result()), rows(nested.result()), atol=1e-14)


@pytest.mark.parametrize("metric", [NestedMetric(threshold=0.0), PerSetMetric(threshold=0.0)])
def test_empty_evaluation_is_refused(metric):
    with pytest.raises(ValueError, match="has seen no image"):
        metric.result()
