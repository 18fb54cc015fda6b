"""Split-COCO as published: 40 classes of COCO 2014 in 10 experiences, 65,072 train and 23,843 test photos.

ROOT has COCO's folders, LISTS the published lists, and the word vectors are GloVe's with 300 dimensions:

    python runs/studies/study.py split_coco --data ROOT --split-lists LISTS --word-vectors coco80.300d.txt

87.7 % of the test photos of the published lists (23,843 of 27,172) are in the mirror that these runs used.
"""

from dataclasses import replace
from typing import Any

from declare import Choices, Entry, Part, PartOfStream, Stream
from rows import OF_EQUAL_BYTES, equal_bytes, frozen_entries, frozen_entry, without_a_part

from avalanche_agcn.experiments.methods import ABLATIONS, FULL, SEARCHES, LogUniform
from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings

SEED_0 = (0,)
THREE_SEEDS = (0, 1, 2)
PARTS_OF_AGCN = (
    "agcn-no-cross",
    "agcn-identity-graph",
    "agcn-lambda3-0",
    "agcn-words-plain",
    "agcn-words-random",
)
TUNED = {
    "finetuning": {"lr_head": LogUniform(1e-4, 1e-2)},
    "finetuning + statistics": {"lr_head": LogUniform(1e-4, 1e-2)},
    "agcn statistics": SEARCHES[FULL],
    "streaming_ridge": SEARCHES["streaming_ridge"],
}
"""Rows whose settings are also chosen on this stream, and what is chosen."""
PHOTOS_OF_SUMS = {"exact": 4900, "compact": 520}
"""Train photos, of 13.5 kB on average as JPEG files, that take the bytes of the sums: 66.1 MB and 7.0 MB."""
UNLABELLED_AS_0 = {"unlabelled_as_negative": True}
REPLAY_OF_ALL = {"batch_size_mem": 8}
"""SCR replays as many photos per step as the others; with the 100 of its paper, a run takes four hours."""
MOMENTUM = {"freeze_batchnorm": False, "batchnorm_momentum": 0.1}
IN_THE_PAPERS_REGIME = {"freeze_backbone": False, "image_size": 64}
"""Changes of a row with a frozen backbone; its learning rate of the network, 1e-5, is kept."""


def base_settings(**given: Any) -> Settings:
    """Settings that all runs share."""
    return make_settings("coco", **given)


def frozen(base: Settings, _: Choices) -> Part:
    """Every method over features that are computed once, with the settings chosen on coco18."""
    return Part(base=base, entries=frozen_entries())


def tuned(base: Settings, _: Choices) -> Part:
    """The rows that matter most with settings chosen on a held-out tenth of this stream's train photos."""
    entries = [replace(frozen_entry(label), space=space) for label, space in TUNED.items()]
    return Part(base=base, entries=entries, trials=12, validation_size=0.1)


def paper(base: Settings, _: Choices) -> Part:
    """The paper's settings with the whole network trained, but for the network and the size of its input."""
    base = change_settings(base, backbone="efficientnet_lite0", image_size=64, freeze_batchnorm=True)
    entries = []
    for method in ("multitask", "finetuning", "ewc", "lwf", "agem", "er", "prs", "scr", FULL):
        seeds = THREE_SEEDS if method in ("finetuning", "lwf", FULL) else SEED_0
        settings = {"method": method, **(REPLAY_OF_ALL if method == "scr" else {})}
        entries.append(Entry(label=method, settings=settings, seeds=seeds))
    for method in ("er", "prs", "scr"):  # the paper does not say how many photos its memories hold
        settings = {"method": method, "mem_size": 200, **(REPLAY_OF_ALL if method == "scr" else {})}
        entries.append(Entry(label=f"{method}, 200 photos", settings=settings))
    entries.append(Entry(label="agcn official", settings={"method": FULL, "preset": "official"}))
    for method in ("finetuning", "lwf", "er"):
        label = f"{method}, unlabelled as 0"
        entries.append(Entry(label=label, settings={"method": method, **UNLABELLED_AS_0}))
    for method in ("finetuning", FULL):
        label = f"{method}, batch normalisation with momentum 0.1"
        entries.append(Entry(label=label, settings={"method": method, **MOMENTUM}))
    for label in ("agcn statistics", "streaming_ridge"):
        row = frozen_entry(label)
        entries.append(replace(row, settings={**row.settings, **IN_THE_PAPERS_REGIME}))
    agcn = change_settings(base, method=FULL)
    for label, variant in ABLATIONS.items():
        if variant.table in ("2", "3"):
            changes = variant.changes(agcn.method_settings)
            entries.append(Entry(label=label, settings={"method": FULL, **changes}))
    return Part(base=base, entries=entries, seeds=SEED_0)


def zeros(base: Settings, _: Choices) -> Part:
    """Methods whose loss depends on it, with 0 instead of NaN for the classes of other experiences."""
    entries = []
    for method in ("finetuning", "ewc", "lwf", "agem", "er", "prs", "ocdm", "scr", FULL, "csc"):
        row = frozen_entry(method)
        settings = {**row.settings, **UNLABELLED_AS_0}
        entries.append(replace(row, label=f"{method}, unlabelled as 0", settings=settings))
    return Part(base=base, entries=entries)


def parts(base: Settings, _: Choices) -> Part:
    """AGCN with statistics, frozen, without one of its parts each."""
    full = frozen_entry("agcn statistics")
    shared_map = {**full.settings, "graph": "identity", "lambda_gph": 0.0}
    alone = replace(full, label="agcn statistics, shared map alone", settings=shared_map)
    weights = change_settings(base, **full.settings).method_settings
    return Part(base=base, entries=[full, *without_a_part(full, weights, PARTS_OF_AGCN), alone])


def bytes_of_sums(base: Settings, _: Choices) -> Part:
    """Every row may keep as many bytes as StreamingRidge's sums take, exact or compact."""
    rows = {label: frozen_entry(label) for label in OF_EQUAL_BYTES}
    return Part(base=base, entries=equal_bytes(rows, PHOTOS_OF_SUMS), seeds=SEED_0)


STREAM = Stream(
    name="split_coco",
    title="Split-COCO, as published",
    base=base_settings,
    files={"split_lists": "split_coco", "word_vectors": "coco80.300d.txt"},
    parts={
        "frozen": PartOfStream(title="Frozen backbone at 224 pixels, all methods", declare=frozen),
        "zeros": PartOfStream(title="Frozen backbone, unlabelled classes as 0", declare=zeros),
        "tuned": PartOfStream(
            title="Frozen backbone, settings chosen on held-out train photos of this stream", declare=tuned
        ),
        "paper": PartOfStream(title="Whole network, the paper's settings, 64 pixels", declare=paper),
        "bytes": PartOfStream(title="Frozen backbone, equal bytes", declare=bytes_of_sums),
        "parts": PartOfStream(title="Parts of AGCN with statistics, frozen backbone", declare=parts),
    },
)
