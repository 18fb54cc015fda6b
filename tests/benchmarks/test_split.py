from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.benchmarks.split import (
    assign_first,
    assign_once,
    assign_repeatedly,
    check_classes_present,
    choose_classes,
    experience_sizes,
    resolve_class_order,
)

NAMES = ["cat", "dog", "cow"]


def test_sizes_follow_either_argument():
    assert experience_sizes(40, 10, None) == [4] * 10
    assert experience_sizes(80, None, [40, 10, 10, 10, 10]) == [40, 10, 10, 10, 10]
    assert experience_sizes(5, 2, [3, 2]) == [3, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((40, None, None), "n_experiences= or classes_per_experience="),
        ((40, 0, None), "n_experiences=0 must be between 1 and the number of classes, 40"),
        ((4, 5, None), "n_experiences=5 must be between 1 and the number of classes, 4"),
        ((5, 2, None), r"5 classes do not split equally into 2.*\[3, 2\]"),
        ((5, 3, [3, 2]), r"n_experiences=3 contradicts classes_per_experience=\[3, 2\]"),
        ((5, None, [3, 3]), "sum to the 5 classes"),
        ((5, None, [5, 0]), "must be positive"),
        ((5, None, []), "must be positive"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        experience_sizes(*arguments)


def test_class_order_by_column_or_name():
    assert resolve_class_order("data", NAMES) == [0, 1, 2]
    for order in ([2, 0, 1], ["cow", "cat", "dog"]):
        assert resolve_class_order(order, NAMES) == [2, 0, 1]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["cat", "dog"], r"\['cow'\] are missing and \[\] repeated"),
        ([0, 1, 1], r"\['cow'\] are missing and \['dog'\] repeated"),
        (["cat", "dog", "emu"], r"unknown classes \['emu'\].*'cow'"),
        ([0, 1, 3], r"unknown classes \[3\]"),
        ([0, 1, -1], r"unknown classes \[-1\]"),
    ],
)
def test_class_order_that_does_not_fit_is_rejected(order, message):
    with pytest.raises(ValueError, match=message):
        resolve_class_order(order, NAMES)


def test_classes_are_chosen_by_frequency_or_by_name():
    counts = torch.tensor([1, 5, 5])
    assert choose_classes(NAMES, counts, 2, "data") == choose_classes(NAMES, counts, 2, [1, 0]) == [1, 2]
    assert choose_classes(NAMES, counts, 2, ["cow", "cat"]) == [0, 2]
    assert choose_classes(NAMES, torch.tensor([5, 5, 5]), 2, "data") == [0, 1]  # of equals the first
    for n_classes in (0, 4):
        with pytest.raises(ValueError, match=f"n_classes={n_classes} must be between 1 and the 3 classes"):
            choose_classes(NAMES, counts, n_classes, "data")
    with pytest.raises(ValueError, match=r"unknown classes \['emu'\]; known are \['cat'"):
        choose_classes(NAMES, counts, 2, ["cat", "emu"])
    with pytest.raises(ValueError, match="names 1 classes, but n_classes=2"):
        choose_classes(NAMES, counts, 2, ["cat"])


def test_class_without_a_positive_is_named():
    check_classes_present(torch.eye(3), NAMES)
    with pytest.raises(ValueError, match=r"No training image shows \['cow'\]"):
        check_classes_present(torch.eye(3)[:2], NAMES)


@st.composite
def labels_and_sizes(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    rows, width = draw(st.integers(1, 7)), sum(sizes)
    cells = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    return torch.tensor(cells).reshape(rows, width).to(draw(st.sampled_from([torch.bool, torch.int8]))), sizes


def relevant_experiences(labels, sizes):
    """For each image the experiences that own one of its labels."""
    owners = [t for t, size in enumerate(sizes) for _ in range(size)]
    return [sorted({t for t, label in zip(owners, row) if label}) for row in labels.tolist()]


def experiences_of(positions, n_images):
    """For each image the experiences it was given to."""
    assert all(images.tolist() == sorted(images.tolist()) for images in positions)
    return [[t for t, images in enumerate(positions) if image in images] for image in range(n_images)]


@given(labels_and_sizes())
def test_first_and_repeated_assignment_equal_loops_over_the_labels(case):
    labels, sizes = case
    relevant = relevant_experiences(labels, sizes)
    assert experiences_of(assign_repeatedly(labels, sizes), len(labels)) == relevant
    assert experiences_of(assign_first(labels, sizes), len(labels)) == [found[:1] for found in relevant]


@given(labels_and_sizes(), st.sampled_from(["rarest", "random"]), st.integers(0, 3))
def test_single_assignment_uses_every_image_once_and_fills_every_experience(case, rule, seed):
    labels, sizes = case
    positions = assign_once(labels, sizes, assignment=rule, seed=seed)
    possible = relevant_experiences(labels, sizes)
    for given_to, choices in zip(experiences_of(positions, len(labels)), possible):
        assert len(given_to) == bool(choices)
        assert set(given_to) <= set(choices)
    ways = product(*[choices for choices in possible if choices])  # brute force: can every one be filled?
    assert all(len(images) for images in positions) == any(len(set(way)) == len(sizes) for way in ways)
    again = assign_once(labels, sizes, assignment=rule, seed=seed)
    assert all(torch.equal(*pair) for pair in zip(positions, again))


def test_rarest_class_decides():
    # class 0 is on four images, class 1 on two, class 2 on one
    labels = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 1, 0]])
    assert [p.tolist() for p in assign_once(labels, [1, 1, 1])] == [[2], [0, 3], [1]]


def test_empty_experience_is_filled_along_a_chain():
    # By rarity a goes to experience 1, b and c to 2, d to 3, e to 4, and nothing to 0. Experience 1 gives
    # its only image to 0 and gets one from 2, which has two.
    columns = {"a": [0, 1], "b": [1, 2], "c": [3], "d": [0, 4], "e": [0, 5]}
    labels = torch.zeros(5, 6, dtype=torch.int8)
    for row, shown in enumerate(columns.values()):
        labels[row, shown] = 1
    assert [p.tolist() for p in assign_once(labels, [1, 1, 2, 1, 1])] == [[0], [1], [2], [3], [4]]


def test_random_rule_draws_from_all_labels():
    share = len(assign_once(torch.ones(2000, 2), [1, 1], assignment="random", seed=1)[0]) / 2000
    assert abs(share - 0.5) < 4 * (0.25 / 2000) ** 0.5


def test_unknown_rule_is_rejected():
    with pytest.raises(ValueError, match=r"one of \('rarest', 'random'\), not 'best'"):
        assign_once(torch.ones(1, 1), [1], assignment="best")


def test_a_shuffled_order_follows_from_its_seed():
    names = [f"class {k}" for k in range(9)]
    orders = [resolve_class_order(f"shuffled-{seed}", names) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(9))
    with pytest.raises(ValueError, match="not 'shuffled-x'"):
        resolve_class_order("shuffled-x", names)
