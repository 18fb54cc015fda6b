"""Models of finished runs: ``model.safetensors`` with tensors and ``model.json`` with everything else.

Whatever the method, a finished model is a network, one linear classifier per class, and perhaps a random
layer between them (L3A) and a refinement of logits (StreamingRidge). Reading the two files executes no code
of theirs.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from avalanche_agcn import __version__
from avalanche_agcn.benchmarks.image_files import (
    Transform,
    describe_transform,
    load_image,
    make_transform,
    upright_rgb,
)
from avalanche_agcn.checks import check_fields, check_range, read_json
from avalanche_agcn.models.backbones import RandomFeatures, create_backbone
from avalanche_agcn.models.forward import digest_weights, evaluation_mode
from avalanche_agcn.models.linear import LogitRefinement

FORMAT = 1
THRESHOLD = 0.5
BACKBONE_SETTINGS = ("pool", "freeze_batchnorm", "fold_batchnorm", "channels_last")
BACKBONE_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
STORED, PRETRAINED = "stored", "pretrained"
"""Where the weights of the network are: in the file, or where `create_backbone` finds them by name."""
FIELDS = {"class_names": list[str], "thresholds": list[float], "backbone": dict, "tensors": str}
BACKBONE_FIELDS = {
    **dict.fromkeys(BACKBONE_SETTINGS, bool),
    **{"name": str, "pool": str, "weights": Literal["stored", "pretrained"], "digest": str},
}
TENSORS, DESCRIPTION = ".safetensors", ".json"

FILE_OR_IMAGE = (str, os.PathLike, Image.Image)
Photo = str | os.PathLike | Image.Image | Tensor


class Prediction(NamedTuple):
    """Labels of a photo."""

    names: list[str]
    """Classes whose probability reaches their threshold, the most probable first."""
    probabilities: dict[str, float]
    """Of every class that the model has learned."""


class SavedModel(nn.Module):
    """A model from a finished run: logits of images, or names and probabilities of photos.

    Attributes:
        class_names: name of each class.
        thresholds: probability from which a class counts as found.
        transform: from an upright RGB image to an input of the network; None if it is not known.
        description: content of ``model.json``.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        backbone: nn.Module,
        weight: Tensor,
        bias: Tensor | None,
        refinement: nn.Module | None,
        description: dict[str, Any],
    ) -> None:
        super().__init__()
        self.backbone, self.refinement = backbone, refinement
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.class_names, self.thresholds = description["class_names"], description["thresholds"]
        steps, self.description = description["transform"], description
        self.transform = None if steps is None else make_transform(steps)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of inputs of the network, ``[B, n]``."""
        return self.classify(self.backbone(x))

    def classify(self, features: Tensor) -> Tensor:
        """Logits of features of the network, ``[B, n]``."""
        logits = nn.functional.linear(features.to(self.weight.dtype), self.weight, self.bias)
        return logits if self.refinement is None else self.refinement(logits)

    @torch.inference_mode()
    def predict(self, images: Photo | Sequence[Photo], *, batch_size: int = 32) -> list[Prediction]:
        """Names and probabilities for photos.

        Args:
            images: paths, PIL images, or tensors ``[3, H, W]`` that are already transformed; or a batch of
                such tensors. A single one is a list of one.
            batch_size: number of images that go through the network at a time.
        """
        check_range("batch_size", batch_size, least=1)
        single = images.ndim == 3 if isinstance(images, Tensor) else isinstance(images, FILE_OR_IMAGE)
        photos: Sequence[Any] = [images] if single else images  # type: ignore[assignment,list-item]
        with evaluation_mode(self):
            rows = [self(batch).double().sigmoid().cpu() for batch in self._batches(photos, batch_size)]
        return [self._prediction(row) for batch in rows for row in batch.tolist()]

    def _batches(self, photos: Sequence[Photo], batch_size: int) -> Iterator[Tensor]:
        """Inputs of the network, those of one size together."""
        for _, images in groupby(map(self._input, photos), key=lambda image: image.shape):
            while batch := list(islice(images, batch_size)):
                yield torch.stack(batch).to(self.weight.device)

    def _input(self, photo: Photo) -> Tensor:
        if isinstance(photo, Tensor):
            return photo
        if not isinstance(photo, FILE_OR_IMAGE):
            kind = type(photo).__name__
            raise TypeError(f"Photos must be paths, PIL images or tensors [3, H, W], not {kind}.")
        if self.transform is None:
            raise ValueError("The run's transform could not be saved: give photos as transformed tensors.")
        return self.transform(upright_rgb(photo) if isinstance(photo, Image.Image) else load_image(photo))

    def _prediction(self, row: Sequence[float]) -> Prediction:
        found = [k for k, threshold in enumerate(self.thresholds) if row[k] >= threshold]
        names = [self.class_names[k] for k in sorted(found, key=lambda k: -row[k])]
        return Prediction(names, dict(zip(self.class_names, row, strict=True)))


def pack_model(
    model: Any,
    backbone: nn.Module,
    *,
    backbone_name: str,
    backbone_settings: Mapping[str, Any],
    by_name: bool,
    transform: Transform | None,
    class_names: Sequence[str],
    thresholds: Sequence[float] | None = None,
    about: Mapping[str, Any],
) -> tuple[bytes, dict[str, Any]]:
    """Content of ``model.safetensors`` and ``model.json`` of a trained `MultiLabelModel`.

    ``backbone`` is another than ``model.backbone`` if the model was trained on features. With ``by_name`` its
    weights are left out, because they are those that `create_backbone` finds. Of ``class_names``, those that
    the model has seen come first. ``about`` is what else is worth knowing about the run.
    """
    tensors = {name: value for name, value in model.classifiers()._asdict().items() if value is not None}
    names = list(class_names[: len(tensors["weight"])])
    if getattr(model, "refinement", None) is not None:
        tensors |= {f"refinement.{name}": value for name, value in model.refinement.state_dict().items()}
    if isinstance(model.backbone, RandomFeatures):
        tensors["random"] = model.backbone.weight
        backbone = model.backbone.backbone if backbone is model.backbone else backbone
    if not by_name:
        tensors |= {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    content = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    description = {
        "format": FORMAT,
        "package": __version__,
        **about,
        "class_names": names,
        "thresholds": [THRESHOLD] * len(names) if thresholds is None else list(thresholds),
        "transform": describe_transform(transform),
        "backbone": {
            "name": backbone_name,
            **{name: backbone_settings[name] for name in BACKBONE_SETTINGS},
            "weights": PRETRAINED if by_name else STORED,
            "digest": digest_weights(backbone),
        },
        "tensors": hashlib.sha256(content).hexdigest(),
    }
    return content, description


def model_name(after: int | None = None) -> str:
    """Name of a run's model without suffix: that at its end, or after an experience, counted from 1."""
    return "model" if after is None else f"model-after{after}"


