"""Sums over images, and blocks of classes: the base of all statistics of a stream.

One matrix per set of images holds all sums, with f the features of an image and y its targets:

    Σ [1, f, y]ᵀ [1, f, y]

Its blocks are n, Σf, Σffᵀ, Σf yᵀ, Σy and Σy yᵀ. They do not depend on the order or split of the images.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.checks import check_shape
from avalanche_agcn.training.distributed import is_distributed, largest_of_processes, sum_over_processes

BLOCK_ROWS = 256
"""Rows that are multiplied at a time: writing D² sums for a batch of 8 costs more than its product."""
CONSTANT_FEATURE = 1e-12  # least share of the variance in the mean square: below is the rounding of float64
LARGEST_FEATURE = 1e100  # sums of squares of larger ones would overflow
FEATURES_PER_ROW = 8
"""Rows are few, and kept as a triangular factor, if there are at least this many features for each."""


class MomentSums:
    """Sums Σ [1, f, y]ᵀ [1, f, y] in float64, added row by row.

    Rows wait until `BLOCK_ROWS` of them can be multiplied at once, or until the sums are read. The sums
    are kept on the device of the rows, or on the CPU if that device has no float64.

    Few rows can be kept as a triangular factor of their sums instead (`condense`): as exact, and smaller.

    With `torch.distributed` each process adds its own rows, and `synchronize` reduces the rows that were
    added since the last call.

    ``n_targets`` is the length K of y, None if it has the length of f. Without ``target_products`` the matrix
    lacks its last K rows: it is Σ [1, f]ᵀ [1, f, y].
    """

    def __init__(self, n_targets: int | None, *, target_products: bool = True) -> None:
        self._n_targets = n_targets
        self._n_target_rows = (n_targets or 0) if target_products else 0
        # Of all rows but those that wait; sums that were multiplied are None then.
        self._factor: Tensor | None = None
        self.replace(None)

    @property
    def width(self) -> int | None:
        """Number of features, None before the first row."""
        for part in (self._shared, self._own):
            if part is not None:
                return len(part) - 1 - self._n_target_rows
        if self._factor is not None:
            return self._factor.shape[1] - 1 - self._n_target_rows
        return self._waiting[0][0].shape[1] if self._waiting else None

    @property
    def count(self) -> int:
        """Number of rows, found without multiplying those that wait."""
        parts = [part[0, 0].item() for part in (self._shared, self._own) if part is not None]
        if self._factor is not None:
            parts.append(self._factor[:, 0].square().sum().item())
        return round(sum(parts)) + sum(len(rows) for rows, _ in self._waiting)

    @property
    def factor(self) -> Tensor | None:
        """R ``[n, 1 + D + K]`` with sums RᵀR, if they are kept as a factor (`condense`), else None."""
        return None if self._waiting else self._factor

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add rows, ``[B, D]`` and ``[B, K]``; they must not be changed afterwards."""
        device = float64_device(features.device)
        self._waiting.append((features.detach().to(device), targets.detach().to(device)))
        if sum(len(rows) for rows, _ in self._waiting) >= BLOCK_ROWS:
            self._multiply_waiting()

    def total(self) -> Tensor | None:
        """The sums, None before the first row. Do not write to them; rows added later do not change them."""
        self._multiply_waiting()
        if self._factor is not None:
            return self._expand(self._factor)
        total = add_moments(self._shared, self._own)
        if self._own is not None and not is_distributed():
            self.replace(total)  # so that they are added once, not at every call
        return total

    def condense(self) -> None:
        """Multiply waiting rows; if all rows are few, keep the factor R of their sums, RᵀR, instead.

        R is triangular and has as many rows as were added, but none of them: it tells what the sums tell. It
        has n·D numbers in place of D². Targets must be 0 or 1.
        """
        is_dense = self._shared is not None or self._own is not None or is_distributed()
        width = self.width
        if is_dense or width is None or not 0 < self.count * FEATURES_PER_ROW <= width:
            self.total()
        elif self._waiting:
            rows = self._joined_rows()
            if self._factor is not None:
                rows = torch.cat([self._factor.to(rows.device), rows])
            self.replace(None)
            self._factor = torch.linalg.qr(rows, mode="r").R

    def map(self, B: Tensor) -> None:
        """Change the sums to those of rows [1, f, y] B, with B ``[1 + D + K, 1 + D + K]``."""
        if self.factor is not None:
            self._factor = self.factor @ B.to(self.factor)
            return
        total = self.total()
        if total is not None:
            B = B.to(total)
            mapped = B.T @ total @ B
            self.replace((mapped + mapped.T) / 2)

    def replace(self, total: Tensor | None) -> None:
        """Replace the sums; with several processes, all must pass the same."""
        self._shared = total  # the same in all processes
        self._own: Tensor | None = None  # rows of this process since the last synchronize()
        self._factor = None
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Sums and waiting rows, so that saving does not change which rows are multiplied together."""
        total = add_moments(self._shared, self._own)
        state = {}
        if total is not None:
            # Whole if it is not square, or rounded differently above and below its diagonal.
            is_symmetric = total.shape == total.T.shape and torch.equal(total, total.T)
            name, kept = ("triangle", pack_triangle(total)) if is_symmetric else ("sums", total.clone())
            state[f"{prefix}{name}"] = kept
        if self._factor is not None:
            state[f"{prefix}factor"] = self._factor.clone()
        if self._waiting:
            features, targets = self._waiting_rows()
            state |= {f"{prefix}features": features, f"{prefix}targets": targets}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], prefix: str = "") -> None:
        """Restore sums and waiting rows from the entries that begin with ``prefix``.

        States of earlier versions have whole symmetric matrices.
        """
        for part in ("sums", "factor", "features", "targets"):
            name = f"{prefix}{part}"
            if name in state:
                check_shape(name, state[name], ("rows", "columns"))
        total = state.get(f"{prefix}sums")
        self.replace(None if total is None else total.detach().clone())
        if f"{prefix}triangle" in state:
            self.replace(unpack_triangle(state[f"{prefix}triangle"]))
        if f"{prefix}factor" in state:
            self._factor = state[f"{prefix}factor"].clone()
        if f"{prefix}features" in state:
            self._waiting = [(state[f"{prefix}features"].clone(), state[f"{prefix}targets"].clone())]
        if is_distributed():  # all processes have the same rows: they count once
            self.replace(self.total())
        else:  # continue adding to the same matrix, or the last bits would differ
            self._own = self._shared
            self._shared = None

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
        features = torch.cat([rows.to(device) for rows, _ in self._waiting])
        targets = torch.cat([rows.to(device) for _, rows in self._waiting])
        return features, targets

    def _joined_rows(self) -> Tensor:
        """Waiting rows as [1, f, y], in float64."""
        features, targets = self._waiting_rows()
        features = features.double()
        return torch.cat([features.new_ones(len(features), 1), features, targets.to(features)], dim=1)

    def _expand(self, factor: Tensor) -> Tensor:
        """RᵀR, with the whole numbers that sums of 1, and of targets 0 and 1, are."""
        sums = factor.T @ factor
        counted = torch.arange(len(sums), device=sums.device)
        counted = counted[(counted == 0) | (counted >= len(sums) - self._n_target_rows)]
        sums[counted[:, None], counted] = sums[counted[:, None], counted].round()
        return sums

    def _multiply_waiting(self) -> None:
        if not self._waiting:
            return
        right = self._joined_rows()
        own = self._own
        if own is None:
            own = self.zeros(self._waiting[0][0].shape[1])
        own = own.to(right.device)
        if self._factor is not None:
            own += self._expand(self._factor.to(right.device))
        self._own = own.addmm_(right[:, : len(own)].T, right)
        self._factor = None
        self._waiting = []


def pack_triangle(symmetric: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix, row by row, ``[n (n + 1) / 2]``."""
    return symmetric[torch.ones_like(symmetric, dtype=torch.bool).triu()]


