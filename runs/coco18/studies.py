"""The runs of the study: settings, rows and trials of each of its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from avalanche_agcn.experiments.methods import ABLATIONS, FULL, METHODS, SEARCHES
from avalanche_agcn.experiments.search import Entry, LogUniform, Study, read_choices
from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings

HERE = Path(__file__).parent
Choices = Mapping[str, Mapping[str, Any]]
"""Settings that trials chose for each label."""
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
BASELINES = ("finetuning", "ewc", "lwf", "agem", *REPLAYING)
FEW = ("streaming_ridge", "agcn statistics", "finetuning + statistics", "er + negatives", "finetuning")
"""Rows of the parts that vary one setting."""
UNDER_B = (
    *("multitask_ridge", "finetuning", "lwf", "er", "er + negatives", "finetuning + pseudo-labels"),
    *("agcn", "agcn statistics", "csc", "l3a", "streaming_ridge"),
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
    *("agcn-no-cross", "agcn-identity-graph", "agcn-lambda3-0"),
    *("agcn-words-plain", "agcn-words-random"),
)
HEADS = HERE / "heads"
"""Choices over the frozen backbone that were known when the baselines' whole networks were trained."""
HEAD = {"lr": "lr_head"}  # with a frozen backbone, the one learning rate is the head's


def base_settings(**given: Any) -> Settings:
    """Settings that all runs share."""
    stream, network = {"n_classes": 18, "n_experiences": 6}, {"backbone": "efficientnet_lite0", "pool": "avg"}
    return make_settings("coco", image_size=128, **stream, **network, **given)


def frozen(base: Settings, _: Choices) -> Study:
    """Every method over features that are computed once, each with its trials."""
    gcn = {**GCN_STATISTICS, **MEMORY}
    entries = [
        make_entry("multitask"),
        Entry(label="multitask_ridge", settings={"method": "multitask_ridge"}),
        *(make_entry(method) for method in BASELINES),
        *(make_entry(method, " + negatives", NEGATIVES) for method in REPLAYING),
        *(make_entry(method, " + statistics", STATISTICS) for method in ("finetuning", "ewc", "lwf", "er")),
        make_entry("finetuning", " + pseudo-labels", PSEUDO),
        make_entry("finetuning", " + pseudo-labels + statistics", {**PSEUDO, **STATISTICS}),
        make_entry(FULL),
        make_entry(FULL, " official", {"preset": "official"}),
        make_entry(FULL, " orthogonal words", ORTHOGONAL),
        make_entry(FULL, " orthogonal words + er + negatives", {**ORTHOGONAL, **MEMORY, **NEGATIVES}),
        make_entry(FULL, " statistics", GCN_STATISTICS),
        make_entry(FULL, " statistics + er", gcn),
        make_entry(FULL, " statistics + er + negatives", {**gcn, **NEGATIVES}),
        make_entry("csc", "", ORTHOGONAL),
        make_entry("csc", " + statistics", {**ORTHOGONAL, **STATISTICS}),
        make_entry("l3a"),
        make_entry("streaming_ridge"),
        Entry(label="streaming_ridge, not tuned", settings={"method": "streaming_ridge"}),
    ]
    base = change_settings(base, freeze_backbone=True)
    return Study(base=base, entries=entries, trials=TRIALS, class_orders=ORDERS)


def make_entry(method: str, suffix: str = "", settings: Mapping[str, Any] | None = None) -> Entry:
    """A method with its own settings to choose."""
    known = METHODS[method]
    by_gradient = known.model == "linear" and method != "streaming_ridge"
    memory = MEMORY if method in ("agem", *REPLAYING) else {}
    own = {name: value for name, value in memory.items() if name in known.arguments}
    return Entry(
        label=method + suffix,
        settings={"method": method, **own, **(settings or {})},
        space={**(RATES if by_gradient else {}), **SEARCHES.get(method, {})},
    )


