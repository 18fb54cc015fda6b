"""Where images are in sums, and which were removed: what `forget` and `merge` need to stay exact."""

import copy
import hashlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

from torch import Tensor

Places = dict[str, list[int]]
"""Experiences of each image, by its name."""


class ImagePlaces:
    """Experiences of images that may return in later ones (`repeat_images`), and forgotten images.

    Images of merged sums are kept apart: they may have the names of other images.
    """

    def __init__(self) -> None:
        self._places: list[Places] = [{}]  # the own ones, then those of merged sums
        self._forgotten: set[str] = set()  # digests of images that were removed, and not added since

    def add(self, dataset: Any, experience: int, *, may_return: bool) -> None:
        """Note that the images of a dataset are in the sums of an experience."""
        if may_return:
            for name in dataset.image_names:
                experiences = self._places[0].setdefault(name, [])
                if experience not in experiences:
                    experiences.append(experience)
        if self._forgotten:
            self._forgotten -= _image_digests(dataset)

    def merge(self, other: "ImagePlaces") -> None:
        """Add the images of other sums."""
        self._places += copy.deepcopy(other._places)
        self._forgotten |= other._forgotten

    def forget(self, dataset: Any, removed: Mapping[str, Set[int]]) -> None:
        """Note that the images of a dataset were removed from experiences, given by name."""
        self._forgotten |= _image_digests(dataset)
        for name, experiences in removed.items():
            for places in self._places:
                if experiences >= set(places.get(name, [])):
                    places.pop(name, None)

    def remaining(self, removed: Mapping[str, Set[int]]) -> Places:
        """Where images would still be if they were removed from experiences, given by name."""
        remaining = {}
        for name, experiences in removed.items():
            same_name = [places[name] for places in self._places if experiences & set(places.get(name, []))]
            left = [sorted(set(found) - experiences) for found in same_name]
            if left and all(left):  # otherwise one of the images with this name is removed everywhere
                remaining[name] = left[0]
        return remaining

    def count_forgotten(self, dataset: Any) -> tuple[int, int]:
        """How many images of a dataset were removed and not added since, and how many it has."""
        if not self._forgotten:
            return 0, len(dataset)
        digests = _image_digests(dataset)
        return len(self._forgotten & digests), len(digests)

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "places": copy.deepcopy(self._places[0]),
            "merged_places": copy.deepcopy(self._places[1:]),
            "forgotten": sorted(self._forgotten),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; states of earlier versions have less."""
        self._places = copy.deepcopy([state.get("places", {}), *state.get("merged_places", [])])
        self._forgotten = set(state.get("forgotten", []))


def labelled_experiences(dataset: Any, columns: Sequence[slice]) -> dict[str, set[int]]:
    """Experiences whose columns are labelled for each image of a dataset, by its name."""
    names = list(getattr(dataset, "image_names", []))
    found: dict[str, set[int]] = {}
    if not names:
        return found
    targets: Tensor = dataset.targets[:]
    for t, own in enumerate(columns):
        is_labelled = ~targets[:, own].isnan().all(dim=1)
        for row in is_labelled.nonzero().flatten().tolist():
            found.setdefault(names[row], set()).add(t)
    return found


def _image_digests(dataset: Any) -> set[str]:
    """Digests of the name and the positive labels of each image."""
    digests = set()
    shown = [row.nonzero().flatten().tolist() for row in dataset.targets[:] == 1]
    names = getattr(dataset, "image_names", range(len(dataset)))
    for name, columns in zip(names, shown, strict=True):
        digests.add(hashlib.sha256(f"{name}\n{columns}".encode()).hexdigest()[:16])
    return digests
