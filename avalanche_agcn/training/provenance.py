"""What sums of features were computed with, so that only like is merged with like."""

import hashlib
from typing import Any, NamedTuple

import torch
from torch import nn

from avalanche_agcn.benchmarks.experience import origin_of
from avalanche_agcn.models.forward import digest_weights
from avalanche_agcn.training.loader import Key, StreamDataset


class Provenance(NamedTuple):
    """Network, transform, classes and precision behind sums of features, as plain values."""

    network: str
    """Digest of the backbone's structure and weights."""
    transform: str
    """Description of the transform of training images."""
    classes: str
    """Names of the classes in order of appearance."""
    precision: str
    """Type of half precision that the features were computed in, or None."""
    random: bool
    """Whether the transform draws random numbers."""

    def check_same(self, other: "Provenance") -> None:
        """Check that the features of two sets of sums are comparable."""
        for name in ("network", "transform", "classes", "precision"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(
                    f"The two were trained with different {name}: {mine} and {theirs}. Sums can only be "
                    "merged if features and classes mean the same."
                )


def describe_provenance(backbone: nn.Module, experience: Any, amp: torch.dtype | None) -> Provenance:
    """Describe what an experience's features are computed with."""
    benchmark = getattr(getattr(origin_of(experience), "origin_stream", None), "benchmark", None)
    names = getattr(benchmark, "class_names", None)
    return Provenance(
        network=digest_module(backbone),
        transform=repr(getattr(getattr(benchmark, "plan", None), "train_transform", None)),
        classes=", ".join(names) if names else "unnamed",
        precision=str(amp),
        random=is_random(experience.dataset.train()),
    )


def digest_module(module: nn.Module) -> str:
    """Digest of a module's structure, weights and buffers."""
    return hashlib.sha256(f"{module!r}\n{digest_weights(module)}".encode()).hexdigest()[:16]


def is_random(dataset: Any) -> bool:
    """Whether the images of a dataset depend on random numbers, judged by its first images."""
    loader = StreamDataset({0: dataset})
    for index in range(min(8, len(dataset))):
        first, *others = (loader.__getitems__([Key(0, index, seed)])[0][0] for seed in range(4))
        if any(not torch.equal(torch.as_tensor(first), torch.as_tensor(other)) for other in others):
            return True
    return False
