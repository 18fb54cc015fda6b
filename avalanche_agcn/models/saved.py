"""Saved models: ``model.safetensors`` with tensors and ``model.json`` with everything else.

Whatever the method, a trained model is a network, one linear classifier per class, and perhaps a random
layer between them (L3A) and a refinement of logits (StreamingRidge). Reading the files executes no code.
"""

import hashlib
import json
import os
import re
import warnings
from collections import Counter
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
from avalanche_agcn.checks import (
    NAME,
    check_fields,
    check_range,
    cut,
    did_you_mean,
    is_name,
    listed,
    read_file,
    read_json,
    shorten,
    shown,
    write_atomically,
)
from avalanche_agcn.models.backbones import Precomputed, RandomFeatures, WeightsUnavailable, create_backbone
from avalanche_agcn.models.base import Classifiers, MultiLabelModel
from avalanche_agcn.models.forward import check_device, digest_weights, evaluation_mode, unwrap
from avalanche_agcn.models.frozen import folded_copy, frozen_forward
from avalanche_agcn.models.linear import Familiarity, LogitRefinement, MultiLabelClassifier

FORMAT = 1
THRESHOLD = 0.5
BACKBONE_SETTINGS = ("pool", "freeze_batchnorm", "fold_batchnorm", "channels_last")
BACKBONE_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
FIELDS = {"class_names": list[str], "thresholds": list[float], "backbone": dict, "tensors": str}
AMP = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Half precision of a run's network, by its name in settings and files."""
OPTIONAL_FIELDS = {"amp": Literal["bf16", "fp16"] | None, "experience": int, "n_experiences": int}
BACKBONE_FIELDS = {
    "name": str,
    "pool": str,
    "freeze_batchnorm": bool,
    "fold_batchnorm": bool,
    "channels_last": bool,
    # Where the weights are: stored in the file, or where create_backbone finds them by name.
    "weights": Literal["stored", "pretrained"],
    "digest": str,
}
MAX_TENSORS_BYTES = 2**34
MAX_DESCRIPTION_BYTES = 2**26  # of model.json, whose longest part are the names of classes
TENSORS = ".safetensors"
DESCRIPTION = ".json"

FILE_OR_IMAGE = (str, os.PathLike, Image.Image)
Photo = str | os.PathLike | Image.Image | Tensor


class Prediction(NamedTuple):
    """Labels of a photo."""

    names: list[str]  # classes whose probability reaches their threshold, the most probable first
    probabilities: dict[str, float]  # of every class


class _Loaded(NamedTuple):
    """A photo to predict: values of its pixels, or an input of the network."""

    values: Tensor
    is_input: bool


