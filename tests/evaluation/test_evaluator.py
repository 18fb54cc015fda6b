import io
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.evaluation import metrics as stock
from avalanche.logging import InteractiveLogger, TensorboardLogger, TextLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix
from avalanche_agcn.evaluation.evaluator import correlation_plot_metrics, multilabel_evaluator
from avalanche_agcn.evaluation.loggers import ProgressLogger
from avalanche_agcn.evaluation.plugins import f1_metrics, find_nested, mean_average_precision_metrics

TEST = "eval_phase/test_stream"


def test_default_evaluator_logs_progress_and_has_no_accuracy():
    evaluator = multilabel_evaluator()
    assert isinstance(evaluator, EvaluationPlugin)
    assert [type(logger) for logger in evaluator.loggers] == [ProgressLogger]
    names = ["Loss_Epoch", "Loss_Stream", "AveragePrecision_Epoch", "Nested"]
    assert [str(metric) for metric in evaluator.metrics] == names
    assert [evaluator.strict_checks, multilabel_evaluator(strict_checks=True).strict_checks] == [False, True]
    timed = multilabel_evaluator(stock.timing_metrics(epoch=True), loggers=[], train_map=False)
    assert [str(metric) for metric in timed.metrics] == [*names[:2], "Nested", "Time_Epoch"]


def test_metrics_can_be_pickled_with_what_they_have_seen(benchmark, make_strategy):
    metrics = [mean_average_precision_metrics(stream=True, per_class=True), f1_metrics(stream=True)]
    strategy = make_strategy(evaluator=multilabel_evaluator(*metrics, loggers=[], threshold=100.0))
    strategy.eval(benchmark.test_stream)
    restored = pickle.loads(pickle.dumps(strategy.evaluator))
    assert find_nested(restored).history == find_nested(strategy).history
    assert find_nested(restored).history["test"]["OF1"][2] == [0.0, 0.0, 0.0]  # nothing reaches the threshold


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
        multilabel_evaluator(metrics, loggers=[])
    assert replacement in str(error.value)
    assert "multilabel_evaluator()" in str(error.value)


def test_correlation_matrix_is_plotted_after_each_experience(benchmark):
    (metric,) = correlation_plot_metrics(class_names=list("abcdef"))
    acm = AugmentedCorrelationMatrix()
    strategy = SimpleNamespace(plugins=[SimpleNamespace(acm=acm)], is_eval=False)
    strategy.experience, strategy.clock = benchmark.train_stream[0], SimpleNamespace(train_iterations=5)
    for t in range(2):
        acm.begin(2)
        acm.update(torch.rand(9, 2).round(), torch.full((9, acm.n_old), 0.5))
        (value,) = metric.after_training_exp(strategy)
        assert (value.name, value.x_plot) == ("ACM/train_phase/train_stream", 5)
        axes = value.value.axes[0]
        np.testing.assert_allclose(axes.images[0].get_array(), acm.matrix())
        assert axes.get_title() == f"after experience {t + 1}"
        assert "".join(label.get_text() for label in axes.get_xticklabels()) == "abcdef"[: 2 * (t + 1)]
        assert len(axes.lines) == 2 * t  # a border each way between two blocks
        assert metric.result() is value.value
    metric.reset()
    assert metric.result() is None
    assert metric.after_training_exp(SimpleNamespace(plugins=[])) == []  # no plugin has a matrix


@pytest.mark.parametrize("make_logger", [TextLogger, lambda file: InteractiveLogger()])
def test_avalanches_loggers_print_readable_lines(learn, make_strategy, monkeypatch, make_logger):
    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    metrics = f1_metrics(stream=True, top_k=3)
    evaluator = multilabel_evaluator(metrics, loggers=make_logger(file), per_class=True, plots=True)
    strategy = make_strategy(evaluator=evaluator)
    learn(strategy, [0])
    text, score = file.getvalue(), find_nested(strategy).history["test"]["mAP"][0][0]
    assert f"\tmAP_Nested/{TEST}/Exp000 = {score:.4f}\n" in text
    assert f"\tLearningCurve/{TEST} = score (%) after each experience: mAP {100 * score:.1f}; CF1" in text
    assert f"\tAP_Nested/{TEST}/" in text
    assert f"\tCF1_top3_Stream/{TEST} = 0." in text
    assert not re.search(r"<\w+ |object at 0x|tensor\(", text)


def test_tensorboard_gets_scalars_and_plots(tmp_path, learn, make_strategy):
    logger = TensorboardLogger(tmp_path)
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[logger], plots=True))
    learn(strategy, range(2))
    logger.writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    matrix = find_nested(strategy).history["test"]["mAP"]
    logged = [event.value for event in events.Scalars(f"mAP_Nested/{TEST}/Exp000")]
    assert logged == pytest.approx([row[0] for row in matrix])
    assert f"OF1_RelativeForgetting/{TEST}" in events.Tags()["scalars"]
    image = events.Images(f"LearningCurve/{TEST}")[-1]
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert (image.width, image.height) > (300, 200)
