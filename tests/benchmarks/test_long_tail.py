import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.split import draw_long_tail, long_tail_quotas


def random_labels(n, n_classes, seed, share=0.15):
    return (torch.rand(n, n_classes, generator=torch.Generator().manual_seed(seed)) < share).to(torch.int8)


def test_quotas_worked_by_hand():
    counts = torch.tensor([10, 100, 60, 0, 60])  # ranks 4, 1, 2, 5, 3
    assert long_tail_quotas(counts, 1.0).tolist() == [10, 100, 50, 0, 33]
    assert long_tail_quotas(counts, 2.0).tolist() == [6, 100, 25, 0, 11]
    assert long_tail_quotas(counts, 50.0).tolist() == [1, 100, 1, 0, 1]
    assert long_tail_quotas(counts, 0.0).tolist() == counts.tolist()
    with pytest.raises(ValueError, match="long_tail must be at least 0, not -1"):
        long_tail_quotas(counts, -1.0)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 99), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_quotas_hold_and_no_class_is_lost(n, n_classes, seed, power):
    labels = random_labels(n, n_classes, seed)
    keep = draw_long_tail(labels, power, seed)
    counts, quotas = labels[keep].sum(0), long_tail_quotas(labels.sum(0), power)
    assert torch.equal(counts > 0, labels.any(0))  # every class keeps an image
    assert keep[~labels.any(1)].all()
    if power == 0:
        assert keep.all()
    # Above its quota a class has at most the images that saved another class.
    assert ((counts - quotas).clamp(min=0) <= (quotas == 1).sum()).all() or power == 0
    assert torch.equal(keep, draw_long_tail(labels, power, seed))


def test_single_labels_meet_the_quotas_exactly():
    labels = torch.eye(4, dtype=torch.int8)[torch.randint(0, 4, (400,), generator=torch.Generator())]
    kept = labels[draw_long_tail(labels, 1.0)].sum(0)
    assert torch.equal(kept.long(), long_tail_quotas(labels.sum(0), 1.0))


def test_with_several_labels_only_the_most_frequent_classes_stay_below_their_quotas():
    labels = random_labels(2000, 10, 0)
    kept, quotas = labels[draw_long_tail(labels, 1.0)].sum(0), long_tail_quotas(labels.sum(0), 1.0)
    assert (kept <= quotas).all()
    head = quotas.sort(descending=True).indices[:2]
    assert set((kept < quotas).nonzero().flatten().tolist()) <= set(head.tolist())
    assert kept.max() > 4 * kept.min()


def test_benchmark_is_thinned_out_and_its_test_set_is_not():
    train, test = (TensorDataset(torch.arange(n)) for n in (300, 50))
    train.targets, test.targets = random_labels(300, 6, 0), random_labels(50, 6, 1)
    keep = draw_long_tail(train.targets, 1.0, seed=3) & train.targets.bool().any(1)
    settings = {"n_experiences": 3, "repeat_images": True, "seed": 3}
    benchmark = multilabel_benchmark(train, test, long_tail=1.0, **settings)
    images = {int(x) for experience in benchmark.train_stream for x, *_ in experience.dataset}
    assert images == set(keep.nonzero().flatten().tolist())
    whole = multilabel_benchmark(train, test, **settings)
    assert [len(e.dataset) for e in benchmark.test_stream] == [len(e.dataset) for e in whole.test_stream]
    assert benchmark.protocol.long_tail == 1.0
    assert "long_tail" not in str(whole.protocol)
