import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.benchmarks.utils import concat_datasets
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import SplitScenes, multilabel_benchmark
from avalanche_agcn.evaluation.functional import mean_average_precision
from avalanche_agcn.models import MultiLabelClassifier, Precomputed, create_backbone
from avalanche_agcn.training import L3A, FineTuning, StreamingRidge
from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.ridge import estimate_relations, solve_ridge, standardise

WIDTH, N_CLASSES = 12, 6


def make_features(n=150, seed=0):
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand(n, N_CLASSES, generator=generator) < 0.3).double()
    targets[torch.arange(n), torch.arange(n) % N_CLASSES] = 1
    patterns = torch.randn(N_CLASSES, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    features = targets @ patterns + torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
    data = TensorDataset(features)
    data.targets = targets.int()
    return data


@pytest.fixture(scope="module")
def features():
    """Three experiences of two classes over given float64 features."""
    return multilabel_benchmark(make_features(), make_features(60, 1), n_experiences=3)


def make_strategy(**settings):
    model = MultiLabelClassifier(Precomputed(WIDTH), N_CLASSES).double()
    return StreamingRidge(model=model, **{"evaluator": EvaluationPlugin(), "train_mb_size": 7, **settings})


def train(benchmark, **settings):
    strategy = make_strategy(**settings)
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[])
    return strategy


def evaluation_rows(benchmark, part):
    """All test images (0) or targets (1)."""
    return torch.stack([row[part] for experience in benchmark.test_stream for row in experience.dataset])


def scores(strategy, benchmark):
    x = evaluation_rows(benchmark, 0)
    with torch.no_grad():
        return strategy.model.eval()(x)


def assert_same_scores(one, other, benchmark, atol=1e-9):
    torch.testing.assert_close(scores(one, benchmark), scores(other, benchmark), rtol=0, atol=atol)


@pytest.mark.parametrize(
    "settings", [{"refine": None}, {"refine": None, "ridge": 3.0, "gamma": 1.0}, {"refine": 0.5}]
)
def test_logits_are_those_of_the_closed_form(features, settings):
    statistics = FeatureStatistics()
    for experience in features.train_stream:
        statistics.begin(2)
        rows = list(experience.dataset)
        own = experience.classes_in_this_experience
        statistics.update(torch.stack([r[0] for r in rows]), torch.stack([r[1][own] for r in rows]))
    solution = solve_ridge(statistics, **{k: v for k, v in settings.items() if k != "refine"})
    x = evaluation_rows(features, 0)
    expected = solution.scores(x)
    if settings["refine"]:
        conditional, prior = estimate_relations(statistics, solution)
        gain = (conditional - prior[:, None]).clamp(min=0).fill_diagonal_(0)
        distance = solution.calibration.positive_mean - solution.calibration.negative_mean
        shown = standardise(expected, solution.calibration).clamp(0, 1)
        expected = expected + 0.5 * shown @ gain.T * distance.clamp(min=0)
    probabilities = scores(train(features, **settings), features).sigmoid()
    torch.testing.assert_close(probabilities, solution.probabilities(expected), rtol=0, atol=1e-9)


def test_it_learns(features):
    targets = evaluation_rows(features, 1)
    assert mean_average_precision(scores(train(features), features), targets) > 0.8  # chance is 0.4


@pytest.mark.parametrize(
    "settings", [{"train_mb_size": 50}, {"train_mb_size": 1}, {"seed": 5}, {"train_epochs": 3}]
)
def test_batches_order_and_further_epochs_do_not_matter(features, settings):
    assert_same_scores(train(features), train(features, **settings), features)


def test_training_twice_on_an_experience_counts_it_once(features):
    again = train(features)
    with pytest.warns(UserWarning, match="images of experience 1 are in the sums already"):
        again.train(features.train_stream[1], eval_streams=[])
    assert_same_scores(train(features), again, features)


class Interrupt(SupervisedPlugin):
    """Interrupts the second batch of the second experience, once."""

    def after_training_iteration(self, strategy, **kwargs):
        clock = strategy.clock
        if (strategy.experience.current_experience, clock.train_exp_iterations) == (1, 1) and not vars(self):
            self.done = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("make", [StreamingRidge, L3A])
def test_an_experience_that_was_interrupted_is_counted_once(features, make):
    strategies = []
    for plugins in ([], [Interrupt()]):
        model = MultiLabelClassifier(Precomputed(WIDTH), N_CLASSES).double()
        strategy = make(model=model, evaluator=EvaluationPlugin(), train_mb_size=7, plugins=plugins)
        for experience in features.train_stream:
            with contextlib.suppress(KeyboardInterrupt):
                strategy.train(experience, eval_streams=[])
                continue
            strategy.train(experience, eval_streams=[])
        strategies.append(strategy)
    assert strategies[1].plugins[1].done
    assert_same_scores(*strategies, features)


