import pickle

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch.utils.data import DataLoader

from avalanche_agcn.benchmarks import _drawings
from avalanche_agcn.benchmarks._drawings import DRAWINGS
from avalanche_agcn.benchmarks.scenes import (
    CLASS_NAMES,
    MAX_OBJECTS,
    SCENE_TYPES,
    ScenesDataset,
    SplitScenes,
    conditional_probabilities,
    draw_label_sets,
    label_sets,
    true_cooccurrence,
)
from avalanche_agcn.benchmarks.split import assign_once
from avalanche_agcn.models import MultiLabelClassifier, create_backbone
from avalanche_agcn.training import FineTuning, MultiTask

SMALL = {"n_train": 150, "n_test": 100, "image_size": 16, "in_memory": False}


def pictures(dataset):
    return [image.tobytes() for image, _ in dataset]


SETS, PROBABILITY = label_sets(CLASS_NAMES)
FREQUENCY, EXACT = PROBABILITY @ SETS, conditional_probabilities(SETS, PROBABILITY)
FIVE_SIGMA = 5  # 1,600 cells are compared: one in 1.7 million differs this much by chance


def draw(n_images, seed, sets=SETS, probability=PROBABILITY):
    return draw_label_sets(sets, probability, n_images, np.random.default_rng(seed))


def simulate(n_images, rng):
    """The model as it is stated, step by step, instead of as a list of label sets."""
    types = list(SCENE_TYPES.values())
    weights = np.array([weight for weight, _ in types])
    labels = np.zeros((n_images, len(CLASS_NAMES)), dtype=bool)
    for row, t in enumerate(rng.choice(len(types), size=n_images, p=weights / weights.sum())):
        objects = types[t][1]
        present = np.zeros(len(objects), dtype=bool)
        while not 1 <= present.sum() <= MAX_OBJECTS:
            present = rng.random(len(objects)) < list(objects.values())
        labels[row, [CLASS_NAMES.index(name) for name, is_there in zip(objects, present) if is_there]] = True
    return labels


def assert_follows_model(labels, sets=SETS, probability=PROBABILITY):
    """Frequencies and P(i | j) of a sample are within the binomial standard error of the exact values."""
    frequency = probability @ sets
    error = np.sqrt(frequency * (1 - frequency) / len(labels))
    assert (abs(labels.mean(0) - frequency) <= FIVE_SIGMA * error).all()
    exact = conditional_probabilities(sets, probability)
    counts = labels.T.astype(float) @ labels
    of_condition = counts.diagonal()
    error = np.sqrt(exact * (1 - exact) / of_condition)
    # One image more or less: the normal approximation is poor where hardly any is expected.
    assert (abs(counts / of_condition - exact) <= FIVE_SIGMA * error + 1 / of_condition).all()


def test_simulated_and_drawn_labels_follow_the_model():
    assert_follows_model(simulate(20_000, np.random.default_rng(0)))
    sets, probability = label_sets(CLASS_NAMES[:6])
    few = draw(50_000, 2, sets, probability)
    assert few.any(1).all()
    assert_follows_model(few, sets, probability)
    targets = ScenesDataset(50_000, in_memory=False).targets
    assert (targets.shape, targets.dtype, targets.unique().tolist()) == ((50_000, 40), torch.int8, [0, 1])
    assert_follows_model(targets.bool().numpy())
    np.testing.assert_array_equal(true_cooccurrence(), EXACT)


def test_stratified_draw_is_unbiased_has_every_class_in_few_images_and_is_shuffled():
    rng = np.random.default_rng(3)
    assert_follows_model(np.concatenate([draw_label_sets(SETS, PROBABILITY, 1, rng) for _ in range(10_000)]))
    assert all(draw(100, seed).any(0).all() for seed in range(20))
    first_half, second_half = draw(40_000, seed=4).reshape(2, 20_000, -1).mean(1)
    error = np.sqrt(2 * second_half * (1 - second_half) / 20_000)
    assert (abs(first_half - second_half) <= FIVE_SIGMA * error).all()


def test_conditional_probabilities_equal_hand_worked_cases():
    sets = np.array([[True, True], [True, False], [False, True]])
    exact = conditional_probabilities(sets, np.array([0.2, 0.3, 0.5]))
    np.testing.assert_allclose(exact, [[1, 0.2 / 0.7], [0.2 / 0.5, 1]])
    # A toilet is in one scene type, whose four objects are never too many: the table has its row.
    for name, chance in SCENE_TYPES["bathroom"][1].items():
        expected = 1 if name == "toilet" else chance
        assert EXACT[CLASS_NAMES.index(name), CLASS_NAMES.index("toilet")] == pytest.approx(expected)


