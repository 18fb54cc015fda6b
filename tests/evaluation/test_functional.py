"""Every metric against scikit-learn and hand-worked cases, and what must not change it."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score
from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

import avalanche_agcn.evaluation.functional as F

NAN = math.nan


def random_case(seed=0, shape=(200, 6), *, scale=None, density=0.2, unlabelled=0.0):
    """Random scores and targets; with a scale, scores are whole numbers, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    targets = (torch.rand(shape, generator=generator) < density).float()
    hidden = torch.rand(shape, generator=generator) < unlabelled
    return scores if scale is None else (scores * scale).round(), targets.masked_fill(hidden, NAN)


def labelled(values, targets):
    """For each class its values and labels, of labelled images only."""
    known = zip(values.T.numpy(), targets.T.double().numpy(), ~targets.T.isnan().numpy())
    return [(own[keep], labels[keep]) for own, labels, keep in known]


def sklearn_ap(scores, targets):
    known = labelled(scores.double(), targets)
    return [average_precision_score(labels, own) if any(labels) else NAN for own, labels in known]


@st.composite
def cases(draw, unlabelled=(0.0, 0.3)):
    """Cases with ties, single positives, classes without positives, constant scores and unlabelled cells."""
    shape = draw(st.one_of(st.integers(1, 25), st.just(200))), draw(st.integers(1, 4))
    options = {"scale": [0.0, 0.5, 1.0, 3.0, 1e6], "density": [0.05, 0.3, 0.9], "unlabelled": unlabelled}
    drawn = {name: draw(st.sampled_from(values)) for name, values in options.items()}
    return random_case(draw(st.integers(0, 2**31)), shape, **drawn)


# Average precision


@settings(max_examples=200)
@given(cases())
def test_average_precision_equals_scikit_learn_wherever_a_class_has_a_positive(case):
    ap = F.average_precision(*case)
    np.testing.assert_allclose(ap, sklearn_ap(*case), atol=1e-12)
    assert F.mean_average_precision(*case) == pytest.approx(ap.nanmean().item(), nan_ok=True)


@pytest.mark.parametrize(
    ("scores", "targets", "expected"),
    [
        ([0.9, 0.8, 0.5, 0.5, 0.3, 0.1], [1, 0, 1, 0, 1, 0], (1 + 2 / 4 + 3 / 5) / 3),  # a tie
        ([3.0] * 10, [1, 0, 0, 0, 0] * 2, 0.2),  # constant: the share of positives
        ([3.0, 2.0, 1.0], [0, 0, 1], 1 / 3),  # one positive: one over its rank
        ([math.inf, 0.0, -math.inf, -math.inf], [1.0, 0.0, 1.0, NAN], (1 + 2 / 3) / 2),
        ([1.0, np.nextafter(np.float32(1), np.float32(2))], [0, 1], 1.0),  # they differ in the last bit
        # A float32 sigmoid is exactly 1.0 above 17 and would make one tie of all of these.
        (torch.linspace(60, 100, 50).tolist(), [0] * 40 + [1] * 10, 1.0),
    ],
)
def test_average_precision_by_hand(scores, targets, expected):
    ap = F.average_precision(
        torch.tensor(scores, dtype=torch.float32)[:, None], torch.tensor(targets)[:, None]
    )
    assert ap.item() == pytest.approx(expected, abs=1e-15)


