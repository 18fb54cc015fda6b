"""Where features come from: what sums must have in common to be merged, or to have images removed exactly."""

import hashlib
import random
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from avalanche_agcn.benchmarks.multilabel import Plan
from avalanche_agcn.models.forward import digest_weights
from avalanche_agcn.training.loader import Key, StreamDataset, preserve_rng_state

N_PROBES = 2
PROBE_SIZE = (96, 72)  # of an image whose own size may be any
UNKNOWN = "unknown"  # it is not compared
SEVERAL = "several"  # it equals nothing


class Provenance(NamedTuple):
    """What sums of features were computed with, as plain values."""

    network: str  # digest of the backbone's structure and weights
    transform: str  # description of the transform of training images
    classes: str  # their names in order of appearance
    precision: str  # type of half precision, or None
    random: bool  # whether the transform draws random numbers
    # States of earlier versions end here.
    transformed: str = UNKNOWN  # digest of what the transform makes of a few images of noise
    features: str = UNKNOWN  # digest of the network and transform behind given features; none for images

    @classmethod
    def of(cls, backbone: nn.Module, experience: Any, amp: torch.dtype | None) -> "Provenance":
        """The provenance of features of an experience's images."""
        dataset = experience.dataset.train()
        plans = find_plans(dataset)
        description = _only({repr(None if plan is None else plan.train_transform) for plan in plans})
        transformed, features = digest_inputs(dataset)
        return cls(
            network=digest_module(backbone),
            transform=re.sub(r" at 0x[0-9a-f]+", "", description),
            classes=_only({", ".join(["unnamed"] if plan is None else plan.class_names) for plan in plans}),
            precision=str(amp),
            random=is_random(dataset),
            transformed=transformed,
            features=features,
        )

    def find_difference(self, other: "Provenance") -> str | None:
        """Name of the first field in which two differ; None if features mean the same in both."""
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            if SEVERAL in (mine, theirs) or (mine != theirs and UNKNOWN not in (mine, theirs)):
                return name
        return None

    def joined(self, other: "Provenance") -> "Provenance":
        """The provenance of images of both, by the same network."""
        fields: list[Any] = []
        for mine, theirs in zip(self, other, strict=True):
            different = UNKNOWN if UNKNOWN in (mine, theirs) else SEVERAL
            fields.append(mine if mine == theirs else different)
        joined = Provenance(*fields)._replace(network=self.network, random=self.random or other.random)
        if other.classes.startswith(f"{self.classes}, "):  # classes that became known later
            joined = joined._replace(classes=other.classes)
        return joined


def find_plans(dataset: Any) -> list[Plan | None]:
    """Plans of the benchmarks that a dataset's images are from, None for another source.

    Streams and experiences that Avalanche's tools make do not lead to the benchmark, but their images do.
    """
    return [getattr(part, "plan", None) for part, _, _ in _walk(dataset)]


def digest_inputs(dataset: Any) -> tuple[str, str]:
    """Digests of what a dataset's transform computes, and of the network behind it if it has features."""
    transformed, features = set(), set()
    for part, steps, group in _walk(dataset):
        transformed.add(_digest_transform(part[0][0], steps, group))
        features.add(getattr(getattr(part, "source", None), "network", "none"))
    return _only(transformed), _only(features)


def _only(values: set[str]) -> str:
    return values.pop() if len(values) == 1 else SEVERAL if values else UNKNOWN


def _walk(dataset: Any) -> Iterator[tuple[Any, list[Any], str]]:
    """Innermost datasets, each with the groups of transforms that apply to it, and the current group."""
    outermost = getattr(dataset, "_flat_data", None)
    if outermost is None or len(dataset) == 0:
        return
    waiting: list[tuple[Any, list[Any]]] = [(outermost, [])]
    while waiting:
        data, outer_steps = waiting.pop()
        if not hasattr(data, "_datasets"):
            yield data, outer_steps, outermost._transform_groups.current_group
            continue
        own_steps = [getattr(data, name, None) for name in ("_frozen_transform_groups", "_transform_groups")]
        steps = [step for step in own_steps if step is not None] + outer_steps
        waiting += [(inner, steps) for inner in data._datasets if len(inner)]


def _digest_transform(image: Any, steps: list[Any], group: str) -> str:
    digest = hashlib.sha256()
    try:
        for probe in apply_to_noise(image, lambda noise: _apply(noise, steps, group)):
            digest.update(_bytes(probe))
    except Exception:  # of any transform that takes other images only
        return UNKNOWN
    return digest.hexdigest()[:16]


def _apply(image: Any, steps: list[Any], group: str) -> Any:
    sample = [image, torch.zeros(1), 0]
    for step in steps:
        sample = step(sample, group_name=group)
    return sample[0]


def apply_to_noise(image: Any, transform: Any) -> list[Any]:
    """What a transform makes of a few images of noise that have the type of ``image``; always the same."""
    with preserve_rng_state():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the generator that transforms use
        torch.default_generator.manual_seed(0)
        return [transform(noise) for noise in _noise_like(image)]


def _noise_like(image: Any) -> list[Any]:
    generator = np.random.default_rng(0)
    if isinstance(image, Image.Image):
        pixels = generator.integers(0, 256, (N_PROBES, *PROBE_SIZE, 3), dtype=np.uint8)
        return [Image.fromarray(one).convert(image.mode) for one in pixels]
    shape, is_tensor = (N_PROBES, *image.shape), isinstance(image, Tensor)
    is_float = image.is_floating_point() if is_tensor else np.issubdtype(image.dtype, np.floating)
    noise = generator.random(shape) if is_float else generator.integers(0, 2, shape)
    return list(torch.from_numpy(noise).to(image.dtype) if is_tensor else noise.astype(image.dtype))


def _bytes(image: Any) -> bytes:
    values = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    return f"{values.shape} {values.dtype}\n".encode() + values.tobytes()


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
