"""Progress of training and evaluation: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from avalanche.logging import TextLogger
from torch import Tensor
from tqdm import tqdm

if TYPE_CHECKING:
    from avalanche.evaluation.metric_results import MetricValue
    from avalanche.training.templates import SupervisedTemplate

__all__ = ["ProgressLogger"]

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_REFRESHES = 0.2
WIDTH_OF_UNKNOWN_TERMINALS = 100
_OF_SET = re.compile(r"(?P<name>.+)/Exp(?P<set>\d+)$")
_OF_FIGURE = re.compile(r"(?P<figure>[^_/]+)_(?P<kind>[^/]+)(?P<path>/.+)$")


class ProgressLogger(TextLogger):
    """Prints metrics, and while batches run by shows the running loss and images per second.

    On a terminal that is a progress bar; elsewhere a line now and then, and one at the end of each epoch or
    experience. Metrics follow as `TextLogger` prints them, but with a line for all nested sets.

    Args:
        file: Where to write; standard output if None.
        seconds: Elsewhere than on a terminal, seconds between lines.
        metrics: Whether to print metrics and phases too, or progress alone.

    Raises:
        RuntimeError: If it is made in any but the main process.
    """

    def __init__(
        self, file: TextIO | None = None, *, seconds: float = SECONDS_BETWEEN_LINES, metrics: bool = True
    ) -> None:
        self._progress_file: TextIO = sys.stdout if file is None else file
        super().__init__(file=self._progress_file if metrics else _Nowhere())
        self.metric_vals: dict[str, tuple[str, int, Any]] = {}
        self._seconds = seconds
        self._running: list[_Progress] = []  # training, and evaluation in the midst of it

    def before_training_epoch(
        self, strategy: SupervisedTemplate, metric_values: list[MetricValue], **kwargs: Any
    ) -> None:
        """Start the progress of an epoch."""
        super().before_training_epoch(strategy, metric_values, **kwargs)
        self._start(strategy, f"train exp {strategy.experience.current_experience}")

    def after_training_iteration(
        self, strategy: SupervisedTemplate, metric_values: list[MetricValue], **kwargs: Any
    ) -> None:
        """Count a batch."""
        super().after_training_iteration(strategy, metric_values, **kwargs)
        self._advance(strategy)

    def after_training_epoch(
        self, strategy: SupervisedTemplate, metric_values: list[MetricValue], **kwargs: Any
    ) -> None:
        """End the progress, then print metrics."""
        self._end()
        super().after_training_epoch(strategy, metric_values, **kwargs)

    def before_eval_exp(
        self, strategy: SupervisedTemplate, metric_values: list[MetricValue], **kwargs: Any
    ) -> None:
        """Start the progress of an experience."""
        super().before_eval_exp(strategy, metric_values, **kwargs)
        self._start(strategy, f"eval exp {strategy.experience.current_experience}")

    def after_eval_iteration(
        self, strategy: SupervisedTemplate, metric_values: list[MetricValue], **kwargs: Any
    ) -> None:
        """Count a batch."""
        super().after_eval_iteration(strategy, metric_values, **kwargs)
        self._advance(strategy)

    def after_eval_exp(
        self, strategy: SupervisedTemplate, metric_values: list[MetricValue], **kwargs: Any
    ) -> None:
        """End the progress, then print metrics."""
        self._end()
        super().after_eval_exp(strategy, metric_values, **kwargs)

    def print_current_metrics(self) -> None:
        """Print the metrics, those that belong together in one line."""
        numbers = {
            name: value for name, (_, _, value) in self.metric_vals.items() if isinstance(value, float)
        }
        lines = [f"{label} = {text}" for label, text in join_metrics(numbers).items()]
        others = {name: value for name, value in self.metric_vals.items() if name not in numbers}
        for line in sorted(lines):
            print(f"\t{line}", file=self.file)
        self.metric_vals = others
        super().print_current_metrics()

    def _start(self, strategy: SupervisedTemplate, label: str) -> None:
        total = len(strategy.dataloader)  # type: ignore[arg-type]
        self._running.append(_make_progress(label, total, self._progress_file, self._seconds))

    def _advance(self, strategy: SupervisedTemplate) -> None:
        self._running[-1].advance(strategy.loss, len(strategy.mb_x))

    def _end(self) -> None:
        self._running.pop().end()


def join_metrics(values: Mapping[str, float]) -> dict[str, str]:
    """Text for metrics by name: a line for all nested sets, and one for all summaries of a figure.

    Example:
        >>> join_metrics({"mAP_Nested/eval/Exp000": 0.5, "mAP_Nested/eval/Exp001": 0.25})
        {'mAP_Nested/eval/Exp000..001': '0.5000 0.2500'}
        >>> join_metrics({"mAP_Last/eval": 0.5, "mAP_Average/eval": 0.25, "Loss_Stream/eval": 2.0})
        {'mAP/eval': 'Last 0.5000, Average 0.2500', 'Loss_Stream/eval': '2.0000'}
    """
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    for name, value in values.items():
        if found := _OF_SET.match(name):
            groups.setdefault((found["name"],), {})[found["set"]] = value
        elif found := _OF_FIGURE.match(name):
            groups.setdefault((found["figure"], found["path"]), {})[found["kind"]] = value
        else:
            groups[name, ""] = {"": value}
    return dict(_join(*item) for item in groups.items())


def _join(key: tuple[str, ...], members: dict[str, float]) -> tuple[str, str]:
    first, last = next(iter(members)), next(reversed(members))
    if len(key) == 1:  # nested sets
        sets = first if len(members) == 1 else f"{first}..{last}"
        return f"{key[0]}/Exp{sets}", " ".join(f"{value:.4f}" for value in members.values())
    figure, path = key
    if len(members) == 1:
        return f"{figure}_{first}{path}" if first else figure, f"{members[first]:.4f}"
    return f"{figure}{path}", ", ".join(f"{kind} {value:.4f}" for kind, value in members.items())


class _Nowhere(io.TextIOBase):
    """A file that forgets what is written."""

    def write(self, text: str) -> int:
        return len(text)


class _Progress(ABC):
    """Counts batches and shows where things stand every `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._started = self._shown = time.monotonic()
        self._loss: Tensor | float = 0.0
        self._images = self._batches = 0

    def advance(self, loss: Tensor, n_images: int) -> None:
        self._loss = self._loss + loss.detach().mean() * n_images  # not read here: that would wait for a GPU
        self._images += n_images
        self._batches += 1
        if time.monotonic() - self._shown >= self._interval:
            self._shown = time.monotonic()
            self.show()

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)

    @property
    def figures(self) -> str:
        loss = float(self._loss) / max(self._images, 1)
        return f"loss {loss:.4f}, {self._images / self.seconds:.1f} images/s"

    @abstractmethod
    def show(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...


class _Bar(_Progress):
    """A progress bar on a terminal."""

    def __init__(self, label: str, total: int, file: TextIO) -> None:
        super().__init__(SECONDS_BETWEEN_REFRESHES)
        sized = _has_size(file)
        width = None if sized else WIDTH_OF_UNKNOWN_TERMINALS
        self._bar = tqdm(total=total, desc=label, unit="batch", file=file, dynamic_ncols=sized, ncols=width)

    def show(self) -> None:
        self._bar.n = self._batches
        self._bar.set_postfix_str(self.figures)  # which redraws the bar

    def end(self) -> None:
        self.show()
        self._bar.close()


class _Lines(_Progress):
    """Lines in a file, or wherever a bar would leave a thousand lines."""

    def __init__(self, label: str, total: int, file: TextIO, interval: float) -> None:
        super().__init__(interval)
        self._label, self._total, self._file = label, total, file

    def show(self) -> None:
        left = self.seconds / self._batches * (self._total - self._batches)
        self._print(f"{self._batches}/{self._total} batches, {self.figures}, about {left:.0f} s left")

    def end(self) -> None:
        self._print(f"{self._images} images in {self.seconds:.1f} s, {self.figures}")

    def _print(self, text: str) -> None:
        print(f"{self._label}: {text}", file=self._file, flush=True)


def _make_progress(label: str, total: int, file: TextIO, interval: float) -> _Progress:
    if getattr(file, "isatty", lambda: False)():
        return _Bar(label, total, file)
    return _Lines(label, total, file, interval)


def _has_size(terminal: TextIO) -> bool:
    """Whether a terminal says how wide it is; in containers some have a width of 0."""
    try:
        return os.get_terminal_size(terminal.fileno()).columns > 0
    except OSError:
        return False
