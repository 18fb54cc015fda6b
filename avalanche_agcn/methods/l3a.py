"""L3A: analytic classifiers from weighted sums of random features, with pseudo-labels.

With z the random features of an image, y its labels and ω its weight, the classifiers are (A + γI)⁻¹ C, where
A = Σ ω z zᵀ and C = Σ ω z yᵀ run over all images so far.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen, origin_of
from avalanche_agcn.checks import check_range
from avalanche_agcn.training.closed_form import ClosedForm
from avalanche_agcn.training.statistics.collector import FeatureCollector
from avalanche_agcn.training.statistics.counter import Fingerprint
from avalanche_agcn.training.statistics.sums import (
    ClassBlocks,
    MomentSums,
    add_moments,
    check_features,
    solve_regularised,
)
from avalanche_agcn.training.template import Plugins

RIDGE = 1000.0  # γ of L3A's program
THRESHOLD = 0.7  # of sigmoid(z·w) above which an old class is a pseudo-label; L3A's program
L3A_DECISION = 0.1  # L3A's program predicts a class where sigmoid(z·w) is above 0.525: z·w above 0.1


class L3A(ClosedForm):
    """The published closed-form method: ridge regression with class weights and pseudo-labels.

    Training only adds to sums (`L3AStatistics`); the network is frozen. Differences from the authors'
    program: sums are in float64 and over all processes, images without labels weigh 1, and the network is not
    trained on the first experience beforehand; to do so, train another strategy on it and pass its backbone.

    A logit is z·w − 0.1, so that the decision p ≥ 0.5 is the published one. z·w is near 0 for negatives and 1
    for positives: its sigmoid ranks images, but as a probability it is far too close to 0.5.

    The model of the published method is ``MultiLabelClassifier(RandomFeatures(backbone), n_classes)``. Logits
    are shifted by ``decision``, the z·w at which a class is predicted; for the others see `L3AStatistics`.
    """

    def __init__(
        self,
        *,
        ridge: float = RIDGE,
        threshold: float = THRESHOLD,
        decision: float = L3A_DECISION,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        self.decision = decision
        self.collector = L3APlugin(ridge=ridge, threshold=threshold)
        super().__init__(plugins=[self.collector, *(plugins or [])], **base_kwargs)

    def _solution(self) -> tuple[Tensor, Tensor]:
        weight = self.collector.statistics.solve().T
        return weight, weight.new_full((len(weight),), -self.decision)


class L3APlugin(FeatureCollector):
    """Adds features and labels to `L3AStatistics`, which has the same arguments."""

    def __init__(self, *, ridge: float = RIDGE, threshold: float = THRESHOLD) -> None:
        super().__init__()
        self.statistics = L3AStatistics(ridge=ridge, threshold=threshold)

    def _open(self, experience: Any, n_old: int) -> None:
        self.statistics.begin(_count_labels(experience, slice(n_old, count_seen(experience))))

    def _are_counted(self, experience: Any, images: Fingerprint) -> bool:
        if not super()._are_counted(experience, images):
            return False
        counts = self.statistics.counts[self.columns]
        is_open = self.columns.stop == self.statistics.n_seen
        known = is_open and torch.equal(counts, _count_labels(experience, self.columns).to(counts))
        is_piece = origin_of(experience) is not experience
        if not known or not (is_piece or self.resumed):
            raise ValueError(
                f"L3A weighs the images of experience {origin_of(experience).current_experience} by its "
                "label counts, so no others can be added to it: put all of its images into one dataset, or "
                "use StreamingRidge."
            )
        return True

    def state_dict(self) -> dict[str, Any]:
        """The sums; see `L3AStatistics`."""
        counted = torch.tensor(self._counted, dtype=torch.long).reshape(-1, 2)
        return super().state_dict() | {"counted": counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums."""
        super().load_state_dict(state)
        self._counted = [(first, second) for first, second in state["counted"].tolist()]


def _count_labels(experience: Any, columns: slice) -> Tensor:
    """Number of positives of some classes, also of the pieces that are still to come."""
    targets = origin_of(experience).dataset.targets[:]
    return (targets[:, columns] == 1).sum(0)


