"""StreamingRidge and L3A: solved from sums, whatever the batches, epochs, pieces and interruptions."""

import contextlib
import copy
import warnings

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream, split_online_stream
from avalanche.benchmarks.utils import concat_datasets
from avalanche.training.plugins import EvaluationPlugin
from sklearn.linear_model import Ridge
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import SplitScenes, multilabel_benchmark
from avalanche_agcn.evaluation.functional import mean_average_precision
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.methods.l3a import L3AStatistics
from avalanche_agcn.models import MultiLabelClassifier, Precomputed, RandomFeatures, create_backbone
from avalanche_agcn.training import L3A, FineTuning, MultiTaskRidge, StreamingRidge
from avalanche_agcn.training.statistics.ridge import estimate_relations, solve_ridge, standardise

WIDTH, N_CLASSES = 12, 6


@pytest.fixture(params=[StreamingRidge, L3A])
def kind(request):
    return request.param


def make_benchmark(**settings):
    """Three experiences of two classes over given float64 features."""
    patterns = torch.randn(N_CLASSES, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    parts = []
    for n, seed in ((150, 0), (60, 1)):
        generator = torch.Generator().manual_seed(seed)
        targets = (torch.rand(n, N_CLASSES, generator=generator) < 0.3).double()
        targets[torch.arange(n), torch.arange(n) % N_CLASSES] = 1
        noise = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
        parts.append(TensorDataset(targets @ patterns + noise))
        parts[-1].targets = targets.int()
    return multilabel_benchmark(*parts, n_experiences=3, **settings)


@pytest.fixture(scope="module", params=[False, True], ids=["unlabelled as NaN", "unlabelled as 0"])
def either(request):
    return make_benchmark(unlabelled_as_negative=request.param)


@pytest.fixture(scope="module")
def features():
    return make_benchmark()


def make(kind=StreamingRidge, backbone=None, n_classes=N_CLASSES, **settings):
    """A strategy over given features, or over a network; L3A's with more random features than given ones."""
    if backbone is None:
        backbone = RandomFeatures(Precomputed(WIDTH), 40) if kind is L3A else Precomputed(WIDTH)
        model = MultiLabelClassifier(backbone, n_classes).double()
    else:
        model = MultiLabelClassifier(backbone, n_classes)
    own = {"ridge": 10.0, "threshold": 0.6} if kind is L3A else {}
    return kind(model=model, **{"evaluator": EvaluationPlugin(), "train_mb_size": 7} | own | settings)


def train(strategy, stream):
    for experience in stream:
        strategy.train(experience, eval_streams=[])
    return strategy


def evaluation_rows(benchmark, part):
    """All test images (0) or targets (1)."""
    return torch.stack([row[part] for experience in benchmark.test_stream for row in experience.dataset])


@torch.no_grad()
def scores(strategy, benchmark):
    return strategy.model.eval()(evaluation_rows(benchmark, 0))


def assert_same_scores(one, other, benchmark, atol=1e-9):
    torch.testing.assert_close(scores(one, benchmark), scores(other, benchmark), rtol=0, atol=atol)


@pytest.mark.parametrize(
    "settings", [{"refine": None}, {"refine": None, "ridge": 3.0, "gamma": 1.0}, {"refine": 0.5}]
)
def test_ridge_logits_are_those_of_the_closed_form_and_rank_labels(features, sums_of, settings):
    statistics = sums_of(features.train_stream)
    solution = solve_ridge(statistics, **{k: v for k, v in settings.items() if k != "refine"})
    expected = solution.scores(evaluation_rows(features, 0))
    if settings["refine"]:
        conditional, prior = estimate_relations(statistics, solution)
        gain = (conditional - prior[:, None]).clamp(min=0).fill_diagonal_(0)
        distance = solution.calibration.positive_mean - solution.calibration.negative_mean
        shown = standardise(expected, solution.calibration).clamp(0, 1)
        expected = expected + 0.5 * shown @ gain.T * distance.clamp(min=0)
    probabilities = scores(train(make(**settings), features.train_stream), features).sigmoid()
    scale, offset = solution.calibration[:2]
    torch.testing.assert_close(probabilities, (expected * scale + offset).sigmoid(), rtol=0, atol=1e-9)
    assert mean_average_precision(probabilities, evaluation_rows(features, 1)) > 0.8  # chance is 0.4


def test_l3a_logits_are_those_of_the_closed_form(either, rows_of):
    strategy = train(make(L3A), either.train_stream)
    statistics = L3AStatistics(ridge=10.0, threshold=0.6)
    for experience in either.train_stream:
        x, targets = rows_of(experience)
        own = targets[:, experience.classes_in_this_experience]
        statistics.begin(own.sum(0))
        statistics.update(strategy.model.features(x), own)
    expected = strategy.model.eval().features(evaluation_rows(either, 0)) @ statistics.solve()
    torch.testing.assert_close(scores(strategy, either), expected - 0.1, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        *({"train_mb_size": 50}, {"train_mb_size": 1}, {"seed": 5}, {"train_epochs": 3}),
        *({"eval_every": every, "peval_mode": "iteration"} for every in (1, 2)),
        *({"eval_every": every, "train_epochs": 2} for every in (1, 2)),
    ],
    ids=str,
)
def test_batches_order_further_epochs_and_evaluation_do_not_matter(features, kind, settings):
    changed = make(kind, **settings)
    for t, experience in enumerate(features.train_stream):
        changed.train(experience, eval_streams=[features.test_stream[: t + 1]])
    assert_same_scores(changed, train(make(kind), features.train_stream), features)


