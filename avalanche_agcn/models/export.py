"""Exported models: one file for programs without this package, in ONNX, TorchScript or torch.export's format.

The network in the file takes transformed images ``[B, 3, H, W]`` and returns probabilities ``[B, classes]``.
Everything else that a program needs is beside it, as JSON under the name `METADATA`: class names, thresholds,
and the steps of the transform with their values.
"""

import copy
import io
import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from avalanche_agcn.benchmarks.image_files import load_image
from avalanche_agcn.checks import check_choice, file_to_write, write_atomically
from avalanche_agcn.models.saved import SavedModel

ExportFormat = Literal["onnx", "torchscript", "pt2"]
FORMATS = get_args(ExportFormat)
METADATA = "metadata.json"
INPUT = "images"
OUTPUT = "probabilities"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
N_CHECKED = 10
PHOTO_SIZES = ((64, 48), (48, 64), (80, 80))  # that must give inputs of one size
TOLERANCE = 1e-4
"""Largest difference between probabilities of the file and of the model."""
NOT_EXPORTED = ("format", "tensors", "amp")  # fields of ``model.json`` on its own files and precision


class Exported(NamedTuple):
    """What `export_model` wrote."""

    path: Path
    difference: float  # the largest one between probabilities of the file and of the model


class _PhotoNetwork(nn.Module):
    """Probabilities of transformed images, in full precision."""

    def __init__(self, model: SavedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        # Without the model's own forward method: exporters do not know the autocast in it.
        return self.model.probabilities(self.model.logits(self.model.features(images)))


def check_packages(format: ExportFormat) -> None:
    """Raise a ModuleNotFoundError if packages that a format needs are missing."""
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if format == "onnx" and missing:
        raise ModuleNotFoundError(
            f"ONNX needs {', '.join(missing)}, not installed here: pip install 'avalanche-agcn[onnx]', or "
            "choose torchscript or pt2."
        )


def export_model(
    model: SavedModel,
    path: str | os.PathLike,
    format: ExportFormat,
    *,
    photos: Sequence[str | os.PathLike] = (),
) -> Exported:
    """Write a model to a file that needs no part of this package, after a check of its probabilities.

    Args:
        model: of `load_model`.
        path: the file; an existing one is replaced, of a symbolic link the one that it leads to.
        format: ``"onnx"`` (for onnxruntime and others; ``pip install avalanche-agcn[onnx]``),
            ``"torchscript"`` (`torch.jit.load`) or ``"pt2"`` (`torch.export.load`).
        photos: images to check the file on; by default ten that are drawn at random.

    Raises:
        ValueError: if the network cannot be exported, the file gives other probabilities (it is not kept), or
            the network's input size depends on the photo.
        ModuleNotFoundError: if packages for ONNX are missing.
        OSError: if the file cannot be written; it is named.
    """
    check_choice("format", format, ExportFormat)
    path = file_to_write(path)
    model = copy.deepcopy(model).cpu()  # where the inputs are, and the file is run
    inputs = _check_inputs(model, photos)
    network = _PhotoNetwork(model).eval().requires_grad_(False)
    with torch.no_grad():
        expected = model.probabilities(model(inputs).double())
    write, read = WRITERS[format]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about their own future
        content = _try_export(write, network, inputs[:2], json.dumps(_metadata(model, inputs)))
        run = read(content)
        # A batch, and a single image: the number of images must not be fixed in the file.
        of_batch = _difference(run(inputs), expected)
        of_single = _difference(run(inputs[:1]), expected[:1])
    difference = max(of_batch, of_single)
    if difference > TOLERANCE:
        raise ValueError(
            f"The {format} file gives probabilities that differ by {difference:.2g} from the model's, "
            f"more than {TOLERANCE:g}, and was not kept: choose another of {', '.join(FORMATS)}."
        )
    write_atomically(path, lambda file: file.write(content))
    return Exported(path, difference)


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference; infinite if it is not a number or the shapes differ."""
    if found.shape != expected.shape or not (found.isfinite() & expected.isfinite()).all():
        return math.inf
    return float((found - expected).abs().max())


def _try_export(write: Callable[..., bytes], network: nn.Module, example: Tensor, metadata: str) -> bytes:
    try:
        return write(network, example, metadata)
    except (OSError, ModuleNotFoundError):
        raise
    except Exception as error:  # exporters raise exceptions of any type
        lines = str(error).strip().splitlines()
        reason = lines[0][:200].rstrip(".") if lines else type(error).__name__
        raise ValueError(
            f"This network cannot be exported in this format ({reason}): choose another of "
            f"{', '.join(FORMATS)}."
        ) from error


@torch.no_grad()
def _check_inputs(model: SavedModel, photos: Sequence[str | os.PathLike]) -> Tensor:
    """Ten network inputs; a ValueError if photos of different shapes give inputs of different sizes."""
    transform = model.require_transform()
    images = [load_image(photo) for photo in photos[:N_CHECKED]]
    images += _drawn_images(N_CHECKED - len(images))
    inputs = [transform(image) for image in images]
    shapes = sorted({tuple(transform(Image.new("RGB", size)).shape) for size in PHOTO_SIZES})
    if len(shapes) > 1:
        raise ValueError(
            f"Photos of different shapes give network inputs of different sizes {shapes}: only models whose "
            "transform scales to one size, Resize((H, W)), can be exported."
        )
    return torch.stack(inputs)


def _drawn_images(n: int) -> list[Image.Image]:
    """Images of smooth random colours, which resemble photos more than noise does."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        images.append(coarse.resize((320, 240), Image.Resampling.BICUBIC))
    return images


def _metadata(model: SavedModel, inputs: Tensor) -> dict[str, Any]:
    """The model's description, but for its own files, and what the network takes and returns."""
    about = {name: value for name, value in model.description.items() if name not in NOT_EXPORTED}
    return {
        **about,
        "backbone": model.description["backbone"]["name"],
        "input": {"name": INPUT, "shape": ["batch", *inputs.shape[1:]], "dtype": "float32"},
        "output": {"name": OUTPUT, "shape": ["batch", len(model.class_names)], "dtype": "float32"},
    }


@torch.no_grad()
def _write_torchscript(network: nn.Module, example: Tensor, metadata: str) -> bytes:
    traced = torch.jit.trace(network, (example,))
    content = io.BytesIO()  # on a full disk, torch's own writer would end the process
    torch.jit.save(traced, content, _extra_files={METADATA: metadata})
    return content.getvalue()


def _read_torchscript(content: bytes) -> Callable[[Tensor], Tensor]:
    return torch.jit.load(io.BytesIO(content))


def _dynamic_batch() -> Any:
    return ({0: torch.export.Dim("batch")},)


@torch.no_grad()
def _write_pt2(network: nn.Module, example: Tensor, metadata: str) -> bytes:
    program = torch.export.export(network, (example,), dynamic_shapes=_dynamic_batch())
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={METADATA: metadata})
    return content.getvalue()


def _read_pt2(content: bytes) -> Callable[[Tensor], Tensor]:
    return torch.export.load(io.BytesIO(content)).module()


@torch.no_grad()
def _write_onnx(network: nn.Module, example: Tensor, metadata: str) -> bytes:
    check_packages("onnx")
    program = torch.onnx.export(
        network,
        (example,),
        dynamo=True,
        dynamic_shapes=_dynamic_batch(),
        input_names=[INPUT],
        output_names=[OUTPUT],
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props[METADATA] = metadata
    return program.model_proto.SerializeToString()


def _read_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        (probabilities,) = session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(probabilities)

    return run


WRITERS: dict[str, tuple[Callable[..., bytes], Callable[[bytes], Callable[[Tensor], Tensor]]]] = {
    "onnx": (_write_onnx, _read_onnx),
    "torchscript": (_write_torchscript, _read_torchscript),
    "pt2": (_write_pt2, _read_pt2),
}
"""How the content of a file is made, and read as a function from images to probabilities."""
