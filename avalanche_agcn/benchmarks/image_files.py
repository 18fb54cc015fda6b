"""Image files, opened when needed, and the transforms that make network inputs of them."""

from __future__ import annotations

import math
import os
import posixpath
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from avalanche_agcn.checks import check_choice, check_fields, check_range, reject_value, shown

Transform = Callable[[Any], Any]
RGB = tuple[float, float, float]
Truncated = Literal["warn", "error"]

PAPER_IMAGE_SIZE = 448
"""Input size of the AGCN paper's experiments."""
IMAGENET_MEAN: RGB = (0.485, 0.456, 0.406)
"""Per channel, of images in [0, 1]; torchvision's weights were trained with it."""
IMAGENET_STD: RGB = (0.229, 0.224, 0.225)

IMAGE_FILE = re.compile(r".+\.(jpe?g|jpe|jfif|png|gif|bmp|tiff?|webp|avif)", re.IGNORECASE | re.DOTALL)
"""Names of image files; others are opened if they are named, but not searched for."""
MAX_PATH = 4096  # bytes; of Linux, and more than other systems have
MAX_NAMED = 10  # images that an error lists
_pillow_setting = Lock()  # which threads that read images share
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation → what makes the image upright; orientation 1 is upright."""
METADATA = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")
"""Where Pillow finds an orientation among an image's ``info``."""
DEEP_FORMATS = ("PNG", "PPM")
"""Formats whose 16-bit values Pillow, in some versions, gives in 32 bits; those of others have any range."""


def paper_transforms(
    image_size: int | None = PAPER_IMAGE_SIZE,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    *,
    flip: bool = True,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> dict[str, Any]:
    """The paper's transforms, or those given instead, as keyword arguments of a benchmark.

    Both scale to a square of ``image_size`` (None leaves the size unchanged), whatever the image's shape, and
    normalise with a mean and standard deviation per channel, of images in [0, 1]. With ``flip``, training
    also flips half of the images.
    """
    scale: list[Any] = [v2.ToImage()]
    if image_size is not None:
        scale.append(v2.Resize((image_size, image_size), antialias=True))
    normalise = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std), v2.ToPureTensor()]
    if train_transform is None:
        mirror = [v2.RandomHorizontalFlip()] if flip else []
        train_transform = v2.Compose([*scale, *mirror, *normalise])
    if eval_transform is None:
        eval_transform = v2.Compose([*scale, *normalise])
    return {"train_transform": train_transform, "eval_transform": eval_transform}


def find_normalisation(transform: Transform | None) -> Any:
    """The normalisation among the steps of a torchvision transform; None if there is none."""
    steps = getattr(transform, "transforms", [transform])
    return next((step for step in steps if isinstance(step, (v1.Normalize, v2.Normalize))), None)


def split_transform(transform: Transform | None) -> tuple[Transform | None, Transform | None]:
    """A transform in two parts: from an image to its pixels, and from a batch of pixels to inputs.

    The second part has the last steps, if they compute each value from itself: on a whole batch they give
    the same values as image by image, faster, and pixels are a quarter of the bytes of inputs. It is None if
    the transform has no such steps, or steps that `describe_transform` does not know.
    """
    if not isinstance(transform, v2.Compose) or describe_transform(transform) is None:
        return transform, None
    steps = list(transform.transforms)
    n_first = len(steps)
    while n_first > 0 and _is_elementwise(steps[n_first - 1]):
        n_first -= 1
    # ToImage makes tensors of all images; other steps ignore arrays, one by one but not in a batch.
    if n_first == len(steps) or n_first == 0 or type(steps[0]) is not v2.ToImage:
        return transform, None
    return v2.Compose([*steps[:n_first], v2.ToPureTensor()]), v2.Compose(steps[n_first:])


