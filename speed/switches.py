"""The effect of each performance option, to decide which are on by default.

    python speed/switches.py

Time of a plain training step at 128 px with an option on, divided by the time with it off; below 1 is faster.
Everything else is as in the runs: channels_last, Adam(fused=True), and freed memory kept.
"""

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks import write_photos
from measure import Row, Topic, best_times, run_script
from steps import IMAGE_SIZE, N_NEW, N_OLD, NETWORKS
from torch import Tensor
from torch.optim import Adam
from torch.utils.data import DataLoader

from avalanche_agcn.benchmarks import SplitCOCO
from avalanche_agcn.benchmarks.image_files import paper_transforms
from avalanche_agcn.models import MultiLabelClassifier, create_backbone
from avalanche_agcn.training import PartialBCEWithLogitsLoss

BATCHES = (8, 32)
N_CLASSES = N_OLD + N_NEW
N_PHOTOS = 64
FROZEN = {"freeze_batchnorm": True}
SWITCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "channels_last": ({}, {"channels_last": False}),
    "frozen statistics of BatchNorm": (FROZEN, {}),
    "frozen BatchNorm folded": ({**FROZEN, "fold_batchnorm": True}, FROZEN),
    "Adam(fused=True)": ({}, {"fused": False}),
}
"""Settings of `make_step` with the option on and off."""
SLOW_SWITCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"bf16 autocast": ({"amp": True}, {})}
"""Tens of times slower on processors without instructions for it: one turn, and only the small batch."""


def measure(arguments: argparse.Namespace) -> list[Topic]:
    batches = BATCHES[:1] if arguments.quick else BATCHES
    rows = measure_switches(SWITCHES, arguments.repeats, batches)
    rows += measure_switches(SLOW_SWITCHES, 1, BATCHES[:1])
    rows += measure_threads(arguments.repeats, batches)
    if not arguments.quick:
        rows += measure_compile(arguments.repeats)
    rows += measure_workers(arguments.repeats)
    about = (
        f"A plain step at {IMAGE_SIZE} px with the option on / off; below 1 is faster. Everything else is as "
        "in the runs: channels_last, Adam(fused=True)."
    )
    return [Topic("Options", about, sorted(rows, key=lambda row: row.what.split(",")[0]))]


def measure_switches(
    switches: Mapping[str, tuple[dict[str, Any], dict[str, Any]]], repeats: int, batches: Sequence[int]
) -> list[Row]:
    rows = []
    for network, name in NETWORKS.items():
        for batch in batches:
            used = {str(side): side for sides in switches.values() for side in sides}
            steps = {key: make_step(network, batch, **side) for key, side in used.items()}
            times = best_times(steps, repeats + 1)  # the first turn warms up
            rows += [
                Row(f"{switch}, {name}, batch {batch}", times[str(on)] / times[str(off)])
                for switch, (on, off) in switches.items()
            ]
    return rows


def measure_threads(repeats: int, batches: Sequence[int]) -> list[Row]:
    threads, rows = torch.get_num_threads(), []

    def run_with(n: int, step: Callable[[], None]) -> None:
        torch.set_num_threads(n)
        step()

    for network, name in NETWORKS.items() if threads > 1 else ():
        for batch in batches:
            step = make_step(network, batch)
            sides = {n: partial(run_with, n, step) for n in (threads, 1)}
            times = best_times(sides, repeats, clock=time.perf_counter)
            rows.append(Row(f"threads: {threads} / 1, {name}, batch {batch}", times[threads] / times[1]))
    torch.set_num_threads(threads)
    return rows


def measure_compile(repeats: int) -> list[Row]:
    rows: list[Row] = []
    for network, name in NETWORKS.items():
        steps = {on: make_step(network, BATCHES[0], compile=on) for on in (True, False)}
        try:
            compiling = best_times({True: steps[True]}, 1, clock=time.perf_counter)[True]
        except RuntimeError as error:  # for example, no C++ compiler
            print(f"torch.compile does not work here: {error}")
            return rows
        times = best_times(steps, repeats + 1)
        gained = times[False] - times[True]
        note = f"pays off after {compiling / gained:,.0f} steps" if gained > 0 else ""
        rows.append(Row(f"torch.compile, {name}, batch {BATCHES[0]}", times[True] / times[False], note=note))
    return rows


def measure_workers(repeats: int) -> list[Row]:
    """An epoch over photos in JPEG files, with and without loader workers."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        write_photos(Path(folder), N_PHOTOS)
        transforms = paper_transforms(IMAGE_SIZE)
        photos = SplitCOCO(folder, n_classes=4, n_experiences=1, **transforms).complete_train_dataset
        for network, name in NETWORKS.items():
            train = make_training(network, n_classes=4)
            sides = {n: partial(one_epoch, train, photos, n) for n in (0, 1, os.cpu_count() or 1)}
            times = best_times(sides, repeats, clock=time.perf_counter)
            what = f"{name}, batch {BATCHES[0]}"
            rows += [Row(f"loader workers: {n} / 0, {what}", times[n] / times[0]) for n in sides if n]
    return rows


def one_epoch(train: Callable[[Tensor, Tensor], None], photos: Any, workers: int) -> None:
    for images, targets, _ in DataLoader(photos, BATCHES[0], num_workers=workers):
        train(images, targets)


def make_step(network: str, batch: int, **settings: Any) -> Callable[[], None]:
    """A training step on noise."""
    images, targets = torch.randn(batch, 3, IMAGE_SIZE, IMAGE_SIZE), torch.ones(batch, N_CLASSES)
    return partial(make_training(network, **settings), images, targets)


def make_training(
    network: str, *, n_classes: int = N_CLASSES, fused: bool = True, amp: bool = False, **backbone: Any
) -> Callable[[Tensor, Tensor], None]:
    """A function that takes one training step on a batch."""
    model = MultiLabelClassifier(create_backbone(network, **{"channels_last": True, **backbone}), n_classes)
    optimizer, criterion = Adam(model.parameters(), lr=1e-4, fused=fused), PartialBCEWithLogitsLoss()

    def train(images: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            logits = model(images)
        criterion(logits, targets).backward()
        optimizer.step()

    return train


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=2))
