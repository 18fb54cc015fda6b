"""Models of finished runs: ``model.safetensors`` with tensors and ``model.json`` with everything else.

Whatever the method, a finished model is a network, one linear classifier per class, and perhaps a random
layer between them (L3A) and a refinement of logits (StreamingRidge). Reading the files executes no code.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from avalanche_agcn import __version__
from avalanche_agcn.benchmarks import image_files
from avalanche_agcn.checks import check_fields, check_range, read_json
from avalanche_agcn.models.backbones import RandomFeatures, WeightsUnavailable, create_backbone
from avalanche_agcn.models.forward import check_device, digest_weights, evaluation_mode
from avalanche_agcn.models.linear import LogitRefinement, MultiLabelClassifier

FORMAT = 1
THRESHOLD = 0.5
BACKBONE_SETTINGS = ("pool", "freeze_batchnorm", "fold_batchnorm", "channels_last")
BACKBONE_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
FIELDS = {"class_names": list[str], "thresholds": list[float], "backbone": dict, "tensors": str}
BACKBONE_FIELDS = {
    **dict.fromkeys(BACKBONE_SETTINGS, bool),
    # Where the weights are: stored in the file, or where create_backbone finds them by name.
    **{"name": str, "pool": str, "weights": Literal["stored", "pretrained"], "digest": str},
}
TENSORS, DESCRIPTION = ".safetensors", ".json"

FILE_OR_IMAGE = (str, os.PathLike, Image.Image)
Photo = str | os.PathLike | Image.Image | Tensor


class Prediction(NamedTuple):
    """Labels of a photo."""

    names: list[str]  # classes whose probability reaches their threshold, the most probable first
    probabilities: dict[str, float]  # of every class


class SavedModel(MultiLabelClassifier):
    """A model from a finished run: logits of images, or names and probabilities of photos.

    Attributes:
        class_names: name of each class.
        thresholds: probability at which each class counts as found.
        transform: from an upright RGB image to an input of the network; None if it is not known.
        description: content of ``model.json``.
    """

    def __init__(self, backbone: nn.Module, description: dict[str, Any]) -> None:
        super().__init__(backbone, len(description["class_names"]))
        self.class_names, self.thresholds = description["class_names"], description["thresholds"]
        steps, self.description = description["transform"], description
        self.transform = None if steps is None else image_files.make_transform(steps)
        self.eval()

    @torch.inference_mode()
    def predict(self, images: Photo | Sequence[Photo], *, batch_size: int = 32) -> list[Prediction]:
        """Names and probabilities for photos.

        ``images`` are paths, PIL images or transformed tensors ``[3, H, W]``: one, several, or a batch.
        """
        check_range("batch_size", batch_size, least=1)
        single = images.ndim == 3 if isinstance(images, Tensor) else isinstance(images, FILE_OR_IMAGE)
        inputs = map(self._input, [images] if single else images)  # type: ignore[arg-type,list-item]
        rows = []
        with evaluation_mode(self):
            for _, group in groupby(inputs, key=lambda image: image.shape):  # only equal sizes form a batch
                while batch := list(islice(group, batch_size)):
                    logits = self(torch.stack(batch).to(self.classifier.weight.device))
                    rows += logits.double().sigmoid().tolist()
        return [self._prediction(row) for row in rows]

    def _input(self, photo: Photo) -> Tensor:
        if isinstance(photo, Tensor):
            return photo
        if not isinstance(photo, FILE_OR_IMAGE):
            type_name = type(photo).__name__
            raise TypeError(f"Photos must be paths, PIL images or tensors [3, H, W], not {type_name}.")
        if self.transform is None:
            raise ValueError("The run's transform could not be saved: pass photos as transformed tensors.")
        if isinstance(photo, Image.Image):
            return self.transform(image_files.upright_rgb(photo))
        return self.transform(image_files.load_image(photo))

    def _prediction(self, row: Sequence[float]) -> Prediction:
        found = [k for k, threshold in enumerate(self.thresholds) if row[k] >= threshold]
        names = [self.class_names[k] for k in sorted(found, key=lambda k: -row[k])]
        return Prediction(names, dict(zip(self.class_names, row, strict=True)))


def pack_model(
    model: Any,
    backbone: nn.Module,
    *,
    network: Mapping[str, Any],
    by_name: bool,
    transform: image_files.Transform | None,
    class_names: Sequence[str],
    thresholds: Sequence[float] | None = None,
    about: Mapping[str, Any],
) -> tuple[bytes, dict[str, Any]]:
    """Content of ``model.safetensors`` and ``model.json`` of a trained `MultiLabelModel`.

    ``backbone`` differs from ``model.backbone`` if the model was trained on features. ``network`` has its
    name and `BACKBONE_SETTINGS`. With ``by_name``, its weights are not stored, because `create_backbone`
    finds them. The model has seen the first of ``class_names``. ``about`` has more information on the run.
    """
    tensors = {name: value for name, value in model.classifiers()._asdict().items() if value is not None}
    names = list(class_names[: len(tensors["weight"])])
    if getattr(model, "refinement", None) is not None:
        tensors |= {f"refinement.{name}": value for name, value in model.refinement.state_dict().items()}
    if isinstance(model.backbone, RandomFeatures):
        tensors["random"] = model.backbone.weight
        backbone = model.backbone.backbone if backbone is model.backbone else backbone
    weights = "pretrained" if by_name else "stored"
    if not by_name:
        tensors |= {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    content = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    description = {
        "format": FORMAT,
        "package": __version__,
        **about,
        "class_names": names,
        "thresholds": [THRESHOLD] * len(names) if thresholds is None else list(thresholds),
        "transform": image_files.describe_transform(transform),
        "backbone": {**network, "weights": weights, "digest": digest_weights(backbone)},
        "tensors": hashlib.sha256(content).hexdigest(),
    }
    return content, description


def model_name(after: int | None = None) -> str:
    """File name without suffix of the final model, or of that after an experience, counted from 1."""
    return "model" if after is None else f"model-after{after}"


def load_model(
    run: str | os.PathLike, *, after: int | None = None, device: str | torch.device = "cpu"
) -> SavedModel:
    """Load the model of a run, for predictions. No code in its files is executed.

    Args:
        run: folder of a run, such as ``results/agcn-seed0``.
        after: number of an experience, from 1, to load the model after it (of a run with ``--keep-models``);
            None for the final model.
        device: where to compute.

    Raises:
        FileNotFoundError: if there is no such model.
        ValueError: if its files are damaged, of another version or not of this package, or the device cannot
            be used.
        WeightsUnavailable: if the network's weights cannot be loaded; for other errors see `create_backbone`.
    """
    check_device(device)
    path = _find(Path(run), after)
    try:
        model = _make_model(*_read(path))
    except WeightsUnavailable:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        files = f"{path} and {path.stem}{TENSORS}"
        raise ValueError(f"{files} are not a model that can be used: {reason}.") from None
    return model.to(device)


def _find(run: Path, after: int | None) -> Path:
    path = run / f"{model_name(after)}{DESCRIPTION}"
    if path.is_file():
        return path
    hint = "has a run ended there?"
    if (run / f"{model_name()}{DESCRIPTION}").is_file():  # a run without the model after this experience
        kept = [p.name for p in run.glob(f"model-after*{DESCRIPTION}")]
        listed = ", ".join(sorted(kept, key=lambda name: (len(name), name)))
        hint = f"there are {listed}." if kept else "run with --keep-models for it."
    elif runs := sorted(str(p.parent) for p in run.glob(f"*/{model_name()}{DESCRIPTION}")):
        hint = f"give the folder of one run: {', '.join(runs[:20])}."
    raise FileNotFoundError(f"There is no {path}; {hint}")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Content of ``model.json``, checked, and the tensors that it describes."""
    found = read_json(path)
    is_known = isinstance(found, dict) and found.get("format") == FORMAT
    _check(is_known, f"it does not have format {FORMAT}, which this version reads")
    check_fields(found, FIELDS, path.name)
    check_fields(found["backbone"], BACKBONE_FIELDS, f"{path.name}: backbone")
    names, thresholds, network = found["class_names"], found["thresholds"], found["backbone"]["name"]
    _check(len(set(names)) == len(names) > 0, f"class_names are empty or have a name twice: {names}")
    _check(len(names) == len(thresholds), f"{len(names)} classes have {len(thresholds)} thresholds")
    _check(BACKBONE_NAME.fullmatch(network), f"the backbone has the name {network!r}")
    file = path.with_suffix(TENSORS)
    _check(file.is_file(), f"there is no {file.name}")
    content = file.read_bytes()
    is_whole = hashlib.sha256(content).hexdigest() == found["tensors"]
    _check(is_whole, f"{file.name} is damaged, or of another run")
    return found, load(content)


