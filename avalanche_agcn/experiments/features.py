"""A benchmark of features instead of images, for heads over a frozen backbone.

Each image goes through the network once. Features are cached in files of a few hundred images. The name of a
file is a digest of the network's weights, of its output for a few images in the current precision, of the
contents of all images, and of some transformed images, so that features are never those of something else. A
process that is killed loses at most one file, and processes that need the same file wait for the first one to
write it.

Networks of this package are folded, and on the CPU each of torch's threads reads and computes images of its
own: threads that share the work of a layer wait for each other, long if other programs use the processor.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

import torch
import torchvision
from filelock import FileLock
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tqdm import tqdm

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles, Transform, split_transform
from avalanche_agcn.benchmarks.multilabel import Images, MultiLabelSource, Plan, image_name
from avalanche_agcn.checks import read_json
from avalanche_agcn.experiments.checkpoint import DamagedState, load_state, save_state, write_json
from avalanche_agcn.experiments.folder import digest, file_digest, image_bytes, spread
from avalanche_agcn.models.backbones import Backbone
from avalanche_agcn.models.forward import one_thread
from avalanche_agcn.models.frozen import folded_copy, frozen_forward, images_per_pass
from avalanche_agcn.training import distributed
from avalanche_agcn.training.distributed import from_first_process, is_first_process
from avalanche_agcn.training.loader import exit_if_orphaned
from avalanche_agcn.training.statistics.provenance import apply_to_noise, digest_module

COMPUTATION = "folded, in passes of one thread, 1 × 1 by oneDNN"
"""Part of the names of files: change it if features change."""
IMAGES_PER_FILE = 512
SETTLED_SECONDS = 2.0  # the coarsest resolution of a file system's times
NONE = torch.empty(0, dtype=torch.long)  # positions of no image
ROOT_USER = 0  # root can change any file anyway
N_PROBES = 2  # images, and as many of noise, whose features identify what a network computes


def default_cache() -> Path:
    """``avalanche_agcn`` in the user's cache folder; a ValueError if there is no home directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "avalanche_agcn"
    except RuntimeError:
        raise ValueError(
            "There is no home directory for the cache of features: set HOME, or give a folder by --cache."
        ) from None


def feature_benchmark(
    benchmark: MultiLabelBenchmark,
    backbone: nn.Module,
    cache: str | os.PathLike | None = None,
    *,
    batch_size: int = 32,
    num_workers: int = 0,
    device: str | torch.device = "cpu",
    log: Callable[[str], None] = print,
    earlier_classes: Sequence[int] = (),
    unused: Tensor | None = None,
) -> MultiLabelBenchmark:
    """The same streams and labels, with the backbone's features instead of images.

    Train images are also transformed as in evaluation: there are no augmentations. Train models over
    `avalanche_agcn.models.Precomputed` on it. A copy of the backbone, which maps images to ``[B, D]``,
    computes in evaluation mode, in the precision that ``torch.autocast`` sets. Features are cached in the
    folder ``cache``, `default_cache` if None.

    A `Backbone` on the CPU computes in as many threads as torch has, a batch each; photos with a transform
    that `describe_transform` knows are also read there. Other images are read one after the other, or by
    ``num_workers`` processes.

    ``earlier_classes`` are the numbers of classes of the runs that this one continues: the images of each are
    cached by themselves, so that their features are found. ``unused`` are positions of train images
    that will not be read, and need not exist; their features are NaN.

    Raises:
        OSError: if an image cannot be opened or the cache cannot be written.
    """
    plan = benchmark.plan
    frozen = folded_copy(backbone, device)  # a copy, so that later changes of the backbone have no effect
    network = _Network(frozen, plan.eval_transform, batch_size, num_workers, torch.device(device), log)
    folder = default_cache() if cache is None else Path(cache)
    features: dict[int, _Features] = {}  # by the id of their source, which two streams may share
    ends = _last_experiences(plan, earlier_classes)
    for source, parts in _used_positions([plan.train, *plan.evaluation.values()], ends):
        skipped = NONE
        if unused is not None and source is plan.train.source:
            skipped = unused
        used = [part[~torch.isin(part, skipped)] for part in parts]
        if len(used) == 1 and not len(skipped):
            positions = used[0]
            rows = network.features(source, positions, folder)  # without a copy: they are large
        else:
            positions, rows = _features_of_parts(network, source, used, skipped, folder)
        first_image = source[int(torch.cat(used)[0])][0]
        features[id(source)] = _Features(rows, source, positions, network.digest(first_image))
    evaluation = {}
    for name, images in plan.evaluation.items():
        evaluation[name] = features[id(images.source)].replace_images(images)
    plan = replace(
        plan,
        train=features[id(plan.train.source)].replace_images(plan.train),
        evaluation=evaluation,
        train_transform=None,
        eval_transform=None,
    )
    return MultiLabelBenchmark(plan)


