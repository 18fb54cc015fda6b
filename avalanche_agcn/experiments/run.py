"""One run: one method with one seed, from the first experience of the stream to the last."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from avalanche.logging import BaseLogger
from torch import nn

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.evaluation import find_nested
from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments import checkpoint
from avalanche_agcn.experiments.build import (
    BENCHMARK_NAMES,
    check_device,
    describe_benchmark,
    make_backbone,
    make_benchmark,
    make_evaluator,
    make_strategy,
    normalise,
)
from avalanche_agcn.experiments.checkpoint import LOWER_RATE, CheckpointPlugin, Diverged, State
from avalanche_agcn.experiments.exit_codes import raise_if_requested, requested_signal, stop_between_batches
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.experiments.folder import (
    STATE_FILE,
    FolderContent,
    RunLock,
    data_fingerprint,
    read_folder,
)
from avalanche_agcn.experiments.recorder import EstimatePlugin, EvaluationRecorder
from avalanche_agcn.experiments.results import (
    METRICS,
    RESULTS_FILE,
    Results,
    describe_environment,
    none_if_nan,
    train_cooccurrence,
)
from avalanche_agcn.experiments.settings import Settings
from avalanche_agcn.models import Precomputed
from avalanche_agcn.models.backbones import Backbone
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.models.saved import BACKBONE_SETTINGS, DESCRIPTION, TENSORS, model_name, pack_model
from avalanche_agcn.training import AGCN, CSC
from avalanche_agcn.training.distributed import from_first_process, is_first_process
from avalanche_agcn.training.strategies import MultiLabelTemplate, TrainsJointly
from avalanche_agcn.training.strategies.closed_form import ClosedForm

STUDY_STEPS, MAX_EPOCHS = 750, 25
"""Steps of the study that settings were chosen in, 6,000 photos by 8; and most passes over fewer photos."""


def keep_freed_memory() -> bool:
    """Let the process keep the memory of freed tensors for the next ones, where the C library is glibc.

    By default glibc returns the memory of every large tensor to the system and asks for it again, page by
    page, at each layer of each step: on a CPU that can take as long as the layer itself. Returns whether the
    C library took the settings.
    """
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # of glibc's malloc.h
    values = {m_mmap_max: 0, m_trim_threshold: 2**31 - 1, m_top_pad: 64 * 2**20}
    try:
        return all(ctypes.CDLL(None).mallopt(name, value) == 1 for name, value in values.items())
    except (OSError, TypeError, AttributeError):  # another C library
        return False


class Run:
    """A run in its folder ``out/<method>-seed<k>``: trains, evaluates after each experience, saves.

    What the folder has is kept: a finished run with the same settings is not repeated, one with other
    settings or on other data is an error, and a run that was begun must be resumed or overwritten.

    Args:
        settings: what to do.
        out: folder for the folders of runs.
        resume: whether to continue from a saved state, if there is one.
        overwrite: whether to start from the beginning, whatever the folder has.
        benchmark: one of your own, in place of that of the settings.
        loggers: Avalanche loggers.
        log: receives messages.
        after_experience: receives the results so far, after each experience.

    Attributes:
        kept: results of the finished run that the folder has; then there is no ``strategy``.

    Raises:
        FolderInUse: if another process runs in the folder.
        OtherRun: if the folder has a run with other settings or on other data.
        BegunRun: if the folder has a run that was begun, without ``resume``.
    """

    strategy: MultiLabelTemplate

    def __init__(
        self,
        settings: Settings,
        out: str | Path,
        *,
        resume: bool = False,
        overwrite: bool = False,
        benchmark: MultiLabelBenchmark | None = None,
        loggers: Sequence[BaseLogger] = (),
        log: Callable[[str], None] = print,
        after_experience: Callable[[Results], None] | None = None,
    ) -> None:
        # Of several processes the first one alone logs and writes.
        self._is_first = is_first_process()
        self.settings = settings if benchmark is None else describe_benchmark(settings, benchmark)
        self.log = log if self._is_first else lambda message: None
        self.after_experience = after_experience if self._is_first else None
        self.folder, self._overwrite = Path(out) / settings.name, overwrite
        self._lock = RunLock(self.folder) if self._is_first else None
        try:
            from_first_process(None)  # a barrier: nobody reads the folder before it is locked
            content = FolderContent()
            if not overwrite:
                content = read_folder(self.folder, self.settings, resume, self.log)
            self.benchmark = self._open_data(content, benchmark)
            self.kept = content.results
            if self.kept is None:
                self._build(content.state, loggers)
        except BaseException:
            self._release()
            raise

    def _open_data(
        self, content: FolderContent, benchmark: MultiLabelBenchmark | None
    ) -> MultiLabelBenchmark:
        """The benchmark; its data must be those of the run that the folder has."""
        check_device(self.settings.device)
        checkpoint.seed_everything(self.settings.seed)
        benchmark = make_benchmark(self.settings, self.log) if benchmark is None else benchmark
        self._log(str(benchmark))
        self.data = data_fingerprint(benchmark.plan)
        content.check_data(self.folder, self.data)
        return benchmark

    def _build(self, state: State | None, loggers: Sequence[BaseLogger]) -> None:
        """Make the strategy, as the state left it if there is one."""
        settings = self.settings
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.experience, self.trained, self._epochs_done = 0, False, 0
        self._started = time.monotonic()
        self.backbone = make_backbone(settings)
        if settings.benchmark != "own":
            self.backbone.check_image_size(settings.image_size)
        self.benchmark = normalise(self.benchmark, settings, self.backbone)
        self.images = self.benchmark  # before features take their place
        self.recorder = EvaluationRecorder(self.benchmark, stream=self._evaluation_stream.name)
        network = self._freeze(self.backbone) if settings.freeze_backbone else self.backbone
        names, evaluator = self.benchmark.class_names, make_evaluator(loggers)
        self.strategy = make_strategy(settings, network, names, plugins=[self.recorder], evaluator=evaluator)
        self.checkpoints = CheckpointPlugin(self._save, minutes=settings.checkpoint_minutes)
        self.checkpoints.attach(self.strategy)
        if state is not None:
            self._restore(state)
        estimate = EstimatePlugin(*self._count_what_is_left(), self.folder, self._log)
        self.strategy.plugins.insert(self.strategy.plugins.index(self.checkpoints), estimate)

    def _log(self, text: str) -> None:
        self.log(f"{self.settings.name}: {text}")

    def _freeze(self, backbone: Backbone) -> nn.Module:
        """Put features of the backbone in the place of images; return the network that passes them on."""
        how = self.settings.select("num_workers", "device") | {"batch_size": self.settings.eval_mb_size}
        cache = self.settings.cache
        self.benchmark = feature_benchmark(self.benchmark, backbone, cache, log=self.log, **how)
        return Precomputed(backbone.num_features)

    @property
    def _at_once(self) -> bool:
        """Whether the method trains once, on all experiences."""
        return isinstance(self.strategy, TrainsJointly)

    @property
    def _evaluation_stream(self) -> Any:
        return self.benchmark.valid_stream if self.settings.validation_size else self.benchmark.test_stream

    @property
    def n_experiences(self) -> int:
        """Number of times the run trains: once for Multi-Task, else once per experience."""
        return 1 if self._at_once else self.benchmark.n_experiences

    @property
    def n_epochs(self) -> int:
        """Passes over each experience; unless the settings have a number, one for methods in closed form."""
        if self.settings.train_epochs is not None or isinstance(self.strategy, ClosedForm):
            return self.settings.train_epochs or 1
        n_images = sum(map(len, self.benchmark.plan.train.positions))
        return max(1, min(MAX_EPOCHS, round(STUDY_STEPS * self.settings.train_mb_size / n_images)))

    def _count_what_is_left(self) -> tuple[int, int]:
        """Train batches, and images to evaluate, of the experiences that are left."""
        evaluated = [len(experience.dataset) for experience in self._evaluation_stream]
        n_evaluated = sum(evaluated)
        if not self._at_once:
            n_evaluated = sum(sum(evaluated[: t + 1]) for t in range(self.experience, len(evaluated)))
        return self.n_epochs * sum(self._count_batches()[self.experience :]), n_evaluated

    def _count_batches(self) -> list[int]:
        """Batches per epoch of each time that the run trains."""
        datasets = [experience.dataset for experience in self.benchmark.train_stream]
        datasets = [self.benchmark.complete_train_dataset] if self._at_once else datasets
        return [math.ceil(len(dataset) / self.settings.train_mb_size) for dataset in datasets]

    def run(self) -> Results:
        """Train and evaluate the remaining experiences, and write ``results.json``.

        Raises:
            Stopped: if the process is asked to end (`handle_signals`); the state is saved.
            Diverged: if the loss is not finite; the last saved state is kept.
        """
        path = self.folder / RESULTS_FILE
        try:
            if self.kept is not None:
                self._log(f"finished before; its results in {path} are kept (--overwrite repeats the run)")
                return self.kept
            return self._run(path)
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _run(self, path: Path) -> Results:
        if self._overwrite and self._is_first:
            models = [model for kind in (TENSORS, DESCRIPTION) for model in self.folder.glob(f"model*{kind}")]
            for old in (path, self.folder / STATE_FILE, *models):
                old.unlink(missing_ok=True)
        while self.experience < self.n_experiences:
            # A state is saved after training and after evaluation, and the run resumes behind either.
            if not self.trained:
                with stop_between_batches():
                    self._timed("train", self._train)
                    self.trained = True
                    self._save()
            self._timed("eval", self._evaluate)
            self.experience, self.trained = self.experience + 1, False
            if self._is_first:
                self._save_model()
            self._save()
            self._report_progress()
            if self.after_experience is not None:
                self.after_experience(self.results())
        results = self.results()
        if self._is_first:
            results.write(path)
        self._log(f"results are in {path}")
        return results

    def _timed(self, part: str, work: Callable[[], None]) -> None:
        self._started = time.monotonic()
        work()
        self.seconds[part] += time.monotonic() - self._started

    def _train(self) -> None:
        # Whole epochs that were finished before a stop are left out here, batches of the next by the plugin.
        self.strategy.train_epochs = self.n_epochs - self._epochs_done
        self._epochs_done = 0
        data = self.benchmark if self._at_once else self.benchmark.train_stream[self.experience]
        try:
            self.strategy.train(data, eval_streams=[], num_workers=self.settings.num_workers)
        except RuntimeError as error:
            # A signal to all processes has ended the loader workers, too, before the next batch came.
            if requested_signal() and "DataLoader worker" in str(error):
                self.checkpoints.save()
                raise_if_requested()
            raise
        # The last step may have made weights that are not finite; such a state is not saved.
        if not all(tensor.isfinite().all() for tensor in self.strategy.model.parameters()):
            raise Diverged(f"weights are not finite after experience {self.experience + 1}: {LOWER_RATE}")

    def _evaluate(self) -> None:
        n = self.benchmark.n_experiences if self._at_once else self.experience + 1
        stream = self._evaluation_stream
        self.strategy.eval(stream[:n], num_workers=self.settings.num_workers)
        self.recorder.keep_class_ap(find_nested(self.strategy).average_precision[stream.name])

    def _report_progress(self) -> None:
        history = find_nested(self.strategy).history[self._evaluation_stream.name]
        scores = ", ".join(f"{metric} {100 * history[metric][-1][-1]:.1f}" for metric in METRICS)
        done, used = self.experience, sum(self.seconds.values())
        left = used / done * (self.n_experiences - done)
        self._log(
            f"experience {done} of {self.n_experiences}: {scores} on classes seen; "
            f"{used:.0f} s used, about {left:.0f} s left"
        )

    def results(self) -> Results:
        """Results so far, in percent."""
        nested, settings, plan = find_nested(self.strategy), self.settings, self.benchmark.plan
        stream, names = self._evaluation_stream.name, self.benchmark.class_names
        ap = nested.average_precision[stream].tolist()
        ap += [math.nan] * (len(names) - len(ap))  # of classes to come
        acm = self.strategy.acm.acm.matrix().tolist() if isinstance(self.strategy, (AGCN, CSC)) else None
        truth = train_cooccurrence(plan) if acm else None
        stages = nested.stages[stream]
        used = {"train": plan.train, stream: plan.evaluation[stream]}
        return Results(
            benchmark=BENCHMARK_NAMES[settings.benchmark],
            method=settings.method,
            seed=settings.seed,
            settings=settings.as_dict(),
            class_names=names,
            classes_per_experience=self.benchmark.classes_per_experience,
            nested={metric: [_percent(row) for row in nested.history[stream][metric]] for metric in METRICS},
            per_class_ap=dict(zip(names, _percent(ap), strict=True)),
            seconds=self.seconds | {"total": sum(self.seconds.values())},
            environment=describe_environment(),
            acm=acm,
            cooccurrence=None if truth is None else truth.tolist(),
            stages={
                name: _percent(getattr(stage, name, math.nan) for stage in stages)  # None before the end
                for name in StageScores._fields
            },
            data=self.data,
            n_images={name: [len(positions) for positions in own.positions] for name, own in used.items()},
            stored=checkpoint.count_stored(self.strategy),
            **self.recorder.as_results(settings.dataset_root),
        )

    def _save_model(self) -> None:
        """Write the model for predictions; with ``keep_models`` also under a name of its own."""
        settings = self.settings
        about = settings.select("method", "label", "seed")
        content, description = pack_model(
            unwrap(self.strategy.model),
            self.backbone,
            network={"name": settings.backbone, **settings.select(*BACKBONE_SETTINGS)},
            by_name=settings.freeze_backbone and settings.pretrained,
            transform=self.images.plan.eval_transform,
            class_names=self.benchmark.class_names,
            # Thresholds chosen on test images would make scores on them too good.
            thresholds=self.recorder.best_thresholds() if settings.validation_size else None,
            about={"benchmark": BENCHMARK_NAMES[settings.benchmark], **about, "experience": self.experience},
        )
        for after in (None, self.experience) if settings.keep_models else (None,):
            path = self.folder / model_name(after)
            checkpoint.write_atomically(path.with_suffix(TENSORS), lambda file: file.write(content))
            checkpoint.write_json(path.with_suffix(DESCRIPTION), description)

    def _save(self, within: State | None = None) -> None:
        """Save the state after an experience, or at a position within one."""
        seconds = dict(self.seconds)
        if within is not None:
            seconds["train"] += time.monotonic() - self._started
        state = {
            "settings": self.settings.as_dict(),
            "data": self.data,
            "position": {"experience": self.experience, "trained": self.trained, "within": within},
            "seconds": seconds,
            **checkpoint.capture(self.strategy),
        }
        if self._is_first:
            checkpoint.save_state(self.folder / STATE_FILE, state)

    def _restore(self, state: State) -> None:
        """Continue from a saved state, which may have been made by another version."""
        with checkpoint.fitting_state(self.folder / STATE_FILE):
            if state["layout"] != checkpoint.layout(self.strategy):
                raise ValueError("it is of another version of this package")
            position, self.seconds = state["position"], dict(state["seconds"])
            self.experience, self.trained = position["experience"], position["trained"]
            if not 0 <= self.experience <= self.n_experiences:
                raise ValueError(f"it is at experience {self.experience} of {self.n_experiences}")
            checkpoint.restore(self.strategy, state, self.benchmark.train_stream)
            if position["within"] is not None:
                self._resume_within(position["within"], state)
            if self.experience:
                self.results()  # fails now, not after the next experience, if scores are missing
        self._log(f"continuing with experience {self.experience + 1}")

    def _resume_within(self, within: State, state: State) -> None:
        n_batches = self._count_batches()[self.experience]
        if not (0 <= within["epoch"] < self.n_epochs and 0 <= within["batch"] <= n_batches):
            raise ValueError(f"it is at batch {within['batch']} of epoch {within['epoch']}")
        checkpoint.check_optimizer(self.strategy.optimizer, state["optimizer"])
        self.checkpoints.resume(within, state)
        self._epochs_done = within["epoch"]


def _percent(fractions: Iterable[float]) -> list[float | None]:
    return [none_if_nan(100 * value) for value in fractions]
