"""Every method on real photos: 18 classes of COCO in 6 experiences, EfficientNet-Lite0 at 128 pixels.

    python runs/coco18/study.py --data ROOT                  # both parts: network frozen, all of it trained
    python runs/coco18/study.py --data ROOT --part frozen    # the first alone, half an hour instead of hours
    python runs/coco18/study.py                              # the page alone, from the tables of results

ROOT has COCO's folders with some thousand photos. Settings are chosen for each method on photos held out of
training, with the same number of trials for each method; then each runs with three seeds. Finished runs are
not repeated, so the same command continues after a stop. At the end the tables of results beside this file
and RESULTS.md are written. It needs `pip install avalanche-agcn[lite]`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from avalanche_agcn.experiments.cli import expected_errors
from avalanche_agcn.experiments.methods import ABLATIONS, FULL, METHODS
from avalanche_agcn.experiments.report import Part, write_page
from avalanche_agcn.experiments.results import find_results
from avalanche_agcn.experiments.search import CHOSEN_FILE, Entry, LogUniform, Study, read_choices
from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings

HERE = Path(__file__).parent
PARTS = {"frozen": "Network frozen, heads trained", "whole": "Whole network trained"}
MEMORY = {"mem_size": 200, "batch_size_mem": 8}  # as many images of the stream per step, also for SCR
NEGATIVES = {"negatives": ("memory",)}
RATES = {"lr": LogUniform(1e-4, 1e-2)}  # of a linear classifier over the frozen network
REPLAYING = ("er", "prs", "ocdm", "scr")
HEADS = HERE / "heads"
"""What trials over the frozen network had chosen before the whole network was trained: where that begins."""
HEAD = {"lr": "lr_head"}  # with the network frozen, the one learning rate is the head's


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", metavar="ROOT", help="folder with COCO's folders; without it nothing is run"
    )
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR", help="folder of results")
    parser.add_argument("--page", type=Path, default=Path("RESULTS.md"), metavar="FILE", help="page to write")
    parser.add_argument("--figures", type=Path, default=Path("figures"), metavar="DIR", help="for its plots")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time, of one thread each")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen network")
    arguments = parser.parse_args(argv)
    try:
        if arguments.data:
            base = base_settings(dataset_root=arguments.data, cache=arguments.cache)
            studies = {"frozen": frozen(base), "whole": whole(base, read_choices(HEADS))}
            for part in arguments.part:
                studies[part].run(arguments.out / part, jobs=arguments.jobs)
        make_page(arguments.out, arguments.page, arguments.figures)
    except expected_errors() as error:
        print(
            f"Stopped: {error}\nFinished runs are in {arguments.out}; the same command continues from there."
        )
        return 1
    return 0


def make_page(folder: Path, out: Path, figures: Path) -> None:
    """Write the page and its plots from the tables of results.

    Args:
        folder: has a folder for each part that was run.
        out: the page.
        figures: folder for the plots.

    Raises:
        FileNotFoundError: if no part was run.
    """
    found = {part: folder / part for part in PARTS if (folder / part / CHOSEN_FILE).is_file()}
    if not found:
        raise FileNotFoundError(f"no results in {folder}; run the study first, with --data")
    parts = {part: Part(PARTS[part], find_results([own]), read_choices(own)) for part, own in found.items()}
    text = (HERE / "discussion.md").read_text(encoding="utf-8")
    write_page(out, text, parts, figures=figures, name=HERE.name)


def base_settings(**given: Any) -> Settings:
    """Settings that all runs share."""
    return make_settings(
        "coco",
        n_classes=18,
        n_experiences=6,
        backbone="efficientnet_lite0",
        image_size=128,
        pool="avg",
        **given,
    )


def frozen(base: Settings) -> Study:
    """Heads over features that are computed once: cheap enough for everything."""
    orthogonal = {"orthogonal_words": True}
    entries = [
        *(make_entry(method) for method in METHODS if method != FULL),
        *(make_entry(method, " + negatives", NEGATIVES) for method in REPLAYING),
        make_entry(FULL),
        make_entry(FULL, " official", {"preset": "official"}),
        make_entry(FULL, " orthogonal words", orthogonal),
        make_entry(FULL, " orthogonal words + er + negatives", {**orthogonal, **MEMORY, **NEGATIVES}),
    ]
    for policy in ("er", "prs", "ocdm"):
        settings = {"storage_policy": policy, **MEMORY}
        entries += [
            make_entry(FULL, f" + {policy}", settings),
            make_entry(FULL, f" + {policy} + negatives", settings | NEGATIVES),
        ]
    tuned = ("agcn-words-plain", "agcn-words-orthogonal")  # these are above, with trials of their own
    entries += [
        Entry(label=label, settings={"method": FULL}, like=FULL) for label in ABLATIONS if label not in tuned
    ]
    return Study(base=change_settings(base, freeze_backbone=True), entries=entries, trials=12)


def whole(base: Settings, of_heads: Mapping[str, Mapping[str, Any]]) -> Study:
    """All weights trained: the network's learning rate is chosen, the rest is as chosen for heads alone.

    Args:
        base: settings that all share.
        of_heads: what was chosen for heads.
    """
    of_agcn = ["agcn official", "agcn orthogonal words", "agcn orthogonal words + er + negatives"]
    entries = []
    for entry in frozen(base).entries:
        if entry.label in [*METHODS, "er + negatives", *of_agcn]:
            chosen = of_heads[entry.label]["settings"]
            own = {HEAD.get(name, name): value for name, value in chosen.items()}
            rates = [{"lr": 1e-5}, {"lr": 5e-5}]
            entries.append(replace(entry, settings={**entry.settings, **own}, space={"lr": rates}))
    base = change_settings(base, freeze_batchnorm=True, fold_batchnorm=True)
    return Study(base=base, entries=entries, trials=2, trial_settings={"limit": 500})


def make_entry(method: str, suffix: str = "", settings: Mapping[str, Any] | None = None) -> Entry:
    """A method with its own settings to choose."""
    known = METHODS[method]
    baseline = known.model == "linear"  # AGCN has no memory of its own
    memory = {name: value for name, value in MEMORY.items() if baseline and name in known.arguments}
    return Entry(
        label=method + suffix,
        settings={"method": method, **memory, **(settings or {})},
        space={**(RATES if baseline else {}), **known.search},
    )


if __name__ == "__main__":
    raise SystemExit(main())