def _features_of_parts(
    network: _Network, source: MultiLabelSource, used: Sequence[Tensor], skipped: Tensor, folder: Path
) -> tuple[Tensor, Tensor]:
    """Positions of used and skipped images, ascending, and their features; NaN for skipped images."""
    computed = torch.cat([network.features(source, part, folder) for part in used if len(part)])
    unknown = computed.new_full((len(skipped), computed.shape[1]), torch.nan)
    positions, order = torch.cat([*used, skipped]).sort()
    return positions, torch.cat([computed, unknown])[order]


def _last_experiences(plan: Plan, earlier_classes: Sequence[int]) -> list[int]:
    """The number of experiences up to the end of each earlier run, and of all."""
    n_classes_so_far = [columns.stop for columns in plan.columns]
    ends = [bisect_right(n_classes_so_far, n_classes) for n_classes in accumulate(earlier_classes)]
    return [*ends, len(plan.columns)]


def _used_positions(
    streams: Sequence[Images], ends: Sequence[int]
) -> list[tuple[MultiLabelSource, list[Tensor]]]:
    """Each source once, with positions of the images that the streams use, each once.

    There is one tensor of positions, ascending, for the experiences up to each of ``ends``.
    """
    sources = {id(images.source): images.source for images in streams}
    parts: dict[int, list[Tensor]] = {key: [] for key in sources}
    for start, end in pairwise([0, *ends]):
        for key, earlier in parts.items():
            positions = [NONE]
            for images in streams:
                if id(images.source) == key:
                    positions += images.positions[start:end]
            unique = torch.cat(positions).unique()
            earlier.append(unique[~torch.isin(unique, torch.cat([NONE, *earlier]))])
    return [(source, parts[key]) for key, source in sources.items()]


class _Features(TensorDataset):
    """Features in the role of images, with their names; the labels are in the benchmark's plan."""

    def __init__(self, features: Tensor, source: MultiLabelSource, positions: Tensor, network: str) -> None:
        self.source = source
        self.positions = positions  # of the images in their source, ascending
        self.targets = torch.zeros(len(features), 0)
        self.network = network  # digest of the network and transform; see `Provenance`
        super().__init__(features, self.targets)

    def image_name(self, index: int) -> str:
        """Name of the image."""
        return image_name(self.source, int(self.positions[index]))

    def replace_images(self, images: Images) -> Images:
        """The same stream with these features as its source."""
        positions = [torch.searchsorted(self.positions, part) for part in images.positions]
        return Images(self, images.labels[self.positions], positions)


def positions_in_source(images: Images) -> list[Tensor]:
    """Positions of a stream's images, in each experience, in the source that features were computed from."""
    source = images.source
    if not isinstance(source, _Features):
        return list(images.positions)
    return [source.positions[part] for part in images.positions]


