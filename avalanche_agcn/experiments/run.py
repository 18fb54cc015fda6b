"""One run: one method with one seed, from the first experience of the stream to the last."""

from __future__ import annotations

import ctypes
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from avalanche.core import BasePlugin
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_agcn.benchmarks import (
    MultiLabelBenchmark,
    SplitCOCO,
    SplitPhotos,
    SplitScenes,
    SplitVOC,
    SplitWIDE,
)
from avalanche_agcn.benchmarks.image_files import ImageFiles, paper_transforms
from avalanche_agcn.benchmarks.multilabel import assemble
from avalanche_agcn.evaluation import ProgressBar, find_nested, multilabel_evaluator
from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments.checkpoint import (
    CheckpointPlugin,
    Diverged,
    State,
    capture,
    check_optimizer,
    count_stored,
    fitting_state,
    layout,
    restore,
    save_state,
    seed_everything,
    write_atomically,
    write_json,
)
from avalanche_agcn.experiments.estimate import EstimatePlugin
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.experiments.fingerprint import data_fingerprint
from avalanche_agcn.experiments.folder import STATE_FILE, FolderContent, RunLock, read_folder
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.recorder import EvaluationRecorder
from avalanche_agcn.experiments.results import (
    METRICS,
    RESULTS_FILE,
    Results,
    describe_environment,
    none_if_nan,
    train_cooccurrence,
)
from avalanche_agcn.experiments.settings import CONVENTIONS, Settings, is_b_protocol
from avalanche_agcn.experiments.signals import raise_if_requested, requested_signal, stop_between_batches
from avalanche_agcn.models import (
    AGCNModel,
    MultiLabelClassifier,
    Precomputed,
    RandomFeatures,
    create_backbone,
    load_word_vectors,
)
from avalanche_agcn.models.backbones import Backbone
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.models.saved import BACKBONE_SETTINGS, DESCRIPTION, TENSORS, model_name, pack_model
from avalanche_agcn.training import AGCN, CSC, AsymmetricLoss
from avalanche_agcn.training.distributed import from_first_process, is_first_process
from avalanche_agcn.training.plugins import (
    DecoupledTrainingPlugin,
    DriftCompensationPlugin,
    PseudoLabelPlugin,
    StatisticalNegativesPlugin,
)
from avalanche_agcn.training.strategies import MultiLabelTemplate, StreamingRidge, TrainsJointly
from avalanche_agcn.training.strategies.closed_form import ClosedForm

BENCHMARK_NAMES = {
    "coco": "SplitCOCO",
    "wide": "SplitWIDE",
    "voc": "SplitVOC",
    "scenes": "SplitScenes",
    "photos": "SplitPhotos",
    "own": "OwnBenchmark",
}
MAKERS: dict[str, Callable[..., MultiLabelBenchmark]] = {
    "coco": SplitCOCO,
    "wide": SplitWIDE,
    "voc": SplitVOC,
    "photos": SplitPhotos,
}
SHARED = ("train_mb_size", "eval_mb_size", "device", "seed")
"""Settings that all strategies have under the same name."""
STUDY_STEPS, MAX_EPOCHS = 750, 25
"""Steps of the study that settings were chosen in, 6,000 photos by 8; and most passes over fewer photos."""
AMP = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_benchmark(settings: Settings, log: Callable[[str], None] = print) -> MultiLabelBenchmark:
    """The benchmark of the settings; `normalise` then fits its images to a network.

    The data are looked at before any weights are loaded.
    """
    shared: dict[str, Any] = {
        "n_classes": settings.n_classes,
        "n_experiences": settings.n_experiences,
        "seed": settings.seed,
        "validation_size": settings.validation_size,
    }
    conventions = {name: getattr(settings, name) for name in ("protocol", *CONVENTIONS)}
    shared |= {name: value for name, value in conventions.items() if value is not None}
    if settings.benchmark == "scenes":
        shared |= {"image_size": settings.image_size, "n_train": settings.n_train, "n_test": settings.n_test}
        benchmark: MultiLabelBenchmark = SplitScenes(**shared)
    elif settings.dataset_root is None:
        raise ValueError(
            f"the benchmark {settings.benchmark!r} needs its images: give their folder by "
            f"{'--images' if settings.benchmark == 'photos' else '--data'}."
        )
    else:
        if settings.split_lists is not None:
            shared["split_lists"] = settings.split_lists
        if settings.benchmark == "photos":
            photos = ("labels", "test_labels", "test_size", "separator")
            shared |= {"log": log} | {name: getattr(settings, name) for name in photos}
        shared |= paper_transforms(settings.image_size, flip=not is_b_protocol(settings.protocol))
        benchmark = MAKERS[settings.benchmark](settings.dataset_root, **shared)
    return benchmark if settings.limit is None else assemble(benchmark.plan.limited(settings.limit))