@pytest.mark.parametrize("make", [StreamingRidge, L3A])
@pytest.mark.parametrize("every", [1, 2])
def test_evaluation_within_an_experience_does_not_change_the_result(features, make, every):
    strategies = []
    for settings in ({}, {"eval_every": every, "peval_mode": "iteration"}):
        model = MultiLabelClassifier(Precomputed(WIDTH), N_CLASSES).double()
        strategy = make(model=model, evaluator=EvaluationPlugin(), train_mb_size=7, **settings)
        for t, experience in enumerate(features.train_stream):
            strategy.train(experience, eval_streams=[features.test_stream[: t + 1]])
        strategies.append(strategy)
    assert_same_scores(*strategies, features)


@pytest.mark.parametrize("make", [StreamingRidge, L3A])
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("size", [10, 1000])
def test_pieces_of_online_streams_are_all_counted(features, make, one_by_one, size):
    strategies = []
    whole = list(features.train_stream)
    streams = [[experience] for experience in whole] if one_by_one else [whole]
    pieces = [piece for stream in streams for piece in split_online_stream(stream, experience_size=size)]
    for experiences in (whole, pieces):
        model = MultiLabelClassifier(Precomputed(WIDTH), N_CLASSES).double()
        strategies.append(make(model=model, evaluator=EvaluationPlugin()))
        for experience in experiences:
            strategies[-1].train(experience, eval_streams=[])
    assert_same_scores(*strategies, features)


@pytest.mark.parametrize("make", [StreamingRidge, L3A])
def test_an_experience_that_was_left_out_is_named(features, make):
    model = MultiLabelClassifier(Precomputed(WIDTH), N_CLASSES).double()
    strategy = make(model=model, evaluator=EvaluationPlugin())
    with pytest.raises(ValueError, match=r"4 classes were seen so far, 2 of them in this .* has counted 0"):
        strategy.train(features.train_stream[1])


def test_its_model_can_be_trained_by_another_strategy(features):
    model = train(part_of_stream(features, 2)).model
    before, optimizer = model.classifier.weight.clone(), torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = FineTuning(model=model, optimizer=optimizer, evaluator=EvaluationPlugin())
    strategy.train(features.train_stream[1], eval_streams=[])
    assert (model.classifier.weight != before)[2:4].any(1).all()
    strategy.train(features.train_stream[2], eval_streams=[])
    assert scores(strategy, features).shape[1] == N_CLASSES


def part_of_stream(benchmark, n):
    """The first experiences of a benchmark."""
    return SimpleNamespace(train_stream=benchmark.train_stream[:n])


def part_of(experience, indices):
    """The experience with some of its images only."""
    part = copy.copy(experience)
    part._dataset = experience.dataset.subset(indices)
    return part


def halves(benchmark):
    """Two strategies that were trained on every second image each."""
    for start in (0, 1):
        strategy = make_strategy()
        for experience in benchmark.train_stream:
            indices = range(start, len(experience.dataset), 2)
            strategy.train(part_of(experience, indices), eval_streams=[])
        yield strategy


def test_merged_halves_equal_training_on_all(features):
    one, other = halves(features)
    one.merge(other)
    assert_same_scores(one, train(features), features)


def test_forgetting_equals_never_having_seen(features):
    one = next(halves(features))
    everything = train(features)
    seen_by_other = concat_datasets(
        [exp.dataset.subset(range(1, len(exp.dataset), 2)) for exp in features.train_stream]
    )
    everything.forget(seen_by_other)
    assert_same_scores(everything, one, features)


def test_forgetting_photos_that_were_not_there_changes_nothing(features):
    strategy = next(halves(features))
    before = scores(strategy, features)
    with pytest.raises(ValueError, match="would"):
        strategy.forget(features.train_stream[0].dataset)
    assert torch.equal(scores(strategy, features), before)


def test_through_a_network_merging_equals_training_on_all(benchmark, make_model):
    def make():
        model = MultiLabelClassifier(make_model().backbone, benchmark.n_classes)
        return StreamingRidge(model=model, evaluator=EvaluationPlugin())

    one, other, both = make(), make(), make()
    for experience in benchmark.train_stream:
        n = len(experience.dataset)
        both.train(experience, eval_streams=[])
        one.train(part_of(experience, range(0, n, 2)), eval_streams=[])
        other.train(part_of(experience, range(1, n, 2)), eval_streams=[])
    one.merge(other)
    assert_same_scores(one, both, benchmark, atol=1e-4)


