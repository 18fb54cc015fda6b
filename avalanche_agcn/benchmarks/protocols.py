"""Named protocols: the conventions by which the literature splits a data set.

``PAPER``, with the defaults of `Protocol`, has those of the AGCN paper: the most frequent classes (40 of
COCO), equally many in each experience (10 of 4). ``B`` has those of ``"B<n>-C<m>"`` (KRT, CSC, L3A, …): all
classes of the data, n in the first experience if n > 0, then m in each. The published code of the B protocols
does not normalise images, because its network was trained so, and some of it augments them: pass transforms
for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from avalanche_agcn.benchmarks import split
from avalanche_agcn.benchmarks.image_files import PAPER_IMAGE_SIZE, ImageOptions
from avalanche_agcn.checks import check_choice, check_whole_number

Crowds = Literal["labels", "membership", "ignore"]
Difficult = Literal["negative", "positive"]

B_PROTOCOL = re.compile(r"B(\d+)-C(\d+)")
B_IMAGE_SIZE = 224
"""Input size of the published code of KRT, CSC and L3A."""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Settings that a user of a benchmark chose; None leaves the protocol's own. See `Protocol`."""

    n_classes: int | None = None
    n_experiences: int | None = None
    classes_per_experience: Sequence[int] | None = None
    class_order: split.ClassOrder | None = None
    repeat_images: bool | None = None
    assignment: split.Assignment | None = None
    unlabelled_as_negative: bool | None = None
    test_images: split.TestImages | None = None
    crowds: Crowds | None = None
    difficult: Difficult | None = None
    image_size: int | None = None
    flip: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The conventions of a benchmark; printing it gives a line for each.

    A setting of None does not apply to the data. For those not listed here see `multilabel_benchmark`.

    Attributes:
        name: ``"paper"``, ``"B0-C10"``, …, or ``"own"`` for settings without a name.
        test_images: ``"seen"``: test set i has the images with at least one class seen up to experience i;
            ``"all"``: every test set has all images. Both have all labels.
        crowds: COCO's boxes around many objects. ``"labels"``: they count like any other box;
            ``"membership"``: they bring an image into an experience but are not labels, so that targets of
            all zeros occur; ``"ignore"``: they do not count.
        difficult: label of a VOC class whose objects on an image are all marked difficult.
        image_size: side of the square that whole images are scaled to, without a crop.
        flip: whether half of the train images are mirrored, at random.
    """

    name: str = "own"
    n_classes: int | None = None
    n_experiences: int | None = None
    classes_per_experience: Sequence[int] | None = None
    class_order: split.ClassOrder = "data"
    repeat_images: bool = False
    assignment: split.Assignment | None = "rarest"
    unlabelled_as_negative: bool = False
    test_images: split.TestImages = "seen"
    crowds: Crowds | None = None
    difficult: Difficult | None = None
    image_size: int | None = None
    flip: bool | None = None

    def __post_init__(self) -> None:
        for name in ("n_classes", "n_experiences"):
            if getattr(self, name) is not None:
                check_whole_number(name, getattr(self, name))
        check_choice("test_images", self.test_images, split.TestImages)
        check_choice("crowds", self.crowds, [None, *get_args(Crowds)])
        check_choice("difficult", self.difficult, [None, *get_args(Difficult)])

    def __str__(self) -> str:
        lines = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or (field.name == "assignment" and self.repeat_images):
                continue
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = ", ".join(map(str, value))
            lines.append(f"{'protocol' if field.name == 'name' else field.name}: {value}")
        return "\n".join(lines)

    def with_sizes(self, n_classes: int) -> Protocol:
        """The same with its numbers of classes and experiences filled in, for data of that many classes."""
        match = B_PROTOCOL.fullmatch(self.name)
        if match and self.n_experiences is None and self.classes_per_experience is None:
            sizes = b_sizes(int(match[1]), int(match[2]), n_classes)
        else:
            sizes = split.experience_sizes(n_classes, self.n_experiences, self.classes_per_experience)
        return replace(
            self, n_classes=n_classes, n_experiences=len(sizes), classes_per_experience=tuple(sizes)
        )

    def without_replaced(self, image_options: ImageOptions) -> Protocol:
        """The same without the settings of images that the transforms of a user replace."""
        if image_options.train_transform is None:
            return self
        if image_options.eval_transform is None:
            return replace(self, flip=None)
        return replace(self, flip=None, image_size=None)


PAPER = Protocol(name="paper", crowds="labels", difficult="negative", image_size=PAPER_IMAGE_SIZE, flip=True)
B = Protocol(
    class_order="alphabetical",
    repeat_images=True,
    unlabelled_as_negative=True,
    crowds="membership",
    difficult="negative",
    image_size=B_IMAGE_SIZE,
    flip=False,
)


def resolve_protocol(
    name: str,
    chosen: Conventions,
    *,
    paper_sizes: tuple[int, int] | None = None,
    not_in_data: Sequence[str] = (),
) -> Protocol:
    """The protocol ``"paper"`` or ``"B<n>-C<m>"`` with the conventions that the user chose instead.

    ``paper_sizes`` are the numbers of classes and experiences of the paper's benchmark of this data, if it
    has one. Conventions in ``not_in_data`` do not apply to the data: ``["crowds"]`` if it has no crowd boxes.
    """
    if B_PROTOCOL.fullmatch(name):
        protocol = replace(B, name=name)
    elif name == "paper":
        protocol = PAPER
    else:
        raise ValueError(f"protocol must be 'paper' or 'B<n>-C<m>', such as 'B0-C10', not {name!r}.")
    if chosen.n_classes is None and split.is_order_of_names(chosen.class_order):
        assert chosen.class_order is not None
        chosen = replace(chosen, n_classes=len(chosen.class_order))
    if name == "paper" and paper_sizes is not None:
        n_classes, n_experiences = paper_sizes
        if chosen.n_classes is None:
            chosen = replace(chosen, n_classes=n_classes)
        if chosen.n_experiences is None and chosen.classes_per_experience is None:
            chosen = replace(chosen, n_experiences=n_experiences)
    changes: dict[str, Any] = dict.fromkeys(not_in_data)
    for field in fields(chosen):
        value = getattr(chosen, field.name)
        if value is not None:
            changes[field.name] = value
    return replace(protocol, **changes)


def b_sizes(first: int, step: int, n_classes: int) -> list[int]:
    """Number of classes of each experience of ``B<first>-C<step>``: B40-C10 of 80 is 40, 10, 10, 10, 10."""
    if step == 0 or first > n_classes or (n_classes - first) % step:
        raise ValueError(
            f"protocol 'B{first}-C{step}' does not fit {n_classes} classes: after the first {first} there "
            f"must be experiences of {step} each; choose other numbers, or pass n_classes=."
        )
    later = [step] * ((n_classes - first) // step)
    return [first, *later] if first > 0 else later
