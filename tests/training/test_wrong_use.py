"""Mistakes that would silently give wrong results are rejected at once, with the fix."""

from functools import partial

import numpy as np
import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import Cumulative, JointTraining, Naive
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from PIL import Image
from sklearn.metrics import average_precision_score
from torch import nn
from torch.utils.data import TensorDataset

from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix
from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageOptions, find_normalisation, paper_transforms
from avalanche_agcn.evaluation import mean_average_precision_metrics, multilabel_evaluator
from avalanche_agcn.evaluation.functional import average_precision
from avalanche_agcn.models import Backbone, MultiLabelClassifier
from avalanche_agcn.training import (
    ER,
    FineTuning,
    MultiTask,
    PartialBCEWithLogitsLoss,
    ReservoirBuffer,
    StreamingRidge,
)
from avalanche_agcn.training.plugins import (
    ACMPlugin,
    AGCNPlugin,
    FeatureStatisticsPlugin,
    LwFPlugin,
    OnlineReplayPlugin,
    StatisticalNegativesPlugin,
)
from avalanche_agcn.training.statistics.features import FeatureStatistics

NAN = float("nan")


def images(targets):
    data = TensorDataset(torch.rand(len(targets), 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    data.targets = targets
    return data


OTHER = (0.5, 0.5, 0.5)


def backbone(**settings):
    return Backbone(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), num_features=3, **settings)


@pytest.mark.parametrize("kind", [JointTraining, Cumulative])
def test_avalanches_joint_training_is_rejected_with_the_name_of_ours(benchmark, make_strategy, kind):
    strategy = make_strategy(kind=kind, evaluator=multilabel_evaluator(loggers=[]))
    stream = benchmark.train_stream
    with pytest.raises(ValueError, match=rf"{kind.__name__} trains on partial labels.*MultiTask"):
        strategy.train(stream if kind is JointTraining else stream[0])


def test_the_loss_takes_only_labels_or_on_request_probabilities():
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
    cells = nn.functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    cells[3, 1] = 0
    torch.testing.assert_close(PartialBCEWithLogitsLoss()(scores, missing), cells.sum() / 23)
    expected = [
        average_precision_score(targets[:, 0], scores[:, 0]),
        average_precision_score(targets[known, 1], scores[known, 1]),
    ]
    np.testing.assert_allclose(average_precision(scores, missing), expected)
    acm, without, statistics = AugmentedCorrelationMatrix(), AugmentedCorrelationMatrix(), FeatureStatistics()
    acm.begin(2), without.begin(2), statistics.begin(2)
    acm.update(missing), without.update(targets[known])
    assert torch.equal(acm.matrix(), without.matrix())
    with pytest.raises(ValueError, match="row 3, column 1 is nan"):
        statistics.update(scores, missing)
    with pytest.raises(ValueError, match="train targets have unlabelled cells"):
        multilabel_benchmark(images(missing), images(missing), n_experiences=2)


class Photos(torch.utils.data.Dataset):
    """PIL images of two classes."""

    targets = torch.eye(2).repeat(4, 1)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return Image.new("RGB", (8, 8)), self.targets[index]


def test_photos_without_a_transform_and_wrong_lengths_of_features_name_the_remedy(train):
    made = multilabel_benchmark(Photos(), Photos(), n_experiences=2)
    model = MultiLabelClassifier(backbone(), 2)
    with pytest.raises(TypeError, match=r"PIL images.*pass a train_transform and an eval_transform that"):
        train(model=model, evaluator=EvaluationPlugin(), stream=made.train_stream[:1])
    wrong = Backbone(nn.Conv2d(3, 4, 3), num_features=5)
    with pytest.raises(ValueError, match=r"features of length 4, .*: pass num_features=4"):
        wrong(torch.zeros(1, 3, 8, 8))


@pytest.fixture
def train_normalised(train):
    def run(mean, kind=FineTuning, **settings):
        data = images(torch.eye(2).repeat(4, 1))
        made = multilabel_benchmark(data, data, n_experiences=2, **paper_transforms(None, mean=mean))
        model = MultiLabelClassifier(backbone(mean=OTHER, **settings), 2)
        evaluator = multilabel_evaluator(loggers=[]) if kind is Naive else EvaluationPlugin()
        train(kind=kind, model=model, evaluator=evaluator, stream=made.train_stream[:1])

    return run


@pytest.mark.parametrize("kind", [FineTuning, ER, Naive])
def test_a_pretrained_backbone_warns_of_another_normalisation_only(train_normalised, kind, recwarn):
    train_normalised(OTHER, kind, pretrained=True)
    train_normalised((0.485, 0.456, 0.406), kind, pretrained=False)
    assert not [warning for warning in recwarn if "normalised" in str(warning.message)]
    with pytest.warns(UserWarning, match=r"normalised with .* make the benchmark with backbone=backbone"):
        train_normalised((0.485, 0.456, 0.406), kind, pretrained=True)


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


@pytest.mark.parametrize("kind", [FineTuning, Naive])
def test_a_plain_criterion_is_rejected_unless_all_labels_are_known(train, zeros, benchmark, kind):
    def run(criterion, **settings):
        # Avalanche's strategy has no part of this package but the evaluator, which checks it.
        evaluator = multilabel_evaluator(loggers=[]) if kind is Naive else EvaluationPlugin()
        return train(kind=kind, criterion=criterion, evaluator=evaluator, **settings)

    online = split_online_stream(benchmark.train_stream, experience_size=10)
    for criterion in (nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(), nn.BCELoss()):
        for stream in (benchmark.train_stream, online):
            with pytest.raises(ValueError, match=r"Loss is .*: pass criterion=PartialBCEWithLogitsLoss\(\)"):
                run(criterion, stream=stream)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 6))
    trained = run(nn.BCEWithLogitsLoss(), stream=zeros.train_stream[:1], model=model)
    assert trained.clock.train_iterations > 0


