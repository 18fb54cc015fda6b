"""Plugin metrics for Avalanche's `EvaluationPlugin`, and the functions that make them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.evaluation import GenericPluginMetric, PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training import Cumulative, JointTraining
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_no_argmax_metrics, check_strategy, count_seen
from avalanche_agcn.evaluation import functional, metrics
from avalanche_agcn.evaluation.plots import learning_curve
from avalanche_agcn.models.forward import OutputRecorder, unwrap

Names = Sequence[str] | None
Values = dict[tuple[str, int | None], Any]  # by name, and by experience or nested set (None: whole stream)
# When a metric is reset and emits, in which phase, and its suffix, as in Avalanche's metrics.
SCOPES: dict[str, tuple[Any, Any, str]] = {
    "minibatch": ("iteration", "train", "MB"),
    "epoch": ("epoch", "train", "Epoch"),
    "experience": ("experience", "eval", "Exp"),
    "stream": ("stream", "eval", "Stream"),
}
# Names of the fields of NestedSummary in loggers.
SUMMARY_NAMES = ("Last", "NestedMean", "Average", "Forgetting", "RelativeForgetting")


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
    name_values = partial(_name_precision, per_class=per_class, class_names=class_names)
    scopes = _selected(minibatch=minibatch, epoch=epoch, experience=experience, stream=stream)
    return [MultiLabelPluginMetric(metrics.AveragePrecision(), scope, name_values) for scope in scopes]


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
    ``precision_recall``, CP, CR, OP and OR are emitted, too.
    """
    fields = functional.PrecisionRecallF1._fields if precision_recall else ("CF1", "OF1")
    top = "" if top_k is None else f"_top{top_k}"
    name_values = partial(_name_f1, names={f"{field}{top}": field for field in fields})
    scopes = _selected(minibatch=minibatch, epoch=epoch, experience=experience, stream=stream)
    make = partial(metrics.MultiLabelF1, threshold=threshold, top_k=top_k)
    return [MultiLabelPluginMetric(make(), scope, name_values) for scope in scopes]


def _name_precision(ap: Tensor, strategy: Any, *, per_class: bool, class_names: Names) -> dict[str, Any]:
    named = {"AP": name_classes(ap, strategy, class_names)} if per_class else {}
    return {"mAP": ap.nanmean().item(), **named}


def _name_f1(f1: functional.PrecisionRecallF1, strategy: Any, *, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(f1, field) for name, field in names.items()}


class BatchReader(PluginMetric[Any]):
    """Base of plugin metrics that read the batches of a strategy, and each image of an evaluation once.

    With several processes, Avalanche's loader repeats images until every process has equally many. The
    repeated images are the last ones of a process, and are skipped here.
    """

    _remaining: int | None = None  # images of this process in the evaluated experience

    def before_training(self, strategy: SupervisedTemplate) -> None:
        """Check the other metrics and the strategy."""
        check_no_argmax_metrics(strategy)
        if isinstance(strategy, (JointTraining, Cumulative)):
            raise ValueError(
                f"Avalanche's {type(strategy).__name__} trains on partial labels, those of each image's own "
                "experience, which is no upper bound; use avalanche_agcn's MultiTask, which has all labels."
            )
        super().before_training(strategy)

    def before_training_exp(self, strategy: SupervisedTemplate) -> None:
        """Check the criterion and the normalisation of the images."""
        check_strategy(strategy)
        super().before_training_exp(strategy)

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        """Check the other metrics and the stream."""
        check_no_argmax_metrics(strategy)
        stream = strategy.current_eval_stream
        if isinstance(stream, Iterator):  # reading it here would exhaust it
            raise ValueError("eval() was called with an iterator; pass a stream or a list of experiences.")
        if not len(list(stream)):
            raise ValueError("eval() was called with an empty stream; pass for example test_stream[: t + 1].")
        super().before_eval(strategy)

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        """Count this process's images of the experience."""
        assert strategy.adapted_dataset is not None
        n_images, rank = len(strategy.adapted_dataset), DistributedHelper.rank
        self._remaining = len(range(rank, n_images, DistributedHelper.world_size))
        super().before_eval_exp(strategy)

    def read_batch(self, strategy: SupervisedTemplate) -> tuple[Tensor, Tensor]:
        """Return scores and targets of the current batch, both [B, C] with C the number of scored classes."""
        scores, targets = strategy.mb_output.detach(), strategy.mb_y
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


