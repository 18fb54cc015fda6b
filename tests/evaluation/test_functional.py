"""Every figure against scikit-learn, by hand and against what must not change it."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

from avalanche_agcn.evaluation.functional import (
    average_precision,
    mean_average_precision,
    mean_class_f1,
    nested_summary,
    precision_recall_f1,
)

NAN = math.nan


def random_case(seed=0, n=200, n_classes=6, density=0.2, levels=None, dtype=torch.float64):
    """Random scores (of few levels: heavy ties) and targets; every class has a positive."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    if levels is not None:
        scores = (scores * levels).round()
    targets = (torch.rand(n, n_classes, generator=generator) < density).float()
    targets[0] = 1.0
    return scores.to(dtype), targets


def sklearn_ap(scores, targets):
    return [average_precision_score(targets[:, c], scores[:, c].double()) for c in range(scores.shape[1])]


@st.composite
def cases(draw):
    """Small cases with ties, single positives, classes without positives and constant scores."""
    n, n_classes = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    levels = draw(st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e6]))
    density = draw(st.sampled_from([0.05, 0.3, 0.9]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scores = (torch.randn(n, n_classes, generator=generator, dtype=torch.float64) * levels).round()
    return scores, (torch.rand(n, n_classes, generator=generator) < density).float()


# Average precision


@pytest.mark.parametrize("levels", [None, 2, 0.3, 0.0])  # none, many, heavy ties, constant scores
def test_average_precision_equals_scikit_learn(levels):
    scores, targets = random_case(levels=levels)
    np.testing.assert_allclose(average_precision(scores, targets), sklearn_ap(scores, targets), atol=1e-12)


@settings(deadline=None, max_examples=200)
@given(cases())
def test_average_precision_equals_scikit_learn_wherever_a_class_has_a_positive(case):
    scores, targets = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, for classes without positives
        expected = np.array(sklearn_ap(scores, targets))
    expected[targets.sum(0).numpy() == 0] = np.nan
    np.testing.assert_allclose(average_precision(scores, targets), expected, atol=1e-12)


def test_average_precision_of_one_positive_is_one_over_its_rank():
    scores = torch.arange(10.0, 0.0, -1.0)[:, None]
    for rank in range(1, 11):
        targets = torch.zeros(10, 1)
        targets[rank - 1] = 1
        assert average_precision(scores, targets).item() == pytest.approx(1 / rank, abs=1e-15)


def test_average_precision_by_hand():
    # Ranking: +, -, + and -, tied, +, -   →   precisions 1/1, 2/4, 3/5
    scores = torch.tensor([[0.9], [0.8], [0.5], [0.5], [0.3], [0.1]])
    targets = torch.tensor([[1], [0], [1], [0], [1], [0]])
    assert average_precision(scores, targets).item() == pytest.approx((1 + 1 / 2 + 3 / 5) / 3, abs=1e-15)


def test_average_precision_of_constant_scores_is_the_share_of_positives():
    targets = (torch.arange(20) % 5 == 0).float()[:, None]
    assert average_precision(torch.full((20, 1), 3.0), targets).item() == pytest.approx(0.2, abs=1e-15)


def test_class_without_positives_is_nan_and_left_out_of_the_mean():
    scores, targets = random_case(n_classes=3)
    targets[:, 1] = 0
    ap = average_precision(scores, targets)
    assert ap.isnan().tolist() == [False, True, False]
    assert mean_average_precision(scores, targets) == pytest.approx((ap[0] + ap[2]).item() / 2)
    assert math.isnan(mean_average_precision(scores[:, [1]], targets[:, [1]]))


@settings(deadline=None)
@given(cases(), st.integers(0, 2**31))
def test_unlabelled_cells_count_as_if_their_images_were_not_there(case, seed):
    scores, targets = case
    unlabelled = torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    ap = average_precision(scores, targets.masked_fill(unlabelled, NAN))
    for c in range(scores.shape[1]):
        keep = ~unlabelled[:, c]
        if keep.any():
            alone = average_precision(scores[keep][:, [c]], targets[keep][:, [c]])
            torch.testing.assert_close(ap[[c]], alone, rtol=0, atol=1e-15, equal_nan=True)
        else:
            assert ap[c].isnan()


@settings(deadline=None)
@given(cases(), st.integers(0, 2**31))
def test_average_precision_ignores_order_of_samples_and_follows_order_of_classes(case, seed):
    scores, targets = case
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(scores.shape[0], generator=generator)
    columns = torch.randperm(scores.shape[1], generator=generator)
    shuffled = average_precision(scores[rows][:, columns], targets[rows][:, columns])
    assert torch.equal(shuffled.nan_to_num(-1), average_precision(scores, targets)[columns].nan_to_num(-1))


@settings(deadline=None)
@given(cases(), st.sampled_from([torch.atan, torch.asinh, lambda s: 3 * s - 7, lambda s: s / 1024]))
def test_average_precision_ignores_monotone_transforms(case, transform):
    scores, targets = case
    expected = average_precision(scores, targets).nan_to_num(-1)
    assert torch.equal(average_precision(transform(scores), targets).nan_to_num(-1), expected)


def test_large_float32_logits_rank_as_they_are():
    # A float32 sigmoid is exactly 1.0 above 17 and would make one tie of all of these.
    scores = torch.linspace(60, 100, 50)[:, None]
    targets = (torch.arange(50) >= 40).float()[:, None]
    assert len(scores.sigmoid().unique()) == 1
    assert average_precision(scores, targets).item() == 1.0
    assert average_precision(-scores, targets).item() == pytest.approx(
        average_precision_score(targets[:, 0], -scores[:, 0]), abs=1e-12
    )


def test_scores_that_differ_in_the_last_bit_are_no_tie():
    one = np.float32(1.0)
    scores = torch.tensor([[one], [np.nextafter(one, np.float32(2))]])
    assert average_precision(scores, torch.tensor([[0], [1]])).item() == 1.0
    assert average_precision(scores, torch.tensor([[1], [0]])).item() == 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_ranked_exactly(dtype):
    scores, targets = random_case(dtype=dtype)
    ap = average_precision(scores, targets)
    assert ap.dtype == torch.float64
    np.testing.assert_allclose(ap, sklearn_ap(scores, targets), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_targets_of_any_type_give_the_same(dtype):
    scores, targets = random_case()
    assert torch.equal(average_precision(scores, targets.to(dtype)), average_precision(scores, targets))


def test_infinite_scores_are_ranked():
    scores = torch.tensor([[math.inf], [0.0], [-math.inf], [-math.inf]])
    targets = torch.tensor([[1.0], [0.0], [1.0], [NAN]])
    assert average_precision(scores, targets).item() == pytest.approx((1 + 2 / 3) / 2)


def test_views_of_any_layout_give_the_same():
    scores, targets = random_case()
    expected = average_precision(scores, targets)
    by_column = average_precision(scores.t().contiguous().t(), targets.t().contiguous().t())
    strided = average_precision(scores.repeat_interleave(2, dim=1)[:, ::2], targets.repeat(2, 1)[:200])
    assert torch.equal(by_column, expected)
    assert torch.equal(strided, expected)


def test_inputs_are_not_modified_and_gradients_are_no_hindrance():
    scores, targets = random_case()
    targets[3] = NAN
    before = scores.clone(), targets.clone()
    average_precision(scores.requires_grad_(), targets)
    precision_recall_f1(scores, targets, threshold=0.0, top_k=2)
    assert torch.equal(scores, before[0])
    assert torch.equal(targets.nan_to_num(-1), before[1].nan_to_num(-1))


def test_agrees_with_torchmetrics_where_definitions_agree():
    scores, targets = random_case(dtype=torch.float32)
    probabilities = scores.sigmoid()
    theirs = multilabel_average_precision(probabilities, targets.long(), num_labels=6, average="none")
    np.testing.assert_allclose(average_precision(probabilities, targets), theirs, atol=1e-6)


def test_torchmetrics_counts_a_class_without_positives_as_zero():
    """Pins where the definitions differ: the reason our mean leaves such a class out."""
    scores, targets = random_case(n_classes=2, dtype=torch.float32)
    targets[:, 1] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = multilabel_average_precision(scores.sigmoid(), targets.long(), num_labels=2)
    assert theirs.item() == pytest.approx(mean_average_precision(scores, targets) / 2, abs=1e-6)


@pytest.mark.parametrize("function", [average_precision, mean_average_precision])
def test_nan_score_is_refused(function):
    scores, targets = random_case()
    scores[5, 2] = NAN
    with pytest.raises(ValueError, match="class 2 contain NaN"):
        function(scores, targets)


# Precision, recall, F1


@settings(deadline=None)
@given(cases(), st.sampled_from([-1.0, 0.0, 2.0]))
def test_precision_recall_f1_equals_scikit_learn(case, threshold):
    scores, targets = case
    predicted, truth = (scores >= threshold).numpy(), targets.bool().numpy()
    classes = [
        precision_recall_fscore_support(truth[:, c], predicted[:, c], average="binary", zero_division=0)[:3]
        for c in range(scores.shape[1])
    ]
    cp, cr, class_f1 = np.mean(classes, axis=0)
    cf1 = 2 * cp * cr / (cp + cr) if cp + cr else 0.0
    overall = precision_recall_fscore_support(
        truth.ravel(), predicted.ravel(), average="binary", zero_division=0
    )[:3]
    result = precision_recall_f1(scores, targets, threshold=threshold)
    np.testing.assert_allclose(result, [cp, cr, cf1, *overall], atol=1e-12)
    assert mean_class_f1(scores, targets, threshold=threshold) == pytest.approx(class_f1, abs=1e-12)


def test_precision_recall_f1_by_hand():
    logits = torch.tensor([[1.0, -1.0, 2.0], [2.0, 3.0, -1.0], [-1.0, 1.0, -1.0], [0.0, -2.0, -3.0]])
    targets = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]])
    # class 0: predicted 1, 2, 4 (0.0 is p = 0.5), correct 1, 4; class 1: 2 of 2 of 2; class 2: 1 of 1 of 2
    result = precision_recall_f1(logits, targets, threshold=0.0)
    cp, cr = (2 / 3 + 1 + 1) / 3, (2 / 3 + 1 + 1 / 2) / 3
    op, or_ = 5 / 6, 5 / 7
    assert result == pytest.approx((cp, cr, 2 * cp * cr / (cp + cr), op, or_, 2 * op * or_ / (op + or_)))
    assert mean_class_f1(logits, targets, threshold=0.0) == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)