@dataclass
class _Network:
    """A backbone with everything else that its features depend on, except the images."""

    backbone: nn.Module
    transform: Transform | None
    batch_size: int
    num_workers: int
    device: torch.device
    log: Callable[[str], None]

    def __post_init__(self) -> None:
        self._to_pixels, self._to_inputs = split_transform(self.transform)

    def features(self, source: MultiLabelSource, positions: Tensor, folder: Path) -> Tensor:
        """Features of a source's images, from the cache where it has them."""
        if " at 0x" in repr(self.transform):  # a memory address: another transform may have the same one
            self.log(f"Features are not cached: {self.transform!r} does not describe what it does")
            with _bar(len(positions)) as bar:
                return self._compute(source, positions, bar)
        parts = positions.split(IMAGES_PER_FILE)
        with one_thread():  # little work for each file
            names = list(self._names(source, positions, folder)) if is_first_process() else []
        paths = [folder / f"features-{name}.bin" for name in from_first_process(names)]
        n_known = sum(len(part) for path, part in zip(paths, parts, strict=True) if path.exists())
        self.log(f"Features of {n_known} of {len(positions)} images are in {folder}")
        with _bar(len(positions) - n_known) as bar:
            read = partial(self._read_or_compute, source, bar=bar)
            blocks = (read(part, path) for path, part in zip(paths, parts, strict=True))
            return _concatenate(blocks, len(positions))

    def _description(self, source: MultiLabelSource, positions: Tensor) -> Iterable[bytes]:
        """What features depend on beside the images: the network's weights, and what it computes."""
        versions = (COMPUTATION, torch.__version__, torchvision.__version__)
        for text in (*versions, repr(self.backbone), repr(self.transform)):
            yield text.encode()
        for name, value in self.backbone.state_dict().items():
            if isinstance(value, Tensor):
                yield name.encode()
                yield _bytes(value)
        images = _Transformed(source, positions, self.transform)
        probes = [images[k] for k in spread(range(len(images)), N_PROBES)]
        for features in self._probe(probes):
            yield _bytes(features)

    @one_thread()
    def digest(self, image: Any) -> str:
        """Digest of the network and of what it computes, whatever the images; ``image`` tells their type."""
        parts = [digest_module(self.backbone).encode()]
        with contextlib.suppress(Exception):  # of a transform that takes no noise
            noise = apply_to_noise(image, self.transform or nn.Identity())
            parts += map(_bytes, [*noise, *self._probe(noise)])
        return from_first_process(digest(parts)[:16])

    @one_thread()
    @torch.inference_mode()
    def _probe(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Features of a few images and of noise, one by one in one thread, so that they repeat exactly.

        They reveal changes that the weights do not: of an attribute, a function, or the precision.
        """
        generator = torch.Generator().manual_seed(0)
        noise = [torch.rand(image.shape, generator=generator).to(image.dtype) for image in images]
        return [self.backbone(image[None].to(self.device)).float() for image in [*images, *noise]]

    def _names(self, source: MultiLabelSource, positions: Tensor, folder: Path) -> Iterable[str]:
        """File names for parts of the images: digests of the network, the images and the transform."""
        key = digest(self._description(source, positions))
        digests = _file_digests(source, positions.tolist(), folder) if isinstance(source, ImageFiles) else []
        remaining = iter(digests)
        for part in positions.split(IMAGES_PER_FILE):
            images = _Transformed(source, part, self.transform)
            shown = (_bytes(torch.as_tensor(images[k])) for k in spread(range(len(part)), N_PROBES))
            contents = islice(remaining, len(part)) if digests else image_bytes(source, part.tolist())
            yield digest([key.encode(), *shown, *contents])[:32]

    def _read_or_compute(self, source: MultiLabelSource, positions: Tensor, path: Path, bar: tqdm) -> Tensor:
        """Features from their file; if it is missing, the processes of this run write it, and others wait."""
        features = _read(path, len(positions), self.log)
        if not distributed.largest_of_processes(int(features is None)):
            assert features is not None
            return features
        with contextlib.ExitStack() as stack:
            if is_first_process():
                with _naming_cache(path.parent):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # Other users of the cache may lock it, too, if this process is killed.
                    stack.enter_context(FileLock(path.with_suffix(".lock"), mode=0o666))
            features = _read(path, len(positions), log=lambda message: None) if is_first_process() else None
            features = from_first_process(features)
            if features is None:
                features = self._compute(source, positions, bar)
                if is_first_process():
                    with _naming_cache(path.parent):
                        save_state(path, {"features": features})
        return features

    def _compute(self, source: MultiLabelSource, positions: Tensor, bar: tqdm) -> Tensor:
        images = _Transformed(source, distributed.own_share(positions), self._to_pixels)
        parts = []
        for features in self._in_threads(images) if self._can_use_threads(source) else self._in_turn(images):
            parts.append(features)
            bar.update(distributed.process_rank()[1] * len(features))
        return distributed.in_order_of_images(parts)

    def _can_use_threads(self, source: MultiLabelSource) -> bool:
        """Whether images can be read and computed by several threads: only with parts of this package.

        What `torch.autocast` sets is not valid in other threads, and they cannot share compiled layers.
        """
        if type(self.backbone) is not Backbone or self.backbone.compile_layers:
            return False
        on_cpu = self.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        return on_cpu and isinstance(source, ImageFiles) and self._to_inputs is not None

    def _in_threads(self, images: _Transformed) -> Iterator[Tensor]:
        """Features of batches in order; one thread reads and computes each, so the number changes no bit."""
        if len(images) == 0:
            return
        batches = torch.arange(len(images)).split(min(self.batch_size, images_per_pass(images[0])))
        with one_thread() as n_threads, ThreadPoolExecutor(n_threads) as pool:
            run = map if n_threads == 1 else pool.map
            yield from run(lambda batch: self._forward(torch.stack([images[k] for k in batch])), batches)

    def _in_turn(self, images: _Transformed) -> Iterator[Tensor]:
        """Features of batches in order, which are read and computed one after the other."""
        loader = DataLoader(
            images,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            worker_init_fn=exit_if_orphaned,
            generator=torch.Generator(),  # torch's own must not depend on whether features are cached
        )
        for batch in loader:
            yield self._forward(batch.to(self.device))

    @torch.inference_mode()
    def _forward(self, images: Tensor) -> Tensor:
        if type(self.backbone) is Backbone:
            return frozen_forward(self.backbone, images, self._to_inputs).float().cpu()
        inputs = images if self._to_inputs is None else self._to_inputs(images)
        return self.backbone(inputs).float().cpu()


@contextlib.contextmanager
def _naming_cache(folder: Path) -> Iterator[None]:
    """Name the cache in errors of writing to it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            f"features cannot be written to {folder} ({reason}): choose another folder by --cache."
        ) from error


