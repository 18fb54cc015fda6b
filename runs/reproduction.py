"""Write REPRODUCTION.md: the papers' scores, the cost of reproducing them, and the scores of this package.

    python runs/reproduction.py              # write the page from stored results and times
    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python runs/reproduction.py --measure
                                             # first measure the time of a training step again, in minutes

The scores of this package come from the tables in runs/studies, the other scores from the papers.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import jinja2

from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.methods import name_of
from avalanche_agcn.experiments.results import (
    METRICS,
    TABLE_FILE,
    Results,
    group_by_label,
    read_table,
)
from avalanche_agcn.experiments.tables import TABLE_1, Table, last_stage, score

HERE = Path(__file__).parent
STUDIES = HERE / "studies"
TIMES = HERE / "reproduction.json"
TEMPLATE = HERE / "reproduction.md"
NOT_RUN = "not run"
TEST_PHOTOS = 27_172
"""Test photos in the published lists of Split-COCO."""
REGIMES = {"frozen": "Frozen backbone", "paper": "Whole network trained, the paper's settings"}
"""Parts of Split-COCO's study with rows of the paper's Table 1, by the title of their section."""
BOUND = "multitask"
"""Label of the row that bounds the others and has no place among them."""
SMALL_MEMORY = "200 photos"
"""End of the labels of rows with a small memory: the paper does not say how many photos its memories hold."""
GPU_SPEEDUP = 100
"""Assumed: how much faster a data-centre GPU trains than the two cores on which a step was measured."""


class Stream(NamedTuple):
    """Training that a paper's row needs."""

    data: str
    network: str  # backbone and input size, a key of the measured times
    passes: int  # images × epochs, repeated ones included


STREAMS = {
    "SplitCOCO": Stream("COCO 2014", "resnet101, 448 px", 65_072),
    "SplitWIDE": Stream("NUS-WIDE", "resnet101, 448 px", 144_858),
    "COCO B0-C10": Stream("COCO 2014", "resnet50, 224 px", 20 * 200_000),
    "COCO B40-C10": Stream("COCO 2014", "resnet50, 224 px", 20 * 169_000),
    "VOC B0-C4": Stream("VOC 2007", "resnet50, 224 px", 20 * 6_500),
    "VOC B4-C2": Stream("VOC 2007", "resnet50, 224 px", 20 * 6_900),
}
"""The first two have one epoch over the published lists. Those of the B protocols are estimates: 20 epochs,
and of 19,482 labelled COCO images each is in 2.4 experiences of B0-C10 and 2.1 of B40-C10 on average.
ResNet-50 stands for TResNet-M, which has about as many multiplications."""


class Published(NamedTuple):
    """A row of a paper: last and average mAP, CF1 and OF1; None where it is not given."""

    method: str
    stream: str
    last: float | None = None
    average: float | None = None
    cf1: float | None = None
    of1: float | None = None
    stored: str = "0"  # photos


