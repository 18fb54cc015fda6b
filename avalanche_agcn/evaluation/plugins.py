"""Plugin metrics for Avalanche's `EvaluationPlugin`, and the functions that make them."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.evaluation import GenericPluginMetric, PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.logging import CSVLogger
from avalanche.training.plugins import EarlyStoppingPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_no_argmax_metrics, check_strategy, count_seen
from avalanche_agcn.evaluation import functional, metrics
from avalanche_agcn.evaluation.plots import learning_curve
from avalanche_agcn.evaluation.single_label import check_several_labels

Names = Sequence[str] | None
Values = dict[tuple[str, int | None], Any]  # by name, and by experience or nested set (None: whole stream)
# When a metric is reset and emits, in which phase, and its suffix, as in Avalanche's metrics.
SCOPES: dict[str, tuple[Any, Any, str]] = {
    "minibatch": ("iteration", "train", "MB"),
    "epoch": ("epoch", "train", "Epoch"),
    "experience": ("experience", "eval", "Exp"),
    "stream": ("stream", "eval", "Stream"),
}
NESTED_METRICS = ("mAP", "CF1", "OF1")  # metrics that have a nested matrix
# Names of the fields of NestedSummary in loggers.
SUMMARY_NAMES = ("Last", "NestedMean", "Average", "Forgetting", "RelativeForgetting")
ACCURACY_NAMES = ("Top1_", "Topk_")  # beginnings of the names of Avalanche's accuracies


def mean_average_precision_metrics(
    *,
    minibatch: bool = False,
    epoch: bool = False,
    experience: bool = False,
    stream: bool = False,
    per_class: bool = False,
    class_names: Names = None,
) -> list[MultiLabelPluginMetric]:
    """Return plugin metrics of mAP, the counterpart of Avalanche's ``accuracy_metrics``.

    Args:
        minibatch: emit ``mAP_MB`` after each batch of training, over the annotated cells.
        epoch: emit ``mAP_Epoch`` after each epoch of training.
        experience: emit ``mAP_Exp`` after each evaluated experience.
        stream: emit ``mAP_Stream`` after the evaluation, over all its images and the scored classes.
        per_class: also emit the average precision of each class, ``AP_…``, by name.
        class_names: names of the columns; those of the benchmark if None.
    """
    class_label = "AP" if per_class else None
    name_values = partial(_name_by_class, mean="mAP", each=class_label, class_names=class_names)
    scopes = _selected(minibatch=minibatch, epoch=epoch, experience=experience, stream=stream)
    return [MultiLabelPluginMetric(metrics.AveragePrecision(), scope, name_values) for scope in scopes]


def roc_auc_metrics(
    *,
    minibatch: bool = False,
    epoch: bool = False,
    experience: bool = False,
    stream: bool = False,
    per_class: bool = False,
    class_names: Names = None,
) -> list[MultiLabelPluginMetric]:
    """Return plugin metrics of ROC-AUC, the mean over classes: ``ROC_AUC_Stream`` and so on.

    They are emitted as in `mean_average_precision_metrics`; with ``per_class`` also those of each class, by
    name: ``class_ROC_AUC_Stream``.
    """
    class_label = "class_ROC_AUC" if per_class else None
    name_values = partial(_name_by_class, mean="ROC_AUC", each=class_label, class_names=class_names)
    scopes = _selected(minibatch=minibatch, epoch=epoch, experience=experience, stream=stream)
    return [MultiLabelPluginMetric(metrics.ROCAUC(), scope, name_values) for scope in scopes]


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
    """Return plugin metrics of CF1 and OF1, emitted as in `mean_average_precision_metrics`.

    The threshold is in the unit of the model's output: 0.0 is p ≥ 0.5, as models return logits. With
    ``top_k``, only the k ≥ 1 highest scores of an image count, and the names become ``CF1_top3_…``. With
    ``precision_recall``, CP, CR, OP and OR are also emitted.
    """
    fields = functional.PrecisionRecallF1._fields if precision_recall else ("CF1", "OF1")
    suffix = "" if top_k is None else f"_top{top_k}"
    name_values = partial(_name_f1, names={f"{field}{suffix}": field for field in fields})
    made = []
    for scope in _selected(minibatch=minibatch, epoch=epoch, experience=experience, stream=stream):
        metric = metrics.MultiLabelF1(threshold=threshold, top_k=top_k)
        made.append(MultiLabelPluginMetric(metric, scope, name_values))
    return made


def _name_by_class(
    values: Tensor, strategy: Any, *, mean: str, each: str | None, class_names: Names
) -> dict[str, Any]:
    """The mean over classes under one name and, unless ``each`` is None, the values of all classes."""
    named: dict[str, Any] = {mean: values.nanmean().item()}
    if each is not None:
        named[each] = name_classes(values, strategy, class_names)
    return named


def _name_f1(f1: functional.PrecisionRecallF1, strategy: Any, *, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(f1, field) for name, field in names.items()}


class BatchReader(PluginMetric[Any]):
    """Base of plugin metrics that read the batches of a strategy, and each image of an evaluation once.

    With several processes, Avalanche's loader repeats images until every process has equally many. The
    repeated images are the last ones of a process, and are skipped here.

    An evaluator may be passed from one strategy to the next: values of the first one do not count for the
    second (`start_history`).
    """

    _remaining: int | None = None  # images of this process in the evaluated experience
    _strategy: weakref.ref[Any] | None = None  # that all values are of; None before the first one

    def start_history(self) -> None:
        """Discard what was kept of another strategy."""

    def before_training(self, strategy: SupervisedTemplate) -> None:
        """Check the other metrics, the loggers, the plugins and the strategy."""
        check_no_argmax_metrics(strategy)
        check_loggers(strategy.evaluator.loggers)
        _check_early_stopping(strategy)
        check_several_labels(strategy)
        self._follow(strategy)
        super().before_training(strategy)

    def before_training_exp(self, strategy: SupervisedTemplate) -> None:
        """Check the criterion and the normalisation of the images."""
        check_strategy(strategy)
        _start_early_stopping(strategy)
        super().before_training_exp(strategy)

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        """Check the other metrics, the loggers and the stream."""
        check_no_argmax_metrics(strategy)
        check_loggers(strategy.evaluator.loggers)
        stream = strategy.current_eval_stream
        if isinstance(stream, Iterator):  # reading it here would exhaust it
            raise ValueError("eval() was called with an iterator; pass a stream or a list of experiences.")
        if not len(list(stream)):
            raise ValueError("eval() was called with an empty stream; pass for example test_stream[: t + 1].")
        self._follow(strategy)
        super().before_eval(strategy)

    def _follow(self, strategy: SupervisedTemplate) -> None:
        """Start a new history if this is another strategy than before."""
        if self._strategy is not None and self._strategy() is not strategy:
            self.start_history()
            strategy.evaluator.reset_last_metrics()  # or eval() would return them with the new ones
        self._strategy = weakref.ref(strategy)

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickled metric continues with the strategy that it is used with next.
        return {**self.__dict__, "_strategy": None}

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        """Count this process's images of the experience."""
        assert strategy.adapted_dataset is not None
        n_images = len(strategy.adapted_dataset)
        self._remaining = len(range(DistributedHelper.rank, n_images, DistributedHelper.world_size))
        super().before_eval_exp(strategy)

    def read_batch(self, strategy: SupervisedTemplate) -> tuple[Tensor, Tensor]:
        """Return scores and targets of the current batch, both [B, C] with C the number of scored classes."""
        scores = strategy.mb_output.detach()
        targets = strategy.mb_y
        if targets.ndim != 2 or targets.shape[1] < scores.shape[-1]:
            raise ValueError(
                f"The scores have shape {tuple(scores.shape)} and the targets {tuple(targets.shape)}; use "
                "multi-hot targets with at least as many classes, as multilabel_benchmark(...) returns them."
            )
        targets = targets[:, : scores.shape[1]]
        if strategy.is_training or self._remaining is None:
            return scores, targets
        n = min(len(scores), self._remaining)
        self._remaining -= n
        return scores[:n], targets[:n]