def test_cf1_is_not_the_mean_of_class_f1():
    scores, targets = random_case(n=50)
    result = precision_recall_f1(scores, targets, threshold=0.5)
    assert abs(result.CF1 - mean_class_f1(scores, targets, threshold=0.5)) > 1e-3


def test_threshold_is_in_the_unit_of_the_scores():
    logits, targets = random_case()
    probabilities = logits.sigmoid()
    assert precision_recall_f1(logits, targets, threshold=0.0) == precision_recall_f1(
        probabilities, targets, threshold=0.5
    )
    assert precision_recall_f1(logits, targets, threshold=0.5) != precision_recall_f1(
        probabilities, targets, threshold=0.5
    )
    with pytest.raises(TypeError, match="threshold"):
        precision_recall_f1(logits, targets)


def test_class_never_predicted_has_precision_zero_and_class_without_positives_recall_zero():
    scores = torch.tensor([[1.0, -1.0, 1.0], [1.0, -1.0, -1.0]])
    targets = torch.tensor([[1, 1, 0], [1, 0, 0]])
    result = precision_recall_f1(scores, targets, threshold=0.0)
    np.testing.assert_allclose(result, [1 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
    nothing = precision_recall_f1(scores, targets, threshold=9.0)
    assert nothing == (0, 0, 0, 0, 0, 0)


def test_f1_leaves_unlabelled_cells_and_classes_out():
    scores, targets = random_case()
    targets[::2, 1] = NAN
    targets[:, 2] = NAN
    result = precision_recall_f1(scores, targets, threshold=0.0)
    rest = [0, 1, 3, 4, 5]
    counted = [
        (scores[~targets[:, c].isnan(), c] >= 0, targets[~targets[:, c].isnan(), c] == 1) for c in rest
    ]
    cp = np.mean([(p & t).sum() / p.sum() for p, t in counted])
    cr = np.mean([(p & t).sum() / t.sum() for p, t in counted])
    op = sum((p & t).sum() for p, t in counted) / sum(p.sum() for p, t in counted)
    np.testing.assert_allclose([result.CP, result.CR, result.OP], [cp, cr, op])
    everything = precision_recall_f1(scores, torch.full_like(targets, NAN), threshold=0.0)
    assert all(math.isnan(value) for value in everything)
    assert math.isnan(mean_class_f1(scores, torch.full_like(targets, NAN), threshold=0.0))


def test_top_k_by_hand():
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0], [-1.0, 0.5, -3.0, -2.0]])
    targets = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]])
    # kept of the first image: columns 0 and 1; of the second: 1, as 0 is below the threshold
    result = precision_recall_f1(scores, targets, threshold=0.0, top_k=2)
    np.testing.assert_allclose([result.OP, result.OR], [2 / 3, 2 / 5])


