from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.benchmarks.assignment import every_relevant, first_relevant, once


@st.composite
def labels_and_sizes(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    rows = draw(st.integers(1, 7))
    width = sum(sizes)
    cells = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    return torch.tensor(cells).reshape(rows, width), sizes


def relevant_experiences(row, sizes):
    """The experiences that own one of the row's labels, by hand."""
    owners = [t for t, size in enumerate(sizes) for _ in range(size)]
    return [t for t in range(len(sizes)) if any(label and owner == t for label, owner in zip(row, owners))]


def can_fill_every_experience(labels, sizes):
    """Brute force over all ways to give each labelled image to one of its experiences."""
    choices = [relevant_experiences(row, sizes) for row in labels.tolist()]
    return any(set(way) == set(range(len(sizes))) for way in product(*[c for c in choices if c]))


def owners(positions, n_images):
    found = [[] for _ in range(n_images)]
    for t, images in enumerate(positions):
        assert images.tolist() == sorted(images.tolist())
        for image in images.tolist():
            found[image].append(t)
    return found


@given(labels_and_sizes())
def test_first_relevant_is_the_first_experience_with_a_label(case):
    labels, sizes = case
    for row, got in zip(labels.tolist(), owners(first_relevant(labels, sizes), len(labels))):
        assert got == relevant_experiences(row, sizes)[:1]


@given(labels_and_sizes())
def test_every_relevant_repeats_an_image_with_each_of_its_experiences(case):
    labels, sizes = case
    for row, got in zip(labels.tolist(), owners(every_relevant(labels, sizes), len(labels))):
        assert got == relevant_experiences(row, sizes)


@given(labels_and_sizes(), st.sampled_from(["rarest", "random"]), st.integers(0, 3))
def test_once_gives_each_image_to_one_experience_and_leaves_none_empty(case, rule, seed):
    labels, sizes = case
    positions = once(labels, sizes, assignment=rule, seed=seed)
    for row, got in zip(labels.tolist(), owners(positions, len(labels))):
        possible = relevant_experiences(row, sizes)
        assert len(got) == bool(possible)
        assert set(got) <= set(possible)
    assert all(len(images) for images in positions) == can_fill_every_experience(labels, sizes)


@given(labels_and_sizes(), st.integers(0, 3))
def test_once_is_fixed_by_its_seed(case, seed):
    labels, sizes = case
    first = once(labels, sizes, assignment="random", seed=seed)
    second = once(labels, sizes, assignment="random", seed=seed)
    assert [p.tolist() for p in first] == [p.tolist() for p in second]


def test_rarest_class_decides():
    # class 0 is on four images, class 1 on two, class 2 on one
    labels = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 1, 0]]).bool()
    assert [p.tolist() for p in once(labels, [1, 1, 1])] == [[2], [0, 3], [1]]


def test_an_empty_experience_is_filled_along_a_chain():
    # By rarity a goes to experience 1, b and c to 2, d to 3, e to 4, and nothing to 0. Experience 1 gives
    # its only image to 0 and gets one from 2, which has two.
    columns = {"a": [0, 1], "b": [1, 2], "c": [3], "d": [0, 4], "e": [0, 5]}
    labels = torch.zeros(5, 6, dtype=torch.bool)
    for row, shown in enumerate(columns.values()):
        labels[row, shown] = True
    assert [p.tolist() for p in once(labels, [1, 1, 2, 1, 1])] == [[0], [1], [2], [3], [4]]


def test_random_rule_draws_from_all_labels():
    labels = torch.ones(2000, 2, dtype=torch.bool)
    share = len(once(labels, [1, 1], assignment="random", seed=1)[0]) / 2000
    assert abs(share - 0.5) < 4 * (0.25 / 2000) ** 0.5


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match="'rarest' or 'random', got 'best'"):
        once(torch.ones(1, 1, dtype=torch.bool), [1], assignment="best")