def test_training_twice_on_an_experience_counts_it_once(features):
    once, again = (train(make(), features.train_stream) for _ in range(2))
    with pytest.warns(UserWarning, match="images of experience 1 are in the sums already"):
        again.train(features.train_stream[1], eval_streams=[])
    assert_same_scores(once, again, features)


def test_an_experience_that_was_interrupted_is_counted_once(features, watch, kind):
    def interrupt(strategy):
        at = strategy.experience.current_experience, strategy.clock.train_exp_iterations
        if at == (1, 1) and not interrupted:
            interrupted.append(at)
            raise KeyboardInterrupt

    interrupted = []
    strategy = make(kind, plugins=[watch(after_training_iteration=interrupt)])
    for experience in features.train_stream:
        with contextlib.suppress(KeyboardInterrupt):
            strategy.train(experience, eval_streams=[])
            continue
        strategy.train(experience, eval_streams=[])
    assert interrupted
    assert_same_scores(strategy, train(make(kind), features.train_stream), features)


@pytest.mark.parametrize("settings", [{}, {"train_epochs": 2}], ids=str)
def test_an_experience_whose_first_epoch_was_stopped_is_counted_once(features, watch, kind, settings):
    stopper = watch(after_training_iteration=lambda strategy: strategy.stop_training())
    strategy, stream = make(kind, plugins=[stopper], **settings), features.train_stream
    strategy.train(stream[0], eval_streams=[])
    strategy.plugins.remove(stopper)
    train(strategy, [stream[0], *stream])
    assert_same_scores(strategy, train(make(kind), stream), features)


def test_classifiers_can_be_trained_after_an_interruption(features, watch, kind):
    def interrupt(strategy):
        raise KeyboardInterrupt

    strategy = make(kind, plugins=[watch(after_training_iteration=interrupt)])
    with pytest.raises(KeyboardInterrupt):
        train(strategy, features.train_stream)
    assert all(parameter.requires_grad for parameter in strategy.model.classifier.parameters())


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("size", [10, 1000])
def test_pieces_of_online_streams_are_all_counted(features, kind, one_by_one, size):
    whole = list(features.train_stream)
    streams = [[experience] for experience in whole] if one_by_one else [whole]
    pieces = [piece for stream in streams for piece in split_online_stream(stream, experience_size=size)]
    assert_same_scores(train(make(kind), whole), train(make(kind), pieces), features)


