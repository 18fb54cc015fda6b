"""Features of a frozen backbone against the bare network and bare decoding.

    python speed/features.py

EfficientNet-Lite0, JPEG photos of 256 pixels, one thread unless a row says otherwise. Everything is timed:
digests of the files, decoding, scaling, the network, and writing the features.
"""

import argparse
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Row, Topic, best_times, in_child, peak_megabytes, run_script
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles, load_image, paper_transforms
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.experiments.checkpoint import count_stored
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.models import Backbone, MultiLabelClassifier, Precomputed, create_backbone
from avalanche_agcn.models.frozen import folded_copy
from avalanche_agcn.training import StreamingRidge, process_group

N_PHOTOS = 2000
QUICK = 10  # --quick has so many times fewer photos
N_SPLIT_COCO = 65_072
WIDTH = 1280  # of the network's features
BATCHES = (5, 16, 32)  # of the bare network; the fastest counts


def measure(arguments: argparse.Namespace) -> list[Topic]:
    n_photos = N_PHOTOS // QUICK if arguments.quick else N_PHOTOS
    rows = [measure_memory(N_SPLIT_COCO // QUICK if arguments.quick else N_SPLIT_COCO)]
    with tempfile.TemporaryDirectory() as folder:
        files = write_photos(Path(folder), n_photos)
        rows += [measure_time(files, size, arguments.repeats) for size in (128, 224)]
        rows += [measure_two_processes(files, arguments.repeats), measure_busy(files, arguments.repeats)]
    about = (
        f"Features of {n_photos} JPEG photos of 256 px by EfficientNet-Lite0, on one thread: against the "
        "folded network on ready tensors, in its fastest batch size, and decoding."
    )
    return [Topic("Features of a frozen backbone", about, rows)]


def write_photos(folder: Path, n_photos: int) -> list[Path]:
    """Photos of smooth noise, which compress like photos."""
    rng = np.random.default_rng(0)
    files = [folder / f"{k}.jpg" for k in range(n_photos)]
    for file in files:
        coarse = Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(file, quality=90)
    return files


def compute(files: list[Path], size: int) -> None:
    """Features of the photos, in a cache of their own."""
    labels = torch.eye(2).repeat(-(-len(files) // 2), 1)[: len(files)]
    source = ImageFiles(files[0].parent, [file.name for file in files], labels)
    network = create_backbone("efficientnet_lite0", pretrained=False, pool="avg")
    transforms = paper_transforms(size, mean=network.mean, std=network.std)
    benchmark = multilabel_benchmark(source, source, n_experiences=2, **transforms)
    with tempfile.TemporaryDirectory() as cache:
        feature_benchmark(benchmark, network, cache, log=lambda text: None)


def measure_time(files: list[Path], size: int, repeats: int) -> Row:
    network = folded_copy(create_backbone("efficientnet_lite0", pretrained=False, pool="avg"))
    n_ready = len(files) // 8
    ready = torch.rand(n_ready, 3, size, size).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def bare(batch: int) -> None:
        for part in ready.split(batch):
            network(part)

    sides: dict[Any, Callable[[], object]] = {batch: partial(bare, batch) for batch in BATCHES}
    sides["decoding"] = lambda: [load_image(file) for file in files]
    sides["ours"] = lambda: compute(files, size)
    seconds = best_times(sides, repeats)
    least = len(files) / n_ready * min(seconds[batch] for batch in BATCHES) + seconds["decoding"]
    return Row(f"{size} px: features / (bare network + decoding)", seconds["ours"] / least, 1.25)


def measure_two_processes(files: list[Path], repeats: int) -> Row:
    """The best of several turns, in which one and two processes alternate."""
    turns = [(seconds_of(files), seconds_of(files, n_processes=2)) for _ in range(repeats)]
    one, two = map(min, zip(*turns, strict=True))
    return Row("128 px: two processes / one", two / one, 0.6, note="0.5 is ideal")


def measure_busy(files: list[Path], repeats: int) -> Row:
    """Likewise, idle and beside another process."""
    idle, busy = [], []
    for _ in range(repeats):
        idle.append(seconds_of(files, threads=2))
        other = multiprocessing.get_context("spawn").Process(target=keep_busy, daemon=True)
        other.start()
        busy.append(seconds_of(files, threads=2))
        other.kill()
        other.join()
    what = "128 px: two threads beside a process that keeps a core busy / idle"
    return Row(what, min(busy) / min(idle), 2.5)


def seconds_of(files: list[Path], *, n_processes: int = 1, threads: int = 1) -> float:
    """Wall-clock time until new processes have their features, once all are ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(compute_share, (n_processes, port, threads, files, queue), n_processes)
    return queue.get()


def compute_share(
    rank: int, n_processes: int, port: int, threads: int, files: list[Path], queue: Any
) -> None:
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(n_processes)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(threads)
    with process_group():
        compute(files[:20], 128)
        start = time.perf_counter()
        compute(files, 128)
        if rank == 0:
            queue.put(time.perf_counter() - start)


def keep_busy() -> None:
    while True:
        pass


def measure_memory(n_images: int) -> Row:
    features = 4 * WIDTH * n_images / 2**20
    peak, sums = in_child(peak_of_ridge, n_images)
    imported = peak_megabytes()
    ratio = peak / (imported + features + sums)
    note = f"{n_images:,} images, 10 experiences"
    return Row("peak memory of StreamingRidge / (features + sums + modules)", ratio, 1.5, note=note)


def peak_of_ridge(n_images: int) -> tuple[float, float]:
    """Megabytes of a whole process, and of the sums that it keeps."""
    torch.set_num_threads(1)
    labels = torch.eye(40)[torch.arange(n_images) % 40]
    source: Any = TensorDataset(torch.zeros(n_images, 3, 8, 8, dtype=torch.uint8))
    source.targets = labels
    transforms = paper_transforms(8, flip=False)
    benchmark = multilabel_benchmark(source, source, n_experiences=10, **transforms)
    network = Backbone(nn.Conv2d(3, WIDTH, 8), num_features=WIDTH)
    with tempfile.TemporaryDirectory() as cache:
        benchmark = feature_benchmark(benchmark, network, cache, log=lambda text: None)
    model = MultiLabelClassifier(Precomputed(WIDTH), 40)
    evaluator = multilabel_evaluator(loggers=[])
    strategy = StreamingRidge(model=model, train_mb_size=64, eval_mb_size=64, evaluator=evaluator)
    strategy.train(benchmark.train_stream, eval_streams=[])
    return peak_megabytes(), count_stored(strategy)["bytes"] / 2**20


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=3, threads=1))
