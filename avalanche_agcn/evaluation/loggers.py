"""Loggers, for the main process: CSV files, Weights & Biases, and progress."""

import csv
import io
import os
import re
import sys
import uuid
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, TextIO

from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metric_results import AlternativeValues, MetricValue
from avalanche.logging import BaseLogger, TextLogger, WandBLogger
from avalanche.training.templates import SupervisedTemplate
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from avalanche_agcn.benchmarks.experience import origin_of
from avalanche_agcn.checks import naming_file
from avalanche_agcn.evaluation.plugins import NestedPluginMetric

# name/eval_phase/test_stream/Task000/Exp003/person: the rest of a name is the column.
_PHASE = re.compile(r"/(train|eval)_phase(?:/(?P<stream>\w+?)_stream)?(?:/Task\d+)?(?:/Exp(?P<set>\d+))?")
Row = dict[str, Any]


class MultiLabelCSVLogger(BaseLogger, SupervisedPlugin):
    """Writes ``training_results.csv`` and ``eval_results.csv``, with a column for each metric.

    Training has a row for each epoch. Evaluation has a row for each experience or nested set (``eval_exp``),
    then one for the whole stream (``eval_exp`` is empty); ``training_exp`` is the last experience trained on.
    A metric that appears later gets a new column; cells without a value are empty. Files are replaced
    atomically. With ``append``, those of an earlier run are continued. Experiences are numbered from 0, as in
    Avalanche's names of metrics. (Avalanche's `CSVLogger` writes only accuracy and loss.)
    """

    def __init__(self, log_folder: str | os.PathLike[str] = "csvlogs", *, append: bool = False) -> None:
        super().__init__()
        self.log_folder = Path(log_folder)
        self.log_folder.mkdir(parents=True, exist_ok=True)
        self._rows: dict[str, list[Row]] = {"training": [], "eval": []}
        for phase, rows in self._rows.items():
            path = self.log_folder / f"{phase}_results.csv"
            if append and path.exists():
                rows += csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        self._training_exp: int | str = ""
        self._train_values: Row = {}
        self._eval_values: dict[tuple[str, str], Row] = {}  # by stream and experience

    def continue_at(self, experience: int, epoch: float) -> None:
        """Discard rows of an earlier run at or after the epoch that it continues with.

        These were written after its last state was saved. ``epoch`` is infinity if only the evaluation of the
        experience is left.
        """
        self._training_exp = experience
        trained = [row for row in self._rows["training"] if _numbers(row, "epoch") < (experience, epoch)]
        evaluated = [row for row in self._rows["eval"] if _numbers(row) < (experience,)]
        self._rows = {"training": trained, "eval": evaluated}

    def log_single_metric(self, name: str, value: Any, x_plot: int) -> None:
        """Keep a number until its row is written; plots are ignored."""
        found = _PHASE.search(name)
        if found is not None and isinstance(value, (int, float)):
            row = self._train_values
            if found[1] == "eval":
                row = self._eval_values.setdefault((found["stream"] or "", found["set"] or ""), {})
            row[name[: found.start()] + name[found.end() :]] = value  # such as AP_Nested/person

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Remember which experience is trained."""
        self._training_exp = strategy.experience.current_experience

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Discard the values of a single batch."""
        self._train_values.clear()

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Write a row."""
        row = {"training_exp": self._training_exp, "epoch": strategy.clock.train_exp_epochs}
        self._write("training", [row | self._train_values])
        self._train_values.clear()

    def before_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Discard the values of an evaluation that did not finish."""
        self._eval_values.clear()

    def after_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Write the rows of the evaluation, the whole stream last."""
        of_experiences: list[Row] = []
        of_streams: list[Row] = []
        for (stream, experience), values in self._eval_values.items():
            row = {"training_exp": self._training_exp, "stream": stream, "eval_exp": ""}
            if experience:
                of_experiences.append({**row, "eval_exp": int(experience), **values})
            else:
                of_streams.append({**row, **values})
        of_experiences.sort(key=lambda row: row["eval_exp"])
        self._write("eval", of_experiences + of_streams)

    def _write(self, phase: str, rows: list[Row]) -> None:
        self._rows[phase] += rows
        columns: dict[str, None] = {}  # in order of appearance
        for row in self._rows[phase]:
            columns |= dict.fromkeys(row)
        path = self.log_folder / f"{phase}_results.csv"
        temporary = path.with_name(path.name + ".tmp")
        with naming_file(path), temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(columns), restval="")
            writer.writeheader()
            writer.writerows(self._rows[phase])
        temporary.replace(path)


def _numbers(row: Row, *columns: str) -> tuple[float, ...]:
    """``training_exp`` and further columns of a row; -1 where there is no number, as before any training."""
    cells = [str(row.get(column)) for column in ("training_exp", *columns)]
    return tuple(int(cell) if cell.isdecimal() else -1 for cell in cells)


class MultiLabelWandBLogger(WandBLogger):
    """Logs numbers and plots to Weights & Biases, online or (``params={"mode": "offline"}``) to a folder.

    Avalanche 0.6's `WandBLogger` calls functions that wandb no longer has. This one gives the run its own id,
    unless ``params["id"]`` or the variable WANDB_RUN_ID does, and logs plots as images. ``params`` are
    arguments of ``wandb.init``, ``settings`` of `WandBLogger`: with ``log_artifacts=True`` and Avalanche's
    `WeightCheckpoint` among the metrics, the model of each experience is logged as an artifact.
    """

    def __init__(
        self,
        project_name: str = "avalanche-agcn",
        run_name: str = "run",
        *,
        params: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        run_id = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8]
        super().__init__(project_name, run_name, params={"id": run_id, **(params or {})}, **settings)

    def log_single_metric(self, name: str, value: Any, x_plot: int) -> None:
        """Log a number, a plot or (on request) a checkpoint at step ``x_plot``, and nothing else."""
        if name.startswith("WeightCheckpoint"):
            super().log_single_metric(name, value, x_plot)
            return
        self.step = x_plot
        if isinstance(value, AlternativeValues):
            value = value.best_supported_value(Figure, float, int)
        if isinstance(value, Figure):  # rendered here, because wandb renders figures of pyplot only
            file = io.BytesIO()
            value.savefig(file, format="png")
            value = self.wandb.Image(Image.open(file))
        elif not isinstance(value, (float, int)):
            return
        self.wandb.log({name: value}, step=x_plot)


class ProgressBar(BaseLogger, SupervisedPlugin):
    """Shows a progress bar with mean loss and images per second for each epoch and each evaluation.

    The bar of an epoch replaces that of the epoch before, so that an experience leaves one line. Experiences
    are counted from 1. ``file`` is standard output if None; ``seconds`` between updates are, if None, 0.1 on
    a terminal and 30 elsewhere. A bar that ends within ``delay`` seconds is not shown.
    """

    def __init__(
        self, file: TextIO | None = None, *, seconds: float | None = None, delay: float = 0.0
    ) -> None:
        super().__init__()
        self.file = sys.stdout if file is None else file
        if seconds is None:
            seconds = 0.1 if self.file.isatty() else 30.0
        self._seconds = seconds
        self._delay = delay
        self._bars: list[_LossBar] = []  # of training, and of an evaluation during training

    def before_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Start the bar of an epoch; that of the last epoch stays on the screen."""
        label = f"train {_name_experiences([strategy.experience])}"
        epoch = strategy.clock.train_exp_epochs + 1
        n_epochs = strategy.train_epochs
        if n_epochs > 1:
            label += f", epoch {epoch} of {n_epochs}"
        self._start_bar(label, len(strategy.dataloader), leave=epoch >= n_epochs)

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count a batch."""
        self._bars[-1].count_batch(strategy.loss, len(strategy.mb_x))

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Close the bar before metrics are printed."""
        self._bars.pop().close()
        super().after_training_epoch(strategy, *args, **kwargs)

    def before_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Start the bar of all evaluated experiences."""
        super().before_eval(strategy, *args, **kwargs)
        stream: Any = strategy.current_eval_stream
        known = [] if isinstance(stream, Iterator) else list(stream)  # reading it here would exhaust it
        n_batches = sum(-(-len(experience.dataset) // strategy.eval_mb_size) for experience in known)
        self._start_bar(f"eval {_name_experiences(known)}", n_batches)

    after_eval_iteration = after_training_iteration

    def after_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Close the bar before metrics are printed."""
        self._bars.pop().close()
        super().after_eval(strategy, *args, **kwargs)

    def _start_bar(self, label: str, n_batches: int, *, leave: bool = True) -> None:
        # Position 0 also for a bar within another one: otherwise tqdm writes cursor movements, also to files.
        bar = _LossBar(
            total=n_batches,
            desc=label,
            file=self.file,
            dynamic_ncols=True,
            position=0,
            unit="batch",
            leave=leave,
            mininterval=self._seconds,
            delay=self._delay,
            miniters=1,
        )
        self._bars.append(bar)


