"""Run Avalanche's strategies on a multi-label benchmark and write what happens into docs/avalanche.md.

    python docs/avalanche_table.py           # run all of them on drawn scenes: a few minutes
    python docs/avalanche_table.py --page    # run none: write the table from docs/avalanche_table.json

Each strategy runs as a user of Avalanche would run it: with Avalanche's `SimpleCNN`, which has an output for
each class from the start, and with this package's criterion and evaluator. A strategy works if it trains with
a finite loss and to other weights than `Naive`, which has no protection against forgetting.
"""

import argparse
import json
import math
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche import models, training
from avalanche.core import SupervisedPlugin
from avalanche.training import plugins, storage_policy
from torch import Tensor, nn

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.training import PartialBCEWithLogitsLoss

HERE = Path(__file__).parent
PAGE, OUTCOMES = HERE / "avalanche.md", HERE / "avalanche_table.json"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"
N_CLASSES, IMAGE_SIZE, BATCH_SIZE, MEMORY = 6, 32, 8, 60
FEATURES = 64  # of SimpleCNN

REMARKS = {
    "Naive": "`FineTuning` is the same with checks, resuming and several processes",
    "OnlineNaive": "likewise",
    "Replay": "`ER` chooses images batch by batch, and can make them negatives of newer classes",
    "Replay, ClassBalancedBuffer": "an image counts for its rarest label; `PRS` balances all its labels",
    "Replay, ParametricBuffer by class": "likewise",
    "GDumb": "an image counts for its rarest label",
    "AGEM": "`AGEM` of this package also works with several processes",
    "GEM": "needs `pip install quadprog`, which Avalanche does not install",
    "EWC": "`EWC` of this package estimates importance from single images, not from batches",
    "SynapticIntelligence": "in Avalanche 0.6 also with one label per image; use `EWC`",
}
"""What to know about a strategy that trains, by name."""
IN_PART = {
    "LwF": "trains, but distils softmaxes over the old classes; `LwF` of this package distils each label",
}
"""Strategies that train, but with a loss that does not suit several labels."""


def simple_cnn() -> nn.Module:
    """Avalanche's network, with an output for each class."""
    return models.SimpleCNN(num_classes=N_CLASSES)


def cnn_features() -> nn.Module:
    """The same network without its classifier."""
    return nn.Sequential(models.SimpleCNN(num_classes=N_CLASSES).features, nn.Flatten())


def make(kind: Any, *, model: nn.Module | None = None, **settings: Any) -> Any:
    """A strategy with the settings that all of them share."""
    model = simple_cnn() if model is None else model
    return kind(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        criterion=PartialBCEWithLogitsLoss(),
        train_mb_size=BATCH_SIZE,
        eval_mb_size=32,
        evaluator=multilabel_evaluator(loggers=[]),
        **settings,
    )


def make_replay(buffer: Any) -> Any:
    """`Naive` with a replay memory."""
    return make(training.Naive, plugins=[plugins.ReplayPlugin(MEMORY, storage_policy=buffer)])


def make_icarl() -> Any:
    """iCaRL, which has a criterion of its own."""
    features, classifier = cnn_features(), nn.Linear(FEATURES, N_CLASSES)
    return training.ICaRL(
        feature_extractor=features,
        classifier=classifier,
        optimizer=torch.optim.SGD([*features.parameters(), *classifier.parameters()], lr=0.01),
        memory_size=MEMORY,
        buffer_transform=None,
        fixed_memory=True,
        evaluator=multilabel_evaluator(loggers=[]),
    )


def make_er_aml() -> Any:
    """ER-AML, which also needs the part of the network that computes features."""
    model: Any = simple_cnn()
    features = nn.Sequential(model.features, nn.Flatten())
    return make(training.ER_AML, model=model, feature_extractor=features, mem_size=MEMORY)


def make_scr() -> Any:
    """SCR, whose network computes embeddings."""
    model = models.SCRModel(feature_extractor=cnn_features(), projection=nn.Linear(FEATURES, 16))
    return training.SCR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        augmentations=nn.Identity(),
        mem_size=MEMORY,
        evaluator=multilabel_evaluator(loggers=[]),
    )


def make_streaming_lda() -> Any:
    """Streaming LDA, which has no optimizer."""
    return training.StreamingLDA(
        slda_model=cnn_features(),
        criterion=PartialBCEWithLogitsLoss(),
        input_size=FEATURES,
        num_classes=N_CLASSES,
        evaluator=multilabel_evaluator(loggers=[]),
    )