def load_model(
    run: str | os.PathLike, *, after: int | None = None, device: str | torch.device = "cpu"
) -> SavedModel:
    """The model that a run left, for predictions. No code in its files is executed.

    Args:
        run: folder of a run, such as ``results/agcn-seed0``.
        after: number of the experience after which the model is wanted, from 1, of a run with
            ``--keep-models``; the last one if None.
        device: where to compute.

    Raises:
        FileNotFoundError: if there is no such model.
        ValueError: if its files are damaged, of another version or not of this package.
        WeightsUnavailable: if the network's weights cannot be loaded; for other errors see `create_backbone`.
    """
    path = _find(Path(run), after)
    try:
        description = _read_description(path)
        tensors = _read_tensors(path.with_suffix(TENSORS), description["tensors"])
        model = _make_model(description, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        files = f"{path} and {path.stem}{TENSORS}"
        raise ValueError(f"{files} are not a model that can be used: {reason}.") from None
    return model.to(device)


def _find(run: Path, after: int | None) -> Path:
    path = run / f"{model_name(after)}{DESCRIPTION}"
    if path.is_file():
        return path
    if after is not None and (run / f"{model_name()}{DESCRIPTION}").is_file():
        kept = [p.stem.removeprefix("model-after") for p in run.glob(f"model-after*{DESCRIPTION}")]
        listed = ", ".join(sorted(kept, key=lambda number: (len(number), number)))
        there = f"there are those after {listed}" if kept else "run with --keep-models for them"
        raise FileNotFoundError(f"{run} has no model after experience {after}; {there}.")
    runs = sorted(str(p.parent) for p in run.glob(f"*/{model_name()}{DESCRIPTION}")) if run.is_dir() else []
    there = f"give the folder of one run: {', '.join(runs[:20])}" if runs else "has a run ended there?"
    raise FileNotFoundError(f"There is no {path}; {there}")


def _read_description(path: Path) -> dict[str, Any]:
    """What ``model.json`` says, checked."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}, which this version reads")
    check_fields(found, FIELDS, path.name)
    check_fields(found["backbone"], BACKBONE_FIELDS, f"{path.name}: backbone")
    names = found["class_names"]
    _check(len(set(names)) == len(names) == len(found["thresholds"]) > 0, "class_names", names)
    _check(BACKBONE_NAME.fullmatch(found["backbone"]["name"]), "backbone", found["backbone"]["name"])
    return found


def _check(fits: object, name: str, value: Any) -> None:
    if not fits:
        raise ValueError(f"{name} has a wrong value, {repr(value)[:60]}")


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"there is no {path.name}")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path.name} is damaged, or of another run")
    return load(content)


def _make_model(description: dict[str, Any], tensors: dict[str, Tensor]) -> SavedModel:
    weight, names = tensors.pop("weight"), description["class_names"]
    bias, random = tensors.pop("bias", None), tensors.pop("random", None)
    own = {name: tensors.pop(f"refinement.{name}", None) for name in ("origin", "unit", "gain")}
    _check(len({value is None for value in own.values()}) == 1, "refinement", [*own])
    refinement = None if own["origin"] is None else LogitRefinement(**own)  # type: ignore[arg-type]
    backbone: Any = _make_backbone(description["backbone"], tensors)
    n_features = backbone.num_features
    if random is not None:
        _check(random.ndim == 2 and random.shape[1] == n_features, "random", tuple(random.shape))
        backbone, n_features = RandomFeatures(backbone, len(random)), len(random)
        backbone.weight = random
    _check(weight.shape == (len(names), n_features), "weight", tuple(weight.shape))
    _check(bias is None or bias.shape == (len(names),), "bias", bias)
    model = SavedModel(backbone, weight, bias, refinement, description)
    _try_out(model, n_features)
    return model


def _try_out(model: SavedModel, n_features: int) -> None:
    """Raise a ValueError if types or shapes in the files do not fit each other, before a photo is read."""
    try:
        logits = model.classify(torch.zeros(1, n_features))
        image = None if model.transform is None else model.transform(Image.new("RGB", (64, 48)))
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    _check(logits.shape == (1, len(model.class_names)), "refinement", tuple(logits.shape))
    _check(logits.is_floating_point() and logits.isfinite().all(), "weight", model.weight)
    _check(image is None or (image.ndim == 3 and image.is_floating_point()), "transform", image)


def _make_backbone(network: Mapping[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    settings = {name: network[name] for name in BACKBONE_SETTINGS}
    by_name = network["weights"] == PRETRAINED
    backbone = create_backbone(network["name"], pretrained=by_name, **settings)
    if not by_name:
        try:
            backbone.load_state_dict({k.removeprefix("backbone."): v for k, v in tensors.items()})
        except RuntimeError as error:  # names or shapes differ
            raise ValueError(str(error)) from None
    if digest_weights(backbone) != network["digest"]:
        raise ValueError(f"the weights of {network['name']!r} found here are not those that the run had")
    return backbone