@settings(deadline=None)
@given(cases(), st.integers(1, 6))
def test_top_k_keeps_what_a_sort_of_each_image_keeps(case, top_k):
    scores, targets = case
    kept = torch.zeros_like(scores, dtype=torch.bool)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    kept.scatter_(1, order, True)
    expected = precision_recall_f1(scores.masked_fill(~kept, -math.inf), targets, threshold=0.0)
    assert precision_recall_f1(scores, targets, threshold=0.0, top_k=top_k) == expected


def test_top_k_is_chosen_among_annotated_classes():
    scores, targets = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[NAN, 0.0, 1.0]])
    assert precision_recall_f1(scores, targets, threshold=0.0, top_k=2).OR == 1.0


def test_f1_agrees_with_torchmetrics_on_overall_figures():
    scores, targets = random_case(dtype=torch.float32)
    theirs = multilabel_f1_score(scores, targets.long(), num_labels=6, average="micro", threshold=0.5)
    ours = precision_recall_f1(scores, targets, threshold=0.0)
    np.testing.assert_allclose(ours.OF1, theirs, atol=1e-6)


def test_f1_refuses_nan_scores_and_top_k_zero():
    scores, targets = random_case()
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        precision_recall_f1(scores, targets, threshold=0.0, top_k=0)
    scores[0, 0] = NAN
    with pytest.raises(ValueError, match="contain NaN"):
        precision_recall_f1(scores, targets, threshold=0.0)