@pytest.mark.parametrize("n_classes", [1, 2, 7, 12, 39])
def test_fewer_classes_in_any_order_have_the_same_conditional_probabilities(n_classes):
    order = np.random.default_rng(5).permutation(n_classes)
    part = conditional_probabilities(*label_sets([CLASS_NAMES[c] for c in order]))
    np.testing.assert_allclose(part, EXACT[np.ix_(order, order)], atol=1e-12)


def test_classes_probabilities_frequencies_and_strong_pairs_are_as_documented():
    assert PROBABILITY.sum() == pytest.approx(1)
    assert (PROBABILITY > 0).all()
    assert (SETS.sum(1).min(), SETS.sum(1).max()) == (1, MAX_OBJECTS)
    assert {name for _, objects in SCENE_TYPES.values() for name in objects} == set(CLASS_NAMES)
    person, *others = FREQUENCY
    assert person == pytest.approx(0.29, abs=0.005)
    assert 0.04 <= min(others) <= max(others) <= 0.08
    within = ["bowl spoon", "person bicycle", "laptop cell_phone"]
    across = ["dining_table fork", "tv couch", "sink toilet", "sports_ball tennis_racket"]
    for pair in within + across:
        i, j = (CLASS_NAMES.index(name.replace("_", " ")) for name in pair.split())
        assert (i // 4 == j // 4) is (pair in within)
        assert EXACT[i, j] > max(0.45, 1.7 * FREQUENCY[i])


def test_every_class_keeps_images_in_its_own_experience_and_the_default_has_ten_of_four():
    benchmark = SplitScenes(in_memory=False)
    assert (benchmark.class_names, benchmark.classes_per_experience) == (list(CLASS_NAMES), [4] * 10)
    assert min(len(e.dataset) for e in benchmark.train_stream) >= 400
    assert repr(benchmark) == "SplitScenes(40 classes in 10 experiences; images: 6000 train, 1200 test)"
    labels = torch.from_numpy(draw(50_000, seed=6))
    for t, images in enumerate(assign_once(labels, [4] * 10)):
        assert labels[images][:, 4 * t : 4 * t + 4].sum(0).min() >= 0.009 * len(labels)


def test_images_depend_on_seed_and_split_only():
    assert ScenesDataset(1, class_names=["vase"]).targets.tolist() == [[1]]
    first = ScenesDataset(100, image_size=32)
    same = ScenesDataset(100, image_size=32, in_memory=False)
    assert torch.equal(first.targets, same.targets)
    assert pictures(first) == pictures(same) == pictures(same)
    for other in (ScenesDataset(100, image_size=32, seed=1), ScenesDataset(100, image_size=32, split="test")):
        assert not torch.equal(first.targets, other.targets)
        assert len(set(pictures(first)) | set(pictures(other))) == 200


def test_labels_are_the_objects_drawn(monkeypatch):
    drawn = []
    paint_drawing = _drawings.paint_drawing

    def watch(draw, drawing, **settings):
        drawn.append(next(name for name, other in DRAWINGS.items() if other is drawing))
        paint_drawing(draw, drawing, **settings)

    monkeypatch.setattr(_drawings, "paint_drawing", watch)
    dataset = ScenesDataset(60, image_size=24, in_memory=False)
    for k in (*range(60), -1):
        image, target = dataset[k]
        assert (image.mode, image.size) == ("RGB", (24, 24))
        assert drawn == [CLASS_NAMES[column] for column in target.nonzero().flatten()]
        assert torch.equal(target, dataset.targets[k])
        drawn.clear()
    assert dataset[-1][0].tobytes() == dataset[59][0].tobytes()
    with pytest.raises(IndexError):
        dataset[60]


@pytest.mark.parametrize("in_memory", [True, False])
def test_loader_workers_give_the_same_images(in_memory):
    dataset = ScenesDataset(20, image_size=32, in_memory=in_memory)
    data = pickle.dumps(dataset)  # all that a spawned worker has
    assert in_memory or len(data) < 20_000  # labels and settings, neither images nor drawings
    assert pictures(pickle.loads(data)) == pictures(dataset)
    loader = DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=pictures)
    assert [image for batch in loader for image in batch] == pictures(dataset)