def _is_elementwise(step: Any) -> bool:
    return type(step) in (v2.ToDtype, v2.Normalize, v2.ToPureTensor)


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Which images of its data a benchmark uses, and how it reads them.

    Attributes:
        train_transform: replaces the protocol's (square, flip, normalisation).
        eval_transform: replaces the protocol's (square, normalisation).
        backbone: network for which images are normalised, by its ``mean`` and ``std``; ImageNet's if None.
        mean: per channel, of images in [0, 1]; replaces the backbone's.
        std: likewise.
        truncated: what to do with a truncated image file; see `ImageFiles`.
        validation_size: number of train images (or their share, if below 1) held out at random.
        limit: use only the first images of each experience, at most this many.
        seed: of all random draws.
    """

    train_transform: Transform | None = None
    eval_transform: Transform | None = None
    backbone: Any = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    truncated: Truncated = "warn"
    validation_size: float | int = 0
    limit: int | None = None
    seed: int = 0

    def transforms(self, image_size: int | None, *, flip: bool = True) -> dict[str, Any]:
        """A protocol's transforms, or those given instead; see `paper_transforms`."""
        mean = getattr(self.backbone, "mean", IMAGENET_MEAN) if self.mean is None else self.mean
        std = getattr(self.backbone, "std", IMAGENET_STD) if self.std is None else self.std
        _check_colours("mean", mean, above=-math.inf)
        _check_colours("std", std, above=0)
        return paper_transforms(
            image_size, self.train_transform, self.eval_transform, flip=flip, mean=mean, std=std
        )


def _check_colours(name: str, values: Sequence[float], *, above: float) -> None:
    if len(values) != 3 or not np.isfinite(values).all() or min(values) <= above:
        raise ValueError(f"{name} must be a number for each of three colours, but is {values}.")


def _encode(names: Sequence[str | os.PathLike]) -> np.ndarray:
    """File names as one array, in which each takes as much memory as the longest one."""
    encoded = [os.fsencode(name) for name in names]
    longest = max(encoded, key=len, default=b"")
    if len(longest) > MAX_PATH:
        name = shown(os.fsdecode(longest))
        raise ValueError(f"The file name {name} has {len(longest)} bytes, but paths have at most {MAX_PATH}.")
    return np.array(encoded)