def check_loggers(loggers: Sequence[Any]) -> None:
    """Reject Avalanche's CSVLogger, whose columns are metrics that images with several labels do not have."""
    if any(isinstance(logger, CSVLogger) for logger in loggers):
        raise ValueError(
            "Avalanche's CSVLogger has columns of accuracy and forgetting only, and would write zeros; use "
            "avalanche_agcn.evaluation.MultiLabelCSVLogger, which has a column for each metric."
        )


def _check_early_stopping(strategy: SupervisedTemplate) -> None:
    """Reject an EarlyStoppingPlugin that waits for an accuracy, and so would never stop."""
    for plugin in strategy.plugins:
        if isinstance(plugin, EarlyStoppingPlugin) and plugin.metric_name.startswith(ACCURACY_NAMES):
            raise ValueError(
                f"EarlyStoppingPlugin waits for {plugin.metric_name}, which is never computed for images "
                "with several labels, and would not stop; pass metric_name='mAP_Last' to it, eval_every=1 to "
                "the strategy, and eval_streams=[...] to train()."
            )


def _start_early_stopping(strategy: SupervisedTemplate) -> None:
    """Let an EarlyStoppingPlugin start without the last score, that of the classes before this experience.

    Fewer classes score higher, so it would restore the model from before the experience.
    """
    evaluator = strategy.evaluator
    if any(isinstance(plugin, EarlyStoppingPlugin) for plugin in strategy.plugins):
        last = evaluator.last_metric_results.items()
        evaluator.last_metric_results = {name: value for name, value in last if "/eval_phase/" not in name}


