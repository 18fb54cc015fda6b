"""The built-in benchmark: drawn scenes of several objects, with a known co-occurrence of labels.

An image shows one of ``SCENE_TYPES``. Given the type, each of its objects is present or not, independently,
with the probability written beside it; if this gives no object or more than ``MAX_OBJECTS``, the objects
(not the type) are redrawn. A type has so few objects that every possible set of labels can be listed with
its exact probability, and every statistic of the model is a sum over that list.
"""

from collections.abc import Sequence
from itertools import product
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from avalanche_agcn.benchmarks._drawings import DRAWINGS, paint_scene
from avalanche_agcn.benchmarks.image_files import ImageOptions, Transform
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark, plan_images
from avalanche_agcn.benchmarks.protocols import Conventions, resolve_protocol
from avalanche_agcn.benchmarks.split import Assignment, ClassOrder, TestImages, choose_classes
from avalanche_agcn.checks import check_choice, check_whole_number

CLASS_NAMES: tuple[str, ...] = tuple(DRAWINGS)
"""The 40 classes, in the order of Split-COCO's columns."""
SIZES = (len(CLASS_NAMES), 10)
"""Classes and experiences, as in Split-COCO."""
MEAN, STD = (0.68, 0.68, 0.68), (0.22, 0.22, 0.22)
"""Of the default training images, rounded; equal for all channels, because hues are uniform."""
MIN_IMAGE_SIZE = 16
"""Below this an object is less than seven pixels wide."""
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

Split = Literal["train", "test"]
Sets = npt.NDArray[np.bool_]  # [S, n_classes]
Probabilities = npt.NDArray[np.float64]


def true_cooccurrence(class_names: Sequence[str] = CLASS_NAMES) -> Tensor:
    """Exact P(i | j) of some of ``CLASS_NAMES``, [n_classes, n_classes] float64, unit diagonal."""
    return torch.from_numpy(conditional_probabilities(*label_sets(_check_known(class_names))))


def conditional_probabilities(sets: Sets, probability: Probabilities) -> Probabilities:
    """P(i | j) of every two classes, from all sets of labels and their probabilities."""
    together = sets.T @ (probability[:, None] * sets)  # P(i, j)
    return together / together.diagonal()


def label_sets(class_names: Sequence[str]) -> tuple[Sets, Probabilities]:
    """List every set of labels an image can have, [S, n_classes], with its exact probability, [S].

    Objects of other classes are skipped, and with them the images that would show none of these classes: the
    probabilities are those of the whole model, given at least one of ``class_names``. A set that is possible
    in several scene types has a row for each.
    """
    sets, probabilities = [], []
    for weight, objects in SCENE_TYPES.values():
        present = np.array(list(product((False, True), repeat=len(objects))))  # [2^objects, objects]
        likely = np.array(list(objects.values()))
        chance = np.where(present, likely, 1 - likely).prod(axis=1)
        n_objects = present.sum(axis=1)
        chance[(n_objects < 1) | (n_objects > MAX_OBJECTS)] = 0
        # Which object, if any, is each class: [objects, n_classes].
        is_class = np.array(list(objects))[:, None] == np.array(class_names)
        sets.append(present @ is_class)
        probabilities.append(weight * (chance / chance.sum()))
    all_sets, probability = np.concatenate(sets), np.concatenate(probabilities)
    possible = (probability > 0) & all_sets.any(axis=1)
    return all_sets[possible], probability[possible] / probability[possible].sum()


def draw_label_sets(sets: Sets, probability: Probabilities, n_images: int, rng: np.random.Generator) -> Sets:
    """Draw the labels of images, [n_images, n_classes].

    The draw is stratified: each image's labels follow the model exactly, and the number of images of a class
    varies less than in independent draws, so that small samples have all classes.
    """
    quantiles = (np.arange(n_images) + rng.random(n_images)) / n_images
    rows = np.searchsorted(np.cumsum(probability)[:-1], quantiles, side="right")
    return sets[rng.permutation(rows)]


def _check_known(class_names: Sequence[str]) -> list[str]:
    names = list(class_names)
    unknown = sorted(set(names) - DRAWINGS.keys())
    if not names or len(set(names)) != len(names) or unknown:
        raise ValueError(
            f"class_names must be different ones of {list(CLASS_NAMES)}, not {names}; unknown are {unknown}."
        )
    return names