class ImageFiles(Dataset):
    """Images on disk with multi-hot targets; each file is opened when its image is read.

    Args:
        root: folder the file names are relative to.
        targets: [N, C] matrix of 0 and 1; not needed if the labels are kept elsewhere.
        class_names: names of the columns of ``targets``.
        truncated: ``"warn"`` and use the part of a truncated file that can be read, or ``"error"``.
        names: what `image_name` returns; the files if None.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        files: Sequence[str],
        targets: Tensor | None = None,
        *,
        class_names: Sequence[str] | None = None,
        truncated: Truncated = "warn",
        names: Sequence[str] | None = None,
    ) -> None:
        check_choice("truncated", truncated, Truncated)
        self.root = os.fspath(root)
        # One array instead of a list of strings: loader workers share its memory instead of copying it.
        self.files = _encode(files)
        self.names = self.files if names is None else _encode(names)
        self.targets = torch.zeros(len(files), 0) if targets is None else targets
        self.class_names = None if class_names is None else list(class_names)
        self.truncated: Truncated = truncated

    def __len__(self) -> int:
        return len(self.files)

    def image_name(self, index: int) -> str:
        """Name of image ``index``: its file, relative to the folder, unless names were given."""
        return os.fsdecode(self.names[index])

    def path(self, index: int) -> str:
        """Path of image ``index``."""
        return os.path.join(self.root, os.fsdecode(self.files[index]))

    def __getitem__(self, index: int) -> tuple[Image.Image, Tensor]:
        return load_image(self.path(index), truncated=self.truncated), self.targets[index]


def check_readable(images: ImageFiles, places: Sequence[str]) -> None:
    """Open all images; an OSError gives the places, such as ``"labels.csv, row 7"``, of bad ones."""
    found = [f"{places[k]}: {reason}" for k, reason in find_unreadable(images)]
    if found:
        named = "; ".join(found[:MAX_NAMED])
        more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise OSError(f"{len(found)} of {len(images)} images cannot be opened: {named}{more}.")


def find_unreadable(images: ImageFiles) -> list[tuple[int, str]]:
    """Open all images; return the index of each that cannot be read, with the reason."""
    if not os.path.isdir(images.root):
        raise FileNotFoundError(f"There is no folder {images.root} of images.")

    def reason(k: int) -> str | None:
        path = images.path(k)
        if not os.path.isfile(path):  # opening a named pipe would wait for a writer
            return ""
        try:
            images[k]
        except OSError as error:
            return str(error).rstrip(".")
        return None

    with ThreadPoolExecutor() as threads:  # Pillow decodes without Python's lock
        reasons = list(threads.map(reason, range(len(images))))
    found = []
    folders: dict[str, dict[str, str]] = {}
    for k, text in enumerate(reasons):
        if text == "":
            text = f"There is no image file {images.path(k)}{_name_with_suffix(images.path(k), folders)}"
        if text is not None:
            found.append((k, text))
    return found


def _name_with_suffix(path: str, folders: dict[str, dict[str, str]]) -> str:
    """For a message: the image file with this name and a suffix, such as ``.jpg``, if there is one.

    ``folders`` keeps what was found in each folder, so that a folder of many photos is listed once.
    """
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = _files_without_suffix(folder)
    other = folders[folder].get(name)
    return "" if other is None else f", but there is {other}: add the suffix to the labels"


def _files_without_suffix(folder: str) -> dict[str, str]:
    """The first image file for each name without suffix: ``a.b.jpg`` for ``a`` and for ``a.b``."""
    try:
        names = sorted(filter(IMAGE_FILE.fullmatch, os.listdir(folder)))
    except OSError:  # there is no such folder, or it cannot be read
        return {}
    files: dict[str, str] = {}
    for name in names:
        for dot in re.finditer(r"\.", name):
            files.setdefault(name[: dot.start()], name)
    return files


LEAVES_FOLDER = re.compile(
    r"""
    [/\\] | [A-Za-z]:              # an absolute path, or one on a drive of Windows
    | (.*[/\\])? \.\. ([/\\] | \Z)  # the folder above
    | .*\0                         # a byte that no system allows
    """,
    re.DOTALL | re.VERBOSE,
)
"""One expression, because annotation files have a hundred thousand names."""


def check_inside(file: str, place: str) -> None:
    """Raise a ValueError if a file name, of this or another system, leaves the folder it is relative to.

    Symbolic links within the folder may lead elsewhere: data sets are often laid out by them.
    """
    if not file or LEAVES_FOLDER.match(file):
        reject_value(place, "a file within the folder of images, by its name relative to that folder", file)


def plain_name(file: str) -> str:
    """The name of a file below a folder with slashes and without ``./``, so that each file has one name."""
    return posixpath.normpath(file.replace("\\", "/"))


def load_image(path: str | os.PathLike, *, truncated: Truncated = "warn") -> Image.Image:
    """Read an image file as upright RGB.

    Grey, 16-bit, palette and CMYK files are converted, transparent parts become white, and the EXIF
    orientation is applied. Broken EXIF data is ignored. Signed, 32-bit and floating-point pixels are
    rejected, because their range is not known. For ``truncated`` see `ImageFiles`. All errors are OSErrors
    that name the file.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise OSError(f"{path} is not an image file")  # opening a named pipe would wait for a writer
        with Image.open(path) as image:
            _decode(image, path, truncated)
            return upright_rgb(image, name=str(path))
    except FileNotFoundError:
        kind = "image" if IMAGE_FILE.fullmatch(os.path.basename(path)) else "file or folder"
        raise FileNotFoundError(f"There is no {kind} {path}; correct its name, or download it.") from None
    except (IsADirectoryError, PermissionError) as error:  # Windows raises the latter for folders
        raise _explain_no_file(path, error) from None
    except UnidentifiedImageError:
        raise OSError(f"{path} is not an image that can be read; download it again or remove it.") from None
    except Exception as error:  # Pillow's decoders raise exceptions of any type
        if isinstance(error, OSError) and str(path) in str(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise OSError(f"{path} cannot be read ({reason}); download it again or remove it.") from error


def _explain_no_file(path: str | os.PathLike, error: OSError) -> OSError:
    if not os.path.isdir(path):
        return PermissionError(f"{path} cannot be opened ({error.strerror}): check its permissions.")
    try:
        os.listdir(path)
    except PermissionError:
        return PermissionError(f"{path} is a folder that cannot be listed: check its permissions.")
    return IsADirectoryError(f"{path} is a folder; give the files in it.")


def _decode(image: Image.Image, path: str | os.PathLike, truncated: Truncated) -> None:
    try:
        image.load()
    except OSError as error:
        if "truncated" not in str(error).lower():
            raise
        if truncated == "error":
            raise OSError(f"{path} is truncated; download it again, or pass truncated='warn'.") from error
        warnings.warn(f"{path} is truncated; the missing part is grey.", stacklevel=4)
        with _pillow_setting:
            before = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = True  # Pillow has no such setting for a single image
            try:
                image.load()
            finally:
                ImageFile.LOAD_TRUNCATED_IMAGES = before


def upright_rgb(image: Image.Image, *, name: str = "The image") -> Image.Image:
    """An open image as `load_image` returns it; errors use ``name``."""
    if image.mode == "F" or (image.mode == "I" and image.format not in DEEP_FORMATS):
        raise OSError(
            f"{name} has signed, 32-bit or floating-point pixels (mode {image.mode}), whose range is not "
            "known; convert it to 8 or 16 bits."
        )
    tags = getattr(image, "tag_v2", {})  # of TIFF
    white_is_zero = tags.get(ExifTags.Base.PhotometricInterpretation) == 0
    # Pillow's exif_transpose copies upright images and rewrites the EXIF data, which fails on broken tags.
    image.load()  # which turns a TIFF image and removes its orientation
    try:
        turn = UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # of any type; the image can be used without its orientation
        turn = None
    if turn is not None:
        image = image.transpose(turn)
        for name in METADATA:  # copied, with the orientation that it no longer has
            image.info.pop(name, None)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion clips at 255
        values = (np.asarray(image) >> 8).astype(np.uint8)
        # With 8 bits, Pillow itself does this.
        return Image.fromarray(255 - values if white_is_zero else values).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


STEPS: dict[str, dict[str, Any]] = {
    "ToImage": {},
    "ToTensor": {},
    "ToPureTensor": {},
    "ToDtype": {"dtype": Literal["float32"], "scale": bool | None},
    "Resize": {
        "size": int | list[int] | None,
        "interpolation": str,
        "max_size": int | None,
        "antialias": bool | None,
    },
    "CenterCrop": {"size": int | list[int]},
    "Normalize": {"mean": list[float], "std": list[float]},
}
"""Transforms without random numbers, of either version of torchvision's, and types of their arguments."""
VERSIONS = {"v1": v1, "v2": v2}
MAX_SIZE = 4096  # pixels of a side
Step = dict[str, Any]


def describe_transform(transform: Transform | None) -> list[Step] | None:
    """A torchvision transform as a list of names and arguments; None if a part of it is not supported.

    Example:
        >>> describe_transform(v2.Compose([v2.ToImage(), v2.Normalize([0.5], [0.25])]))
        [{'name': 'v2.ToImage'}, {'name': 'v2.Normalize', 'mean': [0.5], 'std': [0.25]}]
    """
    if isinstance(transform, (v1.Compose, v2.Compose)):
        steps: list[Step] = []
        for part in transform.transforms:
            described = describe_transform(part)
            if described is None:
                return None
            steps += described
        return steps
    name = type(transform).__name__
    version = _version_of(transform)
    if version is None or name not in STEPS:
        return None
    step: Step = {"name": f"{version}.{name}"}
    for argument in STEPS[name]:
        step[argument] = _plain_value(getattr(transform, argument))
    return [step]


def _version_of(transform: Any) -> str | None:
    """Which of torchvision's two versions a transform is of; None if it is of neither."""
    for version, module in VERSIONS.items():
        if type(transform) is getattr(module, type(transform).__name__, None):
            return version
    return None


def _plain_value(value: Any) -> Any:
    """A transform's argument as a value that JSON has."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return list(value) if isinstance(value, tuple) else value


def make_transform(steps: Sequence[Step]) -> Transform:
    """The inverse of `describe_transform`; a ValueError if a step or a value is not supported."""
    return v2.Compose([_make_step(step) for step in steps])


def _make_step(step: Step) -> Transform:
    version, _, name = str(step.get("name", "")).partition(".")
    values = {argument: value for argument, value in step.items() if argument != "name"}
    if version not in VERSIONS or name not in STEPS or set(values) != set(STEPS[name]):
        raise ValueError(f"unknown transform {step!r}")
    check_fields(values, STEPS[name], name)
    for argument, most in (("size", MAX_SIZE), ("max_size", MAX_SIZE), ("std", math.inf)):
        value = values.get(argument)
        for number in value if isinstance(value, list) else [value]:
            check_range(f"{name}.{argument}", number, above=0, most=most)
    if "dtype" in values:
        values["dtype"] = getattr(torch, values["dtype"])
    if "interpolation" in values:
        values["interpolation"] = v2.InterpolationMode(values["interpolation"])
    return getattr(VERSIONS[version], name)(**values)