@given(
    cases(),
    st.integers(0, 2**31),
    st.sampled_from([torch.atan, torch.asinh, lambda s: 3 * s - 7, lambda s: s / 1024]),
)
def test_order_of_samples_and_monotone_transforms_change_nothing(case, seed, transform):
    scores, targets = case
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=generator) for n in scores.shape)
    shuffled = F.average_precision(transform(scores)[rows][:, columns], targets[rows][:, columns])
    assert torch.equal(shuffled.nan_to_num(-1), F.average_precision(scores, targets)[columns].nan_to_num(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("target_dtype", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_any_type_is_ranked_exactly(dtype, target_dtype):
    scores, targets = random_case()
    ap = F.average_precision(scores.to(dtype), targets.to(target_dtype))
    assert ap.dtype == torch.float64
    np.testing.assert_allclose(ap, sklearn_ap(scores.to(dtype), targets), atol=1e-12)


def test_inputs_are_not_modified_and_may_require_gradients():
    scores, targets = random_case()
    targets[3] = NAN
    before = scores.clone(), targets.clone()
    F.average_precision(scores.requires_grad_(), targets)
    F.precision_recall_f1(scores, targets, threshold=0.0, top_k=2)
    assert torch.equal(scores, before[0])
    assert torch.equal(targets.nan_to_num(-1), before[1].nan_to_num(-1))


# ROC-AUC


def sklearn_roc_auc(scores, targets):
    known = labelled(scores.double(), targets)
    return [roc_auc_score(labels, own) if len(set(labels)) == 2 else NAN for own, labels in known]


@settings(max_examples=200)
@given(cases())
def test_roc_auc_equals_scikit_learn_wherever_a_class_has_a_positive_and_a_negative(case):
    areas = F.roc_auc(*case)
    assert areas.dtype == torch.float64
    np.testing.assert_allclose(areas, sklearn_roc_auc(*case), rtol=0, atol=1e-12)
    assert F.mean_roc_auc(*case) == pytest.approx(areas.nanmean().item(), nan_ok=True)


@pytest.mark.parametrize(
    ("scores", "targets", "expected"),
    [
        ([0.9, 0.8, 0.5, 0.5, 0.3, 0.1], [1, 0, 1, 0, 1, 0], (3 + 1.5 + 1) / 9),  # a tie counts half
        ([3.0] * 10, [1, 0, 0, 0, 0] * 2, 0.5),  # constant scores tell nothing
        ([3.0, 2.0, 1.0], [0, 0, 1], 0.0),
        ([1.0, 2.0, 3.0], [0, 0, 1], 1.0),
        ([math.inf, 0.0, -math.inf, -math.inf], [1.0, 0.0, 1.0, NAN], 0.5),  # one of two pairs is in order
        ([1.0, 2.0], [1, 1], NAN),  # no negative
        ([1.0, 2.0], [0, 0], NAN),  # no positive
        ([1.0, 2.0], [1.0, NAN], NAN),  # no labelled negative
    ],
)
def test_roc_auc_by_hand(scores, targets, expected):
    area = F.roc_auc(torch.tensor(scores)[:, None], torch.tensor(targets)[:, None])
    assert area.item() == pytest.approx(expected, abs=1e-15, nan_ok=True)


@given(cases(unlabelled=[0.0]), st.integers(2, 5))
def test_roc_auc_does_not_depend_on_prevalence(case, n_copies):
    """Repeating the images of a single class's negatives changes its average precision, not its ROC-AUC."""
    scores, targets = (part[:, :1] for part in case)
    negatives = (targets == 0)[:, 0]
    more = [torch.cat([part, part[negatives].repeat(n_copies, 1)]) for part in (scores, targets)]
    np.testing.assert_allclose(F.roc_auc(*more), F.roc_auc(scores, targets), atol=1e-12)


# Precision, recall, F1


def sklearn_f1(predicted, targets):
    """Class means of precision, recall and F1, and the same over all labelled cells; NaN if there is none."""
    known = [pair for pair in labelled(predicted, targets) if len(pair[0])]
    if not known:
        return np.full((2, 3), NAN)

    def binary(predicted, truth):
        return precision_recall_fscore_support(truth, predicted, average="binary", zero_division=0)[:3]

    return np.mean([binary(*pair) for pair in known], axis=0), binary(*map(np.concatenate, zip(*known)))


@given(cases(), st.sampled_from([-1.0, 0.0, 2.0]))
def test_precision_recall_f1_equals_scikit_learn(case, threshold):
    scores, targets = case
    (cp, cr, class_f1), overall = sklearn_f1(scores >= threshold, targets)
    cf1 = 2 * cp * cr / (cp + cr) if cp + cr != 0 else 0.0  # NaN if no cell is labelled
    result = F.precision_recall_f1(scores, targets, threshold=threshold)
    np.testing.assert_allclose(result, [cp, cr, cf1, *overall], atol=1e-12)
    np.testing.assert_allclose(F.mean_class_f1(scores, targets, threshold=threshold), class_f1, atol=1e-12)


def test_torchmetrics_agrees_except_for_classes_without_positives():
    """They count such a class as 0, which is why our mean leaves it out."""
    scores, targets = random_case()
    scores, labels = scores.float(), targets.long()
    theirs = multilabel_average_precision(scores.sigmoid(), labels, num_labels=6, average="none")
    np.testing.assert_allclose(F.average_precision(scores, targets), theirs, atol=1e-6)
    of1 = multilabel_f1_score(scores, labels, num_labels=6, average="micro", threshold=0.5)
    np.testing.assert_allclose(F.precision_recall_f1(scores, targets, threshold=0.0).OF1, of1, atol=1e-6)
    labels[:, 1:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = multilabel_average_precision(scores.sigmoid(), labels, num_labels=6)
    assert theirs.item() == pytest.approx(F.mean_average_precision(scores, labels) / 6, abs=1e-6)


def test_precision_recall_f1_by_hand():
    logits = torch.tensor([[1.0, -1.0, 2.0], [2.0, 3.0, -1.0], [-1.0, 1.0, -1.0], [0.0, -2.0, -3.0]])
    targets = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]])
    # class 0: predicted 1, 2, 4 (0.0 is p = 0.5), correct 1, 4; class 1: 2 of 2 of 2; class 2: 1 of 1 of 2
    result = F.precision_recall_f1(logits, targets, threshold=0.0)
    cp, cr = (2 / 3 + 1 + 1) / 3, (2 / 3 + 1 + 1 / 2) / 3
    op, or_ = 5 / 6, 5 / 7
    assert result == pytest.approx((cp, cr, 2 * cp * cr / (cp + cr), op, or_, 2 * op * or_ / (op + or_)))
    assert F.mean_class_f1(logits, targets, threshold=0.0) == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)
    assert pytest.approx((2 / 3 + 1 + 2 / 3) / 3, abs=1e-3) != result.CF1  # CF1 is not the mean of class F1
    assert F.precision_recall_f1(logits, targets, threshold=9.0) == (0, 0, 0, 0, 0, 0)  # nothing predicted


