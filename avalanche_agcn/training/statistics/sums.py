"""Sums over images, and blocks of classes: the base of all statistics of a stream.

One matrix per set of images holds all sums, with f the features of an image and y its targets:

    Σ [1, f, y]ᵀ [1, f, y]

Its blocks are n, Σf, Σffᵀ, Σf yᵀ, Σy and Σy yᵀ. They do not depend on the order or split of the images.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.checks import check_shape
from avalanche_agcn.training.distributed import is_distributed, largest_of_processes, sum_over_processes

BLOCK_ROWS = 256
"""Rows that are multiplied at a time: writing D² sums for a batch of 8 costs more than its product."""


class MomentSums:
    """Sums Σ [1, f, y]ᵀ [1, f, y] in float64, added row by row.

    Rows wait until `BLOCK_ROWS` of them can be multiplied at once, or until the sums are read. The sums
    are kept on the device of the rows, or on the CPU if that device has no float64.

    With `torch.distributed` each process adds its own rows, and `synchronize` reduces the rows that were
    added since the last call.

    ``n_targets`` is the length K of y, None if it has the length of f. Without ``target_products`` the matrix
    lacks its last K rows: it is Σ [1, f]ᵀ [1, f, y].
    """

    def __init__(self, n_targets: int | None, *, target_products: bool = True) -> None:
        self._n_targets = n_targets
        self._n_target_rows = (n_targets or 0) if target_products else 0
        self.replace(None)

    @property
    def width(self) -> int | None:
        """Number of features, None before the first row."""
        for part in (self._shared, self._own):
            if part is not None:
                return len(part) - 1 - self._n_target_rows
        return self._waiting[0][0].shape[1] if self._waiting else None

    @property
    def count(self) -> int:
        """Number of rows, found without multiplying those that wait."""
        parts = [part[0, 0].item() for part in (self._shared, self._own) if part is not None]
        return round(sum(parts)) + sum(len(rows) for rows, _ in self._waiting)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add rows, ``[B, D]`` and ``[B, K]``; they must not be changed afterwards."""
        device = float64_device(features.device)
        self._waiting.append((features.detach().to(device), targets.detach().to(device)))
        if sum(len(rows) for rows, _ in self._waiting) >= BLOCK_ROWS:
            self._multiply_waiting()

    def total(self) -> Tensor | None:
        """The sums, None before the first row. Do not write to them; rows added later do not change them."""
        self._multiply_waiting()
        total = add_moments(self._shared, self._own)
        if self._own is not None and not is_distributed():
            self.replace(total)  # so that they are added once, not at every call
        return total

    def replace(self, total: Tensor | None) -> None:
        """Replace the sums; with several processes, all must pass the same."""
        self._shared = total  # the same in all processes
        self._own: Tensor | None = None  # rows of this process since the last synchronize()
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Sums and waiting rows, so that saving does not change which rows are multiplied together."""
        total = add_moments(self._shared, self._own)
        state = {} if total is None else {f"{prefix}sums": total.clone()}
        if self._waiting:
            features, targets = self._waiting_rows()
            state |= {f"{prefix}features": features, f"{prefix}targets": targets}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], prefix: str = "") -> None:
        """Restore sums and waiting rows from the entries that begin with ``prefix``."""
        for name in (f"{prefix}sums", f"{prefix}features", f"{prefix}targets"):
            if name in state:
                check_shape(name, state[name], ("rows", "columns"))
        total = state.get(f"{prefix}sums")
        self.replace(None if total is None else total.detach().clone())
        if f"{prefix}features" in state:
            self._waiting = [(state[f"{prefix}features"].clone(), state[f"{prefix}targets"].clone())]
        if is_distributed():  # all processes have the same rows: they count once
            self.replace(self.total())
        else:  # continue adding to the same matrix, or the last bits would differ
            self._shared, self._own = None, self._shared

    def synchronize(self) -> None:
        """Collective: add up the sums of all processes; each row counts once however often it is called."""
        if not is_distributed():
            return
        self._multiply_waiting()
        width = largest_of_processes(-1 if self.width is None else self.width)
        if width < 0:
            return  # no process has a row
        (own,) = sum_over_processes(self.zeros(width) if self._own is None else self._own)
        self.replace(add_moments(self._shared, own))

    def zeros(self, width: int, device: torch.device | None = None) -> Tensor:
        """Sums over no images."""
        n_targets = width if self._n_targets is None else self._n_targets
        shape = 1 + width + self._n_target_rows, 1 + width + n_targets
        return torch.zeros(shape, dtype=torch.float64, device=device)

    def _waiting_rows(self) -> tuple[Tensor, Tensor]:
        device = self._waiting[-1][0].device  # rows of a state that was read are on the CPU
        features, targets = zip(*self._waiting, strict=True)
        return torch.cat([rows.to(device) for rows in features]), torch.cat(
            [rows.to(device) for rows in targets]
        )

    def _multiply_waiting(self) -> None:
        if not self._waiting:
            return
        features, targets = self._waiting_rows()
        features = features.double()
        right = torch.cat([features.new_ones(len(features), 1), features, targets.to(features)], dim=1)
        own = self.zeros(features.shape[1], right.device) if self._own is None else self._own.to(right.device)
        self._own = own.addmm_(right[:, : len(own)].T, right)
        self._waiting = []


def add_moments(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Sums over both sets of images, None where neither has any; ``second`` is never returned itself."""
    if first is None or second is None:
        return first if second is None else second.clone()
    return first + second.to(first.device)