class SavedModel(MultiLabelClassifier):
    """A saved model: logits of images, or names and probabilities of photos.

    Predictions come from a faster copy of the network (`folded_copy`), which is made for the first one and
    again when weights have changed. They differ by rounding from the probabilities of the model's own logits.

    Attributes:
        class_names: name of each class.
        thresholds: probability at which each class counts as found.
        transform: from an upright RGB image to an input of the network; None if it is not known.
        description: content of ``model.json``.
        amp: half precision in which the run's network computed, and `predict` computes; None for full.
    """

    def __init__(self, backbone: nn.Module, description: dict[str, Any]) -> None:
        super().__init__(backbone, len(description["class_names"]))
        self.description = description
        self.class_names = description["class_names"]
        self.thresholds = description["thresholds"]
        self.amp = AMP[description.get("amp")]
        steps = description["transform"]
        self.transform = None if steps is None else image_files.make_transform(steps)
        self._to_pixels, self._to_inputs = image_files.split_transform(self.transform)
        self.familiarity: Familiarity | None = None
        self._folded: list[nn.Module] = []  # a list, so that it is no part of the model's state
        self._folded_state: Any = None
        self.eval()

    def logits(self, features: Tensor, classifiers: Classifiers | None = None) -> Tensor:
        """Logits of features ``[B, D]``, low for images that are unlike the training images."""
        logits = super().logits(features, classifiers)
        return logits if self.familiarity is None else self.familiarity(logits, features)

    def predict(
        self,
        images: Photo | Sequence[Photo],
        *,
        batch_size: int = 32,
        threshold: float | None = None,
        top: int | None = None,
    ) -> list[Prediction]:
        """Names and probabilities for photos.

        ``images`` are paths, PIL images or transformed tensors ``[3, H, W]``: one, several, or a batch. Names
        are those of the classes that reach their own threshold, or ``threshold`` if it is given. With ``top``
        they are those of this many classes, the most probable ones, whatever their own thresholds.
        """
        check_range("batch_size", batch_size, least=1)
        single = images.ndim == 3 if isinstance(images, Tensor) else isinstance(images, FILE_OR_IMAGE)
        loaded = map(self._load, [images] if single else images)  # type: ignore[arg-type,list-item]
        predictions: list[Prediction] = []
        # Only images of equal size form a batch, and pixels are no inputs yet.
        for (is_input, _), group in groupby(loaded, key=lambda image: (image.is_input, image.values.shape)):
            predict = self.predict_batch if is_input else self.predict_pixels
            while batch := list(islice(group, batch_size)):
                values = torch.stack([image.values for image in batch])
                predictions += predict(values, threshold=threshold, top=top)
        return predictions

    def predict_batch(
        self, inputs: Tensor, *, threshold: float | None = None, top: int | None = None
    ) -> list[Prediction]:
        """Names and probabilities for a batch of transformed images, ``[B, 3, H, W]``; see `predict`."""
        _check_inputs(inputs)
        return self._predict(inputs, None, threshold, top)

    def predict_pixels(
        self, pixels: Tensor, *, threshold: float | None = None, top: int | None = None
    ) -> list[Prediction]:
        """Names and probabilities for a batch of images as the first part of the transform gives them.

        The parts of the transform are those of `split_transform`. For the other arguments see `predict`.
        """
        if self._to_inputs is None:
            _check_inputs(pixels)
        return self._predict(pixels, self._to_inputs, threshold, top)

    @torch.inference_mode()
    def _predict(
        self,
        images: Tensor,
        to_inputs: image_files.Transform | None,
        threshold: float | None,
        top: int | None,
    ) -> list[Prediction]:
        check_range("threshold", threshold, least=0, most=1)
        check_range("top", top, least=1)
        with evaluation_mode(self):
            logits = self._frozen_logits(images.to(self.classifier.weight.device), to_inputs)
        rows = self.probabilities(logits.double()).tolist()
        return [self.choose(row, threshold=threshold, top=top) for row in rows]

    def _frozen_logits(self, images: Tensor, to_inputs: image_files.Transform | None) -> Tensor:
        """Logits by the folded network; in half precision by the network as it was trained."""
        weight = self.classifier.weight

        def prepare(part: Tensor) -> Tensor:
            return (part if to_inputs is None else to_inputs(part)).to(weight.dtype)

        if self.amp is not None:
            with torch.autocast(weight.device.type, dtype=self.amp):
                return self(prepare(images))
        features = frozen_forward(self._folded_network(), images, prepare)
        if isinstance(self.backbone, RandomFeatures):
            features = self.backbone.expand(features)
        return self.logits(features)

    def _folded_network(self) -> nn.Module:
        """The folded copy of the network, made again if the network has changed since the last call."""
        network = _find_network(self)
        state = _describe_state(network)
        if state != self._folded_state:
            with torch.inference_mode(False):  # inference tensors could not be used outside `_predict`
                self._folded = [folded_copy(network, self.classifier.weight.device)]
            self._folded_state = state
        return self._folded[0]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of logits, ``[B, n]``."""
        return logits.sigmoid()

    def require_transform(self) -> image_files.Transform:
        """The transform; a ValueError if the model takes no photos, because it was saved without."""
        if self.transform is None:
            raise ValueError("The model was saved without its transform: pass photos as transformed tensors.")
        return self.transform

    def require_to_pixels(self) -> image_files.Transform:
        """The first part of the transform, from an image to pixels for `predict_pixels`; errors likewise."""
        self.require_transform()
        assert self._to_pixels is not None
        return self._to_pixels

    def _load(self, photo: Photo) -> _Loaded:
        if isinstance(photo, Tensor):
            return _Loaded(photo, True)
        if not isinstance(photo, FILE_OR_IMAGE):
            type_name = type(photo).__name__
            raise TypeError(f"Photos must be paths, PIL images or tensors [3, H, W], not {type_name}.")
        to_pixels = self.require_to_pixels()
        if isinstance(photo, Image.Image):
            return _Loaded(to_pixels(image_files.upright_rgb(photo)), False)
        return _Loaded(to_pixels(image_files.load_image(photo)), False)

    def choose(
        self, row: Sequence[float], *, threshold: float | None = None, top: int | None = None
    ) -> Prediction:
        """The prediction with these probabilities of all classes; for the other arguments see `predict`."""
        probabilities = dict(zip(self.class_names, row, strict=True))
        limits = dict(zip(self.class_names, self.thresholds, strict=True))
        if threshold is not None:
            limits = dict.fromkeys(self.class_names, threshold)
        elif top is not None:
            limits = dict.fromkeys(self.class_names, 0.0)
        found = [name for name, limit in limits.items() if probabilities[name] >= limit]
        found.sort(key=lambda name: -probabilities[name])
        return Prediction(found[:top], probabilities)


def _check_inputs(inputs: Tensor) -> None:
    """Raise a ValueError for a batch that no transform gives: of integers, or not finite."""
    if not inputs.is_floating_point():
        raise ValueError(
            f"Transformed images have floating-point values, not {inputs.dtype}: give photos as paths or PIL "
            "images, or apply the transform of the model to them."
        )
    finite = inputs.flatten(1).isfinite().all(dim=1)
    if not bool(finite.all()):
        number = int((~finite).nonzero()[0])
        raise ValueError(f"Image {number} of the batch has values that are not finite.")


def save_model(
    model: nn.Module,
    folder: str | os.PathLike,
    *,
    class_names: Sequence[str],
    transform: image_files.Transform | None = None,
    thresholds: Sequence[float] | float = THRESHOLD,
    backbone: nn.Module | None = None,
) -> None:
    """Save a trained model for `load_model`, in ``model.safetensors`` and ``model.json`` of a folder.

    All weights are stored, also those of a frozen backbone.

    Args:
        model: an `AGCNModel` or `MultiLabelClassifier` over a network of `create_backbone`, trained by a
            strategy or in a loop of your own.
        folder: is created if needed; a model in it is replaced.
        class_names: name of each class, in the order of the logits. Names of classes that the model has not
            seen yet may follow.
        transform: from an upright RGB image to an input of the network, such as a benchmark's
            ``eval_transform``: torchvision's, without random steps. If None, `SavedModel.predict` takes
            transformed tensors only.
        thresholds: probability at which a class counts as found: one for each of ``class_names``, or one for
            all.
        backbone: the network that computed the features, for a model trained on features (`Precomputed`).

    Raises:
        TypeError: if the model is of another type.
        ValueError: if names or thresholds do not fit the classes, or the network cannot be saved.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> model = MultiLabelClassifier(create_backbone("small"), n_classes=2)
        >>> with TemporaryDirectory() as folder:
        ...     save_model(model, folder, class_names=["cat", "dog"], thresholds=[0.3, 0.6])
        ...     saved = load_model(folder)
        >>> saved.thresholds
        [0.3, 0.6]
    """
    model = unwrap(model)
    if not isinstance(model, MultiLabelModel):
        raise TypeError(
            f"save_model takes an AGCNModel or MultiLabelClassifier, not {type(model).__name__}; put a "
            "network into MultiLabelClassifier(create_backbone(...), n_classes)."
        )
    names = list(class_names)
    limits = [thresholds] * len(names) if isinstance(thresholds, (int, float)) else list(thresholds)
    _check_names(names, limits, model.n_seen)
    network = _find_network(model) if backbone is None else backbone
    if transform is not None and image_files.describe_transform(transform) is None:
        warnings.warn(
            "The transform has steps that cannot be saved, and the saved model takes transformed tensors "
            f"only; to save it, use these steps of torchvision: {', '.join(image_files.STEPS)}.",
            stacklevel=2,
        )
    content, description = pack_model(
        model,
        network,
        network=_describe_network(network),
        by_name=False,
        transform=transform,
        class_names=names,
        thresholds=[float(limit) for limit in limits[: model.n_seen]],
        about={},
    )
    path = Path(folder) / model_name()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_model(path, content, description)


def _check_names(class_names: Sequence[str], thresholds: Sequence[float], n_seen: int) -> None:
    if n_seen == 0:
        raise ValueError("The model has seen no class yet; train it before saving it.")
    if len(class_names) < n_seen:
        raise ValueError(f"class_names has {len(class_names)} names for {n_seen} classes; name them all.")
    for name, n in Counter(class_names).items():
        if not is_name(name):
            raise ValueError(f"class_names has {name!r}; give each class a name of {NAME}.")
        if n > 1:
            raise ValueError(f"class_names has {name!r} more than once; give each class a name of its own.")
    if len(thresholds) != len(class_names):
        raise ValueError(
            f"There are {len(thresholds)} thresholds for {len(class_names)} class names; give one for each "
            "class, or one number for all."
        )
    for name, threshold in zip(class_names, thresholds, strict=True):
        check_range(f"the threshold of {name!r}", threshold, least=0, most=1)


def _find_network(model: MultiLabelModel) -> nn.Module:
    """The network of a model, below its random layer if it has one."""
    backbone = model.backbone
    return backbone.backbone if isinstance(backbone, RandomFeatures) else backbone


def _describe_state(network: nn.Module) -> tuple[str, list[tuple[int, int]], list[float]]:
    """What changes when a network's layers, settings or weights change.

    Tensors count their changes, but not those through ``data`` and, if they are inference tensors, none.
    Their sums show these.
    """
    tensors = [*network.parameters(), *network.buffers()]
    versions = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
    sums = [tensor.detach().sum(dtype=torch.float64) for tensor in tensors]
    return repr(network), versions, torch.stack(sums).tolist() if sums else []


def _describe_network(network: Any) -> dict[str, Any]:
    """Name and `BACKBONE_SETTINGS` of a network, with which `load_model` makes it again."""
    if isinstance(network, Precomputed):
        raise ValueError("The model was trained on features; pass backbone=, the network that computed them.")
    if getattr(network, "name", None) is None:
        raise ValueError(
            f"{type(network).__name__} cannot be made again from a file: only networks of "
            "create_backbone(name), without settings of the network, can be saved; for others use torch.save."
        )
    if any(weight.dtype != torch.float32 for weight in network.parameters()):
        raise ValueError("The weights of the network are not float32; call model.float() before saving.")
    return {"name": network.name, **{name: getattr(network, name) for name in BACKBONE_SETTINGS}}


def write_model(path: Path, content: bytes, description: Mapping[str, Any]) -> None:
    """Write the tensors, then the description, whose digest shows if only the first was written."""
    write_atomically(path.with_suffix(TENSORS), lambda file: file.write(content))
    text = json.dumps(description, ensure_ascii=False, indent=1)
    write_atomically(path.with_suffix(DESCRIPTION), lambda file: file.write(text.encode()))


def pack_model(
    model: Any,
    backbone: nn.Module,
    *,
    network: Mapping[str, Any],
    by_name: bool,
    transform: image_files.Transform | None,
    class_names: Sequence[str],
    thresholds: Sequence[float] | None = None,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    familiarity: Familiarity | None = None,
    about: Mapping[str, Any],
) -> tuple[bytes, dict[str, Any]]:
    """Content of ``model.safetensors`` and ``model.json`` of a trained `MultiLabelModel`.

    ``backbone`` differs from ``model.backbone`` if the model was trained on features. ``network`` has its
    name and `BACKBONE_SETTINGS`. With ``by_name``, its weights are not stored, because `create_backbone`
    finds them. The model has seen the first of ``class_names``. ``scale`` and ``offset``, ``[n_seen]``, make
    calibrated logits of the model's. ``about`` has more information on the run.
    """
    tensors = _calibrated_heads(model, scale, offset)
    names = list(class_names[: len(tensors["weight"])])
    if familiarity is not None:
        tensors |= {f"familiarity.{name}": value.float() for name, value in familiarity.state_dict().items()}
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


def _calibrated_heads(model: Any, scale: Tensor | None, offset: Tensor | None) -> dict[str, Tensor]:
    """Classifiers and refinement of a model whose logits are scale · logits + offset."""
    weight, bias = model.classifiers()
    tensors = {"weight": weight}
    if bias is not None:
        tensors["bias"] = bias
    if getattr(model, "refinement", None) is not None:
        tensors |= {f"refinement.{name}": value for name, value in model.refinement.state_dict().items()}
    if scale is None or offset is None:
        return tensors
    scale, offset = scale.to(weight.device), offset.to(weight.device)
    # The refinement's scale has its origin at a logit, and a distance of logits as its unit.
    shifted = {"bias": tensors.get("bias", torch.zeros_like(weight[:, 0]))}
    scaled = {"weight": weight * scale[:, None]}
    if "refinement.origin" in tensors:
        shifted["refinement.origin"] = tensors["refinement.origin"]
        scaled["refinement.unit"] = tensors["refinement.unit"] * scale
    changed = scaled | {name: value * scale + offset for name, value in shifted.items()}
    return tensors | {name: value.to(weight.dtype) for name, value in changed.items()}


def model_name(after: int | None = None) -> str:
    """File name without suffix of the final model, or of that after an experience, counted from 1."""
    return "model" if after is None else f"model-after{after}"


def load_model(
    run: str | os.PathLike, *, after: int | None = None, device: str | torch.device = "cpu"
) -> SavedModel:
    """Load the model of a run or of `save_model`, for predictions. No code in its files is executed.

    Args:
        run: folder of a run, such as ``results/agcn-seed0``, or of `save_model`.
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
        reason = shorten(" ".join(str(error).split()), 400).rstrip(".") or type(error).__name__
        files = f"{path} and {path.stem}{TENSORS}"
        raise ValueError(f"{files} are not a model that can be used: {reason}.") from None
    return model.to(device)