def _concatenate(blocks: Iterable[Tensor], n_rows: int) -> Tensor:
    """All rows of the blocks, with memory for one block beside the result; torch.cat needs it twice."""
    rows = torch.empty(0)
    n_filled = 0
    for block in blocks:
        if n_filled == 0:
            rows = block.new_empty(n_rows, *block.shape[1:])
        rows[n_filled : n_filled + len(block)] = block
        n_filled += len(block)
    return rows


def _file_digests(source: ImageFiles, positions: Sequence[int], folder: Path) -> list[bytes]:
    """SHA-256 of the contents of a source's files, cached in ``folder`` until the files change.

    A file is not read again while its inode, its size and both of its times are unchanged. No program can set
    the time at which an inode changed (``ctime``), so even a file of the same size and ``mtime`` is detected.
    """
    cache = folder / f"digests-{digest([os.path.abspath(source.root).encode()])[:32]}.json"
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # it is missing or damaged
        known = {} if is_foreign(cache) else dict(read_json(cache))
    digests = []
    is_new = False
    for path in map(source.path, positions):
        status = os.stat(path)
        state = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        row = known.get(path)
        if not isinstance(row, list) or row[:-1] != state:
            row = [*state, file_digest(path).hex()]
            # A file that has just changed may change again within the same clock tick; and only on POSIX is
            # st_ctime the time of a change.
            age = time.time() - max(status.st_mtime, status.st_ctime)
            if os.name == "posix" and age > SETTLED_SECONDS:
                known[path] = row
                is_new = True
        digests.append(str(row[-1]).encode())
    if is_new:
        with contextlib.suppress(OSError, ValueError):  # of another user, or with a name that is not UTF-8
            write_json(cache, known)
    return digests


def is_foreign(path: Path) -> bool:
    """Whether another user has written a file: its checksum only shows that it is complete."""
    return os.name == "posix" and path.stat().st_uid not in (ROOT_USER, os.geteuid())


def _bytes(tensor: Tensor) -> bytes:
    """Shape, type and values of a tensor, for a digest."""
    header = f"{tuple(tensor.shape)} {tensor.dtype}\n".encode()
    values = tensor.detach().cpu().contiguous().flatten()
    return header + values.view(torch.uint8).numpy().tobytes()  # NumPy has no bfloat16


class _Transformed(Dataset):
    def __init__(self, source: MultiLabelSource, positions: Tensor, transform: Transform | None) -> None:
        self.source, self.positions, self.transform = source, positions, transform

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Any:
        image = self.source[int(self.positions[index])][0]
        return image if self.transform is None else self.transform(image)


def _bar(n_images: int) -> tqdm:
    hidden = n_images == 0 or not is_first_process()
    options = {"mininterval": 0.2} if sys.stderr.isatty() else {"mininterval": 30.0, "delay": 30.0}
    return tqdm(total=n_images, desc="Features", unit=" images", disable=hidden, **options)


def _read(path: Path, n_images: int, log: Callable[[str], None]) -> Tensor | None:
    try:
        if is_foreign(path):
            log(
                f"{path} was written by another user: to compute its features yourself, choose a folder that "
                "nobody else can write with --cache"
            )
        content = load_state(path)
        features = content.get("features") if isinstance(content, dict) else None
        is_float = isinstance(features, Tensor) and features.dtype == torch.float32
        if isinstance(features, Tensor) and is_float and features.ndim == 2 and len(features) == n_images:
            return features
        log(f"{path} does not have the features of {n_images} images; they are recomputed")
    except FileNotFoundError:
        pass
    except DamagedState as error:
        log(f"{str(error).rstrip('.')}; its features are recomputed")
    return None
