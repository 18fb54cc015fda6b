"""Labels of any number of photos: find the files, load them in batches, predict, and write each batch."""

from __future__ import annotations

import glob
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from avalanche_agcn.benchmarks.image_files import IMAGE_FILE, Transform, load_image
from avalanche_agcn.checks import check_range, shorten
from avalanche_agcn.experiments.prediction_files import Found, Output, printable
from avalanche_agcn.models.saved import SavedModel
from avalanche_agcn.training.loader import exit_if_orphaned

STANDARD_INPUT = "-"
BATCH_SIZE = 32
MAX_WORKERS = 8
FEW_BATCHES = 4  # are loaded sooner than loader processes start
PATTERN = "*?["


class Unreadable(NamedTuple):
    """A photo that cannot be read."""

    photo: str
    reason: str


class LoadedBatch(NamedTuple):
    """Photos in the order given: stacked images of equal size, with their paths."""

    groups: list[tuple[list[str], Tensor]]
    unreadable: list[Unreadable]


def find_photos(names: Iterable[str]) -> Iterator[str]:
    """Paths of photos: of files, of all photos in folders and subfolders, and of patterns (``*.jpg``).

    Photos of folders and patterns come in alphabetical order, folder by folder, and links to folders are
    followed. Hidden files and files whose name is not that of an image are left out. A ValueError names a
    folder or pattern without photos.
    """
    for name in names:
        if os.path.isdir(name):
            photos = _photos_below(name)
        elif any(sign in name for sign in PATTERN) and not os.path.lexists(name):
            photos = filter(_is_photo, sorted(glob.iglob(name, recursive=True)))
        else:
            yield name
            continue
        first = next(photos, None)
        if first is None:
            raise ValueError(f"There is no photo in {name}: give files, folders with photos, or a pattern.")
        yield first
        yield from photos


def _photos_below(folder: str) -> Iterator[str]:
    """Photos of a folder and its subfolders, then folders that cannot be listed, which reading will name."""
    visited = set()  # folders, since links may lead back
    unreadable: list[OSError] = []
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=unreadable.append):
        if os.path.realpath(parent) in visited:
            folders.clear()
            continue
        visited.add(os.path.realpath(parent))
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # the order of the walk
        paths = (os.path.join(parent, name) for name in sorted(files) if not name.startswith("."))
        yield from filter(_is_photo, paths)
    yield from (str(error.filename) for error in unreadable)


def _is_photo(path: str) -> bool:
    """Whether a path names a photo; a link that leads nowhere is a photo that cannot be read."""
    return IMAGE_FILE.fullmatch(os.path.basename(path)) is not None and not os.path.isdir(path)


def read_list(file: str) -> Iterator[str]:
    """Lines of a text file, or of standard input if the file is ``-``, without blank ones."""
    if file == STANDARD_INPUT:
        if sys.stdin is None:
            raise ValueError("Standard input is closed: give a file with the list of photos.")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")  # as other files
        yield from _lines(sys.stdin)
        return
    with open(file, encoding="utf-8-sig", errors="surrogateescape") as lines:
        yield from _lines(lines)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        name = line.rstrip("\r\n")
        if name.strip():
            yield name


def load_batches(
    transform: Transform, paths: Iterable[str], *, batch_size: int, num_workers: int
) -> Iterator[LoadedBatch]:
    """Load and transform photos. Paths are taken only as they are needed, so they may be a stream."""
    loader: DataLoader[LoadedBatch] = DataLoader(
        _PhotoFiles(transform),
        batch_sampler=_batches(paths, batch_size),
        collate_fn=_collate,
        num_workers=num_workers,
        worker_init_fn=exit_if_orphaned,
        generator=torch.Generator(),  # the loader would otherwise advance torch's global generator
    )
    yield from loader