def solve_regularised(gram: Tensor, cross: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """(G + λI)⁻¹ C for G ``[D, D]`` and C ``[D, K]``, and the Cholesky factor of G + λI."""
    regularised = gram.clone()
    regularised.diagonal().add_(ridge)
    factor = torch.linalg.cholesky(regularised)
    return torch.cholesky_solve(cross, factor), factor


class ClassBlocks:
    """Base of statistics in which each experience opens a block of new classes.

    ``_tensors`` names the attributes that make up the state of a subclass, unless it saves its state itself.
    """

    _tensors: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._sizes: list[int] = []

    def state_dict(self) -> dict[str, Tensor]:
        """All sums as tensors, not copied."""
        sums = {name.removeprefix("_"): getattr(self, name) for name in self._tensors}
        return {"sizes": torch.tensor(self._sizes, dtype=torch.long), **sums}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`; a ValueError if an entry is missing or unknown."""
        if state.keys() != self.state_dict().keys():
            expected = sorted(self.state_dict())
            raise ValueError(f"The state of {type(self).__name__} has {expected}, not {sorted(state)}.")
        self._sizes = state["sizes"].tolist()
        for name in self._tensors:
            setattr(self, name, state[name.removeprefix("_")].detach().clone())

    @property
    def device(self) -> torch.device:
        """Device of the sums: that of the last batch."""
        return getattr(self, self._tensors[0]).device

    def copy_block(self, block: int) -> Any:
        """Copy of what `restore_block` needs to remove what was added to a block since."""
        return copy.deepcopy(self.state_dict())

    def restore_block(self, block: int, copied: Any) -> None:
        """Make a block what it was when it was copied."""
        self.load_state_dict(copied)

    def _move_to(self, device: torch.device) -> None:
        for name in self._tensors:
            setattr(self, name, getattr(self, name).to(device))

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Number of new classes of each experience, oldest first."""
        return tuple(self._sizes)

    @property
    def n_seen(self) -> int:
        """Number of classes seen so far."""
        return sum(self._sizes)

    @property
    def n_old(self) -> int:
        """Number of classes of earlier experiences."""
        return sum(self._sizes[:-1])

    def _check_open(self) -> None:
        if not self._sizes:
            raise RuntimeError("No experience is open: call begin(...) first.")

    def _check_targets(self, targets: Tensor, n_images: int, experience: int = -1) -> None:
        self._check_open()
        reason = f", one column per class of experience {experience % len(self._sizes)}"
        check_shape("targets_new", targets, (n_images, self._sizes[experience]), reason)


def check_features(features: Tensor, width: int | None, name: str = "features") -> None:
    """Raise a ValueError unless features are ``[B, width]``, of any width if None, and finite."""
    check_shape(name, features, ("images", width or "features"))
    finite = features.isfinite()
    if not bool(finite.all()):
        row, column = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"Feature {column} of row {row} is {features[row, column].item()}: the network diverged, or its "
            "input is not finite."
        )


def float64_device(device: torch.device) -> torch.device:
    """The device itself, or the CPU in place of one without float64, such as Apple's."""
    return torch.device("cpu") if device.type == "mps" else device


def in_float64(values: Tensor) -> Tensor:
    """Convert to double precision, on the CPU where the device has none."""
    return values.to(float64_device(values.device)).double()