def _name_experiences(experiences: Sequence[Any]) -> str:
    """Experiences in words, counted from 1: "experience 2 of 4", "experiences 1 to 3 of 4"."""
    whole = [origin_of(experience) for experience in experiences]  # of a piece, what it was cut from
    numbers = sorted({experience.current_experience + 1 for experience in whole})
    if not numbers:
        return "experiences"
    text = f"experience {numbers[0]}"
    if len(numbers) > 1:
        text = f"experiences {numbers[0]} to {numbers[-1]}"
    stream = getattr(whole[0], "origin_stream", None)
    return f"{text} of {len(stream)}" if isinstance(stream, Sized) else text


class _LossBar(tqdm):
    """A tqdm bar that also shows mean loss and images per second."""

    monitor_interval = 0  # no thread that redraws the bar when batches are slow
    loss_sum: Tensor | float = 0.0
    n_images = 0

    def count_batch(self, loss: Tensor, n_images: int) -> None:
        self.loss_sum = self.loss_sum + loss.detach().mean() * n_images
        self.n_images += n_images
        self.update()

    @property
    def format_dict(self) -> dict[str, Any]:
        # tqdm reads this when it draws the bar. Only then is the loss read, as that waits for a GPU.
        fields = super().format_dict
        if self.n_images:
            speed = f"{self.n_images / max(fields['elapsed'], 1e-9):.1f} images/s"
            loss = float(self.loss_sum) / self.n_images
            # Exactly 0 for a method without a loss, such as StreamingRidge: then there is nothing to show.
            fields["postfix"] = f"loss {loss:.4f}, {speed}" if loss else speed
        return fields


