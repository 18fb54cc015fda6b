"""The label model of ``SplitScenes``: exact probabilities of objects that are seen together.

An image shows one of ``SCENE_TYPES``. Given the type, each of its objects is there or not, independently,
with the probability written beside it; if this gives no object or more than ``MAX_OBJECTS``, the objects
(not the type) are drawn again. A type has so few objects that every possible set of labels can be listed with
its exact probability, and every statistic of the model is a sum over that list.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

MAX_OBJECTS = 4

# Scene type → its relative frequency, and P(object | type) before the limit on the number of objects. Chosen
# so that every class but "person" is in 4 to 8 % of the images, and that each class keeps at least 1 % of all
# images in its own experience when every image goes to the experience of its rarest class.
SCENE_TYPES: dict[str, tuple[float, dict[str, float]]] = {
    "street": (1.3, {"car": 0.5, "traffic light": 0.6, "bus": 0.4, "truck": 0.4, "person": 0.3,
        "motorcycle": 0.4}),
    "cycle lane": (0.7, {"bicycle": 0.8, "person": 0.6, "backpack": 0.4, "car": 0.3, "traffic light": 0.3}),
    "roadside": (0.6, {"motorcycle": 0.7, "truck": 0.5, "car": 0.4, "person": 0.4, "cell phone": 0.2}),
    "railway station": (1.0, {"train": 0.8, "clock": 0.4, "bench": 0.4, "backpack": 0.35, "person": 0.4,
        "handbag": 0.3}),
    "airport": (1.0, {"airplane": 0.85, "bus": 0.4, "truck": 0.3, "person": 0.3, "handbag": 0.3,
        "bird": 0.2}),
    "park": (1.0, {"bench": 0.6, "dog": 0.5, "bird": 0.5, "person": 0.4, "bicycle": 0.3, "sports ball": 0.3}),
    "rain": (0.8, {"umbrella": 0.85, "person": 0.6, "handbag": 0.5, "dog": 0.3, "car": 0.3}),
    "beach": (0.9, {"surfboard": 0.85, "person": 0.5, "umbrella": 0.4, "dog": 0.3, "bird": 0.3}),
    "skate park": (0.9, {"skateboard": 0.85, "person": 0.5, "backpack": 0.4, "cell phone": 0.3,
        "bicycle": 0.2}),
    "tennis court": (0.9, {"tennis racket": 0.85, "sports ball": 0.7, "person": 0.6, "bottle": 0.4}),
    "meal": (1.5, {"dining table": 0.7, "fork": 0.6, "knife": 0.6, "chair": 0.4, "cup": 0.3, "bottle": 0.25}),
    "breakfast": (1.1, {"bowl": 0.75, "spoon": 0.75, "cup": 0.45, "book": 0.25}),
    "kitchen": (0.8, {"sink": 0.6, "bottle": 0.5, "knife": 0.45, "bowl": 0.4, "cup": 0.35}),
    "living room": (1.2, {"couch": 0.7, "tv": 0.75, "cat": 0.35, "potted plant": 0.35, "vase": 0.3,
        "person": 0.2}),
    "bedroom": (1.0, {"bed": 0.85, "book": 0.5, "clock": 0.45, "cat": 0.35, "laptop": 0.2}),
    "bathroom": (0.9, {"toilet": 0.8, "sink": 0.65, "potted plant": 0.3, "vase": 0.25}),
    "office": (1.2, {"laptop": 0.8, "cell phone": 0.5, "chair": 0.4, "tie": 0.3, "clock": 0.2,
        "person": 0.2}),
    "wedding": (0.8, {"tie": 0.8, "person": 0.7, "vase": 0.5, "potted plant": 0.3, "handbag": 0.2}),
}  # fmt: skip

Sets = npt.NDArray[np.bool_]  # [S, n_classes]
Probabilities = npt.NDArray[np.float64]


def label_sets(class_names: Sequence[str]) -> tuple[Sets, Probabilities]:
    """List every set of labels an image can have, with its exact probability.

    Objects of other classes are left out, and with them the images that would show none of these classes:
    the probabilities are those of the whole model, given at least one of ``class_names``.

    Args:
        class_names: the classes in use, in the order of the columns.

    Returns:
        The sets, [S, n_classes], one per row, and their probabilities, [S], which sum to 1. A set that
        several scene types can give has a row for each.
    """
    parts = [_sets_of_type(objects, class_names) for _, objects in SCENE_TYPES.values()]
    sets = np.concatenate([sets for sets, _ in parts])
    weights = [weight for weight, _ in SCENE_TYPES.values()]
    probability = np.concatenate([w * chance for w, (_, chance) in zip(weights, parts, strict=True)])
    shown = sets.any(axis=1)
    return sets[shown], probability[shown] / probability[shown].sum()


def conditional_probabilities(sets: Sets, probability: Probabilities) -> Probabilities:
    """P(i | j) of every two classes, [n_classes, n_classes] with a unit diagonal.

    Example:
        >>> sets, probability = label_sets(["toilet", "sink"])
        >>> round(float(conditional_probabilities(sets, probability)[1, 0]), 3)  # P(sink | toilet)
        0.65
    """
    together = sets.T @ (probability[:, None] * sets)  # P(i, j)
    return together / together.diagonal()


def draw_label_sets(sets: Sets, probability: Probabilities, n_images: int, rng: np.random.Generator) -> Sets:
    """Draw the labels of ``n_images`` images, [n_images, n_classes].

    The draw is stratified: each image's labels follow the model exactly, and the number of images of a class
    varies less than in independent draws, so that small samples have all classes.
    """
    quantiles = (np.arange(n_images) + rng.random(n_images)) / n_images
    rows = np.searchsorted(np.cumsum(probability)[:-1], quantiles, side="right")
    return sets[rng.permutation(rows)]


def _sets_of_type(objects: dict[str, float], class_names: Sequence[str]) -> tuple[Sets, Probabilities]:
    """The sets of one scene type, [2^objects, n_classes], and their probabilities given the type."""
    present = np.array(list(product((False, True), repeat=len(objects))))  # [2^objects, objects]
    likely = np.array(list(objects.values()))
    chance = np.where(present, likely, 1 - likely).prod(axis=1)
    n_objects = present.sum(axis=1)
    chance[(n_objects < 1) | (n_objects > MAX_OBJECTS)] = 0
    # Which object, if any, is each class: [objects, n_classes].
    column = np.array([[name == other for other in class_names] for name in objects])
    possible = chance > 0
    return present[possible] @ column, chance[possible] / chance.sum()