class ScenesDataset(Dataset[tuple[Image.Image, Tensor]]):
    """Drawn scenes with multi-hot targets, [n_images, n_classes] int8; every image has at least one label.

    An image shows one object of each of its labels and no other. It depends only on the seed, the split, its
    position and its labels. ``class_names`` are some of ``CLASS_NAMES``, in the order of the columns. With
    ``in_memory`` all images are painted now and kept (3 · ``image_size``² bytes each), otherwise each image
    whenever it is read; the images are the same.
    """

    def __init__(
        self,
        n_images: int,
        *,
        class_names: Sequence[str] = CLASS_NAMES,
        image_size: int = 64,
        split: Split = "train",
        seed: int = 0,
        in_memory: bool = True,
    ) -> None:
        check_whole_number("n_images", n_images, 1)
        check_whole_number("image_size", image_size, MIN_IMAGE_SIZE)
        check_whole_number("seed", seed, 0)
        check_choice("split", split, Split)
        self.class_names = _check_known(class_names)
        self.image_size = image_size
        self._entropy = (seed, get_args(Split).index(split))
        labels = draw_label_sets(*label_sets(self.class_names), n_images, self._rng(0))
        self.targets = torch.from_numpy(labels.astype(np.int8))
        self._images: Tensor | None = None
        if in_memory:  # in a tensor, which loader workers share instead of copying it
            self._images = torch.empty(n_images, image_size, image_size, 3, dtype=torch.uint8)
            for index, pixels in enumerate(self._images.numpy()):
                pixels[:] = self._paint(index)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, Tensor]:
        index = range(len(self))[index]  # supports negative indices; IndexError ends an iteration
        pixels = self._paint(index) if self._images is None else self._images[index].numpy()
        return Image.fromarray(pixels), self.targets[index]

    def _paint(self, index: int) -> np.ndarray:
        columns = self.targets[index].nonzero().flatten().tolist()
        drawings = [DRAWINGS[self.class_names[column]] for column in columns]
        return paint_scene(drawings, self.image_size, self._rng(1 + index))

    def _rng(self, stream: int) -> np.random.Generator:
        """Independent streams: 0 draws the labels, 1 + i paints image i."""
        return np.random.default_rng((*self._entropy, stream))


class SplitScenes(MultiLabelBenchmark):
    """The benchmark that needs no data: drawn scenes, 40 classes in 10 experiences of 4.

    The classes are those of the AGCN paper's Split-COCO in the same order. Each is a drawing that varies in
    place, size, rotation and colours, on a background with clutter. A scene has one to four objects.

    An image shows one of 18 scene types (street, meal, living room, …), whose objects are present with stated
    probabilities (``SCENE_TYPES``). Person is in 29 % of the images, every other class in 4 to 8 %. There are
    strong pairs within experiences (spoon and bowl, bicycle and person, laptop and cell phone) and across
    them (fork and dining table, couch and tv, toilet and sink, tennis racket and sports ball). With fewer
    classes, objects of the others are not drawn, and images that would show no object do not occur; both
    leave P(i | j) between the chosen classes unchanged. An image with labels of several experiences appears
    once, in the experience of its rarest class, or with ``repeat_images`` in each.

    Arguments that are not below are those of `SplitCOCO`.

    Args:
        n_classes: number of classes: the first of ``CLASS_NAMES``; all 40 if None.
        n_experiences: number of experiences with equally many classes; 10 in the paper's protocol if None.
        image_size: side of the images in pixels.
        in_memory: whether to paint all images now (under a millisecond each) or whenever they are read.

    Attributes:
        true_cooccurrence: exact P(i | j) of columns i and j, [n_classes, n_classes] float64.
    """

    def __init__(
        self,
        *,
        protocol: str = "paper",
        n_classes: int | None = None,
        n_experiences: int | None = None,
        classes_per_experience: Sequence[int] | None = None,
        class_order: ClassOrder | None = None,
        repeat_images: bool | None = None,
        assignment: Assignment | None = None,
        unlabelled_as_negative: bool | None = None,
        test_images: TestImages | None = None,
        n_train: int = 6000,
        n_test: int = 1200,
        image_size: int = 64,
        flip: bool | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        validation_size: float | int = 0.0,
        limit: int | None = None,
        seed: int = 0,
        in_memory: bool = True,
    ) -> None:
        check_whole_number("n_train", n_train, 1)
        check_whole_number("n_test", n_test, 1)
        conventions = Conventions(
            n_classes=n_classes,
            n_experiences=n_experiences,
            classes_per_experience=classes_per_experience,
            class_order=class_order,
            repeat_images=repeat_images,
            assignment=assignment,
            unlabelled_as_negative=unlabelled_as_negative,
            test_images=test_images,
            flip=flip,
        )
        image_options = ImageOptions(
            train_transform=train_transform,
            eval_transform=eval_transform,
            mean=MEAN,
            std=STD,
            validation_size=validation_size,
            limit=limit,
            seed=seed,
        )
        not_in_data = ["crowds", "difficult", "image_size"]  # scenes are drawn in the size of the input
        rules = resolve_protocol(protocol, conventions, paper_sizes=SIZES, not_in_data=not_in_data)
        first_most_frequent = -torch.arange(len(CLASS_NAMES))
        # Sorted, not in order of appearance, so that the images are the same in any order.
        chosen = choose_classes(CLASS_NAMES, first_most_frequent, rules.n_classes, rules.class_order)
        names = [CLASS_NAMES[column] for column in chosen]

        def draw(n_images: int, split: Split) -> ScenesDataset:
            return ScenesDataset(
                n_images,
                class_names=names,
                image_size=image_size,
                split=split,
                seed=seed,
                in_memory=in_memory,
            )

        train, test = draw(n_train, "train"), draw(n_test, "test")
        super().__init__(plan_images(train, test, rules, image_options, class_names=names))
        self.true_cooccurrence = true_cooccurrence(self.class_names)
