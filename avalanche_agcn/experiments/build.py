"""Parts of a run, made from its settings: benchmark, network, model, plugins, strategy and loggers."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from avalanche.core import BasePlugin
from avalanche.logging import BaseLogger, TensorboardLogger
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn

from avalanche_agcn import benchmarks, models
from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.evaluation import (
    MultiLabelCSVLogger,
    MultiLabelWandBLogger,
    ProgressBar,
    multilabel_evaluator,
)
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.settings import CONVENTIONS, Settings
from avalanche_agcn.methods.multi_task import TrainsJointly
from avalanche_agcn.methods.streaming_ridge import StreamingRidge
from avalanche_agcn.models.backbones import Backbone
from avalanche_agcn.models.saved import AMP, BACKBONE_SETTINGS
from avalanche_agcn.models.word_vectors import orthogonalise
from avalanche_agcn.training import AsymmetricLoss
from avalanche_agcn.training.loader import make_generator
from avalanche_agcn.training.plugins import (
    DecoupledTrainingPlugin,
    DriftCompensationPlugin,
    PseudoLabelPlugin,
    StatisticalNegativesPlugin,
)
from avalanche_agcn.training.template import MultiLabelTemplate

MAKERS: dict[str, Callable[..., MultiLabelBenchmark]] = {
    "coco": benchmarks.SplitCOCO,
    "wide": benchmarks.SplitWIDE,
    "voc": benchmarks.SplitVOC,
    "photos": benchmarks.SplitPhotos,
}
BENCHMARK_NAMES = {name: make.__name__ for name, make in MAKERS.items()}
BENCHMARK_NAMES |= {"scenes": "SplitScenes", "own": "OwnBenchmark"}
"""Names in results and tables."""
DEFAULT_PROTOCOL = {"coco": "paper", "wide": "paper", "voc": "B0-C4", "photos": "paper", "scenes": "paper"}
SHARED_ARGUMENTS = (
    "n_classes",
    "n_experiences",
    "classes_per_experience",
    "class_order",
    "repeat_images",
    "unlabelled_as_negative",
    "test_images",
    "image_size",
    "validation_size",
    "limit",
    "seed",
)
"""Settings that are arguments of all benchmarks."""
FURTHER_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "coco": ("split_lists", "crowds"),
    "wide": ("split_lists",),
    "voc": (),
    "photos": ("labels", "test_labels", "test_size", "separator", "file_column", "label_columns"),
    "scenes": ("n_train", "n_test"),
}
"""Settings that are arguments of a single benchmark."""


def make_benchmark(
    settings: Settings,
    backbone: Backbone | None = None,
    log: Callable[[str], None] = print,
    *,
    check_images: bool = True,
) -> MultiLabelBenchmark:
    """The benchmark, with photos normalised as the backbone expects them; as of ImageNet if it is None.

    With ``check_images``, own photos are opened first.
    """
    protocol = settings.protocol or DEFAULT_PROTOCOL[settings.benchmark]
    arguments = settings.select(*SHARED_ARGUMENTS, *FURTHER_ARGUMENTS[settings.benchmark])
    arguments["classes_per_experience"] = settings.classes_per_experience or None
    arguments["validation_size"] = settings.validation_size or settings.calibration_size
    if settings.benchmark == "scenes":
        return benchmarks.SplitScenes(protocol=protocol, **arguments)
    if settings.dataset_root is None:
        raise ValueError(f"the benchmark {settings.benchmark!r} needs the folder of its images: give --data.")
    make = MAKERS[settings.benchmark]
    if settings.benchmark == "photos":
        return benchmarks.SplitPhotos(
            settings.dataset_root,
            protocol=protocol,
            backbone=backbone,
            log=log,
            check_images=check_images,
            **arguments,
        )
    return make(settings.dataset_root, protocol=protocol, backbone=backbone, **arguments)


def describe_benchmark(settings: Settings, benchmark: MultiLabelBenchmark) -> Settings:
    """Settings that describe a user's own benchmark; a ValueError names those that contradict it."""
    sizes: dict[str, Any] = {"n_classes": benchmark.n_classes, "n_experiences": benchmark.n_experiences}
    fixed = dict.fromkeys(("limit", "protocol", "split_lists", "labels", *CONVENTIONS)) | sizes
    if "valid" not in benchmark.plan.evaluation:
        fixed["validation_size"] = fixed["calibration_size"] = 0.0
    fixed["classes_per_experience"] = tuple(benchmark.classes_per_experience)
    changed = [name for name, value in fixed.items() if getattr(settings, name) not in (None, (), value)]
    if changed:
        names = ", ".join(changed)
        raise ValueError(f"the settings {names} cannot change your own benchmark: leave them out.")
    source = benchmark.plan.evaluation["valid" if settings.validation_size else "test"].source
    root = source.root if isinstance(source, ImageFiles) else None
    return replace(settings, benchmark="own", dataset_root=root, **sizes)


def make_backbone(settings: Settings) -> Backbone:
    """The network, with its weights."""
    options = settings.select("pretrained", *BACKBONE_SETTINGS, "compile")
    backbone = models.create_backbone(settings.backbone, **options)
    if settings.batchnorm_momentum is not None:
        for module in backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = settings.batchnorm_momentum
    return backbone


