"""COCO 2014: all 80 classes under B0-C10 and B40-C10, frozen EfficientNet-Lite0 at 224 pixels.

    python runs/studies/study.py coco80 --data ROOT --word-vectors coco80.300d.txt

ROOT has COCO's folders. Settings are those chosen on coco18. The labels of these photos do not
distinguish crowd boxes from others, so that a crowd counts as a label. One seed each: a photo repeats
in every experience that it has a class of, and a run takes three times as long as on Split-COCO.
"""

from functools import partial
from typing import Any

from declare import Choices, Part, PartOfStream, Stream
from rows import frozen_entries

from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings


def base_settings(**given: Any) -> Settings:
    """Settings that all runs share."""
    return make_settings("coco", **given)


def under(protocol: str, base: Settings, _: Choices) -> Part:
    """Every method under a protocol."""
    base = change_settings(base, protocol=protocol, n_classes=None, n_experiences=None)
    return Part(base=base, entries=frozen_entries(), seeds=(0,))


STREAM = Stream(
    name="coco80",
    title="COCO 2014, 80 classes",
    base=base_settings,
    files={"word_vectors": "coco80.300d.txt"},
    parts={
        "b0c10": PartOfStream(title="B0-C10, frozen backbone", declare=partial(under, "B0-C10")),
        "b40c10": PartOfStream(title="B40-C10, frozen backbone", declare=partial(under, "B40-C10")),
    },
)
