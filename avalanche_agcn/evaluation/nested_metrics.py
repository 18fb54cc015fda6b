"""The nested matrix of a whole stream, and forgetting, as a plugin metric.

After experience t, ``strategy.eval(benchmark.test_stream[: t + 1])`` puts each image through the network
once and adds row t to the matrices of mAP, CF1 and OF1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.evaluation.batches import (
    BatchReader,
    check_evaluation,
    metric_name,
    name_classes,
)
from avalanche_agcn.evaluation.feature_tap import FeatureTap
from avalanche_agcn.evaluation.figures import TextFigure, learning_curve
from avalanche_agcn.evaluation.functional import NestedSummary, nested_summary
from avalanche_agcn.evaluation.guard import refuse_stock_accuracy
from avalanche_agcn.evaluation.history import NestedHistory
from avalanche_agcn.evaluation.nested import NestedMetric, NestedScores, PerSetMetric

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

__all__ = ["NestedPluginMetric", "find_nested", "forgetting_metrics"]

FIGURES = ("mAP", "CF1", "OF1")
# Names of the fields of NestedSummary in loggers.
SUMMARY_NAMES = {
    "last": "Last",
    "nested": "NestedMean",
    "average": "Average",
    "forgetting_absolute": "Forgetting",
    "forgetting_relative": "RelativeForgetting",
}


def forgetting_metrics(
    *,
    nested: bool = False,
    experience: bool = False,
    stream: bool = False,
    threshold: float = 0.0,
    saved_graphs: bool = False,
    per_class: bool = False,
    figure: bool = False,
    class_names: Sequence[str] | None = None,
) -> list[NestedPluginMetric]:
    """Plugin metric of the nested test sets, from one pass over ``test_stream[: t + 1]``.

    Args:
        nested: Emit mAP, CF1 and OF1 of every nested set 0..t: ``mAP_Nested/…/Exp003`` and so on.
        experience: Emit how much each nested set has lost since it was new: ``mAP_Forgetting/…/Exp003``.
        stream: Emit ``mAP_Last``, ``mAP_NestedMean``, ``mAP_Average``, ``mAP_Forgetting`` (absolute) and
            ``mAP_RelativeForgetting``, likewise of CF1 and OF1; see `nested_summary`.
        threshold: In the unit of what the model returns; 0.0 is p ≥ 0.5, as models return logits.
        saved_graphs: Also score set i with the graph saved at experience i, as the authors of AGCN do, from
            the same pass through the backbone. The model must have ``backbone`` and ``nested_logits``, as
            `AGCNModel` has. Names become ``mAP_Saved_Nested`` and so on.
        per_class: Emit the average precision of each class in the last set, ``AP_Nested``.
        figure: Emit the learning curve as a figure (TensorBoard, Weights & Biases).
        class_names: Names of the columns; those of the benchmark if None.

    Returns:
        One plugin metric, or none if nothing is to be emitted.

    Example:
        >>> [str(metric) for metric in forgetting_metrics(nested=True, stream=True)]
        ['Nested']
    """
    wanted = {
        "nested": nested,
        "experience": experience,
        "stream": stream,
        "per_class": per_class,
        "figure": figure,
    }
    emit = {name for name, flag in wanted.items() if flag}
    if not emit:
        return []
    return [NestedPluginMetric(emit, threshold=threshold, saved_graphs=saved_graphs, class_names=class_names)]


class NestedPluginMetric(PluginMetric[Any]):
    """See `forgetting_metrics`, which makes it.

    A row is added to the matrices when the evaluated experiences are 0, 1, 2, … of one stream, up to the last
    one trained on. Experiences not trained on yet, or of another stream, may follow and are not looked at. An
    evaluation of anything else emits the sets it covers, if any, and adds nothing. A set without images has
    no score: NaN. What was evaluated before any training is forgotten when that begins.

    Attributes:
        history: `NestedHistory` of each stream, by its name; ``history["test"].matrix("mAP")``.
        average_precision: [C] of each stream, by its name, in the last set that was evaluated.
    """

    def __init__(
        self,
        emit: Collection[str] = ("nested", "stream"),
        *,
        threshold: float = 0.0,
        saved_graphs: bool = False,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._emit = emit
        self._class_names = class_names
        self._reader = BatchReader()
        self._scores = NestedMetric(threshold=threshold)
        self._saved = PerSetMetric(threshold=threshold) if saved_graphs else None
        self._tap: FeatureTap | None = None
        self._stream = ""  # name of the evaluated stream
        self._plan: list[int] = []  # number of classes of each nested set of this evaluation
        self._in_set = False
        self.reset()

    def __str__(self) -> str:
        return "Nested"

    def reset(self) -> None:
        """Forget the matrices."""
        self.history: dict[str, NestedHistory] = {}
        self.average_precision: dict[str, Tensor] = {}
        self._n_trained: int | None = None  # classes trained on; None if there was no training

    def result(self) -> dict[str, dict[str, NestedSummary]]:
        """Summary of each matrix, by stream and figure."""
        return {
            stream: {name: history.summary(name) for name in history.names}
            for stream, history in self.history.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """What was evaluated so far, as plain lists and tensors, for a run that is resumed."""
        return {
            "n_trained": self._n_trained,
            "history": {stream: history.state_dict() for stream, history in self.history.items()},
            "average_precision": dict(self.average_precision),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.reset()
        self._n_trained = state["n_trained"]
        self.average_precision = dict(state["average_precision"])
        for stream, matrices in state["history"].items():
            self.history[stream] = NestedHistory()
            self.history[stream].load_state_dict(matrices)

    def before_training(self, strategy: SupervisedTemplate) -> None:
        """Refuse metrics that mean nothing. From here on, only what was trained on is evaluated."""
        refuse_stock_accuracy(strategy)
        if self._n_trained is None:
            self.reset()  # the model as it was before is no part of the run
            self._n_trained = 0

    def before_training_exp(self, strategy: SupervisedTemplate) -> None:
        """Note the classes of the experience."""
        self._n_trained = max(self._n_trained or 0, count_seen(strategy.experience))

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        """Begin a row: find out which nested sets the evaluation covers."""
        check_evaluation(strategy)
        experiences = [experience.logging() for experience in strategy.current_eval_stream]
        self._stream = experiences[0].origin_stream.name
        self._plan = self._nested_sets(experiences)
        self._scores.reset()
        if self._saved is not None:
            self._saved.reset()
            self._remove_tap()
            self._tap = FeatureTap(strategy.model)

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        """Begin the next nested set, if this experience makes one."""
        n_images = self._reader.start_experience(strategy)
        n_sets = len(self._scores.class_counts)
        self._in_set = n_sets < len(self._plan)  # the plan is of the first experiences
        if self._in_set:
            self._scores.start_increment(n_classes=self._plan[n_sets], n_images=n_images)
            if self._saved is not None:
                self._saved.start_increment(n_classes=self._plan[n_sets])

    def after_eval_iteration(self, strategy: SupervisedTemplate) -> None:
        """Take in a batch."""
        scores, targets = self._reader.read(strategy)
        if not self._in_set or not len(scores):
            return
        self._scores.update(scores, targets)
        if self._saved is not None and self._tap is not None:
            logits = self._tap.nested_logits()[: len(self._plan)]
            self._saved.update([part[: len(scores)] for part in logits], targets)

    def after_eval(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        """Score the nested sets."""
        self._remove_tap()
        if not self._plan:
            return []
        stream = self._stream
        scored = _take_result(self._scores)
        self.average_precision[stream] = scored.average_precision[-1, : self._plan[-1]]
        values = self._values(stream, scored, "")
        if self._saved is not None:
            values |= self._values(stream, _take_result(self._saved), "_Saved")
        if "per_class" in self._emit:
            ap = self.average_precision[stream]
            values["AP_Nested", None] = name_classes(ap, strategy, self._class_names)
        if "figure" in self._emit and stream in self.history:
            values["LearningCurve", None] = self._learning_curve(self.history[stream])
        x = strategy.clock.train_iterations
        return [
            MetricValue(self, metric_name(name, strategy, stream=stream, nested_set=i), value, x)
            for (name, i), value in values.items()
        ]

    def _nested_sets(self, experiences: Sequence[Any]) -> list[int]:
        """Number of classes of each nested set that the first of the evaluated experiences make up."""
        class_counts: list[int] = []
        for t, experience in enumerate(experiences):
            if (experience.origin_stream.name, experience.current_experience) != (self._stream, t):
                break
            n_classes = count_seen(experience)
            if self._n_trained is not None and n_classes > self._n_trained:
                break
            class_counts.append(n_classes)
        return class_counts

    def _values(self, stream: str, scored: NestedScores, kind: str) -> dict[tuple[str, int | None], Any]:
        """Values to emit by name and nested set; adds the row to the history if it is complete."""
        values: dict[tuple[str, int | None], Any] = {}
        complete = self._n_trained is None or self._plan[-1] == self._n_trained
        for figure in FIGURES:
            row: list[float] = getattr(scored, figure)
            if "nested" in self._emit:
                values |= {(f"{figure}{kind}_Nested", i): value for i, value in enumerate(row)}
            if not complete:
                continue
            history = self.history.setdefault(stream, NestedHistory())
            history.add(f"{figure}{kind}", row)
            matrix = history.matrix(f"{figure}{kind}")[: len(row)]
            if "experience" in self._emit:
                lost = {i: matrix[i][i] - row[i] for i in range(len(row) - 1) if matrix[i]}
                values |= {(f"{figure}{kind}_Forgetting", i): value for i, value in lost.items()}
            if "stream" in self._emit:
                summary = nested_summary(matrix)._asdict()
                values |= {
                    (f"{figure}{kind}_{SUMMARY_NAMES[field]}", None): value
                    for field, value in summary.items()
                    if not math.isnan(value)  # a row it needs was not evaluated
                }
        return values

    def _learning_curve(self, history: NestedHistory) -> TextFigure:
        """Scores on all classes seen, after each experience."""
        matrices = history.state_dict()
        return learning_curve(
            {name: [row[-1] if row else math.nan for row in rows] for name, rows in matrices.items()}
        )

    def _remove_tap(self) -> None:
        if self._tap is not None:
            self._tap.remove()
            self._tap = None


def find_nested(source: Any) -> NestedPluginMetric:
    """The nested metric of a strategy or evaluator.

    Raises:
        ValueError: If it has none.
    """
    for metric in getattr(source, "evaluator", source).metrics:
        if isinstance(metric, NestedPluginMetric):
            return metric
    raise ValueError("the evaluator has no nested metric; make it with multilabel_evaluator()")


def _take_result(metric: NestedMetric | PerSetMetric) -> NestedScores:
    """The result over all processes, NaN without images; the scores behind it are let go."""
    gathered = metric.gather()
    scored = gathered.result() if len(gathered) else _no_scores(metric.class_counts)
    metric.reset()
    return scored


def _no_scores(class_counts: Sequence[int]) -> NestedScores:
    nothing = [math.nan] * len(class_counts)
    ap = torch.full((len(class_counts), max(class_counts)), math.nan, dtype=torch.float64)
    return NestedScores(nothing, nothing, nothing, ap)
