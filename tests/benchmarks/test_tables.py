"""Benchmarks from tables of labels."""

import pytest
import torch

from avalanche_agcn.benchmarks.image_files import ImageOptions
from avalanche_agcn.benchmarks.protocols import Conventions, resolve_protocol
from avalanche_agcn.benchmarks.tables import LabelTable, benchmark_from_tables


@pytest.mark.parametrize("empty", ["train", "test"])
def test_tables_without_images_are_rejected_by_name(empty):
    names = ["cat", "dog"]
    tables = {
        part: LabelTable(["a.jpg"], torch.ones(1, 2, dtype=torch.int8), names) for part in ("train", "test")
    }
    tables[empty] = LabelTable([], torch.tensor([]), names)
    protocol = resolve_protocol("paper", Conventions(), paper_sizes=(2, 2))
    with pytest.raises(
        ValueError, match=f"There are no {empty} images; check the file of the {empty} labels"
    ):
        benchmark_from_tables(".", tables["train"], tables["test"], protocol, ImageOptions())