@given(cases(), st.sampled_from([0.8, 0.525]))
def test_stage_scores_equal_scikit_learn_above_a_probability(case, probability):
    logits, targets = case
    (_, _, class_f1), (_, _, of1) = sklearn_f1(logits.sigmoid() > probability, targets)
    expected = F.mean_average_precision(logits, targets), class_f1, of1
    found = F.stage_scores(logits, targets, probability=probability)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_stages_predict_above_their_probability_and_not_at_it():
    logits, targets = torch.zeros(2, 1, dtype=torch.float64), torch.ones(2, 1)
    assert F.stage_scores(logits, targets, probability=0.5).OF1 == 0  # at the threshold
    assert F.stage_scores(logits + 1e-9, targets, probability=0.5).OF1 == 1


def test_threshold_is_in_the_unit_of_the_scores():
    logits, targets = random_case()
    of_logits, of_probabilities, other = (
        F.precision_recall_f1(scores, targets, threshold=threshold)
        for scores, threshold in ((logits, 0.0), (logits.sigmoid(), 0.5), (logits, 0.5))
    )
    assert of_logits == of_probabilities != other
    # 0.7 as float32 is less than 0.7 as float64, but counts as equal.
    equal = {"scores": torch.full((2, 1), 0.7), "targets": torch.ones(2, 1), "threshold": 0.7}
    assert F.precision_recall_f1(**equal).OF1 == 1.0
    assert F.nested_scores(**equal, set_sizes=[2], class_counts=[1]).OF1 == [1.0]


@given(cases(unlabelled=[0.0]), st.integers(1, 6))
def test_top_k_keeps_what_a_sort_of_each_image_keeps(case, top_k):
    scores, targets = case
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True)
    expected = F.precision_recall_f1(scores.masked_fill(~kept, -math.inf), targets, threshold=0.0)
    assert F.precision_recall_f1(scores, targets, threshold=0.0, top_k=top_k) == expected
    scores, targets = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[NAN, 0.0, 1.0]])
    assert F.precision_recall_f1(scores, targets, threshold=0.0, top_k=2).OR == 1.0  # of annotated classes


# Nested sets


@st.composite
def nested_cases(draw):
    sizes = draw(st.lists(st.integers(0, 15), min_size=1, max_size=5).filter(any))
    new = draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    ends, class_counts = np.cumsum(sizes).tolist(), np.cumsum(new).tolist()
    seed, unlabelled = draw(st.integers(0, 1000)), draw(st.sampled_from([0.0, 0.2]))
    case = random_case(seed, (ends[-1], class_counts[-1]), scale=5, density=0.3, unlabelled=unlabelled)
    return *case, ends, class_counts


@given(nested_cases(), st.sampled_from([-3.0, 0.0, 4.0]), st.booleans())
def test_nested_scores_equal_each_set_alone(case, threshold, wider):
    scores, targets, ends, class_counts = case
    if wider:  # scores may have more classes than the last set
        scores, targets = (torch.cat([part, part[:, :1]], dim=1) for part in (scores, targets))
    result = F.nested_scores(scores, targets, set_sizes=ends, class_counts=class_counts, threshold=threshold)
    for i, (n, c) in enumerate(zip(ends, class_counts)):
        got = (result.mAP[i], result.CF1[i], result.OF1[i])
        assert result.average_precision[i, c:].isnan().all()
        if n == 0:
            assert all(map(math.isnan, got))
            continue
        own = scores[:n, :c], targets[:n, :c]
        f1 = F.precision_recall_f1(*own, threshold=threshold)
        np.testing.assert_allclose(got, (F.mean_average_precision(*own), f1.CF1, f1.OF1), atol=1e-14)
        np.testing.assert_allclose(result.average_precision[i, :c], F.average_precision(*own), atol=1e-14)
    np.testing.assert_allclose(result.stage, F.stage_scores(*own), atol=1e-14)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[0.8], [0.6, 0.7], [0.4, 0.5, 0.6]], (0.6, 0.5, 0.7, (0.4 + 0.2) / 2, (0.4 / 0.8 + 0.2 / 0.7) / 2)),
        ([[0.8]], (0.8, 0.8, 0.8, 0.0, 0.0)),  # nothing is forgotten after one experience
        ([[0.5], [0.6, 0.7]], (0.7, 0.65, 0.6, -0.1, -0.2)),  # better scores later
        ([[0.0], [0.1, 0.5], [0.2, 0.4, 0.6]], (0.6, 0.4, 1.1 / 3, -0.05, 0.2)),  # a set that began at 0
        ([[], [0.6, 0.7]], (0.7, 0.65, NAN, NAN, NAN)),  # a row that was not evaluated
    ],
)
def test_nested_summary_by_hand(matrix, expected):
    assert F.nested_summary(matrix) == pytest.approx(expected, nan_ok=True)
    if all(matrix):
        square = np.full((len(matrix), len(matrix)), NAN)
        for t, row in enumerate(matrix):
            square[t, : t + 1] = row
        assert (
            F.nested_summary(square) == F.nested_summary(torch.from_numpy(square)) == F.nested_summary(matrix)
        )