@pytest.mark.filterwarnings("ignore:.* have no positive in their own experience")  # 150 images are few
@settings(max_examples=20)
@given(n_experiences=st.integers(1, 10), size=st.integers(1, 4), seed=st.integers(0, 2**40), data=st.data())
def test_smaller_shapes_keep_images_labels_and_truth_together(n_experiences, size, seed, data):
    n_classes = n_experiences * size
    order = data.draw(st.permutations(range(n_classes)))
    benchmark = SplitScenes(
        n_classes=n_classes, n_experiences=n_experiences, class_order=order, seed=seed, **SMALL
    )
    assert benchmark.class_names == [CLASS_NAMES[c] for c in order]
    torch.testing.assert_close(benchmark.true_cooccurrence, true_cooccurrence()[order][:, order])
    plain = ScenesDataset(150, class_names=CLASS_NAMES[:n_classes], image_size=16, seed=seed, in_memory=False)
    complete = benchmark.complete_train_dataset  # the same images in any order of the classes
    assert torch.equal(complete.targets[:], plain.targets[:, order].float())
    assert benchmark.plan.train.source[9][0].tobytes() == plain[9][0].tobytes()


def test_default_transforms_normalise_and_flip_in_training():
    dataset = SplitScenes(n_train=400, n_test=1).complete_train_dataset
    images = torch.stack([image for image, *_ in dataset.eval()])
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=0.05, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3), atol=0.05, rtol=0)
    torch.manual_seed(0)
    pairs = [(dataset[i][0], images[i]) for i in range(100)]
    assert 30 <= sum(torch.equal(seen, image.flip(2)) for seen, image in pairs) <= 70
    assert 30 <= sum(torch.equal(seen, image) for seen, image in pairs) <= 70


def test_options_and_protocols_reach_the_benchmark():
    transforms = {"train_transform": np.shape, "eval_transform": np.ndim}
    benchmark = SplitScenes(
        n_classes=6, classes_per_experience=[4, 1, 1], validation_size=20, **transforms, **SMALL
    )
    assert benchmark.classes_per_experience == [4, 1, 1]
    assert sum(len(e.dataset) for e in benchmark.valid_stream) == 20
    assert benchmark.train_stream[1].dataset[0][0] == (16, 16, 3)
    assert benchmark.test_stream[0].dataset[0][0] == 3
    benchmark = SplitScenes(protocol="B4-C2", n_classes=8, **SMALL)
    assert benchmark.class_names == sorted(benchmark.class_names)
    assert benchmark.classes_per_experience == [4, 2, 2]
    targets = [e.dataset.targets.data for e in benchmark.train_stream]
    assert not any(own.isnan().any() for own in targets)
    assert benchmark.complete_train_dataset.targets.data.sum() == sum(own.sum() for own in targets)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (ScenesDataset, {"n_images": 0}, "n_images must be at least 1, not 0"),
        (ScenesDataset, {"n_images": 3, "image_size": 8}, "image_size must be at least 16, not 8"),
        (ScenesDataset, {"n_images": 3, "seed": -1}, "seed must be at least 0, not -1"),
        (ScenesDataset, {"n_images": 3, "split": "valid"}, r"one of \('train', 'test'\), not 'valid'"),
        (ScenesDataset, {"n_images": 3, "class_names": ["cat", "unicorn"]}, r"unknown are \['unicorn'\]"),
        (ScenesDataset, {"n_images": 3, "class_names": ["cat", "cat"]}, "must be different"),
        (ScenesDataset, {"n_images": 3, "class_names": []}, "must be different ones of"),
        (SplitScenes, SMALL | {"n_classes": 41}, "n_classes=41 must be between 1 and the 40"),
        (SplitScenes, SMALL | {"n_test": -3}, "n_test must be at least 1, not -3"),
        (SplitScenes, SMALL | {"n_train": 10}, "No training image shows .*; use more images"),
    ],
)
def test_arguments_that_do_not_fit_are_rejected(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.slow
def test_one_pass_learns_it_and_fine_tuning_forgets():
    torch.manual_seed(0)
    benchmark = SplitScenes()
    test = [experience.dataset for experience in benchmark.test_stream]
    images = torch.stack([x for part in test for x, *_ in part])
    targets = torch.cat([part.targets.data for part in test])

    def make(strategy):
        model = MultiLabelClassifier(create_backbone("small"), 40)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        return strategy(model=model, optimizer=optimizer, train_mb_size=8, evaluator=EvaluationPlugin())

    @torch.no_grad()
    def class_precisions(model):
        model.eval()
        scores = torch.cat([model(part) for part in images.split(100)])
        return average_precision_score(targets[:, : scores.shape[1]], scores, average=None)

    joint, tuned, right_after = make(MultiTask), make(FineTuning), []
    joint.train(benchmark)
    assert class_precisions(joint.model).mean() >= 0.6
    for t, experience in enumerate(benchmark.train_stream):
        tuned.train(experience, eval_streams=[])
        right_after.append(class_precisions(tuned.model)[4 * t :].mean())
    at_the_end = class_precisions(tuned.model).reshape(10, 4).mean(1)
    assert at_the_end.mean() <= 0.4
    assert (np.array(right_after) - at_the_end)[:9].mean() >= 0.1
