"""Images per second of `predict` against the bare folded network with as many loader processes.

    python speed/predict.py                  # 10,000 photos of 256 px, some minutes
    python speed/predict.py --photos 1000

Both sides read the same files with the same transform and the same folded network. The bare side is torch's
loader, which normalises each image, and the network alone, in its fastest batch size; ours also handles
unreadable files, applies thresholds and writes a CSV file, batch by batch. Sides take turns.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Row, Topic, best_times, run_script
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from avalanche_agcn.benchmarks.image_files import paper_transforms
from avalanche_agcn.experiments.prediction_files import OutputFile
from avalanche_agcn.experiments.predictions import find_photos, write_predictions
from avalanche_agcn.models import MultiLabelClassifier, create_backbone, load_model, save_model
from avalanche_agcn.models.frozen import folded_copy

N_CLASSES = 80
PHOTO_SIZE, IMAGE_SIZE = 256, 224
BATCH_SIZE = 32
BARE_BATCHES = (8, 32)  # of the bare side; the fastest counts
WORKERS = 2
QUICK = 20  # --quick has so many times fewer photos
BOUND = 0.9


class BareFiles(Dataset):
    """Network inputs, by Pillow and the transform alone."""

    def __init__(self, paths: Sequence[str], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.open(self.paths[index]).convert("RGB"))


def measure(arguments: argparse.Namespace) -> list[Topic]:
    n_photos = n_asked // QUICK if arguments.quick else n_asked
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_photos(folder / "photos", n_photos)
        network = create_backbone("efficientnet_lite0", pretrained=False, channels_last=True)
        transform = paper_transforms(IMAGE_SIZE)["eval_transform"]
        names = [f"class {c}" for c in range(N_CLASSES)]
        save_model(MultiLabelClassifier(network, N_CLASSES), folder, class_names=names, transform=transform)
        model = load_model(folder)

        def find() -> Iterator[str]:
            return find_photos([str(folder / "photos")])

        folded = folded_copy(network)

        @torch.inference_mode()
        def bare(batch_size: int) -> None:
            files = BareFiles(list(find()), transform)
            for images in DataLoader(files, batch_size, num_workers=WORKERS):
                folded(images)

        def ours() -> None:
            out = folder / "labels.csv"
            out.unlink(missing_ok=True)
            output = OutputFile(out)
            write_predictions(model, find, output, batch_size=BATCH_SIZE, num_workers=WORKERS)

        sides: dict[Any, Callable[[], None]] = {size: partial(bare, size) for size in BARE_BATCHES}
        seconds = best_times({**sides, "ours": ours}, arguments.repeats, clock=time.perf_counter)
    ratio = min(seconds[size] for size in BARE_BATCHES) / seconds["ours"]
    row = Row("images per second, `predict` / bare folded network", ratio, BOUND, at_least=True)
    about = (
        f"{n_photos:,} photos of {PHOTO_SIZE} px, EfficientNet-Lite0 at {IMAGE_SIZE} px, batches of "
        f"{BATCH_SIZE} (the bare side: the faster of {BARE_BATCHES}), {WORKERS} loader processes; `predict` "
        f"writes a CSV file of {N_CLASSES} classes."
    )
    return [Topic("Predicting many photos", about, [row])]


def write_photos(folder: Path, n_photos: int) -> None:
    """Photos of smooth noise, which compress like photos."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(n_photos):
        coarse = Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))
        photo = coarse.resize((PHOTO_SIZE, PHOTO_SIZE), Image.Resampling.BICUBIC)
        photo.save(folder / f"{k:06}.jpg", quality=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--photos", type=int, default=10_000)
    options, sys.argv[1:] = parser.parse_known_args()
    n_asked = options.photos
    raise SystemExit(run_script(__doc__, measure, repeats=2))
