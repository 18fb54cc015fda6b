import os
import shutil
import struct
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torchvision.transforms import v2

from avalanche_agcn.benchmarks.image_files import (
    ImageFiles,
    load_image,
    paper_transforms,
    split_transform,
    upright_rgb,
)

RED, GREEN, BLUE = (250, 10, 10), (10, 250, 10), (10, 10, 250)


def quadrants(width=32, height=16):
    """Left half red, right half green, with a blue lower right corner."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (width // 2, 0, width, height))
    image.paste(BLUE, (width // 2, height // 2, width, height))
    return image


def assert_quadrants(image, width=32, height=16):
    assert (image.mode, image.size) == ("RGB", (width, height))
    for corner, colour in {(1, 1): RED, (width - 2, 1): GREEN, (width - 2, height - 2): BLUE}.items():
        assert np.abs(np.subtract(image.getpixel(corner), colour)).max() <= 40


MODES = {"rgb.jpg": "RGB", "rgb.png": "RGB", "palette.png": "P", "palette.gif": "P"}
MODES |= {"cmyk.jpg": "CMYK", "alpha.png": "RGBA"}


@pytest.mark.parametrize("name", MODES)
def test_colour_files_come_out_as_rgb(tmp_path, name):
    quadrants().convert(MODES[name], palette=Image.Palette.ADAPTIVE).save(tmp_path / name)
    assert_quadrants(load_image(tmp_path / name))


def test_grey_16_bit_and_transparent_files_come_out_as_rgb(tmp_path):
    for mode, colour, expected in (("L", 77, (77, 77, 77)), ("RGBA", (0, 0, 0, 0), (255, 255, 255))):
        Image.new(mode, (2, 2), colour).save(tmp_path / "plain.png")
        assert load_image(tmp_path / "plain.png").getpixel((1, 1)) == expected
    values = np.array([[0, 0x4000], [0x8000, 0xFFFF]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    image = np.asarray(load_image(tmp_path / "deep.png"))  # scaled, not clipped
    assert image[..., 0].tolist() == [[0, 0x40], [0x80, 0xFF]]
    assert (image == image[..., :1]).all()


def test_white_may_be_0_and_pixels_of_unknown_range_are_rejected(tmp_path):
    values = np.array([[0, 0x4000], [0x8000, 0xFFFF]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "inverse.tif", tiffinfo={262: 0})
    image = np.asarray(load_image(tmp_path / "inverse.tif"))
    assert image[..., 0].tolist() == [[0xFF, 0xBF], [0x7F, 0]]
    message = r"unknown.tif has signed, 32-bit or floating-point pixels \(mode [IF]\), .* to 8 or 16 bits\."
    for dtype, tags in ((np.float32, {}), (np.int32, {}), (np.uint16, {339: 2})):  # 339: 16 bits with a sign
        photo = Image.fromarray(values.astype(dtype))
        photo.save(tmp_path / "unknown.tif", tiffinfo=tags)
        with pytest.raises(OSError, match=message):
            load_image(tmp_path / "unknown.tif")
    with pytest.raises(OSError, match=r"The image has .* \(mode F\)"):
        upright_rgb(Image.fromarray(values.astype(np.float32)))


STORED = {1: None, 2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"}
STORED |= {6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270"}


@pytest.mark.parametrize("orientation", STORED)
def test_every_exif_orientation_comes_out_upright(tmp_path, orientation):
    image, turn = quadrants(64, 32), STORED[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = image if turn is None else image.transpose(Image.Transpose[turn])
    stored.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    loaded = load_image(tmp_path / "turned.jpg")
    assert_quadrants(loaded, 64, 32)
    assert_quadrants(upright_rgb(loaded), 64, 32)  # and is not turned again
    assert_quadrants(upright_rgb(Image.open(tmp_path / "turned.jpg")), 64, 32)
    stored.save(tmp_path / "turned.tiff", exif=exif)  # which Pillow turns itself when it loads
    assert_quadrants(upright_rgb(Image.open(tmp_path / "turned.tiff")), 64, 32)


def exif_of(*tags):
    """EXIF of tags, each a number, a type, a count and four bytes, valid or not."""
    entries = [struct.pack("<HHI", *head) + value for *head, value in tags]
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)


LYING = (0x0112, 3, 1, b"\6\0\0\0")  # orientation 6


@pytest.mark.parametrize(
    ("exif", "turned"),
    [
        (b"Exif\0\0no such thing", False),
        (b"Exif\0\0II*", False),
        (exif_of((0x0112, 2, 2, b"6\0\0\0")), False),
        (exif_of((0x0112, 99, 1, b"\6\0\0\0")), False),
        (exif_of(LYING), True),
        (exif_of(LYING, (0xA005, 2, 4, b"abc\0")), True),  # Pillow cannot write it again
        (exif_of(LYING, (0x8825, 9, 1, struct.pack("<i", -5))), True),  # likewise
    ],
    ids=["no EXIF", "cut off", "a text", "unknown type", "whole", "text as pointer", "negative pointer"],
)
def test_photo_with_broken_exif_is_turned_where_its_orientation_can_be_read(tmp_path, exif, turned):
    image = quadrants(64, 32)
    stored = image.transpose(Image.Transpose.ROTATE_90) if turned else image
    stored.save(tmp_path / "photo.jpg", exif=exif, dpi=(72, 72), quality=95)
    assert_quadrants(load_image(tmp_path / "photo.jpg"), 64, 32)


def test_truncated_file_is_read_in_part_or_rejected(tmp_path):
    path = tmp_path / "truncated.jpg"
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match=r"truncated\.jpg is truncated"):
        pixels = np.asarray(load_image(path))
    assert pixels.shape == (64, 64, 3)
    assert pixels[:16].std() > 20  # the part that was read
    assert pixels[-8:].std() == 0  # the missing part
    with pytest.raises(OSError, match=r"truncated\.jpg is truncated.*truncated='warn'"):
        load_image(path, truncated="error")
    with pytest.raises(ValueError, match=r"one of \('warn', 'error'\), not 'ignore'"):
        ImageFiles("", [], truncated="ignore")


def test_missing_unreadable_and_too_large_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no image .*missing\.jpg"):
        load_image(tmp_path / "missing.jpg")
    for content in (b"", b"no image", b"\xff\xd8\xff\xe0 a JPEG that is only a header"):
        (tmp_path / "broken.jpg").write_bytes(content)
        with pytest.raises(OSError, match=r"broken\.jpg.*download it again"):
            load_image(tmp_path / "broken.jpg")
    quadrants().save(tmp_path / "large.png")
    shutil.copy(tmp_path / "large.png", tmp_path / "e")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for name in ("large.png", "e"):  # which is also a letter of the decoder's message
        with pytest.raises(OSError, match=rf"{name} cannot be read \(DecompressionBombError: .*512 pixels"):
            load_image(name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    code = "import sys; from avalanche_agcn.benchmarks.image_files import load_image; load_image(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "pipe.jpg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "OSError: " in done.stderr
    assert "pipe.jpg is not an image file" in done.stderr


def test_files_are_opened_by_their_name_whatever_its_letters(tmp_path):
    names = ["plain.png", "straße/ñandú.png"]
    (tmp_path / "straße").mkdir()
    for name, colour in zip(names, (RED, GREEN)):
        Image.new("RGB", (4, 4), colour).save(tmp_path / name)
    files = ImageFiles(tmp_path, names, torch.eye(2))
    assert [image.getpixel((0, 0)) for image, _ in (files[0], files[1])] == [RED, GREEN]
    assert files[1][1].tolist() == [0, 1]


def test_paper_transforms_scale_flip_and_normalise():
    image, mean, std = quadrants(40, 20), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    transforms = paper_transforms(8)
    torch.manual_seed(0)
    first_rows = {tuple(transforms["train_transform"](image)[0, 0].tolist()) for _ in range(20)}
    assert len(first_rows) == 2  # flipped or not
    plain = transforms["eval_transform"](image)
    assert (plain.shape, plain.dtype) == ((3, 8, 8), torch.float32)
    expected = (torch.tensor(RED) / 255 - torch.tensor(mean)) / torch.tensor(std)
    torch.testing.assert_close(plain[:, 1, 1], expected)
    unscaled = paper_transforms(None, mean=[0, 0, 0], std=[1, 1, 1])["eval_transform"](image)
    assert torch.equal(unscaled.mul(255).round().byte().permute(1, 2, 0), torch.from_numpy(np.array(image)))
    transforms = paper_transforms(8, train_transform=len)
    assert transforms["train_transform"] is len
    assert transforms["eval_transform"] is not len


def test_threads_can_read_truncated_files_at_the_same_time(tmp_path):
    path = tmp_path / "cut.jpg"
    Image.effect_noise((400, 400), 50).save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with warnings.catch_warnings(), ThreadPoolExecutor(8) as threads:
        warnings.simplefilter("ignore")
        images = list(threads.map(load_image, [path] * 64))
    assert {image.size for image in images} == {(400, 400)}
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("size", [24, None])
def test_the_parts_of_a_transform_give_its_values_bit_for_bit(size):
    rng = np.random.default_rng(0)
    photos = [Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)) for _ in range(3)]
    transform = paper_transforms(size)["eval_transform"]
    to_pixels, to_inputs = split_transform(transform)
    pixels = torch.stack([to_pixels(photo) for photo in photos])
    assert (type(pixels), pixels.dtype) == (torch.Tensor, torch.uint8)
    inputs = to_inputs(pixels)
    assert type(inputs) is torch.Tensor
    assert torch.equal(inputs, torch.stack([transform(photo) for photo in photos]))


TO_FLOAT = v2.ToDtype(torch.float32, scale=True)


@pytest.mark.parametrize(
    "transform",
    [
        None,
        TO_FLOAT,
        v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(), TO_FLOAT]),
        v2.Compose([v2.ToImage(), lambda image: image / 2, TO_FLOAT]),
        v2.Compose([TO_FLOAT]),  # leaves arrays as they are, but not the tensor that a batch of them becomes
        v2.Compose([v2.ToImage(), TO_FLOAT, v2.Resize(8)]),
    ],
)
def test_other_transforms_have_no_part_for_batches(transform):
    assert split_transform(transform) == (transform, None)


def test_one_long_name_does_not_multiply_the_memory_of_all_names(tmp_path):
    with pytest.raises(ValueError, match=r"The file name 'xxx.*…' has 100000 bytes, but paths have at most"):
        ImageFiles(tmp_path, ["a.jpg", "x" * 100_000])
    assert ImageFiles(tmp_path, ["a.jpg", "é" * 2048]).image_name(1) == "é" * 2048
    assert len(ImageFiles(tmp_path, [])) == 0
