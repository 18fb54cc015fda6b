"""Fixtures and settings that several test files share."""

from pathlib import Path

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
