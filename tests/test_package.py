"""Names that users and other projects rely on."""

import importlib
import inspect
import os
import subprocess
import sys

import pytest

import avalanche_agcn

PUBLIC = {
    "benchmarks": "SplitCOCO SplitWIDE SplitVOC SplitPhotos SplitScenes multilabel_benchmark multilabel_csv",
    "models": "AGCNModel MultiLabelClassifier GCN create_backbone load_word_vectors load_model save_model",
    "training": "AGCN MultiTask FineTuning EWC LwF AGEM ER PRS OCDM SCR StreamingRidge "
    "L3A AugmentedCorrelationMatrix adjacency FeatureStatistics PartialBCEWithLogitsLoss AsymmetricLoss",
    "training.plugins": "ACMPlugin AGCNPlugin StatisticalNegativesPlugin DriftCompensationPlugin "
    "OnlineReplayPlugin PseudoLabelPlugin ConfidencePenaltyPlugin",
    "experiments": "load_run",
    "evaluation": "multilabel_evaluator mean_average_precision_metrics roc_auc_metrics f1_metrics "
    "nested_metrics",
    "evaluation.functional": "average_precision mean_average_precision roc_auc precision_recall_f1 "
    "nested_summary",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_can_be_imported_from_their_layer_and_from_the_package(module):
    imported = importlib.import_module(f"avalanche_agcn.{module}")
    for name in {*PUBLIC[module].split(), *getattr(imported, "__all__", ())}:
        assert callable(getattr(imported, name))
        if module != "evaluation.functional":
            assert getattr(avalanche_agcn, name) is getattr(imported, name)
            assert name in dir(avalanche_agcn)
    for place in (imported, avalanche_agcn):
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            _ = place.Nothing


@pytest.mark.parametrize("module", ["models", "evaluation"])
def test_dir_lists_the_public_names_of_a_layer(module):
    imported = importlib.import_module(f"avalanche_agcn.{module}")
    assert set(imported.__all__) <= set(dir(imported))


def test_methods_and_arguments_that_callers_rely_on_are_kept():
    assert callable(avalanche_agcn.AGCNPlugin.teacher_logits)
    assert isinstance(avalanche_agcn.StreamingRidge.provenance, property)
    arguments = inspect.signature(avalanche_agcn.create_backbone).parameters
    assert arguments.keys() >= {"freeze_batchnorm", "fold_batchnorm", "frozen", "channels_last", "compile"}


UNWANTED = {
    "import avalanche_agcn.benchmarks, avalanche_agcn.training": ["torch", "avalanche"],
    "from avalanche_agcn.evaluation.style import Style": ["torch", "matplotlib"],
    "import avalanche_agcn.evaluation.functional": ["avalanche", "torchvision", "matplotlib"],
    "from avalanche_agcn.evaluation import NestedMetric": ["avalanche", "torchvision", "matplotlib"],
    "from avalanche_agcn.agcn import correlation, graph, gcn, losses": ["avalanche", "torchvision"],
    "from avalanche_agcn.models import word_vectors": ["avalanche", "torchvision"],
    "import avalanche_agcn.models.backbones": ["avalanche", "timm", "efficientnet_lite_pytorch"],
    "import avalanche_agcn.benchmarks.experience": ["pycocotools", "avalanche_agcn.benchmarks.multilabel"],
}
IMPORTS = """
import os, sys
for statement, unwanted in eval(sys.argv[1]).items():
    if "torch" not in unwanted:
        import torch  # once for all that follow
    if os.fork() == 0:
        exec(statement)
        print(statement, [name for name in unwanted if name in sys.modules], sep=": ", flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each statement has a forked process")
def test_slow_modules_are_imported_only_when_used():
    command = [sys.executable, "-c", IMPORTS, repr(UNWANTED)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.splitlines() == [f"{statement}: []" for statement in UNWANTED], loaded.stderr