def unpack_triangle(packed: Tensor) -> Tensor:
    """The symmetric matrix ``[n, n]`` of `pack_triangle`."""
    size = (math.isqrt(8 * len(packed) + 1) - 1) // 2  # n with n (n + 1) / 2 = length, rounded down
    if packed.ndim != 1 or size * (size + 1) // 2 != len(packed):
        raise ValueError(
            f"{tuple(packed.shape)} is not the shape of a packed triangle: the state is damaged."
        )
    upper = torch.ones(size, size, dtype=torch.bool, device=packed.device).triu()
    symmetric = packed.new_empty(size, size)
    symmetric.T[upper] = packed  # the lower triangle: the transpose is a view of the same matrix
    symmetric[upper] = packed
    return symmetric


def add_moments(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Sums over both sets of images, None where neither has any; ``second`` is never returned itself."""
    if first is None or second is None:
        return first if second is None else second.clone()
    return first + second.to(first.device)


def inverse_deviations(total: Tensor) -> Tensor:
    """1 / standard deviation of each feature, 0 where it does not vary, ``[D]``."""
    n = total[0, 0].clamp(min=1)
    squares, mean = total.diagonal()[1:] / n, total[0, 1:] / n
    variance = squares - mean**2
    return torch.where(variance > CONSTANT_FEATURE * squares, variance.rsqrt(), 0.0)


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

    def _add(self, *, reduce: bool, **sums: Tensor) -> None:
        """Add to the sums of these names, if ``reduce`` those of all processes, each of which calls this."""
        totals = sum_over_processes(*sums.values()) if reduce else sums.values()
        for name, total in zip(sums, totals, strict=True):
            getattr(self, f"_{name}").add_(total)

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


def can_be_squared(features: Tensor) -> Tensor:
    """Which features are finite, and small enough for sums of their squares."""
    if features.dtype == torch.float64:
        return features.abs() <= LARGEST_FEATURE  # False for NaN
    return features.isfinite()


def check_features(features: Tensor, width: int | None, name: str = "features") -> None:
    """Raise a ValueError unless features are ``[B, width]``, of any width if None, and can be squared."""
    check_shape(name, features, ("images", width or "features"))
    usable = can_be_squared(features)
    if not bool(usable.all()):
        row, column = (~usable).nonzero()[0].tolist()
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
