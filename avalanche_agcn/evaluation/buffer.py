"""Scores and labels of the images seen so far, kept in one matrix that grows in place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.evaluation.inputs import as_array, check_shapes, split_targets
from avalanche_agcn.evaluation.ranking import Increment

__all__ = ["ScoreBuffer"]


class ScoreBuffer:
    """Scores [N, C] in float32 (float64 if they come so) and labels, a byte a cell, on the CPU.

    Args:
        capacity: Number of images to make room for at the first batch. More can come: the room is then
            doubled. Set it where the number is known, so that nothing is ever copied.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._length = 0
        self._scores = np.empty((0, 0), dtype=np.float32)
        self._positive = np.empty((0, 0), dtype=bool)
        self._annotated: np.ndarray | None = None  # None while every cell is

    def __len__(self) -> int:
        return self._length

    @property
    def n_classes(self) -> int:
        """Number of columns; 0 before the first batch."""
        return self._scores.shape[1]

    @property
    def arrays(self) -> Increment:
        """What was appended, without a copy."""
        n = self._length
        return Increment(
            self._scores[:n], self._positive[:n], None if self._annotated is None else self._annotated[:n]
        )

    def append(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch.

        Args:
            scores: [B, C] logits or probabilities.
            targets: [B, C] of 0, 1 and NaN (unlabelled).

        Raises:
            TypeError: If ``scores`` are not floating point.
            ValueError: If the shapes do not fit each other or the batches before.
        """
        check_shapes(scores, targets)
        self.extend(Increment(as_array(scores), *split_targets(targets)))

    def extend(self, images: Increment) -> None:
        """Add images that are already arrays."""
        self._make_room(images)
        start, stop = self._length, self._length + len(images.scores)
        self._scores[start:stop] = images.scores
        self._positive[start:stop] = images.positive
        if self._annotated is not None:
            self._annotated[start:stop] = True if images.annotated is None else images.annotated
        self._length = stop

    def state_dict(self) -> dict[str, Tensor | None]:
        """The content as plain tensors."""
        return {
            name: None if array is None else torch.from_numpy(array)
            for name, array in self.arrays._asdict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor | None]) -> None:
        """Take over the content of another buffer; what was here is dropped."""
        scores, positive, annotated = state["scores"], state["positive"], state["annotated"]
        assert scores is not None
        assert positive is not None
        self._length, self._annotated = 0, None
        labels = None if annotated is None else as_array(annotated)
        self.extend(Increment(as_array(scores), as_array(positive), labels))

    def _make_room(self, images: Increment) -> None:
        n_classes = images.scores.shape[1]
        if self._length and n_classes != self.n_classes:
            raise ValueError(
                f"scores have {n_classes} classes, those before had {self.n_classes}; "
                "reset() before the number of classes changes"
            )
        needed, rows = self._length + len(images.scores), len(self._scores)
        if needed > rows:
            rows = max(needed, self._capacity, 2 * self._length)
        if images.annotated is not None and self._annotated is None:
            self._annotated = np.ones_like(self._positive)
        shape = (rows, n_classes)
        self._scores = self._resized(self._scores, shape, np.result_type(self._scores, images.scores))
        self._positive = self._resized(self._positive, shape, np.dtype(bool))
        if self._annotated is not None:
            self._annotated = self._resized(self._annotated, shape, np.dtype(bool))

    def _resized(self, array: np.ndarray, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
        if array.shape == shape and array.dtype == dtype:
            return array
        larger = np.empty(shape, dtype=dtype)
        if self._length:
            larger[: self._length] = array[: self._length]
        return larger