class MultiLabelPluginMetric(BatchReader, GenericPluginMetric[Any, Any]):
    """Passes batches to a standalone metric and emits its values over all processes, if there were images.

    ``scope`` is one of `SCOPES`; ``name_values(result, strategy)`` returns the values of a result by name:
    ``{"mAP": 0.5}`` is emitted as ``mAP_Stream`` in the scope ``"stream"``. It is a function of a module or a
    `partial` of one, so that an evaluator can be pickled.
    """

    def __init__(self, metric: metrics.MultiLabelMetric, scope: str, name_values: Callable[..., Any]) -> None:
        event, mode, self._suffix = SCOPES[scope]
        super().__init__(metric, reset_at=event, emit_at=event, mode=mode)
        self._name_values = name_values

    def __str__(self) -> str:
        return f"{type(self._metric).__name__}_{self._suffix}"

    def update(self, strategy: SupervisedTemplate) -> None:
        """Add a batch."""
        scores, targets = self.read_batch(strategy)
        if scores.numel():  # a model that grows has no class before training
            self._metric.update(scores, targets)

    def _package_result(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        metric = self._metric.gather()
        if metric.is_empty:
            return []
        experience = strategy.experience.current_experience if self._emit_at == "experience" else None
        values: Values = {}
        for name, value in self._name_values(metric.result(), strategy).items():
            values[f"{name}_{self._suffix}", experience] = value
        return metric_values(self, strategy, values)


def nested_metrics(
    *,
    nested: bool = False,
    experience: bool = False,
    stream: bool = False,
    threshold: float = 0.0,
    stages: bool = False,
    per_class: bool = False,
    plot: bool = False,
    class_names: Names = None,
) -> list[NestedPluginMetric]:
    """Return a plugin metric of the nested test sets, or no metric if nothing is to be emitted.

    Evaluation after experience t adds row t to the nested matrices of mAP, CF1 and OF1; see
    `multilabel_evaluator`.

    Args:
        nested: emit mAP, CF1 and OF1 of every nested set 0..t: ``mAP_Nested/…/Exp003`` and so on.
        experience: emit the loss of each nested set since its first score: ``mAP_Forgetting/…/Exp003``.
        stream: emit ``mAP_Last``, ``mAP_NestedMean``, ``mAP_Average``, ``mAP_Forgetting`` (absolute) and
            ``mAP_RelativeForgetting``, likewise of CF1 and OF1; see `nested_summary`.
        threshold: in the unit of the model's output; 0.0 is p ≥ 0.5, as models return logits.
        stages: emit the metrics of papers with B protocols (KRT, CSC, L3A): ``mAP_Stage``,
            ``mean_class_F1_Stage`` and ``OF1_Stage``; see `stage_scores`.
        per_class: emit the average precision of each class in the last set, ``AP_Nested``.
        plot: emit the learning curve as a plot (TensorBoard, Weights & Biases).
        class_names: names of the columns; those of the benchmark if None.
    """
    emit = _selected(
        nested=nested, experience=experience, stream=stream, stages=stages, per_class=per_class, plot=plot
    )
    return [NestedPluginMetric(emit, threshold, class_names)] if emit else []


def find_nested(source: Any) -> NestedPluginMetric:
    """Return the nested metric of a strategy or evaluator; a ValueError if it has none."""
    for metric in getattr(source, "evaluator", source).metrics:
        if isinstance(metric, NestedPluginMetric):
            return metric
    raise ValueError("The evaluator has no nested metric; make it with multilabel_evaluator().")


class NestedPluginMetric(BatchReader):
    """Plugin metric made by `nested_metrics`.

    A row is added to the matrices if the evaluated experiences are 0, 1, 2, … of one stream, up to the last
    one trained on. Experiences not trained on yet, or of another stream, may follow and are ignored. Any
    other evaluation emits the sets it covers, if any, and adds no row. A set without images has the score
    NaN. Evaluations before any training are discarded when training starts, and all of another strategy when
    this one is first used.

    Attributes:
        history: matrix of each stream and metric, ``history["test"]["mAP"]``: row t has t + 1 entries, or
            none if there was no evaluation after experience t.
        average_precision: [C] of each stream, in the last evaluated set.
        stages: `stage_scores` of each stream after each experience; None if there was no evaluation.
    """

    def __init__(self, emit: Collection[str], threshold: float, class_names: Names) -> None:
        super().__init__()
        self._emit = emit
        self._class_names = class_names
        self._metric = metrics.NestedMetric(threshold=threshold)
        self._stream = ""  # name of the evaluated stream
        self._set_classes: list[int] = []  # number of classes of each nested set of this evaluation
        self._in_set = False
        self.reset()

    def __str__(self) -> str:
        return "Nested"

    def reset(self) -> None:
        """Discard the matrices."""
        self.history: dict[str, dict[str, list[list[float]]]] = {}
        self.average_precision: dict[str, Tensor] = {}
        self.stages: dict[str, list[functional.StageScores | None]] = {}
        self._n_classes_trained: int | None = None  # classes trained on; None if there was no training

    def start_history(self) -> None:
        """Discard the matrices of another strategy."""
        self.reset()

    def result(self) -> dict[str, dict[str, functional.NestedSummary]]:
        """Return the summary of each matrix, by stream and metric."""
        summaries: dict[str, dict[str, functional.NestedSummary]] = {}
        for stream, matrices in self.history.items():
            summaries[stream] = {name: functional.nested_summary(rows) for name, rows in matrices.items()}
        return summaries

    def state_dict(self) -> dict[str, Any]:
        """Return the matrices as plain lists and tensors, for a resumed run."""
        plain_stages = {}
        for stream, stages in self.stages.items():
            plain_stages[stream] = [None if stage is None else list(stage) for stage in stages]
        state = {
            "history": self.history,
            "average_precision": self.average_precision,
            "stages": plain_stages,
            "n_trained": self._n_classes_trained,
        }
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, with the strategy that is used next."""
        state = copy.deepcopy(state)
        self._strategy = None
        self._n_classes_trained = state["n_trained"]
        self.history = state["history"]
        self.average_precision = state["average_precision"]
        self.stages = {}
        for stream, rows in state["stages"].items():
            self.stages[stream] = [None if row is None else functional.StageScores(*row) for row in rows]

    def before_training(self, strategy: SupervisedTemplate) -> None:
        """Discard evaluations of the untrained model."""
        super().before_training(strategy)
        if self._n_classes_trained is None:
            self.reset()
            self._n_classes_trained = 0

    def before_training_exp(self, strategy: SupervisedTemplate) -> None:
        """Count the classes trained on."""
        super().before_training_exp(strategy)
        self._n_classes_trained = max(self._n_classes_trained or 0, count_seen(strategy.experience))

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        """Find the nested sets that the evaluation covers."""
        super().before_eval(strategy)
        experiences = [experience.logging() for experience in strategy.current_eval_stream]
        self._stream = experiences[0].origin_stream.name
        self._set_classes = self._count_set_classes(experiences)
        self._metric.reset()

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        """Start the next nested set, if the experience adds one; the sets are the first experiences."""
        super().before_eval_exp(strategy)
        n_sets = len(self._metric.class_counts)
        self._in_set = n_sets < len(self._set_classes)
        if self._in_set:
            self._metric.start_increment(n_classes=self._set_classes[n_sets])

    def after_eval_iteration(self, strategy: SupervisedTemplate) -> None:
        """Add a batch."""
        scores, targets = self.read_batch(strategy)
        if self._in_set and scores.numel():
            self._metric.update(scores, targets)

    def after_eval(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        """Score the nested sets, add a row to the matrices and emit the values."""
        if not self._set_classes:
            return []
        scored = self._metric.gather().result()
        self._metric.reset()  # releases the scores
        n_classes = self._set_classes[-1]
        ap = scored.average_precision[-1, :n_classes]
        self.average_precision[self._stream] = ap
        is_complete = self._n_classes_trained in (None, n_classes)  # the sets have all classes trained on
        values: Values = {}
        for name in NESTED_METRICS:
            row = getattr(scored, name)
            if "nested" in self._emit:
                values |= {(f"{name}_Nested", i): score for i, score in enumerate(row)}
            if is_complete:
                values |= self._add_row(name, row)
        if is_complete:
            values |= self._add_stage(scored.stage)
        if "per_class" in self._emit:
            values["AP_Nested", None] = name_classes(ap, strategy, self._class_names)
        if "plot" in self._emit and self._stream in self.history:
            curves = {}
            for name, matrix in self.history[self._stream].items():
                curves[name] = [row[-1] if row else math.nan for row in matrix]
            values["LearningCurve", None] = learning_curve(curves)
        return metric_values(self, strategy, values, stream=self._stream)

    def _count_set_classes(self, experiences: Sequence[Any]) -> list[int]:
        """Number of classes of each nested set.

        Stops at the first experience that is not the next of the stream, or has untrained classes.
        """
        class_counts: list[int] = []
        for t, experience in enumerate(experiences):
            if experience.origin_stream.name != self._stream or experience.current_experience != t:
                break
            n_classes = count_seen(experience)
            if self._n_classes_trained is not None and n_classes > self._n_classes_trained:
                break
            class_counts.append(n_classes)
        return class_counts

    def _add_row(self, name: str, row: list[float]) -> Values:
        """Store a row, and return the values to emit, except those that need a row that is missing."""
        matrix = self.history.setdefault(self._stream, {}).setdefault(name, [])
        last = len(row) - 1  # the experience that was evaluated after
        matrix.extend([] for _ in range(len(matrix), len(row)))
        matrix[last] = row
        values: Values = {}
        if "experience" in self._emit:
            for i, first in enumerate(matrix[:last]):
                if first:  # empty if there was no evaluation after experience i
                    values[f"{name}_Forgetting", i] = first[i] - row[i]
        if "stream" in self._emit:
            summary = functional.nested_summary(matrix[: last + 1])
            for label, value in zip(SUMMARY_NAMES, summary, strict=True):
                if not math.isnan(value):
                    values[f"{name}_{label}", None] = value
        return values

    def _add_stage(self, stage: functional.StageScores) -> Values:
        """Store the scores of a stage, and return those to emit."""
        n_sets = len(self._set_classes)
        stages = self.stages.setdefault(self._stream, [])
        stages.extend([None] * (n_sets - len(stages)))
        stages[n_sets - 1] = stage
        if "stages" not in self._emit:
            return {}
        return {(f"{name}_Stage", None): value for name, value in stage._asdict().items()}


def name_classes(values: Tensor, strategy: SupervisedTemplate, class_names: Names) -> dict[str, float]:
    """Return the values of the first classes by name: as given, as in the benchmark, or numbered."""
    names = class_names or benchmark_class_names(strategy) or [f"class {c}" for c in range(len(values))]
    if len(names) < len(values):
        raise ValueError(
            f"class_names has {len(names)} names, but {len(values)} classes are scored: name them all."
        )
    return dict(zip(names, values.tolist(), strict=False))


def benchmark_class_names(strategy: SupervisedTemplate) -> Sequence[str] | None:
    """Return the names of the columns, if the benchmark of the current experience has them."""
    stream = getattr(strategy.experience, "origin_stream", None)
    return getattr(getattr(stream, "benchmark", None), "class_names", None)


def _selected(**flags: bool) -> list[str]:
    """Names of the flags that are set."""
    return [name for name, flag in flags.items() if flag]


def metric_values(
    metric: PluginMetric, strategy: SupervisedTemplate, values: Values, stream: str | None = None
) -> list[MetricValue]:
    """Return the values under names like Avalanche's, ``name/eval_phase/test_stream/Exp003``."""
    stream = stream or strategy.experience.origin_stream.name
    phase = "eval" if strategy.is_eval else "train"
    emitted = []
    for (name, experience), value in values.items():
        suffix = "" if experience is None else f"/Exp{experience:03d}"
        full_name = f"{name}/{phase}_phase/{stream}_stream{suffix}"
        emitted.append(MetricValue(metric, full_name, value, strategy.clock.train_iterations))
    return emitted
