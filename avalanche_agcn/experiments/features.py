"""A benchmark of features instead of images, for heads over a network that is not trained.

Each image goes through the network once. Its features are kept in files of a few thousand images. The name of
a file is a digest of the network, its weights, the images, and the transform (its description and its effect
on a first image), so that features of something else are never found. A process that is killed loses one file
at most, and processes that need the same file wait for the first to write it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from filelock import FileLock
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from avalanche_agcn.benchmarks.image_files import ImageFiles, Transform
from avalanche_agcn.benchmarks.multilabel import Images, MultiLabelBenchmark, MultiLabelSource, assemble
from avalanche_agcn.experiments.checkpoint import DamagedState, load_state, save_state

IMAGES_PER_FILE = 4096


def default_cache() -> Path:
    """``avalanche_agcn`` in the user's folder for caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "avalanche_agcn"


def feature_benchmark(
    benchmark: MultiLabelBenchmark,
    backbone: nn.Module,
    cache: str | os.PathLike | None = None,
    *,
    batch_size: int = 32,
    num_workers: int = 0,
    device: str | torch.device = "cpu",
    log: Callable[[str], None] = print,
) -> MultiLabelBenchmark:
    """The same streams and labels, with the backbone's features in place of images.

    The images are transformed as in evaluation, also those of training: there are no augmentations. Train
    models over `avalanche_agcn.models.Precomputed` on it.

    Args:
        benchmark: any benchmark of this package.
        backbone: from images to ``[B, D]``; it is used in evaluation mode.
        cache: folder for the features; `default_cache` if None.
        batch_size: images that go through the backbone at a time.
        num_workers: processes that load images.
        device: where the backbone computes.
        log: receives messages.

    Raises:
        OSError: if an image cannot be opened or the cache not be written.
    """
    plan = benchmark.plan
    network = _Network(backbone, plan.eval_transform, batch_size, num_workers, torch.device(device), log)
    folder = default_cache() if cache is None else Path(cache)
    streams = [plan.train, *plan.evaluation.values()]
    made: dict[int, tuple[_Features, Tensor]] = {}  # by source: two streams may have the same one
    for source in {id(images.source): images.source for images in streams}.values():
        used = torch.cat([p for images in streams if images.source is source for p in images.positions])
        made[id(source)] = _Features(network.features(source, used.unique(), folder)), used.unique()

    def in_place_of(images: Images) -> Images:
        features, kept = made[id(images.source)]
        moved = [torch.searchsorted(kept, positions) for positions in images.positions]
        return Images(features, images.labels[kept], moved)

    evaluation = {name: in_place_of(images) for name, images in plan.evaluation.items()}
    train = in_place_of(plan.train)
    return assemble(
        replace(plan, train=train, evaluation=evaluation, train_transform=None, eval_transform=None)
    )


class _Features(Dataset):
    """Features as the images of a benchmark; their labels are in its plan."""

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self.targets = torch.zeros(len(features), 0)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.targets[index]


@dataclass
class _Network:
    """A backbone, and everything else that its features depend on beside the images."""

    backbone: nn.Module
    transform: Transform | None
    batch_size: int
    num_workers: int
    device: torch.device
    log: Callable[[str], None]

    def features(self, source: MultiLabelSource, positions: Tensor, folder: Path) -> Tensor:
        """Features of a source's images, from the cache as far as it has them."""
        if " at 0x" in repr(self.transform):  # another transform may have the same description
            self.log(f"Features are not kept, since the transform has no description: {self.transform!r}")
            with _bar(len(positions)) as bar:
                return self._compute(source, positions, bar)
        parts = positions.split(IMAGES_PER_FILE)
        key = _digest(self._description())
        paths = [folder / f"features-{self._name(key, source, part)}.bin" for part in parts]
        n_known = sum(len(part) for path, part in zip(paths, parts, strict=True) if path.exists())
        self.log(f"Features of {n_known} of {len(positions)} images are in {folder}")
        with _bar(len(positions) - n_known) as bar:
            read = partial(self._read_or_compute, source, bar=bar)
            return torch.cat([read(part, path) for path, part in zip(paths, parts, strict=True)])

    def _description(self) -> Iterable[bytes]:
        versions = (torch.__version__, torchvision.__version__)
        yield from (text.encode() for text in (*versions, repr(self.backbone), repr(self.transform)))
        for name, value in self.backbone.state_dict().items():
            if isinstance(value, Tensor):
                yield name.encode()
                yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()

    def _name(self, key: str, source: MultiLabelSource, positions: Tensor) -> str:
        images = _Transformed(source, positions, self.transform)
        first = [np.asarray(images[k]).tobytes() for k in range(min(1, len(images)))]
        return _digest([key.encode(), *first, *_fingerprint(source, positions)])[:32]

    def _read_or_compute(self, source: MultiLabelSource, positions: Tensor, path: Path, bar: tqdm) -> Tensor:
        """Features from their file; if it is missing, this process computes it, and others wait meanwhile."""
        features = _read(path, len(positions), self.log)
        if features is not None:
            return features
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            features = _read(path, len(positions), log=lambda message: None)
            if features is None:
                features = self._compute(source, positions, bar)
                save_state(path, {"features": features})
        return features

    @torch.inference_mode()
    def _compute(self, source: MultiLabelSource, positions: Tensor, bar: tqdm) -> Tensor:
        loader = DataLoader(
            _Transformed(source, positions, self.transform),
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            generator=torch.Generator(),  # torch's own must not depend on whether features are cached
        )
        training, self.backbone = self.backbone.training, self.backbone.to(self.device).eval()
        parts = []
        for images in loader:
            parts.append(self.backbone(images.to(self.device)).float().cpu())
            bar.update(len(images))
        self.backbone.train(training)
        return torch.cat(parts)


class _Transformed(Dataset):
    def __init__(self, source: MultiLabelSource, positions: Tensor, transform: Transform | None) -> None:
        self.source, self.positions, self.transform = source, positions, transform

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Any:
        image = self.source[int(self.positions[index])][0]
        return image if self.transform is None else self.transform(image)


def _bar(n_images: int) -> tqdm:
    seconds = 0.2 if sys.stderr.isatty() else 30.0
    return tqdm(total=n_images, desc="Features", unit=" images", mininterval=seconds, disable=n_images == 0)


def _read(path: Path, n_images: int, log: Callable[[str], None]) -> Tensor | None:
    try:
        features = load_state(path)["features"]
        if len(features) == n_images:
            return features
        log(f"{path} does not have features of {n_images} images; they are computed again")
    except FileNotFoundError:
        pass
    except DamagedState as error:
        log(f"{str(error).rstrip('.')}; its features are computed again")
    return None


def _fingerprint(source: MultiLabelSource, positions: Tensor) -> Iterable[bytes]:
    """What changes when the images do: the files' names, sizes and times, or else the images themselves."""
    for position in positions.tolist():
        if isinstance(source, ImageFiles):
            status = os.stat(source.path(position))
            name = os.path.relpath(source.path(position), source.root)
            yield f"{name} {status.st_size} {status.st_mtime_ns}\n".encode()
        else:
            image = np.asarray(source[position][0])
            yield f"{image.shape} {image.dtype}\n".encode()
            yield image.tobytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
