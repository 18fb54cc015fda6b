"""Each image is read once, also when processes share the work."""

import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from avalanche_agcn.evaluation import (
    f1_metrics,
    find_nested,
    mean_average_precision_metrics,
    multilabel_evaluator,
)
from avalanche_agcn.evaluation.batches import BatchReader, benchmark_class_names, metric_name, name_classes


def evaluate(make_strategy, benchmark):
    metrics = mean_average_precision_metrics(stream=True, experience=True), f1_metrics(stream=True)
    strategy = make_strategy(evaluator=multilabel_evaluator(*metrics, loggers=[]))
    results = strategy.eval(benchmark.test_stream)
    figures = {name: value for name, value in results.items() if not name.startswith("Loss")}
    return figures, find_nested(strategy).history["test"].state_dict()


def evaluate_in_process(rank, folder, make_strategy, benchmark):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(evaluate(make_strategy, benchmark), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_give_the_figures_of_one(tmp_path, make_strategy, benchmark):
    assert any(len(experience.dataset) % 2 for experience in benchmark.test_stream)  # one image is repeated
    expected = evaluate(make_strategy, benchmark)
    arguments = (str(tmp_path), make_strategy, benchmark)
    mp.start_processes(evaluate_in_process, args=arguments, nprocs=2, start_method="fork")
    for rank in range(2):
        assert torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) == expected


def strategy_of(scores, targets, n_images, **fields):
    experience = SimpleNamespace(origin_stream=SimpleNamespace(name="test", **fields))
    return SimpleNamespace(
        mb_output=scores,
        mb_y=targets,
        is_training=False,
        is_eval=True,
        adapted_dataset=range(n_images),
        experience=experience,
    )


def test_images_beyond_the_dataset_are_left_out():
    reader, scores = BatchReader(), torch.randn(4, 2)
    strategy = strategy_of(scores, torch.zeros(4, 2), n_images=6)
    assert reader.start_experience(strategy) == 6
    assert [len(reader.read(strategy)[0]) for _ in range(3)] == [4, 2, 0]


def test_targets_are_cut_to_the_classes_scored():
    reader = BatchReader()
    scores, targets = torch.randn(4, 2), torch.rand(4, 5).round()
    _, read = reader.read(strategy_of(scores, targets, n_images=4))
    assert torch.equal(read, targets[:, :2])


def test_class_numbers_as_targets_are_refused_with_the_fix():
    strategy = strategy_of(torch.randn(4, 2), torch.zeros(4, dtype=torch.int64), n_images=4)
    with pytest.raises(
        ValueError, match=r"multi-hot targets of at least as many classes .* multilabel_benchmark"
    ):
        BatchReader().read(strategy)


def test_names_are_avalanches():
    strategy = strategy_of(None, None, 0)
    assert metric_name("mAP_Nested", strategy, nested_set=3) == "mAP_Nested/eval_phase/test_stream/Exp003"
    assert metric_name("mAP_Last", strategy) == "mAP_Last/eval_phase/test_stream"


def test_class_names_are_those_given_those_of_the_benchmark_or_numbers():
    values = torch.tensor([0.5, 0.25])
    named = strategy_of(None, None, 0, benchmark=SimpleNamespace(class_names=["cat", "dog", "car"]))
    unnamed = strategy_of(None, None, 0)
    assert name_classes(values, named, ["a", "b"]) == {"a": 0.5, "b": 0.25}
    assert name_classes(values, named, None) == {"cat": 0.5, "dog": 0.25}
    assert name_classes(values, unnamed, None) == {"class 0": 0.5, "class 1": 0.25}
    assert benchmark_class_names(unnamed) is None
