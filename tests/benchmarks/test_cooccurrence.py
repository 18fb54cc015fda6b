import numpy as np
import pytest
import torch

from avalanche_agcn.benchmarks._drawings import DRAWINGS
from avalanche_agcn.benchmarks.scenes import (
    MAX_OBJECTS,
    SCENE_TYPES,
    conditional_probabilities,
    draw_label_sets,
    label_sets,
)
from avalanche_agcn.benchmarks.split import assign_once

NAMES = list(DRAWINGS)
SETS, PROBABILITY = label_sets(NAMES)
FREQUENCY, EXACT = PROBABILITY @ SETS, conditional_probabilities(SETS, PROBABILITY)
FIVE_SIGMA = 5  # 1,600 cells are compared: one in 1.7 million differs this much by chance


def draw(n_images, seed, sets=SETS, probability=PROBABILITY):
    return draw_label_sets(sets, probability, n_images, np.random.default_rng(seed))


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
        labels[row, [NAMES.index(name) for name, is_there in zip(objects, present) if is_there]] = True
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


def test_label_sets_agree_with_a_simulation_of_the_stated_model():
    assert_follows_model(simulate(20_000, np.random.default_rng(0)))


def test_drawn_labels_follow_the_model():
    assert_follows_model(draw(100_000, seed=1))
    sets, probability = label_sets(NAMES[:6])
    few = draw(50_000, 2, sets, probability)
    assert few.any(1).all()
    assert_follows_model(few, sets, probability)


def test_stratified_draw_of_a_single_image_is_unbiased():
    rng = np.random.default_rng(3)
    assert_follows_model(np.concatenate([draw_label_sets(SETS, PROBABILITY, 1, rng) for _ in range(10_000)]))


def test_stratified_draw_of_few_images_has_every_class():
    assert all(draw(100, seed).any(0).all() for seed in range(20))


def test_position_in_the_sample_is_independent_of_the_labels():
    first_half, second_half = draw(40_000, seed=4).reshape(2, 20_000, -1).mean(1)
    error = np.sqrt(2 * second_half * (1 - second_half) / 20_000)
    assert (abs(first_half - second_half) <= FIVE_SIGMA * error).all()


def test_label_sets_are_possible_and_probabilities_sum_to_one():
    assert PROBABILITY.sum() == pytest.approx(1)
    assert (PROBABILITY > 0).all()
    assert (SETS.sum(1).min(), SETS.sum(1).max()) == (1, MAX_OBJECTS)


def test_conditional_probabilities_equal_hand_worked_cases():
    sets = np.array([[True, True], [True, False], [False, True]])
    exact = conditional_probabilities(sets, np.array([0.2, 0.3, 0.5]))
    np.testing.assert_allclose(exact, [[1, 0.2 / 0.7], [0.2 / 0.5, 1]])
    # A toilet is in one scene type, whose four objects are never too many: its row stands in the table.
    for name, chance in SCENE_TYPES["bathroom"][1].items():
        expected = 1 if name == "toilet" else chance
        assert EXACT[NAMES.index(name), NAMES.index("toilet")] == pytest.approx(expected)


@pytest.mark.parametrize("n_classes", [1, 2, 7, 12, 39])
def test_fewer_classes_in_any_order_have_the_same_conditional_probabilities(n_classes):
    order = np.random.default_rng(5).permutation(n_classes)
    part = conditional_probabilities(*label_sets([NAMES[c] for c in order]))
    np.testing.assert_allclose(part, EXACT[np.ix_(order, order)], atol=1e-12)


def test_classes_and_frequencies_are_as_documented():
    assert {name for _, objects in SCENE_TYPES.values() for name in objects} == set(NAMES)
    frequency = dict(zip(NAMES, FREQUENCY))
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
        ("tv", "couch", False),
        ("sink", "toilet", False),
        ("sports ball", "tennis racket", False),
    ],
)
def test_strong_pairs_lie_within_and_across_experiences(seen, given, same_experience):
    i, j = NAMES.index(seen), NAMES.index(given)
    assert (i // 4 == j // 4) is same_experience
    assert EXACT[i, j] > max(0.45, 1.7 * FREQUENCY[i])


def test_every_class_keeps_images_in_its_own_experience():
    labels = torch.from_numpy(draw(50_000, seed=6))
    for t, images in enumerate(assign_once(labels, [4] * 10)):
        assert (labels[images][:, 4 * t : 4 * t + 4].sum(0) / len(labels)).min() >= 0.009
