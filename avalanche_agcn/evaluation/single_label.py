"""Avalanche's strategies and plugins that need one label per image, and what to use instead.

Without this check they end in an error of torch, or train with a loss that is NaN or meaningless.
``docs/avalanche.md`` lists all of Avalanche's strategies, also those that work.
"""

from typing import Any

from avalanche import training
from avalanche.training import plugins

PARTIAL_LABELS = "trains on partial labels, those of each image's own experience, which is no upper bound"
SOFTMAX = "adds a softmax cross-entropy, for one label per image, to the loss"
CLASS_NUMBER = "expects the number of a class as the target of an image"
MULTITASK = "MultiTask, which has all labels"
REPLAY = "ER, PRS or OCDM"
RIDGE = "StreamingRidge"

UNSUITABLE: dict[type, tuple[str, str]] = {
    training.JointTraining: (PARTIAL_LABELS, MULTITASK),
    training.Cumulative: (PARTIAL_LABELS, MULTITASK),
    training.DER: (SOFTMAX, REPLAY),
    training.ER_ACE: (SOFTMAX, REPLAY),
    training.ER_AML: ("compares images by the number of their class", "SCR"),
    training.SCR: ("compares images by the number of their class", "SCR"),
    training.MER: (CLASS_NUMBER, REPLAY),
    training.FeatureReplay: (SOFTMAX, f"AGCN(preset='statistics') or {RIDGE}"),
    training.ICaRL: ("gives an image the class with the nearest mean", REPLAY),
    training.StreamingLDA: (CLASS_NUMBER, RIDGE),
    plugins.MIRPlugin: ("compares the numbers of classes with labels, which are 0 or 1 here", REPLAY),
    plugins.BiCPlugin: ("corrects the bias of a softmax", REPLAY),
    plugins.GSS_greedyPlugin: (CLASS_NUMBER, "OCDM"),
    plugins.GenerativeReplayPlugin: ("labels generated images with one class each", REPLAY),
    plugins.CoPEPlugin: ("compares an image with the prototype of its class", "SCR"),
    plugins.CWRStarPlugin: ("counts images by the number of their class", RIDGE),
    plugins.RARPlugin: (CLASS_NUMBER, REPLAY),
}
"""Why each does not suit images with several labels, and the strategies of this package to use instead."""


def check_several_labels(strategy: Any) -> None:
    """Reject a strategy, or a plugin of it, that needs one label per image."""
    for part in (strategy, *strategy.plugins):
        for kind, (reason, replacement) in UNSUITABLE.items():
            if isinstance(part, kind):
                raise ValueError(
                    f"Avalanche's {type(part).__name__} {reason}; use avalanche_agcn's {replacement}."
                )