def test_skipped_experiences_and_models_that_are_not_linear_are_named(features, make_model, kind):
    with pytest.raises(ValueError, match=r"4 classes were seen so far, 2 of them in this .* has counted 0"):
        make(kind).train(features.train_stream[1])
    with pytest.raises(TypeError, match=f"{kind.__name__} needs a linear classifier, not AGCNModel: .*Multi"):
        kind(model=make_model())


def test_state_resumes_between_experiences(either, kind):
    strategy, resumed = train(make(kind, seed=0), either.train_stream[:2]), make(kind, seed=0)
    resumed.collector.load_state_dict(copy.deepcopy(strategy.collector.state_dict()))
    resumed.model.load_state_dict(strategy.model.state_dict())
    for one in (strategy, resumed):
        train(one, either.train_stream[2:])
    assert torch.equal(strategy.model.classifier.weight, resumed.model.classifier.weight)


def test_network_does_not_change(benchmark, make_model, kind):
    backbone = make_model().backbone
    strategy = make(kind, RandomFeatures(backbone, 30) if kind is L3A else backbone)
    before = copy.deepcopy(strategy.model.backbone.state_dict())
    train(strategy, benchmark.train_stream)
    found = strategy.model.backbone.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in found.items())
    assert strategy.model.n_seen == N_CLASSES


def test_its_model_can_be_trained_by_another_strategy(features):
    model = train(make(), features.train_stream[:2]).model
    before, optimizer = model.classifier.weight.clone(), torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = FineTuning(model=model, optimizer=optimizer, evaluator=EvaluationPlugin())
    strategy.train(features.train_stream[1], eval_streams=[])
    assert (model.classifier.weight != before)[2:4].any(1).all()
    strategy.train(features.train_stream[2], eval_streams=[])
    assert scores(strategy, features).shape[1] == N_CLASSES


def part_of(experience, indices):
    """The experience with some of its images only."""
    part = copy.copy(experience)
    part._dataset = experience.dataset.subset(indices)
    return part


def half(benchmark, start):
    """Every second image of each experience."""
    return [part_of(e, range(start, len(e.dataset), 2)) for e in benchmark.train_stream]


@pytest.mark.parametrize("network", [False, True])
def test_merged_halves_equal_training_on_all(benchmark, features, make_model, network):
    backbone, stream = (make_model().backbone, benchmark) if network else (None, features)
    one, other, both = (make(backbone=backbone) for _ in range(3))
    train(one, half(stream, 0)).merge(train(other, half(stream, 1)))
    assert_same_scores(one, train(both, stream.train_stream), stream, atol=1e-4 if network else 1e-9)


def test_compact_statistics_rank_alike_resume_and_are_neither_merged_nor_forgotten(features):
    exact = train(make(), features.train_stream)
    settings = {"statistics": "compact", "seed": 0}
    compact = train(make(**settings), features.train_stream)
    targets = evaluation_rows(features, 1)
    found, expected = (mean_average_precision(scores(one, features), targets) for one in (compact, exact))
    assert abs(found - expected) < 0.05
    resumed, first = make(**settings), train(make(**settings), features.train_stream[:2])
    resumed.collector.load_state_dict(copy.deepcopy(first.collector.state_dict()))
    resumed.model.load_state_dict(first.model.state_dict())
    assert torch.equal(scores(train(resumed, features.train_stream[2:]), features), scores(compact, features))
    with pytest.raises(ValueError, match="merge is not exact: use statistics"):
        compact.merge(exact)
    with pytest.raises(ValueError, match="merge is not exact: use statistics"):
        exact.merge(compact)
    with pytest.raises(ValueError, match="forget is not exact: use statistics"):
        compact.forget(features.train_stream[0].dataset)


def test_forgetting_equals_never_having_seen_and_forgets_no_other_photos(features):
    strategy = train(make(), features.train_stream)
    strategy.forget(concat_datasets([part.dataset for part in half(features, 1)]))
    assert_same_scores(strategy, train(make(), half(features, 0)), features)
    before = scores(strategy, features)
    with pytest.raises(ValueError, match="would"):
        strategy.forget(features.train_stream[0].dataset)
    assert torch.equal(scores(strategy, features), before)