@pytest.mark.parametrize("n_left", [0, 1, 20])
def test_through_a_network_forgetting_does_not_depend_on_the_batches(n_left):
    scenes = SplitScenes(n_classes=4, n_experiences=2, n_train=100, n_test=40, flip=False)
    experience = scenes.train_stream[1]
    torch.manual_seed(0)
    backbone, left = create_backbone("small"), part_of(experience, range(n_left))
    forgotten = experience.dataset.subset(range(n_left, len(experience.dataset)))

    def train_on(*experiences):
        model = MultiLabelClassifier(backbone, 4)
        strategy = StreamingRidge(model=model, evaluator=EvaluationPlugin(), eval_mb_size=1)
        for one in experiences:
            strategy.train(one, eval_streams=[])
        return strategy

    strategy = train_on(scenes.train_stream[0], experience)
    strategy.forget(forgotten)
    assert strategy.statistics.count(1) == n_left
    if n_left:
        expected = train_on(scenes.train_stream[0], left).statistics.moments(1)
        torch.testing.assert_close(strategy.statistics.moments(1), expected, rtol=1e-4, atol=1e-3)


def test_half_precision_is_not_forgotten_or_merged_with_full_precision(features):
    half, full = (train(features, amp=amp) for amp in (torch.bfloat16, None))
    with pytest.raises(ValueError, match=r"torch\.bfloat16 depend on the batch .* amp=None"):
        half.forget(features.train_stream[0].dataset)
    with pytest.raises(ValueError, match=r"different precision: None and torch\.bfloat16"):
        full.merge(half)


def test_network_does_not_change(benchmark, make_model):
    model = MultiLabelClassifier(make_model().backbone, benchmark.n_classes)
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    strategy = StreamingRidge(model=model, evaluator=EvaluationPlugin())
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    assert all(torch.equal(value, before[name]) for name, value in model.backbone.state_dict().items())


def test_unequal_networks_classes_or_augmentation_are_rejected(benchmark, features, make_model):
    def trained(stream, backbone, width=6):
        model = MultiLabelClassifier(backbone, width)
        strategy = StreamingRidge(model=model, evaluator=EvaluationPlugin())
        strategy.train(stream[0], eval_streams=[])
        return strategy

    one = trained(benchmark.train_stream, make_model().backbone)
    with pytest.raises(ValueError, match="different network"):
        one.merge(trained(benchmark.train_stream, make_model(seed=1).backbone))
    with pytest.raises(ValueError, match="Nothing was trained"):
        one.merge(make_strategy())
    next(one.model.backbone.parameters()).data.add_(1)
    with pytest.raises(ValueError, match="network was trained"):
        one.forget(benchmark.train_stream[0].dataset)

    images = TensorDataset(torch.rand(20, 3, 8, 8))
    images.targets = torch.eye(2).repeat(10, 1).int()
    noisy = multilabel_benchmark(
        images, images, n_experiences=1, train_transform=lambda x: x + torch.rand(()), class_names=["a", "b"]
    )
    random = trained(noisy.train_stream, make_model().backbone)
    with pytest.raises(ValueError, match="random augmentation"):
        random.forget(noisy.train_stream[0].dataset)


def test_other_models_are_rejected(make_model):
    with pytest.raises(TypeError, match="MultiLabelClassifier"):
        StreamingRidge(model=make_model())


def test_one_image_per_experience_and_a_class_without_positives_are_defined():
    data = TensorDataset(torch.eye(4, WIDTH, dtype=torch.float64))
    data.targets = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]])
    benchmark = multilabel_benchmark(data, data, classes_per_experience=[1, 2])
    model = MultiLabelClassifier(Precomputed(WIDTH), 3).double()
    strategy = StreamingRidge(model=model, evaluator=EvaluationPlugin())
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[])
    assert scores(strategy, benchmark).isfinite().all()


def test_interrupted_solution_leaves_the_classifiers_and_is_repeated(features, monkeypatch):
    strategy = make_strategy()
    strategy.train(features.train_stream[0], eval_streams=[])
    before = scores(strategy, features)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("avalanche_agcn.training.strategies.closed_form.solve_ridge", interrupt)
        with pytest.raises(KeyboardInterrupt):
            strategy.train(features.train_stream[1], eval_streams=[])
    assert torch.equal(scores(strategy, features)[:, :2], before)
    strategy.eval(features.test_stream[:2])  # solves first
    strategy.train(features.train_stream[2], eval_streams=[])
    assert_same_scores(strategy, train(features), features)
