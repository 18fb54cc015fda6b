"""PASCAL VOC 2007: 20 classes under B0-C4, B4-C2 and B10-C2, frozen EfficientNet-Lite0 at 224 pixels.

    python runs/studies/study.py voc2007 --data ROOT

ROOT has `VOCdevkit/VOC2007`. Settings are those chosen on coco18; word vectors are those of the package,
because GloVe files have no words such as "tvmonitor".
"""

from functools import partial
from typing import Any

from declare import Choices, Part, PartOfStream, Stream
from rows import frozen_entries

from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings


def base_settings(**given: Any) -> Settings:
    """Settings that all runs share."""
    return make_settings("voc", **given)


def under(protocol: str, base: Settings, _: Choices) -> Part:
    """Every method under a protocol."""
    base = change_settings(base, protocol=protocol, n_classes=None, n_experiences=None)
    return Part(base=base, entries=frozen_entries())


STREAM = Stream(
    name="voc2007",
    title="PASCAL VOC 2007",
    base=base_settings,
    parts={
        "b0c4": PartOfStream(title="B0-C4, frozen backbone", declare=partial(under, "B0-C4")),
        "b4c2": PartOfStream(title="B4-C2, frozen backbone", declare=partial(under, "B4-C2")),
        "b10c2": PartOfStream(title="B10-C2, frozen backbone", declare=partial(under, "B10-C2")),
    },
)
