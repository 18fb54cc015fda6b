import math

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from avalanche_agcn.evaluation.functional import (
    nested_scores,
    nested_summary,
    stage_average,
    stage_scores,
    tail_scores,
)


def random_stage(seed=0, n=80, n_classes=5):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    targets = (torch.rand(n, n_classes, generator=generator) < logits.sigmoid()).float()
    return logits, targets


@pytest.mark.parametrize("probability", [0.8, 0.525])
def test_scores_are_scikit_learns_above_the_threshold(probability):
    logits, targets = random_stage()
    predicted = (logits.sigmoid() > probability).int().numpy()
    y = targets.int().numpy()
    found = stage_scores(logits, targets, probability=probability)
    assert found.mAP == pytest.approx(average_precision_score(y, logits.numpy(), average="macro"))
    assert found.mean_class_F1 == pytest.approx(f1_score(y, predicted, average="macro"))
    assert pytest.approx(f1_score(y, predicted, average="micro")) == found.OF1


def test_a_probability_at_the_threshold_is_not_predicted():
    logits, targets = torch.zeros(2, 1, dtype=torch.float64), torch.ones(2, 1)
    assert stage_scores(logits, targets, probability=0.5).OF1 == 0
    assert stage_scores(logits + 1e-9, targets, probability=0.5).OF1 == 1


def test_nested_scores_have_those_of_the_last_set():
    logits, targets = random_stage()
    targets[3, 1] = math.nan
    found = nested_scores(logits, targets, set_sizes=[30, 60, 80], class_counts=[2, 3, 4], threshold=0.0)
    assert found.stage == pytest.approx(stage_scores(logits[:, :4], targets[:, :4]))


def test_average_includes_the_base():
    stages = [stage_scores(*random_stage(seed)) for seed in range(3)]
    average = stage_average(stages)
    matrix = [[stage.mAP] * (t + 1) for t, stage in enumerate(stages)]
    assert average.mAP == pytest.approx(nested_summary(matrix).average)
    assert pytest.approx(sum(stage.OF1 for stage in stages) / 3) == average.OF1
    assert stage_average(stages[:1]) == stages[0]


def test_wrong_input_is_rejected():
    with pytest.raises(ValueError, match="no stage to average"):
        stage_average([])
    with pytest.raises(ValueError, match=r"probability must be above 0 and below 1, not 1\.0"):
        stage_scores(*random_stage(), probability=1.0)


def test_tail_scores_are_means_of_groups_of_classes():
    found = tail_scores(torch.tensor([0.1, 0.3, 0.5, 0.6, math.nan]), torch.tensor([199, 1, 200, 900, 5]))
    assert found.few == pytest.approx(0.2)
    assert found.medium == pytest.approx(0.55)
    assert math.isnan(found.many)
    assert tail_scores([0.25], [901]).many == 0.25
    with pytest.raises(ValueError, match="must be equally many"):
        tail_scores([0.1, 0.2], [1])
