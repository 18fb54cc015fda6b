"""``photos.json`` in a run's folder: its photos, labels and experiences, for runs that continue it.

With it, a run can be continued although its file of labels was changed or removed. Of the photos themselves
only those are needed that are evaluated, or that the method trains on again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from avalanche_agcn.benchmarks.image_files import ImageFiles, ImageOptions, check_inside
from avalanche_agcn.benchmarks.multilabel import Images, Plan
from avalanche_agcn.benchmarks.protocols import Protocol
from avalanche_agcn.checks import check_fields, read_json, reject_value, relative_path
from avalanche_agcn.experiments.checkpoint import write_json

PHOTOS_FILE = "photos.json"
FORMAT = 1
SIZES = (8, 4096)
"""Least and largest side of images in pixels."""
FIELDS: dict[str, Any] = {
    "class_names": list[str],
    "protocol": dict,
    "labels_complete": bool,
    "sources": dict[str, dict],
    "streams": dict[str, dict],
}
SOURCE_FIELDS: dict[str, Any] = {
    "folder": str,
    "folder_from_here": str,
    "files": list[str],
    "names": list[str] | None,
    "labels": list[list[int]],
}
STREAM_FIELDS: dict[str, Any] = {"source": str, "experiences": list[list[int]]}


def write_photos(path: Path, plan: Plan) -> None:
    """Write the plan of a benchmark whose images are files."""
    streams = {"train": plan.train, **plan.evaluation}
    sources: dict[str, Any] = {}
    names: dict[int, str] = {}  # of sources by id, which streams may share
    for name, images in streams.items():
        if id(images.source) not in names:
            names[id(images.source)] = name
            sources[name] = _describe_source(images, path.parent)
    content = {
        "format": FORMAT,
        "class_names": list(plan.class_names),
        "protocol": asdict(plan.protocol),
        "labels_complete": plan.labels_complete,
        "sources": sources,
        "streams": {
            name: {
                "source": names[id(images.source)],
                "experiences": [positions.tolist() for positions in images.positions],
            }
            for name, images in streams.items()
        },
    }
    write_json(path, content)


def _describe_source(images: Images, folder: Path) -> dict[str, Any]:
    source = images.source
    assert isinstance(source, ImageFiles)
    files = [os.fsdecode(file) for file in source.files]
    names = [source.image_name(k) for k in range(len(source))]
    return {
        "folder": os.path.abspath(source.root),
        "folder_from_here": relative_path(source.root, folder),
        "files": files,
        "names": None if names == files else names,
        "labels": [row.nonzero().flatten().tolist() for row in images.labels],  # columns of positives
    }


def read_photos_file(path: Path, backbone: Any) -> Plan:
    """The plan of a file of `write_photos`, with images transformed for a backbone.

    Raises:
        ValueError: if the file is damaged or of another version; it is named.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} does not have format {FORMAT}, which this version reads: run it again.")
    check_fields(content, FIELDS, str(path))
    try:
        return _make_plan(content, path, backbone)
    except (KeyError, IndexError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): run it again.") from None


def _make_plan(content: dict[str, Any], path: Path, backbone: Any) -> Plan:
    names = content["class_names"]
    n_classes = len(names)
    _check(0 < len(set(names)) == n_classes, f"{path}: class_names", "different names", names)
    sources = {}
    for name, described in content["sources"].items():
        check_fields(described, SOURCE_FIELDS, f"{path}: sources.{name}")
        _check_source(described, f"{path}: sources.{name}", n_classes)
        sources[name] = _make_source(described, path, n_classes)
    known = {field.name for field in fields(Protocol)}
    protocol = Protocol(**{name: value for name, value in content["protocol"].items() if name in known})
    _check_protocol(protocol, n_classes, path)
    for name in ("train", "test"):
        _check(name in content["streams"], f"{path}: streams", "train, test and others", content["streams"])
    n_experiences = len(protocol.classes_per_experience or ())
    streams = {}
    for name, stream in content["streams"].items():
        check_fields(stream, STREAM_FIELDS, f"{path}: streams.{name}")
        source = sources[stream["source"]]
        fits = len(stream["experiences"]) == n_experiences
        wanted = f"photos of {n_experiences} experiences"
        _check(fits, f"{path}: streams.{name}.experiences", wanted, stream["experiences"])
        _check_positions(stream["experiences"], len(source), f"{path}: streams.{name}")
        positions = [torch.tensor(part, dtype=torch.long) for part in stream["experiences"]]
        streams[name] = Images(source, torch.as_tensor(source.targets), positions)
    transforms = ImageOptions(backbone=backbone).transforms(protocol.image_size, flip=bool(protocol.flip))
    return Plan(
        train=streams.pop("train"),
        evaluation=streams,
        class_names=content["class_names"],
        protocol=protocol,
        labels_complete=content["labels_complete"],
        **transforms,
    )


def _check(fits: bool, place: str, wanted: str, value: Any) -> None:
    if not fits:
        reject_value(place, wanted, value)


def _check_protocol(protocol: Protocol, n_classes: int, path: Path) -> None:
    """Check what the plan and its transforms need of the protocol."""
    place = f"{path}: protocol"
    size, sizes = protocol.image_size, protocol.classes_per_experience
    fits = type(size) is int and SIZES[0] <= size <= SIZES[1]
    _check(fits, f"{place}.image_size", f"a whole number from {SIZES[0]} to {SIZES[1]}", size)
    fits = isinstance(sizes, list) and all(type(n) is int and n > 0 for n in sizes)
    fits = fits and sum(sizes) == n_classes  # type: ignore[arg-type]
    wanted = f"a list of positive numbers that sum to the {n_classes} class_names"
    _check(fits, f"{place}.classes_per_experience", wanted, sizes)


def _check_source(described: dict[str, Any], place: str, n_classes: int) -> None:
    """Check that names and labels are those of the files."""
    n_files = len(described["files"])
    for part in ("names", "labels"):
        value = described[part]
        fits = value is None or len(value) == n_files
        _check(fits, f"{place}.{part}", f"a list of {n_files}, the number of files", value)
    for row, columns in enumerate(described["labels"]):
        fits = len(set(columns)) == len(columns) and all(0 <= column < n_classes for column in columns)
        wanted = f"different columns of the {n_classes} class_names"
        _check(fits, f"{place}.labels[{row}]", wanted, str(columns))


def _make_source(described: dict[str, Any], path: Path, n_classes: int) -> ImageFiles:
    """The images, in the folder where they are now: both may have moved together."""
    for file in described["files"]:
        check_inside(file, f"{path}: a file")
    folder = described["folder"]
    if not os.path.isdir(folder):
        folder = os.path.normpath(path.parent / described["folder_from_here"])
    labels = torch.zeros(len(described["files"]), n_classes, dtype=torch.int8)
    for row, columns in enumerate(described["labels"]):
        labels[row, columns] = 1
    return ImageFiles(folder, described["files"], labels, names=described["names"])


def _check_positions(experiences: Sequence[Sequence[int]], n_images: int, place: str) -> None:
    for positions in experiences:
        if positions and not 0 <= min(positions) <= max(positions) < n_images:
            raise ValueError(f"{place} has positions outside of its {n_images} images: run it again.")
        if len(set(positions)) < len(positions):
            raise ValueError(f"{place} has an image twice in one experience: run it again.")