def weighted_ridge(stream, columns, *, gamma, ridge):
    """scikit-learn's ridge regression on the rows of a stream, with the experience that has these columns."""
    rows, labels, weights = [], [], []
    for experience in stream:
        for image, target, _ in experience.dataset:
            is_own = not target[columns].isnan().any()
            rows.append(image.numpy())
            labels.append(target[columns].nan_to_num(0).numpy())
            weights.append(1.0 if is_own else gamma)
    rows = np.stack(rows)
    deviations = rows.std(axis=0)
    fitted = Ridge(alpha=ridge).fit(rows / deviations, np.stack(labels), sample_weight=weights)
    return lambda images: fitted.predict(images.numpy() / deviations)


@pytest.mark.parametrize("seed", range(5))
def test_after_forgetting_scores_are_those_of_a_regression_on_the_remaining_rows(features, seed):
    generator = torch.Generator().manual_seed(seed)
    removed, remaining = [], []
    for experience in features.train_stream:
        n_images = len(experience.dataset)
        order = torch.randperm(n_images, generator=generator).tolist()
        n_removed = int(torch.randint(1, n_images - 2, (), generator=generator))
        removed.append(experience.dataset.subset(order[:n_removed]))
        remaining.append(part_of(experience, order[n_removed:]))
    strategy = train(make(gamma=0.4, ridge=2.0, refine=None), features.train_stream)
    for dataset in removed:  # one after the other
        strategy.forget(dataset)
    images = evaluation_rows(features, 0)
    found = solve_ridge(strategy.statistics, gamma=0.4, ridge=2.0).scores(images)
    for experience in features.train_stream:
        columns = experience.classes_in_this_experience
        expected = weighted_ridge(remaining, columns, gamma=0.4, ridge=2.0)(images)
        np.testing.assert_allclose(found[:, columns].numpy(), expected, atol=1e-8)


@pytest.mark.parametrize("n_left", [0, 1, 20])
def test_through_a_network_forgetting_does_not_depend_on_the_batches(n_left):
    scenes = SplitScenes(n_classes=4, n_experiences=2, n_train=100, n_test=40, flip=False)
    first, second = scenes.train_stream
    torch.manual_seed(0)
    settings = {"backbone": create_backbone("small"), "n_classes": 4, "eval_mb_size": 1, "train_mb_size": 8}
    strategy = train(make(**settings), [first, second])
    strategy.forget(second.dataset.subset(range(n_left, len(second.dataset))))
    assert strategy.statistics.count(1) == n_left
    if n_left:
        expected = train(make(**settings), [first, part_of(second, range(n_left))]).statistics.moments(1)
        torch.testing.assert_close(strategy.statistics.moments(1), expected, rtol=1e-4, atol=1e-3)


def test_unequal_or_trained_networks_half_precision_and_augmentation_are_rejected(
    benchmark, features, make_model
):
    half, full = (train(make(amp=amp), features.train_stream) for amp in (torch.bfloat16, None))
    with pytest.raises(ValueError, match=r"torch\.bfloat16 depend on the batch .* amp=None"):
        half.forget(features.train_stream[0].dataset)
    with pytest.raises(ValueError, match=r"different precision: None and torch\.bfloat16"):
        full.merge(half)
    stream = benchmark.train_stream[:1]
    one, other = (train(make(backbone=make_model(seed=seed).backbone), stream) for seed in (0, 1))
    with pytest.raises(ValueError, match="different network"):
        one.merge(other)
    with pytest.raises(ValueError, match="Nothing was trained"):
        one.merge(make())
    next(one.model.backbone.parameters()).data.add_(1)
    with pytest.raises(ValueError, match="network was trained"):
        one.forget(stream[0].dataset)

    images = TensorDataset(torch.rand(20, 3, 8, 8))
    images.targets = torch.eye(2).repeat(10, 1).int()
    noise = {"train_transform": lambda x: x + torch.rand(())}
    (noisy,) = multilabel_benchmark(images, images, n_experiences=1, **noise).train_stream
    with pytest.raises(ValueError, match="training images had random augmentation"):
        train(make(backbone=make_model().backbone), [noisy]).forget(noisy.dataset)
    with pytest.raises(ValueError, match="dataset has random augmentation"):
        other.forget(noisy.dataset)


