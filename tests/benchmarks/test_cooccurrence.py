import numpy as np
import pytest
import torch

from avalanche_agcn.benchmarks._cooccurrence import (
    MAX_OBJECTS,
    SCENE_TYPES,
    conditional_probabilities,
    draw_label_sets,
    label_sets,
)
from avalanche_agcn.benchmarks._drawings import DRAWINGS
from avalanche_agcn.benchmarks.assignment import once

NAMES = list(DRAWINGS)
FIVE_SIGMA = 5  # 1,600 cells are compared: one in 1.7 million strays this far by chance


def simulate(n_images, rng):
    """The model as it is stated, step by step, instead of as a list of label sets."""
    types = list(SCENE_TYPES.values())
    weights = np.array([weight for weight, _ in types])
    labels = np.zeros((n_images, len(NAMES)), dtype=bool)
    for row, t in enumerate(rng.choice(len(types), size=n_images, p=weights / weights.sum())):
        objects = types[t][1]
        present = np.zeros(len(objects), dtype=bool)
        while not 1 <= present.sum() <= MAX_OBJECTS:
            present = rng.random(len(objects)) < list(objects.values())
        labels[
            row, [NAMES.index(name) for name, is_there in zip(objects, present, strict=True) if is_there]
        ] = True
    return labels


def assert_follows_model(labels, sets, probability):
    """Frequencies and P(i | j) of a sample within the binomial standard error of the exact values."""
    frequency = probability @ sets
    error = np.sqrt(frequency * (1 - frequency) / len(labels))
    assert (abs(labels.mean(0) - frequency) <= FIVE_SIGMA * error).all()

    exact = conditional_probabilities(sets, probability)
    counts = labels.T.astype(float) @ labels
    of_condition = counts.diagonal()
    error = np.sqrt(exact * (1 - exact) / of_condition)
    # One image more or less: the normal approximation is poor where hardly any is expected.
    assert (abs(counts / of_condition - exact) <= FIVE_SIGMA * error + 1 / of_condition).all()


def test_label_sets_agree_with_simulation_of_stated_model():
    labels = simulate(30_000, np.random.default_rng(0))
    assert_follows_model(labels, *label_sets(NAMES))


def test_drawn_labels_follow_model():
    sets, probability = label_sets(NAMES)
    labels = draw_label_sets(sets, probability, 100_000, np.random.default_rng(1))
    assert_follows_model(labels, sets, probability)


def test_drawn_labels_of_few_classes_follow_model():
    sets, probability = label_sets(NAMES[:6])
    labels = draw_label_sets(sets, probability, 50_000, np.random.default_rng(2))
    assert labels.any(1).all()
    assert_follows_model(labels, sets, probability)


def test_stratified_draw_of_single_image_is_unbiased():
    sets, probability = label_sets(NAMES)
    rng = np.random.default_rng(3)
    labels = np.concatenate([draw_label_sets(sets, probability, 1, rng) for _ in range(20_000)])
    assert_follows_model(labels, sets, probability)


def test_stratified_draw_of_few_images_has_every_class():
    sets, probability = label_sets(NAMES)
    for seed in range(20):
        labels = draw_label_sets(sets, probability, 100, np.random.default_rng(seed))
        assert labels.any(0).all()


def test_position_in_sample_says_nothing_about_labels():
    sets, probability = label_sets(NAMES)
    labels = draw_label_sets(sets, probability, 40_000, np.random.default_rng(4))
    first_half, second_half = labels[:20_000].mean(0), labels[20_000:].mean(0)
    error = np.sqrt(2 * second_half * (1 - second_half) / 20_000)
    assert (abs(first_half - second_half) <= FIVE_SIGMA * error).all()


def test_label_sets_are_possible_and_probabilities_sum_to_one():
    sets, probability = label_sets(NAMES)
    assert probability.sum() == pytest.approx(1)
    assert (probability > 0).all()
    assert sets.sum(1).min() == 1
    assert sets.sum(1).max() == MAX_OBJECTS


def test_hand_worked_conditional_probability():
    sets = np.array([[True, True], [True, False], [False, True]])
    exact = conditional_probabilities(sets, np.array([0.2, 0.3, 0.5]))
    np.testing.assert_allclose(exact, [[1, 0.2 / 0.7], [0.2 / 0.5, 1]])


def test_toilet_is_seen_in_one_type_so_that_its_row_can_be_read_off():
    exact = conditional_probabilities(*label_sets(NAMES))
    # Four objects or fewer are no limit to a bathroom, which has four.
    for name, chance in SCENE_TYPES["bathroom"][1].items():
        expected = 1 if name == "toilet" else chance
        assert exact[NAMES.index(name), NAMES.index("toilet")] == pytest.approx(expected)


@pytest.mark.parametrize("n_classes", [1, 2, 7, 12, 39])
def test_fewer_classes_leave_conditional_probabilities_as_they_are(n_classes):
    whole = conditional_probabilities(*label_sets(NAMES))
    part = conditional_probabilities(*label_sets(NAMES[:n_classes]))
    np.testing.assert_allclose(part, whole[:n_classes, :n_classes], atol=1e-12)


def test_order_of_classes_is_order_of_columns():
    order = np.random.default_rng(5).permutation(len(NAMES))
    whole = conditional_probabilities(*label_sets(NAMES))
    shuffled = conditional_probabilities(*label_sets([NAMES[c] for c in order]))
    np.testing.assert_allclose(shuffled, whole[np.ix_(order, order)], atol=1e-12)


def test_scene_types_name_every_class_and_no_other():
    assert {name for _, objects in SCENE_TYPES.values() for name in objects} == set(NAMES)


def test_frequencies_are_as_documented():
    sets, probability = label_sets(NAMES)
    frequency = dict(zip(NAMES, probability @ sets, strict=True))
    assert frequency.pop("person") == pytest.approx(0.29, abs=0.005)
    assert min(frequency.values()) >= 0.04
    assert max(frequency.values()) <= 0.08


@pytest.mark.parametrize(
    ("seen", "given", "same_experience"),
    [
        ("bowl", "spoon", True),
        ("person", "bicycle", True),
        ("laptop", "cell phone", True),
        ("dining table", "fork", False),
        ("knife", "fork", False),
        ("tv", "couch", False),
        ("sink", "toilet", False),
        ("sports ball", "tennis racket", False),
    ],
)
def test_strong_pairs_lie_within_and_across_experiences(seen, given, same_experience):
    sets, probability = label_sets(NAMES)
    i, j = NAMES.index(seen), NAMES.index(given)
    assert (i // 4 == j // 4) is same_experience
    assert conditional_probabilities(sets, probability)[i, j] > 0.45
    assert conditional_probabilities(sets, probability)[i, j] > 1.7 * (probability @ sets)[i]  # lift


def test_every_class_keeps_images_in_its_own_experience():
    sets, probability = label_sets(NAMES)
    labels = torch.from_numpy(draw_label_sets(sets, probability, 50_000, np.random.default_rng(6)))
    for t, images in enumerate(once(labels, [4] * 10)):
        own = labels[images][:, 4 * t : 4 * t + 4].sum(0) / len(labels)
        assert own.min() >= 0.009