JOINT = "Joint training"
PUBLISHED = [
    Published(JOINT, "COCO B0-C10", 81.8),
    Published("KBK", "COCO B0-C10", 75.8, 80.7),
    Published("CSC", "COCO B0-C10", 72.8, 78.0, 64.9, 66.8),
    Published("HCP", "COCO B0-C10", 71.2, 77.9),
    Published("KRT", "COCO B0-C10", 65.9, 74.6, 55.6, 56.5),
    Published("AGCN", "COCO B0-C10", 61.4, 72.4),
    Published("CSC-R", "COCO B0-C10", 74.8, None, 67.8, 68.6, stored="20 per class"),
    Published("KRT-R", "COCO B0-C10", 70.2, stored="20 per class"),
    Published(JOINT, "COCO B40-C10", 81.8),
    Published("KBK", "COCO B40-C10", 77.2, 79.7),
    Published("CSC", "COCO B40-C10", 74.0, 78.2),
    Published("KRT", "COCO B40-C10", 74.0, 77.8),
    Published("AGCN", "COCO B40-C10", 69.1, 73.9),
    Published(JOINT, "VOC B0-C4", 93.6),
    Published("KBK", "VOC B0-C4", 90.9, 94.1),
    Published("HCP", "VOC B0-C4", 87.9, 92.9),
    Published("CSC", "VOC B0-C4", 85.1, 90.4),
    Published("KRT", "VOC B0-C4", 80.2, 89.1),
    Published("CSC-R", "VOC B0-C4", 87.9, 92.4, stored="2 per class"),
    Published("KRT-R", "VOC B0-C4", 83.4, 90.7, stored="2 per class"),
    Published(JOINT, "VOC B4-C2", 93.6),
    Published("CSC-R", "VOC B4-C2", 86.6, 90.4, stored="2 per class"),
    Published("AGCN-R", "VOC B4-C2", 59.3, 74.3, stored="2 per class"),
    Published(JOINT, "VOC B10-C2", 93.6),
    Published("KBK", "VOC B10-C2", 85.0, 90.9),
    Published("CSC", "VOC B10-C2", 83.8, 89.0),
    Published("KRT", "VOC B10-C2", 71.5, 84.3),
]
"""Papers of the B protocols, all with TResNet-M and 20 epochs; rows without stored photos as in KBK's paper.

Joint training sees all classes at once: its last score is the same under all protocols of a data set."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, after measuring with ``--measure``."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--measure", action="store_true", help="measure steps on this machine first")
    parser.add_argument("--page", type=Path, default=Path("REPRODUCTION.md"), metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.measure:
        write_json(TIMES, {stream.network: measure(stream.network) for stream in STREAMS.values()})
    write_text(arguments.page, make_page())
    return 0


def make_page() -> str:
    """The page, from its template, the results and the measured times."""
    split_coco = {part: read_rows("split_coco", part) for part in REGIMES}
    tables = {
        "agcn_paper": agcn_paper_table(split_coco),
        "cost": cost_table(json.loads(TIMES.read_text(encoding="utf-8"))),
    }
    regimes = [regime_section(part, rows) for part, rows in split_coco.items() if rows]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        {name: table.markdown() for name, table in tables.items()},
        regimes="".join(f"\n{section}" for section in regimes),
        b_protocols=b_protocol_sections(),
        speedup=GPU_SPEEDUP,
    )


Rows = Mapping[str, Sequence[Results]]
"""Results of a part by label."""


def read_rows(stream: str, part: str) -> Rows:
    """Results of a part of a study by label; none if it has no table yet."""
    path = STUDIES / stream / part / TABLE_FILE
    return group_by_label(read_table(path)) if path.is_file() else {}


def agcn_paper_table(split_coco: Mapping[str, Rows]) -> Table:
    """MAP of Table 1 of the AGCN paper beside the same methods here, on the paper's stream and on coco18."""
    coco18 = [read_rows("coco18", part) for part in ("frozen", "whole")]
    header = ["Method", "paper: Split-COCO", "paper: Split-WIDE", "here: Split-COCO, frozen"]
    header += ["here: Split-COCO, trained", "here: coco18, frozen", "here: coco18, trained"]
    rows = []
    for label in TABLE_1["SplitCOCO"]:
        cells = [name_of(label)]
        cells += [f"{TABLE_1[stream][label][0]:.2f}" for stream in ("SplitCOCO", "SplitWIDE")]
        for groups in split_coco.values():
            cells.append(score("mAP", "nested")(groups[label]) if label in groups else NOT_RUN)
        for groups in coco18:
            cells.append(score("mAP", "last")(groups[label]) if label in groups else NOT_RUN)
        rows.append(cells)
    return Table(header, rows)


def regime_section(part: str, groups: Rows) -> str:
    """How Split-COCO was run, its rows beside the paper's, and how well the orders of methods agree."""
    shared = [label for label in TABLE_1["SplitCOCO"] if label in groups]
    if not shared:
        return ""
    sections = [f"### {REGIMES[part]}", _describe_runs(groups[shared[0]][0])]
    sections.append(regime_table(shared, groups).markdown().strip())
    ranked = [label for label in shared if label != BOUND]
    if len(ranked) >= 3:
        sections.append(
            f"Kendall's τ between the paper's order of the {len(ranked)} methods and the order here "
            f"(1: the same, −1: reversed): {_order_agreements(ranked, groups)}."
        )
    small = {
        label: groups[f"{label}, {SMALL_MEMORY}"] for label in ranked if f"{label}, {SMALL_MEMORY}" in groups
    }
    if small:
        names = ", ".join(name_of(label) for label in small)
        agreements = _order_agreements(ranked, {**groups, **small})
        sections.append(f"With {SMALL_MEMORY} in the memories of {names}: {agreements}.")
    others = [label for label in groups if label not in shared]
    if part == "paper" and others:
        sections.append("Variants of these rows, which the paper does not have:")
        sections.append(variants_table(others, groups).markdown().strip())
    return "\n\n".join(sections) + "\n"


