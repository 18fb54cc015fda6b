import math

import numpy as np
import pytest
import torch

from avalanche_agcn.evaluation.inputs import (
    as_array,
    check_shapes,
    check_threshold,
    check_top_k,
    split_targets,
)


def test_class_numbers_are_refused_with_the_fix():
    with pytest.raises(ValueError, match=r"one_hot\(targets, 5\)"):
        check_shapes(torch.zeros(3, 5), torch.tensor([0, 4, 2]))


@pytest.mark.parametrize(
    ("scores", "targets"), [((3, 5), (3, 6)), ((3, 5), (2, 5)), ((3,), (3,)), ((3, 5, 1), (3, 5, 1))]
)
def test_shapes_that_do_not_fit_are_refused_with_both_shapes(scores, targets):
    with pytest.raises(ValueError, match="must both be") as error:
        check_shapes(torch.zeros(scores), torch.zeros(targets))
    assert str(scores) in str(error.value)
    assert str(targets) in str(error.value)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_nothing_to_evaluate_is_refused(shape):
    with pytest.raises(ValueError, match="nothing to evaluate"):
        check_shapes(torch.zeros(shape), torch.zeros(shape))


def test_integer_scores_are_refused():
    with pytest.raises(TypeError, match=r"floating point, got torch\.int64"):
        check_shapes(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64]
)
def test_targets_of_any_type_are_split(dtype):
    positive, annotated = split_targets(torch.tensor([[0, 1], [1, 1]]).to(dtype))
    np.testing.assert_array_equal(positive, [[False, True], [True, True]])
    assert annotated is None


def test_nan_targets_are_unlabelled():
    positive, annotated = split_targets(torch.tensor([[math.nan, 1.0], [0.0, math.nan]]))
    np.testing.assert_array_equal(positive, [[False, True], [False, False]])
    np.testing.assert_array_equal(annotated, [[False, True], [True, False]])


@pytest.mark.parametrize("strange", [0.5, -1.0, 2.0])
def test_other_target_values_are_refused_with_the_value(strange):
    with pytest.raises(ValueError, match=f"0, 1 or NaN .* got {strange:g}"):
        split_targets(torch.tensor([[0.0, strange, math.nan]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32_exactly(dtype):
    tensor = torch.randn(50, 3).to(dtype)
    assert as_array(tensor).dtype == np.float32
    assert torch.equal(torch.from_numpy(as_array(tensor)).to(dtype), tensor)


def test_threshold_and_top_k_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="threshold is NaN"):
        check_threshold(math.nan)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        check_top_k(0)
    check_top_k(None)
