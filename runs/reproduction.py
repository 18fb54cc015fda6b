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
    mean_and_deviation,
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
    """A row of a paper: last mAP, CF1, OF1 and average mAP; None where it is not given."""

    method: str
    stream: str
    last: float | None
    cf1: float | None = None
    of1: float | None = None
    average: float | None = None
    ours: str | None = None  # label of the nearest row of ours


PUBLISHED = [
    Published("KRT", "COCO B0-C10", 65.9, 55.6, 56.5, 74.6),
    Published("KRT-R (20 per class)", "COCO B0-C10", 70.2),
    Published("CSC", "COCO B0-C10", 72.8, 64.9, 66.8, ours="csc"),
    Published("CSC-R (20 per class)", "COCO B0-C10", 74.8, 67.8, 68.6),
    Published("KRT", "COCO B40-C10", None, average=77.8),
    Published("KRT", "VOC B0-C4", 80.2, average=89.1),
    Published("KRT-R (2 per class)", "VOC B0-C4", 83.4, average=90.7),
    Published("CSC", "VOC B0-C4", 85.1, average=90.4, ours="csc"),
    Published("CSC-R (2 per class)", "VOC B0-C4", 87.9, average=92.4),
    Published("AGCN-R (2 per class)", "VOC B4-C2", 59.3, average=74.3, ours="agcn"),
    Published("CSC-R (2 per class)", "VOC B4-C2", 86.6, average=90.4, ours="csc"),
]
"""Papers of the B protocols, all with TResNet-M and 20 epochs."""


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
        "b_protocols": b_protocols_table(),
        "cost": cost_table(json.loads(TIMES.read_text(encoding="utf-8"))),
    }
    regimes = [regime_section(part, rows) for part, rows in split_coco.items() if rows]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        {name: table.markdown() for name, table in tables.items()},
        regimes="".join(f"\n{section}" for section in regimes),
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
        cells += [f"{TABLE_1[stream][label][0]:.1f}" for stream in ("SplitCOCO", "SplitWIDE")]
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
    ranked = [label for label in shared if label != "multitask"]  # a bound, not a method of the stream
    if len(ranked) >= 3:
        taus = [f"{metric} {_order_agreement(ranked, groups, metric):+.2f}" for metric in METRICS]
        sections.append(
            f"Kendall's τ between the paper's order of the {len(ranked)} methods and the order here "
            f"(1: the same, −1: reversed): {', '.join(taus)}."
        )
    return "\n\n".join(sections) + "\n"


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
    header += ["share of mAP here", "share of mAP in the paper"]
    rows = []
    for label in labels:
        cells = [name_of(label), str(len(groups[label]))]
        for metric, published in zip(METRICS, TABLE_1["SplitCOCO"][label], strict=False):
            cells += [score(metric, "nested")(groups[label]), f"{published:.1f}"]
        cells += [_share(label, groups), _papers_share(label)]
        rows.append(cells)
    return Table(header, rows)


def _share(label: str, groups: Rows) -> str:
    if "multitask" not in groups:
        return "–"
    return f"{100 * _mean(groups[label], 'mAP') / _mean(groups['multitask'], 'mAP'):.0f} %"


def _papers_share(label: str) -> str:
    published = TABLE_1["SplitCOCO"]
    return f"{100 * published[label][0] / published['multitask'][0]:.0f} %"


def _mean(group: Sequence[Results], metric: str) -> float:
    """Mean over seeds of a score that the paper reports: the mean over the nested test sets."""
    return fmean(result.summary[metric]["nested"] or 0.0 for result in group)


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
}
"""Stream and part of the studies with the same photos and protocol as a paper's row."""


def b_protocols_table() -> Table:
    """Rows of papers of the B protocols beside the same method here: on the same stream, and on coco18."""
    coco18 = read_rows("coco18", "b0c3")
    rows = []
    for row in PUBLISHED:
        scores = [row.last, row.cf1, row.of1, row.average]
        cells = ["–" if value is None else f"{value:.1f}" for value in scores]
        same_stream = read_rows(*B_PARTS[row.stream])
        near = f"{name_of(row.ours)}: {_stage(coco18[row.ours])}" if row.ours in coco18 else "–"
        rows.append([row.method, row.stream, *cells, near, _same_row(row.ours, same_stream)])
    header = ["Method", "stream", "mAP last", "CF1", "OF1", "mAP average"]
    return Table([*header, "here: coco18, B0-C3, mAP / CF1 / OF1", "here: same stream"], rows)


def _same_row(label: str | None, groups: Rows) -> str:
    """Last mAP, CF1, OF1 and average mAP of a row on the paper's stream."""
    if label is None or label not in groups:
        return NOT_RUN
    average = mean_and_deviation(result.summary["mAP"]["average"] for result in groups[label])
    return f"{name_of(label)}: {_stage(groups[label])}, average {average}"


def cost_table(seconds: dict[str, float]) -> Table:
    """What one run of each stream takes: measured here per image, and estimated for a GPU."""
    rows = []
    for name, stream in STREAMS.items():
        hours = stream.passes * seconds[stream.network] / 3600
        cells = [stream.data, stream.network, f"{stream.passes:,}", f"{seconds[stream.network]:.2f}"]
        rows.append([name, *cells, f"{hours:.0f}", f"{hours / GPU_SPEEDUP:.1f}"])
    header = ["Stream", "data", "network", "images × epochs", "seconds per image", "hours here", "GPU hours"]
    return Table(header, rows)


def _stage(group: Sequence[Results]) -> str:
    return " / ".join(last_stage(name)(group) for name in StageScores._fields)


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
