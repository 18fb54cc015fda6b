from types import SimpleNamespace

import numpy as np
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.evaluation import correlation_figure_metrics
from avalanche_agcn.training.acm import AugmentedCorrelationMatrix

NAME = "ACM/train_phase/train_stream"


class HasACM(SupervisedPlugin):
    """Counts hard labels, as ACMPlugin does in the first experience."""

    def __init__(self):
        super().__init__()
        self.acm = AugmentedCorrelationMatrix()

    def before_training_exp(self, strategy, *args, **kwargs):
        self.acm.begin(2)

    def after_training_iteration(self, strategy, *args, **kwargs):
        columns = strategy.mb_y[:, self.acm.n_old : self.acm.n_seen]
        self.acm.update(columns, torch.full((len(columns), self.acm.n_old), 0.5))


def test_matrix_is_drawn_after_each_experience(benchmark, make_strategy):
    plugin = HasACM()
    evaluator = EvaluationPlugin(correlation_figure_metrics(class_names=list("abcdef")), loggers=[])
    strategy = make_strategy(evaluator=evaluator, plugins=[plugin])
    for t in range(2):
        figure = strategy.train(benchmark.train_stream[t])[NAME]
        axes = figure.axes[0]
        np.testing.assert_allclose(axes.images[0].get_array(), plugin.acm.matrix())
        assert axes.get_title() == f"after experience {t + 1}"
        assert "".join(label.get_text() for label in axes.get_xticklabels()) == "abcdef"[: 2 * (t + 1)]
        assert len(axes.lines) == 2 * t  # a border each way between two blocks


def test_strategy_without_matrix_emits_nothing(benchmark, make_strategy):
    evaluator = EvaluationPlugin(correlation_figure_metrics(), loggers=[])
    assert make_strategy(evaluator=evaluator).train(benchmark.train_stream[0]) == {}
    assert evaluator.metrics[0].result() is None


def test_last_figure_is_the_result():
    (metric,) = correlation_figure_metrics(class_names=["a"])
    acm = AugmentedCorrelationMatrix()
    acm.begin(1)
    stream = SimpleNamespace(name="train")
    strategy = SimpleNamespace(
        plugins=[SimpleNamespace(acm=acm)],
        experience=SimpleNamespace(origin_stream=stream),
        is_eval=False,
        clock=SimpleNamespace(train_iterations=7),
    )
    (value,) = metric.after_training_exp(strategy)
    assert (value.name, value.x_plot) == (NAME, 7)
    assert metric.result() is value.value
    metric.reset()
    assert metric.result() is None
