from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.benchmarks.split import (
    assign_once,
    choose_classes,
    experience_sizes,
    resolve_class_order,
)

NAMES = ["cat", "dog", "cow"]


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
def test_sizes_follow_either_argument_or_are_rejected(arguments, message):
    assert experience_sizes(40, 10, None) == [4] * 10
    assert experience_sizes(5, 2, [3, 2]) == experience_sizes(5, None, [3, 2]) == [3, 2]
    with pytest.raises(ValueError, match=message):
        experience_sizes(*arguments)


def test_class_order_by_column_or_name_or_seed():
    assert resolve_class_order("data", NAMES) == [0, 1, 2]
    for order in ([2, 0, 1], ["cow", "cat", "dog"]):
        assert resolve_class_order(order, NAMES) == [2, 0, 1]
    names = [f"class {k}" for k in range(9)]
    orders = [resolve_class_order(f"shuffled-{seed}", names) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(9))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["cat", "dog"], r"each of \['cat', .* \[\] are unknown, \['cow'\] missing and \[\] repeated"),
        ([0, 1, 1], r"\['cow'\] missing and \['dog'\] repeated"),
        (["cat", "dog", "emu"], r"\['emu'\] are unknown, \['cow'\] missing"),
        ([0, 1, 3], r"\[3\] are unknown"),
        ([0, 1, -1], r"\[-1\] are unknown"),
        ("shuffled-x", "not 'shuffled-x'"),
        ("shuffled-" + "9" * 30, "not 'shuffled-9999"),
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
    for n_classes, order, message in (
        (0, "data", "n_classes=0 must be between 1 and the 3 classes"),
        (4, "data", "n_classes=4 must be between 1 and the 3 classes"),
        (2, ["cat", "emu"], r"unknown classes \['emu'\]; known are cat"),
        (2, ["cat"], "names 1 classes, but n_classes=2"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_classes(NAMES, counts, n_classes, order)


@st.composite
def labels_and_sizes(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    rows, width = draw(st.integers(1, 7)), sum(sizes)
    cells = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    return torch.tensor(cells).reshape(rows, width).to(draw(st.sampled_from([torch.bool, torch.int8]))), sizes


@given(labels_and_sizes(), st.sampled_from(["rarest", "random"]), st.integers(0, 3))
def test_single_assignment_uses_every_image_once_and_fills_every_experience(case, rule, seed):
    labels, sizes = case
    positions = assign_once(labels, sizes, assignment=rule, seed=seed)
    assert all(images.tolist() == sorted(images.tolist()) for images in positions)
    owners = [t for t, size in enumerate(sizes) for _ in range(size)]
    possible = [{t for t, label in zip(owners, row) if label} for row in labels.tolist()]
    for image, choices in enumerate(possible):
        given_to = [t for t, images in enumerate(positions) if image in images]
        assert len(given_to) == bool(choices)
        assert set(given_to) <= choices
    ways = product(*[choices for choices in possible if choices])  # brute force: can every one be filled?
    assert all(len(images) for images in positions) == any(len(set(way)) == len(sizes) for way in ways)


def test_rarest_class_decides_and_an_empty_experience_is_filled_along_a_chain():
    # class 0 is on four images, class 1 on two, class 2 on one
    labels = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 1, 0]])
    assert [p.tolist() for p in assign_once(labels, [1, 1, 1])] == [[2], [0, 3], [1]]
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
    with pytest.raises(ValueError, match=r"one of \('rarest', 'random'\), not 'best'"):
        assign_once(torch.ones(1, 1), [1], assignment="best")