def make_strategy(
    settings: Settings,
    backbone: nn.Module,
    class_names: Sequence[str],
    *,
    plugins: Sequence[BasePlugin] = (),
    evaluator: EvaluationPlugin,
) -> MultiLabelTemplate:
    """The method of the settings, over the backbone."""
    model, parameter_groups = _make_model(settings, backbone, class_names)
    method = METHODS[settings.method]
    return method.strategy_class(
        model=model,
        optimizer=torch.optim.Adam(parameter_groups, fused=True),
        amp=AMP[settings.amp],
        criterion=AsymmetricLoss() if settings.loss == "asl" else None,
        plugins=[*_make_plugins(settings), *plugins],
        evaluator=evaluator,
        **settings.select("train_mb_size", "eval_mb_size", "device", "seed"),
        **method.constructor_arguments(settings.method_settings),
        **({"newer_as_negative": True} if "memory" in settings.negatives else {}),
    )


def _make_model(settings: Settings, backbone: nn.Module, class_names: Sequence[str]) -> tuple[Any, Any]:
    """The model of the method, and its parameters with their learning rates.

    In a run that continues others, it is made for the classes of the first, then the others are added:
    weights were drawn before these classes were known.
    """
    kind, decoupled = METHODS[settings.method].model, _is_decoupled(settings)
    first, *others = _class_blocks(settings, len(class_names))
    model: Any
    if kind == "agcn":
        first_words, *further_words = _word_vectors(settings, class_names, [first, *others])
        model = models.AGCNModel(backbone, first_words, decoupled=decoupled)
        for words in further_words:
            model.add_word_vectors(words)
        return model, model.parameter_groups(lr_backbone=settings.lr, lr_gcn=settings.lr_gcn)
    if kind == "random":
        backbone = models.RandomFeatures(backbone, settings.random_features, seed=settings.seed)
    model = models.MultiLabelClassifier(backbone, first, decoupled=decoupled)
    for n_new in others:
        n_before = model.classifier.out_features
        model.add_classes(n_new, make_generator(settings.seed, n_before))  # not torch's own, which trains
    lr_head = settings.lr if settings.lr_head is None else settings.lr_head
    return model, model.parameter_groups(lr_backbone=settings.lr, lr_head=lr_head)


def _class_blocks(settings: Settings, n_classes: int) -> list[int]:
    """Numbers of classes that the model learns of at once: all, or those of a run and its continuations."""
    earlier = settings.earlier_classes
    n_new = n_classes - sum(earlier)
    if min([n_new, *earlier]) < 1:
        raise ValueError(
            f"earlier_classes={earlier} must be positive and leave at least one of the {n_classes} classes."
        )
    return [*earlier, n_new]


def _word_vectors(settings: Settings, class_names: Sequence[str], blocks: Sequence[int]) -> list[Tensor]:
    """Word vectors of each block of classes; orthogonal ones do not depend on later blocks."""
    vectors = models.load_word_vectors(class_names, settings.word_vectors, missing=settings.missing_words)
    parts = list(vectors.split(list(blocks)))
    if settings.orthogonal_words:
        for k, part in enumerate(parts):
            parts[k] = orthogonalise(part, torch.cat(parts[:k]) if k else None)
    return parts


def _make_plugins(settings: Settings) -> list[BasePlugin]:
    """Plugins that any method may have, besides its own."""
    plugins: list[BasePlugin] = [PseudoLabelPlugin()] if settings.pseudo_labels else []
    has_preset = settings.method_settings.get("preset") == "statistics"  # which adds its own
    if "statistics" in settings.negatives and not has_preset:
        plugins.append(StatisticalNegativesPlugin())
    if _is_decoupled(settings):
        decoupled = DecoupledTrainingPlugin(distillation=settings.distillation)
        n, seed = settings.held_images, settings.seed
        plugins += [decoupled, DriftCompensationPlugin(n_images=n, teacher=decoupled.teacher, seed=seed)]
    return plugins


def _is_decoupled(settings: Settings) -> bool:
    """Whether the network is trained separately from its classifiers, as statistics of its features need."""
    strategy = METHODS[settings.method].strategy_class
    if settings.freeze_backbone or issubclass(strategy, TrainsJointly):
        return False
    has_preset = settings.method_settings.get("preset") == "statistics"
    return has_preset or "statistics" in settings.negatives or issubclass(strategy, StreamingRidge)


def make_evaluator(loggers: Sequence[BaseLogger]) -> EvaluationPlugin:
    """An evaluator that draws plots and emits the AP of each class only if a logger keeps them."""
    more = any(not isinstance(logger, ProgressBar) for logger in loggers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")  # then none are wanted
        return multilabel_evaluator(loggers=list(loggers), train_map=False, per_class=more, plots=more)


@contextlib.contextmanager
def open_loggers(
    settings: Settings,
    out: Path,
    *,
    tensorboard: str | None = None,
    wandb: str | None = None,
    csv_log: bool = False,
    append: bool = False,
) -> Iterator[list[BaseLogger]]:
    """Open the loggers of one run below ``out``, and close them at its end.

    Without an account on this machine (``wandb login``), Weights & Biases logs to a folder, which ``wandb
    sync`` uploads later; so does ``WANDB_MODE=offline``.
    """
    with contextlib.ExitStack() as stack:
        loggers: list[BaseLogger] = []
        if tensorboard is not None:
            board = TensorboardLogger(Path(tensorboard or out / "tensorboard") / settings.name)
            stack.callback(board.writer.close)
            loggers.append(board)
        if wandb is not None:
            import wandb as package

            # WANDB_MODE, which wandb itself reads only once per process; never ask for an account.
            mode = os.environ.get("WANDB_MODE") or (None if package.login(prompt=False) else "offline")
            project = MultiLabelWandBLogger(
                wandb,
                settings.name,
                dir=str(out),
                params={"config": settings.as_dict(), "mode": mode},
                save_code=False,
            )
            stack.callback(project.wandb.finish)
            loggers.append(project)
        if csv_log:
            loggers.append(MultiLabelCSVLogger(out / settings.name / "logs", append=append))
        yield loggers