# The nested matrix


def test_nested_summary_by_hand():
    summary = nested_summary([[0.8], [0.6, 0.7], [0.4, 0.5, 0.6]])
    assert summary.last == 0.6
    assert summary.nested == pytest.approx(0.5)
    assert summary.average == pytest.approx(0.7)
    assert summary.forgetting_absolute == pytest.approx((0.4 + 0.2) / 2)
    assert summary.forgetting_relative == pytest.approx((0.4 / 0.8 + 0.2 / 0.7) / 2)


def test_nested_summary_takes_square_matrices():
    rows = [[0.8], [0.6, 0.7], [0.4, 0.5, 0.6]]
    square = np.full((3, 3), NAN)
    for t, row in enumerate(rows):
        square[t, : t + 1] = row
    assert nested_summary(square) == nested_summary(rows)
    assert nested_summary(torch.from_numpy(square)) == nested_summary(rows)


def test_nothing_is_forgotten_after_one_experience():
    assert nested_summary([[0.8]]) == (0.8, 0.8, 0.8, 0.0, 0.0)


def test_better_scores_later_are_negative_forgetting():
    assert nested_summary([[0.5], [0.6, 0.7]]).forgetting_relative == pytest.approx(-0.2)


def test_relative_forgetting_leaves_out_sets_that_began_at_zero():
    summary = nested_summary([[0.0], [0.1, 0.5], [0.2, 0.4, 0.6]])
    assert summary.forgetting_absolute == pytest.approx((-0.2 + 0.1) / 2)
    assert summary.forgetting_relative == pytest.approx(0.2)


def test_figures_that_need_a_row_not_evaluated_are_nan():
    summary = nested_summary([[], [0.6, 0.7]])
    assert (summary.last, summary.nested) == pytest.approx((0.7, 0.65))
    assert all(map(math.isnan, summary[2:]))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([], "no last row"),
        ([[0.5], []], "no last row"),
        ([[0.5], [0.4]], "row 1 .* has 1 entries and needs 2"),
    ],
)
def test_nested_matrix_that_is_incomplete_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        nested_summary(matrix)
