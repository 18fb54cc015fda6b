"""From settings to a benchmark and a strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.core import BasePlugin
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_agcn.benchmarks import MultiLabelBenchmark, SplitCOCO, SplitScenes, SplitWIDE
from avalanche_agcn.benchmarks.image_files import paper_transforms
from avalanche_agcn.benchmarks.multilabel import assemble
from avalanche_agcn.experiments.settings import Settings
from avalanche_agcn.models import AGCNModel, MultiLabelClassifier, create_backbone, load_word_vectors
from avalanche_agcn.models.backbones import Backbone
from avalanche_agcn.training import AGCN, AGEM, ER, EWC, OCDM, PRS, SCR, FineTuning, LwF, MultiTask
from avalanche_agcn.training.plugins.replay import OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import OCDMBuffer, PRSBuffer, ReservoirBuffer
from avalanche_agcn.training.strategies import MultiLabelTemplate

AMP = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
MEMORIES = {"er": ReservoirBuffer, "prs": PRSBuffer, "ocdm": OCDMBuffer}

OwnSettings = Callable[[Settings], dict[str, Any]]


def _of_memory(settings: Settings) -> dict[str, Any]:
    return {"mem_size": settings.memory} if settings.memory else {}


def _of_replay(settings: Settings) -> dict[str, Any]:
    own = _of_memory(settings) | {"newer_as_negative": settings.negatives_of_newer}
    return own | ({} if settings.memory_batch is None else {"batch_size_mem": settings.memory_batch})


BASELINES: dict[str, tuple[type[MultiLabelTemplate], OwnSettings]] = {
    "multitask": (MultiTask, lambda settings: {}),
    "finetuning": (FineTuning, lambda settings: {}),
    "ewc": (EWC, lambda settings: {"ewc_lambda": settings.ewc_lambda}),
    "lwf": (LwF, lambda settings: {"alpha": settings.lwf_lambda}),
    "agem": (AGEM, _of_memory),
    "er": (ER, _of_replay),
    "prs": (PRS, _of_replay),
    "ocdm": (OCDM, _of_replay),
    "scr": (SCR, lambda settings: _of_replay(settings) | {"contrast_weight": settings.scr_weight}),
}
"""Methods over a linear classifier, with what each takes from the settings."""

METHODS = (*BASELINES, "agcn")


def make_benchmark(settings: Settings, backbone: Backbone) -> MultiLabelBenchmark:
    """The benchmark, its images normalised as the backbone wants them."""
    shared: dict[str, Any] = {
        "n_classes": settings.n_classes,
        "n_experiences": settings.n_experiences,
        "seed": settings.seed,
        "validation_size": settings.validation,
    }
    if settings.benchmark == "scenes":
        shared |= {"image_size": settings.image_size, "n_train": settings.n_train, "n_test": settings.n_test}
        benchmark: MultiLabelBenchmark = SplitScenes(**shared)
    elif settings.data is None:
        raise ValueError(f"the benchmark {settings.benchmark!r} needs its images: say where with --data")
    else:
        make = SplitCOCO if settings.benchmark == "coco" else SplitWIDE
        shared |= paper_transforms(settings.image_size, mean=backbone.mean, std=backbone.std)
        benchmark = make(settings.data, split_lists=settings.split_lists, **shared)
    return benchmark if settings.limit is None else assemble(benchmark.plan.limited(settings.limit))


def make_backbone(settings: Settings) -> Backbone:
    """The network of the settings."""
    return create_backbone(
        settings.backbone,
        pretrained=settings.pretrained,
        pool=settings.pool,
        freeze_batchnorm=settings.freeze_batchnorm,
        fold_batchnorm=settings.fold_batchnorm,
        channels_last=settings.channels_last,
        compile=settings.compile,
    )


def check_device(name: str) -> None:
    """Refuse a device that torch does not find here.

    Raises:
        ValueError: saying what it misses.
    """
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the device {name!r} cannot be used here ({reason}); --device cpu always can"
        ) from None


def make_strategy(
    settings: Settings,
    backbone: nn.Module,
    class_names: Sequence[str],
    *,
    plugins: Sequence[BasePlugin] = (),
    evaluator: EvaluationPlugin,
) -> MultiLabelTemplate:
    """The method of the settings, over the backbone.

    Raises:
        ValueError: If there is no such method.
    """
    if settings.method not in METHODS:
        raise ValueError(f"unknown method {settings.method!r}; known are {', '.join(METHODS)}")
    shared: dict[str, Any] = {
        "train_mb_size": settings.batch_size,
        "eval_mb_size": settings.eval_batch_size,
        "train_epochs": settings.epochs,
        "device": settings.device,
        "amp": AMP[settings.amp],
        "seed": settings.seed,
        "evaluator": evaluator,
    }
    if settings.method == "agcn":
        return _make_agcn(settings, backbone, class_names, plugins, **shared)
    method, own_settings = BASELINES[settings.method]
    model = MultiLabelClassifier(backbone, len(class_names))
    lr_head = settings.lr if settings.lr_head is None else settings.lr_head
    return method(
        model=model,
        optimizer=torch.optim.Adam(
            model.parameter_groups(lr_backbone=settings.lr, lr_head=lr_head), fused=True
        ),
        plugins=plugins,
        **own_settings(settings),
        **shared,
    )


def _make_agcn(
    settings: Settings,
    backbone: nn.Module,
    class_names: Sequence[str],
    plugins: Sequence[BasePlugin],
    **shared: Any,
) -> AGCN:
    words = load_word_vectors(
        class_names,
        settings.word_vectors,
        missing=settings.missing_words,
        orthogonal=settings.orthogonal_words,
    )
    model = AGCNModel(backbone, words)
    if settings.memory:
        buffer = MEMORIES[settings.memory_kind](settings.memory, seed=settings.seed)
        replay = OnlineReplayPlugin(
            buffer,
            batch_size_mem=settings.memory_batch,
            newer_as_negative=settings.negatives_of_newer,
        )
        plugins = [replay, *plugins]
    groups = model.parameter_groups(lr_backbone=settings.lr, lr_gcn=settings.lr_gcn)
    return AGCN(
        model=model,
        optimizer=torch.optim.Adam(groups, fused=True),
        preset=settings.preset,
        graph=settings.graph,
        cross_blocks=settings.cross_blocks,
        q_counts=settings.q_counts,
        lambda_cls=settings.lambda_cls,
        lambda_dst=settings.lambda_dst,
        lambda_gph=settings.lambda_gph,
        plugins=plugins,
        **shared,
    )
