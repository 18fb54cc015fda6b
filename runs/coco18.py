"""Every method on real photos: 18 classes of COCO in 6 experiences, EfficientNet-Lite0 at 128 pixels.

    python runs/coco18.py --data ROOT                     both parts: network frozen, and trained as a whole
    python runs/coco18.py --data ROOT --part frozen       the first alone, half an hour instead of hours

ROOT has COCO's folders with some thousand photos. Settings are chosen for each method on photos held out of
training, with as many trials for one as for another; then each runs with three seeds. What is there already
in the folder of results is not run again, so the same command goes on after a stop. At the end RESULTS.md is
written. It needs `pip install avalanche-agcn[lite]`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from avalanche_agcn.experiments.ablations import FULL, VARIANTS, WORDS_AS_THEY_ARE, WORDS_ORTHOGONAL
from avalanche_agcn.experiments.cli import EXPECTED
from avalanche_agcn.experiments.results_page import write_page
from avalanche_agcn.experiments.settings import Settings, make_settings
from avalanche_agcn.experiments.study import Between, Entry, Study, read_choices

MEMORY = {"memory": 200, "memory_batch": 8}  # as many images of the stream a step, also for SCR
NEGATIVES = {"negatives_of_newer": True}
WEIGHTS = [
    {"lambda_cls": first, "lambda_dst": round(1 - first, 2)} for first in (0.07, 0.2, 0.35, 0.5, 0.7)
]  # λ₁ + λ₂ = 1, as in the paper
OF_METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "multitask": ({}, {}),
    "finetuning": ({}, {}),
    "ewc": ({}, {"ewc_lambda": Between(1, 1e5)}),
    "lwf": ({}, {"lwf_lambda": Between(0.1, 30)}),
    "agem": (MEMORY, {}),
    "er": (MEMORY, {}),
    "prs": (MEMORY, {}),
    "ocdm": (MEMORY, {}),
    "scr": (MEMORY, {"scr_weight": Between(0.01, 1)}),
}
"""What each method fixes, and what it chooses beside the learning rate."""
HEADS = Path(__file__).parent / "coco18" / "heads"
"""What trials over the frozen network had chosen before the whole network was trained: where that begins."""
HEAD = {"lr": "lr_head"}  # with the network frozen, the one learning rate is the head's


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, metavar="ROOT", help="folder with COCO's folders")
    parser.add_argument("--part", choices=("frozen", "whole"), nargs="+", default=["frozen", "whole"])
    parser.add_argument(
        "--out", type=Path, default=Path("runs/coco18"), metavar="DIR", help="folder of results"
    )
    parser.add_argument("--page", type=Path, default=Path("RESULTS.md"), metavar="FILE", help="page to write")
    parser.add_argument("--figures", type=Path, default=Path("figures"), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time, of one thread each")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen network")
    arguments = parser.parse_args(argv)
    base = make_settings(
        "coco",
        data=arguments.data,
        cache=arguments.cache,
        n_classes=18,
        n_experiences=6,
        backbone="efficientnet_lite0",
        image_size=128,
        pool="avg",
    )
    try:
        if "frozen" in arguments.part:
            frozen(base).go(arguments.out / "frozen", jobs=arguments.jobs)
        if "whole" in arguments.part:
            whole(base, read_choices(HEADS)).go(arguments.out / "whole", jobs=arguments.jobs)
        write_page(arguments.out, arguments.page, arguments.figures)
    except EXPECTED as error:
        print(f"Stopped: {error}\nWhat was done is in {arguments.out}; the same command goes on from there.")
        return 1
    return 0


def frozen(base: Settings) -> Study:
    """Heads over features that are computed once: cheap enough for everything."""
    rates = {"lr": Between(1e-4, 1e-2)}
    agcn = {"lr_gcn": Between(3e-5, 1e-3), "weights": WEIGHTS, "lambda_gph": Between(1, 1e5)}
    entries = [
        *(make_entry(method, rates) for method in OF_METHODS),
        *(make_entry(method, rates, NEGATIVES, " + negatives") for method in ("er", "prs", "ocdm", "scr")),
        Entry(label=FULL, settings={"method": "agcn"}, space=agcn),
        Entry(label="agcn official", settings={"method": "agcn", "preset": "official"}, space=agcn),
    ]
    orthogonal = {"method": "agcn", "orthogonal_words": True}
    entries += [
        Entry(label="agcn orthogonal words", settings=orthogonal, space=agcn),
        Entry(
            label="agcn orthogonal words + er + negatives",
            settings={**orthogonal, **MEMORY, **NEGATIVES},
            space=agcn,
        ),
    ]
    for kind in ("er", "prs", "ocdm"):
        settings = {"method": "agcn", "memory_kind": kind, **MEMORY}
        entries += [
            Entry(label=f"agcn + {kind}", settings=settings, space=agcn),
            Entry(label=f"agcn + {kind} + negatives", settings=settings | NEGATIVES, space=agcn),
        ]
    entries += [
        Entry(label=name, settings={"method": "agcn"}, like=FULL, variant=variant)
        for name, variant in VARIANTS.items()
        if name
        not in (FULL, WORDS_AS_THEY_ARE, WORDS_ORTHOGONAL)  # these are above, with trials of their own
    ]
    return Study(base=replace(base, freeze_backbone=True), entries=entries, trials=12)


def whole(base: Settings, of_heads: Mapping[str, Mapping[str, Any]]) -> Study:
    """All weights trained: the network's learning rate is chosen, the rest is as chosen for heads alone.

    Args:
        base: Settings that all share.
        of_heads: What was chosen for heads.
    """
    of_agcn = [FULL, "agcn official", "agcn orthogonal words", "agcn orthogonal words + er + negatives"]
    entries = []
    for entry in frozen(base).entries:
        if entry.label in [*OF_METHODS, "er + negatives", *of_agcn]:
            chosen = of_heads[entry.label]["settings"]
            own = {HEAD.get(name, name): value for name, value in chosen.items()}
            rates = [{"lr": 1e-5}, {"lr": 5e-5}]
            entries.append(replace(entry, settings={**entry.settings, **own}, space={"lr": rates}))
    base = replace(base, freeze_batchnorm=True, fold_batchnorm=True)
    return Study(base=base, entries=entries, trials=2, trial_settings={"limit": 500})


def make_entry(
    method: str, rates: Mapping[str, Any], settings: Mapping[str, Any] | None = None, suffix: str = ""
) -> Entry:
    """A method with its own settings to choose."""
    fixed, space = OF_METHODS[method]
    return Entry(
        label=method + suffix,
        settings={"method": method, **fixed, **(settings or {})},
        space={**rates, **space},
    )


if __name__ == "__main__":
    raise SystemExit(main())
