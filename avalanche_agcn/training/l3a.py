"""L3A: analytic classifiers from weighted sums of random features, with pseudo-labels.

=========  ===================================================  ===========================
symbol     meaning                                              here
=========  ===================================================  ===========================
z          random features of an image, [D]                     ``features``
n_c        images with a true label of class c, so far          ``counts``
w_c        weight of class c, K n_c^-½ / Σ_j n_j^-½             `class_weights`
ω          weight of an image: mean w_c of its labels           `sample_weights`
A          Σ ω z zᵀ over all experiences, [D, D]                ``gram``
C          Σ ω z yᵀ, [D, K]                                     ``cross``
W          classifiers, (A + γI)⁻¹ C                            `solve_classifiers`
=========  ===================================================  ===========================
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from avalanche_agcn.checks import check_range
from avalanche_agcn.training.moment_sums import MomentSums

RIDGE = 1000.0  # γ of L3A's program
THRESHOLD = 0.7  # an old class is a pseudo-label where sigmoid(z·w) is above; L3A's program


def class_weights(counts: Tensor) -> Tensor:
    """w_c = K n_c^-½ / Σ_j n_j^-½ over the K classes with images: rare classes weigh more, the mean is 1.

    Args:
        counts: n_c, ``[n_classes]``. A class without images has weight 0.

    Example:
        >>> class_weights(torch.tensor([4.0, 0.0, 1.0]))
        tensor([0.6667, 0.0000, 1.3333])
    """
    present = counts > 0
    roots = counts.clamp(min=1).rsqrt().where(present, 0.0)
    return roots * present.sum() / roots.sum().clamp(min=torch.finfo(roots.dtype).tiny)


def sample_weights(labels: Tensor, weights: Tensor) -> Tensor:
    """ω of each image: the mean weight of its labels, 1 for an image without labels.

    Args:
        labels: 0 or 1, pseudo-labels included, ``[B, n_classes]``.
        weights: w_c, ``[n_classes]``.

    Example:
        >>> sample_weights(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([0.5, 1.5]))
        tensor([1., 1.])
    """
    n_labels = labels.sum(dim=1)
    return torch.where(n_labels > 0, labels @ weights / n_labels.clamp(min=1), 1.0)


def solve_classifiers(gram: Tensor, cross: Tensor, ridge: float = RIDGE) -> Tensor:
    """W = (A + γI)⁻¹ C, ``[D, n_classes]``, from A ``[D, D]`` and C ``[D, n_classes]``."""
    damped = gram.clone()
    damped.diagonal().add_(ridge)
    return torch.cholesky_solve(cross, torch.linalg.cholesky(damped))


class L3AStatistics:
    """The weighted sums of L3A, in float64.

    Images of an experience are labelled for its own classes; of old classes they get pseudo-labels, where the
    classifiers solved from the earlier experiences find them. Images of earlier experiences keep their
    weights, and zeros for later classes.

    An experience's label counts are given when it begins, so that all its images are weighted alike: their
    order, split into batches and division over processes do not matter then.

    Args:
        ridge: γ, above 0.
        threshold: probability above which a pseudo-label is given, between 0 and 1.

    Example:
        >>> statistics = L3AStatistics(ridge=1.0)
        >>> statistics.begin(torch.tensor([1]))
        >>> statistics.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0], [0.0]]))
        >>> statistics.solve().T
        tensor([[0.5000, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, *, ridge: float = RIDGE, threshold: float = THRESHOLD) -> None:
        check_range("ridge", ridge, above=0)
        check_range("threshold", threshold, above=0, below=1)
        self.ridge, self.threshold = ridge, threshold
        self.counts = torch.zeros(0, dtype=torch.float64)
        self._sizes: list[int] = []
        self._closed: tuple[Tensor, Tensor] | None = None  # A and C of earlier experiences
        self._open = MomentSums(0, target_products=False)  # of √ω z and √ω y
        self._old_classifiers: Tensor | None = None  # [D, n_old], solved when they are first needed

    @property
    def n_seen(self) -> int:
        """Number of classes of all experiences."""
        return sum(self._sizes)

    @property
    def n_old(self) -> int:
        """Number of classes of earlier experiences."""
        return sum(self._sizes[:-1])

    def begin(self, counts_new: Tensor) -> None:
        """Open an experience, of which ``counts_new`` images show each of its classes, ``[n_new]``."""
        self._closed = self._sums()
        self.counts = torch.cat([self.counts, counts_new.detach().double().to(self.counts.device)])
        self._sizes.append(len(counts_new))
        self.restart()
        self._old_classifiers = None

    def restart(self) -> None:
        """Discard the images of the open experience."""
        self._open = MomentSums(self.n_seen, target_products=False)

    def update(self, features: Tensor, targets_new: Tensor) -> None:
        """Add images; those whose own labels are unknown (NaN) are left out.

        Args:
            features: z, ``[B, D]``.
            targets_new: 0 or 1 for the classes of the open experience, ``[B, n_new]``.
        """
        self._check(features, targets_new)
        labelled = ~targets_new.isnan().any(dim=1)
        z = features.detach()[labelled].double()
        y = torch.cat([self.pseudo_labels(z), targets_new[labelled].double()], dim=1)
        self.counts = self.counts.to(z.device)
        root = sample_weights(y, class_weights(self.counts)).sqrt()[:, None]
        self._open.add(root * z, root * y)

    def pseudo_labels(self, features: Tensor) -> Tensor:
        """1 where an old class is found on an image, ``[B, n_old]``."""
        if self._closed is None:
            return features.new_zeros(len(features), self.n_old, dtype=torch.float64)
        if self._old_classifiers is None:
            self._old_classifiers = solve_classifiers(*self._closed, self.ridge)
        scores = features.double() @ self._old_classifiers.to(features.device)
        return (scores > math.log(self.threshold / (1 - self.threshold))).double()

    def solve(self) -> Tensor:
        """Classifiers of all classes so far, ``[D, n_seen]``; a ValueError if there are no images yet."""
        sums = self._sums()
        if sums is None:
            raise ValueError("There are no images yet: call update(features, targets_new) first.")
        return solve_classifiers(*sums, self.ridge)

    def flush(self) -> None:
        """Add waiting rows to the sums."""
        self._open.total()

    def synchronize(self) -> None:
        """Add up the open experience over all processes: a collective call, to be made by each of them."""
        self._open.synchronize()

    def state_dict(self) -> dict[str, Tensor]:
        """All sums as tensors, not copied."""
        state = {"sizes": torch.tensor(self._sizes, dtype=torch.long), "counts": self.counts}
        if self._closed is not None:
            state |= {"gram": self._closed[0], "cross": self._closed[1]}
        return state | {f"open.{name}": tensor for name, tensor in self._open.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._sizes, self.counts = state["sizes"].tolist(), state["counts"].clone()
        closed = (state["gram"].clone(), state["cross"].clone()) if "gram" in state else None
        self._closed, self._old_classifiers = closed, None
        self._open = MomentSums(self.n_seen, target_products=False)
        parts = {name.removeprefix("open."): t for name, t in state.items() if name.startswith("open.")}
        self._open.load_state_dict(parts)

    def _sums(self) -> tuple[Tensor, Tensor] | None:
        """A and C over all images, C with a column for every class seen."""
        total, width = self._open.total(), self._open.width
        if total is None or width is None:
            return None if self._closed is None else (self._closed[0], self._padded(self._closed[1]))
        gram, cross = total[1:, 1 : 1 + width], total[1:, 1 + width :]
        if self._closed is None:
            return gram.clone(), cross.clone()
        return gram + self._closed[0].to(gram.device), cross + self._padded(self._closed[1]).to(cross.device)

    def _padded(self, cross: Tensor) -> Tensor:
        """Old images count as negatives of later classes."""
        return torch.nn.functional.pad(cross, (0, self.n_seen - cross.shape[1]))

    def _check(self, features: Tensor, targets: Tensor) -> None:
        if not self._sizes:
            raise RuntimeError("No experience is open: call begin(counts_new) before update(...).")
        if features.ndim != 2 or targets.shape != (len(features), self._sizes[-1]):
            raise ValueError(
                f"targets_new must be {(len(features), self._sizes[-1])}, one column per class of the open "
                f"experience, but features are {tuple(features.shape)} and targets {tuple(targets.shape)}."
            )
        if not features.isfinite().all():
            raise ValueError(
                "A feature is NaN or infinite: the network diverged, or its input is not finite."
            )
