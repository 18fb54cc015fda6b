"""Replay memories: what all share, and reservoirs of the stream and of each experience."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset, concat_datasets
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor
from torch.nn.functional import pad

from avalanche_agcn.checks import check_range
from avalanche_agcn.training.distributed import from_first_process

MEM_SIZE = 2000  # of PRS on COCO and NUS-WIDE; the AGCN paper gives none
LEAST_CAPACITY = 64  # rows allocated at first


class OnlineBuffer(ExemplarsBuffer, ABC):
    """An Avalanche storage policy that can be updated batch by batch.

    It stores which images to replay, not their pixels: a replayed image is loaded and augmented again, and
    its target is NaN outside the columns of the experience that it came from.

    It is filled by `observe`, batch by batch (`OnlineReplayPlugin`), or by Avalanche's own ``ReplayPlugin``,
    which calls `post_adapt` at the end of an experience. An image that is offered again, in a second epoch or
    because an experience is trained on twice, is ignored.

    ``max_size`` may be 0; ``seed`` is that of the buffer's own generators, which decide what is stored and
    what is replayed.
    """

    def __init__(self, max_size: int, *, seed: int = 0) -> None:
        check_range("max_size", max_size, least=0)
        super().__init__(max_size)
        self.datasets: dict[int, AvalancheDataset] = {}  # of the experiences that were opened
        self.class_counts = torch.zeros(0, dtype=torch.float64)  # n_i, images seen with class i, [n_classes]
        self._offered: dict[int, Tensor] = {}  # per experience, [n_images] bool
        self._n_seen = 0  # images of the stream so far
        self._size = 0
        self._keys = torch.empty(0, 2, dtype=torch.long)  # [capacity, 2]
        self._labels = torch.empty(0, 0, dtype=torch.float64)  # [capacity, n_classes], 1 where positive
        # Two generators, so that what is stored does not depend on how much is replayed.
        self._storing = torch.Generator().manual_seed(seed)
        self._replaying = torch.Generator().manual_seed(seed + 1)

    def __len__(self) -> int:
        return self._size

    @property
    def keys(self) -> Tensor:
        """Experience and index of each stored image, ``[n, 2]``."""
        return self._keys[: self._size]

    @property
    def labels(self) -> Tensor:
        """Positives of each stored image, ``[n, n_classes]``; unlabelled cells count as 0."""
        return self._labels[: self._size]

    @property
    def buffer(self) -> AvalancheDataset:
        """The stored images as a dataset, oldest experience first."""
        experiences, indices = self.keys.unbind(1)
        stored = {e: indices[experiences == e].tolist() for e in experiences.unique().tolist()}
        return concat_datasets([self.datasets[e].subset(own) for e, own in stored.items()])

    def open(self, experience: int, dataset: AvalancheDataset) -> None:
        """Register the dataset of an experience, with multi-hot targets, before its images are observed."""
        codes, known = _codes(dataset), self.datasets.get(experience)
        if known is None:
            self._offered[experience] = torch.zeros(len(dataset), dtype=torch.bool)
        elif not torch.equal(_codes(known), codes):
            raise ValueError(
                f"Experience {experience} had {len(known)} images and now has {len(dataset)} others: the "
                "memory finds images by experience and index, so an experience must keep its dataset. Are "
                "these pieces of online streams, each counted from 0? Split the whole train_stream at once."
            )
        self.datasets[experience] = dataset

    def observe(self, experience: int, indices: Tensor) -> None:
        """Offer the next images of the stream to the memory, by indices ``[B]`` in an open experience."""
        if experience not in self.datasets:
            raise ValueError(f"Experience {experience} is not open: call open({experience}, dataset) first.")
        indices = indices.new_tensor([*dict.fromkeys(indices.tolist())])  # without duplicates, in order
        indices = indices[~self._offered[experience][indices]]
        if len(indices) == 0:
            return
        self._offered[experience][indices] = True
        labels = self._positives(experience, indices)
        if len(self.class_counts) == 0:
            self.class_counts = torch.zeros(labels.shape[1], dtype=torch.float64)
        self._insert(torch.stack([torch.full_like(indices, experience), indices], dim=1), labels)
        self._n_seen += len(indices)

    def post_adapt(self, agent_state: Any, exp: Any) -> None:
        """Offer a whole experience in random order, in batches of the strategy's size."""
        self.open(exp.current_experience, exp.dataset.train())
        order = torch.randperm(len(exp.dataset), generator=self._storing)
        for batch in order.split(getattr(agent_state, "train_mb_size", 1)):
            self.observe(exp.current_experience, batch)

    def draw(self, n: int) -> list[tuple[int, int]]:
        """Draw ``n`` different stored images for replay, or all if fewer: experience and index of each."""
        positions = torch.randperm(self._size, generator=self._replaying)[:n]
        return [(experience, index) for experience, index in self.keys[positions].tolist()]

    def resize(self, strategy: Any, new_size: int) -> None:
        """Change the capacity; excess images are removed by the memory's own rule."""
        while self._size > new_size:
            removed = self._select_removal()  # the last image replaces it
            self._size -= 1
            self._keys[removed], self._labels[removed] = self._keys[self._size], self._labels[self._size]
        self.max_size = new_size

    def share_generators(self) -> None:
        """Give all processes the first one's generators, so that their memories stay the same. Collective."""
        for generator in (self._storing, self._replaying):
            generator.set_state(from_first_process(generator.get_state()))

    def state_dict(self) -> dict[str, Any]:
        """Keys and names of stored images, counts and generators, as plain values."""
        return {
            "keys": self.keys.clone(),
            "names": [_image_name(self.datasets[e], index) for e, index in self.keys.tolist()],
            "n_seen": torch.tensor(self._n_seen),
            "class_counts": self.class_counts.clone(),
            "storing": self._storing.get_state(),
            "replaying": self._replaying.get_state(),
            **{f"offered.{experience}": mask.clone() for experience, mask in self._offered.items()},
        }

    def load_state_dict(self, state: dict[str, Any], train_stream: Sequence[Any]) -> None:
        """Restore a memory no larger than this one, whose images are in the benchmark's train stream."""
        keys = state["keys"]
        if len(keys) > self.max_size:
            raise ValueError(f"{len(keys)} images were saved, but this memory holds {self.max_size}.")
        self._size, self.datasets, self._offered = 0, {}, {}
        for name in (name for name in state if name.startswith("offered.")):
            experience = int(name.removeprefix("offered."))
            if experience >= len(train_stream) or len(train_stream[experience].dataset) != len(state[name]):
                raise ValueError(
                    f"The memory was filled from {len(state[name])} images of experience {experience}, which "
                    "this stream does not have: pass the train_stream of the same benchmark and seed."
                )
            self.open(experience, train_stream[experience].dataset.train())
            self._offered[experience] = state[name].clone()
        for (experience, saved_index), name in zip(keys.tolist(), state["names"], strict=True):
            key = torch.tensor([experience, self._find(experience, saved_index, name)])
            self._put(self._size, key, self._positives(experience, key[1]))
        self._n_seen, counts = int(state["n_seen"]), state["class_counts"]
        widths = [_codes(dataset).shape[1] for dataset in self.datasets.values()]
        # The stream may have gained classes since the counts were saved.
        self.class_counts = pad(counts, (0, max([len(counts), *widths]) - len(counts)))
        self._storing.set_state(state["storing"])
        self._replaying.set_state(state["replaying"])

    def _find(self, experience: int, index: int, name: str) -> int:
        """Index of an image by its name, which may differ from the saved index if the data was reordered."""
        dataset = self.datasets[experience]
        if _image_name(dataset, index) == name:
            return index
        names = [_image_name(dataset, other) for other in range(len(dataset))]
        if name not in names or not self._offered[experience].all():
            raise ValueError(
                f"The memory holds image {name!r} of experience {experience}, which this stream does not "
                "have at its place: pass the train_stream of the same benchmark and seed."
            )
        return names.index(name)

    def _positives(self, experience: int, indices: Tensor) -> Tensor:
        return (_codes(self.datasets[experience])[indices] == 1).double()

    @abstractmethod
    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        """Count the labels of new images, keys ``[B, 2]`` and labels ``[B, n_classes]``, and store some."""

    @abstractmethod
    def _select_removal(self) -> int:
        """Position of the stored image to remove next."""

    def _put(self, position: int, key: Tensor, labels: Tensor) -> None:
        """Append an image, or replace the one at a position."""
        if position == len(self._keys):  # double the capacity: each row is copied about twice in all
            n_added = min(max(2 * position, LEAST_CAPACITY), self.max_size) - position
            self._keys = pad(self._keys, (0, 0, 0, n_added))
            self._labels = pad(self._labels, (0, len(labels) - self._labels.shape[1], 0, n_added))
        self._keys[position], self._labels[position] = key, labels
        self._size = max(self._size, position + 1)

    def _uniform(self, *shape: int) -> Tensor:
        """Random numbers in [0, 1) that decide what is stored."""
        return torch.rand(*shape, generator=self._storing, dtype=torch.float64)


