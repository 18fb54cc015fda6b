"""Sums of features per experience: negatives and classifiers without a stored image."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from avalanche_agcn.checks import check_range, check_shape
from avalanche_agcn.training.statistics.sums import (
    ClassBlocks,
    MomentSums,
    add_moments,
    can_be_squared,
    check_features,
    float64_device,
)

CONSTANT = slice(0, 1)  # row or column of the moments that belongs to the constant 1
ROUNDING = 1e-5  # tolerated relative error of Σf² after a removal: float32 features depend on their batch


class FeatureStatistics(ClassBlocks):
    """Counts, sums and products of features f and labels y, per experience, in float64.

    Labels y are an experience's own columns, 0 or 1. Order and split of the images do not matter, up to
    rounding: sums add up, merge and can be subtracted. Rows without any own label (replayed images, padding)
    are skipped. Count an image once, in the first epoch of its experience. Sums of T experiences take T·D²·8
    bytes, 336 MB for D = 2,048 and T = 10, and half of it in a state, which has one triangle of each matrix.

    **Privacy**: no image is stored, but with very few images sums reveal features: with n = 1, Σf is the
    feature of that image. Up to `sums.BLOCK_ROWS` rows of the open experience wait to be added, in
    RAM and in `state_dict`; call `flush` to add them.

    **Removal**: sums cannot tell *which* images they hold. `remove` is exact for images that were added;
    for others it raises an error only if a count or a variance would fall below 0.

    **Several processes**: each updates with its own rows; call `synchronize` in all of them before the
    statistics are read or saved. `merge`, `remove`, `subtract` and `map` act on the synchronized sums:
    make the same call in every process.

    Example:
        >>> import torch
        >>> statistics = FeatureStatistics()
        >>> statistics.begin(1)
        >>> statistics.update(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([[1.0], [0.0]]))
        >>> statistics.count(0), statistics.mean(0)
        (2, tensor([1., 1.], dtype=torch.float64))
    """

    def __init__(self) -> None:
        super().__init__()
        self._sums: list[MomentSums] = []
        self._added_factors: list[Tensor] = []  # whose sum is in the next line
        self._factor_total = torch.empty(0)
        self._changed: set[int] = set()  # experiences with rows that were added since the last synchronize()
        self._device = torch.device(
            "cpu"
        )  # of the last rows; sums that were read from a state are on the CPU

    @property
    def n_experiences(self) -> int:
        """Number of experiences, the open one included."""
        return len(self._sums)

    @property
    def n_classes(self) -> int:
        """Number of classes of all experiences."""
        return self.n_seen

    @property
    def width(self) -> int | None:
        """Number of features D, None before the first image."""
        return next((sums.width for sums in self._sums if sums.width is not None), None)

    def columns(self, t: int) -> slice:
        """Columns of a full target that experience ``t`` owns."""
        t = self._index(t)
        return slice(sum(self._sizes[:t]), sum(self._sizes[: t + 1]))

    def begin(self, n_new: int) -> None:
        """Open an experience with ``n_new`` new classes."""
        check_range("n_new", n_new, least=0)
        self._sizes.append(n_new)
        self._sums.append(MomentSums(n_new))

    def restart(self) -> None:
        """Discard the images of the open experience."""
        self._sums[-1] = MomentSums(self._sizes[-1])

    def copy_block(self, block: int) -> MomentSums:
        """Copy of the sums of an experience."""
        return copy.deepcopy(self._sums[block])

    def restore_block(self, block: int, copied: MomentSums) -> None:
        """Make the sums of an experience what they were when they were copied."""
        self._sums[block] = copy.deepcopy(copied)

    def update(self, features: Tensor, targets_new: Tensor, *, experience: int | None = None) -> None:
        """Add images; a ValueError, and no change, if a shape does not fit or a value is not allowed.

        Features are ``[B, D]``, targets 0 or 1 in the own columns of the experience (the open one if None),
        ``[B, n_new]``. Rows that are all NaN are skipped, so an image with a full target can be passed to
        every experience.
        """
        t = self._index(experience)
        self._sums[t].add(*self._labelled_rows(features, targets_new, t))
        self._changed.add(t)
        self._device = float64_device(features.device)

    def remove(self, features: Tensor, targets_new: Tensor, *, experience: int | None = None) -> None:
        """Subtract images that were added; errors as in `update`, or if a count or variance fell below 0."""
        t = self._index(experience)
        removed = MomentSums(self._sizes[t])
        removed.add(*self._labelled_rows(features, targets_new, t))
        self._sums[t].replace(self._without(removed, t))

    def merge(self, other: FeatureStatistics) -> None:
        """Add the images of other statistics, of the same experiences and features, or raise a ValueError."""
        self._check_alike(other)
        for mine, theirs in zip(self._sums, other._sums, strict=True):
            mine.replace(add_moments(mine.total(), theirs.total()))

    def subtract(self, other: FeatureStatistics) -> None:
        """Remove the images of other statistics, all or none of them; for errors see `remove` and `merge`."""
        self._check_alike(other)
        remaining = [self._without(theirs, t) for t, theirs in enumerate(other._sums)]
        for sums, total in zip(self._sums, remaining, strict=True):
            sums.replace(total)

    def map(self, A: Tensor, shift: Tensor, *, experiences: Iterable[int] | None = None) -> None:
        """Change the sums of all or some experiences to those of features fA + shift, exactly.

        A is ``[D, D]`` and shift ``[D]``; a ValueError, and no change, if they do not fit or are not finite.
        """
        width = self.width or len(shift)
        check_shape("A", A, (width, width))
        check_shape("shift", shift, (width,))
        if not bool(A.isfinite().all() & shift.isfinite().all()):
            raise ValueError("The map has entries that are NaN or infinite; the sums were not changed.")
        chosen = range(self.n_experiences) if experiences is None else experiences
        for t in [self._index(t) for t in chosen]:
            # In coordinates [1, f, y] the map is one matrix B: [1, f, y] B = [1, fA + shift, y].
            B = torch.eye(1 + width + self._sizes[t], dtype=torch.float64, device=A.device)
            B[0, 1 : 1 + width] = shift
            B[1 : 1 + width, 1 : 1 + width] = A
            self._sums[t].map(B)

    def flush(self) -> None:
        """Add waiting rows to the sums; an experience of few images keeps a factor of them instead."""
        for sums in self._sums:
            sums.condense()

    def synchronize(self) -> None:
        """Collective: add up the sums over all processes, each image once."""
        last = [self.n_experiences - 1] if self._sums else []
        for t in sorted(self._changed.union(last)):
            self._sums[t].synchronize()
        self._changed = set()

    def count(self, t: int) -> int:
        """Number of images of experience ``t``."""
        return self._sums[self._index(t)].count

    def moments(self, t: int) -> Tensor:
        """All sums of experience ``t`` as one matrix Σ [1, f, y]ᵀ [1, f, y], of 1 + D + n_new rows.

        Those of all experiences are on the device of the last rows.
        """
        sums = self._sums[self._index(t)]
        total = sums.total()
        return sums.zeros(self._features.stop - 1, self._device) if total is None else total.to(self._device)

    def factor(self, t: int) -> Tensor | None:
        """R of 1 + D + n_new columns with RᵀR = `moments`, where few images have one (`flush`), else None."""
        factor = self._sums[self._index(t)].factor
        return None if factor is None else factor.to(self._device)

    def total(self) -> Tensor:
        """Σ [1, f]ᵀ [1, f] over the images of all experiences, ``[1 + D, 1 + D]``."""
        total = self._total_of_sums()
        if total is None:
            raise ValueError("The statistics have no images yet: call update(features, targets_new) first.")
        return total.to(self._device)

    def feature_sum(self, t: int) -> Tensor:
        """Σf of experience ``t``, ``[D]``."""
        return self._block(t, CONSTANT, self._features)[0]

    def gram(self, t: int) -> Tensor:
        """Σffᵀ of experience ``t``, ``[D, D]``."""
        return self._block(t, self._features, self._features)

    def cross(self, t: int) -> Tensor:
        """Σf yᵀ of experience ``t``, ``[D, n_new]``."""
        return self._block(t, self._features, self._labels)

    def label_sum(self, t: int) -> Tensor:
        """Σy of experience ``t``, ``[n_new]``."""
        return self._block(t, CONSTANT, self._labels)[0].round()  # whole, also of a factor

    def label_products(self, t: int) -> Tensor:
        """Σy yᵀ of experience ``t``, ``[n_new, n_new]``."""
        return self._block(t, self._labels, self._labels).round()

    def mean(self, t: int) -> Tensor:
        """Mean feature of experience ``t``, ``[D]``; a ValueError if it has no images."""
        count = self.count(t)
        if count == 0:
            raise ValueError(f"Experience {t} has no images, so it has no mean and no covariance.")
        return self.feature_sum(t) / count

    def covariance(self, t: int) -> Tensor:
        """Covariance of the features of experience ``t``, divided by n, ``[D, D]``."""
        mean = self.mean(t)
        covariance = (self.gram(t) / self.count(t)).addr_(mean, mean, alpha=-1)
        return (covariance + covariance.T) / 2

    def state_dict(self) -> dict[str, Tensor]:
        """All sums as tensors; within an experience also the last rows (see `MomentSums`)."""
        state = {"block_sizes": torch.tensor(self._sizes, dtype=torch.long)}
        for t, sums in enumerate(self._sums):
            state |= sums.state_dict(f"{t}.")
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`; a ValueError if an entry belongs to no experience."""
        sizes = state["block_sizes"].tolist() if "block_sizes" in state else []
        known = {"block_sizes", *map(str, range(len(sizes)))}
        unknown = [name for name in state if name.partition(".")[0] not in known]
        if unknown:
            raise ValueError(
                f"The state of feature statistics of {len(sizes)} experiences has an entry {unknown[0]!r}: "
                'it is damaged or of another version, or of statistics="compact".'
            )
        self._sizes, self._sums = sizes, [MomentSums(size) for size in sizes]
        self._changed = set()
        for t, sums in enumerate(self._sums):
            sums.load_state_dict(state, f"{t}.")

    @property
    def _features(self) -> slice:
        """Rows and columns of `moments` that belong to features; those of labels follow."""
        if self.width is None:
            raise ValueError("The statistics have no images yet: call update(features, targets_new) first.")
        return slice(1, 1 + self.width)

    @property
    def _labels(self) -> slice:
        return slice(self._features.stop, None)

    def _block(self, t: int, rows: slice, columns: slice) -> Tensor:
        """A block of `moments`, found without the rest where there is a factor."""
        factor = self.factor(t)
        if factor is None:
            return self.moments(t)[rows, columns]
        return factor[:, rows].T @ factor[:, columns]

    def _total_of_sums(self) -> Tensor | None:
        """`total`; None if there are no images."""
        total: Tensor | None = None
        factors = []
        for sums in self._sums:
            if sums.factor is not None:
                factors.append(sums.factor)
                continue
            part = sums.total()
            if part is not None:
                part = part[: self._features.stop, : self._features.stop]
                total = part.clone() if total is None else total.add_(part.to(total.device))
        return add_moments(total, self._total_of_factors(factors)) if factors else total

    def _total_of_factors(self, factors: list[Tensor]) -> Tensor:
        """Σ RᵀR over factors, in their order; do not write to it. Those that were added before are kept."""
        known = self._added_factors
        is_longer = len(known) <= len(factors)
        if not known or not is_longer or any(a is not b for a, b in zip(known, factors, strict=False)):
            known = []
            self._factor_total = factors[0].new_zeros(self._features.stop, self._features.stop)
        for factor in factors[len(known) :]:
            rows = factor[:, : self._features.stop].to(self._factor_total.device)
            self._factor_total.addmm_(rows.T, rows)
        self._added_factors = list(factors)
        return self._factor_total

    def _index(self, t: int | None) -> int:
        self._check_open()
        if t is None:
            return self.n_experiences - 1
        if not -self.n_experiences <= t < self.n_experiences:
            raise IndexError(f"There is no experience {t}: there are {self.n_experiences}.")
        return t % self.n_experiences

    def _labelled_rows(self, features: Tensor, targets: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Copies of the rows with own labels, after all checks."""
        check_shape("features", features, ("images", self.width or "features"))
        self._check_targets(targets, len(features), t)
        labelled = ~targets.isnan().all(dim=1)  # [B]
        wrong = (targets != 0) & (targets != 1) & labelled[:, None]
        if bool(wrong.any() | ~can_be_squared(features).all()):  # one device synchronization per batch
            check_features(features, self.width)
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"The target of row {row}, column {column} is {targets[row, column].item()}: the own columns "
                "of an image must be 0 or 1, or all NaN."
            )
        return features.detach()[labelled], targets.detach()[labelled]

    def _without(self, removed: MomentSums, t: int) -> Tensor | None:
        """Sums over the remaining images; a ValueError if a count or a variance would fall below 0."""
        total, taken = self._sums[t].total(), removed.total()
        if taken is None or taken[0, 0] == 0:
            return total
        if total is None:
            raise ValueError(f"Experience {t} has no images, so none can be removed.")
        remaining = total - taken.to(total.device)
        _check_remaining(remaining, ROUNDING * total.diagonal()[self._features], t)
        return remaining if remaining[0, 0] > 0 else torch.zeros_like(remaining)  # no rounding errors remain

    def _check_alike(self, other: FeatureStatistics) -> None:
        if type(other) is not type(self):
            raise ValueError(f"Exact statistics cannot be combined with {type(other).__name__}.")
        widths = {self.width, other.width} - {None}
        if self.block_sizes != other.block_sizes or len(widths) > 1:
            raise ValueError(
                f"Statistics of {self.block_sizes} classes per experience and {self.width} features cannot "
                f"be combined with those of {other.block_sizes} and {other.width}."
            )


def _check_remaining(remaining: Tensor, tolerance: Tensor, t: int) -> None:
    """Raise a ValueError if a count or a variance is below 0; ``tolerance`` is that of each Σf², ``[D]``."""
    n, sums, positives = remaining[0].tensor_split([1, 1 + len(tolerance)])
    squares = remaining.diagonal()[1 : 1 + len(tolerance)]
    wrong_classes = ((positives < 0) | (positives > n)).nonzero().flatten().tolist()
    # n·Σf² − (Σf)² must not be negative; without images Σf² must vanish too.
    negative = n * squares - sums**2 < -tolerance * n.clamp(min=1)
    negative |= (n == 0) & (squares.abs() > tolerance)
    if n < 0:
        problem = f"{n.item():.0f} images"
    elif wrong_classes:
        c = wrong_classes[0]
        problem = f"{positives[c]:.0f} positives of its class {c} on {n.item():.0f} images"
    elif bool(negative.any()):
        problem = f"a variance below 0 in feature {int(negative.nonzero()[0])}"
    else:
        return
    raise ValueError(
        f"Experience {t} would have {problem}: more or other images are removed than were added."
    )
