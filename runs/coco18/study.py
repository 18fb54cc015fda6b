"""Every method on real photos: 18 classes of COCO in 6 experiences, EfficientNet-Lite0 at 128 pixels.

    python runs/coco18/study.py --data ROOT                  # all parts
    python runs/coco18/study.py --data ROOT --part frozen    # heads alone, half an hour instead of hours
    python runs/coco18/study.py --data ROOT --part statistics  # statistics in place of stored images, minutes
    python runs/coco18/study.py                              # the page alone, from the tables of results

ROOT has COCO's folders with some thousand photos. Settings are chosen for each method on photos held out of
training, with the same number of trials for each method; then each runs with three seeds. Finished runs are
not repeated, so the same command continues after a stop. At the end the tables of results beside this file,
report.html, RESULTS.md, the table in README.md and the settings of `--defaults small` are written. It needs
`pip install avalanche-agcn[lite]`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.exit_codes import expected_errors
from avalanche_agcn.experiments.methods import ABLATIONS, FULL, METHODS, SMALL_FILE, name_of
from avalanche_agcn.experiments.page import PAGE_FILE, write_html
from avalanche_agcn.experiments.report import Part, write_page
from avalanche_agcn.experiments.results import Results, find_results, group_by_label
from avalanche_agcn.experiments.search import CHOSEN_FILE, Entry, LogUniform, Study, read_choices
from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings
from avalanche_agcn.experiments.tables import Table, summary_text

HERE = Path(__file__).parent
TITLE = "Every method on photos of COCO"
PARTS = {
    "statistics": "Statistics in place of stored images, network frozen",
    "frozen": "Network frozen, heads trained",
    "whole": "Whole network trained",
}
README_ROWS = (
    "multitask_ridge",
    "streaming_ridge",
    "agcn statistics",
    "finetuning + statistics",
    "er + negatives",
    "agcn",
    "finetuning",
)
SMALL_LABELS = ("multitask_ridge", "streaming_ridge", "agcn", "agcn statistics", "finetuning + statistics")
"""Labels of the part ``statistics`` whose fixed settings `--defaults small` has."""
README_MARKS = "<!-- results -->\n", "<!-- end of results -->"
MEMORY = {"mem_size": 200, "batch_size_mem": 8}  # as many images of the stream per step, also for SCR
NEGATIVES = {"negatives": ("memory",)}
RATES = {"lr": LogUniform(1e-4, 1e-2)}  # of a linear classifier over the frozen network
WITHOUT_STATISTICS = {  # chosen by trials for AGCN with orthogonal words
    "orthogonal_words": True, "lr_gcn": 2.8e-4, "lambda_cls": 0.7, "lambda_dst": 0.3, "lambda_gph": 48.0,
}  # fmt: skip
TUNED = ("multitask", "finetuning", "ewc", "lwf", "agem", "er", "prs", "ocdm", "scr")
"""Methods beside AGCN that have trials in the parts ``frozen`` and ``whole``."""
REPLAYING = ("er", "prs", "ocdm", "scr")
HEADS = HERE / "heads"
"""What trials over the frozen network had chosen before the whole network was trained: where that begins."""
HEAD = {"lr": "lr_head"}  # with the network frozen, the one learning rate is the head's
SMALL_NETWORKS = {
    "photos": {
        "backbone": "efficientnet_lite0", "pretrained": True, "pool": "avg", "image_size": 224,
        "freeze_backbone": True, "lr": 1e-5, "eval_mb_size": 32,
    },
    "scenes": {
        "backbone": "small", "pretrained": True, "image_size": 64, "freeze_backbone": True, "lr": 1e-5,
        "n_classes": 20, "n_experiences": 5,
    },
}  # fmt: skip
"""Networks of `--defaults small`, frozen. 224 pixels are what the photos' network was trained with; that of
the scenes was trained on the other 20 drawn classes."""
SCENE_RATES = {"lr_head": 0.03, "lr_gcn": 1e-3}
"""Learning rates over the network of the scenes, whose features have another scale: the best of 1e-3 to 0.1
and 3e-5 to 3e-3 on held-out scenes, for Fine-Tuning and ER, and for AGCN with and without statistics."""
UNTRIED = {"l3a": {}, "csc": {"orthogonal_words": True, "lr_gcn": WITHOUT_STATISTICS["lr_gcn"]}}
"""Methods that the study does not have yet: the published settings, and AGCN's learning rate."""


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
            studies = {
                "statistics": statistics(base),
                "frozen": frozen(base),
                "whole": whole(base, read_choices(HEADS)),
            }
            for part in arguments.part:
                studies[part].run(arguments.out / part, jobs=arguments.jobs)
        make_page(arguments.out, arguments.page, arguments.figures)
        if arguments.out == HERE:
            write_small(read_choices(HERE / "frozen"), SMALL_FILE)
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
    write_html(folder / PAGE_FILE, {part.title: part.results for part in parts.values()}, title=TITLE)
    if "statistics" in parts:
        fill_readme(out.parent / "README.md", parts["statistics"].results)


