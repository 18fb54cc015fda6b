"""A plan, and benchmarks made of a part of it."""

import pytest
import torch

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.benchmarks.multilabel import assemble

SCENES = {"n_classes": 6, "n_experiences": 2, "n_train": 60, "n_test": 30, "image_size": 16}


def test_a_benchmark_can_be_made_anew_from_its_plan():
    benchmark = SplitScenes(**SCENES)
    again = assemble(benchmark.plan)
    for one, other in zip(benchmark.train_stream, again.train_stream, strict=True):
        assert torch.equal(one.dataset.targets[:].nan_to_num(2), other.dataset.targets[:].nan_to_num(2))
        assert torch.equal(one.dataset.eval()[0][0], other.dataset.eval()[0][0])
    assert again.class_names == benchmark.class_names


def test_a_limited_plan_has_the_first_images_of_each_experience():
    benchmark = SplitScenes(**SCENES, validation_size=10)
    limited = assemble(benchmark.plan.limited(3))
    for name, stream in benchmark.streams.items():
        for whole, part in zip(stream, limited.streams[name], strict=True):
            assert len(part.dataset) == min(3, len(whole.dataset))
            n = len(part.dataset)
            assert torch.equal(
                part.dataset.targets[:].nan_to_num(2), whole.dataset.targets[:][:n].nan_to_num(2)
            )
    assert len(limited.complete_train_dataset) == 6


def test_no_image_at_all_is_refused():
    with pytest.raises(ValueError, match="limit of 0"):
        SplitScenes(**SCENES).plan.limited(0)