def normalise(benchmark: MultiLabelBenchmark, settings: Settings, backbone: Backbone) -> MultiLabelBenchmark:
    """The benchmark with images as the backbone expects them; drawn scenes and own data stay as they are."""
    if settings.benchmark in ("scenes", "own"):
        return benchmark
    flip = not is_b_protocol(settings.protocol)
    transforms = paper_transforms(settings.image_size, flip=flip, mean=backbone.mean, std=backbone.std)
    return assemble(replace(benchmark.plan, **transforms))


def make_backbone(settings: Settings) -> Backbone:
    """The network of the settings."""
    names = ("pretrained", *BACKBONE_SETTINGS, "compile")
    return create_backbone(settings.backbone, **{name: getattr(settings, name) for name in names})


def _with_benchmark(settings: Settings, benchmark: MultiLabelBenchmark) -> Settings:
    """Settings that tell what a user's own benchmark is."""
    source = benchmark.plan.evaluation["test"].source
    return replace(
        settings,
        benchmark="own",
        dataset_root=source.root if isinstance(source, ImageFiles) else None,
        n_classes=benchmark.n_classes,
        n_experiences=benchmark.n_experiences,
    )


def make_strategy(
    settings: Settings,
    backbone: nn.Module,
    class_names: Sequence[str],
    *,
    plugins: Sequence[BasePlugin] = (),
    evaluator: EvaluationPlugin,
) -> MultiLabelTemplate:
    """The method of the settings, over the backbone."""
    method = METHODS[settings.method]
    model: Any
    if method.model == "agcn":
        words = load_word_vectors(
            class_names,
            settings.word_vectors,
            missing=settings.missing_words,
            orthogonal=settings.orthogonal_words,
        )
        model = AGCNModel(backbone, words, decoupled=_is_decoupled(settings))
        groups = model.parameter_groups(lr_backbone=settings.lr, lr_gcn=settings.lr_gcn)
    else:
        if method.model == "random":
            backbone = RandomFeatures(backbone, settings.random_features, seed=settings.seed)
        model = MultiLabelClassifier(backbone, len(class_names), decoupled=_is_decoupled(settings))
        lr_head = settings.lr if settings.lr_head is None else settings.lr_head
        groups = model.parameter_groups(lr_backbone=settings.lr, lr_head=lr_head)
    return method.strategy_class(
        model=model,
        optimizer=torch.optim.Adam(groups, fused=True),
        amp=AMP[settings.amp],
        criterion=AsymmetricLoss() if settings.loss == "asl" else None,
        plugins=[
            *([PseudoLabelPlugin()] if settings.pseudo_labels else []),
            *_statistics_plugins(settings),
            *plugins,
        ],
        evaluator=evaluator,
        **{name: getattr(settings, name) for name in SHARED},
        **settings.method_settings,
        **({"newer_as_negative": True} if "memory" in settings.negatives else {}),
    )


def _uses_statistics(settings: Settings) -> bool:
    preset = settings.method_settings.get("preset")
    ridge = issubclass(METHODS[settings.method].strategy_class, StreamingRidge)
    return ridge or preset == "statistics" or "statistics" in settings.negatives


def _is_decoupled(settings: Settings) -> bool:
    """Whether the network is trained apart from its classifiers, which statistics need."""
    joint = issubclass(METHODS[settings.method].strategy_class, TrainsJointly)
    return _uses_statistics(settings) and not settings.freeze_backbone and not joint


def _statistics_plugins(settings: Settings) -> list[BasePlugin]:
    plugins: list[BasePlugin] = []
    if "statistics" in settings.negatives and settings.method_settings.get("preset") != "statistics":
        plugins.append(StatisticalNegativesPlugin())
    if _is_decoupled(settings):
        decoupled = DecoupledTrainingPlugin(distillation=settings.distillation)
        drift = DriftCompensationPlugin(
            n_images=settings.held_images, teacher=decoupled.teacher, seed=settings.seed
        )
        plugins += [decoupled, drift]
    return plugins


