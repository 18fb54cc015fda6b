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
        flip: whether half of the train images are mirrored.
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
    long_tail: float | None = None
    crowds: Crowds | None = None
    difficult: Difficult | None = None
    image_size: int | None = None
    flip: bool | None = None

    def __post_init__(self) -> None:
        for name in ("n_classes", "n_experiences"):
            if getattr(self, name) is not None:
                check_whole_number(name, getattr(self, name))
        choices = {"test_images": split.TestImages, "crowds": Crowds, "difficult": Difficult}
        for name, known in choices.items():
            check_choice(name, getattr(self, name), [None, *get_args(known)])

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.repeat_images:
            del values["assignment"]
        values = {"protocol": values.pop("name")} | values
        for name, value in values.items():
            if isinstance(value, Sequence) and not isinstance(value, str):
                values[name] = ", ".join(map(str, value))
        return "\n".join(f"{name}: {value}" for name, value in values.items() if value is not None)

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
    name: str, *, paper_sizes: tuple[int, int] | None = None, without: Sequence[str] = (), **explicit: Any
) -> Protocol:
    """The protocol ``"paper"`` or ``"B<n>-C<m>"``; explicit settings that are not None override its own.

    ``paper_sizes`` are the numbers of classes and experiences of the paper's benchmark of this data, if it
    has one; settings in ``without`` do not apply to the data.
    """
    known = {field.name for field in fields(Protocol)} - {"name", *without}
    unknown = sorted(explicit.keys() - known)
    if unknown:
        raise TypeError(f"There is no setting {', '.join(unknown)} here, only {', '.join(sorted(known))}.")
    given: dict[str, Any] = dict.fromkeys(without)
    given |= {setting: value for setting, value in explicit.items() if value is not None}
    if split.is_order_of_names(given.get("class_order")):
        given.setdefault("n_classes", len(given["class_order"]))
    if B_PROTOCOL.fullmatch(name):
        return replace(B, name=name, **given)
    if name != "paper":
        raise ValueError(f"protocol must be 'paper' or 'B<n>-C<m>', such as 'B0-C10', not {name!r}.")
    if paper_sizes is not None:
        given.setdefault("n_classes", paper_sizes[0])
        if "classes_per_experience" not in given:
            given.setdefault("n_experiences", paper_sizes[1])
    return replace(PAPER, **given)


def resolve_options(name: str, options: dict[str, Any], **of_data: Any) -> tuple[Protocol, ImageOptions]:
    """The protocol and the image options, from the options of a benchmark; see `resolve_protocol`."""
    images = ImageOptions.take_from(options)
    return resolve_protocol(name, **of_data, **options, image_size=images.image_size), images


def b_sizes(first: int, step: int, n_classes: int) -> list[int]:
    """Number of classes of each experience of ``B<first>-C<step>``: B40-C10 of 80 is 40, 10, 10, 10, 10."""
    if step == 0 or first > n_classes or (n_classes - first) % step:
        raise ValueError(
            f"protocol 'B{first}-C{step}' does not fit {n_classes} classes: after the first {first} there "
            f"must be experiences of {step} each; choose other numbers, or pass n_classes=."
        )
    return [first] * (first > 0) + [step] * ((n_classes - first) // step)
