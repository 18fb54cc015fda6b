"""Reservoir sampling (Vitter, 1985), over the stream or within each experience."""

from torch import Tensor

from avalanche_agcn.training.storage_policy.base import OnlineBuffer


class ReservoirBuffer(OnlineBuffer):
    """Every image of the stream is in memory with the same probability, m/n.

    Avalanche's ``ReservoirSamplingBuffer`` has the same distribution, but takes whole experiences, draws
    from the global generator and cannot be saved.

    Args: see `OnlineBuffer`.
    """

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        for key, row, draw in zip(keys, labels, self._uniform(len(keys)).tolist(), strict=True):
            self._n_seen += 1
            full = self._size >= self.max_size
            position = int(draw * self._n_seen) if full else self._size
            if position < self.max_size:
                self._put(position, key, row)
        self._class_counts += labels.sum(0)

    def _select_removal(self) -> int:
        return int(self._uniform(1) * self._size)


class ExperienceReservoirBuffer(OnlineBuffer):
    """The same number of images from each experience, each chosen with the same probability.

    While an experience has less than its share, its images take the place of random ones of the experience
    that has most; from then on they take the place of one of its own with probability m_e/n_e. This is
    class-balancing reservoir sampling (Chrysakis and Moens, 2020) with experiences for classes.

    Args: see `OnlineBuffer`.
    """

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        experience = int(keys[0, 0])
        n_own = int(self._offered[experience].sum()) - len(keys)  # of this experience so far
        for key, row, draw in zip(keys, labels, self._uniform(len(keys), 2).tolist(), strict=True):
            n_own += 1
            position = self._size if self._size < self.max_size else self._place(experience, n_own, *draw)
            if position is not None:
                self._put(position, key, row)
        self._n_seen += len(keys)
        self._class_counts += labels.sum(0)

    def _select_removal(self) -> int:
        return _pick(self._largest(), float(self._uniform(1)))

    def _place(self, experience: int, n_own: int, entry: float, choice: float) -> int | None:
        own, largest = self._positions(experience), self._largest()
        if len(own) < len(largest):
            return _pick(largest, choice)
        return _pick(own, choice) if entry * n_own < len(own) else None

    def _largest(self) -> Tensor:
        experiences, counts = self.keys[:, 0].unique(return_counts=True)
        return self._positions(int(experiences[counts.argmax()])) if len(counts) else counts

    def _positions(self, experience: int) -> Tensor:
        return (self.keys[:, 0] == experience).nonzero().flatten()


def _pick(positions: Tensor, draw: float) -> int:
    return int(positions[int(draw * len(positions))])