def check_device(name: str) -> None:
    """Raise a ValueError for a device that torch does not find here, with the reason."""
    try:
        if torch.device(name).type in ("meta", "lazy"):
            raise RuntimeError("it computes nothing")
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the device {name!r} cannot be used here ({reason}); --device cpu always can."
        ) from None


def keep_freed_memory() -> bool:
    """Let the process keep the memory of freed tensors for the next ones, where the C library is glibc.

    By default glibc returns the memory of every large tensor to the system and asks for it again, page by
    page, at each layer of each step: on a CPU that can take as long as the layer itself.

    Returns:
        Whether the C library took the settings.
    """
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # of glibc's malloc.h
    values = {m_mmap_max: 0, m_trim_threshold: 2**31 - 1, m_top_pad: 64 * 2**20}
    try:
        return all(ctypes.CDLL(None).mallopt(name, value) == 1 for name, value in values.items())
    except (OSError, TypeError, AttributeError):  # another C library
        return False


def _stages_in_percent(stages: Sequence[StageScores | None]) -> dict[str, list[float | None]]:
    return {
        name: [None if stage is None else none_if_nan(100 * getattr(stage, name)) for stage in stages]
        for name in StageScores._fields
    }


def _evaluator(loggers: Sequence[BaseLogger]) -> EvaluationPlugin:
    """An evaluator that makes plots and emits AP of each class only if a logger keeps them."""
    more = any(not isinstance(logger, ProgressBar) for logger in loggers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")  # then none are wanted
        return multilabel_evaluator(loggers=list(loggers), train_map=False, per_class=more, plots=more)


def _no_log(message: str) -> None:
    """Leave messages to the first process."""


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
        ValueError: if a setting cannot be carried out here.
        OSError: if the folder cannot be written to.
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
        settings = settings if benchmark is None else _with_benchmark(settings, benchmark)
        self.settings, self.log = settings, log if is_first_process() else _no_log
        self.after_experience = after_experience if is_first_process() else None
        self.folder = Path(out) / settings.name
        self._overwrite = overwrite
        self._lock = RunLock(self.folder) if is_first_process() else None
        try:
            from_first_process(None)  # a barrier: nobody reads the folder before it is locked
            found = FolderContent() if overwrite else read_folder(self.folder, settings, resume, self.log)
            self._prepare(found, benchmark, loggers)
        except BaseException:
            self._release()
            raise

    def _prepare(
        self, found: FolderContent, benchmark: MultiLabelBenchmark | None, loggers: Sequence[BaseLogger]
    ) -> None:
        settings = self.settings
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.experience, self.trained = 0, False
        self._within: State | None = None
        self._started = time.monotonic()
        check_device(settings.device)
        seed_everything(settings.seed)
        self.benchmark = make_benchmark(settings, self.log) if benchmark is None else benchmark
        self.log(f"{settings.name}: {self.benchmark}")
        self.data = data_fingerprint(self.benchmark.plan)
        found.check_data(self.folder, self.data)
        self.kept = found.results
        if self.kept is not None:
            self.experience = len(self.kept.classes_per_experience)
            return
        self.backbone = backbone = make_backbone(settings)
        if settings.benchmark != "own":
            backbone.check_image_size(settings.image_size)
        self.benchmark = normalise(self.benchmark, settings, backbone)
        self.images = self.benchmark  # before features take their place
        self.recorder = EvaluationRecorder(self.benchmark, stream=self._evaluation_stream.name)
        network = self._freeze(backbone) if settings.freeze_backbone else backbone
        names, evaluator = self.benchmark.class_names, _evaluator(loggers)
        self.strategy = make_strategy(settings, network, names, plugins=[self.recorder], evaluator=evaluator)
        self.checkpoints = CheckpointPlugin(self._save_within, minutes=settings.checkpoint_minutes)
        self.checkpoints.attach(self.strategy)
        if found.state is not None:
            self._restore(found.state)
        estimate = EstimatePlugin(*self._count_what_is_left(), self.folder, self._log_estimate)
        self.strategy.plugins.insert(self.strategy.plugins.index(self.checkpoints), estimate)

    def _log_estimate(self, text: str) -> None:
        self.log(f"{self.settings.name}: {text}")

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
        return [-(-len(dataset) // self.settings.train_mb_size) for dataset in datasets]

    def _freeze(self, backbone: Backbone) -> nn.Module:
        """Put features of the backbone in the place of images; return the network that passes them on."""
        settings = self.settings
        self.benchmark = feature_benchmark(
            self.benchmark,
            backbone,
            settings.cache,
            batch_size=settings.eval_mb_size,
            num_workers=settings.num_workers,
            device=settings.device,
            log=self.log,
        )
        return Precomputed(backbone.num_features)

    @property
    def _at_once(self) -> bool:
        """Whether the method trains once, on all experiences."""
        return isinstance(self.strategy, TrainsJointly)

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

    def run(self) -> Results:
        """Train and evaluate the remaining experiences, and write ``results.json``.

        Raises:
            Stopped: if the process is asked to end (`handle_signals`); the state is saved.
            Diverged: if the loss is not finite; the last saved state is kept.
        """
        try:
            return self._run() if self.kept is None else self._report_kept(self.kept)
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _report_kept(self, results: Results) -> Results:
        self.log(
            f"{self.settings.name}: finished before; its results in {self.folder / RESULTS_FILE} are kept "
            "(--overwrite repeats the run)"
        )
        return results

    def _run(self) -> Results:
        if self._overwrite and is_first_process():
            for name in (RESULTS_FILE, STATE_FILE):
                (self.folder / name).unlink(missing_ok=True)
        while self.experience < self.n_experiences:
            if not self.trained:
                with stop_between_batches():
                    self._timed("train", self._train)
                    self.trained = True
                    self._save()
            self._timed("eval", self._evaluate)
            self.experience, self.trained = self.experience + 1, False
            if is_first_process():
                self._save_model()
            self._save()
            self._report_progress()
            if self.after_experience is not None and is_first_process():
                self.after_experience(self.results())
        results = self.results()
        if is_first_process():
            results.write(self.folder / RESULTS_FILE)
        self.log(f"{self.settings.name}: results are in {self.folder / RESULTS_FILE}")
        return results

    def results(self) -> Results:
        """Results so far, in percent."""
        nested = find_nested(self.strategy)
        stream, names = self._evaluation_stream.name, self.benchmark.class_names
        history, ap = nested.history[stream], nested.average_precision[stream].tolist()
        ap += [math.nan] * (len(names) - len(ap))  # of classes to come
        acm = self.strategy.acm.acm.matrix().tolist() if isinstance(self.strategy, (AGCN, CSC)) else None
        truth = train_cooccurrence(self.benchmark.plan) if acm else None
        return Results(
            benchmark=BENCHMARK_NAMES[self.settings.benchmark],
            method=self.settings.method,
            seed=self.settings.seed,
            settings=self.settings.as_dict(),
            class_names=names,
            classes_per_experience=self.benchmark.classes_per_experience,
            nested={
                metric: [[none_if_nan(100 * value) for value in row] for row in history[metric]]
                for metric in METRICS
            },
            per_class_ap={name: none_if_nan(100 * value) for name, value in zip(names, ap, strict=True)},
            seconds=self.seconds | {"total": sum(self.seconds.values())},
            environment=describe_environment(),
            acm=acm,
            cooccurrence=None if truth is None else truth.tolist(),
            stages=_stages_in_percent(nested.stages[stream]),
            data=self.data,
            n_images=self._count_images(),
            stored=count_stored(self.strategy),
            **self.recorder.as_results(self.settings.dataset_root),
        )

    def _count_images(self) -> dict[str, list[int]]:
        plan, stream = self.benchmark.plan, self._evaluation_stream.name
        used = {"train": plan.train, stream: plan.evaluation[stream]}
        return {name: [len(positions) for positions in own.positions] for name, own in used.items()}

    @property
    def _evaluation_stream(self) -> Any:
        return self.benchmark.valid_stream if self.settings.validation_size else self.benchmark.test_stream

    def _train(self) -> None:
        epochs_done = 0 if self._within is None else self._within["epoch"]
        self.strategy.train_epochs = self.n_epochs - epochs_done
        self._within = None
        data = self.benchmark if self._at_once else self.benchmark.train_stream[self.experience]
        try:
            self.strategy.train(data, eval_streams=[], num_workers=self.settings.num_workers)
        except RuntimeError as error:
            # A signal to all processes has ended the loader workers, too, before the next batch came.
            if requested_signal() and "DataLoader worker" in str(error):
                self.checkpoints.save()
                raise_if_requested()
            raise
        self._check_weights()

    def _check_weights(self) -> None:
        """The last step may have made weights that are not finite; such a state is not saved."""
        if not all(tensor.isfinite().all() for tensor in self.strategy.model.parameters()):
            raise Diverged(
                f"weights are not finite after experience {self.experience + 1}: the learning rate is "
                "probably too high; choose a lower --lr, --lr-head or --lr-gcn."
            )

    def _evaluate(self) -> None:
        n = self.benchmark.n_experiences if self._at_once else self.experience + 1
        self.strategy.eval(self._evaluation_stream[:n], num_workers=self.settings.num_workers)
        self.recorder.keep_class_ap(
            find_nested(self.strategy).average_precision[self._evaluation_stream.name]
        )

    def _timed(self, part: str, work: Callable[[], None]) -> None:
        self._started = time.monotonic()
        work()
        self.seconds[part] += time.monotonic() - self._started

    def _report_progress(self) -> None:
        history = find_nested(self.strategy).history[self._evaluation_stream.name]
        scores = ", ".join(f"{metric} {100 * history[metric][-1][-1]:.1f}" for metric in METRICS)
        done, used = self.experience, sum(self.seconds.values())
        left = used / done * (self.n_experiences - done)
        self.log(
            f"{self.settings.name}: experience {done} of {self.n_experiences}: {scores} on classes seen; "
            f"{used:.0f} s used, about {left:.0f} s left"
        )

    def _save_model(self) -> None:
        """Write the model for predictions; with ``keep_models`` also under a name of its own."""
        settings, held_out = self.settings, bool(self.settings.validation_size)
        content, description = pack_model(
            unwrap(self.strategy.model),
            self.backbone,
            backbone_name=settings.backbone,
            backbone_settings={name: getattr(settings, name) for name in BACKBONE_SETTINGS},
            by_name=settings.freeze_backbone and settings.pretrained,
            transform=self.images.plan.eval_transform,
            class_names=self.benchmark.class_names,
            thresholds=self.recorder.best_thresholds() if held_out else None,
            about={
                "benchmark": BENCHMARK_NAMES[settings.benchmark],
                "method": settings.method,
                "label": settings.label,
                "seed": settings.seed,
                "experience": self.experience,
            },
        )
        for after in [None, *([self.experience] if settings.keep_models else [])]:
            path = self.folder / model_name(after)
            write_atomically(path.with_suffix(TENSORS), lambda file: file.write(content))
            write_json(path.with_suffix(DESCRIPTION), description)

    def _save_within(self, within: State) -> None:
        """Save during training; the seconds until now count."""
        so_far = self.seconds["train"]
        self.seconds["train"] += time.monotonic() - self._started
        self._save(within)
        self.seconds["train"] = so_far

    def _save(self, within: State | None = None) -> None:
        position = {"experience": self.experience, "trained": self.trained, "within": within}
        own = {"settings": self.settings.as_dict(), "data": self.data, "position": position}
        own["seconds"] = dict(self.seconds)
        state = own | capture(self.strategy)
        if is_first_process():
            save_state(self.folder / STATE_FILE, state)

    def _restore(self, state: State) -> None:
        """Continue from a saved state."""
        with fitting_state(self.folder / STATE_FILE):
            if state["layout"] != layout(self.strategy):
                raise ValueError("it is of another version of this package")
            position, self.seconds = state["position"], dict(state["seconds"])
            self.experience, self.trained = position["experience"], position["trained"]
            self._within = position["within"]
            if not 0 <= self.experience <= self.n_experiences:
                raise ValueError(f"it is at experience {self.experience} of {self.n_experiences}")
            restore(self.strategy, state, self.benchmark.train_stream)
            if self._within is not None:
                self._resume_within(self._within, state)
        self.log(f"{self.settings.name}: continuing with experience {self.experience + 1}")

    def _resume_within(self, within: State, state: State) -> None:
        n_batches = self._count_batches()[self.experience]
        if not (0 <= within["epoch"] < self.n_epochs and 0 <= within["batch"] <= n_batches):
            raise ValueError(f"it is at batch {within['batch']} of epoch {within['epoch']}")
        check_optimizer(self.strategy.optimizer, state["optimizer"])
        self.checkpoints.resume(within, state)
