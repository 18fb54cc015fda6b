"""Methods with a memory: ER, PRS, OCDM, SCR and A-GEM."""

from typing import Any

from avalanche_agcn.training.losses import TEMPERATURE
from avalanche_agcn.training.plugins.replay import AGEMPlugin, ContrastivePlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import (
    ExperienceReservoirBuffer,
    OCDMBuffer,
    OnlineBuffer,
    PRSBuffer,
    ReservoirBuffer,
)
from avalanche_agcn.training.storage_policy.balanced import RHO
from avalanche_agcn.training.strategies.base import MultiLabelTemplate, Plugins

MEM_SIZE = 2000  # of PRS on COCO and NUS-WIDE; the AGCN paper gives none
SCR_BATCH_SIZE_MEM = 100  # of the SCR paper
CONTRAST_WEIGHT = 0.1  # ours, from the embedded benchmark: the criterion must keep its influence


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


class OCDM(Replay):
    """Optimised class distribution (Liang and Li, 2022): labels of the memory are kept near n_i^ρ."""

    def __init__(
        self, *, mem_size: int = MEM_SIZE, rho: float = 0.0, seed: int | None = None, **replay_kwargs: Any
    ) -> None:
        memory = OCDMBuffer(mem_size, rho=rho, seed=seed or 0)
        super().__init__(storage_policy=memory, seed=seed, **replay_kwargs)


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


class AGEM(MultiLabelTemplate):
    """Averaged gradient episodic memory (Chaudhry et al., 2019): no step may raise the loss on memory.

    The memory has equally many images of each experience. A reference batch has ``sample_size`` images, as
    many as of the stream if None; the paper's 256 make a step of 8 images 33 times as long. ``seed`` is that
    of the memory (0 if None) and of the stream.
    """

    def __init__(
        self,
        *,
        mem_size: int = MEM_SIZE,
        sample_size: int | None = None,
        seed: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        memory = ExperienceReservoirBuffer(mem_size, seed=seed or 0)
        self.agem = AGEMPlugin(memory, sample_size=sample_size)
        super().__init__(plugins=[*(plugins or []), self.agem], seed=seed, **base_kwargs)