class ProgressLogger(ProgressBar, TextLogger):
    """A `ProgressBar` that also prints metrics, like `TextLogger` but with one line for all nested sets."""

    def before_eval_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Print nothing: the bar shows all experiences."""

    def after_eval_exp(self, strategy: Any, metric_values: list[MetricValue], **kwargs: Any) -> None:
        """Print metrics of single experiences, if there are any."""
        if metric_values:
            self._bars[-1].clear()
            super().after_eval_exp(strategy, metric_values, **kwargs)

    def log_metrics(self, metric_values: list[MetricValue]) -> None:
        """Keep the values to print; those of a nested metric form one line for each of mAP, CF1 and so on."""
        lines: dict[str, dict[tuple[str, bool], str]] = {}
        for emitted in metric_values:
            if not (isinstance(emitted.origin, NestedPluginMetric) and isinstance(emitted.value, float)):
                super().log_metrics([emitted])
                continue
            name, _, stream, *nested_set = emitted.name.split("/")  # mAP_Nested/eval_phase/test_stream/Exp003
            metric, _, kind = name.rpartition("_")
            line = lines.setdefault(f"{metric} of {stream.removesuffix('_stream')} stream", {})
            key = kind, bool(nested_set)  # Forgetting is of each set, and of the whole stream
            line[key] = f"{line.get(key, kind)} {emitted.value:.4f}"
        for name, line in lines.items():
            self.log_single_metric(name, ", ".join(line.values()), 0)
