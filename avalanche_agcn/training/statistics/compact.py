"""Feature statistics in a fraction of the bytes: the total, and the sums of each experience approximately.

The total over all experiences is kept. A finished experience t keeps n_t, Σf, Σf yᵀ and Σy yᵀ, and of its
scatter S_t around its mean the directions F_t in which it varies most, so many that the rest is a small share
of its variance. The total tells what all rests sum up to, and each experience gets its share of it:

    S_t ≈ F_tᵀF_t + ρ_t / Σ_s ρ_s · (Σ_s S_s − Σ_s F_sᵀF_s)

with ρ_t the variance of the rest. So the approximations add up to the total, as the sums themselves do.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from avalanche_agcn.checks import check_choice, check_range
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.sums import (
    MomentSums,
    add_moments,
    inverse_deviations,
    pack_triangle,
    unpack_triangle,
)

REST = 0.5
"""Share of the variance that an experience does not keep itself; docs/statistics.md has what others cost."""
TOTAL = "compact."
"""Prefix of the total's entries in a state; those of experiences begin with their number."""
REJECTED = (
    "Compact statistics know the sums of an experience only approximately, so {} is not exact: use "
    'statistics="exact".'
)
StatisticsKind = Literal["exact", "compact"]


def make_statistics(kind: StatisticsKind) -> FeatureStatistics:
    """Feature statistics that keep all sums, ``"exact"``, or `CompactStatistics`."""
    check_choice("statistics", kind, StatisticsKind)
    return CompactStatistics() if kind == "compact" else FeatureStatistics()


class Summary(NamedTuple):
    """What a finished experience keeps of its sums."""

    row: Tensor  # Σ [1, f, y], [1 + D + K], float64
    cross: Tensor  # Σ f yᵀ, [D, K], float32
    label_products: Tensor  # Σ y yᵀ, [K, K], float64
    factor: Tensor  # F, [r, D], float32
    rest: Tensor  # ρ, a scalar, float64

    @property
    def main_rows(self) -> Tensor:
        """Rows whose products are n μ μᵀ + FᵀF, ``[1 + r, D]``."""
        width = len(self.cross)
        root_mean = self.row[1 : 1 + width] / self.row[0].sqrt()  # √n μ
        return torch.cat([root_mean[None], self.factor.double()])

    def to(self, device: torch.device) -> "Summary":
        """The same on a device."""
        return Summary(*(tensor.to(device) for tensor in self))

    def map(self, A: Tensor, shift: Tensor) -> "Summary":
        """What is kept if each feature vector f becomes fA + shift."""
        width = len(self.cross)
        n, feature_sum, label_sum = self.row.tensor_split([1, 1 + width])
        row = torch.cat([n, feature_sum @ A + n * shift, label_sum])
        cross = A.T @ self.cross.double() + torch.outer(shift, label_sum)
        factor = self.factor.double() @ A  # a scatter does not depend on the shift
        return self._replace(row=row, cross=cross.float(), factor=factor.float())