def test_one_image_per_experience_and_a_class_without_positives_are_defined():
    data = TensorDataset(torch.eye(4, WIDTH, dtype=torch.float64))
    data.targets = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]])
    benchmark = multilabel_benchmark(data, data, classes_per_experience=[1, 2])
    assert scores(train(make(n_classes=3), benchmark.train_stream), benchmark).isfinite().all()


def test_interrupted_solution_leaves_the_classifiers_and_is_repeated(features, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    strategy = train(make(), features.train_stream[:1])
    before = scores(strategy, features)
    with monkeypatch.context() as patch:
        patch.setattr("avalanche_agcn.methods.streaming_ridge.solve_ridge", interrupt)
        with pytest.raises(KeyboardInterrupt):
            strategy.train(features.train_stream[1], eval_streams=[])
    assert torch.equal(scores(strategy, features)[:, :2], before)
    strategy.eval(features.test_stream[:2])  # solves first
    strategy.train(features.train_stream[2], eval_streams=[])
    assert_same_scores(strategy, train(make(), features.train_stream), features)


class Scale(torch.nn.Module):
    """A transform whose description does not tell its factor."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, image):
        return image * self.factor


def images_of(seed, n=20, **settings):
    """Two experiences of one class."""
    data = TensorDataset(torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed)))
    data.targets = torch.eye(2).repeat(n // 2, 1).int()
    return multilabel_benchmark(data, data, n_experiences=2, **settings)


def test_features_of_two_networks_are_not_merged_nor_forgotten(tmp_path, make_model):
    def of_network(seed, factor=1.0, images=0):
        images = images_of(images, eval_transform=Scale(factor))
        return feature_benchmark(images, make_model(seed=seed).backbone, tmp_path, log=lambda text: None)

    def trained(benchmark):
        model = MultiLabelClassifier(Precomputed(16), 2)
        return train(StreamingRidge(model=model, evaluator=EvaluationPlugin()), benchmark.train_stream)

    one, more, other, scaled = of_network(0), of_network(0, images=1), of_network(1), of_network(0, 2.0)
    for unlike in (other, scaled):
        with pytest.raises(ValueError, match="trained with different features"):
            trained(one).merge(trained(unlike))
        with pytest.raises(
            ValueError, match=r"not transformed as they were in training \(different features\)"
        ):
            trained(one).forget(unlike.train_stream[0].dataset.subset([0]))
    strategy = trained(one)
    strategy.merge(trained(more))
    strategy.forget(more.train_stream[0].dataset)
    assert strategy.statistics.count(0) == 10


def test_transforms_are_compared_by_what_they_compute(make_model):
    backbone, settings = make_model().backbone, {"n_classes": 2}
    one, more = (images_of(seed, train_transform=Scale(1.0)) for seed in (0, 1))
    other = images_of(0, train_transform=Scale(2.0))
    strategy = train(make(backbone=backbone, **settings), one.train_stream)
    assert repr(one.plan.train_transform) == repr(other.plan.train_transform)
    with pytest.raises(ValueError, match="trained with different transformed"):
        strategy.merge(train(make(backbone=backbone, **settings), other.train_stream))
    evaluated = (
        images_of(0, train_transform=Scale(1.0), eval_transform=Scale(2.0)).train_stream[0].dataset.eval()
    )
    for dataset in (evaluated, other.train_stream[0].dataset):
        with pytest.raises(ValueError, match=r"not transformed as they were.*not of its \.eval"):
            strategy.forget(dataset.subset([0]))
    strategy.merge(train(make(backbone=backbone, **settings), more.train_stream))
    strategy.forget(more.train_stream[0].dataset.subset([0, 3]))
    assert strategy.statistics.count(0) == 18


@pytest.mark.parametrize("how", ["at once", "with a validation stream"])
def test_other_orders_of_classes_are_not_merged_however_the_stream_was_made(how):
    def trained(order):
        benchmark = make_benchmark(class_order=order)
        if how == "at once":
            return train(make(MultiTaskRidge), [benchmark])
        return train(make(), benchmark_with_validation_stream(benchmark, validation_size=0.2).train_stream)

    one, same, other = (trained(order) for order in (range(6), range(6), range(5, -1, -1)))
    assert one.provenance == same.provenance
    with pytest.raises(ValueError, match=r"trained with different classes: class 0, .* and class 5, "):
        one.merge(other)


def test_states_of_the_earlier_version_are_read(features):
    strategy, resumed = train(make(), features.train_stream[:2]), make()
    state = strategy.collector.state_dict()
    del state["places"]
    state["counted"], state["provenance"] = [[0, 0], [1, 1]], state["provenance"][:5]
    resumed.collector.load_state_dict(state)
    resumed.train(features.train_stream[1], eval_streams=[])  # counted already
    train(resumed, features.train_stream[2:])
    assert_same_scores(resumed, train(make(), features.train_stream), features)
    resumed.forget(features.train_stream[0].dataset.subset([0]))
    assert resumed.statistics.count(0) == len(features.train_stream[0].dataset) - 1


def parts_of(benchmark):
    """Two streams that share the images of each experience."""
    return half(benchmark, 0), half(benchmark, 1)


def test_other_images_of_an_experience_are_added_to_it(features, recwarn):
    first, second = parts_of(features)
    for order in ([*first, *second], [first[0], second[0], *first[1:], second[2], second[1]]):
        strategy = train(make(), order)
        assert_same_scores(strategy, train(make(), features.train_stream), features)
    assert not [warning for warning in recwarn if "in the sums already" in str(warning.message)]
    with pytest.warns(UserWarning, match="images of experience 0 are in the sums already"):
        train(strategy, second[:1])


def test_images_of_another_benchmark_with_the_same_names_and_labels_are_added(make_model):
    strategy = make(backbone=make_model().backbone, n_classes=2)
    train(strategy, images_of(0).train_stream)
    strategy.train(images_of(1).train_stream[0], eval_streams=[])
    assert strategy.statistics.count(0) == 20


def test_l3a_rejects_other_images_of_an_experience(features):
    first, second = parts_of(features)
    strategy = train(make(L3A), first)
    for experience in second:
        with pytest.raises(ValueError, match=r"no others can be added to it.*use StreamingRidge"):
            strategy.train(experience, eval_streams=[])


def test_merged_images_are_not_added_again(features):
    first, second = parts_of(features)
    strategy = train(make(), first)
    strategy.merge(train(make(), second))
    with pytest.warns(UserWarning, match="images of experience 2 are in the sums already"):
        train(strategy, second[2:])
    assert_same_scores(strategy, train(make(), features.train_stream), features)


@pytest.mark.parametrize("with_validation", [False, True])
def test_a_repeated_image_is_forgotten_everywhere_or_not_at_all(with_validation):
    repeated = make_benchmark(repeat_images=True)
    if with_validation:  # by Avalanche, whose streams do not lead to the benchmark
        repeated = benchmark_with_validation_stream(repeated, validation_size=0.05, shuffle=False)
    strategy = train(make(), repeated.train_stream)
    saved = make()
    saved.collector.load_state_dict(copy.deepcopy(strategy.collector.state_dict()))
    datasets = [experience.dataset for experience in repeated.train_stream]
    names = [list(dataset.image_names) for dataset in datasets]
    name = next(name for name in names[0] if name in names[2])
    places = [t for t in range(3) if name in names[t]]
    copies = [datasets[t].subset([names[t].index(name)]) for t in places]
    for one in (strategy, saved):
        with pytest.raises(
            ValueError, match=rf"such as '{name}' in \[{str(places[1:])[1:-1]}\]: give them with"
        ):
            one.forget(copies[0])
        assert one.statistics.count(0) == len(datasets[0])
    strategy.forget(concat_datasets(copies))
    kept = [
        part_of(e, [k for k, own in enumerate(names[t]) if own != name])
        for t, e in enumerate(repeated.train_stream)
    ]
    assert_same_scores(strategy, train(make(), kept), repeated)


def test_places_of_merged_images_with_equal_names_are_kept_apart():
    def site(shift):  # image 0 is in both experiences, image 1 in the first one; the names are numbers
        data = TensorDataset(torch.randn(4, WIDTH, dtype=torch.float64))
        data.targets = torch.tensor([[1, 1], [1, 0], [0, 1], [1, 0]]).roll(shift, 0)
        return multilabel_benchmark(data, data, n_experiences=2, repeat_images=True).train_stream

    def image(stream, t, name):
        return stream[t].dataset.subset([list(stream[t].dataset.image_names).index(name)])

    one, other = site(0), site(1)  # whose image 0 is in the first experience, image 1 in both
    strategy = train(make(n_classes=2), one)
    strategy.merge(train(make(n_classes=2), other))
    saved = make(n_classes=2)
    saved.collector.load_state_dict(copy.deepcopy(strategy.collector.state_dict()))
    for merged in (strategy, saved):
        merged.forget(image(one, 0, "1"))
        with pytest.raises(ValueError, match=r"such as '1' in \[0\]: give them with"):
            merged.forget(image(other, 1, "1"))
        merged.forget(concat_datasets([image(other, t, "1") for t in range(2)]))


def train_on_the_whole(strategy, features):
    """Train on all experiences again, where none but forgotten images are to be added."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The images of experience")
        return train(strategy, features.train_stream)


