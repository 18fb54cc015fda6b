"""One method with one seed: the stream from its first to its last experience."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.evaluation import find_nested, multilabel_evaluator
from avalanche_agcn.experiments.acm_quality import train_cooccurrence
from avalanche_agcn.experiments.checkpoint import CheckpointPlugin, State, capture, layout, restore
from avalanche_agcn.experiments.environment import describe_environment
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.experiments.methods import check_device, make_backbone, make_benchmark, make_strategy
from avalanche_agcn.experiments.pictures import PictureScores
from avalanche_agcn.experiments.results import METRICS, Results, none_if_nan
from avalanche_agcn.experiments.settings import Settings, differences
from avalanche_agcn.experiments.state import DamagedState, load_state, save_state, seed_everything
from avalanche_agcn.models import Precomputed
from avalanche_agcn.training import AGCN, MultiTask

STATE_FILE, RESULTS_FILE = "state.bin", "results.json"
BENCHMARK_NAMES = {"coco": "SplitCOCO", "wide": "SplitWIDE", "scenes": "SplitScenes"}


def _evaluator(loggers: Sequence[BaseLogger]) -> EvaluationPlugin:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")  # then none are wanted
        return multilabel_evaluator(loggers=list(loggers), train_map=False)


class OtherSettings(ValueError):
    """A saved state is of a run with other settings."""


class Run:
    """A run in its folder ``out/<method>-seed<k>``: trains, evaluates after each experience, saves.

    Args:
        settings: What to do.
        out: Folder for the folders of runs.
        resume: Whether to go on from a saved state, if there is one.
        loggers: Avalanche loggers.
        say: Where messages go.

    Raises:
        OtherSettings: If the saved state is of other settings.
        ValueError: If a setting cannot be carried out here.
    """

    def __init__(
        self,
        settings: Settings,
        out: str | Path,
        *,
        resume: bool = False,
        loggers: Sequence[BaseLogger] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        self.settings, self.say = settings, say
        self.folder = Path(out) / settings.name
        check_device(settings.device)
        seed_everything(settings.seed)
        backbone = make_backbone(settings)
        self.benchmark: MultiLabelBenchmark = make_benchmark(settings, backbone)
        self.say(f"{settings.name}: {self.benchmark}")
        self.pictures = PictureScores(self.benchmark, stream=self._evaluation_stream.name)
        head_only = settings.freeze_backbone
        if head_only:
            self.benchmark = feature_benchmark(
                self.benchmark,
                backbone,
                settings.cache,
                batch_size=settings.eval_batch_size,
                workers=settings.workers,
                device=settings.device,
                say=say,
            )
        self.strategy = make_strategy(
            settings,
            Precomputed(backbone.num_features) if head_only else backbone,
            self.benchmark.class_names,
            plugins=[self.pictures],
            evaluator=_evaluator(loggers),
        )
        self.checkpoints = CheckpointPlugin(self._save_within, minutes=settings.checkpoint_minutes)
        self.checkpoints.attach(self.strategy)
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.experience, self.trained = 0, False
        self._within: State | None = None
        self._began = time.monotonic()
        if resume:
            self._resume()

    @property
    def n_experiences(self) -> int:
        """How often the run trains: once for Multi-Task, else once an experience."""
        return 1 if isinstance(self.strategy, MultiTask) else self.benchmark.n_experiences

    def go(self) -> Results:
        """Do what is left to do, and write ``results.json``."""
        while self.experience < self.n_experiences:
            if not self.trained:
                self._timed("train", self._train)
                self.trained = True
                self._save()
            self._timed("eval", self._evaluate)
            self.experience, self.trained = self.experience + 1, False
            self._save()
            self._report_progress()
        results = self.results()
        results.write(self.folder / RESULTS_FILE)
        self.say(f"{self.settings.name}: results are in {self.folder / RESULTS_FILE}")
        return results

    def results(self) -> Results:
        """What came out so far, in percent."""
        nested = find_nested(self.strategy)
        stream = self._evaluation_stream.name
        history, ap = nested.history[stream], nested.average_precision[stream].tolist()
        acm = self.strategy.acm.acm.matrix().tolist() if isinstance(self.strategy, AGCN) else None
        truth = train_cooccurrence(self.benchmark.plan) if acm else None
        return Results(
            benchmark=BENCHMARK_NAMES[self.settings.benchmark],
            method=self.settings.method,
            seed=self.settings.seed,
            settings=self.settings.as_dict(),
            class_names=self.benchmark.class_names,
            nested={
                metric: [[none_if_nan(100 * value) for value in row] for row in history[metric]]
                for metric in METRICS
            },
            per_class_ap={
                name: none_if_nan(100 * value)
                for name, value in zip(self.benchmark.class_names, ap, strict=True)
            },
            seconds=self.seconds | {"total": sum(self.seconds.values())},
            environment=describe_environment(),
            acm=acm,
            cooccurrence=None if truth is None else truth.tolist(),
            classes_per_experience=self.benchmark.classes_per_experience,
            pictures=self.pictures.as_results(self.settings.data),
        )

    @property
    def _evaluation_stream(self) -> Any:
        return self.benchmark.valid_stream if self.settings.validation else self.benchmark.test_stream

    def _train(self) -> None:
        epochs_done = 0 if self._within is None else self._within["epoch"]
        self.strategy.train_epochs = self.settings.epochs - epochs_done
        self._within = None
        multitask = isinstance(self.strategy, MultiTask)
        data = self.benchmark if multitask else self.benchmark.train_stream[self.experience]
        self.strategy.train(data, eval_streams=[], num_workers=self.settings.workers)

    def _evaluate(self) -> None:
        multitask = isinstance(self.strategy, MultiTask)
        n = self.benchmark.n_experiences if multitask else self.experience + 1
        self.strategy.eval(self._evaluation_stream[:n], num_workers=self.settings.workers)

    def _timed(self, part: str, work: Callable[[], None]) -> None:
        self._began = time.monotonic()
        work()
        self.seconds[part] += time.monotonic() - self._began

    def _report_progress(self) -> None:
        history = find_nested(self.strategy).history[self._evaluation_stream.name]
        figures = ", ".join(f"{metric} {100 * history[metric][-1][-1]:.1f}" for metric in METRICS)
        done, used = self.experience, sum(self.seconds.values())
        left = used / done * (self.n_experiences - done)
        self.say(
            f"{self.settings.name}: experience {done} of {self.n_experiences}: {figures} on classes seen; "
            f"{used:.0f} s used, about {left:.0f} s left"
        )

    def _save_within(self, within: State) -> None:
        """Save in the midst of training; the time until now counts."""
        so_far = self.seconds["train"]
        self.seconds["train"] += time.monotonic() - self._began
        self._save(within)
        self.seconds["train"] = so_far

    def _save(self, within: State | None = None) -> None:
        position = {"experience": self.experience, "trained": self.trained, "within": within}
        own = {"settings": self.settings.as_dict(), "position": position, "seconds": dict(self.seconds)}
        save_state(self.folder / STATE_FILE, own | capture(self.strategy))

    def _resume(self) -> None:
        path = self.folder / STATE_FILE
        try:
            state = load_state(path)
        except FileNotFoundError:
            self.say(f"{self.settings.name}: no {path} to go on from; starting from the beginning")
            return
        except DamagedState as error:
            self.say(f"{self.settings.name}: {error}; it is not used: starting from the beginning")
            return
        changed = differences(state["settings"], self.settings.as_dict())
        if changed:
            raise OtherSettings(
                f"{path} was saved with other settings ({'; '.join(changed)}); run with those, or choose "
                "another --out"
            )
        if state.get("layout") != layout(self.strategy):
            self.say(f"{self.settings.name}: {path} is of another version of this package; it is not used")
            return
        position, self.seconds = state["position"], state["seconds"]
        self.experience, self.trained, self._within = (
            position["experience"], position["trained"], position["within"],
        )  # fmt: skip
        restore(self.strategy, state, self.benchmark.train_stream)
        if self._within is not None:
            self.checkpoints.resume(self._within, state)
        self.say(f"{self.settings.name}: going on with experience {self.experience + 1}")
