"""Methods that replay images from a memory: ER, PRS, OCDM and SCR."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_agcn.checks import check_choice, check_range
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.buffers import MEM_SIZE, OnlineBuffer, ReservoirBuffer
from avalanche_agcn.training.distributed import process_rank
from avalanche_agcn.training.losses import at_least_float32
from avalanche_agcn.training.memory import OnlineReplayPlugin
from avalanche_agcn.training.plugin import MultiLabelPlugin
from avalanche_agcn.training.template import MultiLabelTemplate, Plugins

StoragePolicy = Literal["er", "prs", "ocdm"]
RHO = -0.03  # of the PRS paper, for COCO; 0.02 for NUS-WIDE
DISTANCE_ROUNDING = 1e-9  # equal distances, sums of counts times shares, differ by less, others by more
DIVERGENCE_ROUNDING = 1e-12  # of a divergence in float64
SCR_BATCH_SIZE_MEM = 100  # of the SCR paper
CONTRAST_WEIGHT = 0.1  # ours, from the embedded benchmark: the criterion must keep its influence
TEMPERATURE = 0.07  # of supervised contrastive replay (Mai et al., 2021)
_SKIPPED = -1e9  # its exponential is 0, and unlike infinity it gives no NaN in a row without any pair


class Replay(MultiLabelTemplate):
    """Trains on the stream and on images from a memory that is updated after each step.

    `ER`, `PRS`, `OCDM` and `SCR` make their own memory, of ``mem_size`` images and with the ``seed`` of the
    stream (0 if None). For the other arguments see `OnlineReplayPlugin`.
    """

    def __init__(
        self,
        *,
        storage_policy: OnlineBuffer,
        batch_size_mem: int | None = None,
        newer_as_negative: bool = False,
        views: int = 1,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        self.replay = OnlineReplayPlugin(
            storage_policy, batch_size_mem=batch_size_mem, newer_as_negative=newer_as_negative, views=views
        )
        super().__init__(plugins=[*(plugins or []), self.replay], **base_kwargs)


class ER(Replay):
    """Experience replay (Chaudhry et al., 2019) from a reservoir: each image is equally likely to be kept."""

    def __init__(self, *, mem_size: int = MEM_SIZE, seed: int | None = None, **replay_kwargs: Any) -> None:
        memory = ReservoirBuffer(mem_size, seed=seed or 0)
        super().__init__(storage_policy=memory, seed=seed, **replay_kwargs)


class PRS(Replay):
    """Partitioning reservoir (Kim et al., 2020): class shares approach n_i^ρ, so rare classes are kept."""

    def __init__(
        self, *, mem_size: int = MEM_SIZE, rho: float = RHO, seed: int | None = None, **replay_kwargs: Any
    ) -> None:
        memory = PRSBuffer(mem_size, rho=rho, seed=seed or 0)
        super().__init__(storage_policy=memory, seed=seed, **replay_kwargs)


class PRSBuffer(OnlineBuffer):
    """A memory whose share of each class approaches its target (`target_shares`) on long-tailed streams.

    A new image is counted first, so that with a single class this is reservoir sampling: s = m/n. (The
    authors' code counts it after the decision, which differs by one image.) Ties between images to remove
    are broken at random; the authors' code takes the first in memory, which tends to be the newest of its
    class. An image without a label is not stored. A removal is one matrix operation on one class's images.

    ``rho`` is the power ρ: 0 aims at equal shares, 1 at those of the stream. ``max_size``, m, is 2,000 in the
    paper.
    """

    def __init__(self, max_size: int, *, rho: float = RHO, seed: int = 0) -> None:
        super().__init__(max_size, seed=seed)
        self.rho = rho

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        for key, row, draws in zip(keys, labels, self._uniform(len(keys), 3).tolist(), strict=True):
            self.class_counts += row
            if not row.any():
                continue
            if self._size < self.max_size:
                self._put(self._size, key, row)
            elif draws[0] < entry_probability(row, self.class_counts, self.max_size, self.rho):
                self._put(self._choose(*draws[1:]), key, row)

    def _select_removal(self) -> int:
        return self._choose(*self._uniform(2).tolist())

    def _choose(self, class_draw: float, tie_draw: float) -> int:
        return choose_removal(self.labels, target_shares(self.class_counts, self.rho), class_draw, tie_draw)


def target_shares(class_counts: Tensor, rho: float) -> Tensor:
    """Target share p_i = n_i^ρ / Σ n_j^ρ of each class with n_i > 0 images in the stream; 0 for others."""
    weights = torch.where(class_counts > 0, class_counts**rho, 0.0)
    return weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def entry_probability(labels: Tensor, class_counts: Tensor, max_size: int, rho: float) -> float:
    """Probability to be stored: s = Σ w_i min(1, m p_i / n_i) over an image's classes, w = softmax(−n_i).

    m is ``max_size``. The rarest class is nearly decisive. ``labels`` has at least one 1, and
    ``class_counts`` are n_i with this image counted, both ``[n_classes]``.
    """
    own = labels > 0
    counts = class_counts[own]
    chances = (max_size * target_shares(class_counts, rho)[own] / counts).clamp(max=1.0)
    return float(torch.softmax(-counts, dim=0) @ chances)


def choose_removal(labels: Tensor, shares: Tensor, class_draw: float, tie_draw: float) -> int:
    """Position of the stored image to remove, for labels ``[n, n_classes]`` and p_i ``[n_classes]``.

    With l_i the number of stored images of class i, its surplus is δ_i = l_i − p_i Σ l_j. A class is drawn
    from softmax(δ) among those in memory. Candidates are its images with the fewest labels of classes without
    a surplus (δ_i ≤ 0); the one whose removal leaves Σ|δ_i| smallest is removed. The draws, in [0, 1), select
    the class, and one among equally good images.
    """
    in_memory = labels.sum(0)  # l
    delta = in_memory - shares * in_memory.sum()
    cumulative = torch.softmax(delta.masked_fill(in_memory == 0, -torch.inf), dim=0).cumsum(0)
    last = int(in_memory.nonzero()[-1])  # rounding can leave the sum below the draw
    drawn = min(int((cumulative <= class_draw).sum()), last)
    positions = labels[:, drawn].nonzero().flatten()
    needed = labels[positions] @ (delta <= 0).to(labels)
    positions = positions[needed == needed.min()]
    left = in_memory - labels[positions]  # [candidates, n_classes], l after each removal
    distances = (left - shares * left.sum(1, keepdim=True)).abs().sum(1)
    best = positions[distances <= distances.min() + DISTANCE_ROUNDING]
    return int(best[int(tie_draw * len(best))])


class OCDM(Replay):
    """Optimised class distribution (Liang and Li, 2022): labels of the memory are kept near n_i^ρ."""

    def __init__(
        self, *, mem_size: int = MEM_SIZE, rho: float = 0.0, seed: int | None = None, **replay_kwargs: Any
    ) -> None:
        memory = OCDMBuffer(mem_size, rho=rho, seed=seed or 0)
        super().__init__(storage_policy=memory, seed=seed, **replay_kwargs)


class OCDMBuffer(OnlineBuffer):
    """A memory whose removals bring its label distribution as near as possible to a target.

    When memory and batch exceed the capacity, images are removed greedily (`greedy_removal`), towards
    `target_shares`. Ties are broken at random. An image without a label does not change the distribution, so
    it is removed when no other removal improves it. For the arguments see `PRSBuffer`; ρ = 0 is the paper's.
    """

    def __init__(self, max_size: int, *, rho: float = 0.0, seed: int = 0) -> None:
        super().__init__(max_size, seed=seed)
        self.rho = rho

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        self.class_counts += labels.sum(0)
        keys = torch.cat([self.keys, keys])
        labels = torch.cat([self.labels, labels]) if self._size else labels
        kept = torch.ones(len(keys), dtype=torch.bool)
        kept[self._remove(labels, max(0, len(keys) - self.max_size))] = False
        self._keys, self._labels, self._size = keys[kept], labels[kept], int(kept.sum())

    def _select_removal(self) -> int:
        return self._remove(self.labels, 1)[0]

    def _remove(self, labels: Tensor, n: int) -> list[int]:
        shares = target_shares(self.class_counts, self.rho)
        return greedy_removal(labels, shares, self._uniform(n).tolist())


def greedy_removal(labels: Tensor, shares: Tensor, tie_draws: list[float]) -> list[int]:
    """Positions of images to remove, each time the one that leaves the smallest KL(memory ‖ target).

    With l the class counts, N their sum and q the target, KL = Σ l_i log(l_i / q_i) / N − log N. Removing
    image k lowers l_i by one for each of its classes, and so the sum by Σ_{i∈k} d_i, with
    d_i = f_i(l_i) − f_i(l_i − 1) and f_i(l) = l log(l / q_i). ``labels @ d`` has this for all images.

    ``labels`` are ``[n, n_classes]`` of 0 and 1, float64; ``shares`` are q, above 0 for every class that
    appears; ``tie_draws`` has one number in [0, 1) per removal, to choose among equally good images.
    """
    counts = labels.sum(0)  # images of each class, [n_classes]
    labels_per_image = labels.sum(1)  # [n]
    removed = torch.zeros(len(labels), dtype=torch.bool)
    order = []
    for draw in tie_draws:
        # KL after removing image k is (Σ terms − labels_k · decrease) / labels_left_k − log labels_left_k.
        terms = _terms(counts, shares)
        decrease = terms - _terms((counts - 1).clamp(min=0), shares)  # d
        labels_left = counts.sum() - labels_per_image  # in the memory, after removing each image, [n]
        divergence = (terms.sum() - labels @ decrease) / labels_left - labels_left.log()
        # Without any remaining label there is no distribution: worse than every other removal, but still
        # possible. Images already removed are not.
        divergence = divergence.masked_fill(labels_left == 0, torch.finfo(divergence.dtype).max)
        divergence = divergence.masked_fill(removed, torch.inf)
        best = (divergence <= divergence.min() + DIVERGENCE_ROUNDING).nonzero().flatten()
        chosen = int(best[int(draw * len(best))])
        order.append(chosen)
        removed[chosen] = True
        counts = counts - labels[chosen]
    return order


def _terms(counts: Tensor, shares: Tensor) -> Tensor:
    """l_i log(l_i / q_i), 0 for a class without images."""
    return torch.where(counts > 0, counts * (counts / shares).log(), 0.0)


class OptionalReplay(MultiLabelTemplate):
    """Base of strategies that may replay images beside what else they do.

    Args:
        mem_size: number of images in the memory; 0 for none.
        storage_policy: which images it keeps: those of the method ``"er"``, ``"prs"`` or ``"ocdm"``.
        batch_size_mem: see `OnlineReplayPlugin`, as for ``newer_as_negative``.
        seed: seed of the memory (0 if None) and of the stream.
    """

    def __init__(
        self,
        *,
        mem_size: int = 0,
        storage_policy: StoragePolicy = "er",
        batch_size_mem: int | None = None,
        newer_as_negative: bool = False,
        seed: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        check_choice("storage_policy", storage_policy, StoragePolicy)
        plugins = list(plugins or [])
        if mem_size:
            buffer_kind = {"er": ReservoirBuffer, "prs": PRSBuffer, "ocdm": OCDMBuffer}[storage_policy]
            memory = buffer_kind(mem_size, seed=seed or 0)  # type: ignore[abstract]
            plugins.append(
                OnlineReplayPlugin(memory, batch_size_mem=batch_size_mem, newer_as_negative=newer_as_negative)
            )
        super().__init__(plugins=plugins, seed=seed, **base_kwargs)


class SCR(ER):
    """Supervised contrastive replay (Mai et al., 2021), our adaptation to several labels.

    SCR is for one label per image, and the AGCN paper does not say how it was made multi-label. Here:

    - the loss is `MultiLabelContrastiveLoss`, whose weights are the overlap of labels where both are
      annotated;
    - a linear classifier with the strategy's criterion gives scores, instead of the nearest class mean;
    - the features themselves are contrasted, without a projection head, so that no parameter is added.

    As in SCR, a step sees two views of each image: ``2 * (train_mb_size + batch_size_mem)`` images.
    ``contrast_weight`` is the weight of the contrastive loss beside the criterion.
    """

    def __init__(
        self,
        *,
        batch_size_mem: int | None = SCR_BATCH_SIZE_MEM,
        contrast_weight: float = CONTRAST_WEIGHT,
        temperature: float = TEMPERATURE,
        views: int = 2,
        plugins: Plugins = None,
        **replay_kwargs: Any,
    ) -> None:
        self.contrast = ContrastivePlugin(weight=contrast_weight, temperature=temperature)
        plugins = [*(plugins or []), self.contrast]
        super().__init__(batch_size_mem=batch_size_mem, views=views, plugins=plugins, **replay_kwargs)


class ContrastivePlugin(MultiLabelPlugin):
    """Adds `MultiLabelContrastiveLoss` of the batch's features, as the model computed them for its logits."""

    def __init__(self, *, weight: float = 1.0, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        check_range("weight", weight, least=0)
        self.weight, self.loss = weight, MultiLabelContrastiveLoss(temperature)
        self._features = OutputRecorder()

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Check that the model has features to contrast."""
        if not isinstance(getattr(unwrap(strategy.model), "backbone", None), nn.Module):
            raise TypeError(
                f"{type(strategy.model).__name__} has no backbone to take features from: use "
                "MultiLabelClassifier(backbone, n_classes)."
            )

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Record the features of the batch."""
        self._features.start(unwrap(strategy.model).backbone)

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the loss."""
        features = _of_all_processes(self._features.stop())
        loss = self.loss(features, _of_all_processes(strategy.mb_y))
        strategy.loss = strategy.loss + self.weight * loss


class MultiLabelContrastiveLoss(nn.Module):
    """Supervised contrastive loss whose positive weights are the overlap of labels.

    With z the normalised features, τ the temperature and w_ij the Jaccard overlap of two images' labels
    (`label_overlap`), the loss of image i is the weighted mean, over the other images j, of
    −log(exp(z_i·z_j/τ) / Σ_a exp(z_i·z_a/τ)) with weights w_ij. If every image has one label, w is 0 or 1 and
    this is the single-label loss (Khosla et al., 2020). How SCR was made multi-label for the AGCN paper is
    not known: this is our adaptation.

    Two images without a column that is annotated for both cannot be compared: they are neither a pair nor a
    term a of the sum. An image that shares no label with any other contributes nothing.
    """

    def __init__(self, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        check_range("temperature", temperature, above=0)
        self.temperature = temperature

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the images that share a label with another, by features ``[B, D]``; 0 if none does."""
        z = F.normalize(at_least_float32(features), dim=1)
        overlap, comparable = label_overlap(targets.to(z.dtype))
        other = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
        weights = overlap * other
        logits = (z @ z.T / self.temperature).masked_fill(~(comparable & other), _SKIPPED)
        log_probabilities = logits - logits.logsumexp(dim=1, keepdim=True)
        totals = weights.sum(1)
        has_positive = totals > 0
        losses = -(weights * log_probabilities.masked_fill(weights == 0, 0.0)).sum(1)[has_positive]
        return (losses / totals[has_positive]).sum() / has_positive.sum().clamp(min=1)


def label_overlap(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Jaccard overlap of the labels of all pairs of images, and whether they are comparable, both ``[B, B]``.

    Only columns annotated for both images count; a pair without any is not comparable. The overlap is 0 where
    neither has a label.
    """
    annotated = (~targets.isnan()).to(targets.dtype)
    positive = targets.nan_to_num(0.0)
    both = positive @ positive.T
    either = positive @ annotated.T + annotated @ positive.T - both  # labels on the jointly annotated columns
    return both / either.clamp(min=1), annotated @ annotated.T > 0


def _of_all_processes(rows: Tensor) -> Tensor:
    """Rows of the global batch, from which every process computes the same loss.

    Gradients flow to this process's own rows, multiplied by the number of processes, since
    `DistributedDataParallel` averages the gradients of all.
    """
    if not DistributedHelper.is_distributed:
        return rows
    rank, n_processes = process_rank()
    parts = DistributedHelper.gather_all(rows.detach())
    parts[rank] = n_processes * rows - (n_processes - 1) * rows.detach()
    return torch.cat(parts)
