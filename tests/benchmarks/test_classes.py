import pytest

from avalanche_agcn.benchmarks.classes import check_class_names, class_counts, resolve_class_order


def test_equal_split():
    assert class_counts(40, 10, None) == [4] * 10


def test_unequal_split_is_taken_as_given():
    assert class_counts(80, None, [40, 10, 10, 10, 10]) == [40, 10, 10, 10, 10]
    assert class_counts(5, 2, [3, 2]) == [3, 2]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ((40, None, None), "n_experiences= or classes_per_experience="),
        ((40, 0, None), "n_experiences=0 must be between 1 and the number of classes, 40"),
        ((4, 5, None), "n_experiences=5 must be between 1 and the number of classes, 4"),
        ((5, 2, None), r"5 classes do not split equally into 2.*\[3, 2\]"),
        ((5, 3, [3, 2]), r"n_experiences=3 contradicts classes_per_experience=\[3, 2\]"),
        ((5, None, [3, 3]), "sum to the 5 classes, not to 6"),
        ((5, None, [5, 0]), "must be positive"),
        ((5, None, []), "must be positive"),
    ],
)
def test_a_split_that_does_not_fit_says_what_would(request_, message):
    with pytest.raises(ValueError, match=message):
        class_counts(*request_)


def test_order_by_column_or_name():
    names = ["cat", "dog", "cow"]
    assert resolve_class_order(None, names) == [0, 1, 2]
    assert resolve_class_order([2, 0, 1], names) == [2, 0, 1]
    assert resolve_class_order(["cow", "cat", "dog"], names) == [2, 0, 1]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["cat", "dog"], r"missing \['cow'\], repeated \[\]"),
        ([0, 1, 1], r"missing \['cow'\], repeated \['dog'\]"),
        (["cat", "dog", "emu"], r"unknown classes \['emu'\].*'cow'"),
        ([0, 1, 3], r"unknown classes \[3\]"),
        ([0, 1, -1], r"unknown classes \[-1\]"),
    ],
)
def test_an_order_that_does_not_fit_names_the_classes(order, message):
    with pytest.raises(ValueError, match=message):
        resolve_class_order(order, ["cat", "dog", "cow"])


@pytest.mark.parametrize("names", [["cat"], ["cat", "cat"]])
def test_names_that_do_not_fit_are_refused(names):
    with pytest.raises(ValueError, match="each of the 2 columns differently"):
        check_class_names(names, 2)
