"""What plugin metrics read from a strategy, and which metrics they reject beside themselves."""

from types import SimpleNamespace

import pytest
import torch
from avalanche.evaluation import metrics as stock
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator

from avalanche_agcn.benchmarks.experience import check_no_argmax_metrics
from avalanche_agcn.evaluation import (
    f1_metrics,
    mean_average_precision_metrics,
    multilabel_evaluator,
    nested_metrics,
)
from avalanche_agcn.evaluation.plugins import benchmark_class_names, name_classes


@pytest.mark.parametrize(
    ("metrics", "replacement"),
    [
        (stock.accuracy_metrics(epoch=True), "mean_average_precision_metrics"),
        (stock.topk_acc_metrics(stream=True), "top_k=3"),
        (stock.class_accuracy_metrics(stream=True), "per_class=True"),
        (stock.confusion_matrix_metrics(num_classes=3, stream=True), "per_class=True"),
        (stock.forgetting_metrics(experience=True), "nested_metrics"),
        (stock.bwt_metrics(stream=True), "nested_metrics"),
        (stock.forward_transfer_metrics(stream=True), "nested_metrics"),
        (stock.amca_metrics(), "mean_average_precision_metrics"),
        (default_evaluator().metrics, "mean_average_precision_metrics"),
    ],
)
def test_metrics_that_take_an_argmax_are_rejected_with_the_fix(metrics, replacement):
    with pytest.raises(ValueError, match="argmax of multi-hot targets") as error:
        check_no_argmax_metrics(EvaluationPlugin(metrics, loggers=[]))
    assert replacement in str(error.value)
    assert "multilabel_evaluator()" in str(error.value)
    with pytest.raises(ValueError, match="argmax"):
        multilabel_evaluator(metrics, loggers=[])


def test_metrics_that_do_not_look_at_labels_pass():
    evaluator = multilabel_evaluator(stock.timing_metrics(epoch=True), loggers=[])
    check_no_argmax_metrics(evaluator)
    assert {"Loss_Epoch", "Time_Epoch"} <= {str(metric) for metric in evaluator.metrics}


@pytest.mark.parametrize("ours", [mean_average_precision_metrics, f1_metrics, nested_metrics])
@pytest.mark.parametrize("phase", ["train", "eval"])
def test_accuracy_beside_our_metrics_stops_training_and_evaluation(benchmark, make_strategy, ours, phase):
    evaluator = EvaluationPlugin(stock.accuracy_metrics(stream=True), ours(stream=True), loggers=[])
    with pytest.raises(ValueError, match="takes the argmax of multi-hot targets"):
        getattr(make_strategy(evaluator=evaluator), phase)(benchmark.test_stream[0])


def strategy_of(scores=None, targets=None, n_images=0, **stream):
    """As much of a strategy as a metric reads."""
    return SimpleNamespace(
        mb_output=scores,
        mb_y=targets,
        is_training=False,
        adapted_dataset=range(n_images),
        experience=SimpleNamespace(origin_stream=SimpleNamespace(name="test", **stream)),
    )


def test_images_beyond_the_dataset_are_left_out():
    (reader,) = f1_metrics(stream=True)
    strategy = strategy_of(torch.randn(4, 2), torch.zeros(4, 2), n_images=6)
    reader.before_eval_exp(strategy)
    assert [len(reader.read_batch(strategy)[0]) for _ in range(3)] == [4, 2, 0]


def test_targets_are_cut_to_the_scored_classes_and_must_be_multi_hot():
    (reader,) = f1_metrics(stream=True)
    scores, targets = torch.randn(4, 2), torch.rand(4, 5).round()
    assert torch.equal(reader.read_batch(strategy_of(scores, targets))[1], targets[:, :2])
    for wrong in (torch.zeros(4, dtype=torch.int64), torch.zeros(4, 1)):
        with pytest.raises(
            ValueError, match=r"\(4, 2\) .* at least as many classes, as multilabel_benchmark"
        ):
            reader.read_batch(strategy_of(scores, wrong))


def test_class_names_are_those_given_those_of_the_benchmark_or_numbers():
    values = torch.tensor([0.5, 0.25])
    named = strategy_of(benchmark=SimpleNamespace(class_names=["cat", "dog", "car"]))
    assert name_classes(values, named, ["a", "b"]) == {"a": 0.5, "b": 0.25}
    assert name_classes(values, named, None) == {"cat": 0.5, "dog": 0.25}
    assert name_classes(values, strategy_of(), None) == {"class 0": 0.5, "class 1": 0.25}
    assert benchmark_class_names(strategy_of()) is None
    with pytest.raises(ValueError, match="class_names has 1 names, but 2 classes are scored"):
        name_classes(values, named, ["cat"])


def test_saved_graphs_need_a_model_that_has_them(benchmark, make_strategy):
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[], saved_graphs=True))
    with pytest.raises(
        ValueError, match=r"needs a model with `backbone` and `nested_logits`.* not Sequential"
    ):
        strategy.eval(benchmark.test_stream)
