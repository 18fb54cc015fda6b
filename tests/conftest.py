"""Fixtures and settings that several test files share."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

settings.register_profile("package", deadline=None)
settings.load_profile("package")
torch.set_num_threads(1)  # small tensors only; and test processes share the cores


@pytest.fixture
def files_of():
    """Names of the files behind a dataset, without opening them."""

    def names(dataset):
        images = dataset._flat_data
        while hasattr(images, "_datasets"):
            images = images._datasets[0]
        return [images.source.files[position].decode() for position in images.positions.tolist()]

    return names


@pytest.fixture
def shared_data():
    """Folder of real photos and published lists that may lie beside the project, never in it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data beside the project is absent")
    return SHARED_DATA


@pytest.fixture
def boxes_inside():
    """A function that returns the boxes of a plot's texts, none of which is cut off."""

    def boxes_inside(plot, artists):
        plot.draw_without_rendering()
        width, height = plot.canvas.get_width_height()
        boxes = [artist.get_window_extent() for artist in artists if artist.get_text()]
        for box in boxes:
            assert min(box.x0, box.y0) >= -1
            assert box.x1 <= width + 1
            assert box.y1 <= height + 1
        return boxes

    return boxes_inside


@pytest.fixture(scope="session")
def studies():
    """The modules of the studies on photos, by name."""
    names = ("declare", "trials", "running", "rows", "pages", "study", "coco18.declaration", "coco18.page")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "runs" / "studies")
        yield SimpleNamespace(**{name.replace(".", "_"): importlib.import_module(name) for name in names})
