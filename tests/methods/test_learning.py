"""What each method is for, on the embedded benchmark: minutes, so run with ``-m slow``."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from torch.optim import Adam

from avalanche_agcn.benchmarks.scenes import SplitScenes
from avalanche_agcn.evaluation.functional import mean_average_precision, nested_summary
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.models import AGCNModel, MultiLabelClassifier, create_backbone, load_word_vectors
from avalanche_agcn.training import AGCN, AGEM, ER, EWC, OCDM, PRS, SCR, FineTuning, LwF, MultiTask

SEEDS = (0, 1, 2)
MEMORY = {"mem_size": 200}
METHODS = {
    FineTuning: {},
    EWC: {},
    LwF: {},
    AGEM: MEMORY,
    ER: MEMORY,
    PRS: MEMORY,
    OCDM: MEMORY,
    SCR: MEMORY | {"batch_size_mem": 32},
}


def scores_after(model, benchmark, t):
    """MAP on each nested test set, one pass over the images."""
    model.eval()
    logits, targets, row = [], [], []
    for i, experience in enumerate(benchmark.test_stream[: t + 1]):
        images = torch.stack([experience.dataset[k][0] for k in range(len(experience.dataset))])
        with torch.no_grad():
            logits.append(model(images))
        targets.append(experience.dataset.targets[:])
        n = len(benchmark.train_stream[i].classes_seen_so_far)
        row.append(100 * mean_average_precision(torch.cat(logits)[:, :n], torch.cat(targets)[:, :n]))
    model.train()
    return row


def learn(method, benchmark, initial_seed, *, scenes=None, **settings):
    """Summary of the nested mAP matrix; AGCN's model with the settings of ``scenes``, or a linear one."""
    torch.manual_seed(initial_seed)
    backbone = create_backbone("small")
    if scenes is None:
        model = MultiLabelClassifier(backbone, benchmark.n_classes)
        optimizer = Adam(model.parameters(), 1e-3)
    else:
        words = load_word_vectors(benchmark.class_names, orthogonal=scenes.orthogonal_words)
        model = AGCNModel(backbone, words)
        optimizer = Adam(model.parameter_groups(lr_backbone=scenes.lr, lr_gcn=scenes.lr_gcn))
    strategy = method(model=model, optimizer=optimizer, evaluator=EvaluationPlugin(), **settings)
    if method is MultiTask:
        strategy.train(benchmark)
        return scores_after(model, benchmark, len(benchmark.test_stream) - 1)[-1]
    matrix = []
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, eval_streams=[])
        matrix.append(scores_after(model, benchmark, t))
    return nested_summary(matrix)


@pytest.mark.slow
def test_multi_task_is_best_and_the_others_forget_less_than_fine_tuning():
    upper, summaries = [], {method: [] for method in METHODS}
    for seed in SEEDS:
        sizes = {"n_classes": 20, "n_experiences": 5, "n_train": 1500, "n_test": 800, "image_size": 32}
        benchmark = SplitScenes(**sizes, seed=seed)
        upper.append(learn(MultiTask, benchmark, seed))
        for method, settings in METHODS.items():
            summaries[method].append(learn(method, benchmark, seed, **settings))

    def mean(method, name):
        return sum(getattr(summary, name) for summary in summaries[method]) / len(SEEDS)

    for method in METHODS:
        assert mean(method, "last") < sum(upper) / len(SEEDS)
        if method is not FineTuning:
            forgotten = mean(method, "forgetting_absolute")
            assert forgotten < mean(FineTuning, "forgetting_absolute"), method.__name__


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_agcn_forgets_less_than_fine_tuning_and_ends_above_it(seed):
    """The same backbone, images and order; fine-tuning also of the baselines' linear classifier."""
    benchmark, scenes = SplitScenes(seed=seed), make_settings("scenes")
    weights = {n: value for n, value in scenes.method_settings.items() if n.startswith("lambda_")}
    order = int(torch.randint(2**32, (), generator=torch.Generator().manual_seed(seed)))
    agcn = learn(AGCN, benchmark, seed, scenes=scenes, seed=order, **weights)
    for model in (scenes, None):
        tuned = learn(FineTuning, benchmark, seed, scenes=model, seed=order)
        assert agcn.forgetting_absolute < tuned.forgetting_absolute
        assert agcn.last > tuned.last