def variants_table(labels: Sequence[str], groups: Rows) -> Table:
    """Scores of rows that the paper's Table 1 does not have, the best first."""
    rows = []
    for label in sorted(labels, key=lambda label: _mean(groups[label], "mAP"), reverse=True):
        scores = [score(metric, "nested")(groups[label]) for metric in METRICS]
        rows.append([name_of(label), str(len(groups[label])), *scores, _share(label, groups)])
    return Table(["Row", "seeds", *METRICS, "share of mAP"], rows)


def _describe_runs(result: Results) -> str:
    """A sentence on network, pixels and photos of a part, from one of its results."""
    settings = result.settings
    n_images = result.n_images or {}
    n_train = sum(n_images.get("train", []))
    n_test = sum(n_images.get("test", []))
    text = f"{settings['backbone']} at {settings['image_size']} pixels, {n_train:,} train photos"
    if n_test:
        text += f" and {n_test:,} of {TEST_PHOTOS:,} test photos ({n_test / TEST_PHOTOS:.1%})"
    return f"{text}. Means over the nested test sets, in percent; the share is that of Multi-Task."


def regime_table(labels: Sequence[str], groups: Rows) -> Table:
    """Rows of Table 1 that were run: scores here and in the paper, and their share of Multi-Task's."""
    header = ["Method", "seeds"]
    for metric in METRICS:
        header += [f"{metric} here", f"{metric} paper"]
    header += ["share of mAP here", "share of mAP in the paper", "place here", "place in the paper"]
    ranked = [label for label in labels if label != BOUND]
    here = _places({label: _mean(groups[label], "mAP") for label in ranked})
    in_the_paper = _places({label: TABLE_1["SplitCOCO"][label][0] for label in ranked})
    rows = []
    for label in labels:
        cells = [name_of(label), str(len(groups[label]))]
        for metric, published in zip(METRICS, TABLE_1["SplitCOCO"][label], strict=False):
            cells += [score(metric, "nested")(groups[label]), f"{published:.2f}"]
        cells += [_share(label, groups), _papers_share(label)]
        cells += [str(places.get(label, "–")) for places in (here, in_the_paper)]
        rows.append(cells)
    return Table(header, rows)


def _places(scores: Mapping[str, float]) -> dict[str, int]:
    """The place of each method among these, 1 for the highest score."""
    return {label: k for k, label in enumerate(sorted(scores, key=scores.__getitem__, reverse=True), start=1)}


def _share(label: str, groups: Rows) -> str:
    if BOUND not in groups:
        return "–"
    return f"{100 * _mean(groups[label], 'mAP') / _mean(groups[BOUND], 'mAP'):.0f} %"


def _papers_share(label: str) -> str:
    published = TABLE_1["SplitCOCO"]
    return f"{100 * published[label][0] / published[BOUND][0]:.0f} %"


def _mean(group: Sequence[Results], metric: str) -> float:
    """Mean over seeds of a score that the paper reports: the mean over the nested test sets."""
    return fmean(result.summary[metric]["nested"] or 0.0 for result in group)


def _order_agreements(labels: Sequence[str], groups: Rows) -> str:
    return ", ".join(f"{metric} {_order_agreement(labels, groups, metric):+.2f}" for metric in METRICS)


def _order_agreement(labels: Sequence[str], groups: Rows, metric: str) -> float:
    published = [TABLE_1["SplitCOCO"][label][METRICS.index(metric)] for label in labels]
    return kendall_tau(published, [_mean(groups[label], metric) for label in labels])


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's τ: pairs in the same order minus pairs in the reversed order, divided by all pairs.

    Example:
        >>> kendall_tau([1, 2, 3], [1, 3, 2])
        0.3333333333333333
    """
    agreements = 0
    pairs = list(combinations(zip(first, second, strict=True), 2))
    for (a, b), (c, d) in pairs:
        product = (a - c) * (b - d)
        agreements += (product > 0) - (product < 0)
    return agreements / len(pairs)


B_PARTS = {
    "COCO B0-C10": ("coco80", "b0c10"),
    "COCO B40-C10": ("coco80", "b40c10"),
    "VOC B0-C4": ("voc2007", "b0c4"),
    "VOC B4-C2": ("voc2007", "b4c2"),
    "VOC B10-C2": ("voc2007", "b10c2"),
}
"""Stream and part of the studies with the same photos and protocol as a paper's row."""
JOINT_ROWS = ("multitask_ridge", "multitask")
PAPERS_NETWORK = "TResNet-M, trained, 20 epochs"


