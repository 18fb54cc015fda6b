"""AGCN against fine-tuning on the embedded benchmark: same backbone, rates, images and order."""

import pytest
import torch
from torch.optim import Adam

from avalanche_agcn.benchmarks.scenes import SplitScenes
from avalanche_agcn.evaluation import find_nested, multilabel_evaluator
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.models import AGCNModel, MultiLabelClassifier, create_backbone, load_word_vectors
from avalanche_agcn.training import AGCN, FineTuning

SETTINGS = make_settings("scenes")
WEIGHTS = {n: value for n, value in SETTINGS.method_settings.items() if n.startswith("lambda_")}


def learn(strategy_class, benchmark, seed, *, graph, **settings):
    """Summary of the nested mAP matrix after the whole stream, seen once."""
    torch.manual_seed(seed)
    backbone = create_backbone("small")
    if graph:
        words = load_word_vectors(benchmark.class_names, orthogonal=SETTINGS.orthogonal_words)
        model = AGCNModel(backbone, words)
        optimizer = Adam(model.parameter_groups(lr_backbone=SETTINGS.lr, lr_gcn=SETTINGS.lr_gcn))
    else:
        model = MultiLabelClassifier(backbone, benchmark.n_classes)
        optimizer = Adam(model.parameters(), lr=SETTINGS.lr)
    strategy = strategy_class(
        model=model,
        optimizer=optimizer,
        eval_mb_size=64,
        evaluator=multilabel_evaluator(loggers=[]),
        **settings,
    )
    for t, experience in enumerate(benchmark.train_stream):
        torch.manual_seed(seed + t)  # the same order of images, whatever evaluation draws
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[: t + 1])
    return find_nested(strategy).result()["test"]["mAP"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agcn_forgets_less_than_fine_tuning_and_ends_above_it(seed):
    benchmark = SplitScenes(seed=seed)
    agcn = learn(AGCN, benchmark, seed, graph=True, **WEIGHTS)
    print(f"seed {seed}: AGCN {agcn}", flush=True)
    for graph in (True, False):  # of the same model, and of the baselines' linear classifier
        tuned = learn(FineTuning, benchmark, seed, graph=graph)
        print(f"seed {seed}: fine-tuning, graph {graph}: {tuned}", flush=True)
        assert agcn.forgetting_absolute < tuned.forgetting_absolute
        assert agcn.last > tuned.last
