"""Measure what compact sums and merged Gaussians cost in mAP, on held-out train photos.

    python runs/studies/compact_sums.py coco18 --data ROOT
    python runs/studies/compact_sums.py split_coco --data ROOT --split-lists LISTS

The rows go to compact_sums.json, from which `write_tables` makes the tables of docs/statistics.md.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coco18 import declaration as coco18
from rows import frozen_entry
from split_coco import declaration as split_coco
from split_coco.missing_labels import GAMMA, Photos, split_photos

from avalanche_agcn.evaluation.functional import mean_average_precision
from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import Settings, change_settings
from avalanche_agcn.experiments.tables import Table
from avalanche_agcn.training.statistics.compact import REST, CompactStatistics
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.ridge import estimate_relations, make_refinement, solve_ridge

BASES: dict[str, Callable[..., Settings]] = {
    "coco18": coco18.base_settings,
    "split_coco": split_coco.base_settings,
}
NAMES = {"coco18": "coco18, 128 px", "split_coco": "Split-COCO, 224 px"}
RESULTS = Path(__file__).with_name("compact_sums.json")
PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"
RESTS = (None, 0.3, 0.5, 0.7, 0.9)  # None: exact
REFINE = 0.2  # β of StreamingRidge
MERGED = (None, 2, 1)  # Gaussians of earlier experiences


def measure_sums(settings: Settings) -> Iterator[dict[str, Any]]:
    """Bytes and mAP of StreamingRidge's classifiers for exact sums and each share of the rest."""
    experiences, held_out = split_photos(settings)
    for rest in RESTS:
        sums = collect(FeatureStatistics() if rest is None else CompactStatistics(rest), experiences)
        solution = solve_ridge(sums, gamma=GAMMA)
        refine = make_refinement(solution, estimate_relations(sums, solution), REFINE).double()
        weight, bias = solution.calibrated()
        scores = refine(held_out.features @ weight.T + bias)
        n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in sums.state_dict().values())
        whole = 8 * len(experiences) * experiences[0].features.shape[1] ** 2
        score = 100 * mean_average_precision(scores, held_out.labels)
        yield {"rest": rest, "bytes": n_bytes, "share of bytes": n_bytes / whole, "mAP": score}


def collect(sums: FeatureStatistics, experiences: Sequence[Photos]) -> FeatureStatistics:
    """Add the photos of each experience with the labels of its own classes, as a run does."""
    size = experiences[0].labels.shape[1] // len(experiences)
    for t, photos in enumerate(experiences):
        sums.begin(size)
        sums.update(photos.features, photos.labels[:, sums.columns(t)])
        sums.flush()
    return sums


def measure_gaussians(settings: Settings) -> Iterator[dict[str, Any]]:
    """Last mAP of AGCN with statistics, with the Gaussians of earlier experiences merged."""
    for n_gaussians in MERGED:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(change_settings(settings, max_gaussians=n_gaussians, validation_size=0.1), folder)
            yield {"max_gaussians": n_gaussians, "mAP": run.run().summary["mAP"]["last"]}


def tables(found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, str]:
    """The tables of the page, by name, in Markdown."""
    sums = [
        [
            NAMES[stream],
            "exact" if row["rest"] is None else f"{row['rest']:g}" + " (compact)" * (row["rest"] == REST),
            f"{row['bytes'] / 1e6:.1f} MB",
            f"{row['share of bytes']:.3f}",
            f"{row['mAP']:.2f}",
        ]
        for stream, kinds in found.items()
        for row in kinds["sums"]
    ]
    gaussians = [
        [NAMES[stream], str(row["max_gaussians"] or "not merged"), f"{row['mAP']:.2f}"]
        for stream, kinds in found.items()
        for row in kinds["gaussians"]
    ]
    header = ["stream", "largest rest of the variance", "sums", "share of whole float64 matrices", "mAP"]
    return {
        "compact sums": Table(header, sums).markdown(),
        "merged Gaussians": Table(["stream", "Gaussians at most", "mAP"], gaussians).markdown(),
    }


def write_tables(page: Path, made: Mapping[str, str]) -> None:
    """Replace the tables between their marks in a page."""
    text = page.read_text(encoding="utf-8")
    for name, table in made.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(start)
        text = before + start + table + end + rest.split(end)[1]
    write_text(page, text)


def read_results() -> dict[str, Any]:
    """Stored rows by stream, then by kind."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stream", choices=list(BASES))
    parser.add_argument("--data", required=True, metavar="ROOT", help="folder with COCO's folders")
    parser.add_argument("--split-lists", metavar="DIR", help="published lists of Split-COCO")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen backbone")
    arguments = parser.parse_args()
    paths = {"dataset_root": arguments.data, "cache": arguments.cache, "split_lists": arguments.split_lists}
    base = BASES[arguments.stream](**paths)
    size = {"image_size": base.image_size, "n_classes": base.n_classes, "n_experiences": base.n_experiences}
    small = {
        label: {**frozen_entry(label).settings, **size} for label in ("streaming_ridge", "agcn statistics")
    }
    if arguments.stream == "split_coco":
        small = {label: frozen_entry(label).settings for label in small}
    rows = {
        "sums": list(measure_sums(change_settings(base, **small["streaming_ridge"]))),
        "gaussians": list(measure_gaussians(change_settings(base, **small["agcn statistics"]))),
    }
    write_json(RESULTS, read_results() | {arguments.stream: rows})
    write_tables(PAGE, tables(read_results()))
