"""What models that grow with the experiences share."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn


class HasSeenClasses(Protocol):
    """An experience that knows which columns of the targets were seen so far."""

    @property
    def classes_seen_so_far(self) -> Sequence[int]:
        """Columns of this and all earlier experiences."""


def origin_of(experience: Any) -> Any:
    """The experience that a piece (of Avalanche's ``split_online_stream``) is of; any other is its own."""
    origin = getattr(experience, "origin_experience", None)
    return experience if origin is None else origin


def count_seen(experience: HasSeenClasses) -> int:
    """Number of classes seen up to and including an experience, or the one it is a part of.

    Raises:
        ValueError: if the experience does not tell, or these are not the first columns of the targets.
    """
    experience = origin_of(experience)
    classes = getattr(experience, "classes_seen_so_far", None)
    if classes is None:
        raise ValueError(
            f"{type(experience).__name__} does not tell the classes seen by then: it has no "
            "`classes_seen_so_far`; make the benchmark with multilabel_benchmark(...), or let Avalanche's "
            "with_classes_timeline(benchmark) find them"
        )
    known: int | None = getattr(experience, "n_classes_seen", None)  # of multilabel_benchmark
    if known is not None:
        return known
    seen = sorted(classes)
    if seen != list(range(len(seen))):
        raise ValueError(
            f"The classes seen so far are columns {seen}, but they must be the first "
            f"{len(seen)} columns of the targets. multilabel_benchmark(...) numbers classes in "
            "order of appearance."
        )
    return len(seen)


def count_features(backbone: nn.Module) -> int:
    """Length of the vectors a backbone gives, from its attribute ``num_features``.

    Raises:
        ValueError: if the backbone has no such attribute.
    """
    count = getattr(backbone, "num_features", None)
    if not isinstance(count, int):
        raise ValueError(
            f"{type(backbone).__name__} does not say how long its features are. Take a backbone "
            "from create_backbone(...), wrap yours in Backbone(layers, num_features=...), or set "
            "its attribute num_features."
        )
    return count
