"""The nested matrices of a run, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avalanche_agcn.evaluation.functional import NestedSummary, nested_summary

__all__ = ["NestedHistory"]


class NestedHistory:
    """Nested matrices by name: row t has t + 1 entries, or none if nothing was evaluated then.

    Example:
        >>> history = NestedHistory()
        >>> history.add("mAP", [0.8])
        >>> history.add("mAP", [0.6, 0.7])
        >>> history.matrix("mAP"), history.summary("mAP").average
        ([[0.8], [0.6, 0.7]], 0.75)
    """

    def __init__(self) -> None:
        self._matrices: dict[str, list[list[float]]] = {}

    @property
    def names(self) -> list[str]:
        """Names of the matrices."""
        return list(self._matrices)

    def add(self, name: str, row: Sequence[float]) -> None:
        """Set the row of as many entries, in place of what it was."""
        rows = self._matrices.setdefault(name, [])
        rows.extend([] for _ in range(len(row) - len(rows)))
        rows[len(row) - 1] = [float(value) for value in row]

    def matrix(self, name: str) -> list[list[float]]:
        """A copy of the matrix.

        Raises:
            KeyError: If nothing was added under this name.
        """
        if name not in self._matrices:
            raise KeyError(
                f"no nested matrix {name!r}, only {self.names}; evaluate test_stream[: t + 1] first"
            )
        return [list(row) for row in self._matrices[name]]

    def summary(self, name: str) -> NestedSummary:
        """`nested_summary` of the matrix."""
        return nested_summary(self.matrix(name))

    def state_dict(self) -> dict[str, Any]:
        """The matrices as plain lists."""
        return {name: self.matrix(name) for name in self.names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the matrices of `state_dict`."""
        self._matrices = {name: [list(row) for row in rows] for name, rows in state.items()}