@pytest.mark.parametrize("kind", [FineTuning, Naive])
def test_accuracy_is_rejected(train, benchmark, kind):
    ours = mean_average_precision_metrics(stream=True) if kind is Naive else []
    evaluator = EvaluationPlugin(accuracy_metrics(stream=True), ours, loggers=[])
    with pytest.raises(ValueError, match=r"argmax of multi-hot targets.*multilabel_evaluator\(\)"):
        train(kind=kind, evaluator=evaluator)
    with pytest.raises(ValueError, match="argmax of multi-hot targets"):
        train(kind=kind, evaluator=evaluator, n=0).eval(benchmark.test_stream)


def test_a_plugin_of_this_package_checks_any_strategy(train, benchmark):
    plugins = (LwFPlugin, StatisticalNegativesPlugin, partial(OnlineReplayPlugin, ReservoirBuffer(4)))
    for make in plugins:
        with pytest.raises(ValueError, match=r"pass criterion=PartialBCEWithLogitsLoss\(\)"):
            train(make(), kind=Naive, criterion=nn.BCEWithLogitsLoss())
        strategy = train(make(), kind=Naive, evaluator=EvaluationPlugin(accuracy_metrics(stream=True)), n=0)
        with pytest.raises(ValueError, match="argmax of multi-hot targets"):
            strategy.eval(benchmark.test_stream)


def test_agcn_without_its_graph_is_rejected(train, make_model):
    with pytest.raises(ValueError, match=r"AGCNPlugin needs the label graph that ACMPlugin counts"):
        train(AGCNPlugin(), kind=Naive, model=make_model())


def test_methods_that_need_unlabelled_cells_reject_unlabelled_as_negative(zeros, train):
    stream = zeros.train_stream
    with pytest.raises(ValueError, match="needs all labels of every image"):
        train(kind=MultiTask, stream=stream)
    for plugin in (FeatureStatisticsPlugin, ACMPlugin):
        with pytest.raises(ValueError, match=r"unlabelled_as_negative=True: use OnlineReplayPlugin"):
            train(plugin(), ReplayPlugin(mem_size=20), stream=stream)
    strategy = train(kind=StreamingRidge, stream=stream)
    before = strategy.statistics.count(0)
    with pytest.raises(ValueError, match="do not tell which one an image was trained in"):
        strategy.forget(stream[0].dataset)
    assert strategy.statistics.count(0) == before


@pytest.mark.parametrize("targets", [[["cat"], ["dog", "cat"], ["dog"]], [[0], [1, 0], [1]]])
def test_lists_of_labels_are_not_targets(targets):
    with pytest.raises(ValueError, match=r"not lists of labels such as .*multilabel_csv"):
        multilabel_benchmark(images(targets), images(targets), n_experiences=2)