def b_protocol_sections() -> str:
    """A section for each stream of the B protocols: rows of papers, and those of ours that were run."""
    sections = []
    for stream, part in B_PARTS.items():
        groups = read_rows(*part)
        about = _describe_b_runs(groups) if groups else "No row was run here."
        sections.append(f"### {stream}\n\n{about}\n\n{b_protocol_table(stream, groups).markdown()}")
    return "\n".join(sections)


def _describe_b_runs(groups: Rows) -> str:
    """A sentence on network, pixels and photos of a stream, from one of its results."""
    result = next(iter(groups.values()))[0]
    n_images = result.n_images or {}
    n_test = sum(n_images.get("test", []))
    return (
        f"Rows of ours: {result.settings['backbone']} at {result.settings['image_size']} pixels, frozen, one "
        f"pass, {n_test:,} test photos; settings chosen on coco18. *Share*: of the best joint row with the "
        "same network."
    )


def b_protocol_table(stream: str, groups: Rows) -> Table:
    """Rows of papers and of ours, by last mAP."""
    rows: list[tuple[float, list[str]]] = []
    published = [row for row in PUBLISHED if row.stream == stream]
    papers_bound = max((row.last or 0.0 for row in published if row.method == JOINT), default=None)
    for row in published:
        scores = [row.last, row.average, row.cf1, row.of1]
        cells = ["–" if value is None else f"{value:.1f}" for value in scores]
        share = _percentage(row.last, papers_bound)
        names = [f"{row.method}, published", PAPERS_NETWORK, row.stored]
        rows.append((row.last or 0.0, [*names, *cells, share]))
    bound = max((_last_map(groups[label]) for label in JOINT_ROWS if label in groups), default=None)
    for label, group in groups.items():
        settings = group[0].settings
        stored = str(settings["method_settings"].get("mem_size", 0))
        last, cf1, of1 = [last_stage(name)(group) for name in StageScores._fields]
        average = "–" if label in JOINT_ROWS else score("mAP", "average")(group)
        share = _percentage(_last_map(group), bound)
        cells = [name_of(label), "EfficientNet-Lite0, frozen", stored, last, average, cf1, of1, share]
        rows.append((_last_map(group), cells))
    rows.sort(key=lambda row: row[0], reverse=True)
    header = ["Method", "network", "stored photos", "mAP last", "mAP average", "CF1", "OF1", "share"]
    return Table(header, [cells for _, cells in rows])


def _last_map(group: Sequence[Results]) -> float:
    return fmean(result.summary["mAP"]["last"] or 0.0 for result in group)


def _percentage(value: float | None, bound: float | None) -> str:
    return "–" if value is None or not bound else f"{100 * value / bound:.1f} %"


def cost_table(seconds: dict[str, float]) -> Table:
    """What one run of each stream takes: measured here per image, and estimated for a GPU."""
    rows = []
    for name, stream in STREAMS.items():
        hours = stream.passes * seconds[stream.network] / 3600
        cells = [stream.data, stream.network, f"{stream.passes:,}", f"{seconds[stream.network]:.2f}"]
        rows.append([name, *cells, f"{hours:.0f}", f"{hours / GPU_SPEEDUP:.1f}"])
    header = ["Stream", "data", "network", "images × epochs", "seconds per image", "hours here", "GPU hours"]
    return Table(header, rows)


def measure(network: str, *, batch_size: int = 8, steps: int = 2) -> float:
    """Seconds per image of a training step of a network, ``"resnet101, 448 px"``, from its processor time.

    That includes the time of threads that wait for each other, unless OMP_WAIT_POLICY is passive.
    """
    import torch

    from avalanche_agcn.models import create_backbone

    name, size = network.removesuffix(" px").split(", ")
    backbone = create_backbone(name, pretrained=False)
    images = torch.rand(batch_size, 3, int(size), int(size))
    for step in range(steps + 1):
        if step == 1:  # the first one allocates
            start = time.process_time()
        backbone(images).mean().backward()
    return round((time.process_time() - start) / torch.get_num_threads() / steps / batch_size, 3)


if __name__ == "__main__":
    raise SystemExit(main())