def _check(fits: object, problem: str) -> None:
    """Raise a ValueError with the problem; `load_model` makes a sentence of it."""
    if not fits:
        raise ValueError(problem)


def _make_model(description: dict[str, Any], tensors: dict[str, Tensor]) -> SavedModel:
    own = {key: tensors.pop(key) for key in [*tensors] if not key.startswith("backbone.")}
    _check("weight" in own, "the tensor 'weight' is missing")
    backbone = _make_backbone(description["backbone"], tensors)
    n_classes, n_inputs = len(description["class_names"]), backbone.num_features
    n_features = len(own["random"]) if "random" in own else n_inputs
    _check_tensors(own, n_classes, n_inputs, n_features)  # before anything of such a size is allocated
    if "random" in own:
        backbone = RandomFeatures(backbone, n_features)
        backbone.weight = own["random"]
    model = SavedModel(backbone, description)
    parts = {key.removeprefix("refinement."): own[key] for key in own if key.startswith("refinement.")}
    refinement = LogitRefinement(**parts) if parts else None
    model.set_classifiers(own["weight"], own.get("bias", torch.zeros(n_classes)), refinement)
    if model.transform is not None:
        image = model.transform(Image.new("RGB", (64, 48)))  # an error if its steps do not fit each other
        _check(image.ndim == 3 and image.is_floating_point(), "the transform returns no [3, H, W] floats")
    return model


def _check_tensors(own: Mapping[str, Tensor], n_classes: int, n_inputs: int, n_features: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "random": (n_features, n_inputs),
        "weight": (n_classes, n_features),
        "refinement.gain": (n_classes, n_classes),
        **dict.fromkeys(("bias", "refinement.origin", "refinement.unit"), (n_classes,)),
    }
    for key, tensor in own.items():
        _check(tensor.shape == shapes.get(key), f"the tensor {key!r} has shape {tuple(tensor.shape)}")
        is_number = tensor.is_floating_point() and tensor.isfinite().all()
        _check(is_number, f"the tensor {key!r} has values that are not finite floats")


def _make_backbone(network: Mapping[str, Any], tensors: dict[str, Tensor]) -> Any:
    settings = {name: network[name] for name in BACKBONE_SETTINGS}
    by_name = network["weights"] == "pretrained"
    backbone = create_backbone(network["name"], pretrained=by_name, **settings)
    if not by_name:
        backbone.load_state_dict({key.removeprefix("backbone."): value for key, value in tensors.items()})
    is_same = digest_weights(backbone) == network["digest"]
    _check(is_same, f"the weights of {network['name']!r} found here are not those of the run")
    return backbone
