"""One run: one method with one seed, from the first experience of the stream to the last."""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from avalanche.logging import BaseLogger

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.evaluation import find_nested
from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments import build, checkpoint, folder
from avalanche_agcn.experiments.checkpoint import LOWER_RATE, CheckpointPlugin, Diverged, State
from avalanche_agcn.experiments.exit_codes import Stopped, requested_signal, stop_between_batches
from avalanche_agcn.experiments.features import feature_benchmark
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
from avalanche_agcn.models.forward import check_device, unwrap
from avalanche_agcn.models.saved import BACKBONE_SETTINGS, DESCRIPTION, TENSORS, model_name, pack_model
from avalanche_agcn.training import AGCN, CSC
from avalanche_agcn.training.distributed import from_first_process, is_first_process
from avalanche_agcn.training.strategies import MultiLabelTemplate, TrainsJointly
from avalanche_agcn.training.strategies.closed_form import ClosedForm

STUDY_STEPS, MAX_EPOCHS = 750, 25
"""Steps of the study that chose the settings (6,000 photos in batches of 8), and maximum of epochs."""


def keep_freed_memory() -> bool:
    """Let glibc keep the RAM of freed tensors for the next ones; return whether it accepted the settings.

    By default it returns the RAM of every large tensor to the system and requests it again, page by page, at
    each layer of each step: on a CPU that can take as long as the layer itself.
    """
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # of glibc's malloc.h
    values = {m_mmap_max: 0, m_trim_threshold: 2**31 - 1, m_top_pad: 64 * 2**20}
    try:
        return all(ctypes.CDLL(None).mallopt(name, value) == 1 for name, value in values.items())
    except (OSError, TypeError, AttributeError):  # another C library
        return False


