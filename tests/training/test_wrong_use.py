"""What would silently give wrong results is answered at once, with the fix."""

import numpy as np
import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import Cumulative, JointTraining, Naive
from avalanche.training.plugins import EvaluationPlugin
from sklearn.metrics import average_precision_score
from torch import nn
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import SplitScenes, multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageOptions, find_normalisation, paper_transforms
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.evaluation.functional import average_precision
from avalanche_agcn.models import AGCNModel, MultiLabelClassifier, create_backbone
from avalanche_agcn.models.backbones import Backbone
from avalanche_agcn.training import (
    ER,
    AugmentedCorrelationMatrix,
    FeatureStatistics,
    FineTuning,
    PartialBCEWithLogitsLoss,
)
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin

NAN = float("nan")
OTHER = (0.5, 0.5, 0.5)
SCENES = {"n_classes": 4, "n_experiences": 2, "n_train": 24, "n_test": 8, "image_size": 32}


def data(n=8):
    images = TensorDataset(torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    images.targets = torch.eye(2).repeat(n // 2, 1)
    return images


def backbone(**settings):
    return Backbone(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), num_features=3, **settings)


@pytest.mark.parametrize("kind", [JointTraining, Cumulative])
def test_avalanches_joint_training_is_rejected_with_the_name_of_ours(kind):
    benchmark = multilabel_benchmark(data(), data(), n_experiences=2)
    model = MultiLabelClassifier(backbone(), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion, evaluator = PartialBCEWithLogitsLoss(), multilabel_evaluator(loggers=[])
    strategy = kind(model=model, optimizer=optimizer, criterion=criterion, evaluator=evaluator)
    with pytest.raises(ValueError, match=rf"{kind.__name__} trains on partial labels.*MultiTask"):
        strategy.train(benchmark.train_stream if kind is JointTraining else benchmark.train_stream[0])


def test_the_loss_takes_only_labels_or_probabilities_where_asked_for():
    logits = torch.zeros(2, 2)
    for wrong in (5.0, -1.0, 0.5):
        targets = torch.tensor([[1.0, NAN], [0.0, wrong]])
        with pytest.raises(ValueError, match=rf"but are {wrong} for image 1, class 1"):
            PartialBCEWithLogitsLoss()(logits, targets)
    soft = torch.tensor([[1.0, NAN], [0.0, 0.5]])
    expected = nn.functional.binary_cross_entropy_with_logits(torch.zeros(3), torch.tensor([1.0, 0.0, 0.5]))
    torch.testing.assert_close(PartialBCEWithLogitsLoss(soft=True)(logits, soft), expected)
    with pytest.raises(ValueError, match=r"between 0 and 1, or NaN where unlabelled, but are 10.0"):
        PartialBCEWithLogitsLoss(soft=True)(logits, soft * 10)


def test_a_missing_label_within_an_images_own_columns_has_one_meaning_everywhere():
    """Unlabelled where labels are averaged; rejected where all labels are needed."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 2, (12, 2), generator=generator).double()
    scores, missing = torch.rand(12, 2, generator=generator).double(), targets.clone()
    missing[3, 1] = NAN
    known = [k for k in range(12) if k != 3]
    loss = PartialBCEWithLogitsLoss()
    cells = nn.functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    cells[3, 1] = 0
    torch.testing.assert_close(loss(scores, missing), cells.sum() / 23)
    expected = [
        average_precision_score(targets[:, 0], scores[:, 0]),
        average_precision_score(targets[known, 1], scores[known, 1]),
    ]
    np.testing.assert_allclose(average_precision(scores, missing), expected)
    acm, without = AugmentedCorrelationMatrix(), AugmentedCorrelationMatrix()
    acm.begin(2), without.begin(2)
    acm.update(missing), without.update(targets[known])
    assert torch.equal(acm.matrix(), without.matrix())
    statistics = FeatureStatistics()
    statistics.begin(2)
    with pytest.raises(ValueError, match="row 3, column 1 is nan"):
        statistics.update(scores, missing)
    images = TensorDataset(torch.rand(12, 3, 8, 8))
    images.targets = missing
    with pytest.raises(ValueError, match="train targets have unlabelled cells"):
        multilabel_benchmark(images, images, n_experiences=2)


def train(used, kind=FineTuning, **settings):
    benchmark = multilabel_benchmark(data(), data(), n_experiences=2, **paper_transforms(None, mean=used))
    model = MultiLabelClassifier(backbone(**settings), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion, evaluator = PartialBCEWithLogitsLoss(), multilabel_evaluator(loggers=[])
    strategy = kind(model=model, optimizer=optimizer, criterion=criterion, evaluator=evaluator)
    strategy.train(benchmark.train_stream[0], eval_streams=[])


@pytest.mark.parametrize("kind", [FineTuning, ER, Naive])
def test_a_pretrained_backbone_warns_of_another_normalisation(kind):
    with pytest.warns(UserWarning, match=r"normalised with .* make the benchmark with backbone=backbone"):
        train((0.485, 0.456, 0.406), kind, mean=OTHER, pretrained=True)


def test_the_backbones_own_normalisation_needs_no_warning(recwarn):
    train(OTHER, mean=OTHER, pretrained=True)
    train((0.485, 0.456, 0.406), mean=OTHER, pretrained=False)
    assert not [warning for warning in recwarn if "normalised" in str(warning.message)]


def test_normalisation_is_the_given_one_else_the_backbones():
    def used(**options):
        step = find_normalisation(ImageOptions(**options).transforms(32)["eval_transform"])
        return tuple(step.mean), tuple(step.std)

    network = backbone(mean=OTHER, std=(1.0, 1.0, 1.0))
    assert used(backbone=network) == (OTHER, (1.0, 1.0, 1.0))
    assert used(backbone=network, mean=(0.1, 0.2, 0.3))[0] == (0.1, 0.2, 0.3)
    assert used()[1] == (0.229, 0.224, 0.225)
    for wrong in ({"mean": (0.5,)}, {"std": (0.0, 1.0, 1.0)}, {"mean": (NAN, 0.0, 0.0)}):
        with pytest.raises(ValueError, match="a number for each of three colours"):
            used(**wrong)


@pytest.fixture(scope="module")
def benchmark():
    return SplitScenes(**SCENES)


def naive(model=None, criterion=None, evaluator=None, plugins=(), **settings):
    model = MultiLabelClassifier(create_backbone("small"), 4) if model is None else model
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        criterion=PartialBCEWithLogitsLoss() if criterion is None else criterion,
        evaluator=EvaluationPlugin() if evaluator is None else evaluator,
        plugins=list(plugins),
        train_mb_size=8,
        **settings,
    )


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(), nn.BCELoss()])
@pytest.mark.filterwarnings("ignore:No loggers specified")
def test_a_plain_criterion_is_rejected_under_any_strategy(benchmark, criterion):
    with pytest.raises(ValueError, match=r"Loss is .*: pass criterion=PartialBCEWithLogitsLoss\(\)"):
        naive(criterion=criterion).train(benchmark.train_stream[0])


def test_a_plain_criterion_is_fine_where_all_labels_are_known():
    benchmark = SplitScenes(**SCENES, unlabelled_as_negative=True)
    model = nn.Sequential(create_backbone("small"), nn.Linear(256, 4))
    strategy = naive(model, nn.BCEWithLogitsLoss())
    strategy.train(benchmark.train_stream[0])
    assert strategy.clock.train_iterations > 0


def test_accuracy_is_rejected_under_any_strategy(benchmark):
    accuracy = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[])
    with pytest.raises(ValueError, match=r"argmax of multi-hot targets.*multilabel_evaluator\(\)"):
        naive(evaluator=accuracy).train(benchmark.train_stream[0])
    with pytest.raises(ValueError, match="argmax of multi-hot targets"):
        naive(evaluator=accuracy).eval(benchmark.test_stream)


def test_agcn_without_its_graph_is_rejected(benchmark):
    model = AGCNModel(create_backbone("small"), torch.eye(4))
    with pytest.raises(ValueError, match=r"AGCNPlugin needs the label graph that ACMPlugin counts"):
        naive(model, plugins=[AGCNPlugin()]).train(benchmark.train_stream[0])
    naive(model, plugins=[AGCNPlugin(), ACMPlugin()]).train(benchmark.train_stream[0])


def test_lists_of_labels_are_not_targets():
    data = torch.utils.data.TensorDataset(torch.rand(3, 3, 8, 8))
    for targets in ([["cat"], ["dog", "cat"], ["dog"]], [[0], [1, 0], [1]]):
        data.targets = targets
        with pytest.raises(ValueError, match=r"not lists of labels such as .*multilabel_csv"):
            multilabel_benchmark(data, data, n_experiences=2)
