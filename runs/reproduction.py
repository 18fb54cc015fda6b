"""Write REPRODUCTION.md: the papers' scores, the cost of reproducing them, and the scores of this package.

    python runs/reproduction.py              # write the page from stored results and times
    python runs/reproduction.py --measure    # first measure the time of a training step again, in minutes

The scores of this package come from the results in runs/coco18, the other scores from the papers.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.methods import name_of
from avalanche_agcn.experiments.results import Results, find_results, group_by_label
from avalanche_agcn.experiments.tables import TABLE_1, Table, last_stage, score

HERE = Path(__file__).parent
TIMES = HERE / "reproduction.json"
TEMPLATE = HERE / "reproduction.md"
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
    Published("KRT-R (2 per class)", "VOC B0-C4", 83.4, average=90.7),
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
    cost = cost_table(json.loads(TIMES.read_text(encoding="utf-8")))
    tables = {"agcn_paper": agcn_paper_table(), "b_protocols": b_protocols_table(), "cost": cost}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render({name: table.markdown() for name, table in tables.items()}, speedup=GPU_SPEEDUP)


def agcn_paper_table() -> Table:
    """Table 1 of the AGCN paper beside the same methods on coco18."""
    frozen, whole = _rows_of("frozen"), _rows_of("whole")
    header = ["Method", "paper: Split-COCO", "paper: Split-WIDE"]
    header += ["here: coco18, frozen", "here: coco18, trained", "paper's stream"]
    rows = []
    for label in TABLE_1["SplitCOCO"]:
        papers = [f"{TABLE_1[name][label][0]:.1f}" for name in ("SplitCOCO", "SplitWIDE")]
        here = [score("mAP", "last")(own[label]) if label in own else "–" for own in (frozen, whole)]
        rows.append([name_of(label), *papers, *here, "not attempted"])
    return Table(header, rows)


def b_protocols_table() -> Table:
    """Rows of papers of the B protocols beside the nearest method here, on coco18 under B0-C3."""
    here = _rows_of("b0c3")
    rows = []
    for row in PUBLISHED:
        scores = [row.last, row.cf1, row.of1, row.average]
        cells = ["–" if score is None else f"{score:.1f}" for score in scores]
        near = f"{name_of(row.ours)}: {_stage(here[row.ours])}" if row.ours in here else "–"
        rows.append([row.method, row.stream, *cells, near, "not attempted"])
    header = ["Method", "stream", "mAP last", "CF1", "OF1", "mAP average"]
    return Table([*header, "here: coco18, B0-C3, mAP / CF1 / OF1", "paper's stream"], rows)


def cost_table(seconds: dict[str, float]) -> Table:
    """What one run of each stream takes: measured here per image, and estimated for a GPU."""
    rows = []
    for name, stream in STREAMS.items():
        hours = stream.passes * seconds[stream.network] / 3600
        cells = [stream.data, stream.network, f"{stream.passes:,}", f"{seconds[stream.network]:.2f}"]
        rows.append([name, *cells, f"{hours:.0f}", f"{hours / GPU_SPEEDUP:.1f}"])
    header = ["Stream", "data", "network", "images × epochs", "seconds per image", "hours here", "GPU hours"]
    return Table(header, rows)


def _rows_of(part: str) -> dict[str, list[Results]]:
    folder = HERE / "coco18" / part
    return group_by_label(find_results([folder])) if folder.is_dir() else {}


def _stage(group: Sequence[Results]) -> str:
    return " / ".join(last_stage(name)(group) for name in StageScores._fields)


def measure(network: str, *, batch_size: int = 8, steps: int = 2) -> float:
    """Seconds per image of a training step of a network, ``"resnet101, 448 px"``, from its processor time."""
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
