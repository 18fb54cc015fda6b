"""A setting that is unknown or out of range is rejected with its name, wherever it is given."""

import math
from functools import partial

import pytest
import torch

from avalanche_agcn import training
from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix
from avalanche_agcn.agcn.graph import GraphOptions, adjacency
from avalanche_agcn.agcn.losses import distillation_loss, relationship_preserving_loss
from avalanche_agcn.checks import check_choice, check_range, check_whole_number
from avalanche_agcn.methods.l3a import L3AStatistics
from avalanche_agcn.training import plugins
from avalanche_agcn.training.statistics.ridge import check_ridge
from avalanche_agcn.training.storage_policy import ReservoirBuffer
from avalanche_agcn.training.template import MultiLabelTemplate

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


def graph(preset="paper", **settings):
    return adjacency(AugmentedCorrelationMatrix(), preset, GraphOptions(**settings))


def template(**settings):
    return MultiLabelTemplate(model=None, optimizer=None, **settings)


WRONG = [  # one setting at a time
    (AugmentedCorrelationMatrix, {"q_counts": "all", "hard_start": -1.0, "soft_start": -1.0}),
    (graph, {"neighbour_weight": -1.0}),
    (partial(graph, "official"), {"cross_threshold": 0.0, "new_threshold": 1.5}),
    (partial(check_ridge, gamma=0.3, ridge=1.0), {"gamma": -0.1, "ridge": 0.0}),
    (L3AStatistics, {"ridge": 0.0, "threshold": 1.0}),
    (training.AsymmetricLoss, {"gamma_neg": -1, "gamma_pos": math.inf, "clip": 1.0}),
    (training.MultiLabelContrastiveLoss, {"temperature": 0}),
    (partial(distillation_loss, ROW, ROW), {"reduction": "max"}),
    (partial(relationship_preserving_loss, ROW, ROW), {"reduction": "max"}),
    (plugins.ACMPlugin, {"preset": "plain", "soft_labels": "hard", "graph": "none"}),
    (plugins.AGCNPlugin, {"lambda_cls": -0.1, "lambda_gph": math.inf, "lambda_dst": math.nan}),
    (plugins.AGCNPlugin, {"reduction": "none", "gph_reduction": "none"}),
    (plugins.DecoupledTrainingPlugin, {"distillation": -1.0}),
    (plugins.DriftCompensationPlugin, {"n_images": -1, "ridge": 0.0}),
    (partial(plugins.EWCPlugin, ewc_lambda=1.0), {"ewc_lambda": -1.0, "fisher_images": 0}),
    (plugins.LwFPlugin, {"alpha": -1.0, "temperature": 0.0}),
    (plugins.ConfidencePenaltyPlugin, {"beta": -0.1, "alpha": 1.1}),
    (plugins.PseudoLabelPlugin, {"threshold": 1.5}),
    (plugins.ContrastivePlugin, {"weight": -1.0}),
    (plugins.StatisticalNegativesPlugin, {"weight": math.nan, "max_gaussians": 0, "statistics": "small"}),
    (partial(plugins.MemoryPlugin, MEMORY), {"batch_size_mem": -1}),
    (partial(plugins.OnlineReplayPlugin, MEMORY), {"views": 0}),
    (ReservoirBuffer, {"max_size": -1}),
    (training.AGCN, {"preset": "own", "storage_policy": "reservoir"}),
    (training.CSC, {"beta": -1.0, "alpha": 2.0, "threshold": -0.1}),
    (training.StreamingRidge, {"gamma": 1.5, "ridge": 0.0, "refine": -1.0}),
    (template, {"amp": "bf16", "clip_grad_norm": 0.0, "seed": -1}),
]


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [(function, name, value) for function, wrong in WRONG for name, value in wrong.items()],
)
def test_wrong_settings_are_named(function, name, value):
    with pytest.raises(ValueError, match=f"^{name} must be .*{value}"):
        function(**{name: value})


def test_settings_that_do_not_go_together_are_named():
    with pytest.raises(ValueError, match="nothing would be learned"):
        plugins.AGCNPlugin(lambda_cls=0, lambda_dst=0, lambda_gph=0)
    options = GraphOptions(new_threshold=0.4)
    for function in (plugins.ACMPlugin, partial(adjacency, AugmentedCorrelationMatrix())):
        with pytest.raises(ValueError, match="new_threshold belongs to the graph 'official'"):
            function(options=options)
