import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.benchmarks.experience import MultiLabelAttribute, mask_columns

NAN = float("nan")


@st.composite
def partial_targets(draw, width=None):
    rows = draw(st.integers(0, 6))
    columns = width or draw(st.integers(1, 5))
    cells = draw(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(cells).reshape(rows, columns)


@given(partial_targets())
def test_class_statistics_equal_loops_over_the_cells(targets):
    attribute = MultiLabelAttribute(targets)
    expected = {}
    for row, column in (targets == 1).nonzero().tolist():
        expected.setdefault(column, []).append(row)
    assert attribute.val_to_idx == expected
    assert attribute.uniques == set(expected)
    assert attribute.count == {column: len(rows) for column, rows in expected.items()}


@given(partial_targets(), st.data())
def test_subset_and_concat_equal_tensor_indexing(targets, data):
    position = st.integers(0, max(len(targets) - 1, 0))
    chosen = data.draw(st.lists(position, max_size=8 if len(targets) else 0))
    other = data.draw(partial_targets(width=targets.shape[1]))
    subset = MultiLabelAttribute(targets).subset(chosen)
    both = subset.concat(MultiLabelAttribute(other))
    assert type(subset) is type(both) is MultiLabelAttribute
    expected = torch.cat([targets[torch.tensor(chosen, dtype=torch.long)], other])
    torch.testing.assert_close(both.data, expected, rtol=0, atol=0, equal_nan=True)
    assert both.val_to_idx == MultiLabelAttribute(expected).val_to_idx


@pytest.mark.parametrize(
    "indices",
    [[2, 0], (2, 0), torch.tensor([2, 0]), np.array([2, 0]), range(2, -1, -2), [torch.tensor(2), 0]],
)
def test_subset_takes_any_kind_of_indices(indices):
    assert MultiLabelAttribute(torch.eye(3)).subset(indices).data.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_values_are_read_as_float_with_nan_in_every_way():
    targets = torch.tensor([[1.0, NAN], [0.0, 1.0]])
    attribute = MultiLabelAttribute(targets)
    as_array = torch.tensor(np.asarray(attribute))
    for read in (attribute.data, attribute[:], torch.stack(list(attribute)), as_array):
        assert read.dtype == torch.float32
        torch.testing.assert_close(read, targets, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64])
def test_targets_of_any_type_are_stored_in_one_byte_and_stay_unmodified(dtype):
    targets = torch.eye(3).to(dtype)
    before = targets.clone()
    attribute = MultiLabelAttribute(targets)
    assert attribute.data.tolist() == torch.eye(3).tolist()
    assert attribute.codes.dtype == torch.int8
    assert torch.equal(targets, before)


def test_other_columns_are_masked_in_a_copy():
    codes = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8)
    assert mask_columns(codes, range(1, 2)).tolist() == [[-1, 0, -1], [-1, 1, -1]]
    assert codes.tolist() == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiLabelAttribute(torch.tensor([0, 2, 1])), r"2-D.*shape \(3,\).*one_hot"),
        (lambda: MultiLabelAttribute(torch.tensor([[0, 1], [2, 0]])), "are 2 for image 1, class 0"),
        (lambda: MultiLabelAttribute(torch.eye(2).log()), "are -inf for image 0, class 1"),
        (
            lambda: MultiLabelAttribute(torch.eye(2)).concat(MultiLabelAttribute(torch.eye(3))),
            "same classes",
        ),
        (
            lambda: MultiLabelAttribute(torch.eye(2)).concat(MultiLabelAttribute(torch.eye(2), "other")),
            "same type and name",
        ),
    ],
)
def test_targets_that_do_not_fit_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