def store_backbone(run: str | os.PathLike, *, after: int | None = None) -> Path:
    """Add the network's weights to the files of a saved model, unless they are there; return that file.

    A run with a frozen pretrained backbone stores the classifiers alone, and `load_model` finds the other
    weights by the network's name: in a package, or on the internet. Afterwards it needs neither.
    """
    model = load_model(run, after=after)
    path = _find(Path(run), after)
    description, tensors = _read(path)
    network = _find_network(model)
    for name, value in network.state_dict().items():
        tensors[f"backbone.{name}"] = value.contiguous()
    content = save(tensors)
    description["backbone"]["weights"] = "stored"
    description["tensors"] = hashlib.sha256(content).hexdigest()
    write_model(path, content, description)
    return path.with_suffix(TENSORS)


def _find(run: Path, after: int | None) -> Path:
    path = run / f"{model_name(after)}{DESCRIPTION}"
    if path.is_file():
        return path
    hint = "has a run ended there?"
    if (run / f"{model_name()}{DESCRIPTION}").is_file():  # a run without the model after this experience
        kept = [p.name for p in run.glob(f"model-after*{DESCRIPTION}")]
        kept.sort(key=lambda name: (len(name), name))  # model-after10 after model-after9
        hint = f"there are {', '.join(kept)}." if kept else "run with --keep-models for it."
    elif runs := sorted(str(p.parent) for p in run.glob(f"*/{model_name()}{DESCRIPTION}")):
        hint = f"give the folder of one run: {', '.join(runs[:20])}."
    elif not run.is_dir():
        beside = [str(p.parent) for p in run.parent.glob(f"*/{model_name()}{DESCRIPTION}")]
        suggestion = did_you_mean(run, beside)
        hint = f"there is no folder {run}{suggestion}."
    raise FileNotFoundError(f"There is no {path}; {hint}")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Content of ``model.json``, checked, and the tensors that it describes."""
    found = read_json(path, most=MAX_DESCRIPTION_BYTES)
    is_known = isinstance(found, dict) and found.get("format") == FORMAT
    _check(is_known, f"it does not have format {FORMAT}, which this version reads")
    optional = {name: hint for name, hint in OPTIONAL_FIELDS.items() if name in found}
    check_fields(found, FIELDS | optional, path.name)
    check_fields(found["backbone"], BACKBONE_FIELDS, f"{path.name}: backbone")
    names = found["class_names"]
    thresholds = found["thresholds"]
    network = found["backbone"]["name"]
    _check(len(set(names)) == len(names) > 0, f"class_names are empty or have a name twice: {listed(names)}")
    unnamed = [name for name in names if not is_name(name)]
    _check(not unnamed, f"class_names are not text of {NAME}: {listed(map(repr, unnamed))}")
    _check("transform" in found, "model.json has no 'transform', which is required (null if there is none)")
    _check(len(names) == len(thresholds), f"{len(names)} classes have {len(thresholds)} thresholds")
    unusable = [threshold for threshold in thresholds if not 0 <= threshold <= 1]
    _check(not unusable, f"thresholds are probabilities from 0 to 1, not {listed(unusable)}")
    _check(BACKBONE_NAME.fullmatch(network), f"the backbone has the name {shown(network)}")
    file = path.with_suffix(TENSORS)
    _check(file.is_file(), f"there is no {file.name}")
    content = read_file(file, most=MAX_TENSORS_BYTES)
    is_whole = hashlib.sha256(content).hexdigest() == found["tensors"]
    _check(is_whole, f"{file.name} is damaged, or of another run")
    return found, load(content)


def _check(fits: object, problem: str) -> None:
    """Raise a ValueError with the problem; `load_model` makes a sentence of it."""
    if not fits:
        raise ValueError(problem)


def _make_model(description: dict[str, Any], tensors: dict[str, Tensor]) -> SavedModel:
    weights: dict[str, Tensor] = {}  # of the backbone
    heads: dict[str, Tensor] = {}  # of everything after it
    for key, tensor in tensors.items():
        if key.startswith("backbone."):
            weights[key.removeprefix("backbone.")] = tensor
        else:
            heads[key] = tensor
    _check("weight" in heads, "the tensor 'weight' is missing")
    backbone = _make_backbone(description["backbone"], weights)
    n_classes = len(description["class_names"])
    n_inputs = backbone.num_features
    n_features = len(heads["random"]) if "random" in heads else n_inputs
    _check_heads(heads, n_classes, n_inputs, n_features)  # before anything of such a size is allocated
    if "random" in heads:
        backbone = RandomFeatures(backbone, n_features)
        backbone.weight = heads["random"]
    model = SavedModel(backbone, description)
    bias = heads.get("bias", torch.zeros(n_classes))
    model.set_classifiers(heads["weight"], bias, _make_refinement(heads))
    if "familiarity.weight" in heads:
        _check("familiarity.bias" in heads, "the tensor 'familiarity.bias' is missing")
        model.familiarity = Familiarity(torch.ones(n_features), torch.ones(()))
        model.familiarity.load_state_dict({name: heads[f"familiarity.{name}"] for name in ("weight", "bias")})
    if model.transform is not None:
        image = model.transform(Image.new("RGB", (64, 48)))  # an error if its steps do not fit each other
        _check(image.ndim == 3 and image.is_floating_point(), "the transform returns no [3, H, W] floats")
    return model


def _make_refinement(heads: Mapping[str, Tensor]) -> LogitRefinement | None:
    prefix = "refinement."
    parts = {key.removeprefix(prefix): tensor for key, tensor in heads.items() if key.startswith(prefix)}
    return LogitRefinement(**parts) if parts else None


def _check_heads(heads: Mapping[str, Tensor], n_classes: int, n_inputs: int, n_features: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "random": (n_features, n_inputs),
        "weight": (n_classes, n_features),
        "bias": (n_classes,),
        "refinement.origin": (n_classes,),
        "refinement.unit": (n_classes,),
        "refinement.gain": (n_classes, n_classes),
        "familiarity.weight": (n_features,),
        "familiarity.bias": (),
    }
    for key, tensor in heads.items():
        shape = cut(str(tuple(tensor.shape)))
        _check(tensor.shape == shapes.get(key), f"the tensor {shown(key)} has shape {shape}")
        is_number = tensor.is_floating_point() and tensor.isfinite().all()
        _check(is_number, f"the tensor {shown(key)} has values that are not finite floats")


def _make_backbone(network: Mapping[str, Any], weights: dict[str, Tensor]) -> Any:
    by_name = network["weights"] == "pretrained"
    backbone = create_backbone(
        network["name"],
        pretrained=by_name,
        pool=network["pool"],
        freeze_batchnorm=network["freeze_batchnorm"],
        fold_batchnorm=network["fold_batchnorm"],
        channels_last=network["channels_last"],
    )
    if not by_name:
        backbone.load_state_dict(weights)
    is_same = digest_weights(backbone) == network["digest"]
    _check(is_same, f"the weights of {network['name']!r} found here are not those of the run")
    return backbone