class ReservoirBuffer(OnlineBuffer):
    """Every image of the stream is in memory with the same probability, m/n.

    Avalanche's ``ReservoirSamplingBuffer`` has the same distribution, but takes whole experiences, draws
    from the global generator and cannot be saved.
    """

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        self.class_counts += labels.sum(0)
        draws = self._uniform(len(keys)).tolist()
        n_offered = self._n_seen  # `observe` adds these images to `_n_seen` afterwards
        for key, row, draw in zip(keys, labels, draws, strict=True):
            n_offered += 1
            if self._size < self.max_size:
                self._put(self._size, key, row)
                continue
            position = int(draw * n_offered)  # in the memory with probability m/n
            if position < self.max_size:
                self._put(position, key, row)

    def _select_removal(self) -> int:
        return int(self._uniform(1) * self._size)


class ExperienceReservoirBuffer(OnlineBuffer):
    """The same number of images from each experience, each chosen with the same probability.

    While an experience has less than its share, its images replace random ones of the experience that has
    most; from then on they replace one of its own with probability m_e/n_e. This is class-balancing reservoir
    sampling (Chrysakis and Moens, 2020) with experiences as classes.
    """

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        self.class_counts += labels.sum(0)
        experience = int(keys[0, 0])
        draws = self._uniform(len(keys), 2).tolist()
        n_offered = int(self._offered[experience].sum()) - len(keys)  # images of this experience so far
        for key, row, (entry, choice) in zip(keys, labels, draws, strict=True):
            n_offered += 1
            if self._size < self.max_size:
                self._put(self._size, key, row)
                continue
            same_experience = self._positions(experience)
            largest_experience = self._largest()
            if len(same_experience) < len(largest_experience):
                self._put(_pick(largest_experience, choice), key, row)
            elif entry * n_offered < len(same_experience):
                self._put(_pick(same_experience, choice), key, row)

    def _select_removal(self) -> int:
        return _pick(self._largest(), float(self._uniform(1)))

    def _largest(self) -> Tensor:
        experiences, counts = self.keys[:, 0].unique(return_counts=True)
        return self._positions(int(experiences[counts.argmax()])) if len(counts) else counts

    def _positions(self, experience: int) -> Tensor:
        return (self.keys[:, 0] == experience).nonzero().flatten()


def _pick(positions: Tensor, draw: float) -> int:
    return int(positions[int(draw * len(positions))])


def _codes(dataset: AvalancheDataset) -> Tensor:
    """Labels of a dataset, ``[n_images, n_classes]``, 1 where positive."""
    targets: Any = getattr(dataset, "targets", None)
    if not hasattr(targets, "codes"):
        raise ValueError(
            f"The dataset's targets are {type(targets).__name__}, but a memory needs a MultiLabelAttribute: "
            "make the benchmark with multilabel_benchmark(...)."
        )
    return targets.codes


def _image_name(dataset: AvalancheDataset, index: int) -> str:
    """Name of an image in its benchmark; its index if it has none."""
    names = getattr(dataset, "image_names", None)
    return str(index) if names is None or index >= len(names) else names[index]
