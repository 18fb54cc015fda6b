"""Which images of a stream are added to sums: one rule for all kinds of sums."""

import hashlib
from typing import Any

import numpy as np
import torch
from avalanche.training.templates import SupervisedTemplate

from avalanche_agcn.benchmarks.experience import check_no_skipped_experience, count_seen, origin_of
from avalanche_agcn.training.loader import preserve_rng_state
from avalanche_agcn.training.memory import check_replay_is_known
from avalanche_agcn.training.plugin import MultiLabelPlugin

Fingerprint = tuple[int, int]
UNKNOWN: Fingerprint = (0, 0)
"""In place of the running experience in states of earlier versions, which do not have it."""


class StreamCounter(MultiLabelPlugin):
    """Base of plugins that add the images of the stream to sums, which have a block per experience.

    An experience with new classes opens a block for them; none may be skipped. One that was interrupted and
    is trained on again starts again: its block becomes what it was before. Other images are added if their
    classes are those of the newest block, unless a subclass decides otherwise. Experiences are identified by
    their images: the first experience of another benchmark is another one.
    """

    statistics: Any
    """The sums, `ClassBlocks`."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = False  # whether the images of the current batch are added
        self.block = 0  # block of the current experience
        self.resumed = False  # whether a state was loaded, and no experience started since
        self.n_finished = 0  # classes of the experiences that this process finished
        self._counts_running = False  # whether images of the current experience are added at all
        self._running: Fingerprint | None = None  # the experience that has started and not ended
        self._starts_empty = False  # whether its block was empty before it
        self._before: Any = None  # otherwise the block before it; None in a resumed experience
        self._interrupted: set[Fingerprint] = set()  # those that had not ended when another one started

    @property
    def columns(self) -> slice:
        """Columns of the classes of the current experience."""
        sizes = self.statistics.block_sizes
        return slice(sum(sizes[: self.block]), sum(sizes[: self.block + 1]))

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Decide whether the images of the experience are added."""
        check_replay_is_known(strategy)
        experience = strategy.experience
        images = fingerprint(experience.dataset, contents=origin_of(experience) is experience)
        n_counted = self.statistics.n_seen
        is_new = count_seen(experience) > n_counted
        if is_new:
            check_no_skipped_experience(experience, n_counted, type(self).__name__)
            self._open(experience, n_counted)
        if images == self._running and not self.resumed:
            if self._counts_running:
                self._check_can_start_again(experience)
                self._start_again(images)
            return
        is_resumed = self.resumed and self._running in (images, UNKNOWN)
        if self._running is not None and not is_resumed:
            self._interrupted.add(self._running)
        self.block = self._find_block(experience)
        self.counting = self._counts_running = is_new or self._are_counted(experience, images)
        if self.counting and images in self._interrupted:
            raise ValueError(
                f"Experience {origin_of(experience).current_experience} was interrupted, and another one was "
                "trained on since, so an unknown part of its images is in the sums: load a state from before "
                "it, or train a new strategy."
            )
        self._before = None
        if is_new or not is_resumed:
            self._starts_empty = is_new
            if self.counting and not is_new:
                self._before = self.statistics.copy_block(self.block)
        self._running, self.resumed = images, False

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Note that the experience has ended."""
        self._running, self._before = None, None
        self.n_finished = max(self.n_finished, count_seen(strategy.experience))

    def state_dict(self) -> dict[str, Any]:
        """The sums, and the experience that is running."""
        running = [] if self._running is None else [*self._running, int(self._starts_empty)]
        return {**self.statistics.state_dict(), "running": running}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums."""
        self.statistics.load_state_dict({name: state[name] for name in state if name != "running"})
        self.resumed, self.n_finished = True, 0
        running = state.get("running", [*UNKNOWN, 0])
        self._running = (running[0], running[1]) if running else None
        self._starts_empty = bool(running and running[2])
        self._interrupted, self._before = set(), None

    def _open(self, experience: Any, n_old: int) -> None:
        """Open a block for an experience; the sums have the first ``n_old`` classes."""
        self.statistics.begin(count_seen(experience) - n_old)

    def _check_can_start_again(self, experience: Any) -> None:
        """Reject a resumed experience that other images of its classes preceded: their sums are not known."""
        if not self._starts_empty and self._before is None:
            raise ValueError(
                f"Experience {origin_of(experience).current_experience} was interrupted after a state from "
                "within it was loaded, which does not tell its images from earlier ones of the same classes: "
                "load the state again."
            )

    def _start_again(self, images: Fingerprint) -> None:
        """Remove the images of the running experience, which was interrupted."""
        self.counting = True
        if self._starts_empty:
            self.statistics.restart()
        else:
            self.statistics.restore_block(self.block, self._before)

    def _are_counted(self, experience: Any, images: Fingerprint) -> bool:
        """Whether to add images of classes that have a block already: those of the newest one."""
        return count_seen(experience) == self.statistics.n_seen

    def _find_block(self, experience: Any) -> int:
        n_seen = 0
        for block, size in enumerate(self.statistics.block_sizes):
            n_seen += size
            if n_seen == count_seen(experience):
                return block
        raise ValueError(
            f"{count_seen(experience)} classes were seen up to this experience, but the sums have blocks of "
            f"{self.statistics.block_sizes} classes: train on one with the same classes_per_experience."
        )


def fingerprint(dataset: Any, *, contents: bool = False) -> Fingerprint:
    """Digest of the names and labels of a dataset's images, as two integers.

    With ``contents``, it includes the first and the last image, unless the source itself changes them.
    Columns after the last positive do not count, so that images keep their digest when classes are added.
    """
    digest = hashlib.sha256()
    for name in getattr(dataset, "image_names", range(len(dataset))):
        digest.update(f"{name}\n".encode())
    targets = getattr(dataset, "targets", [])
    codes = getattr(targets, "codes", None)
    if codes is None:
        rows = [np.asarray(row) for row in targets]
    else:
        shown = (codes == 1).any(0).nonzero()
        width = int(shown.max()) + 1 if len(shown) else 0
        rows = [codes[:, :width].cpu().numpy()]
    for row in rows:
        digest.update(np.ascontiguousarray(row).tobytes())
    if contents and len(dataset):
        images = dataset.remove_current_transform_group()
        with preserve_rng_state():
            for index in (0, len(images) - 1):
                first, again = (_image_bytes(images[index][0]) for _ in range(2))
                digest.update(first if first == again else b"")
    numbers = np.frombuffer(digest.digest()[:16], dtype=np.int64).tolist()
    return numbers[0], numbers[1]


def _image_bytes(image: Any) -> bytes:
    values = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    return f"{values.shape} {values.dtype}\n".encode() + values.tobytes()
