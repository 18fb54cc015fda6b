"""StreamingRidge: classifiers in closed form from sums of features, without a backward pass."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.core import BasePlugin
from torch import Tensor
from torch.utils.data import DataLoader

from avalanche_agcn.checks import check_range
from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.label_relations import estimate_relations, make_refinement
from avalanche_agcn.training.plugins.drift import DecoupledTrainingPlugin
from avalanche_agcn.training.plugins.statistics import FeatureStatisticsPlugin
from avalanche_agcn.training.provenance import Provenance, digest_module, is_random
from avalanche_agcn.training.ridge import check_ridge, solve_ridge
from avalanche_agcn.training.strategies.closed_form import ClosedForm

GAMMA = 0.3  # chosen on held-out train photos of coco18; 0.2 to 0.3 are equally good
REFINE = 0.2  # chosen likewise: +0.3 mAP on held-out photos, in each of three splits


class StreamingRidge(ClosedForm):
    """Ridge regression on features, from sums that are updated batch by batch.

    Training only adds to the sums. The classifiers of all experiences are solved together when `train` ends
    or evaluation begins (`solve_ridge`): each experience's own images count fully, those of all others with
    weight γ as negatives. The result does not depend on the order of the images, their split into batches or
    the number of processes. The sums can be merged (`merge`) and images removed from them (`forget`).

    The network is frozen unless a `DecoupledTrainingPlugin` trains it; a `DriftCompensationPlugin` then keeps
    the sums valid, and an ``optimizer`` is needed.

    Args:
        gamma: γ, weight of the images of other experiences, 0 to 1.
        ridge: λ; chosen per experience by generalised cross-validation if None.
        refine: β, weight of label relations in the scores; None leaves them out.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `ClosedForm`, and `MultiLabelTemplate`.

    Raises:
        ValueError: if ``gamma``, ``ridge`` or ``refine`` is out of range, or the optimizer is missing.
        TypeError: if the model is not a `MultiLabelClassifier`.
    """

    def __init__(
        self,
        *,
        gamma: float = GAMMA,
        ridge: float | None = None,
        refine: float | None = REFINE,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        check_ridge(gamma, ridge)
        check_range("refine", refine, above=0)
        self.gamma, self.ridge, self.refine = gamma, ridge, refine
        self.collector = FeatureStatisticsPlugin()
        plugins = [self.collector, *(plugins or [])]
        self.trains_network = any(isinstance(plugin, DecoupledTrainingPlugin) for plugin in plugins)
        super().__init__(plugins=plugins, **base_kwargs)

    @property
    def statistics(self) -> FeatureStatistics:
        """The sums that the classifiers are solved from."""
        return self.collector.statistics

    @property
    def provenance(self) -> Provenance | None:
        """Network, transform and classes behind the sums; None before training."""
        return self.collector.provenance

    def _set_solution(self) -> None:
        solution = solve_ridge(self.statistics, gamma=self.gamma, ridge=self.ridge)
        refinement = None
        if self.refine is not None:
            relations = estimate_relations(self.statistics, solution)
            refinement = make_refinement(solution, relations, self.refine)
        unwrap(self.model).set_classifiers(*solution.calibrated(), refinement)

    def merge(self, other: "StreamingRidge") -> None:
        """Add the images that another strategy was trained on: the result is that of training on all of them.

        Raises:
            ValueError: if the two differ in network, transform, classes or precision, or either was trained
                with random augmentation or a network that is not frozen.
        """
        self._check_exact("merge")
        other._check_exact("merge")
        assert self.provenance is not None
        assert other.provenance is not None
        self.provenance.check_same(other.provenance)
        self.statistics.merge(other.statistics)
        self.solve()

    def forget(self, dataset: AvalancheDataset) -> None:
        """Remove images that were trained on: the result is that of never having seen them.

        Args:
            dataset: images and targets as they were in the train stream; the experience of an image follows
                from the columns that it is annotated for.

        Raises:
            ValueError: if the dataset has random augmentation, the network was trained, features are in half
                precision, the targets do not tell an image's experience (``unlabelled_as_negative``), or the
                images cannot be those that were trained on. Nothing is removed then.
        """
        self._check_exact("forget")
        if self.amp is not None:
            raise ValueError(
                f"Features in {self.amp} depend on the batch that they were computed in, so forget would not "
                "be exact: train with amp=None."
            )
        if is_random(dataset):
            raise ValueError(
                "The dataset has random augmentation, so its features cannot be removed exactly."
            )
        removed = FeatureStatistics()
        for size in self.statistics.block_sizes:
            removed.begin(size)
        for features, targets in self._features(dataset):
            _check_one_experience(targets, removed)
            for t in range(removed.n_experiences):
                removed.update(features, targets[:, removed.columns(t)], experience=t)
        self.statistics.subtract(removed)
        self.solve()

    def _features(self, dataset: AvalancheDataset) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and targets of a dataset, batch by batch."""
        model = unwrap(self.model)
        loader = DataLoader(dataset, batch_size=self.eval_mb_size, collate_fn=dataset.collate_fn)
        with torch.no_grad(), evaluation_mode(model):
            for images, targets, *_ in loader:
                yield model.features(images.to(self.device)), targets.to(self.device)

    def _check_exact(self, operation: str) -> None:
        """Check that the sums are of features that can be computed again."""
        if self.provenance is None:
            raise ValueError(f"Nothing was trained on yet, so there is nothing to {operation}.")
        if self.trains_network or digest_module(unwrap(self.model).backbone) != self.provenance.network:
            raise ValueError(
                f"The network was trained, so {operation} would not be exact: it needs a frozen one."
            )
        if self.provenance.random:
            raise ValueError(
                f"The training images had random augmentation, so {operation} would not be exact: make the "
                "benchmark with a train_transform that draws no random numbers."
            )


def _check_one_experience(targets: Tensor, statistics: FeatureStatistics) -> None:
    experiences = [statistics.columns(t) for t in range(statistics.n_experiences)]
    labelled = torch.stack([~targets[:, own].isnan().all(dim=1) for own in experiences], dim=1)
    if bool((labelled.sum(dim=1) > 1).any()):
        raise ValueError(
            "The targets have labels of several experiences, so they do not tell which one an image was "
            "trained in: give those of a benchmark with unlabelled_as_negative=False."
        )
