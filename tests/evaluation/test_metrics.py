"""Standalone metrics equal the functions on all images at once, however these are split."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import avalanche_agcn.evaluation.functional as F
import avalanche_agcn.evaluation.metrics as M

F1 = M.MultiLabelF1, F.precision_recall_f1
METRICS = {  # metric, function, settings of both
    "AP": (M.AveragePrecision, F.average_precision, {}),
    "mAP": (M.MeanAveragePrecision, F.mean_average_precision, {}),
    "ROC-AUC": (M.ROCAUC, F.roc_auc, {}),
    "mean ROC-AUC": (M.MeanROCAUC, F.mean_roc_auc, {}),
    "F1": (*F1, {"threshold": 0.0}),
    "top-2 F1": (*F1, {"threshold": 0.5, "top_k": 2}),
}
each_metric = pytest.mark.parametrize("name", METRICS)
SIZES, CLASS_COUNTS = [9, 0, 7], [2, 3, 5]  # of nested sets


def data(n, n_classes=4, seed=0):
    """Tied scores and partly unlabelled targets."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n_classes, generator=generator).mul(4).round()
    targets = (torch.rand(n, n_classes, generator=generator) < 0.3).float()
    return scores, targets.masked_fill(torch.rand(n, n_classes, generator=generator) < 0.1, math.nan)


def as_list(result):
    return np.nan_to_num(np.atleast_1d(np.asarray(result)), nan=-1.0).tolist()


def make(name):
    metric_type, _, settings = METRICS[name]
    return metric_type(**settings)


def expect(name, scores, targets):
    _, function, settings = METRICS[name]
    return as_list(function(scores, targets, **settings))


def fed(name, scores, targets, sizes=()):
    """A metric that was updated with batches of these sizes, or with all images at once; maybe none."""
    metric = make(name)
    for batch, own in zip(scores.clone().split(sizes or 99), targets.split(sizes or 99)):
        if len(batch):
            metric.update(batch, own)
        batch.fill_(0.0)  # the caller may overwrite a batch
    return metric


@each_metric
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 999), st.integers(0, 8))
def test_batches_and_merging_change_nothing(name, sizes, seed, cut):
    scores, targets = data(sum(sizes), seed=seed)
    expected = expect(name, scores, targets)
    assert as_list(fed(name, scores, targets, sizes).result()) == expected
    n_first, merged = sum(sizes[:cut]), make(name)
    for part in (slice(n_first), slice(n_first, None)):
        merged.merge_state(fed(name, scores[part], targets[part]))
    assert as_list(merged.result()) == expected


@each_metric
def test_reset_discards_and_result_does_not(name):
    scores, targets = data(30)
    metric = fed(name, scores, targets)
    assert as_list(metric.result()) == as_list(metric.result())
    with pytest.raises(ValueError, match=r"3 classes, but those before had 4; call reset\(\)"):
        metric.update(scores[:9, :3], targets[:9, :3])
    metric.reset()
    assert metric.is_empty
    metric.update(scores[:9, :3], targets[:9, :3])
    assert as_list(metric.result()) == expect(name, scores[:9, :3], targets[:9, :3])


def test_float64_after_float32_loses_nothing():
    single, double = data(20), data(20, seed=1)
    double = (double[0].double() + 1e-12 * torch.randn(20, 4, dtype=torch.float64), double[1])
    metric = fed("AP", *single)
    metric.update(*double)
    joined = torch.cat([single[0].double(), double[0]]), torch.cat([single[1], double[1]])
    assert as_list(metric.result()) == expect("AP", *joined)


def f1(**settings):
    return M.MultiLabelF1(threshold=0.0, **settings)


def test_results_of_no_image_and_counts_at_other_thresholds_are_rejected():
    for metric in [*map(make, METRICS), M.NestedMetric(threshold=0.0)]:
        assert metric.gather().is_empty  # without processes, gather() returns the metric itself
        with pytest.raises(ValueError, match=r"has seen no image; .* call update\(\)"):
            metric.result()
    for other, name in ((M.MultiLabelF1(threshold=0.5), "threshold=0.5"), (f1(top_k=3), "top_k=3")):
        with pytest.raises(ValueError, match=f"MultiLabelF1 with {name} cannot be merged into one with"):
            f1().merge_state(other)
    with pytest.raises(ValueError, match=r"NestedMetric with threshold=0.5 .* one with threshold=0.0; use"):
        M.NestedMetric(threshold=0.0).merge_state(M.NestedMetric(threshold=0.5))


# Nested sets


def nested_case(seed=0):
    scores, targets = data(sum(SIZES), CLASS_COUNTS[-1], seed)
    sizes = {"set_sizes": np.cumsum(SIZES).tolist(), "class_counts": CLASS_COUNTS}
    return scores, targets, F.nested_scores(scores, targets, **sizes, threshold=0.0)


def feed_nested(metric, scores, targets, images=slice(None), batch_size=4):
    """Update a nested metric with some images of each increment."""
    for part, labels, n_classes in zip(scores.split(SIZES), targets.split(SIZES), CLASS_COUNTS):
        metric.start_increment(n_classes=n_classes)
        for batch, own in zip(part[images].split(batch_size), labels[images].split(batch_size)):
            if len(batch):
                metric.update(batch, own)
    return metric


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("n_parts", [1, 2, 9])  # with 9, some metrics see nothing of some sets
def test_nested_metric_equals_function_however_images_are_split(batch_size, n_parts):
    scores, targets, expected = nested_case()
    merged = M.NestedMetric(threshold=0.0)
    for k in range(n_parts):
        images = slice(k, None, n_parts)
        merged.merge_state(feed_nested(M.NestedMetric(threshold=0.0), scores, targets, images, batch_size))
    for got, want in zip(merged.result(), expected):
        np.testing.assert_allclose(got, want, atol=1e-14)


def test_nested_metric_rejects_other_classes_and_batches_before_the_first_set():
    scores, targets, _ = nested_case()
    metric = M.NestedMetric(threshold=0.0)
    with pytest.raises(ValueError, match=r"no nested set yet; call start_increment\(n_classes=...\) first"):
        metric.update(scores, targets)
    metric.start_increment(n_classes=2)
    metric.update(scores, targets)
    metric.start_increment(n_classes=3)
    with pytest.raises(ValueError, match=r"3 classes, but those before had 5; call reset\(\)"):
        metric.update(scores[:, :3], targets[:, :3])


def test_memory_is_one_float32_matrix_and_a_byte_per_label():
    scores, targets = data(sum(SIZES), 5)
    metric = feed_nested(M.NestedMetric(threshold=0.0), scores.half(), targets.nan_to_num(0.0))
    kept = [batch for _, batch in metric._records]
    assert sum(batch.scores.nbytes for batch in kept) == 16 * 5 * 4
    assert sum(batch.positive.nbytes for batch in kept) == 16 * 5
    assert {batch.annotated for batch in kept} == {None}


# Several processes


def gather(n_first):
    scores, targets = (part[n_first:] if dist.get_rank() else part[:n_first] for part in data(31))
    gathered = []
    for name in METRICS:
        metric = fed(name, scores, targets)
        gathered.append(as_list(metric.gather().result()))
        assert metric.is_empty == (len(scores) == 0)  # gathering leaves the metric unchanged
    return gathered


@pytest.mark.parametrize("n_first", [13, 31])  # odd shares; a process that has seen nothing
def test_gather_over_processes_equals_one_process(in_two_processes, n_first):
    expected = [expect(name, *data(31)) for name in METRICS]
    assert in_two_processes(gather, n_first) == [expected, expected]