class CompactStatistics(FeatureStatistics):
    """`FeatureStatistics` with about a tenth of the bytes, at a small cost in accuracy.

    The open experience is summed exactly until `flush`, which leaves of it what the module describes; few
    images (`MomentSums.condense`) stay exact. Images cannot be merged or removed.

    ``rest``, between 0 and 1, is the largest share of an experience's variance, in features standardised by
    the total, that it does not keep itself: the error of the approximation is at most this share.
    """

    def __init__(self, rest: float = REST) -> None:
        check_range("rest", rest, above=0, below=1)
        super().__init__()
        self._rest = rest
        # Of finished experiences, whose `_sums` have later images only.
        self._summaries: list[Summary | None] = []
        self._total: Tensor | None = None  # Σ [1, f]ᵀ [1, f] over the images of `_summaries`
        self._total_before: Tensor | None = None  # the total without the open experience
        self._rests: Tensor | None = None  # Σ_s S_s − Σ_s F_sᵀF_s, computed when it is needed

    @property
    def width(self) -> int | None:
        """Number of features D, None before the first image."""
        return super().width if self._total is None else len(self._total) - 1

    def update(self, features: Tensor, targets_new: Tensor, *, experience: int | None = None) -> None:
        """Add images, as of `FeatureStatistics`."""
        before = self._device
        super().update(features, targets_new, experience=experience)
        if self._device != before:
            self._move_kept()

    def begin(self, n_new: int) -> None:
        """Open an experience with ``n_new`` new classes."""
        super().begin(n_new)
        self._summaries.append(None)
        self._total_before = self._total

    def restart(self) -> None:
        """Discard the images of the open experience."""
        super().restart()
        self._summaries[-1] = None
        self._set_total(self._total_before)

    def copy_block(self, block: int) -> Any:
        """Copy of the sums of an experience, and of the total."""
        return super().copy_block(block), self._summaries[block], self._total

    def restore_block(self, block: int, copied: Any) -> None:
        """Make the sums of an experience, and the total, what they were when they were copied."""
        sums, self._summaries[block], total = copied
        super().restore_block(block, sums)
        self._set_total(total)
        self._move_kept()

    def flush(self) -> None:
        """Approximate the sums of all experiences with new images; call `synchronize` before."""
        super().flush()
        for t, sums in enumerate(self._sums):  # of the images that no summary has
            has_few_images = sums.factor is not None  # these stay exact
            if sums.count and not has_few_images:
                self._approximate(t)

    def count(self, t: int) -> int:
        """Number of images of experience ``t``."""
        summary = self._summaries[self._index(t)]
        return super().count(t) + (0 if summary is None else round(summary.row[0].item()))

    def moments(self, t: int) -> Tensor:
        """Sums of experience ``t`` as of `FeatureStatistics`, approximate once it is finished."""
        summary = self._summaries[self._index(t)]
        later = super().moments(t)
        if summary is None:
            return later
        rows = summary.main_rows
        rests = torch.stack([part.rest for part in self._summaries if part is not None])
        share = summary.rest / rests.sum().clamp(min=torch.finfo(rests.dtype).tiny)
        width = 1 + len(summary.cross)
        moments = later.clone()
        moments[1:width, 1:width] += (rows.T @ rows).add_(self._sum_of_rests(), alpha=share.item())
        moments[0] += summary.row
        moments[1:, 0] += summary.row[1:]
        moments[1:width, width:] += summary.cross
        moments[width:, 1:width] += summary.cross.T
        moments[width:, width:] += summary.label_products
        return moments

    def factor(self, t: int) -> Tensor | None:
        """As of `FeatureStatistics`: few images have one."""
        return super().factor(t) if self._summaries[self._index(t)] is None else None

    def merge(self, other: FeatureStatistics) -> None:
        """Not possible: a ValueError."""
        raise ValueError(REJECTED.format("merge"))

    def subtract(self, other: FeatureStatistics) -> None:
        """Not possible: a ValueError."""
        raise ValueError(REJECTED.format("subtract"))

    def remove(self, features: Tensor, targets_new: Tensor, *, experience: int | None = None) -> None:
        """Not possible: a ValueError."""
        raise ValueError(REJECTED.format("remove"))

    def map(self, A: Tensor, shift: Tensor, *, experiences: Iterable[int] | None = None) -> None:
        """Change all sums to those of features fA + shift: the total exactly, rests with their shares."""
        if experiences is not None:
            raise ValueError("Compact statistics share a total, so all experiences are mapped: pass none.")
        super().map(A, shift)
        if self._total is None:
            return
        A, shift = A.to(self._total), shift.to(self._total)
        self._summaries = [None if summary is None else summary.map(A, shift) for summary in self._summaries]
        B = torch.eye(len(self._total)).to(self._total)
        B[0, 1:] = shift
        B[1:, 1:] = A
        mapped = B.T @ self._total @ B
        self._set_total(_rounded((mapped + mapped.T) / 2))

    def state_dict(self) -> dict[str, Tensor]:
        """All sums as tensors, float32 where they are large."""
        state = super().state_dict()
        for t, kept in enumerate(self._summaries):
            if kept is None:
                continue
            for name, value in kept._asdict().items():
                state[f"{t}.own.{name}"] = value.clone()
        if self._total is not None:
            state[f"{TOTAL}row"] = self._total[0].clone()
            state[f"{TOTAL}diagonal"] = self._total.diagonal().clone()
            state[f"{TOTAL}scatter"] = pack_triangle(_scatter(self._total))
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`; also that of exact statistics, which `flush` approximates."""
        kept: dict[str, Tensor] = {}
        found: dict[int, dict[str, Tensor]] = {}
        total: dict[str, Tensor] = {}
        for name, value in state.items():
            number, _, field = name.partition(".own.")
            if name.startswith(TOTAL):
                total[name.removeprefix(TOTAL)] = value
            elif field:
                found.setdefault(int(number), {})[field] = value.clone()
            else:
                kept[name] = value
        super().load_state_dict(kept)
        self._summaries = [Summary(**found[t]) if t in found else None for t in range(self.n_experiences)]
        self._set_total(None)
        if "scatter" in total:
            scatter = unpack_triangle(total["scatter"])
            self._set_total(_from_scatter(scatter, total["row"], total["diagonal"]))
        elif total:  # of an earlier version
            whole = unpack_triangle(total["triangle"]).double()
            self._set_total(_with_border(whole, total["row"], total["diagonal"]))
        self._total_before = self._total
        self._move_kept()

    def _move_kept(self) -> None:
        """Move what finished experiences keep to the device of the last rows: a state is read on the CPU."""
        for t, summary in enumerate(self._summaries):
            if summary is not None:
                self._summaries[t] = summary.to(self._device)
        self._set_total(None if self._total is None else self._total.to(self._device))
        if self._total_before is not None:
            self._total_before = self._total_before.to(self._device)

    def _set_total(self, total: Tensor | None) -> None:
        self._total, self._rests = total, None

    def _sum_of_rests(self) -> Tensor:
        """What the scatters of finished experiences have beyond what each keeps itself, ``[D, D]``."""
        if self._rests is None:
            assert self._total is not None
            rows = torch.cat([summary.main_rows for summary in self._summaries if summary is not None])
            self._rests = torch.addmm(self._total[1:, 1:], rows.T, rows, alpha=-1)
        return self._rests

    def _approximate(self, t: int) -> None:
        """Replace the exact sums of an experience by a summary, and add its new images to the total."""
        moments = self.moments(t)  # with those of an earlier summary, if images came after it
        all_images = self.total()
        summary = _summarise(moments, inverse_deviations(all_images), self._rest)
        new_images = self._sums[t].total()  # images of an earlier summary are in the total already
        assert new_images is not None
        size = len(all_images)
        new_images = new_images[:size, :size]
        self._summaries[t] = summary
        self._set_total(_rounded(new_images if self._total is None else self._total + new_images))
        self._sums[t] = MomentSums(self._sizes[t])

    def _total_of_sums(self) -> Tensor | None:
        return add_moments(super()._total_of_sums(), self._total)


def _summarise(moments: Tensor, inverse_std: Tensor, largest_rest: float) -> Summary:
    """Keep the fewest directions without which at most this share of the standardised variance remains."""
    size = 1 + len(inverse_std)
    n = moments[0, 0]
    mean = moments[0, 1:size] / n
    scatter = moments[1:size, 1:size].addr(mean, mean, alpha=-n.item())
    scatter.mul_(inverse_std).mul_(inverse_std[:, None])  # of standardised features
    eigenvalues, vectors = torch.linalg.eigh(scatter)
    variances = eigenvalues.clamp(min=0).flip(0)  # the largest first
    rests = variances.sum() - variances.cumsum(0)  # with 1, 2, … directions
    rank = 1 + int((rests > largest_rest * variances.sum()).sum())
    directions = vectors.flip(1)[:, :rank] * variances[:rank].sqrt()
    deviations = torch.where(inverse_std > 0, 1 / inverse_std, 0.0)  # back in the units of the features
    return Summary(
        row=moments[0].clone(),
        cross=moments[1:size, size:].float(),
        label_products=moments[size:, size:].clone(),
        factor=(directions * deviations[:, None]).T.float().contiguous(),
        rest=rests[rank - 1].clamp(min=0),
    )


def _rounded(total: Tensor) -> Tensor:
    """Sums rounded as in `state_dict`: to float32 around the mean, except the first row and the diagonal.

    Variances are computed from these two, and need float64.
    """
    return _from_scatter(_scatter(total), total[0], total.diagonal())


def _scatter(total: Tensor) -> Tensor:
    """Σ (f − μ)ᵀ (f − μ) of a total, in float32: Σ fᵀf itself would lose the variance of a large mean."""
    return (total[1:, 1:] - _products_of_means(total[0])).float()


def _from_scatter(scatter: Tensor, row: Tensor, diagonal: Tensor) -> Tensor:
    """The total of `_scatter`, with its first row and its diagonal."""
    total = torch.nn.functional.pad(scatter.double() + _products_of_means(row), (1, 0, 1, 0))
    return _with_border(total, row, diagonal)


def _products_of_means(row: Tensor) -> Tensor:
    """The matrix n μ μᵀ, ``[D, D]``, exactly symmetric, from Σ [1, f]."""
    return torch.outer(row[1:], row[1:]) / row[0]


def _with_border(total: Tensor, row: Tensor, diagonal: Tensor) -> Tensor:
    """The matrix with another first row and column, and another diagonal."""
    changed = total.clone()
    changed[0] = row
    changed[:, 0] = row
    changed.diagonal().copy_(diagonal)
    return changed