# Inputs


SCORES, BROKEN = torch.zeros(3, 5), torch.zeros(3, 5).index_fill(1, torch.tensor(2), NAN)


def nested_sizes(set_sizes, class_counts, message, threshold=0.0, targets=SCORES):
    sizes = {"set_sizes": set_sizes, "class_counts": class_counts, "threshold": threshold}
    return F.nested_scores, [SCORES, targets], sizes, message


@pytest.mark.parametrize(
    ("function", "arguments", "settings", "message"),
    [
        (F.make_batch, [SCORES, torch.tensor([0, 4, 2])], {}, r"one_hot\(targets, 5\)"),
        (F.make_batch, [SCORES, torch.zeros(3, 6)], {}, r"targets\[:, :5\]\), not \[3, 6\]"),
        (F.make_batch, [SCORES, torch.zeros(2, 5)], {}, r"targets must be \[3, 5\] .*, not \[2, 5\]"),
        (F.make_batch, [torch.zeros(3)] * 2, {}, r"\[images, classes\], not \[3\]"),
        (F.make_batch, [torch.zeros(3, 5, 1)] * 2, {}, r"\[images, classes\], not \[3, 5, 1\]"),
        (F.make_batch, [torch.zeros(0, 5)] * 2, {}, "empty"),
        (F.make_batch, [torch.zeros(5, 0)] * 2, {}, "empty"),
        (F.make_batch, [SCORES.long(), SCORES], {}, r"floating point, got torch\.int64"),
        (F.make_batch, [SCORES, BROKEN + 0.5], {}, "0, 1 or NaN .* got 0.5"),
        (F.make_batch, [SCORES, BROKEN - 1.0], {}, "0, 1 or NaN .* got -1"),
        (F.mean_average_precision, [BROKEN, SCORES], {}, "class 2 contain NaN"),
        (F.precision_recall_f1, [BROKEN, SCORES], {"threshold": 0.0}, "contain NaN"),
        (F.precision_recall_f1, [SCORES] * 2, {"threshold": 0.0, "top_k": 0}, "must be at least 1, not 0"),
        (F.precision_recall_f1, [SCORES] * 2, {}, "threshold"),  # it has no default
        (F.stage_scores, [SCORES] * 2, {"probability": 1.0}, "must be above 0 and below 1, not 1.0"),
        (F.mean_roc_auc, [BROKEN, SCORES], {}, "class 2 contain NaN"),
        (F.nested_summary, [[]], {}, "no last row"),
        (F.nested_summary, [[[0.5], []]], {}, "no last row"),
        (F.nested_summary, [[[0.5], [0.4]]], {}, "Row 1 .* has 1 entries but needs 2"),
        nested_sizes([2, 3], [2, 5], "threshold is NaN", threshold=NAN),
        nested_sizes([2, 3], [2, 5], r"targets must be \[3, 5\]", targets=torch.zeros(4, 5)),
        nested_sizes([1, 2], [2, 5], "do not describe nested sets of 3 images"),
        nested_sizes([2, 1, 3], [1, 2, 5], "do not describe"),
        nested_sizes([2, 3], [2], "do not describe"),
        nested_sizes([2, 3], [5, 2], r"class_counts \[5, 2\] do not describe"),
        nested_sizes([2, 3], [-1, 2], "do not describe"),
        nested_sizes([], [], "do not describe"),
        nested_sizes([2, 3], [2, 6], "A nested set has 6 classes, but the scores have 5"),
    ],
)
def test_wrong_arguments_are_rejected_with_the_fix(function, arguments, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        function(*arguments, **settings)
