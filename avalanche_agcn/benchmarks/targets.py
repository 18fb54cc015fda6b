"""Multi-hot targets as an Avalanche data attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks.utils.data_attribute import DataAttribute
from torch import Tensor

UNLABELLED = -1
"""Code of a cell whose label is unknown; read as NaN."""


class MultiLabelAttribute(DataAttribute):
    """Avalanche's ``DataAttribute`` for targets with several labels per image.

    The base class hashes each sample's value, and a multi-hot row has no hash. Here the values are the
    classes: ``uniques`` are the columns with at least one positive, ``val_to_idx`` lists a column's positive
    samples and ``count`` their number.

    A cell is 0, 1 or unlabelled. It is stored in one byte (6.6 MB for the 82,783 training images of COCO) and
    read as float32, NaN where unlabelled.

    Args:
        data: [N, C] tensor or array of 0, 1 and NaN.
        name: name under which the dataset offers the attribute.
        use_in_getitem: whether the dataset appends the row to each sample.

    Raises:
        ValueError: if ``data`` is not 2-D or has values other than 0, 1 and NaN.

    Example:
        >>> targets = MultiLabelAttribute(torch.tensor([[1, 0, 1], [0, 0, 1]]))
        >>> targets.uniques, targets.val_to_idx, targets.count
        ({0, 2}, {0: [0], 2: [0, 1]}, {0: 1, 2: 2})
        >>> targets.subset([1])[0]
        tensor([0., 0., 1.])
    """

    def __init__(
        self, data: Tensor | np.ndarray, name: str = "targets", use_in_getitem: bool = False
    ) -> None:
        self._set(encode(data), name, use_in_getitem)

    @classmethod
    def from_codes(
        cls, codes: Tensor, name: str = "targets", use_in_getitem: bool = False
    ) -> MultiLabelAttribute:
        """An attribute that holds ``codes`` themselves, neither checked nor copied."""
        new = cls.__new__(cls)
        new._set(codes, name, use_in_getitem)
        return new

    def _set(self, codes: Tensor, name: str, use_in_getitem: bool) -> None:
        self.name, self.use_in_getitem = name, use_in_getitem
        self.codes = codes
        """[N, C] int8: 0, 1 or ``UNLABELLED``."""
        self._val_to_idx: dict[int, list[int]] | None = None

    @property
    def data(self) -> Tensor:
        """All targets, float32 [N, C], NaN where unlabelled; a new tensor at each call."""
        return decode(self.codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, item: Any) -> Tensor:
        return decode(self.codes[item])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.data.numpy() if dtype is None else self.data.numpy().astype(dtype)

    def __repr__(self) -> str:
        samples, classes = self.codes.shape
        return f"MultiLabelAttribute({self.name!r}, {samples} samples, {classes} classes)"

    __str__ = __repr__

    @property
    def uniques(self) -> set[int]:
        """Classes with at least one positive."""
        return set(self.count)

    @property
    def count(self) -> dict[int, int]:
        """Number of positives of each class that has one."""
        positives = (self.codes == 1).sum(0).tolist()
        return {column: n for column, n in enumerate(positives) if n}

    @property
    def val_to_idx(self) -> dict[int, list[int]]:
        """Positions of the positives of each class that has one."""
        if self._val_to_idx is None:
            count = self.count
            _, rows = (self.codes == 1).T.nonzero(as_tuple=True)  # sorted by column
            parts = rows.split(list(count.values()))
            self._val_to_idx = {column: part.tolist() for column, part in zip(count, parts, strict=True)}
        return self._val_to_idx

    def subset(self, indices: Sequence[int] | Tensor) -> MultiLabelAttribute:
        """The rows at ``indices``, in that order."""
        if not isinstance(indices, (Tensor, np.ndarray, list)):
            indices = list(indices)
        return self._with(self.codes[torch.as_tensor(indices, dtype=torch.long)])

    def concat(self, other: DataAttribute) -> MultiLabelAttribute:
        """These rows followed by those of ``other``, which must have the same name and width."""
        if len(other) == 0:
            return self
        if not isinstance(other, MultiLabelAttribute) or other.name != self.name:
            raise ValueError(
                f"Cannot append {other!r} to {self!r}: both must be a MultiLabelAttribute of the same name."
            )
        if other.codes.shape[1] != self.codes.shape[1]:
            raise ValueError(
                f"Cannot append {other!r} to {self!r}: they differ in the number of classes; "
                "concatenate only datasets of the same benchmark."
            )
        return self._with(torch.cat([self.codes, other.codes]))

    def _with(self, codes: Tensor) -> MultiLabelAttribute:
        return self.from_codes(codes, self.name, self.use_in_getitem)


def encode(targets: Tensor | np.ndarray | Sequence[Sequence[float]]) -> Tensor:
    """Targets of 0, 1 and NaN as int8 codes.

    Raises:
        ValueError: if the targets are not 2-D or have values other than 0, 1 and NaN.
    """
    targets = _as_matrix(targets)
    if targets.ndim != 2:
        raise ValueError(
            f"targets must be a 2-D matrix [images, classes] of 0 and 1, but have shape "
            f"{tuple(targets.shape)}; torch.nn.functional.one_hot makes one of class indices."
        )
    unlabelled, positive = targets.isnan(), targets == 1
    wrong = ~(positive | (targets == 0) | unlabelled)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"targets must be 0 or 1 (NaN where unlabelled), but are {targets[row, column].item()} for "
            f"image {row}, class {column}."
        )
    return positive.to(torch.int8).masked_fill_(unlabelled, UNLABELLED)


def _as_matrix(targets: Tensor | np.ndarray | Sequence[Sequence[float]]) -> Tensor:
    """The targets as a tensor; lists of labels, of any length each, are no matrix."""
    try:
        return torch.as_tensor(targets)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"targets must be a matrix [images, classes] of 0 and 1, not lists of labels such as "
            f"{list(targets[0])!r} ({error}): set targets[image, class] = 1 in torch.zeros(n_images, "
            "n_classes), or write a CSV file for multilabel_csv."
        ) from None


def decode(codes: Tensor) -> Tensor:
    """Codes as float32 targets, NaN where unlabelled."""
    return codes.float().masked_fill_(codes == UNLABELLED, float("nan"))


def mask_columns(codes: Tensor, own: range, *, outside: int = UNLABELLED) -> Tensor:
    """A copy of the codes with another code outside of the experience's own columns.

    Args:
        codes: [N, C].
        own: the columns that keep their codes.
        outside: code of all others: unlabelled, or 0 for negative.
    """
    masked = torch.full_like(codes, outside)
    masked[:, own.start : own.stop] = codes[:, own.start : own.stop]
    return masked
