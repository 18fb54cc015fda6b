"""Plugin metrics for batches, epochs, experiences and streams, and the functions that make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from avalanche.evaluation import GenericPluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metric_utils import get_metric_name
from torch import Tensor

from avalanche_agcn.evaluation.batches import BatchReader, check_evaluation, name_classes
from avalanche_agcn.evaluation.functional import PrecisionRecallF1
from avalanche_agcn.evaluation.guard import refuse_stock_accuracy
from avalanche_agcn.evaluation.metrics import AveragePrecision, MultiLabelF1, MultiLabelMetric

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

__all__ = ["MultiLabelPluginMetric", "f1_metrics", "mean_average_precision_metrics"]

Scope = Literal["minibatch", "epoch", "experience", "stream"]


class _When(NamedTuple):
    event: Literal["iteration", "epoch", "experience", "stream"]
    mode: Literal["train", "eval"]
    suffix: str


# As Avalanche's metrics: the first two in training, the others in evaluation.
SCOPES: dict[Scope, _When] = {
    "minibatch": _When("iteration", "train", "MB"),
    "epoch": _When("epoch", "train", "Epoch"),
    "experience": _When("experience", "eval", "Exp"),
    "stream": _When("stream", "eval", "Stream"),
}

Figures = Callable[[Any, "SupervisedTemplate"], dict[str, Any]]
"""From the result of a metric to its values by name."""


class MultiLabelPluginMetric(GenericPluginMetric[Any, Any]):
    """Feeds a standalone metric with the batches of a strategy and emits its figures.

    With several processes the figures are those over all of them.

    Args:
        metric: The standalone metric.
        scope: Over what: ``"minibatch"`` and ``"epoch"`` of training, ``"experience"`` and ``"stream"`` of
            evaluation. Where there are no images, nothing is emitted.
        figures: Names the figures of a result.
    """

    def __init__(self, metric: MultiLabelMetric, scope: Scope, figures: Figures) -> None:
        event, mode, self._suffix = SCOPES[scope]
        super().__init__(metric, reset_at=event, emit_at=event, mode=mode)
        self._figures = figures
        self._reader = BatchReader()

    def __str__(self) -> str:
        return f"{type(self._metric).__name__}_{self._suffix}"

    def before_training(self, strategy: SupervisedTemplate) -> None:
        """Refuse metrics that mean nothing."""
        refuse_stock_accuracy(strategy)
        super().before_training(strategy)

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        """Refuse metrics that mean nothing and evaluations of nothing."""
        check_evaluation(strategy)
        super().before_eval(strategy)

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        """Count the images to come."""
        self._reader.start_experience(strategy)
        super().before_eval_exp(strategy)

    def update(self, strategy: SupervisedTemplate) -> None:
        """Take in a batch."""
        scores, targets = self._reader.read(strategy)
        if len(scores):
            self._metric.update(scores, targets)

    def _package_result(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        metric = self._metric.gather()
        if len(metric) == 0:
            return []
        x = strategy.clock.train_iterations
        add_experience = self._emit_at == "experience"
        figures = self._figures(metric.result(), strategy)
        names = {
            name: get_metric_name(f"{name}_{self._suffix}", strategy, add_experience, add_task=False)
            for name in figures
        }
        return [MetricValue(self, names[name], value, x) for name, value in figures.items()]


def mean_average_precision_metrics(
    *,
    minibatch: bool = False,
    epoch: bool = False,
    experience: bool = False,
    stream: bool = False,
    per_class: bool = False,
    class_names: Sequence[str] | None = None,
) -> list[MultiLabelPluginMetric]:
    """Plugin metrics of mAP, in place of ``accuracy_metrics``.

    Args:
        minibatch: Emit ``mAP_MB`` after each batch of training.
        epoch: Emit ``mAP_Epoch`` after each epoch of training, over the annotated cells.
        experience: Emit ``mAP_Exp`` after each experience that is evaluated.
        stream: Emit ``mAP_Stream`` after the evaluation, over all its images and the classes that the model
            scores.
        per_class: Also emit the average precision of each class, ``AP_…``, by name.
        class_names: Names of the columns; those of the benchmark if None.

    Example:
        >>> [str(metric) for metric in mean_average_precision_metrics(epoch=True, stream=True)]
        ['AveragePrecision_Epoch', 'AveragePrecision_Stream']
    """

    def figures(ap: Tensor, strategy: SupervisedTemplate) -> dict[str, Any]:
        values: dict[str, Any] = {"mAP": ap.nanmean().item()}
        if per_class:
            values["AP"] = name_classes(ap, strategy, class_names)
        return values

    wanted = _chosen(minibatch=minibatch, epoch=epoch, experience=experience, stream=stream)
    return [MultiLabelPluginMetric(AveragePrecision(), scope, figures) for scope in wanted]


def f1_metrics(
    *,
    minibatch: bool = False,
    epoch: bool = False,
    experience: bool = False,
    stream: bool = False,
    threshold: float = 0.0,
    top_k: int | None = None,
    precision_recall: bool = False,
) -> list[MultiLabelPluginMetric]:
    """Plugin metrics of CF1 and OF1, at a decision threshold.

    Args:
        minibatch: Emit ``CF1_MB`` and ``OF1_MB`` after each batch of training.
        epoch: Emit ``CF1_Epoch`` and ``OF1_Epoch`` after each epoch of training, over the annotated cells.
        experience: Emit ``CF1_Exp`` and ``OF1_Exp`` after each experience that is evaluated.
        stream: Emit ``CF1_Stream`` and ``OF1_Stream`` after the evaluation.
        threshold: In the unit of what the model returns; 0.0 is p ≥ 0.5, as models return logits.
        top_k: Keep only the k highest scores of an image; names become ``CF1_top3_…``.
        precision_recall: Also emit CP, CR, OP and OR.

    Raises:
        ValueError: For a threshold or ``top_k`` that makes no sense.

    Example:
        >>> [str(metric) for metric in f1_metrics(stream=True, top_k=3)]
        ['MultiLabelF1_Stream']
    """
    names = PrecisionRecallF1._fields if precision_recall else ("CF1", "OF1")
    top = "" if top_k is None else f"_top{top_k}"

    def figures(result: PrecisionRecallF1, strategy: SupervisedTemplate) -> dict[str, Any]:
        return {f"{name}{top}": getattr(result, name) for name in names}

    wanted = _chosen(minibatch=minibatch, epoch=epoch, experience=experience, stream=stream)
    return [
        MultiLabelPluginMetric(MultiLabelF1(threshold=threshold, top_k=top_k), scope, figures)
        for scope in wanted
    ]


def _chosen(**wanted: bool) -> list[Any]:
    return [scope for scope, flag in wanted.items() if flag]
