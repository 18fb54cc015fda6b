"""Benchmarks from tables of labels, which the readers of all data sets return."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import NamedTuple

from torch import Tensor

from avalanche_agcn.benchmarks.image_files import ImageFiles, ImageOptions
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark, plan_images
from avalanche_agcn.benchmarks.protocols import Protocol
from avalanche_agcn.benchmarks.split import choose_classes, count_positives
from avalanche_agcn.checks import shown


class LabelTable(NamedTuple):
    """Which image of a data set shows which classes."""

    files: list[str]  # relative to the data set's folder
    labels: Tensor  # [images, classes] int8 of 0 and 1
    class_names: list[str]
    membership: Tensor | None = None
    """[images, classes]: classes that bring an image into an experience, if these are not its labels."""

    def rows(self, keep: Tensor) -> LabelTable:
        """The images where ``keep``, [images] bool, is true; of a table without ``membership``."""
        files = [self.files[row] for row in keep.nonzero().flatten().tolist()]
        return LabelTable(files, self.labels[keep], self.class_names)


def benchmark_from_tables(
    root: str | os.PathLike,
    train: LabelTable,
    test: LabelTable,
    protocol: Protocol,
    image_options: ImageOptions,
) -> MultiLabelBenchmark:
    """A benchmark of images below ``root``, with the most frequent classes of ``train`` or all of them."""
    for name, table in {"train": train, "test": test}.items():
        if not table.files:
            raise ValueError(f"There are no {name} images; check the file of the {name} labels.")
    for number, (one, other) in enumerate(zip_longest(train.class_names, test.class_names)):
        if one != other:
            raise ValueError(
                "Train and test annotations must have the same categories in the order of their ids, but "
                f"number {number} is {shown(one)} in train and {shown(other)} in test; use "
                "annotations of one release."
            )
    chosen = choose_classes(
        train.class_names, count_positives(train.labels), protocol.n_classes, protocol.class_order
    )
    truncated = image_options.truncated
    plan = plan_images(
        ImageFiles(root, train.files, train.labels[:, chosen], truncated=truncated),
        ImageFiles(root, test.files, test.labels[:, chosen], truncated=truncated),
        protocol,
        image_options,
        class_names=[train.class_names[column] for column in chosen],
        train_membership=None if train.membership is None else train.membership[:, chosen],
        test_membership=None if test.membership is None else test.membership[:, chosen],
    )
    return MultiLabelBenchmark(plan)