class _PhotoFiles(Dataset):
    """Transformed photos by their path; for one that cannot be read, the reason."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def __getitem__(self, path: str) -> tuple[str, Tensor | str]:
        try:
            return path, self.transform(load_image(path))
        except OSError as error:
            return path, str(error)
        except (ValueError, RuntimeError, MemoryError) as error:  # of a transform
            return path, _reason(path, error)


def _reason(path: str, error: Exception) -> str:
    """Why the model cannot use a photo that could be read."""
    lines = str(error).strip().splitlines()
    reason = shorten(lines[0], 200).rstrip(".") if lines else "too little memory"
    return f"{path} cannot be used by this model ({reason}): scale it to another size"


def _batches(paths: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(paths)
    while batch := list(islice(remaining, size)):
        yield batch


def _collate(loaded: list[tuple[str, Tensor | str]]) -> LoadedBatch:
    readable = [(path, content) for path, content in loaded if isinstance(content, Tensor)]
    groups = []
    for _, group in groupby(readable, key=lambda pair: pair[1].shape):  # only equal sizes can be stacked
        paths, images = zip(*group, strict=True)
        try:
            groups.append((list(paths), torch.stack(images)))
        except (RuntimeError, MemoryError):  # too large to be there twice
            groups += [([path], image[None]) for path, image in zip(paths, images, strict=True)]
    unreadable = [Unreadable(path, content) for path, content in loaded if isinstance(content, str)]
    return LoadedBatch(groups, unreadable)


def predict_files(
    model: SavedModel,
    paths: Iterable[str],
    *,
    batch_size: int = BATCH_SIZE,
    num_workers: int = 0,
    threshold: float | None = None,
    top: int | None = None,
) -> Iterator[tuple[list[Found], list[Unreadable]]]:
    """Predictions batch by batch, and the photos of the batch that cannot be read.

    Memory does not grow with the number of photos, and ``paths`` may be any iterable, also an endless one.
    ``num_workers`` processes load photos while the network computes. For ``threshold`` and ``top`` see
    `SavedModel.predict`.

    Raises:
        ValueError: if the model was saved without its transform.
    """
    check_range("batch_size", batch_size, least=1)
    check_range("num_workers", num_workers, least=0)
    to_pixels = model.require_to_pixels()
    for batch in load_batches(to_pixels, paths, batch_size=batch_size, num_workers=num_workers):
        found: list[Found] = []
        unreadable = list(batch.unreadable)
        for photos, pixels in batch.groups:
            predict = partial(model.predict_pixels, threshold=threshold, top=top)
            try:
                found += zip(photos, predict(pixels), strict=True)
            except (RuntimeError, MemoryError):  # a photo may be too small for the network, or too large
                for k, photo in enumerate(photos):
                    try:
                        found += [(photo, prediction) for prediction in predict(pixels[k : k + 1])]
                    except (RuntimeError, MemoryError) as error:
                        unreadable.append(Unreadable(photo, _reason(photo, error)))
        yield found, unreadable


def write_predictions(
    model: SavedModel,
    find: Callable[[], Iterator[str]],
    output: Output,
    *,
    batch_size: int = BATCH_SIZE,
    num_workers: int | None = None,
    threshold: float | None = None,
    top: int | None = None,
    is_stream: bool = False,
) -> list[Unreadable]:
    """Write the predictions of all photos to ``output``, batch by batch; return the unreadable photos.

    ``find`` gives the paths. It is called twice, first to count them, unless ``is_stream``. If
    ``num_workers`` is None, there is one per processor, or none for few photos.
    """
    model.require_transform()  # before anything is written
    check_range("threshold", threshold, least=0, most=1)
    check_range("top", top, least=1)
    n_photos = None if is_stream else sum(1 for _ in find())
    if num_workers is None:
        is_few = n_photos is not None and n_photos <= FEW_BATCHES * batch_size
        num_workers = 0 if is_few else min(MAX_WORKERS, os.cpu_count() or 1)
    unreadable: list[Unreadable] = []
    few = n_photos is not None and n_photos <= batch_size
    with output, _progress(n_photos, hidden=few or output.is_on_screen) as bar:
        output.begin(model, threshold=threshold, top=top)

        def missing_photos() -> Iterator[str]:
            for photo in find():
                if output.lacks(photo):
                    yield photo
                else:
                    bar.update()

        photos = missing_photos()
        batches = predict_files(
            model, photos, batch_size=batch_size, num_workers=num_workers, threshold=threshold, top=top
        )
        for found, problems in batches:
            output.write(found)
            unreadable += problems
            bar.update(len(found) + len(problems))
        output.end()
    return unreadable


def _progress(n_photos: int | None, *, hidden: bool) -> tqdm:
    """A bar on standard error; in a log file, a line every half minute."""
    seconds = 0.2 if sys.stderr.isatty() else 30.0
    return tqdm(total=n_photos, desc="Photos", unit=" photos", mininterval=seconds, disable=hidden)


def describe_unreadable(unreadable: Sequence[Unreadable]) -> str:
    """The photos that could not be read, a line each, for a message."""
    photos = "1 photo" if len(unreadable) == 1 else f"{len(unreadable):,} photos"
    lines = [f"  {printable(reason)}" for _, reason in unreadable]
    return "\n".join([f"{photos} could not be read and had to be skipped:", *lines])