def fill_readme(readme: Path, results: Sequence[Results]) -> None:
    """Replace the table of results in README.md, if there is one between its marks."""
    groups = group_by_label(results)
    rows = [
        [
            name_of(label),
            str(groups[label][0].settings["method_settings"].get("mem_size", 0)),
            *(summary_text(groups[label], metric, "last") for metric in ("mAP", "CF1", "OF1")),
        ]
        for label in README_ROWS
    ]
    table = Table(["after the last experience, in percent", "stored photos", "mAP", "CF1", "OF1"], rows)
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    before, start, rest = text.partition(README_MARKS[0])
    _, end, after = rest.partition(README_MARKS[1])
    if end:
        write_text(readme, before + start + table.markdown() + end + after)


def write_small(frozen_choices: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write the settings of `--defaults small`: what was chosen for each label over the frozen network.

    Args:
        frozen_choices: of the part ``frozen``.
        path: the file, `SMALL_FILE` of the package.
    """
    base = base_settings(dataset_root="ROOT")
    chosen = {label: dict(own["settings"]) for label, own in frozen_choices.items()}
    fixed = {entry.label: entry.settings for entry in frozen(base).entries if entry.label in chosen}
    labels = [*TUNED, *(f"{method} + negatives" for method in REPLAYING), f"{FULL} official"]
    found: dict[str, dict[str, Any]] = {label: {**fixed[label], **chosen[label]} for label in labels}
    found |= {
        entry.label: entry.settings for entry in statistics(base).entries if entry.label in SMALL_LABELS
    }
    found |= UNTRIED
    methods = {
        label: {
            HEAD.get(name, name): value
            for name, value in own.items()
            if name not in ("method", "preset", "negatives")
        }
        for label, own in found.items()
    }
    order = [label for label in (*METHODS, *sorted(methods)) if label in methods]
    write_json(
        path,
        {
            "networks": SMALL_NETWORKS,
            "scene_rates": SCENE_RATES,
            "methods": {label: methods[label] for label in dict.fromkeys(order)},
        },
    )


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


def statistics(base: Settings) -> Study:
    """Methods with negatives from statistics beside those without, with fixed settings.

    They were chosen on held-out train photos: those without statistics by the trials of the part ``frozen``.
    """
    frozen_base = change_settings(base, freeze_backbone=True)
    gcn = {"method": FULL, "preset": "statistics"}
    own: dict[str, dict[str, Any]] = {
        "multitask_ridge": {"method": "multitask_ridge"},
        "streaming_ridge": {"method": "streaming_ridge"},
        "streaming_ridge fixed": {"method": "streaming_ridge", "ridge": 3000.0, "refine": None},
        "agcn statistics": gcn,
        "agcn statistics + er": {**gcn, **MEMORY},
        "agcn statistics + er + negatives": {**gcn, **MEMORY, **NEGATIVES},
        "finetuning + statistics": {"method": "finetuning", "negatives": ("statistics",), "lr": 3e-3},
        "er + negatives": {"method": "er", **MEMORY, **NEGATIVES, "lr": 2.1e-3},
        "agcn": {"method": FULL, **WITHOUT_STATISTICS},
        "finetuning": {"method": "finetuning", "lr": 2.3e-3},
    }
    entries = [Entry(label=label, settings=settings) for label, settings in own.items()]
    return Study(base=frozen_base, entries=entries, trials=0)


def frozen(base: Settings) -> Study:
    """Heads over features that are computed once: cheap enough for everything."""
    orthogonal = {"orthogonal_words": True}
    entries = [
        *(make_entry(method) for method in TUNED),
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
        if entry.label in [*TUNED, FULL, "er + negatives", *of_agcn]:
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
