"""A setting that is unknown or out of range is rejected with its name, wherever it is given."""

import math

import pytest
import torch

from avalanche_agcn.checks import check_choice, check_range, check_whole_number
from avalanche_agcn.training.acm import AugmentedCorrelationMatrix
from avalanche_agcn.training.graph import adjacency
from avalanche_agcn.training.l3a import L3AStatistics
from avalanche_agcn.training.losses import (
    AsymmetricLoss,
    MultiLabelContrastiveLoss,
    distillation_loss,
    relationship_preserving_loss,
)
from avalanche_agcn.training.plugins import (
    ACMPlugin,
    AGCNPlugin,
    ConfidencePenaltyPlugin,
    ContrastivePlugin,
    EWCPlugin,
    LwFPlugin,
    MemoryPlugin,
    OnlineReplayPlugin,
    PseudoLabelPlugin,
    StatisticalNegativesPlugin,
)
from avalanche_agcn.training.ridge import check_ridge
from avalanche_agcn.training.storage_policy import ReservoirBuffer
from avalanche_agcn.training.strategies import AGCN, CSC, MultiLabelTemplate, StreamingRidge

MEMORY, ROW = ReservoirBuffer(1), torch.zeros(1, 1)


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        ({"least": 0}, [0, 2.5], [-0.1, math.inf, math.nan]),
        ({"above": 0}, [1e-9], [0, -1.0, math.inf, math.nan]),
        ({"least": 0, "most": 1}, [0, 0.5, 1], [-0.1, 1.1, math.nan]),
        ({"least": 0, "below": 1}, [0, 0.99], [1.0, -math.inf]),
    ],
)
def test_ranges_have_the_limits_they_name(limits, inside, outside):
    for value in [None, *inside]:
        check_range("weight", value, **limits)
    for value in outside:
        with pytest.raises(ValueError, match=f"weight must be .*, not {value}"):
            check_range("weight", value, **limits)


def test_choices_and_whole_numbers():
    check_choice("year", None, [None, 2014])
    check_whole_number("n", 3, 3)
    with pytest.raises(ValueError, match=r"^year must be one of \(2014,\), not 2015"):
        check_choice("year", 2015, [None, 2014])
    for wrong in (True, 2.0, "3", 2):
        with pytest.raises(ValueError, match="n must be"):
            check_whole_number("n", wrong, 3)


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (AugmentedCorrelationMatrix, {"q_counts": "all"}),
        (AugmentedCorrelationMatrix, {"hard_start": -1.0}),
        (AugmentedCorrelationMatrix, {"soft_start": -1.0}),
        (lambda **s: adjacency(AugmentedCorrelationMatrix(), **s), {"preset": "ml-gcn"}),
        (lambda **s: adjacency(AugmentedCorrelationMatrix(), **s), {"neighbour_weight": -1.0}),
        (lambda **s: adjacency(AugmentedCorrelationMatrix(), "official", **s), {"cross_threshold": 0.0}),
        (lambda **s: adjacency(AugmentedCorrelationMatrix(), "official", **s), {"new_threshold": 1.5}),
        (check_ridge, {"gamma": -0.1, "ridge": 1.0}),
        (check_ridge, {"ridge": 0.0, "gamma": 0.3}),
        (L3AStatistics, {"ridge": 0.0}),
        (L3AStatistics, {"threshold": 1.0}),
        (AsymmetricLoss, {"gamma_neg": -1}),
        (AsymmetricLoss, {"gamma_pos": math.inf}),
        (AsymmetricLoss, {"clip": 1.0}),
        (MultiLabelContrastiveLoss, {"temperature": 0}),
        (lambda **s: distillation_loss(ROW, ROW, **s), {"reduction": "max"}),
        (lambda **s: relationship_preserving_loss(ROW, ROW, **s), {"reduction": "max"}),
        (ACMPlugin, {"preset": "plain"}),
        (ACMPlugin, {"soft_labels": "hard"}),
        (ACMPlugin, {"graph": "none"}),
        (AGCNPlugin, {"lambda_cls": -0.1}),
        (AGCNPlugin, {"lambda_gph": math.inf}),
        (AGCNPlugin, {"lambda_dst": math.nan}),
        (AGCNPlugin, {"reduction": "none"}),
        (AGCNPlugin, {"gph_reduction": "none"}),
        (EWCPlugin, {"ewc_lambda": -1.0}),
        (EWCPlugin, {"fisher_images": 0, "ewc_lambda": 1.0}),
        (LwFPlugin, {"alpha": -1.0}),
        (LwFPlugin, {"temperature": 0.0}),
        (ConfidencePenaltyPlugin, {"beta": -0.1}),
        (ConfidencePenaltyPlugin, {"alpha": 1.1}),
        (PseudoLabelPlugin, {"threshold": 1.5}),
        (ContrastivePlugin, {"weight": -1.0}),
        (StatisticalNegativesPlugin, {"weight": math.nan}),
        (lambda **s: MemoryPlugin(MEMORY, **s), {"batch_size_mem": -1}),
        (lambda **s: OnlineReplayPlugin(MEMORY, **s), {"views": 0}),
        (ReservoirBuffer, {"max_size": -1}),
        (AGCN, {"preset": "own"}),
        (AGCN, {"storage_policy": "reservoir"}),
        (CSC, {"beta": -1.0}),
        (CSC, {"alpha": 2.0}),
        (CSC, {"threshold": -0.1}),
        (StreamingRidge, {"gamma": 1.5}),
        (StreamingRidge, {"ridge": 0.0}),
        (StreamingRidge, {"refine": -1.0}),
        (lambda **s: MultiLabelTemplate(model=None, optimizer=None, **s), {"amp": "bf16"}),
        (lambda **s: MultiLabelTemplate(model=None, optimizer=None, **s), {"clip_grad_norm": 0.0}),
        (lambda **s: MultiLabelTemplate(model=None, optimizer=None, **s), {"seed": -1}),
    ],
)
def test_wrong_settings_are_named(function, settings):
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"^{name} must be .*{value}"):
        function(**settings)


def test_settings_that_do_not_go_together_are_named():
    with pytest.raises(ValueError, match="nothing would be learned"):
        AGCNPlugin(lambda_cls=0, lambda_dst=0, lambda_gph=0)
    for function in (ACMPlugin, lambda **s: adjacency(AugmentedCorrelationMatrix(), **s)):
        with pytest.raises(ValueError, match="new_threshold belongs to preset 'official'"):
            function(new_threshold=0.4)
