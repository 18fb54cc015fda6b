"""Train the weights of the backbone ``small`` that ship with the package, for runs with a frozen backbone.

    python runs/pretrain_small.py          # two minutes on one core

It is trained on the last 20 of the 40 drawn classes, on scenes with a seed of its own. The README's first
command compares methods on the first 20 classes: the backbone has seen neither their labels nor their scenes.
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from avalanche_agcn.benchmarks.image_files import paper_transforms
from avalanche_agcn.benchmarks.scenes import CLASS_NAMES, MEAN, STD, ScenesDataset
from avalanche_agcn.evaluation.functional import mean_average_precision
from avalanche_agcn.models import MultiLabelClassifier, create_backbone
from avalanche_agcn.models.networks import SMALL_WEIGHTS

CLASSES = CLASS_NAMES[20:]
SEED = 1_000_000  # not one of the runs'
N_TRAIN, N_TEST, EPOCHS, BATCH_SIZE, LR = 10_000, 1_000, 4, 64, 2e-3


def main() -> None:
    """Train, print the mAP on test scenes, and write the weights in half precision."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=SMALL_WEIGHTS, metavar="FILE", help="where to write")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    train, test = read_scenes("train", N_TRAIN), read_scenes("test", N_TEST)
    model = MultiLabelClassifier(create_backbone("small"), len(CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=1e-2)
    loader = DataLoader(train, BATCH_SIZE, shuffle=True, drop_last=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=EPOCHS * len(loader))
    for epoch in range(EPOCHS):
        model.train()
        for images, targets in loader:
            images = images.flip(3) if torch.rand(()) < 0.5 else images
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss:.3f}, test mAP {100 * score(model, test):.1f}", flush=True)
    state = model.backbone.layers.state_dict()  # type: ignore[union-attr]
    halves = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}  # type: ignore[union-attr]
    torch.save(halves, arguments.out)


def read_scenes(split: str, n: int) -> TensorDataset:
    """Transformed scenes with their targets."""
    scenes = ScenesDataset(n, class_names=CLASSES, split=split, seed=SEED)  # type: ignore[arg-type]
    transform = paper_transforms(None, mean=MEAN, std=STD)["eval_transform"]
    return TensorDataset(torch.stack([transform(image) for image, _ in scenes]), scenes.targets.float())


@torch.no_grad()
def score(model: torch.nn.Module, test: TensorDataset) -> float:
    """The mAP on test scenes."""
    model.eval()
    images, targets = test.tensors
    return mean_average_precision(torch.cat([model(part) for part in images.split(256)]), targets)


if __name__ == "__main__":
    main()
