"""A CSV logger that has whatever metrics are emitted as columns."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avalanche.core import SupervisedPlugin
from avalanche.logging import BaseLogger

if TYPE_CHECKING:
    from avalanche.evaluation.metric_results import MetricValue
    from avalanche.training.templates import SupervisedTemplate

__all__ = ["MultiLabelCSVLogger"]

Row = dict[str, Any]
TRAINING_FILE, EVALUATION_FILE = "training_results.csv", "eval_results.csv"
# name/eval_phase/test_stream/Task000/Exp003/person: the rest of a name is the column.
_PHASE = re.compile(r"/(train|eval)_phase(?:/(?P<stream>\w+?)_stream)?(?:/Task\d+)?(?:/Exp(?P<set>\d+))?")


class MultiLabelCSVLogger(BaseLogger, SupervisedPlugin):
    """Writes ``training_results.csv`` and ``eval_results.csv``, a column for each metric.

    Avalanche's `CSVLogger` knows accuracy and loss only. Here the columns are the metrics of the evaluator:

    - training: a row for each epoch, with ``training_exp`` and ``epoch``;
    - evaluation: after each a row for each experience or nested set (``eval_exp``), and one for the stream as
      a whole (``eval_exp`` empty). ``training_exp`` is the last experience trained on.

    A metric that appears later gets a column then; cells without a value are empty. Files are replaced in one
    step, so that a reader never sees half a file.

    Args:
        log_folder: Where to write; made if need be.
        append: Go on with the files of an earlier run, instead of replacing them.

    Raises:
        RuntimeError: If it is made in any but the main process.
    """

    def __init__(self, log_folder: str | os.PathLike[str] = "csvlogs", *, append: bool = False) -> None:
        super().__init__()
        self.log_folder = Path(log_folder)
        self.log_folder.mkdir(parents=True, exist_ok=True)
        self._training = _Table(self.log_folder / TRAINING_FILE, append=append)
        self._evaluation = _Table(self.log_folder / EVALUATION_FILE, append=append)
        self._training_exp: int | str = ""
        self._values: dict[tuple[str, str], Row] = {}  # of this evaluation, by stream and eval_exp

    def log_single_metric(self, name: str, value: Any, x_plot: int) -> None:
        """Keep a number until the end of the evaluation; figures have no place in a table."""
        found = _PHASE.search(name)
        if found is None or found[1] != "eval" or not isinstance(value, (int, float)):
            return
        row = self._values.setdefault((found["stream"] or "", found["set"] or ""), {})
        row[_column(name, found)] = value

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Note which experience is trained."""
        self._training_exp = strategy.experience.current_experience

    def after_training_epoch(
        self, strategy: SupervisedTemplate, metric_values: list[MetricValue], **kwargs: Any
    ) -> None:
        """Write a row."""
        row: Row = {"training_exp": self._training_exp, "epoch": strategy.clock.train_exp_epochs}
        for name, value in _flat(metric_values):
            found = _PHASE.search(name)
            if found is not None and found[1] == "train" and isinstance(value, (int, float)):
                row[_column(name, found)] = value
        self._training.add([row])

    def before_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Begin the rows of an evaluation."""
        self._values = {}

    def after_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Write the rows of the evaluation, the stream as a whole last."""
        rows = [
            {
                "training_exp": self._training_exp,
                "stream": stream,
                "eval_exp": int(nested_set) if nested_set else "",
                **values,
            }
            for (stream, nested_set), values in sorted(
                self._values.items(), key=lambda item: (item[0][1] == "", item[0][1])
            )
        ]
        self._evaluation.add(rows)


class _Table:
    """Rows of a CSV file whose columns may grow."""

    def __init__(self, path: Path, *, append: bool) -> None:
        self._path = path
        self._rows: list[Row] = []
        if append and path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                self._rows = [dict(row) for row in csv.DictReader(file)]

    def add(self, rows: list[Row]) -> None:
        self._rows += rows
        columns = list(dict.fromkeys(column for row in self._rows for column in row))
        half = self._path.with_name(self._path.name + ".tmp")
        with half.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(self._rows)
        half.replace(self._path)


def _flat(metrics: list[MetricValue]) -> Iterator[tuple[str, Any]]:
    """Names and values; the values of each class by themselves, as Avalanche's `log_metrics` names them."""
    for metric in metrics:
        if isinstance(metric.value, dict):
            yield from ((f"{metric.name}/{key}", value) for key, value in metric.value.items())
        else:
            yield metric.name, metric.value


def _column(name: str, found: re.Match[str]) -> str:
    """The name without phase, stream and experience: ``AP_Nested/person``."""
    return name[: found.start()] + name[found.end() :]
