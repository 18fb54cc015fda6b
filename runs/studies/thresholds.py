"""Measure which labels runs on 300 photos find in 700 others, with the README's commands.

    python runs/studies/thresholds.py --data coco18 ROOT train2014 --data coco2014 ROOT val2014

Of each COCO folder, 1,000 photos are drawn for each seed, with the 12 most frequent classes. The settings of
`avalanche_agcn.evaluation.calibration` were chosen on train photos of COCO 2014 that are not in coco18.
The rows are written to a JSON file, and printed as a table.
"""

import argparse
import csv
import json
import random
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from avalanche_agcn.__main__ import main
from avalanche_agcn.experiments import load_run
from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.experiments.results import read_results
from avalanche_agcn.experiments.thresholds import calibrate_run
from avalanche_agcn.models import load_model

METHODS = {"streaming_ridge": "StreamingRidge", "agcn-statistics": "AGCN with statistics"}
N_CLASSES = 12
N_TRAIN, N_UNSEEN = 300, 700


def write_labels(folder: Path, root: Path, split: str, seed: int) -> None:
    """Photos to train on and unseen ones, as CSV files: those of a COCO folder with a frequent class."""
    content = json.loads((root / f"annotations/instances_{split}.json").read_text())
    names = {one["id"]: one["name"] for one in content["categories"]}
    labels = defaultdict(set)
    for one in content["annotations"]:
        labels[one["image_id"]].add(names[one["category_id"]])
    counts = Counter(name for found in labels.values() for name in found)
    frequent = {name for name, _ in counts.most_common(N_CLASSES)}
    rows = []
    for one in content["images"]:
        shown = sorted(labels[one["id"]] & frequent)
        if shown and (root / split / one["file_name"]).exists():
            rows.append((one["file_name"], ";".join(shown)))
    random.Random(seed).shuffle(rows)
    parts = {"train": rows[:N_TRAIN], "unseen": rows[N_TRAIN : N_TRAIN + N_UNSEEN]}
    for name, part in parts.items():
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows(part)


def measure(folder: Path, root: Path, split: str, seed: int) -> list[dict[str, Any]]:
    """Train the methods and measure their labels; one row for each."""
    write_labels(folder, root, split, seed)
    options = ["--images", str(root / split), "--labels", str(folder / "train.csv")]
    options += ["--test-labels", str(folder / "unseen.csv"), "--cache", str(folder / "cache")]
    options += ["--method", "streaming_ridge", "agcn_statistics", "--seed", str(seed), "--out", str(folder)]
    if main(["run", "photos", *options]) != 0:
        raise RuntimeError(f"A run in {folder} failed; its messages are above.")
    return [_measure_labels(folder / f"{name}-seed{seed}", name, folder / "cache", seed) for name in METHODS]


def _measure_labels(run: Path, method: str, cache: Path, seed: int) -> dict[str, Any]:
    decisions = read_results(run / "results.json").decisions
    assert decisions is not None
    true, found = np.array(decisions["true"]), np.array(decisions["chosen_found"])
    # The one threshold that is best for all classes, from the data that the thresholds were chosen on.
    loaded = load_run(run, cache=str(cache), log=lambda text: None)
    calibration = calibrate_run(loaded.strategy, loaded.benchmark, loaded.n_trained).logits
    n_found, n_right, probability = _labels_at(calibration.global_threshold, loaded, calibration)
    share = true / N_UNSEEN
    noise = np.random.default_rng(seed).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    strange = [Image.new("RGB", (640, 480)), Image.new("RGB", (640, 480), "white"), Image.fromarray(noise)]
    return {
        "method": method,
        "seed": seed,
        "share_difference": round(100 * np.abs(found - true).mean() / N_UNSEEN, 2),
        "f1": round(2 * sum(decisions["chosen_right"]) / (found.sum() + true.sum()), 4),
        "f1_one_threshold": round(2 * n_right / (n_found + true.sum()), 4),
        "calibrated": round(float((np.abs(probability - share) <= 0.2 * share).mean()), 2),
        "strange_without_labels": [not one.names for one in load_model(run).predict(strange)].count(True),
    }


def _labels_at(threshold: float, loaded: Any, calibration: Any) -> tuple[int, int, np.ndarray]:
    """Labels found and right at one threshold for all classes, and the mean probability of each class."""
    model = loaded.strategy.model.eval()
    scores, labels = [], []
    for experience in loaded.benchmark.test_stream:
        for features, target, *_ in experience.dataset.eval():
            with torch.inference_mode():
                scores.append(calibration.probabilities(model(features[None]))[0])
            labels.append(target.bool())
    probabilities, targets = torch.stack(scores), torch.stack(labels)
    found = probabilities >= threshold
    return int(found.sum()), int((found & targets).sum()), probabilities.mean(0).numpy()


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown, a line for each method with its seeds."""
    lines = [
        "| photos | method | difference of shares | F1 over all labels | best single threshold "
        "| classes within 20 % | black, white, noise without label |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for photos in dict.fromkeys(row["photos"] for row in rows):
        for method, name in METHODS.items():
            group = [row for row in rows if (row["photos"], row["method"]) == (photos, method)]
            cells = [
                ", ".join(f"{row['share_difference']:.1f}" for row in group),
                ", ".join(f"{row['f1']:.3f}" for row in group),
                ", ".join(f"{row['f1_one_threshold']:.3f}" for row in group),
                ", ".join(f"{row['calibrated']:.2f}" for row in group),
                ", ".join(str(row["strange_without_labels"]) for row in group),
            ]
            lines.append(f"| {photos} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    metavars = ("NAME", "ROOT", "SPLIT")
    parser.add_argument("--data", required=True, action="append", nargs=3, metavar=metavars)
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("thresholds.json"))
    arguments = parser.parse_args()
    all_rows = []
    for name, root, split in arguments.data:
        for seed in arguments.seed:
            with tempfile.TemporaryDirectory() as folder:
                measured = measure(Path(folder), Path(root), split, seed)
            all_rows += [{"photos": name, **row} for row in measured]
            write_json(arguments.out, all_rows)
    print(table(all_rows))