def make_less_forgetful() -> Any:
    """LFL, which needs a network with ``get_features``."""
    model = models.SimpleMLP(num_classes=N_CLASSES, input_size=3 * IMAGE_SIZE**2)
    return make(training.LFL, model=model, lambda_e=1.0)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "Naive": lambda: make(training.Naive),
    "OnlineNaive": lambda: make(training.OnlineNaive),
    "FromScratchTraining": lambda: make(training.FromScratchTraining),
    "JointTraining": lambda: make(training.JointTraining),
    "Cumulative": lambda: make(training.Cumulative),
    "Replay": lambda: make(training.Replay, mem_size=MEMORY),
    "Replay, ReservoirSamplingBuffer": lambda: make_replay(storage_policy.ReservoirSamplingBuffer(MEMORY)),
    "Replay, ClassBalancedBuffer": lambda: make_replay(storage_policy.ClassBalancedBuffer(MEMORY)),
    "Replay, ParametricBuffer by class": lambda: make_replay(
        storage_policy.ParametricBuffer(MEMORY, groupby="class")
    ),
    "GDumb": lambda: make(training.GDumb, mem_size=MEMORY),
    "MIR": lambda: make(training.MIR, mem_size=MEMORY, subsample=20, batch_size_mem=4),
    "ER_ACE": lambda: make(training.ER_ACE, mem_size=MEMORY),
    "ER_AML": make_er_aml,
    "DER": lambda: make(training.DER, mem_size=MEMORY),
    "MER": lambda: make(training.MER, mem_size=MEMORY),
    "SCR": make_scr,
    "GSS_greedy": lambda: make(training.GSS_greedy, mem_size=MEMORY, input_size=[3, IMAGE_SIZE, IMAGE_SIZE]),
    "FeatureReplay": lambda: make(training.FeatureReplay, last_layer_name="classifier", mem_size=MEMORY),
    "GenerativeReplay": lambda: make(training.GenerativeReplay),
    "RARPlugin": lambda: make(training.Naive, plugins=[plugins.RARPlugin(4, name_ext_layer="features")]),
    "AGEM": lambda: make(training.AGEM, patterns_per_exp=20, sample_size=BATCH_SIZE),
    "GEM": lambda: make(training.GEM, patterns_per_exp=20),
    "EWC": lambda: make(training.EWC, ewc_lambda=10.0),
    "EWC, online": lambda: make(training.EWC, ewc_lambda=10.0, mode="online", decay_factor=0.5),
    "SynapticIntelligence": lambda: make(training.SynapticIntelligence, si_lambda=10.0),
    "MAS": lambda: make(training.MAS, lambda_reg=10.0),
    "RWalkPlugin": lambda: make(training.Naive, plugins=[plugins.RWalkPlugin(10.0)]),
    "LwF": lambda: make(training.LwF, alpha=1.0, temperature=2.0),
    "LFL": make_less_forgetful,
    "BiC": lambda: make(training.BiC, mem_size=MEMORY),
    "ICaRL": make_icarl,
    "CoPE": lambda: make(training.CoPE, n_classes=N_CLASSES, p_size=N_CLASSES),
    "CWRStar": lambda: make(training.CWRStar, cwr_layer_name="classifier.0"),
    "StreamingLDA": make_streaming_lda,
}
"""Avalanche's strategies by name; a plugin runs with `Naive`."""
NOT_RUN = {
    "PNNStrategy": "needs to know the task of a test image",
    "PackNet": "needs to know the task of a test image",
    "ExpertGateStrategy": "needs weights that are downloaded, and gives an image to one expert",
    "AR1": "is tied to a network with weights that are downloaded",
    "LearningToPrompt": "is tied to a network with weights that are downloaded",
    "AETraining": "trains a generator, not a classifier",
    "VAETraining": "trains a generator, not a classifier",
}
"""Strategies that are not run, and why."""


class LossRecorder(SupervisedPlugin):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def after_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Keep the loss of the step."""
        self.losses.append(float(strategy.loss))


def train_weights(make_strategy: Callable[[], Any], benchmark: Any) -> Tensor:
    """Train and evaluate a strategy, and return its weights; a FloatingPointError if a loss is not finite."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (the generator that Avalanche uses)
    torch.manual_seed(0)
    strategy, recorder = make_strategy(), LossRecorder()
    strategy.plugins.append(recorder)
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, eval_streams=[])
        if not all(math.isfinite(loss) for loss in recorder.losses):
            raise FloatingPointError("the loss is NaN")
        strategy.eval(benchmark.test_stream[: t + 1])
    return torch.cat([weights.detach().flatten() for weights in strategy.model.parameters()])


def run_strategies() -> dict[str, str]:
    """What each strategy does: ``"works"``, ``"no effect"``, or its error."""
    benchmark = SplitScenes(
        n_classes=N_CLASSES, n_experiences=3, n_train=150, n_test=60, image_size=IMAGE_SIZE
    )
    naive = train_weights(STRATEGIES["Naive"], benchmark)
    outcomes: dict[str, str] = {}
    for name, make_strategy in STRATEGIES.items():
        try:
            weights = train_weights(make_strategy, benchmark)
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
        else:
            is_naive = name in ("Naive", "OnlineNaive")
            outcomes[name] = "no effect" if torch.equal(weights, naive) and not is_naive else "works"
        print(f"{name}: {outcomes[name]}", flush=True)
    return outcomes


def make_table(outcomes: dict[str, str]) -> str:
    """The table of the page: strategies that work, then the others."""
    lines = ["| Avalanche's strategy | | why not, or what to know |", "| --- | --- | --- |"]
    for name in sorted(outcomes, key=lambda name: outcomes[name] != "works"):  # stable
        outcome = outcomes[name]
        if outcome == "works" and name in IN_PART:
            verdict, remark = "in part", IN_PART[name]
        elif outcome == "works":
            verdict, remark = "works", REMARKS.get(name, "")
        elif outcome == "no effect":
            verdict, remark = "no effect", f"its weights equal those of `Naive`; {REMARKS[name]}"
        else:
            verdict, remark = "no", outcome.removeprefix("ValueError: Avalanche's ")
        lines.append(f"| `{name}` | {verdict} | {remark.rstrip('.')} |")
    lines += [f"| `{name}` | not run | {reason} |" for name, reason in NOT_RUN.items()]
    return "\n".join(lines) + "\n"


def write_page(outcomes: dict[str, str]) -> str:
    """The page with the table of these outcomes."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + make_table(outcomes) + END + after


def main() -> None:
    """Run the strategies unless only the page is wanted, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="write the table from the stored outcomes")
    arguments = parser.parse_args()
    if not arguments.page:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes = run_strategies()
        OUTCOMES.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    outcomes = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    PAGE.write_text(write_page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
