"""StreamingRidge: classifiers in closed form from sums of features, which can be merged and subtracted."""

from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset
from torch import Tensor

from avalanche_agcn.checks import check_range
from avalanche_agcn.evaluation.calibration import LogitMoments
from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.training.closed_form import ClosedForm
from avalanche_agcn.training.loader import load_batches
from avalanche_agcn.training.statistics.collector import FeatureStatisticsPlugin
from avalanche_agcn.training.statistics.compact import REJECTED, CompactStatistics, StatisticsKind
from avalanche_agcn.training.statistics.drift import DecoupledTrainingPlugin
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.provenance import (
    Provenance,
    digest_inputs,
    digest_module,
    is_random,
)
from avalanche_agcn.training.statistics.ridge import (
    RidgeClassifiers,
    check_ridge,
    estimate_relations,
    logit_moments,
    make_refinement,
    solve_ridge,
)
from avalanche_agcn.training.template import Plugins

GAMMA = 0.3  # chosen on held-out train photos of coco18; 0.2 to 0.3 are equally good
REFINE = 0.2  # chosen likewise: +0.3 mAP on held-out photos, in each of three splits


class StreamingRidge(ClosedForm):
    """Ridge regression on features, from sums that are updated batch by batch.

    Training only adds to the sums. The classifiers of all experiences are solved together (`solve_ridge`):
    each experience's own images count fully, those of all others with weight γ as negatives. The result does
    not depend on the order of the images, their split into batches or the number of processes. The sums can
    be merged (`merge`) and images removed from them (`forget`).

    The network is frozen unless a `DecoupledTrainingPlugin` trains it; a `DriftCompensationPlugin` then keeps
    the sums valid, and an ``optimizer`` is needed.

    For ``gamma`` and ``ridge`` see `solve_ridge`; ``refine`` is β, the weight of label relations in the
    scores, which do not count if it is None. With ``statistics="compact"`` the sums take about a tenth of the
    bytes (`CompactStatistics`), and neither `merge` nor `forget` is possible.
    """

    def __init__(
        self,
        *,
        gamma: float = GAMMA,
        ridge: float | None = None,
        refine: float | None = REFINE,
        statistics: StatisticsKind = "exact",
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        check_ridge(gamma, ridge)
        check_range("refine", refine, above=0)
        self.gamma, self.ridge, self.refine = gamma, ridge, refine
        self.classifiers: RidgeClassifiers | None = None  # the last solution
        self.collector = FeatureStatisticsPlugin(statistics=statistics)
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

    def _solution(self) -> tuple[Any, ...]:
        solution = solve_ridge(self.statistics, gamma=self.gamma, ridge=self.ridge)
        self.classifiers = solution
        if self.refine is None:
            return solution.calibrated()
        relations = estimate_relations(self.statistics, solution)
        return *solution.calibrated(), make_refinement(solution, relations, self.refine)

    def logit_moments(self) -> LogitMoments:
        """Moments of the logits over the images in the sums (see `ridge.logit_moments`), for thresholds."""
        if self.classifiers is None or not self._solved:
            self.solve()
        assert self.classifiers is not None
        return logit_moments(self.statistics, self.classifiers, self.gamma)

    def merge(self, other: "StreamingRidge") -> None:
        """Add the images that another strategy was trained on, as if this one had been trained on them too.

        Raises:
            ValueError: if the two differ in network, transform, classes or precision, either was trained
                with random augmentation or a network that is not frozen, or both on the same images.
        """
        mine, theirs = self._exact_provenance("merge"), other._exact_provenance("merge")
        name = mine.find_difference(theirs)
        if name is not None:
            raise ValueError(
                f"The two were trained with different {name}: {getattr(mine, name)} and "
                f"{getattr(theirs, name)}. Sums can only be merged if features and classes mean the same."
            )
        self.collector.merge(other.collector)
        self.solve()

    def forget(self, dataset: AvalancheDataset) -> None:
        """Remove images that were trained on, as if they had never been seen.

        Images and targets must be as they were in the train stream; the experience of an image follows from
        the columns that it is annotated for. An image that was in several experiences (``repeat_images``)
        must be given with each of them: ``concat_datasets`` joins datasets.

        Raises:
            ValueError: if the dataset has random augmentation or another transform, the network was trained,
                features are in half precision, the targets do not tell an image's experience
                (``unlabelled_as_negative``), the images cannot be those that were trained on, one of them
                is given twice or would remain in another experience, or none would remain. Nothing is
                removed then.
        """
        provenance = self._exact_provenance("forget")
        if self.amp is not None:
            raise ValueError(
                f"Features in {self.amp} depend on the batch that they were computed in, so forget would not "
                "be exact: train with amp=None."
            )
        if is_random(dataset):
            raise ValueError(
                "The dataset has random augmentation, so its features cannot be removed exactly: give one "
                "whose transform draws no random numbers."
            )
        transformed, features = digest_inputs(dataset)
        name = provenance.find_difference(provenance._replace(transformed=transformed, features=features))
        if name is not None:
            raise ValueError(
                f"The images are not transformed as they were in training (different {name}), so their "
                "features are not those in the sums: give a dataset of the train stream, not of its .eval()."
            )
        _check_no_image_twice(dataset)
        self._check_no_copy_remains(dataset)
        removed = FeatureStatistics()
        for size in self.statistics.block_sizes:
            removed.begin(size)
        model = unwrap(self.model)
        with torch.no_grad(), evaluation_mode(model):
            for images, targets in load_batches(self, dataset, batch_size=self.eval_mb_size):
                _check_one_experience(targets, removed)
                features = model.features(images)
                for t in range(removed.n_experiences):  # skips images that have no label of experience t
                    removed.update(features, targets[:, removed.columns(t)], experience=t)
        counts = [(removed.count(t), self.statistics.count(t)) for t in range(removed.n_experiences)]
        if all(n_removed == n_counted for n_removed, n_counted in counts):
            raise ValueError("No image would remain to solve classifiers from: make a new strategy instead.")
        self.collector.forget(removed, dataset)
        self.solve()

    def _check_no_copy_remains(self, dataset: AvalancheDataset) -> None:
        """Check that no image stays in the sums of another experience than those it is given with."""
        remaining = self.collector.remaining_places(dataset)
        if remaining:
            name, experiences = next(iter(remaining.items()))
            raise ValueError(
                f"{len(remaining)} of the images would remain in other experiences, such as {name!r} in "
                f"{experiences}: give them with their targets of all experiences that they were trained in, "
                "joined by avalanche.benchmarks.utils.concat_datasets."
            )

    def _exact_provenance(self, operation: str) -> Provenance:
        """The provenance of the sums; a ValueError if they or their features are not exact."""
        if isinstance(self.statistics, CompactStatistics):
            raise ValueError(REJECTED.format(operation))
        provenance = self.provenance
        if provenance is None:
            raise ValueError(f"Nothing was trained on yet, so there is nothing to {operation}.")
        if self.trains_network or digest_module(unwrap(self.model).backbone) != provenance.network:
            raise ValueError(f"The network was trained, so {operation} is not exact: it needs a frozen one.")
        if provenance.random:
            raise ValueError(
                f"The training images had random augmentation, so {operation} would not be exact: make the "
                "benchmark with a train_transform that draws no random numbers."
            )
        return provenance


def _check_no_image_twice(dataset: AvalancheDataset) -> None:
    """Check that no two rows of a dataset are the same image with the same labels."""
    first: dict[tuple[str, bytes], int] = {}
    codes = dataset.targets.codes.cpu().numpy()  # type: ignore[attr-defined]
    for row, name in enumerate(getattr(dataset, "image_names", [])):
        earlier = first.setdefault((name, codes[row].tobytes()), row)
        # Images of two benchmarks may have one name.
        if earlier != row and torch.equal(*(torch.as_tensor(dataset[k][0]) for k in (earlier, row))):
            raise ValueError(f"The image {name!r} is given twice, as rows {earlier} and {row}: give it once.")


def _check_one_experience(targets: Tensor, statistics: FeatureStatistics) -> None:
    experiences = [statistics.columns(t) for t in range(statistics.n_experiences)]
    labelled = torch.stack([~targets[:, own].isnan().all(dim=1) for own in experiences], dim=1)
    if bool((labelled.sum(dim=1) > 1).any()):
        raise ValueError(
            "The targets have labels of several experiences, so they do not tell which one an image was "
            "trained in: give those of a benchmark with unlabelled_as_negative=False."
        )
