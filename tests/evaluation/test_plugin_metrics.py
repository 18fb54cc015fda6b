"""Plugin metrics in Avalanche's own loops, against the functions on the same images."""

import math

import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from torch import nn
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.evaluation import f1_metrics, mean_average_precision_metrics
from avalanche_agcn.evaluation.functional import (
    average_precision,
    mean_average_precision,
    precision_recall_f1,
)

TEST = "eval_phase/test_stream"
TRAIN = "train_phase/train_stream"
NAMES = ["cat", "dog", "car", "bus", "tree", "sea"]  # of the benchmark


class Recorder(SupervisedPlugin):
    """Keeps the outputs and targets of training batches."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def after_training_iteration(self, strategy, *args, **kwargs):
        self.batches.append((strategy.mb_output.detach().clone(), strategy.mb_y.clone()))


class FirstClasses(nn.Module):
    """Scores of the first classes only."""

    def __init__(self, model, n_seen):
        super().__init__()
        self.model, self.n_seen = model, n_seen

    def forward(self, x):
        return self.model(x)[:, : self.n_seen]


def evaluator(*metrics):
    return EvaluationPlugin(*metrics, loggers=[])


def joined(tensors, model):
    x, y = (torch.cat(parts) for parts in zip(*tensors))
    with torch.no_grad():
        return model(x), y


def test_stream_metrics_equal_the_functions_on_all_images(benchmark, make_strategy, model, stream_tensors):
    metrics = [mean_average_precision_metrics(stream=True), f1_metrics(stream=True, precision_recall=True)]
    results = make_strategy(evaluator=evaluator(*metrics)).eval(benchmark.test_stream)
    scores, targets = joined(stream_tensors, model)
    assert results[f"mAP_Stream/{TEST}"] == pytest.approx(mean_average_precision(scores, targets), abs=1e-12)
    expected = precision_recall_f1(scores, targets, threshold=0.0)
    for name, value in expected._asdict().items():
        assert results[f"{name}_Stream/{TEST}"] == pytest.approx(value, abs=1e-12)


def test_experience_metrics_are_of_each_experience(benchmark, make_strategy, model, stream_tensors):
    results = make_strategy(
        evaluator=evaluator(
            mean_average_precision_metrics(experience=True), f1_metrics(experience=True, top_k=2)
        )
    ).eval(benchmark.test_stream)
    for i, tensors in enumerate(stream_tensors):
        scores, targets = joined([tensors], model)
        expected = precision_recall_f1(scores, targets, threshold=0.0, top_k=2)
        assert results[f"mAP_Exp/{TEST}/Exp{i:03}"] == pytest.approx(mean_average_precision(scores, targets))
        assert results[f"CF1_top2_Exp/{TEST}/Exp{i:03}"] == pytest.approx(expected.CF1)


def test_epoch_and_minibatch_metrics_are_of_annotated_cells(benchmark, make_strategy):
    recorder = Recorder()
    metrics = [
        mean_average_precision_metrics(minibatch=True, epoch=True),
        f1_metrics(minibatch=True, epoch=True),
    ]
    strategy = make_strategy(evaluator=evaluator(*metrics), plugins=[recorder], train_epochs=2)
    strategy.train(benchmark.train_stream[1])
    values = {name: curve[1] for name, curve in strategy.evaluator.get_all_metrics().items()}
    batches = recorder.batches
    assert len(values[f"mAP_MB/{TRAIN}"]) == len(batches)
    for (scores, targets), got, f1 in zip(batches, values[f"mAP_MB/{TRAIN}"], values[f"OF1_MB/{TRAIN}"]):
        expected = mean_average_precision(scores, targets)
        assert got == pytest.approx(expected, nan_ok=True)
        assert f1 == pytest.approx(precision_recall_f1(scores, targets, threshold=0.0)[-1])
    last = batches[len(batches) // 2 :]
    scores, targets = (torch.cat(parts) for parts in zip(*last))
    assert targets.isnan().any()
    assert values[f"mAP_Epoch/{TRAIN}"][-1] == pytest.approx(mean_average_precision(scores, targets))
    own = average_precision(scores[:, 2:4], targets[:, 2:4])  # of the experience's own two columns
    assert values[f"mAP_Epoch/{TRAIN}"][-1] == pytest.approx(own.mean().item())


def test_scores_of_the_classes_seen_so_far_are_compared_with_their_columns(
    benchmark, make_strategy, model, stream_tensors
):
    strategy = make_strategy(
        learner=FirstClasses(model, 4), evaluator=evaluator(mean_average_precision_metrics(stream=True))
    )
    results = strategy.eval(benchmark.test_stream[:2])
    scores, targets = joined(stream_tensors[:2], model)
    expected = mean_average_precision(scores[:, :4], targets[:, :4])
    assert results[f"mAP_Stream/{TEST}"] == pytest.approx(expected)


@pytest.mark.parametrize("class_names", [None, list("abcdef")])
def test_per_class_values_have_names(benchmark, make_strategy, model, stream_tensors, class_names):
    metrics = mean_average_precision_metrics(stream=True, per_class=True, class_names=class_names)
    results = make_strategy(evaluator=evaluator(metrics)).eval(benchmark.test_stream)
    values = results[f"AP_Stream/{TEST}"]
    expected = average_precision(*joined(stream_tensors, model)).tolist()
    assert list(values.values()) == pytest.approx(expected, nan_ok=True)
    assert list(values) == (class_names or NAMES)


def test_evaluation_without_images_emits_nothing(make_strategy):
    images = TensorDataset(torch.eye(6, 8))
    images.targets = torch.eye(6).long()
    late = TensorDataset(torch.eye(1, 8))
    late.targets = torch.eye(6).long()[-1:]  # relevant at the last experience only
    made = multilabel_benchmark(images, late, n_experiences=3)
    wanted = {"experience": True, "stream": True}
    metrics = mean_average_precision_metrics(**wanted), f1_metrics(**wanted)
    assert make_strategy(evaluator=evaluator(*metrics)).eval(made.test_stream[:1]) == {}


def test_too_few_class_names_are_refused(benchmark, make_strategy):
    metrics = mean_average_precision_metrics(stream=True, per_class=True, class_names=["cat"])
    with pytest.raises(ValueError, match="6 classes are scored, but class_names has only 1"):
        make_strategy(evaluator=evaluator(metrics)).eval(benchmark.test_stream)


def test_metrics_start_anew_with_each_evaluation(benchmark, make_strategy):
    strategy = make_strategy(evaluator=evaluator(mean_average_precision_metrics(stream=True)))
    first = strategy.eval(benchmark.test_stream)[f"mAP_Stream/{TEST}"]
    strategy.eval(benchmark.test_stream[:1])
    assert strategy.eval(benchmark.test_stream)[f"mAP_Stream/{TEST}"] == first


def test_evaluation_of_no_experience_is_refused_with_the_fix(benchmark, make_strategy):
    strategy = make_strategy(evaluator=evaluator(mean_average_precision_metrics(stream=True)))
    with pytest.raises(ValueError, match=r"nothing to evaluate.*test_stream\[: t \+ 1\]"):
        strategy.eval(benchmark.test_stream[:0])


def test_iterator_is_refused_as_it_can_be_looked_at_only_once(benchmark, make_strategy):
    strategy = make_strategy(evaluator=evaluator(mean_average_precision_metrics(stream=True)))
    with pytest.raises(ValueError, match="given an iterator; give it a stream or a list"):
        strategy.eval(iter(benchmark.test_stream))


def test_model_with_more_scores_than_labels_is_refused(benchmark, make_strategy):
    strategy = make_strategy(
        learner=nn.Linear(8, 9), evaluator=evaluator(mean_average_precision_metrics(stream=True))
    )
    strategy._criterion = lambda scores, targets: scores.sum()
    with pytest.raises(ValueError, match=r"scores of shape \(7, 9\) .* targets of shape \(7, 6\)"):
        strategy.eval(benchmark.test_stream)


def test_helpers_make_what_is_asked_for_and_nothing_else():
    assert mean_average_precision_metrics() == []
    assert [str(m) for m in f1_metrics(minibatch=True, experience=True)] == [
        "MultiLabelF1_MB",
        "MultiLabelF1_Exp",
    ]
    with pytest.raises(ValueError, match="threshold is NaN"):
        f1_metrics(stream=True, threshold=math.nan)
