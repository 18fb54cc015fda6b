import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.benchmarks.attribute import MultiLabelAttribute

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
    for row, cells in enumerate(targets.tolist()):
        for column, cell in enumerate(cells):
            if cell == 1:
                expected.setdefault(column, []).append(row)
    assert attribute.val_to_idx == expected
    assert attribute.uniques == set(expected)
    assert attribute.count == {column: len(rows) for column, rows in expected.items()}


@given(partial_targets(), st.data())
def test_subset_and_concat_equal_tensor_indexing(targets, data):
    attribute = MultiLabelAttribute(targets)
    position = st.integers(0, max(len(targets) - 1, 0))
    chosen = data.draw(st.lists(position, max_size=8 if len(targets) else 0))
    other = data.draw(partial_targets(width=targets.shape[1]))
    subset = attribute.subset(chosen)
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
    attribute = MultiLabelAttribute(torch.eye(3))
    assert attribute.subset(indices).data.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_values_read_as_float_with_nan_in_every_way():
    targets = torch.tensor([[1.0, NAN], [0.0, 1.0]])
    attribute = MultiLabelAttribute(targets)
    for read in (
        attribute.data,
        attribute[:],
        torch.stack(list(attribute)),
        torch.tensor(np.asarray(attribute)),
    ):
        assert read.dtype == torch.float32
        torch.testing.assert_close(read, targets, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64])
def test_targets_of_any_type_are_taken_and_left_as_they_were(dtype):
    targets = torch.eye(3).to(dtype)
    before = targets.clone()
    assert MultiLabelAttribute(targets).data.tolist() == torch.eye(3).tolist()
    assert torch.equal(targets, before)


def test_a_cell_takes_one_byte():
    codes = MultiLabelAttribute(torch.zeros(1000, 40)).codes
    assert codes.numel() * codes.element_size() == 40_000


def test_class_indices_are_refused_with_the_fix():
    with pytest.raises(ValueError, match=r"2-D.*shape \(3,\).*one_hot"):
        MultiLabelAttribute(torch.tensor([0, 2, 1]))


def test_a_value_other_than_0_and_1_is_named():
    with pytest.raises(ValueError, match=r"got 2 for image 1, class 0"):
        MultiLabelAttribute(torch.tensor([[0, 1], [2, 0]]))


def test_concat_of_another_width_is_refused():
    with pytest.raises(ValueError, match="number of classes"):
        MultiLabelAttribute(torch.eye(2)).concat(MultiLabelAttribute(torch.eye(3)))


def test_concat_of_another_name_is_refused():
    with pytest.raises(ValueError, match="one name"):
        MultiLabelAttribute(torch.eye(2)).concat(MultiLabelAttribute(torch.eye(2), name="other"))
