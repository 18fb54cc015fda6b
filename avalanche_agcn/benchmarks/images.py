"""Image files, opened when asked for, and what is done to them before a network sees them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from avalanche_agcn.benchmarks.datasets import Transform

PAPER_IMAGE_SIZE = 448
"""Input size of the AGCN paper's experiments."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image of each EXIF orientation upright; those of orientation 1 are."""

Truncated = Literal["warn", "error"]


def paper_transforms(
    image_size: int = PAPER_IMAGE_SIZE,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    *,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> dict[str, Transform]:
    """The paper's transforms, or those given instead, as keyword arguments of a benchmark.

    Both scale to a square whatever the image's shape and normalise, as for ImageNet unless another mean and
    deviation are given; training also flips half of the images.
    """
    scale = [v2.ToImage(), v2.Resize((image_size, image_size), antialias=True)]
    normalise = [
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean, std),
        v2.ToPureTensor(),
    ]
    return {
        "train_transform": train_transform or v2.Compose([*scale, v2.RandomHorizontalFlip(), *normalise]),
        "eval_transform": eval_transform or v2.Compose([*scale, *normalise]),
    }


class ImageFiles(Dataset):
    """Images on disk with multi-hot targets.

    Nothing is opened until an image is asked for, so that labels can be used with no image at hand.

    Args:
        root: Folder the file names are relative to.
        files: File name of each image.
        targets: [N, C] matrix of 0 and 1; may be left out where the labels are kept elsewhere.
        truncated: What to do with a file that ends too early: ``"warn"`` and use what is there, or
            ``"error"``.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        files: Sequence[str],
        targets: Tensor | None = None,
        *,
        truncated: Truncated = "warn",
    ) -> None:
        if truncated not in ("warn", "error"):
            raise ValueError(f"truncated must be 'warn' or 'error', got {truncated!r}")
        self.root = os.fspath(root)
        # One array instead of a list of strings: loader workers share its pages instead of copying them.
        self.files = np.array([os.fsencode(file) for file in files])
        self.targets = torch.zeros(len(files), 0) if targets is None else targets
        self.truncated: Truncated = truncated

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> str:
        """Where image ``index`` is expected."""
        return os.path.join(self.root, os.fsdecode(self.files[index]))

    def image_alone(self, index: int) -> Image.Image:
        """Image ``index`` alone."""
        return load_image(self.path(index), truncated=self.truncated)

    def __getitem__(self, index: int) -> tuple[Image.Image, Tensor]:
        return self.image_alone(index), self.targets[index]


def load_image(path: str | os.PathLike, *, truncated: Truncated = "warn") -> Image.Image:
    """Read an image file as upright RGB.

    Grey, 16-bit, palette and CMYK files are converted, transparent parts become white, and the EXIF
    orientation is applied. Where EXIF is broken, the image is taken as it lies.

    Args:
        path: The file.
        truncated: See ``ImageFiles``.

    Raises:
        FileNotFoundError: If there is no such file.
        OSError: If the file is no image or cannot be decoded, or is truncated and that is to be an error.
    """
    try:
        with Image.open(path) as image:
            _decode(image, path, truncated)
            return _rgb(_upright(image))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no image {path}; the labels were read, but the images must be downloaded and unpacked there"
        ) from None
    except UnidentifiedImageError:
        raise OSError(f"{path} is not an image that can be read; download it again or remove it") from None
    except Exception as error:  # of Pillow's decoders, which raise anything
        if str(path) in str(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise OSError(f"{path} cannot be read ({reason}); download it again or remove it") from error


def _decode(image: Image.Image, path: str | os.PathLike, truncated: Truncated) -> None:
    try:
        image.load()
    except OSError as error:
        if "truncated" not in str(error).lower():
            raise
        if truncated == "error":
            raise OSError(
                f"{path} is truncated; download it again, or pass truncated='warn' to use what is there"
            ) from error
        warnings.warn(f"{path} is truncated; what is missing stays grey", stacklevel=4)
        _decode_what_is_there(image)


def _decode_what_is_there(image: Image.Image) -> None:
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # Pillow has no such switch for a single image
    try:
        image.load()
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _upright(image: Image.Image) -> Image.Image:
    # Not by Pillow's exif_transpose: it copies upright images, and writes EXIF anew, which fails on odd tags.
    turn = UPRIGHT.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # of any type, and no matter: the pixels are there
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):  # 16 bits, which Pillow's own conversion would clip at 255
        values = np.asarray(image)
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
