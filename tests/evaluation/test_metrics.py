"""Standalone metrics equal the functions on all images at once, however these are split."""

import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.evaluation.functional import (
    average_precision,
    mean_average_precision,
    precision_recall_f1,
)
from avalanche_agcn.evaluation.metrics import AveragePrecision, MeanAveragePrecision, MultiLabelF1

MAKERS = [
    AveragePrecision,
    MeanAveragePrecision,
    lambda: MultiLabelF1(threshold=0.0),
    lambda: MultiLabelF1(threshold=0.5, top_k=2),
]


def data(n, n_classes=4, seed=0):
    """Tied scores and partly unlabelled targets."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n_classes, generator=generator).mul(4).round()
    targets = (torch.rand(n, n_classes, generator=generator) < 0.3).float()
    return scores, targets.masked_fill(torch.rand(n, n_classes, generator=generator) < 0.1, math.nan)


def as_list(result):
    values = result.tolist() if isinstance(result, torch.Tensor) else result
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    return [-1.0 if math.isnan(value) else value for value in values]


def whole(make, scores, targets):
    metric = make()
    metric.update(scores, targets)
    return as_list(metric.result())


def test_results_are_those_of_the_functions():
    scores, targets = data(60)
    assert whole(MAKERS[0], scores, targets) == as_list(average_precision(scores, targets))
    assert whole(MAKERS[1], scores, targets) == as_list(mean_average_precision(scores, targets))
    assert whole(MAKERS[2], scores, targets) == as_list(precision_recall_f1(scores, targets, threshold=0.0))
    expected = precision_recall_f1(scores, targets, threshold=0.5, top_k=2)
    assert whole(MAKERS[3], scores, targets) == as_list(expected)


@pytest.mark.parametrize("make", MAKERS)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_batch_split_changes_nothing(make, sizes, seed):
    scores, targets = data(sum(sizes), seed=seed)
    metric = make()
    for part, labels in zip(scores.split(sizes), targets.split(sizes)):
        metric.update(part, labels)
    assert as_list(metric.result()) == whole(make, scores, targets)
    assert len(metric) == sum(sizes)


@pytest.mark.parametrize("make", MAKERS)
@given(cut=st.integers(0, 30))
def test_merged_metrics_equal_one_that_has_seen_all(make, cut):
    scores, targets = data(30)
    first, second = make(), make()
    if cut > 0:
        first.update(scores[:cut], targets[:cut])
    if cut < 30:
        second.update(scores[cut:], targets[cut:])
    first.merge_state(second)
    assert as_list(first.result()) == whole(make, scores, targets)


@pytest.mark.parametrize("make", MAKERS)
def test_reset_forgets_and_result_does_not(make):
    scores, targets = data(30)
    metric = make()
    metric.update(scores, targets)
    assert as_list(metric.result()) == as_list(metric.result())
    metric.reset()
    metric.update(scores[:9, :3], targets[:9, :3])  # another number of classes is fine after a reset
    assert as_list(metric.result()) == whole(make, scores[:9, :3], targets[:9, :3])


@pytest.mark.parametrize("make", MAKERS)
def test_empty_evaluation_is_refused_with_the_fix(make):
    with pytest.raises(ValueError, match=r"has seen no image; .* call update\(\)"):
        make().result()


@pytest.mark.parametrize("make", MAKERS)
def test_state_of_plain_tensors_restores_the_metric(make, tmp_path):
    scores, targets = data(30)
    metric, restored = make(), make()
    metric.update(scores[:20], targets[:20])
    torch.save(metric.state_dict(), tmp_path / "metric.pt")
    restored.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    restored.update(scores[20:], targets[20:])
    assert as_list(restored.result()) == whole(make, scores, targets)
    assert len(metric) == 20


def test_counts_at_other_thresholds_are_not_merged():
    metric = MultiLabelF1(threshold=0.0)
    with pytest.raises(ValueError, match=r"threshold 0\.5, top_k None into those at threshold 0\.0"):
        metric.merge_state(MultiLabelF1(threshold=0.5))


@pytest.mark.parametrize("make", MAKERS)
def test_other_number_of_classes_is_refused(make):
    metric = make()
    metric.update(*data(5, n_classes=3))
    with pytest.raises(ValueError, match="4 classes, those before had 3"):
        metric.update(*data(5, n_classes=4))


@pytest.mark.parametrize("make", MAKERS)
def test_gather_without_processes_is_the_metric_itself(make):
    metric = make()
    assert metric.gather() is metric


def gather_in_process(rank, folder, n_first):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    scores, targets = data(31)
    own = slice(0, n_first) if rank == 0 else slice(n_first, None)
    gathered = []
    for make in MAKERS:
        metric = make()
        if len(scores[own]):
            metric.update(scores[own], targets[own])
        gathered.append(as_list(metric.gather().result()))
        assert len(metric) == len(scores[own])  # gathering leaves the metric as it was
    torch.save(gathered, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("n_first", [13, 31])  # odd shares; a process that has seen nothing
def test_gather_over_processes_equals_one_process(tmp_path, n_first):
    mp.start_processes(gather_in_process, args=(str(tmp_path), n_first), nprocs=2, start_method="fork")
    scores, targets = data(31)
    for rank in range(2):
        gathered = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert gathered == [whole(make, scores, targets) for make in MAKERS]