class MultiLabelPluginMetric(BatchReader, GenericPluginMetric[Any, Any]):
    """Passes batches to a standalone metric and emits its values over all processes, if there were images.

    ``scope`` is one of `SCOPES`; ``name_values(result, strategy)`` returns the values of a result by name.
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
        values = self._name_values(metric.result(), strategy)
        experience = strategy.experience.current_experience if self._emit_at == "experience" else None
        named = {(f"{name}_{self._suffix}", experience): value for name, value in values.items()}
        return metric_values(self, strategy, named)


def nested_metrics(
    *,
    nested: bool = False,
    experience: bool = False,
    stream: bool = False,
    threshold: float = 0.0,
    saved_graphs: bool = False,
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
        saved_graphs: also score set i with the graph saved at experience i, as the authors of AGCN do, from
            the same pass through the backbone: ``mAP_Saved_Nested`` and so on. The model must have
            ``backbone`` and ``nested_logits``, such as `AGCNModel`.
        stages: emit the metrics of papers with B protocols (KRT, CSC, L3A): ``mAP_Stage``,
            ``mean_class_F1_Stage`` and ``OF1_Stage``; see `stage_scores`.
        per_class: emit the average precision of each class in the last set, ``AP_Nested``.
        plot: emit the learning curve as a plot (TensorBoard, Weights & Biases).
        class_names: names of the columns; those of the benchmark if None.
    """
    emit = _selected(
        nested=nested, experience=experience, stream=stream, stages=stages, per_class=per_class, plot=plot
    )
    return [NestedPluginMetric(emit, threshold, saved_graphs, class_names)] if emit else []


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
    NaN. Evaluations before any training are discarded when training starts.

    Attributes:
        history: matrix of each stream and metric, ``history["test"]["mAP"]``: row t has t + 1 entries, or
            none if there was no evaluation after experience t.
        average_precision: [C] of each stream, in the last evaluated set.
        stages: `stage_scores` of each stream after each experience; None if there was no evaluation.
    """

    def __init__(self, emit: Collection[str], threshold: float, saved_graphs: bool, names: Names) -> None:
        super().__init__()
        self._emit, self._class_names = emit, names
        self._metrics = {"": metrics.NestedMetric(threshold=threshold)}  # by suffix of their names
        if saved_graphs:
            self._metrics["_Saved"] = metrics.PerSetMetric(threshold=threshold)
        self._features = OutputRecorder()  # of the backbone, which every saved graph scores
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
        self._n_trained: int | None = None  # classes trained on; None if there was no training

    def result(self) -> dict[str, dict[str, functional.NestedSummary]]:
        """Return the summary of each matrix, by stream and metric."""
        return {
            stream: {name: functional.nested_summary(matrix) for name, matrix in matrices.items()}
            for stream, matrices in self.history.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the matrices as plain lists and tensors, for a resumed run."""
        stages = {name: [stage and list(stage) for stage in own] for name, own in self.stages.items()}
        state = {"history": self.history, "average_precision": self.average_precision, "stages": stages}
        return copy.deepcopy({**state, "n_trained": self._n_trained})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        state = copy.deepcopy(state)
        self._n_trained = state["n_trained"]
        self.history, self.average_precision = state["history"], state["average_precision"]
        self.stages = {
            stream: [stage and functional.StageScores(*stage) for stage in stages]
            for stream, stages in state["stages"].items()
        }

    def before_training(self, strategy: SupervisedTemplate) -> None:
        """Discard evaluations of the untrained model."""
        super().before_training(strategy)
        if self._n_trained is None:
            self.reset()
            self._n_trained = 0

    def before_training_exp(self, strategy: SupervisedTemplate) -> None:
        """Count the classes trained on."""
        super().before_training_exp(strategy)
        self._n_trained = max(self._n_trained or 0, count_seen(strategy.experience))

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        """Find the nested sets that the evaluation covers."""
        super().before_eval(strategy)
        experiences = [experience.logging() for experience in strategy.current_eval_stream]
        self._stream = experiences[0].origin_stream.name
        self._set_classes = self._count_set_classes(experiences)
        for metric in self._metrics.values():
            metric.reset()
        model = unwrap(strategy.model)
        if "_Saved" in self._metrics and not (hasattr(model, "nested_logits") and hasattr(model, "backbone")):
            raise ValueError(
                "saved_graphs=True needs a model with `backbone` and `nested_logits`, such as AGCNModel, not "
                f"{type(model).__name__}."
            )

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        """Start the next nested set, if the experience adds one; the sets are the first experiences."""
        super().before_eval_exp(strategy)
        n_sets = len(self._metrics[""].class_counts)
        self._in_set = n_sets < len(self._set_classes)
        if self._in_set:
            for metric in self._metrics.values():
                metric.start_increment(n_classes=self._set_classes[n_sets])

    def before_eval_forward(self, strategy: SupervisedTemplate) -> None:
        """Record the features of the batch, so that saved graphs score it without another forward pass."""
        if "_Saved" in self._metrics:
            self._features.start(unwrap(strategy.model).backbone)

    def after_eval_iteration(self, strategy: SupervisedTemplate) -> None:
        """Add a batch."""
        scores, targets = self.read_batch(strategy)
        features = self._features.stop()
        if not self._in_set or not scores.numel():
            return
        self._metrics[""].update(scores, targets)
        if "_Saved" in self._metrics:
            logits = unwrap(strategy.model).nested_logits(features=features)[: len(self._set_classes)]
            self._metrics["_Saved"].update([part[: len(scores)] for part in logits], targets)

    def after_eval(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        """Score the nested sets, add a row to the matrices and emit the values."""
        if not self._set_classes:
            return []
        scored = {suffix: metric.gather().result() for suffix, metric in self._metrics.items()}
        for metric in self._metrics.values():
            metric.reset()  # releases the scores
        ap = self.average_precision[self._stream] = scored[""].average_precision[-1, : self._set_classes[-1]]
        is_complete = self._n_trained in (None, self._set_classes[-1])  # has all classes trained on
        values: Values = {}
        for suffix, name in product(scored, ("mAP", "CF1", "OF1")):
            row = getattr(scored[suffix], name)
            if "nested" in self._emit:
                values |= {(f"{name}{suffix}_Nested", i): score for i, score in enumerate(row)}
            if is_complete:
                values |= self._add_row(f"{name}{suffix}", row)
        if is_complete:
            values |= self._add_stage(scored[""].stage)
        if "per_class" in self._emit:
            values["AP_Nested", None] = name_classes(ap, strategy, self._class_names)
        if "plot" in self._emit and self._stream in self.history:
            matrices = self.history[self._stream]
            curves = {name: [row[-1] if row else math.nan for row in rows] for name, rows in matrices.items()}
            values["LearningCurve", None] = learning_curve(curves)
        return metric_values(self, strategy, values, stream=self._stream)

    def _count_set_classes(self, experiences: Sequence[Any]) -> list[int]:
        """Number of classes of each nested set that the first evaluated experiences form."""
        class_counts: list[int] = []
        for t, experience in enumerate(experiences):
            if (experience.origin_stream.name, experience.current_experience) != (self._stream, t):
                break
            n_classes = count_seen(experience)
            if self._n_trained is not None and n_classes > self._n_trained:
                break
            class_counts.append(n_classes)
        return class_counts

    def _add_row(self, name: str, row: list[float]) -> Values:
        """Store a row, and return the values to emit, except those that need a row that is missing."""
        values: Values = {}
        matrix = self.history.setdefault(self._stream, {}).setdefault(name, [])
        matrix.extend([] for _ in range(len(matrix), len(row)))
        matrix[len(row) - 1] = row  # its length tells the experience
        if "experience" in self._emit:
            first = {i: before[i] for i, before in enumerate(matrix[: len(row) - 1]) if before}
            values |= {(f"{name}_Forgetting", i): score - row[i] for i, score in first.items()}
        if "stream" in self._emit:
            summary = zip(SUMMARY_NAMES, functional.nested_summary(matrix[: len(row)]), strict=True)
            values |= {(f"{name}_{key}", None): value for key, value in summary if not math.isnan(value)}
        return values

    def _add_stage(self, stage: functional.StageScores) -> Values:
        """Store the scores of a stage, and return those to emit."""
        n_sets, stages = len(self._set_classes), self.stages.setdefault(self._stream, [])
        stages.extend([None] * (n_sets - len(stages)))
        stages[n_sets - 1] = stage
        named = stage._asdict() if "stages" in self._emit else {}
        return {(f"{name}_Stage", None): value for name, value in named.items()}


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
    path = f"{'eval' if strategy.is_eval else 'train'}_phase/{stream}_stream"
    named = {f"{name}/{path}" + ("" if i is None else f"/Exp{i:03d}"): values[name, i] for name, i in values}
    x = strategy.clock.train_iterations
    return [MetricValue(metric, name, value, x) for name, value in named.items()]
