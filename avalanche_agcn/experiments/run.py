"""One run: one method with one seed, from the first experience of the stream to the last."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from avalanche.logging import BaseLogger

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.continued import new_part
from avalanche_agcn.evaluation import MultiLabelCSVLogger, find_nested
from avalanche_agcn.evaluation.calibration import LEAST_POSITIVES
from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments import build, checkpoint, folder
from avalanche_agcn.experiments.checkpoint import LOWER_RATE, CheckpointPlugin, Diverged, State
from avalanche_agcn.experiments.continued import Continued, count_epochs, open_continued, open_features
from avalanche_agcn.experiments.exit_codes import Stopped, requested_signal, stop_between_batches
from avalanche_agcn.experiments.photos_file import PHOTOS_FILE, write_photos
from avalanche_agcn.experiments.recorder import EvaluationRecorder
from avalanche_agcn.experiments.results import (
    METRICS,
    RESULTS_FILE,
    Results,
    describe_environment,
    none_if_nan,
    train_cooccurrence,
)
from avalanche_agcn.experiments.settings import Settings, check_data_paths
from avalanche_agcn.experiments.thresholds import calibrate_run
from avalanche_agcn.methods.multi_task import TrainsJointly
from avalanche_agcn.models.forward import check_device, unwrap
from avalanche_agcn.models.saved import BACKBONE_SETTINGS, DESCRIPTION, TENSORS, model_name, pack_model
from avalanche_agcn.training import AGCN, CSC
from avalanche_agcn.training.distributed import from_first_process, is_first_process
from avalanche_agcn.training.template import MultiLabelTemplate

START_AGAIN = "give --overwrite to start from the beginning."
OTHER_VERSION = "install the versions that it was trained with, or run it again."


class Run:
    """A run in its folder ``out/<method>-seed<k>``: trains, evaluates after each experience, saves.

    A finished run with the same settings is not repeated. One with other settings or on other data raises
    `OtherRun`, and an unfinished one `UnfinishedRun`, unless it is resumed or overwritten: ``resume``
    continues from its state, if there is one, and ``overwrite`` starts from the beginning, whatever the
    folder has. If another process runs in the folder, `FolderInUse` is raised. With settings of
    `continue_settings`, the run begins where another one ended.

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
        self.folder = Path(out) / settings.name
        self._overwrite = overwrite
        with contextlib.ExitStack() as stack:  # releases the folder if anything below fails
            if self._is_first:
                stack.enter_context(folder.lock_folder(self.folder))
            from_first_process(None)  # a barrier: no process reads the folder before it is locked
            self.kept: Results | None = None
            state: State | None = None
            if not overwrite:
                self.kept, state = folder.read_folder(self.folder, self.settings, resume, self.log)
            self._open_data(benchmark)
            if self.kept is not None:
                folder.check_data(self.folder, self.kept.data, self.data)
            elif state is not None:
                folder.check_data(self.folder, state.get("data"), self.data)
                folder.check_data(self.folder, state.get("lists"), self.lists)
            if self.kept is None:
                self._build(state, loggers)
            self._lock = stack.pop_all()

    def _open_data(self, benchmark: MultiLabelBenchmark | None) -> None:
        check_device(self.settings.device)
        checkpoint.seed_everything(self.settings.seed)
        self.continued: Continued | None = None
        self.lists: dict[str, Any] = {}  # further fingerprints of a continued run
        check_data_paths(self.settings)
        # The network comes first, because photos are normalised for it. A finished run needs none.
        self.backbone: Any = build.make_backbone(self.settings) if self.kept is None else None
        if benchmark is None and self.backbone is not None:
            self.backbone.check_image_size(self.settings.image_size)
        if self.settings.continues is not None:
            self._open_continued()
        else:
            if benchmark is None:
                benchmark = build.make_benchmark(self.settings, self.backbone, self.log)
            self.benchmark = benchmark
            self.data = folder.data_fingerprint(self.benchmark.plan)
        self._log(str(self.benchmark))

    def _open_continued(self) -> None:
        """Open the parent's photos and the new ones, with the parent's settings."""
        self.continued = open_continued(self.settings, self.backbone, self.log)
        self.settings = self.continued.settings
        self.benchmark = self.continued.benchmark
        new_photos = new_part(self.benchmark.plan, self.continued.n_known)
        self.data = folder.data_fingerprint(new_photos)  # the parent has that of the others
        self.data[folder.PARENT] = self.continued.parent.fingerprint
        # Test photos of the parent may be missing, but not others than when the state was saved.
        self.lists = folder.list_fingerprint(self.benchmark.plan)

    def _build(self, state: State | None, loggers: Sequence[BaseLogger]) -> None:
        """Make the strategy, and restore the state if there is one."""
        settings = self.settings
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.experience = 0
        self.trained = False  # on the current experience, which is then only to be evaluated
        self._started = time.monotonic()
        self.image_benchmark = self.benchmark  # with a frozen backbone, self.benchmark becomes its features
        self.recorder = EvaluationRecorder(self.benchmark, stream=self._evaluation_stream.name)
        unused = None if self.continued is None else self.continued.unused
        network, self.benchmark = open_features(settings, self.backbone, self.benchmark, unused, self.log)
        self.strategy = build.make_strategy(
            settings,
            network,
            self.benchmark.class_names,
            plugins=[self.recorder],
            evaluator=build.make_evaluator(loggers),
        )
        self.strategy.train_epochs = self.n_epochs
        self.checkpoints = CheckpointPlugin(self._save, minutes=settings.checkpoint_minutes)
        if state is not None:
            self._restore(state, self.folder / folder.STATE_FILE, START_AGAIN)
        elif self.continued is not None and self.continued.initial_state is not None:
            parent = self.continued.parent
            self._restore(self.continued.initial_state, parent.state_path, OTHER_VERSION)
        # After all plugins that take part in training, and before the evaluator.
        end = self.strategy.plugins.index(self.strategy.evaluator)
        self.strategy.plugins.insert(end, self.checkpoints)
        within = None if state is None else state["position"]["within"]
        first_epoch = 0 if within is None else within["epoch"]
        for logger in loggers:
            if isinstance(logger, MultiLabelCSVLogger):
                logger.continue_at(self.experience, math.inf if self.trained else first_epoch)

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
        """Epochs of each experience."""
        return count_epochs(self.settings, sum(map(len, self.benchmark.plan.train.positions)))

    def _count_batches(self, experience: int) -> int:
        """Batches per epoch of an experience, or of all images for a method that trains on them at once."""
        if self._at_once:
            dataset = self.benchmark.complete_train_dataset
        else:
            dataset = self.benchmark.train_stream[experience].dataset
        return math.ceil(len(dataset) / self.settings.train_mb_size)

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
            if self._is_first:
                self._prepare_folder()
            while self.experience < self.n_experiences:
                self._run_experience()
            results = self.results()
            if self._is_first:
                results.write(path)
            self._log_global_thresholds()
            self._log(f"results are in {path}")
            return results

    def _log_global_thresholds(self) -> None:
        """Name the classes that have no threshold of their own."""
        calibration = self.recorder.calibration
        if calibration is None or not calibration.is_global.any():
            return
        classes = calibration.is_global.nonzero().flatten().tolist()
        names = ", ".join(self.benchmark.class_names[c] for c in classes)
        if calibration.is_global.all():
            names = "all classes"
        self._log(
            f"fewer than {LEAST_POSITIVES} positives, or too many wrong labels, for an own threshold: "
            f"{names}; they share the threshold {calibration.global_threshold:.2f}"
        )

    def _prepare_folder(self) -> None:
        """Write the photos of this run, and first remove what an overwritten one left."""
        if self._overwrite:
            self._remove_old_run()
        if self.settings.benchmark == "photos":
            write_photos(self.folder / PHOTOS_FILE, self.image_benchmark.plan)

    def _remove_old_run(self) -> None:
        """Remove results, state, photos and models, so that the folder never has parts of two runs."""
        for name in (RESULTS_FILE, folder.STATE_FILE, PHOTOS_FILE):
            (self.folder / name).unlink(missing_ok=True)
        for suffix in (TENSORS, DESCRIPTION):
            for model in self.folder.glob(f"model*{suffix}"):
                model.unlink()

    def _run_experience(self) -> None:
        # A state is saved after training and after evaluation, so that neither is repeated.
        if not self.trained:
            with stop_between_batches():
                self._timed("train", self._train)
                self.trained = True
                self._save()
        self._timed("eval", self._evaluate)
        self.experience += 1
        self.trained = False
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
        calibrated = calibrate_run(
            self.strategy,
            self.benchmark,
            n,
            count_shares=self.settings.class_shares == "counted",
            num_workers=self.settings.num_workers,
            unused=None if self.continued is None else self.continued.unused,
        )
        self.familiarity = calibrated.familiarity
        self.recorder.calibration = calibrated.logits
        self.strategy.eval(stream[:n], num_workers=self.settings.num_workers)
        self.recorder.keep_class_ap(find_nested(self.strategy).average_precision[stream.name])

    def _log_progress(self) -> None:
        history = find_nested(self.strategy).history[self._evaluation_stream.name]
        scores = ", ".join(f"{metric} {100 * history[metric][-1][-1]:.1f}" for metric in METRICS)
        used = sum(self.seconds.values())
        left = used / self.experience * (self.n_experiences - self.experience)
        self._log(
            f"experience {self.experience} of {self.n_experiences}: {scores} on classes seen; "
            f"{used:.0f} s used, about {left:.0f} s left"
        )

    def results(self) -> Results:
        """Results so far, in percent."""
        settings = self.settings
        nested = find_nested(self.strategy)
        stream = self._evaluation_stream.name
        history = nested.history[stream]
        acm, cooccurrence = self._correlations()
        return Results(
            benchmark=build.BENCHMARK_NAMES[settings.benchmark],
            method=settings.method,
            seed=settings.seed,
            settings=settings.as_dict(),
            class_names=self.benchmark.class_names,
            classes_per_experience=self.benchmark.classes_per_experience,
            nested={metric: [_percent(row) for row in history[metric]] for metric in METRICS},
            per_class_ap=self._class_precision(nested.average_precision[stream].tolist()),
            seconds=self.seconds | {"total": sum(self.seconds.values())},
            environment=describe_environment(),
            acm=acm,
            cooccurrence=cooccurrence,
            stages=_stage_scores(nested.stages[stream]),
            data=self.data,
            n_images=self._count_images(),
            stored=checkpoint.count_stored(self.strategy),
            thresholds=self.recorder.thresholds(),
            **self.recorder.as_results(settings.dataset_root),
        )

    def _class_precision(self, seen: Sequence[float]) -> dict[str, float | None]:
        """AP of each class in percent; None for classes of later experiences."""
        names = self.benchmark.class_names
        later: list[float | None] = [None] * (len(names) - len(seen))
        return dict(zip(names, _percent(seen) + later, strict=True))

    def _correlations(self) -> tuple[list[list[float]] | None, list[list[float]] | None]:
        """The correlation matrix of AGCN and CSC, and P(i | j) if all train labels are known."""
        if not isinstance(self.strategy, (AGCN, CSC)):
            return None, None
        acm = self.strategy.acm.acm.matrix().tolist()
        cooccurrence = train_cooccurrence(self.benchmark.plan)
        return acm, None if cooccurrence is None else cooccurrence.tolist()

    def _count_images(self) -> dict[str, list[int]]:
        """Number of images of each experience, by stream."""
        plan = self.benchmark.plan
        stream = self._evaluation_stream.name
        return {
            "train": [len(positions) for positions in plan.train.positions],
            stream: [len(positions) for positions in plan.evaluation[stream].positions],
        }

    def _save_model(self) -> None:
        """Write the model for predictions; with ``keep_models`` also a copy for this experience."""
        settings = self.settings
        calibration = self.recorder.calibration
        assert calibration is not None  # of the evaluation
        names = self.benchmark.class_names
        with_global = [names[c] for c in calibration.is_global.nonzero().flatten().tolist()]
        content, description = pack_model(
            unwrap(self.strategy.model),
            self.backbone,
            network={"name": settings.backbone, **settings.select(*BACKBONE_SETTINGS)},
            by_name=settings.freeze_backbone and settings.pretrained,
            transform=self.image_benchmark.plan.eval_transform,
            class_names=self.benchmark.class_names,
            thresholds=self.recorder.thresholds(),
            scale=calibration.scale,
            offset=calibration.offset,
            familiarity=self.familiarity,
            about={
                "benchmark": build.BENCHMARK_NAMES[settings.benchmark],
                "experience": self.experience,
                "n_experiences": self.n_experiences,
                "amp": settings.amp,
                "global_threshold": calibration.global_threshold,
                "classes_with_global_threshold": with_global,
                **settings.select("method", "label", "seed"),
            },
        )
        files = [model_name(None)]
        if settings.keep_models:
            files.append(model_name(self.experience))
        for name in files:
            path = self.folder / name
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
            "lists": self.lists,
            "position": {"experience": self.experience, "trained": self.trained, "within": within},
            "seconds": seconds,
            **checkpoint.capture(self.strategy),
        }
        if self._is_first:
            checkpoint.save_state(self.folder / folder.STATE_FILE, state)

    def _restore(self, state: State, path: Path, remedy: str) -> None:
        """Continue from the state in a file, which may be of another version."""
        with checkpoint.fitting_state(path, remedy):
            self.seconds = dict(state["seconds"])
            position = state["position"]
            self.experience = position["experience"]
            self.trained = position["trained"]
            if not 0 <= self.experience <= self.n_experiences:
                raise ValueError(f"it is at experience {self.experience} of {self.n_experiences}")
            checkpoint.restore(self.strategy, state, self.benchmark.train_stream)
            within = position["within"]
            if within is not None:
                n_batches = self._count_batches(self.experience)
                if not (0 <= within["epoch"] < self.n_epochs and 0 <= within["batch"] <= n_batches):
                    raise ValueError(f"it is at batch {within['batch']} of epoch {within['epoch']}")
                if within.get("iterations", 0) < 0:  # earlier versions have none
                    raise ValueError(f"it is at iteration {within['iterations']}")
                checkpoint.check_optimizer(self.strategy.optimizer, state["optimizer"])
                self.checkpoints.resume(within, state)
            if self.experience:
                self.results()  # fails now, not after the next experience, if scores are missing
        self._log(f"continuing with experience {self.experience + 1}")


def _percent(fractions: Iterable[float]) -> list[float | None]:
    return [none_if_nan(100 * value) for value in fractions]


def _stage_scores(stages: Sequence[StageScores | None]) -> dict[str, list[float | None]]:
    """Each score after each experience, in percent; None where nothing was evaluated."""
    return {
        name: _percent(math.nan if stage is None else getattr(stage, name) for stage in stages)
        for name in StageScores._fields
    }