class Run:
    """A run in its folder ``out/<method>-seed<k>``: trains, evaluates after each experience, saves.

    A finished run with the same settings is not repeated. One with other settings or on other data raises
    `OtherRun`, and an unfinished one `UnfinishedRun`, unless it is resumed or overwritten: ``resume``
    continues from its state, if there is one, and ``overwrite`` starts from the beginning, whatever the
    folder has. If another process runs in the folder, `FolderInUse` is raised.

    Args:
        benchmark: one of your own, instead of that of the settings.
        after_experience: receives the results so far, after each experience.

    Attributes:
        kept: results of the finished run in the folder; then there is no ``strategy``.
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
        self._is_first = is_first_process()  # of several processes, only the first logs and writes
        self.settings = settings if benchmark is None else build.describe_benchmark(settings, benchmark)
        self.log = log if self._is_first else lambda message: None
        self.after_experience = after_experience if self._is_first else None
        self.folder, self._overwrite = Path(out) / settings.name, overwrite
        with contextlib.ExitStack() as stack:  # releases the folder if anything below fails
            if self._is_first:
                folder.lock_folder(self.folder)
                stack.callback(folder.release_folder, self.folder)
            from_first_process(None)  # a barrier: no process reads the folder before it is locked
            self.kept, state = None, None
            if not overwrite:
                self.kept, state = folder.read_folder(self.folder, self.settings, resume, self.log)
            self._open_data(benchmark)
            saved = self.kept.data if self.kept else (state or {}).get("data")
            folder.check_data(self.folder, saved, self.data)
            if self.kept is None:
                self._build(state, loggers)
            self._lock = stack.pop_all()

    def _open_data(self, benchmark: MultiLabelBenchmark | None) -> None:
        check_device(self.settings.device)
        checkpoint.seed_everything(self.settings.seed)
        # The network comes first, because photos are normalised for it. A finished run needs none.
        self.backbone: Any = build.make_backbone(self.settings) if self.kept is None else None
        if benchmark is None:
            if self.backbone is not None:
                self.backbone.check_image_size(self.settings.image_size)
            benchmark = build.make_benchmark(self.settings, self.backbone, self.log)
        self.benchmark = benchmark
        self._log(str(self.benchmark))
        self.data = folder.data_fingerprint(self.benchmark.plan)

    def _build(self, state: State | None, loggers: Sequence[BaseLogger]) -> None:
        """Make the strategy, and restore the state if there is one."""
        settings = self.settings
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.experience, self.trained = 0, False
        self._started = time.monotonic()
        network: Any = self.backbone
        self.images = self.benchmark
        self.recorder = EvaluationRecorder(self.benchmark, stream=self._evaluation_stream.name)
        if settings.freeze_backbone:
            how = settings.select("cache", "num_workers", "device") | {"batch_size": settings.eval_mb_size}
            self.benchmark = feature_benchmark(self.benchmark, network, log=self.log, **how)
            network = Precomputed(network.num_features)
        parts: Any = {"plugins": [self.recorder], "evaluator": build.make_evaluator(loggers)}
        self.strategy = build.make_strategy(settings, network, self.benchmark.class_names, **parts)
        self.strategy.train_epochs = self.n_epochs
        self.checkpoints = CheckpointPlugin(self._save, minutes=settings.checkpoint_minutes)
        if state is not None:
            self._restore(state)
        estimate = EstimatePlugin(*self._count_remaining(), self.folder, self._log)
        # After all plugins that take part in training, and before the evaluator.
        end = self.strategy.plugins.index(self.strategy.evaluator)
        self.strategy.plugins[end:end] = [estimate, self.checkpoints]

    def _log(self, text: str) -> None:
        self.log(f"{self.settings.name}: {text}")

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
        """Epochs of each experience; unless the settings have a number, one for methods in closed form."""
        if self.settings.train_epochs is not None or isinstance(self.strategy, ClosedForm):
            return self.settings.train_epochs or 1
        n_images = sum(map(len, self.benchmark.plan.train.positions))
        return max(1, min(MAX_EPOCHS, round(STUDY_STEPS * self.settings.train_mb_size / n_images)))

    def _count_remaining(self) -> tuple[int, int]:
        """Train batches, and images to evaluate, of the remaining experiences."""
        sizes = [len(experience.dataset) for experience in self._evaluation_stream]
        remaining = range(len(sizes) - 1 if self._at_once else self.experience, len(sizes))
        n_evaluated = sum(sum(sizes[: t + 1]) for t in remaining)
        return self.n_epochs * sum(self._count_batches()[self.experience :]), n_evaluated

    def _count_batches(self) -> list[int]:
        """Batches per epoch of each time that the run trains."""
        data = self.benchmark
        datasets = [data.complete_train_dataset] if self._at_once else [e.dataset for e in data.train_stream]
        return [math.ceil(len(dataset) / self.settings.train_mb_size) for dataset in datasets]

    def run(self) -> Results:
        """Train and evaluate the remaining experiences, and write ``results.json``.

        Raises:
            Stopped: if the process receives a signal (`handle_signals`); the state is saved.
            Diverged: if the loss is not finite; the last saved state is kept.
        """
        path = self.folder / RESULTS_FILE
        with self._lock:
            if self.kept is not None:
                self._log(f"finished before; its results in {path} are kept (--overwrite repeats the run)")
                return self.kept
            if self._overwrite and self._is_first:
                models = [old for kind in (TENSORS, DESCRIPTION) for old in self.folder.glob(f"model*{kind}")]
                for old in (path, self.folder / folder.STATE_FILE, *models):
                    old.unlink(missing_ok=True)
            while self.experience < self.n_experiences:
                self._run_experience()
            results = self.results()
            if self._is_first:
                results.write(path)
            self._log(f"results are in {path}")
            return results

    def _run_experience(self) -> None:
        # A state is saved after training and after evaluation, so that neither is repeated.
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
        self._log_progress()
        if self.after_experience is not None:
            self.after_experience(self.results())

    def _timed(self, part: str, work: Callable[[], None]) -> None:
        self._started = time.monotonic()
        work()
        self.seconds[part] += time.monotonic() - self._started

    def _train(self) -> None:
        data = self.benchmark if self._at_once else self.benchmark.train_stream[self.experience]
        try:
            self.strategy.train(data, eval_streams=[], num_workers=self.settings.num_workers)
        except RuntimeError as error:
            # A signal to all processes also kills the loader workers, before the next batch arrives.
            if requested_signal() and "DataLoader worker" in str(error):
                self.checkpoints.save()
                raise Stopped(requested_signal()) from None
            raise
        # The last step may have made weights that are not finite; such a state is not saved.
        if not all(tensor.isfinite().all() for tensor in self.strategy.model.parameters()):
            raise Diverged(f"weights are not finite after experience {self.experience + 1}: {LOWER_RATE}")

    def _evaluate(self) -> None:
        n = self.benchmark.n_experiences if self._at_once else self.experience + 1
        stream = self._evaluation_stream
        self.strategy.eval(stream[:n], num_workers=self.settings.num_workers)
        self.recorder.keep_class_ap(find_nested(self.strategy).average_precision[stream.name])

    def _log_progress(self) -> None:
        history = find_nested(self.strategy).history[self._evaluation_stream.name]
        scores = ", ".join(f"{metric} {100 * history[metric][-1][-1]:.1f}" for metric in METRICS)
        done, used = self.experience, sum(self.seconds.values())
        self._log(
            f"experience {done} of {self.n_experiences}: {scores} on classes seen; {used:.0f} s used, about "
            f"{used / done * (self.n_experiences - done):.0f} s left"
        )

    def results(self) -> Results:
        """Results so far, in percent."""
        nested, settings, plan = find_nested(self.strategy), self.settings, self.benchmark.plan
        stream, names = self._evaluation_stream.name, self.benchmark.class_names
        ap = _percent(nested.average_precision[stream].tolist())
        ap += [None] * (len(names) - len(ap))  # for later classes
        acm = self.strategy.acm.acm.matrix().tolist() if isinstance(self.strategy, (AGCN, CSC)) else None
        truth = train_cooccurrence(plan) if acm else None
        used = {"train": plan.train.positions, stream: plan.evaluation[stream].positions}
        return Results(
            benchmark=build.BENCHMARK_NAMES[settings.benchmark],
            **settings.select("method", "seed"),
            settings=settings.as_dict(),
            class_names=names,
            classes_per_experience=self.benchmark.classes_per_experience,
            nested={metric: [_percent(row) for row in nested.history[stream][metric]] for metric in METRICS},
            per_class_ap=dict(zip(names, ap, strict=True)),
            seconds=self.seconds | {"total": sum(self.seconds.values())},
            environment=describe_environment(),
            acm=acm,
            cooccurrence=None if truth is None else truth.tolist(),
            stages={
                name: _percent(getattr(stage, name, math.nan) for stage in nested.stages[stream])
                for name in StageScores._fields  # stages may be None before the end
            },
            data=self.data,
            n_images={name: list(map(len, positions)) for name, positions in used.items()},
            stored=checkpoint.count_stored(self.strategy),
            **self.recorder.as_results(settings.dataset_root),
        )

    def _save_model(self) -> None:
        """Write the model for predictions; with ``keep_models`` also a copy for this experience."""
        settings = self.settings
        about = {"benchmark": build.BENCHMARK_NAMES[settings.benchmark], "experience": self.experience}
        content, description = pack_model(
            unwrap(self.strategy.model),
            self.backbone,
            network={"name": settings.backbone, **settings.select(*BACKBONE_SETTINGS)},
            by_name=settings.freeze_backbone and settings.pretrained,
            transform=self.images.plan.eval_transform,
            class_names=self.benchmark.class_names,
            # Thresholds chosen on test images would make scores on them too good.
            thresholds=self.recorder.best_thresholds() if settings.validation_size else None,
            about=about | settings.select("method", "label", "seed"),
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
            checkpoint.save_state(self.folder / folder.STATE_FILE, state)

    def _restore(self, state: State) -> None:
        """Continue from a saved state, which may be of another version."""
        with checkpoint.fitting_state(self.folder / folder.STATE_FILE):
            position, self.seconds = state["position"], dict(state["seconds"])
            self.experience, self.trained = position["experience"], position["trained"]
            if not 0 <= self.experience <= self.n_experiences:
                raise ValueError(f"it is at experience {self.experience} of {self.n_experiences}")
            checkpoint.restore(self.strategy, state, self.benchmark.train_stream)
            if (within := position["within"]) is not None:
                n_batches = self._count_batches()[self.experience]
                if not (0 <= within["epoch"] < self.n_epochs and 0 <= within["batch"] <= n_batches):
                    raise ValueError(f"it is at batch {within['batch']} of epoch {within['epoch']}")
                checkpoint.check_optimizer(self.strategy.optimizer, state["optimizer"])
                self.checkpoints.resume(within, state)
            if self.experience:
                self.results()  # fails now, not after the next experience, if scores are missing
        self._log(f"continuing with experience {self.experience + 1}")


def _percent(fractions: Iterable[float]) -> list[float | None]:
    return [none_if_nan(100 * value) for value in fractions]