class L3AStatistics(ClassBlocks):
    """The weighted sums of L3A, in float64.

    Images of an experience are labelled for its own classes; for old classes they get pseudo-labels from the
    classifiers of the earlier experiences. Images of earlier experiences keep their weights, and count as
    negatives of later classes.

    An experience's label counts are passed when it begins, so that all its images are weighted alike: the
    result does not depend on their order, their batches or the number of processes.

    ``ridge`` is γ, above 0; ``threshold`` the probability above which an old class becomes a pseudo-label.
    """

    def __init__(self, *, ridge: float = RIDGE, threshold: float = THRESHOLD) -> None:
        check_range("ridge", ridge, above=0)
        check_range("threshold", threshold, above=0, below=1)
        super().__init__()
        self.ridge, self.threshold = ridge, threshold
        self.counts = torch.zeros(0, dtype=torch.float64)  # n_c, images with a true label of each class
        self._earlier_sums: Tensor | None = None  # A and C of earlier experiences, side by side
        self._open_sums = MomentSums(0, target_products=False)  # √ω z and √ω y of the open experience
        self._old_classifiers: Tensor | None = None  # [D, n_old], solved when first needed

    def begin(self, counts_new: Tensor) -> None:
        """Open an experience whose new classes have ``counts_new`` images each, ``[n_new]``."""
        self._earlier_sums = self._sums()
        self.counts = torch.cat([self.counts, counts_new.detach().double().to(self.counts.device)])
        self._sizes.append(len(counts_new))
        self.restart()
        self._old_classifiers = None

    def restart(self) -> None:
        """Discard the images of the open experience."""
        self._open_sums = MomentSums(self.n_seen, target_products=False)

    def copy_block(self, block: int) -> MomentSums:
        """Copy of the sums of the open experience."""
        return copy.deepcopy(self._open_sums)

    def restore_block(self, block: int, copied: MomentSums) -> None:
        """Make the sums of the open experience what they were when they were copied."""
        self._open_sums = copy.deepcopy(copied)

    def update(self, features: Tensor, targets_new: Tensor) -> None:
        """Add images, ``[B, D]`` and ``[B, n_new]``; those with unknown own labels (NaN) are skipped."""
        check_features(features, None)
        self._check_targets(targets_new, len(features))
        labelled = ~targets_new.isnan().any(dim=1)
        z = features.detach()[labelled].double()
        y = torch.cat([self._pseudo_labels(z), targets_new[labelled].double()], dim=1)
        self.counts = self.counts.to(z.device)
        root = sample_weights(y, class_weights(self.counts)).sqrt()[:, None]
        self._open_sums.add(root * z, root * y)

    def _pseudo_labels(self, features: Tensor) -> Tensor:
        """Predicted labels of the old classes, 0 or 1, ``[B, n_old]``."""
        if self._earlier_sums is None:
            return features.new_zeros(len(features), self.n_old)
        if self._old_classifiers is None:
            self._old_classifiers = solve_classifiers(self._earlier_sums, self.ridge)
        scores = features @ self._old_classifiers.to(features.device)
        return (scores > math.log(self.threshold / (1 - self.threshold))).double()

    def solve(self) -> Tensor:
        """Classifiers of all classes so far, ``[D, n_seen]``; a ValueError if there are no images yet."""
        sums = self._sums()
        if sums is None:
            raise ValueError("There are no images yet: call update(features, targets_new) first.")
        return solve_classifiers(sums, self.ridge)

    def flush(self) -> None:
        """Add waiting rows to the sums."""
        self._open_sums.total()

    def synchronize(self) -> None:
        """Collective: add up the open experience over all processes."""
        self._open_sums.synchronize()

    def state_dict(self) -> dict[str, Tensor]:
        """All sums as tensors."""
        state = {"sizes": torch.tensor(self._sizes, dtype=torch.long), "counts": self.counts}
        if self._earlier_sums is not None:
            n_features = len(self._earlier_sums)
            state["gram"] = self._earlier_sums[:, :n_features].clone()  # A
            state["cross"] = self._earlier_sums[:, n_features:].clone()  # C
        state.update(self._open_sums.state_dict("open."))
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`."""
        self._sizes = state["sizes"].tolist()
        self.counts = state["counts"].clone()
        self._earlier_sums = None
        self._old_classifiers = None
        if "gram" in state:
            self._earlier_sums = torch.cat([state["gram"], state["cross"]], dim=1)
        self.restart()
        self._open_sums.load_state_dict(state, "open.")

    def _sums(self) -> Tensor | None:
        """A and C over all images, C with a column for every class seen."""
        total, closed = self._open_sums.total(), self._earlier_sums
        if closed is not None:  # old images are negatives of later classes
            closed = torch.nn.functional.pad(closed, (0, len(closed) + self.n_seen - closed.shape[1]))
        return add_moments(None if total is None else total[1:, 1:], closed)


def class_weights(counts: Tensor) -> Tensor:
    """K n_c^-½ / Σ_j n_j^-½ over the K classes with images, ``[n_classes]``: rare classes weigh more."""
    present = counts > 0
    roots = counts.clamp(min=1).rsqrt().where(present, 0.0)
    return roots * present.sum() / roots.sum().clamp(min=torch.finfo(roots.dtype).tiny)


def sample_weights(labels: Tensor, weights: Tensor) -> Tensor:
    """ω ``[B]``: mean class weight of labels and pseudo-labels, ``[B, n_classes]``; 1 without labels."""
    n_labels = labels.sum(dim=1)
    return torch.where(n_labels > 0, labels @ weights / n_labels.clamp(min=1), 1.0)


def solve_classifiers(sums: Tensor, ridge: float) -> Tensor:
    """W = (A + γI)⁻¹ C, ``[D, n_classes]``, from A and C side by side, ``[D, D + n_classes]``."""
    return solve_regularised(sums[:, : len(sums)], sums[:, len(sums) :], ridge)[0]