def test_images_that_were_forgotten_in_parts_can_be_added_again(features):
    strategy, (first, second, _) = train(make(), features.train_stream), features.train_stream
    n = len(second.dataset)
    strategy.forget(second.dataset.subset(range(3)))
    with pytest.warns(
        UserWarning, match="experience 1 are in the sums, except 3 that were forgotten; none is"
    ):
        train(strategy, [second])
    strategy.forget(concat_datasets([second.dataset.subset(range(3, n)), first.dataset.subset([0])]))
    assert strategy.statistics.count(1) == 0
    resumed = make()
    resumed.collector.load_state_dict(copy.deepcopy(strategy.collector.state_dict()))
    for one in (strategy, resumed):
        train_on_the_whole(one, features)
        assert one.statistics.count(0) == len(first.dataset) - 1
        train(one, [part_of(first, [0])])
        assert_same_scores(train_on_the_whole(one, features), train(make(), features.train_stream), features)


def test_pieces_that_were_forgotten_can_be_added_again(features):
    pieces = list(split_online_stream(features.train_stream[:1], experience_size=10))
    strategy = train(make(), pieces)
    strategy.forget(pieces[1].dataset)
    train(strategy, pieces[1:2])
    assert strategy.statistics.count(0) == len(features.train_stream[0].dataset)


def test_images_are_neither_merged_nor_forgotten_twice(features):
    strategy, (first, *_) = train(make(), features.train_stream), features.train_stream
    before = scores(strategy, features)
    with pytest.raises(ValueError, match="Both were trained on the images of 1 of 1 experiences"):
        strategy.merge(train(make(), [first]))
    with pytest.raises(ValueError, match=r"image '\d+' is given twice, as rows 0 and 2: give it once"):
        strategy.forget(first.dataset.subset([0, 1, 0]))
    assert torch.equal(scores(strategy, features), before)


def test_forgetting_every_image_is_an_error_and_forgotten_ones_can_be_added_again(features):
    strategy = train(make(), features.train_stream)
    with pytest.raises(ValueError, match="No image would remain"):
        strategy.forget(concat_datasets([experience.dataset for experience in features.train_stream]))
    strategy.forget(features.train_stream[2].dataset)
    assert scores(strategy, features).isfinite().all()
    train(strategy, features.train_stream[2:])
    assert_same_scores(strategy, train(make(), features.train_stream), features)