def chosen_entries(base: Settings, chosen: Choices, labels: Sequence[str]) -> dict[str, Entry]:
    """Rows of the part ``frozen`` with the settings that its trials chose."""
    known = {entry.label: entry for entry in frozen(base, {}).entries}
    missing = [label for label in labels if known[label].space and label not in chosen]
    if missing:
        raise ValueError(f"no settings were chosen for {missing} yet: run --part frozen first.")
    entries = {}
    for label in labels:
        settings = {**known[label].settings, **chosen.get(label, {}).get("settings", {})}
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


def vary(part: str, base: Settings, chosen: Choices) -> Study:
    """Some rows with some settings changed, under labels such as ``"er, 9 experiences"``."""
    labels, changes = VARIED[part]
    entries = [
        replace(entry, label=f"{label}, {name}", settings={**entry.settings, **own})
        for label, entry in chosen_entries(base, chosen, labels).items()
        for name, own in changes.items()
    ]
    return Study(base=change_settings(base, freeze_backbone=True), entries=entries, trials=0)


def b_protocol(base: Settings, chosen: Choices) -> Study:
    """Methods under the protocol of KRT, CSC and L3A, with the settings chosen under AGCN's."""
    rules = {"protocol": "B0-C3", "n_classes": None, "n_experiences": None}
    settings = change_settings(base, freeze_backbone=True, **rules, image_size=base.image_size)
    return Study(base=settings, entries=[*chosen_entries(base, chosen, UNDER_B).values()], trials=0)


def parts_of_agcn(base: Settings, chosen: Choices) -> Study:
    """AGCN with statistics, and without a part of it; StreamingRidge without label relations."""
    base = change_settings(base, freeze_backbone=True)
    full, ridge = chosen_entries(base, chosen, ["agcn statistics", "streaming_ridge"]).values()
    entries = [full]
    for label in WITHOUT_A_PART:
        own = ABLATIONS[label].changes(change_settings(base, **full.settings).method_settings)
        entries.append(replace(full, label=label, settings={**full.settings, **own}))
    without = {**ridge.settings, "refine": None}
    entries += [ridge, replace(ridge, label="streaming_ridge, no relations", settings=without)]
    return Study(base=base, entries=entries, trials=0)


RATE = {"lr": 1e-5}
WITH_STATISTICS = ("streaming_ridge", "finetuning + statistics", "agcn statistics")


def whole(base: Settings, chosen: Choices) -> Study:
    """All weights trained: the network's learning rate is chosen, the rest is as chosen for heads alone.

    Rows with statistics use the rate that all others chose. Their auxiliary head has its own default.
    """
    of_heads = read_choices(HEADS)
    rates = {"lr": [RATE, {"lr": 5e-5}]}
    entries = []
    for entry in chosen_entries(base, chosen, WITH_STATISTICS).values():
        own = {HEAD.get(name, name): value for name, value in entry.settings.items()}
        entries.append(replace(entry, settings={**own, **RATE}))
    without = {**entries[0].settings, "held_images": 0}
    entries.append(replace(entries[0], label="streaming_ridge, no held images", settings=without))
    for entry in frozen(base, {}).entries:
        if entry.label in of_heads:
            own = {HEAD.get(name, name): value for name, value in of_heads[entry.label]["settings"].items()}
            entries.append(replace(entry, settings={**entry.settings, **own}, space=rates))
    base = change_settings(base, freeze_batchnorm=True, fold_batchnorm=True)
    return Study(base=base, entries=entries, trials=2, trial_settings={"limit": 500})


PARTS: dict[str, tuple[str, Callable[[Settings, Choices], Study]]] = {
    "frozen": ("Frozen backbone, all methods", frozen),
    "conventions": ("What each convention of the protocols changes", partial(vary, "conventions")),
    "b0c3": ("Under the protocol B0-C3", b_protocol),
    "memory": ("Size of the memory", partial(vary, "memory")),
    "experiences": ("Number of experiences", partial(vary, "experiences")),
    "photos": ("Number of photos", partial(vary, "photos")),
    "backbone": ("Another network", partial(vary, "backbone")),
    "agcn": ("Parts of AGCN with statistics", parts_of_agcn),
    "whole": ("Whole network trained", whole),
}
"""Title and study of each part, in the order in which they run."""
